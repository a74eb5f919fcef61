"""Find the modules whose import starts threads, and those that import them.

A fork server must have no threads, so it can't import such modules. Often a program names several modules that all
import the same one, as those of a package that loads a library with threads. Each attempt without one of them costs an
import of all others. So while modules are imported, `ThreadStarters` notes which module imports which, and which one is
executed when a thread starts; then one attempt shows all modules to leave out.

`__import__` is replaced for that time. A module that is imported in another way, by `importlib.import_module` or a
native module, counts as a part of the one that is executed then. If so an import isn't noted, the server executes
itself once more, which costs time and nothing else.
"""

import builtins
import importlib.util
import os
import sys
from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Final, cast

from penstock._caught import Caught

if TYPE_CHECKING:
    from collections.abc import Callable

_PARAMETERS: Final = ("name", "globals", "locals", "fromlist", "level")  # of `__import__`


class ThreadStarters:
    """The modules that have started threads, and which module imports which."""

    def __init__(self) -> None:
        self._imports: defaultdict[str, set[str]] = defaultdict(set)
        self._starters: set[str] = set()
        self._counted = 0  # threads that were started by modules within the one that is imported

    @contextmanager
    def importing(self, name: str) -> Generator[None]:
        """Note what is imported within the scope, which imports a module."""
        original = cast("Callable[..., ModuleType]", builtins.__import__)

        def noted(*given: object, **named: object) -> ModuleType:
            arguments = dict(zip(_PARAMETERS, given, strict=False)) | named
            variables = cast("dict[str, object]", arguments.get("globals") or {})
            members = cast("Sequence[str]", arguments.get("fromlist") or ())
            importer, imported = str(variables.get("__name__", name)), str(arguments["name"])
            level = cast("int", arguments.get("level", 0))
            if level:
                with Caught(Exception):  # the import itself raises it
                    package = str(variables.get("__package__") or importer)
                    imported = importlib.util.resolve_name("." * level + imported, package)
            self._note(importer, imported, members)
            loading = _loading(imported, members)
            if loading is None:
                return original(*given, **named)
            with self._counting(loading):
                return original(*given, **named)

        builtins.__import__ = noted
        try:
            with self._counting(name):
                yield
        finally:
            builtins.__import__ = original

    @contextmanager
    def _counting(self, name: str) -> Generator[None]:
        before, of_outer = count_threads(), self._counted
        self._counted = 0
        try:
            yield
        finally:
            started = count_threads() - before
            if started > self._counted:
                self._starters.add(name)
            self._counted = of_outer + started

    def _note(self, importer: str, name: str, members: Sequence[str]) -> None:
        imports = self._imports[importer]
        imports.add(name)
        imports.update(f"{name}.{member}" for member in members)

    def starter_in(self, name: str) -> str | None:
        """Return a module that has started threads among a module and those that it imports; None for none."""
        waiting, seen = [name], {name}
        while waiting:
            each = waiting.pop()
            if each in self._starters:
                return each
            above = {each.rpartition(".")[0]} if "." in each else set[str]()  # importing a module imports its package
            for other in (self._imports[each] if each in self._imports else set[str]()) | above:
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        return None


def _loading(name: str, members: Sequence[str]) -> str | None:
    """Return the module that an import statement executes, or one of them; None if all are there already."""
    module = sys.modules.get(name)
    if module is None:
        return name
    return next((f"{name}.{member}" for member in members if member not in vars(module)), None)


def count_threads() -> int:
    """Return the number of this process's threads."""
    return len(os.listdir("/proc/self/task"))
