"""Where a process hangs: asked by a signal, it writes the stacks of its threads down, and dies.

Python's own handler of the signal needs no lock and no thread, so it answers from inside of any call. What follows it
is what the system does for the signal, which is to end the process: so the end says that all is written.
"""

import faulthandler
import os
import re
import signal
from typing import Final

# One that nobody else uses: the first are the C library's. Systems without such have no worker processes.
STACK_SIGNAL: Final[int] = getattr(signal, "SIGRTMIN", signal.SIGTERM) + 12
_MAX_BYTES: Final = 100_000
_MAX_CHARACTERS: Final = 8_000
_OWN_THREAD: Final = "_end_with_parent"  # a function of ours, in which it waits


class StackFile:
    """Owns the memory that a process, and then those that take its place, write their stacks to."""

    def __init__(self) -> None:
        self._memory = os.fdopen(os.memfd_create("penstock-stack"), "r+b", buffering=0)

    def fileno(self) -> int:
        """Return the descriptor; processes get copies of it."""
        return self._memory.fileno()

    def take(self) -> str:
        """Return what the process has written, and forget it: its threads' stacks, the main one's first."""
        self._memory.seek(0)  # where the next process will write, too
        written = self._memory.read(_MAX_BYTES).decode(errors="replace")
        self._memory.seek(0)
        self._memory.truncate()
        stacks = [stack for stack in written.strip().split("\n\n") if _OWN_THREAD not in stack]
        return "\n\n".join(re.sub(r"0x[0-9a-f]+ ", "", stack) for stack in reversed(stacks))[:_MAX_CHARACTERS]

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()


def answer_with_stack(descriptor: int) -> None:
    """Have this process write to a `StackFile` and die when it gets the signal."""
    faulthandler.register(STACK_SIGNAL, descriptor, all_threads=True, chain=True)
