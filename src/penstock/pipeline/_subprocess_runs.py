"""The runs and passes of a pipeline in a helper, over all helpers that it had.

A `Link` is one helper, from a start to the next stop; it receives the items (protocol: `_processes/_helper.py`).
`Runs` decides what a reader reads, and when a helper is started and ended; the pipeline and its iterators keep it.
"""

import os
import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Final, Protocol, cast

from penstock._caught import Caught
from penstock._os import DaemonThread
from penstock._processes import (
    ABANDONED_SECONDS,
    PIPELINE_SECONDS,
    Begin,
    HelperProcess,
    MessageKind,
    RestartPolicy,
    Starting,
    StartMethod,
    Supervisor,
    draw_seeds,
    unpack_error,
)
from penstock.errors import AlreadyRunningError, ClosedError, MessageError, PeerError, UsageError, WorkerError
from penstock.pipeline._engine import REPLACED, STOPPED, State
from penstock.pipeline._ops import Item
from penstock.pipeline._subprocess_helper import Look, Read, Seen, serve
from penstock.transport import TensorPipeReader

KEPT_DROPPED: Final = 1000


class MakeSetup(Protocol):
    """Pickles the initializer and the pipeline for a process."""

    def __call__(self, address: str) -> tuple[bytes, bytes, list[object]]:
        """Return the initializer and the setup, each pickled, and the objects that can only be sent at the start."""
        ...


class Link(HelperProcess[TensorPipeReader]):
    """Owns one helper, from a start to the next stop.

    Args:
        make_setup: called with the address of the tensor pipe.
        start_method: how the process is started.
        timeout: how many seconds the start may take.

    Attributes:
        run: the number of the latest run.
        ended: whether its end was received.
        turn: the lock of the thread that receives.
        due: the kind and content that the next read returns; None if that must receive a message.
    """

    def __init__(self, make_setup: MakeSetup, start_method: StartMethod | None, timeout: float | None) -> None:
        self.run: int = 0
        self.ended: bool = True
        self.turn: threading.RLock = threading.RLock()  # one that an interrupted thread can take again
        self.due: tuple[MessageKind, Item] | None = None
        self._message: object = None  # that was received, and not taken in
        self._passes_begun = 0  # of the run
        self._closed_because = ""
        self._asking = threading.Lock()
        self._requests = 0
        self._closed = False
        supervisor = Supervisor(
            serve, lambda _number, _started: draw_seeds(), policy=RestartPolicy(), starting=Starting(start_method)
        )
        reader = TensorPipeReader(allow_pickle=True)
        try:
            arguments = make_setup(reader.address)
        except BaseException:
            reader.close()
            raise
        super().__init__(supervisor, "pipeline's process", arguments, reader)
        try:
            self.wait_until_started(timeout)
        except BaseException:
            self._dispose()
            raise

    @property
    def alive(self) -> bool:
        """Whether the process answers requests."""
        return not self._closed and not self.child.wait_for_end(0)

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
            self.send(Begin(self.run, None))
        except OSError:
            raise self.died() from None
        return self.run

    def begin_pass(self) -> None:
        """Notify the process that another pass of the run is being read."""
        self._passes_begun += 1
        with suppress(OSError):  # the read that follows reports the death
            self.send(Read(self.run, self._passes_begun))

    def receive(self, run: int, timeout: float | None) -> tuple[MessageKind, Item]:
        """Return the kind and the content of the next message of a run; a run that has ended ends again.

        A signal handler may raise an exception within it; the next call then returns the message, which is kept until
        no more calls precede the return.

        Args:
            run: its number.
            timeout: how many seconds to wait at most.

        Returns:
            The kind and the content.

        Raises:
            TimeoutError: no message came in time.
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

    async def areceive(self, run: int) -> tuple[MessageKind, Item]:
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
        """Return whether a message of a run is due; take in the one that was received last.

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
                kind = MessageKind(number)
                self.ended = kind is MessageKind.END or kind is MessageKind.FAILED
                self.due = (kind, content)
            self._message = None  # otherwise it belongs to an older run
        elif self.due is None and self.ended:
            self.due = (MessageKind.END, None)
        return self.due is not None

    def look(self) -> Seen:
        """Return the drops and statistics of the helper so far.

        Raises:
            WorkerError: it has died.
        """
        with self._asking:
            self._requests += 1
            try:
                self.send(Look(self._requests))
                return self._seen(self._requests, None)
            except (EOFError, OSError):
                raise self.died() from None

    def close_reading(self) -> None:
        """Receive nothing any more; wake a reader that waits for an item, and the process if it waits for room."""
        if self._supervisor.is_owned_here:
            self._closed_because = STOPPED
            self.reader.close()

    def end(self, timeout: float | None) -> Seen | None:
        """Return the helper's last answer, if there is one, once it has ended; kill it if it takes longer."""
        if self._closed or not self._supervisor.is_owned_here:
            return None
        patience = PIPELINE_SECONDS if timeout is None else timeout
        seen: list[Seen] = []
        self.close_reading()
        with self._asking:
            self.stop(patience, lambda: seen.append(self._seen(-1, patience)))
        self._dispose()
        return seen[0] if seen else None

    def end_with(self, owner: object) -> None:
        """End the process as soon as an object is dropped, or at the end of the program."""
        self._supervisor.end_with_program(self.abandon, owner)

    def abandon(self) -> None:
        """End the process quickly, since its pipeline was dropped."""
        self.end(ABANDONED_SECONDS)

    def died(self) -> WorkerError:
        """Return how the process died, and close its link."""
        death = self._supervisor.reap(self.child, started=True).error
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

    def _seen(self, number: int, timeout: float | None) -> Seen:
        """Return the answer to a request; skip answers to requests that were interrupted.

        Raises:
            EOFError: the helper has died.
            TimeoutError: it took too long.
        """
        while (seen := cast("Seen", self.answer(timeout))).number != number:
            pass
        return seen

    def _dispose(self) -> None:
        self._closed = True
        self.ended = True
        self.reader.close()
        self._supervisor.close()


class Runs:
    """Owns the process, while there is one. The pipeline and its iterators keep this; dropped, the process ends.

    Args:
        connect: starts a process, within so many seconds.
        continuous: whether passes follow each other in one run.
        continues_pass: whether the next reader continues a pass that was left early, as in `Engine`.

    Attributes:
        reader: the number of the iterator that reads; those made before have ended.
        is_stopped: whether it was stopped, and not started since.
    """

    def __init__(self, connect: Callable[[float | None], Link], *, continuous: bool, continues_pass: bool) -> None:
        self.reader: int = 0
        self.is_stopped: bool = False
        self._connect = connect
        self._continuous = continuous
        self._goes_on = continues_pass
        self._link: Link | None = None
        self._lock = threading.RLock()  # over starting and stopping
        self._ending = threading.Lock()  # over waiting for the end of a process
        self._fresh = False  # whether no item of the pass was read yet
        self._seen = Seen(0, (), None)  # of processes that were stopped
        self._process = os.getpid()

    @property
    def pid(self) -> int | None:
        """The process that items come from; None if there is none."""
        link = self._link
        return None if link is None or link.ended else link.child.pid

    @property
    def state(self) -> State:
        """The state of the pipeline, as far as messages were received."""
        link = self._link
        if self.is_stopped or os.getpid() != self._process:
            return "stopped"
        if link is None:
            return "new"
        return "done" if link.ended or not link.alive else "running"

    def start(self, timeout: float | None) -> None:
        """Begin a run.

        Raises:
            AlreadyRunningError: one runs.
        """
        self.check_process()
        with self._lock:
            if self.state == "running":
                raise AlreadyRunningError(
                    "a pipeline is started once at a time; got start() while it runs. Call stop() before"
                )
            self._begin(timeout)

    def begin_pass(self) -> tuple[int, Link, bool]:
        """Begin to read, as `Reading.begin_pass` does.

        Returns:
            The number of the reader, where it receives, and whether it reads a rest.
        """
        self.check_process()
        with self._lock:
            link = self._link
            if link is None or (not (self._fresh and link.alive) and (self._fresh or link.ended or not self._goes_on)):
                link = self._begin(None)
            self.reader += 1
            return self.reader, link, not self._fresh

    def check_reader(self, number: int) -> None:
        """Check that a reader is the latest, and notify the process of a pass that is being read.

        Raises:
            ClosedError: another one has begun to read.
        """
        self.check_process()
        if self.reader != number:
            raise ClosedError(REPLACED)
        self._note_read()

    def current(self) -> Link:
        """Return the link to read from; begin a run if the pipeline is new.

        Raises:
            ClosedError: it was stopped.
        """
        self.check_process()
        if self.is_stopped:
            raise ClosedError(STOPPED)
        link = self._link
        if link is None:
            with self._lock:
                link = self._link or self._begin(None)
        self._note_read()
        return link

    def _note_read(self) -> None:
        link = self._link
        if self._fresh and link is not None:
            if self._continuous:
                link.begin_pass()
            self._fresh = False

    def ended(self, kind: MessageKind, content: object) -> Exception | None:
        """Return the exception that a reader raises for a message that is no item; None for a plain end."""
        error: Exception | None = None
        if kind is MessageKind.FAILED:
            assert isinstance(content, bytes)
            error = unpack_error(pickle.loads(content))
        if kind is MessageKind.END_OF_PASS:
            self.reader += 1
            self._fresh = True
        return error

    def stop(self, timeout: float | None, *, wait: bool = True) -> Exception | None:
        """Return an unread failure of the run, once the process has ended; or return at once, to let it end."""
        self.check_process()
        with self._lock:
            self._fresh = False
            self.is_stopped = True
            link, self._link = self._link, None
        if link is not None:
            unread = None if link.ended else link.run
            link.close_reading()
            end = partial(self._end, link, unread, timeout)
            if not wait:
                _end_in_thread(end)
                return None
            with Caught() as caught:
                return end()
            _end_in_thread(end)  # a signal handler has raised
            raise caught.taken()
        if wait:
            with self._ending:  # another thread may be at it
                pass
        return None

    def _end(self, link: Link, unread: int | None, timeout: float | None) -> Exception | None:
        with self._ending:
            seen = link.end(timeout)
        if seen is None:
            return None
        self._seen = Seen(0, (self._seen.dropped + seen.dropped)[:KEPT_DROPPED], seen.report)
        if seen.failure is None or seen.failed_run != unread:
            return None
        return unpack_error(seen.failure)

    def look(self) -> Seen:
        """Return the drops and statistics of all processes, as far as they are known."""
        self.check_process()
        with self._lock:
            if self._link is None or not self._link.alive:
                return self._seen
            now = self._link.look()
            return Seen(0, (self._seen.dropped + now.dropped)[:KEPT_DROPPED], now.report)

    def check_process(self) -> None:
        """Refuse a process that was forked from the pipeline's.

        Raises:
            UsageError: this is one.
        """
        if os.getpid() != self._process:
            raise UsageError(
                f"a pipeline stays in the process that made it; got one of process {self._process} in its fork "
                f"{os.getpid()}. Make the pipeline in the process that reads it"
            )

    def _begin(self, timeout: float | None) -> Link:
        if self._link is None or not self._link.alive:
            if self._link is not None:
                self._link.abandon()
            self._link = None
            link = self._connect(timeout)
            link.end_with(self)
            self._link = link
        self._link.begin()
        self.is_stopped = False
        self.reader += 1
        self._fresh = True
        return self._link


def _end_in_thread(end: Callable[[], object]) -> None:
    def run() -> None:
        end()

    DaemonThread(run, "penstock-stop")
