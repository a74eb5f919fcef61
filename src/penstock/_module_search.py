"""The search for the program's modules in its other processes, which have its search path, but not its `sys.modules`.

A program has modules that no process finds: of a file that it loaded itself, of text that it ran, from a directory that
its path no longer has, or by a relative path before it changed the directory. Their functions and classes can be sent
by value alone.
"""

import os
import sys
from contextlib import suppress
from functools import cache
from importlib.machinery import BuiltinImporter, FileFinder, FrozenImporter, ModuleSpec, PathFinder
from typing import Any, Final

from penstock._caught import Caught

_OF_EACH_PYTHON: Final[frozenset[object]] = frozenset({BuiltinImporter, FrozenImporter, PathFinder})
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})  # folders of packages
_FOUND: Final = sys.stdlib_module_names | {"__main__", "__mp_main__", "penstock"}


def current_path() -> list[str]:
    """Return the module search path of this process, for a process that may have another working directory.

    An entry that isn't text, such as a `Path`, is left out: `import` doesn't look there either.
    """
    entries: list[object] = [*sys.path]
    return [entry or _original() for entry in entries if isinstance(entry, str)]


def edited_file(name: str) -> str | None:
    """Return the source of a loaded module of the user's own; None for one that is installed, or has no source."""
    path = getattr(sys.modules.get(name), "__file__", None)
    if not isinstance(path, str) or not path.endswith(".py") or name.partition(".")[0] in _FOUND:
        return None
    return None if _is_installed(path) else path


def _is_installed(path: str) -> bool:
    return bool(_INSTALLED & {*path.split(os.sep)})


def _original() -> str:
    running: Any = sys.modules.get("multiprocessing.process")
    return getattr(running, "ORIGINAL_DIR", None) or ""


class ModuleSearch:
    """Says which modules of this program its other processes find. Make one for each pickle: the path may change.

    The main module isn't searched: `penstock._processes` knows whether processes import it.
    """

    def __init__(self) -> None:
        self._found: dict[str, bool] = {}
        self._path: list[str] | None = None

    def finds(self, name: str) -> bool:
        """Return whether processes find a module, which is the same one; True also if this program hasn't loaded it."""
        return name not in sys.modules or self._finds(name)

    def _finds(self, name: str) -> bool:
        found = self._found.get(name)
        if found is None:
            parent = name.rpartition(".")[0]
            found = self._found[name] = self._finds_submodule(parent, name) if parent else self._finds_top(name)
        return found

    def _finds_submodule(self, parent: str, name: str) -> bool:
        if not self._finds(parent):
            return False
        package: Any = sys.modules.get(parent)
        if package is None or hasattr(package, name.rpartition(".")[2]):  # also of an extension, or made by the package
            return True
        return _is_same(PathFinder.find_spec(name, getattr(package, "__path__", [])), name)

    def _finds_top(self, name: str) -> bool:
        if name in _FOUND:
            return True
        if self._path is None:
            self._path = [_absolute(entry) for entry in current_path()]
        return _is_same(PathFinder.find_spec(name, self._path), name) or _is_found_otherwise(name)


def _absolute(entry: str) -> str:
    """Return an entry of the path as processes see it: a relative one's finder keeps the directory where it began."""
    with suppress(FileNotFoundError):  # the working directory has been deleted
        if not entry or isinstance(sys.path_importer_cache.get(entry), FileFinder):
            return os.path.abspath(entry)
    return entry


def _is_same(spec: ModuleSpec | None, name: str) -> bool:
    """Return whether a spec was found, and isn't that of another module with the same name."""
    ours = getattr(sys.modules.get(name), "__file__", None)
    if spec is None or not isinstance(ours, str):
        return spec is not None
    if not spec.has_location or spec.origin is None:
        return False  # a folder, while the module has a file
    # An installed package may have copies: ray, for one, imports a psutil of its own.
    if spec.origin == ours or _is_installed(ours):
        return True
    with suppress(OSError):
        return os.path.samefile(spec.origin, ours)
    return False


@cache  # a finder of packages that are compiled in place may compile them again
def _is_found_otherwise(name: str) -> bool:
    """Return whether a finder of packages that are installed in place, or the program's own, finds a module."""
    finders = [each for each in sys.meta_path if each not in _OF_EACH_PYTHON]
    with Caught(Exception):  # some forbid imports
        return any(_is_same(finder.find_spec(name, None), name) for finder in finders)
    return False
