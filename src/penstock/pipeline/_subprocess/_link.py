"""A pipeline's process, as its parent holds it: started, asked, told to begin a run, and ended."""

import os
import pickle
import threading
from contextlib import suppress
from time import monotonic
from typing import Final, Protocol, cast

from penstock._caught import Caught
from penstock.concurrency._children._child_process import ChildProcess, StartMethod
from penstock.concurrency._children._packed_error import PackedError, unpack_error
from penstock.concurrency._children._seeding import draw_seeds
from penstock.errors import ClosedError, MessageError, PeerError, WorkerError
from penstock.pipeline._subprocess._helper import serve
from penstock.pipeline._subprocess._messages import Begin, Look, Seen, Word
from penstock.transport import TensorPipeReader

_PATIENCE_SECONDS: Final = 5.0  # what the process has to end by itself
_ABANDONED_SECONDS: Final = 0.5  # the same, where nobody asked for it


class MakeSetup(Protocol):
    """Pickles what the process is to run."""

    def __call__(self, address: str) -> tuple[bytes, bytes, list[object]]:
        """Return the initializer and the setup, each pickled, and the objects that only a start can hand over."""
        ...


class Link:
    """Owns a process and both pipes to it, from a start to the next stop.

    Args:
        make_setup: given the address of the tensor pipe.
        start_method: how the process is started.
        timeout: how many seconds that may take.

    Attributes:
        run: the number of the run that began last.
        ended: how that ended, as far as it was received.
        turn: who receives.
    """

    def __init__(self, make_setup: MakeSetup, start_method: StartMethod | None, timeout: float | None) -> None:
        self.run: int = 0
        self.ended: bool = True
        self.turn: threading.Lock = threading.Lock()
        self._owner = os.getpid()
        self._asking = threading.Lock()
        self._questions = 0
        self._closed = False
        self.reader: TensorPipeReader = TensorPipeReader(allow_pickle=True)
        try:
            self.process: ChildProcess = ChildProcess(
                serve,
                (*make_setup(self.reader.address), draw_seeds()),
                name="pipeline's process",
                start_method=start_method,
            )
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
        """Whether the process can be asked for something."""
        return not self._closed and not self.process.wait_for_end(0)

    def begin(self) -> int:
        """Return the number of a run that begins; the one before is over.

        Raises:
            WorkerError: the process has died.
        """
        self.run += 1
        self.ended = False
        try:
            self.process.pipe.send_bytes(pickle.dumps(Begin(self.run)))
        except OSError:
            raise self.died() from None
        return self.run

    def receive(self, run: int, timeout: float | None) -> tuple[Word, object]:
        """Return the next word of a run, and what it comes with; a run that has ended goes on ending.

        Args:
            run: its number.
            timeout: how many seconds to wait at most.

        Returns:
            The word and its content.

        Raises:
            TimeoutError: there was none for so many seconds.
            WorkerError: the process has died.
            MessageError: an item can't be rebuilt in this process.
        """
        until = None if timeout is None else monotonic() + timeout
        if not self.turn.acquire(timeout=-1 if timeout is None else timeout):
            raise TimeoutError(f"no item came within {timeout} s")
        try:
            while not (self.ended or self.run != run):
                left = None if until is None else max(until - monotonic(), 0.0)
                try:
                    message = self.reader.receive(timeout_seconds=left)
                except TimeoutError:
                    raise TimeoutError(f"no item came within {timeout} s") from None
                except (PeerError, MessageError, ClosedError, EOFError) as error:
                    return self._lost(error)
                found = self.judge(message, run)
                if found is not None:
                    return found
                del message
        finally:
            self.turn.release()
        return Word.END, None

    async def areceive(self, run: int) -> tuple[Word, object]:
        """Do what `receive` does, from a coroutine.

        Returns:
            As `receive`.
        """
        while not (self.ended or self.run != run):
            try:
                message = await self.reader.areceive()
            except (PeerError, MessageError, ClosedError, EOFError) as error:
                return self._lost(error)
            found = self.judge(message, run)
            if found is not None:
                return found
            del message
        return Word.END, None

    def judge(self, message: object, run: int) -> tuple[Word, object] | None:
        """Return what a message says to who reads a run; None if it is of an older one."""
        of_run, number, content = cast("tuple[int, int, object]", message)
        if of_run != run:
            return None
        word = Word(number)
        if word is Word.END or word is Word.FAILED:
            self.ended = True
        return word, content

    def look(self) -> Seen:
        """Return what the process has seen so far.

        Raises:
            WorkerError: it has died.
        """
        with self._asking:
            self._questions += 1
            try:
                self.process.pipe.send_bytes(pickle.dumps(Look(self._questions)))
                return self._answer(self._questions, None)
            except (EOFError, OSError):
                raise self.died() from None

    def stop(self, timeout: float | None) -> Seen | None:
        """Return the process's last word, if it came to that, once it has ended; kill it if it takes longer."""
        seen: Seen | None = None
        if os.getpid() != self._owner or self._closed:
            return None
        patience = _PATIENCE_SECONDS if timeout is None else timeout
        self.reader.close()  # who waits for an item is told, and the process that waits for room
        with self._asking, suppress(EOFError, OSError, TimeoutError):
            self.process.pipe.send_bytes(b"")
            seen = self._answer(-1, patience)
            self.process.wait_for_end(patience)
        self._dispose()
        return seen

    def abandon(self) -> None:
        """End the process: nobody will read it."""
        self.stop(_ABANDONED_SECONDS)

    def died(self) -> WorkerError:
        """Return how the process died, once all that belongs to it is closed."""
        death = self.process.death()
        self._dispose()
        return death

    def _lost(self, error: Exception) -> tuple[Word, object]:
        """Return the end, where somebody has stopped the pipeline meanwhile.

        Returns:
            As `receive`.

        Raises:
            WorkerError: the process has died.
            MessageError: an item can't be rebuilt in this process.
        """
        self.ended = True
        if isinstance(error, ClosedError) or self._closed:
            return Word.END, None
        if isinstance(error, MessageError):
            self._dispose()
            raise error
        raise self.died() from None

    def _answer(self, number: int, timeout: float | None) -> Seen:
        """Return the answer to a question; those to questions that were interrupted are passed over.

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
            raise self.process.death(started=False)
        if failed is not None:
            error = unpack_error(failed)
            raise error

    def _dispose(self) -> None:
        self._closed = True
        self.ended = True
        self.reader.close()
        self.process.close()
