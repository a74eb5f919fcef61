"""One process of an executor, as its thread sees it: it is given one call after the other."""

import multiprocessing
import os
import pickle
from collections import deque
from contextlib import suppress
from typing import Any, Final

from penstock._processes._child import ChildProcess, StartMethod
from penstock._processes._exceptions import unpack_error
from penstock._processes._seeding import GlobalSeeds
from penstock.errors import WorkerError
from penstock.pipeline._processes._executor._chunks import PackedOutcomes, load
from penstock.pipeline._processes._executor._serve import Answer, Request, keep, serve

_PROGRESS_BYTES: Final = 1 << 16  # what a pipe holds: a chunk has fewer items


class DiedError(Exception):
    """The process died in a call.

    Attributes:
        death: how.
        begun: how many items of the call's chunk had been begun.
    """

    def __init__(self, death: WorkerError, begun: int) -> None:
        super().__init__(death)
        self.death = death
        self.begun = begun


class Worker:
    """Owns a process.

    Args:
        name: of the process, in messages.
        setup: its initializer, pickled with the arguments.
        seeds: of its global random generators.
        start_method: how it is started.

    Attributes:
        process: the process.
        calls: those that wait for this process, and that no other can do; the crew's.
        is_closed: whether it takes none any more.
        death: how it died, if it did.
    """

    def __init__(self, name: str, setup: bytes, seeds: GlobalSeeds, start_method: StartMethod | None) -> None:
        self._progress, theirs = multiprocessing.Pipe(duplex=False)
        try:
            self.process = ChildProcess(serve, (setup, theirs, seeds), name=name, start_method=start_method)
        except BaseException:
            self._progress.close()
            raise
        finally:
            theirs.close()
        os.set_blocking(self._progress.fileno(), False)
        self.calls: deque[Any] = deque()
        self.is_closed = False
        self.death: WorkerError | None = None
        self._known: dict[int, Any] = {}  # functions that were sent

    def wait_until_ready(self) -> None:
        """Wait until the process takes calls.

        Raises:
            WorkerError: it died before.
            Exception: the initializer's.
        """
        answer = self._ask([])
        if answer is None:
            raise self.process.death(started=False)
        if answer[0].error is not None:
            error = unpack_error(answer[0].error)
            raise error

    def call(self, number: int, function: bytes, arguments: bytes) -> object:
        """Have a function called.

        Args:
            number: of the function.
            function: pickled.
            arguments: pickled.

        Returns:
            The result; the outcomes of a chunk as `PackedOutcomes`.

        Raises:
            Exception: the function's.
            WorkerError: function, arguments or result can't be rebuilt, or the result not be pickled.
            DiedError: the process did.
        """
        new = number not in self._known
        if new:
            keep(self._known, number, None)
        answer = self._ask([pickle.dumps(Request(number, function if new else None)), arguments])
        begun = self._begun()
        if answer is None:
            raise DiedError(self.process.death(), begun)
        head, result = answer
        if head.error is not None:
            error = unpack_error(head.error)
            raise error
        return PackedOutcomes(result) if head.packed else load(result, "the result of a call")

    def close(self, patience_seconds: float) -> None:
        """End the process."""
        self.process.end(patience_seconds)
        self._progress.close()

    def _ask(self, frames: list[bytes]) -> tuple[Answer, bytes] | None:
        """Return the process's answer; None if it died before it had given it."""
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
        """Return how many items were begun since this was asked last."""
        with suppress(BlockingIOError):
            return len(os.read(self._progress.fileno(), _PROGRESS_BYTES))
        return 0
