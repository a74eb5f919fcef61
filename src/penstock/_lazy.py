"""Names of a package that are imported on first access, by a module's `__getattr__` (PEP 562).

Describing a dataset needs only a part of the package, so `import penstock` leaves out the names that run a dataset and
those that few programs need. A package imports these names under `TYPE_CHECKING`, for type checkers and the import
contract. It hides the `__getattr__` from type checkers, which would otherwise accept any name. Its `__dir__` has these
names, so that they can be completed before they are loaded.
"""

import importlib
import sys
from collections.abc import Callable, Sequence


def from_modules(
    package: str,
    *,
    submodules: Sequence[str] = (),
    refusal: Callable[[str], str] | None = None,
    **modules: str,
) -> Callable[[str], object]:
    """Return the `__getattr__` of a package, for names that are mapped to the modules that define them.

    Args:
        package: the package's name.
        submodules: modules of the package, which are found as well. If one can't be imported, since its framework isn't
            installed, the AttributeError has that message, so that `hasattr` is False.
        refusal: returns the message for any other name. Default: Python's message.
        **modules: by each name, the module that defines it.

    Example:
        >>> get = from_modules("collections", Mapping="collections.abc")
        >>> get("Mapping").__name__
        'Mapping'
        >>> get("Missing")
        Traceback (most recent call last):
        AttributeError: module 'collections' has no attribute 'Missing'
    """

    def get(name: str) -> object:
        if name in modules:
            found: object = getattr(importlib.import_module(modules[name]), name)
            setattr(sys.modules[package], name, found)  # later accesses don't call this function
            return found
        if name in submodules:
            try:
                return importlib.import_module(f"{package}.{name}")
            except ModuleNotFoundError as error:
                raise AttributeError(f"module {package!r} can't import {name!r}: {error}") from error
        missing = f"module {package!r} has no attribute {name!r}"
        raise AttributeError(missing if refusal is None else refusal(name))

    return get


def listing(package: str, *submodules: str) -> Callable[[], list[str]]:
    """Return the `__dir__` of a package: its public names, loaded or not.

    Example:
        >>> "ImageFolder" in listing("penstock.sources")()
        True
    """

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package])["__all__"], *submodules})

    return names
