"""Whether a plan's work may be given to processes without anyone having asked for them, or why not.

Processes import the program's main module again, and get the dataset as a copy. So they are chosen only where that is
safe and changes nothing: what can't be copied stays here, and a script whose start isn't guarded isn't started again.
"""

import ast
import importlib.util
import inspect
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any, Final, cast

from penstock._caught import Caught
from penstock._graph._nodes import Cache, walk
from penstock._graph._upcoming import awaits
from penstock._plan._plan import Ordered, Plan
from penstock._runtime._ordered import can_read_ahead
from penstock._runtime._parcels import pickler
from penstock._storage._memory_cache import MemoryCache

_MOST_BYTES: Final = 64_000_000  # of a dataset


class _TooLargeError(Exception):
    """The dataset is larger than what is copied unasked."""


class _Copy:
    """What a pickle is written to."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._room = _MOST_BYTES

    def write(self, data: "bytes | bytearray | memoryview") -> int:
        size = memoryview(data).nbytes
        self._room -= size
        if self._room < 0:
            raise _TooLargeError
        self.parts.append(bytes(data))
        return size


def obstacle(plan: Plan) -> str:
    """Return why processes are not to be chosen for a plan, in a few words; empty if nothing speaks against them."""
    if isinstance(plan.program, Ordered) and not can_read_ahead(plan):
        return "everything is computed in one thread, in order"
    if awaits(plan.node):
        return "async sources are read ahead for threads"
    if any(isinstance(step, Cache) and isinstance(step.store, MemoryCache) for step in walk(plan.node)):
        return "threads share the elements kept in memory"
    return _without_processes() or _not_copied(plan)


def copy_of(plan: Plan) -> Plan:
    """Return a copy of a plan to try it out, over the same arrays; itself if it can't be copied.

    Functions and sources that open something where they are first used can't be sent to another process after that.
    """
    for module in (pickle, pickler()):  # as it is sent
        buffers: list[pickle.PickleBuffer] = []
        with Caught(Exception):
            copied = module.dumps(plan, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
            return cast("Plan", pickle.loads(copied, buffers=buffers))
    return plan


def _without_processes() -> str:
    """Return why this program can't start processes; empty if it can."""
    if not hasattr(os, "memfd_create"):
        return "this system has no memory for processes to share"
    if getattr(sys, "frozen", False):
        return "the program is frozen into one file"
    running: Any = sys.modules.get("multiprocessing.process")
    if running is not None and (current := running.current_process()) is not None:
        if getattr(current, "_inheriting", False):
            return "the program is a process that is being started itself"
        if current.daemon:
            return "the program is a daemonic process, which may start none"
    return "" if is_guarded() else 'the script has no `if __name__ == "__main__":` around this'


def _not_copied(plan: Plan) -> str:
    """Return why a plan can't be copied into processes that begin anew; empty if it can."""
    copy = _Copy()
    with Caught(Exception) as caught:
        pickle.Pickler(copy, pickle.HIGHEST_PROTOCOL).dump(plan)
    if isinstance(caught.error, _TooLargeError):
        return f"the dataset holds more than {_MOST_BYTES // 1_000_000} MB, which would be copied"
    if caught.error is not None:
        return f"it can't be pickled ({_line(caught.taken())})"
    missing = not_found(b"".join(copy.parts))
    by_value = importlib.util.find_spec("cloudpickle") is not None
    return "" if by_value and not _is_imported_again() else missing


def not_found(pickled: bytes) -> str:
    """Return why processes don't find what a pickle names of the main module; empty if they do."""
    if b"__main__" not in pickled:
        return ""
    if not _is_imported_again():
        return "processes can't import what is defined in the main module; cloudpickle would do"
    hidden = [name for name in _names_under_guards() if name.encode() in pickled]
    return f"{hidden[0]} is defined where processes don't, below `if __name__ == …`" if hidden else ""


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 100 else f"{text[:99]}…"


# ------------------------------------------------------------------ the main module


def is_guarded() -> bool:
    """Return whether a process that imports the main module again would not get here.

    That is so where the statement of the main module that is being run stands below `if __name__ == "__main__":`. In
    another thread than the main one, that can't be seen; then there must be such a guard.
    """
    if not _is_imported_again():
        return True
    guards = list(_guards())
    line = _line_of_main()
    return bool(guards) if line is None else any(guard.lineno <= line <= _last_line(guard) for guard in guards)


def _main() -> ModuleType:
    return sys.modules["__main__"]


def _is_imported_again() -> bool:
    """Return whether `multiprocessing` has its processes import the main module."""
    main = _main()
    name = getattr(main.__spec__, "name", None)
    if name is not None:
        return name != "__main__" and not name.endswith(".__main__")
    path = getattr(main, "__file__", None)
    return path is not None and os.path.splitext(os.path.basename(path))[0] != "ipython"


def _line_of_main() -> int | None:
    """Return the line of the main module that is being run in this thread, if it is."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals is vars(_main()):
            return frame.f_lineno
        frame = frame.f_back
    return None


def _guards() -> Iterator[ast.If]:
    """Yield the main module's `if __name__ == "__main__":`, its statements alone, or nothing if it can't be read."""
    path = getattr(_main(), "__file__", None)
    with suppress(OSError, SyntaxError, ValueError, TypeError):
        with open(path or "", "rb") as file:
            module = ast.parse(file.read())
        for statement in module.body:
            if isinstance(statement, ast.If) and ast.unparse(statement.test) in _GUARDS:
                yield statement


_GUARDS: Final = ("__name__ == '__main__'", "'__main__' == __name__")


def _last_line(guard: ast.If) -> int:
    return max(statement.end_lineno or statement.lineno for statement in guard.body)


def _names_under_guards() -> Iterator[str]:
    """Yield the names of functions and classes that are defined only where the main module isn't imported."""
    for guard in _guards():
        for statement in ast.walk(ast.Module(guard.body, [])):
            if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                yield statement.name
