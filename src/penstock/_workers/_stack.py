"""The stacks of a process that hangs: on a signal, it writes the stacks of its threads to a file, and dies.

The handler is that of `faulthandler`, which needs no lock and no thread, so it works inside of any call. After it the
system's own action for the signal follows and ends the process; so, once it has ended, everything is written.
"""

import faulthandler
import os
import re
import signal
from typing import Final

# Hardly used by other libraries: the first real-time signals are the C library's. Systems without them have no workers.
STACK_SIGNAL: Final[int] = getattr(signal, "SIGRTMIN", signal.SIGTERM) + 12
_MAX_BYTES: Final = 100_000
_MAX_CHARACTERS: Final = 8_000


class StackFile:
    """Owns the memory that a process, and later its successors, write their stacks to."""

    def __init__(self) -> None:
        self._memory = os.fdopen(os.memfd_create("penstock-stack"), "r+b", buffering=0)

    def fileno(self) -> int:
        """Return the descriptor; processes get copies of it."""
        return self._memory.fileno()

    def take(self) -> str:
        """Return the stacks that the process has written, the main thread's first, and clear the memory."""
        self._memory.seek(0)  # the next process writes from here, too
        written = self._memory.read(_MAX_BYTES).decode(errors="replace")
        self._memory.seek(0)
        self._memory.truncate()
        stacks = written.strip().split("\n\n")
        return "\n\n".join(re.sub(r"0x[0-9a-f]+ ", "", stack) for stack in reversed(stacks))[:_MAX_CHARACTERS]

    def close(self) -> None:
        """Free the memory."""
        self._memory.close()


def answer_with_stack(descriptor: int) -> None:
    """Make this process write to a `StackFile` and die when it receives the signal."""
    faulthandler.register(STACK_SIGNAL, descriptor, all_threads=True, chain=True)
