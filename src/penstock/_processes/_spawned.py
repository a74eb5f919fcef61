"""A process that `multiprocessing` spawns, as its parent holds it: started quietly, and seen to die at once."""

import multiprocessing
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import process as process_module
from typing import TYPE_CHECKING

from penstock._processes._child_ends import interrupts_blocked
from penstock._processes._pidfd import watch_process

if TYPE_CHECKING:
    import io


class SpawnedProcess:
    """Owns a process.

    Args:
        target: what runs in it.
        arguments: pickled for it.
        name: of the process.

    Attributes:
        pid: its number.
        is_starting: False, since it has a number and a descriptor from the beginning.
    """

    is_starting = False

    def __init__(self, target: Callable[..., None], arguments: tuple[object, ...], *, name: str) -> None:
        # A daemon, so that what was forgotten never keeps Python from ending.
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=target, args=arguments, name=name, daemon=True)
        with interrupts_blocked():
            self._process.start()
        self.pid: int = self._process.pid or 0
        # Else a fork of this program, which inherits the list, ends the processes of its parent when it exits.
        children: set[object] = getattr(process_module, "_children", set())
        children.discard(self._process)
        self._watched: io.FileIO | None = watch_process(self.pid)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the process has ended."""
        return self._process.sentinel if self._watched is None else self._watched.fileno()

    def learn(self) -> None:
        """Do nothing: there is nothing to learn later."""

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kill the process, by SIGKILL or another signal; harmless if it has ended."""
        if self._watched is None:
            self._process.kill()
        else:
            with suppress(ProcessLookupError):  # it was waited for
                signal.pidfd_send_signal(self._watched.fileno(), number)

    def join(self) -> int | None:
        """Wait for the end of the process.

        Returns:
            Its exit code; None if someone else has waited for it.
        """
        self._process.join()
        return self._process.exitcode

    def close(self) -> None:
        """Close what belongs to the process, which has ended."""
        with suppress(ValueError):  # its exit code was taken by someone else: it counts as running for ever
            self._process.close()
        if self._watched is not None:
            self._watched.close()
