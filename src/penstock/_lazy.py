"""Names of a package that are imported when they are first asked for, as PEP 562 lets a module do.

Describing a dataset takes a part of the package; what only some programs need, or those alone that run what they
describe, is left out of `import penstock` this way. For type checkers and the import contract the package imports such
names plainly, under `TYPE_CHECKING`, and hides the function from them: else they would believe in any name.
"""

import importlib
import sys
from collections.abc import Callable


def from_modules(package: str, **modules: str) -> Callable[[str], object]:
    """Return the `__getattr__` of a package, for names each of which is given the module that has it.

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
        setattr(sys.modules[package], name, found)  # so it is asked for once
        return found

    return get
