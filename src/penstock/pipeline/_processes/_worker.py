"""One process of an executor, as its thread uses it: it runs one call after the other."""

import multiprocessing
import os
import pickle
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from penstock._processes import Supervisor, unpack_error
from penstock.pipeline._processes._chunks import PackedOutcomes, load
from penstock.pipeline._processes._serve import Answer, Request, keep

if TYPE_CHECKING:
    from penstock.errors import WorkerError

_PROGRESS_BYTES: Final = 1 << 16  # the capacity of a pipe; a chunk has fewer items


class DiedError(Exception):
    """The process died in a call.

    Attributes:
        death: how.
        begun: how many items of the call's chunk had been begun.
    """

    def __init__(self, death: "WorkerError", begun: int) -> None:
        super().__init__(death)
        self.death = death
        self.begun = begun


class Worker:
    """Owns a process.

    Args:
        supervisor: starts the process.
        number: of the process.
        name: of the process, in messages.
        setup: the pickled initializer and its arguments.

    Attributes:
        process: the process.
        calls: calls that only this process can do, since it keeps their generators; the dispatcher's.
        is_closed: whether it takes no more calls.
        may_restart: whether another process may be started once this one has died.
        death: how it died, if it did.
    """

    def __init__(self, supervisor: Supervisor, number: int, name: str, setup: bytes) -> None:
        self._supervisor = supervisor
        self._progress, theirs = multiprocessing.Pipe(duplex=False)
        try:
            self.process = supervisor.start(name, (setup, theirs), number=number)
        except BaseException:
            self._progress.close()
            raise
        finally:
            theirs.close()
        os.set_blocking(self._progress.fileno(), False)
        self.calls: deque[Any] = deque()
        self.is_closed = self.may_restart = False
        self.death: WorkerError | None = None
        self._is_ready = False
        self._known: dict[int, Any] = {}  # the functions that were sent

    def wait_until_ready(self) -> None:
        """Wait until the process takes calls.

        Raises:
            WorkerError: it died before.
            Exception: the initializer's.
        """
        answer = self._ask([])
        if answer is None:
            raise self.reap()
        if answer[0].error is not None:
            error = unpack_error(answer[0].error)
            raise error
        self._is_ready = True
        self._supervisor.has_started(self.process)

    def call(self, number: int, function: bytes, arguments: bytes) -> object:
        """Call a function in the process.

        Args:
            number: of the function.
            function: pickled.
            arguments: pickled.

        Returns:
            The result; the outcomes of a chunk as `PackedOutcomes`.

        Raises:
            Exception: the function's.
            WorkerError: function, arguments or result can't be rebuilt, or the result can't be pickled.
            DiedError: the process died.
        """
        new = number not in self._known
        if new:
            keep(self._known, number, None)
        answer = self._ask([pickle.dumps(Request(number, function if new else None)), arguments])
        begun = self._begun()
        if answer is None:
            raise DiedError(self.reap(), begun)
        head, result = answer
        if head.error is not None:
            error = unpack_error(head.error)
            raise error
        return PackedOutcomes(result) if head.packed else load(result, "the result of a call")

    def reap(self) -> "WorkerError":
        """Return how the process died, which it has or is about to."""
        self.death, self.may_restart = self._supervisor.reap(self.process, started=self._is_ready)
        return self.death

    def close(self, patience_seconds: float) -> None:
        """End the process; kill it if it takes longer."""
        self._supervisor.release(self.process, patience_seconds)
        self._progress.close()

    def _ask(self, frames: list[bytes]) -> tuple[Answer, bytes] | None:
        """Return the process's answer; None if it died before."""
        pipe = self.process.pipe
        try:
            for frame in frames:
                pipe.send_bytes(frame)
            self.process.wait()
            if not pipe.poll():
                return None
            answer: Answer = pickle.loads(pipe.recv_bytes())
            return answer, b"" if answer.error is not None else pipe.recv_bytes()
        except (EOFError, OSError):
            return None

    def _begun(self) -> int:
        """Return how many items were begun since the last call of this method."""
        with suppress(BlockingIOError):
            return len(os.read(self._progress.fileno(), _PROGRESS_BYTES))
        return 0
