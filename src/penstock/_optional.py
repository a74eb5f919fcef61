"""Optional dependencies: one that is missing is told with the extra that brings it."""

import importlib
from types import ModuleType

from penstock.errors import MissingDependencyError


def need(module: str, what: str, *, extra: str) -> ModuleType:
    """Import a module of an optional dependency's, and return it.

    Args:
        module: its name.
        what: the dependency's name for people.
        extra: what of Penstock's brings it.

    Raises:
        MissingDependencyError: it isn't installed.
    """
    try:
        importlib.import_module(module.partition(".")[0])
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # it is there, and lacks something of its own
        missing = MissingDependencyError(what, extra=extra)
        missing.name = error.name
        raise missing from None
