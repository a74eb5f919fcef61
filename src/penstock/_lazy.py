"""Names of a package that are imported on first access, by a module's `__getattr__` (PEP 562).

Describing a dataset needs only a part of the package, so `import penstock` leaves out the names that run a dataset and
those that few programs need. A package imports these names under `TYPE_CHECKING`, for type checkers and the import
contract. It hides the `__getattr__` from type checkers, which would otherwise accept any name.
"""

import importlib
import sys
from collections.abc import Callable


def from_modules(package: str, **modules: str) -> Callable[[str], object]:
    """Return the `__getattr__` of a package, for names that are mapped to the modules that define them.

    Example:
        >>> get = from_modules("collections", Mapping="collections.abc")
        >>> get("Mapping").__name__
        'Mapping'
        >>> get("Missing")
        Traceback (most recent call last):
        AttributeError: module 'collections' has no attribute 'Missing'
    """

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found: object = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, found)  # later accesses don't call this function
        return found

    return get
