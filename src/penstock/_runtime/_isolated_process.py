"""One helper process of an isolated loader, at the trainer's side: its commands, its reader, and its end."""

import pickle
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock._memory import Region
from penstock._os import Bell
from penstock._processes import FUNCTION_SECONDS, Supervisor
from penstock._runtime._isolated_helper import Begin, Setup, Starved
from penstock._workers._processes import Inherited
from penstock.transport._pipe import TensorPipeReader

if TYPE_CHECKING:
    from penstock._os import DaemonThread
    from penstock.errors import WorkerError


class BatchReader(TensorPipeReader):
    """The reading end, for a loader that words its own warnings about kept memory, and waits for several things."""

    def fileno(self) -> int:
        """Return the descriptor that is readable when `receive` may have become quick."""
        return self._operations.fileno()

    @property
    def was_joined(self) -> bool:
        """Whether the process has been let in."""
        return bool(self._writer_pids)

    @property
    def keeps_referred(self) -> bool:
        """Whether this process may keep memory that the helper's workers compute in."""
        return self._last is not None and not self._last.ended and self._last.keeps_referred

    @property
    def kept(self) -> int:
        """How many messages' memory this process keeps, besides what is on its way."""
        last = self._last
        return 0 if last is None or last.ended else last.held - last.capacity

    def _warn_about_kept_elements(self) -> None:
        pass


class HelperProcess:
    """One helper process, from its start to the end of all that belongs to it.

    Attributes:
        over: rung once the process has died and what its death means has been noted.
        death: why it died.
        successor: the process that was started in its place, if a run had ever begun in it.
        has_begun: whether it had.
        is_hopeless: whether it failed by itself before it had started, as any other would.
    """

    def __init__(self, supervisor: Supervisor, setup: Setup, plan: Region, *, copy: bool) -> None:
        self._supervisor = supervisor
        self.over = Bell()
        self.death: WorkerError | None = None
        self.successor: HelperProcess | None = None
        self.has_begun = self.is_hopeless = False
        self.watch: DaemonThread | None = None
        self._starved_at = -1  # messages
        self._ending = threading.RLock()
        self.reader = BatchReader(allow_pickle=True, copy=copy)
        try:
            setup = setup._replace(address=self.reader.address)
            self.child = supervisor.start("helper process", (setup, Inherited((plan.descriptor,))))
        except BaseException:
            self.reader.close()
            raise

    def send(self, command: Begin | Starved) -> None:
        """Send a command."""
        with suppress(OSError):  # it has died: the receiver gets an error
            self.child.pipe.send_bytes(pickle.dumps(command, pickle.HIGHEST_PROTOCOL))

    def starve(self) -> None:
        """Say, once for each message, that this process waits for it, and keeps memory of some before it."""
        if self._starved_at != self.reader.messages:
            self._starved_at = self.reader.messages
            self.send(Starved(self._starved_at))

    def end(self) -> None:
        """End the process, if it runs, and close what belongs to it; may be called again, and anywhere."""
        self.reader.close()  # ends the wait of the consumer, and of the process that waits for room
        with self._ending:
            with suppress(OSError, ValueError):  # it has ended, or was closed before
                self.child.pipe.send_bytes(b"")
                self.child.wait_for_end(FUNCTION_SECONDS)
            self.child.kill()
            if self.watch is not None and not self.watch.is_current:
                self.watch.wait(None)
            self._supervisor.release(self.child)

    def has_started(self) -> bool:
        """Return whether the process, which is dead, got as far as its own work; called once."""
        with suppress(EOFError, OSError):
            return self.child.pipe.poll() and self.child.pipe.recv_bytes() == b"started"
        return False
