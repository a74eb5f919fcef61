"""The parent's link to the process of a pipeline, from its start to its end: commands, answers and items."""

import pickle
import threading
from contextlib import suppress
from time import monotonic
from typing import Protocol, cast

from penstock._caught import Caught
from penstock._processes import (
    ABANDONED_SECONDS,
    PIPELINE_SECONDS,
    ChildProcess,
    PackedError,
    RestartPolicy,
    Starting,
    StartMethod,
    Supervisor,
    draw_seeds,
    unpack_error,
)
from penstock.errors import ClosedError, MessageError, PeerError, WorkerError
from penstock.pipeline._engine._engine import REPLACED, STOPPED
from penstock.pipeline._ops import Item
from penstock.pipeline._subprocess._helper import serve
from penstock.pipeline._subprocess._messages import Begin, Look, Read, Seen, Word
from penstock.transport import TensorPipeReader


class MakeSetup(Protocol):
    """Pickles the initializer and the pipeline for a process."""

    def __call__(self, address: str) -> tuple[bytes, bytes, list[object]]:
        """Return the initializer and the setup, each pickled, and the objects that can only be sent at the start."""
        ...


class Link:
    """Owns a process and both pipes to it, from a start to the next stop.

    Args:
        make_setup: called with the address of the tensor pipe.
        start_method: how the process is started.
        timeout: how many seconds the start may take.

    Attributes:
        run: the number of the latest run.
        ended: whether its end was received.
        turn: the lock of the thread that receives.
        due: the word and its content that the next read returns; None if that must receive one.
    """

    def __init__(self, make_setup: MakeSetup, start_method: StartMethod | None, timeout: float | None) -> None:
        self.run: int = 0
        self.ended: bool = True
        self.turn: threading.RLock = threading.RLock()  # one that an interrupted thread can take again
        self.due: tuple[Word, Item] | None = None
        self._message: object = None  # that was received, and not taken in
        self._passes_begun = 0  # of the run
        self._closed_because = ""
        self._sending = threading.Lock()
        self._asking = threading.Lock()
        self._questions = 0
        self._closed = False
        self.reader: TensorPipeReader = TensorPipeReader(allow_pickle=True)
        self._supervisor = Supervisor(
            serve, lambda _number, _started: draw_seeds(), policy=RestartPolicy(), starting=Starting(start_method)
        )
        try:
            self.process: ChildProcess = self._supervisor.start("pipeline's process", make_setup(self.reader.address))
        except BaseException:
            self.reader.close()
            raise
        try:
            self._wait_until_ready(timeout)
        except BaseException:
            self._dispose()
            raise

    @property
    def alive(self) -> bool:
        """Whether the process answers requests."""
        return not self._closed and not self.process.wait_for_end(0)

    def begin(self) -> int:
        """Return the number of a run that begins; it ends the one before.

        Raises:
            WorkerError: the process has died.
        """
        self.run += 1
        self.ended = False
        self.due = None
        self._passes_begun = 0
        try:
            self._send(Begin(self.run))
        except OSError:
            raise self.died() from None
        return self.run

    def begin_pass(self) -> None:
        """Notify the process that another pass of the run is being read."""
        self._passes_begun += 1
        with suppress(OSError):  # the read that follows reports the death
            self._send(Read(self.run, self._passes_begun))

    def receive(self, run: int, timeout: float | None) -> tuple[Word, Item]:
        """Return the next word of a run and its content; a run that has ended ends again.

        A signal handler may raise an exception within it; the next call then returns the word, since a word is kept
        until no more calls precede the return.

        Args:
            run: its number.
            timeout: how many seconds to wait at most.

        Returns:
            The word and its content.

        Raises:
            TimeoutError: no word came in time.
            ClosedError: the pipeline was stopped, or another run has begun.
            WorkerError: the process has died.
            MessageError: an item can't be rebuilt in this process.
        """
        until = None if timeout is None else monotonic() + timeout
        if not self.turn.acquire(timeout=-1 if timeout is None else timeout):
            raise TimeoutError(f"no item came within {timeout} s")
        try:
            while not self._has_due(run):
                left = None if until is None else max(until - monotonic(), 0.0)
                try:
                    self._message = self.reader.receive(timeout_seconds=left)
                except TimeoutError:
                    raise TimeoutError(f"no item came within {timeout} s") from None
                except (PeerError, MessageError, ClosedError, EOFError) as error:
                    self._lose(error)
        finally:
            self.turn.release()
        due = self.due
        self.due = None
        assert due is not None
        return due

    async def areceive(self, run: int) -> tuple[Word, Item]:
        """Receive as `receive` does, in a coroutine.

        Returns:
            As `receive`.
        """
        while not self._has_due(run):
            try:
                self._message = await self.reader.areceive()
            except (PeerError, MessageError, ClosedError, EOFError) as error:
                self._lose(error)
        due = self.due
        self.due = None
        assert due is not None
        return due

    def _has_due(self, run: int) -> bool:
        """Return whether a word of a run is due; take in the message that was received last.

        Raises:
            ClosedError: the pipeline was stopped, or another run has begun.
        """
        if self._closed_because:
            raise ClosedError(self._closed_because)
        if self.run != run:
            raise ClosedError(REPLACED)
        if self._message is not None:
            of_run, number, content = cast("tuple[int, int, object]", self._message)
            if of_run == run:
                word = Word(number)
                self.ended = word is Word.END or word is Word.FAILED
                self.due = (word, content)
            self._message = None  # otherwise it belongs to an older run
        elif self.due is None and self.ended:
            self.due = (Word.END, None)
        return self.due is not None

    def look(self) -> Seen:
        """Return the drops and statistics of the process so far.

        Raises:
            WorkerError: it has died.
        """
        with self._asking:
            self._questions += 1
            try:
                self._send(Look(self._questions))
                return self._answer(self._questions, None)
            except (EOFError, OSError):
                raise self.died() from None

    def close_reading(self) -> None:
        """Receive nothing any more; wake a reader that waits for an item, and the process if it waits for room."""
        if self._supervisor.is_owned_here:
            self._closed_because = STOPPED
            self.reader.close()

    def stop(self, timeout: float | None) -> Seen | None:
        """Return the last answer of the process, if there is one, once it has ended; kill it if it takes longer."""
        seen: Seen | None = None
        if self._closed or not self._supervisor.is_owned_here:
            return None
        patience = PIPELINE_SECONDS if timeout is None else timeout
        self.close_reading()
        with self._asking, suppress(EOFError, OSError, TimeoutError):
            self.process.pipe.send_bytes(b"")
            seen = self._answer(-1, patience)
            self.process.wait_for_end(patience)
        self._dispose()
        return seen

    def end_with(self, owner: object) -> None:
        """End the process as soon as an object is dropped, or at the end of the program."""
        self._supervisor.end_with_program(self.abandon, owner)

    def abandon(self) -> None:
        """End the process quickly, since its pipeline was dropped."""
        self.stop(ABANDONED_SECONDS)

    def died(self) -> WorkerError:
        """Return how the process died, and close its link."""
        death = self._supervisor.reap(self.process, started=True).error
        self._dispose()
        return death

    def _lose(self, error: Exception) -> None:
        """End the run after an error of the tensor pipe; always raises.

        Raises:
            ClosedError: the pipeline was stopped.
            WorkerError: the process has died.
            MessageError: an item can't be rebuilt in this process.
        """
        if isinstance(error, ClosedError) or self._closed:
            raise ClosedError(self._closed_because or STOPPED) from None
        self.ended = True
        if isinstance(error, MessageError):
            self._dispose()
            raise error
        raise self.died() from None

    def _send(self, command: Begin | Read | Look) -> None:
        pickled = pickle.dumps(command)
        with self._sending:
            self.process.pipe.send_bytes(pickled)

    def _answer(self, number: int, timeout: float | None) -> Seen:
        """Return the answer to a question; skip answers to questions that were interrupted.

        Raises:
            EOFError: the process has died.
            TimeoutError: it took too long.
        """
        pipe = self.process.pipe
        while True:
            if not self.process.wait(timeout):
                raise TimeoutError
            if not pipe.poll():
                raise EOFError
            seen: Seen = pickle.loads(pipe.recv_bytes())
            if seen.number == number:
                return seen

    def _wait_until_ready(self, timeout: float | None) -> None:
        if not self.process.wait(timeout):
            raise TimeoutError(f"the pipeline's process did not start within {timeout} s")
        failed: PackedError | None = None
        with Caught(Exception) as caught:
            if not self.process.pipe.poll():
                raise EOFError
            failed = pickle.loads(self.process.pipe.recv_bytes())
        if caught.error is not None:
            raise self._supervisor.reap(self.process, started=False).error
        if failed is not None:
            error = unpack_error(failed)
            raise error

    def _dispose(self) -> None:
        self._closed = True
        self.ended = True
        self.reader.close()
        self._supervisor.close()
