"""The runs and passes of a pipeline in another process, over all processes that it had."""

import os
import pickle
import threading
from collections.abc import Callable
from functools import partial

from penstock._caught import Caught
from penstock._os import DaemonThread
from penstock._processes import unpack_error
from penstock.errors import AlreadyRunningError, ClosedError, UsageError
from penstock.pipeline._engine._engine import REPLACED, STOPPED, State
from penstock.pipeline._subprocess._link import Link
from penstock.pipeline._subprocess._messages import Seen, Word

KEPT_DROPPED = 1000


class Runs:
    """Owns the process, while there is one. The pipeline and its iterators keep this; dropped, the process ends.

    Args:
        connect: starts a process, within so many seconds.
        continuous: whether passes follow each other in one run.
        goes_on: whether the next reader continues a pass that was left early, as in `Engine`.

    Attributes:
        reader: the number of the iterator that reads; those made before have ended.
        is_stopped: whether it was stopped, and not started since.
    """

    def __init__(self, connect: Callable[[float | None], Link], *, continuous: bool, goes_on: bool) -> None:
        self.reader: int = 0
        self.is_stopped: bool = False
        self._connect = connect
        self._continuous = continuous
        self._goes_on = goes_on
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
        return None if link is None or link.ended else link.process.pid

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

    def ended(self, word: Word, content: object) -> Exception | None:
        """Return the exception that a reader raises for a word that is no item; None for a plain end."""
        error: Exception | None = None
        if word is Word.FAILED:
            assert isinstance(content, bytes)
            error = unpack_error(pickle.loads(content))
        if word is Word.END_OF_PASS:
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
            seen = link.stop(timeout)
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
