"""The passes of a pipeline that runs in another process: which is read, in which process, and what was seen of them."""

import os
import pickle
import threading
from collections.abc import Callable
from multiprocessing.util import Finalize

from penstock.concurrency._children._packed_error import unpack_error
from penstock.errors import ClosedError, UsageError
from penstock.pipeline._subprocess._link import Link
from penstock.pipeline._subprocess._messages import Seen, Word

KEPT_DROPPED = 1000


class Runs:
    """Owns the process, while there is one. The pipeline and its iterators keep this; dropped, the process ends.

    Args:
        connect: starts a process, within so many seconds.
    """

    def __init__(self, connect: Callable[[float | None], Link]) -> None:
        self._connect = connect
        self._link: Link | None = None
        self._lock = threading.RLock()  # over starting and stopping
        self._pass = 0  # which pass is being read
        self._fresh = False  # nothing of it was read yet
        self._seen = Seen(0, (), None)  # by processes that were stopped
        self._process = os.getpid()
        self._finalizer: Finalize | None = None

    @property
    def pid(self) -> int | None:
        """The process that items come from; None if there is none."""
        link = self._link
        return None if link is None or link.ended else link.process.pid

    def start(self, timeout: float | None) -> None:
        """Begin a run.

        Raises:
            UsageError: one runs.
        """
        self.check_process()
        with self._lock:
            if self._link is not None and self._link.alive and not self._link.ended:
                raise UsageError("a pipeline is started once at a time; got start() while it runs. Call stop() before")
            self._begin(timeout)

    def begin_pass(self) -> int:
        """Return the number of a pass of which nothing was read; begin it if need be."""
        self.check_process()
        with self._lock:
            if not (self._fresh and self._link is not None and self._link.alive):
                self._begin(None)
            return self._pass

    def link_of(self, number: int) -> Link | None:
        """Return what an iterator over a pass reads; None if the pipeline was stopped.

        Raises:
            ClosedError: that pass is over.
        """
        self.check_process()
        if self._pass != number:
            raise ClosedError("this pass has ended, for a new one has begun: an iterator is read before the next one")
        self._fresh = False
        return self._link

    def current(self) -> Link:
        """Return what is read now; begin a run if there never was one, or the pipeline was stopped."""
        self.check_process()
        link = self._link
        if link is None or not link.alive:
            with self._lock:
                link = self._link
                if link is None or (link.ended and not link.alive):
                    link = self._begin(None)
        self._fresh = False
        return link

    def judge(self, link: Link, word: Word, content: object) -> object:
        """Return an item that was received, or raise what a word means.

        Args:
            link: that it came from.
            word: what was received.
            content: with the word.

        Returns:
            The item.

        Raises:
            EOFError: the pass is over.
        """
        if word is Word.ITEM:
            return content
        if word is Word.FAILED:
            assert isinstance(content, bytes)
            error = unpack_error(pickle.loads(content))
            raise error
        if word is Word.END_OF_PASS:
            with self._lock:
                self._pass += 1
                self._fresh = link is self._link
        raise EOFError("the pass is over")

    def stop(self, timeout: float | None) -> Exception | None:
        """Return a failure of the run that nobody has read, once the process has ended."""
        self.check_process()
        with self._lock:
            self._fresh = False
            link, self._link = self._link, None
            if link is None:
                return None
            unread = None if link.ended else link.run
            seen = link.stop(timeout)
            self._forget()
        if seen is None:
            return None
        self._seen = Seen(0, (self._seen.dropped + seen.dropped)[:KEPT_DROPPED], seen.report)
        if seen.failure is None or seen.failed_run != unread:
            return None
        return unpack_error(seen.failure)

    def look(self) -> Seen:
        """Return what was seen by all processes, as far as it is known."""
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
            self._forget()
            link = self._connect(timeout)
            # Not one of weakref: at the end of the program, this one runs before multiprocessing waits for processes.
            self._finalizer = Finalize(self, link.abandon, exitpriority=0)
            self._link = link
        self._link.begin()
        self._pass += 1
        self._fresh = True
        return self._link

    def _forget(self) -> None:
        if self._finalizer is not None:
            self._finalizer.cancel()
        self._finalizer = self._link = None
