"""Whether worker processes may be chosen for a plan without the user's request, or the reason why not.

Processes get a copy of the dataset, and import the program's main module, which must guard the code that starts them.
So they are chosen only where that is safe and changes nothing: a dataset that can't be copied stays in the program, and
no script runs twice.
"""

import os
import pickle
import sys
from typing import Any, Final, cast

from penstock._caught import Caught
from penstock._graph import Cache, awaits, walk
from penstock._pickles import pickler
from penstock._plan._plan import Plan
from penstock._processes import has_cloudpickle, is_guarded, is_imported, missing
from penstock._storage import MemoryCache

_MAX_BYTES: Final = 64_000_000  # of a dataset


class _TooLargeError(Exception):
    """The dataset is larger than what is copied unasked."""


class _Copy:
    """A file that a pickle is written to."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._room = _MAX_BYTES

    def write(self, data: "bytes | bytearray | memoryview") -> int:
        size = memoryview(data).nbytes
        self._room -= size
        if self._room < 0:
            raise _TooLargeError
        self.parts.append(bytes(data))
        return size


def obstacle(plan: Plan) -> str:
    """Return why processes are not to be chosen for a plan, in a few words; empty if nothing speaks against them."""
    if not plan.program.uses_workers:
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
    return "" if has_cloudpickle() or is_guarded() else 'the script has no `if __name__ == "__main__":` around this'


def _not_copied(plan: Plan) -> str:
    """Return why a plan can't be copied into new processes; empty if it can."""
    copy = _Copy()
    with Caught(Exception) as caught:
        pickle.Pickler(copy, pickle.HIGHEST_PROTOCOL).dump(plan)
    if isinstance(caught.error, _TooLargeError):
        return f"the dataset holds more than {_MAX_BYTES // 1_000_000} MB, which would be copied"
    if caught.error is not None:
        return f"it can't be pickled ({_line(caught.taken())})"
    return "" if has_cloudpickle() and not is_imported() else missing(b"".join(copy.parts))


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 100 else f"{text[:99]}…"
