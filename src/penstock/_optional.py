"""Optional dependencies; the error for a missing one names the extra that installs it."""

import importlib
import sys
from types import ModuleType

from penstock.errors import MissingDependencyError


def need(module: str, what: str, *, extra: str) -> ModuleType:
    """Import a module of an optional dependency, and return it.

    Args:
        module: the module's name.
        what: the dependency's name in messages.
        extra: the extra of Penstock that installs it.

    Raises:
        MissingDependencyError: the dependency isn't installed.
    """
    found, package = sys.modules.get(module), sys.modules.get(module.partition(".")[0])
    spec = getattr(found, "__spec__", None)
    # importlib takes ten times as long. It waits for another thread that is importing the module, and so must this.
    if found is not None and package is not None and not getattr(spec, "_initializing", True):
        return found
    try:
        importlib.import_module(module.partition(".")[0])
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the dependency is installed, but lacks a dependency of its own
        missing = MissingDependencyError(what, extra=extra)
        missing.name = error.name
        raise missing from None
