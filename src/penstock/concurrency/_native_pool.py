"""Threads of C++ that run jobs without the interpreter's lock, and the mailbox from which a loop takes their results.

Guarantees:
  - Jobs start in the order in which they were submitted, and end in any order. The loop that submitted them sets all
    results that have arrived in one pass. Several loops, in several threads, may submit to one pool, and one loop to
    several pools.
  - Cancelling a future, or the task that awaits it, withdraws its job, if it wasn't started. A job that was started
    can't be stopped: it runs to its end and keeps its buffers until then, though its result is dropped.
  - Leaving the scope waits until every job that was submitted has ended. If the scope is left by an exception, or
    cancelled while it waits, it withdraws the jobs that were not started: their futures get a ClosedError. After the
    scope no job runs, except abandoned ones.
  - A job hangs if no job of the pool has ended for `patience` seconds while the scope is being left; for half a second
    if the scope is left by a cancellation, such as Ctrl-C, or cancelled while it waits. The pool abandons jobs that
    hang: their futures get a ClosedError, a RuntimeWarning names them, they keep their buffers until they end, and
    their threads end after them.
  - If a loop ends without leaving the scope, jobs that were not started are dropped with the pool, and running ones end
    by themselves. The interpreter's end doesn't wait for them either.
  - In a forked child the parent's pool has no threads: `submit` raises a UsageError, leaving its scope does nothing.
  - The threads block all signals, so Ctrl-C reaches the main thread as usual.
  - A loop has one mailbox, and so one descriptor to watch, however many pools put results there. A mailbox lives as
    long as a pool uses it or a future waits. After its loop's end, results are dropped.

The number of submitted jobs has no bound: a program whose jobs don't fit into memory together awaits some of them
first, or counts them with a semaphore.
"""

import asyncio
import contextlib
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from penstock import _native
from penstock.concurrency._native_job import NativeJob
from penstock.concurrency._worker import for_a_future, running_loop
from penstock.errors import ClosedError, UsageError

_Result = TypeVar("_Result")

_RESULT: Final = 0
_FAILED: Final = 1
_ABANDONED: Final = (
    "a job must end within the patience of its pool after the pool's scope is left, or it is abandoned: it keeps its "
    "thread and buffers until it ends"
)
_REMEDY: Final = "Give the pool more patience=, or await the job inside the scope"
_MAX_THREADS: Final = 4096  # more is a mistake, and would exhaust the process's threads
_CANCELLED_PATIENCE_SECONDS: Final = 0.5  # enough for a read from a disk, and short for a person after Ctrl-C

# Each loop's entry is made and removed in that loop's thread, so the dict's own lock is enough.
_mailboxes: Final[dict[asyncio.AbstractEventLoop, "Mailbox"]] = {}


class NativeThreadPool:
    """Threads of C++ for `async with`, which run jobs without the interpreter's lock.

    A job costs the loop a few microseconds, so work that takes less is faster in place. Jobs also run while a thread of
    Python is busy, such as a training loop.

    Args:
        num_threads: how many threads, and so how many jobs at the same time; at least 1. Entering the scope starts
            them.
        patience: how many seconds leaving the scope waits while no job ends; then it abandons the jobs that still run.
            Default 60. None means no limit.

    Raises:
        UsageError: `num_threads` or `patience` is out of range.

    Example:
        >>> async def total() -> int:
        ...     async with NativeThreadPool(num_threads=2) as pool:
        ...         out = np.empty((2, 3))
        ...         batch = await pool.submit(NativeJob.stack([np.zeros(3), np.ones(3)], out))
        ...         return int(batch.sum())
        >>> asyncio.run(total())
        3
    """

    def __init__(self, num_threads: int, *, patience: float | None = 60.0) -> None:
        if not 1 <= num_threads <= _MAX_THREADS:
            raise UsageError(
                f"num_threads must be in [1, {_MAX_THREADS}]; got {num_threads}. The number of cores is a good start"
            )
        if patience is not None and not patience >= 0:
            raise UsageError(f"patience must be seconds from 0, or None to wait for ever; got patience={patience}")
        self._num_threads: Final = num_threads
        self._patience: Final = math.inf if patience is None else patience
        self._native: _native.Pool | None = None
        self._token: Final = object()  # identifies this pool in mailboxes
        self._was_entered = False
        self._mailboxes: dict[asyncio.AbstractEventLoop, Mailbox] = {}

    def __repr__(self) -> str:
        state = "open" if self._native is not None else "closed" if self._was_entered else "not entered"
        return f"<NativeThreadPool: {self._num_threads} threads, {state}>"

    async def __aenter__(self) -> Self:
        if self._was_entered:
            raise ClosedError("a pool can be entered once. Make another NativeThreadPool")
        native = _native.Pool(self._num_threads)
        self._mailbox(asyncio.get_running_loop())
        self._native = native
        self._was_entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        native, self._native = self._native, None
        if native is None or not native.here:
            return
        try:
            if error is not None:
                native.withdraw_all()
            if not isinstance(error, GeneratorExit):  # then no loop would run this coroutine any more
                await self._end(native, is_hurried=error is not None and not isinstance(error, Exception))
        finally:
            del native
            self._leave()

    def __call__(self, job: NativeJob[_Result]) -> asyncio.Future[_Result]:
        """Return the future of a job, as `submit` does: `await pool(job)` is `await pool.submit(job)`."""
        return self.submit(job)

    def submit(self, job: NativeJob[_Result]) -> asyncio.Future[_Result]:
        """Submit a job to the threads of the pool; return at once.

        Args:
            job: the job; it can't be submitted again.

        Returns:
            The future of its result, which belongs to the running loop. If the job fails, the future's exception is an
            OSError for files, an IndexError for keys, a ValueError for data that can't be decompressed, a MemoryError,
            or, for a job of an extension, one that `NativeJob.from_extension` lists. If the pool abandons the job, or
            never starts it, it is a ClosedError.

        Raises:
            ClosedError: the pool's scope was not entered, or was left.
            UsageError: no event loop runs in this thread, the job was submitted before, or this process is a forked
                child of the one that entered the scope.

        Example:
            >>> async def checksums(parts: list[bytes]) -> list[int]:
            ...     async with NativeThreadPool(2) as pool:
            ...         futures = [pool.submit(NativeJob.crc32(part)) for part in parts]
            ...         return [await future for future in futures]
            >>> asyncio.run(checksums([b"", b"123456789"]))
            [0, 3421780262]
        """
        native = self._native
        if native is None:
            raise ClosedError(self._outside(job))
        try:
            loop = asyncio.get_running_loop()
            mailbox = self._mailboxes.get(loop) or self._mailbox(loop)
            return mailbox.submit(native, job, self._token)
        except (RuntimeError, ValueError) as error:
            if self._native is None:  # its loop left the scope at this moment
                raise ClosedError(self._outside(job)) from error
            raise UsageError(_refusal(native, job)) from error

    def _outside(self, job: NativeJob[object]) -> str:
        remedy = "Submit before it is left" if self._was_entered else "Enter it first: async with pool"
        return f"jobs must be submitted inside the pool's scope; got {job!r} outside. {remedy}"

    async def _end(self, native: _native.Pool, *, is_hurried: bool) -> None:
        """Wait until all jobs have ended, or the rest hangs; raise a cancellation only after that."""
        loop = asyncio.get_running_loop()
        mailbox = self._mailboxes.get(loop) or self._mailbox(loop)  # another loop may have entered the scope
        ended = mailbox.expect_end(native, self._token)
        patience, started = self._patience, loop.time()
        if is_hurried:
            patience = min(patience, _CANCELLED_PATIENCE_SECONDS)
        cancelled: asyncio.CancelledError | None = None
        while not ended.done():
            rest = patience - min(loop.time() - started, native.idle_seconds)
            if rest <= 0:
                native.withdraw_all()
                # This loop's mailbox comes last, since its warning may be raised as an error.
                for mailbox in sorted(self._mailboxes.values(), key=lambda mailbox: mailbox.loop is loop):
                    mailbox.abandon(self._token)
                break
            try:
                await asyncio.wait([ended], timeout=None if rest == math.inf else rest)
            except asyncio.CancelledError as error:
                patience = 0.0 if is_hurried else min(patience, _CANCELLED_PATIENCE_SECONDS)
                is_hurried, started, cancelled = True, loop.time(), error
                native.withdraw_all()
        else:
            native.join()
        if cancelled is not None:
            raise cancelled

    def _mailbox(self, loop: asyncio.AbstractEventLoop) -> "Mailbox":
        joined = self._mailboxes[loop] = join_mailbox(loop)
        return joined

    def _leave(self) -> None:
        while self._mailboxes:
            self._mailboxes.popitem()[1].leave()

    def __del__(self) -> None:
        native = getattr(self, "_native", None)  # absent if the arguments were refused
        if native is not None and native.here:
            self._native = None
            native.withdraw_all()
            del native
            self._leave()
            warnings.warn(f"{self!r} was dropped inside its scope", ResourceWarning, source=self, stacklevel=1)


def _refusal(native: _native.Pool, job: NativeJob[object]) -> str:
    """Return the message of a refused `submit`: the rule that it broke, the value, and the remedy."""
    if not native.here:
        return (
            "a forked child has none of its parent's threads; got a pool that was entered before os.fork(). Enter a "
            "new NativeThreadPool in the child"
        )
    if running_loop() is None:
        return (
            f"submit must be called by a coroutine or callback of a running event loop; got none, for {job!r}. Use "
            "asyncio.run, or loop.call_soon_threadsafe from another thread"
        )
    return f"a job must be submitted once; got {job!r} again. Make a new one each time"


class JobFuture(asyncio.Future[_Result], Generic[_Result]):
    """A future whose `cancel` withdraws the job, if it wasn't started."""

    withdraw: Callable[[], object] | None = None

    def cancel(self, msg: object = None) -> bool:
        """Return whether this cancelled the future, which was not done before."""
        cancelled = super().cancel(msg)
        withdraw, self.withdraw = self.withdraw, None
        if cancelled and withdraw is not None:
            withdraw()
        return cancelled


@dataclass(frozen=True, slots=True)
class _Awaited:
    """A submitted job, or the end of a pool, and its future."""

    future: asyncio.Future[Any]
    owner: object  # identifies the pool, without a reference to it
    job: NativeJob[Any] | None  # None for the end of the pool; C++ owns the job's buffers


class Mailbox:
    """The results that threads of C++ send to one event loop.

    A pool may abandon its jobs: their futures fail at once, and the jobs keep their buffers until they have ended. All
    methods must be called from the loop's thread, except `leave` and `abandon`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: Final = loop
        self.native: Final = _native.Mailbox()
        self._users = 0
        self._next_ticket = 0
        self._awaited: dict[int, _Awaited] = {}
        loop.add_reader(self.native.fileno(), self._deliver)

    def submit(self, pool: _native.Pool, job: NativeJob[Any], owner: object) -> asyncio.Future[Any]:
        """Give a job to a pool.

        Args:
            pool: the pool.
            job: the job.
            owner: identifies the pool in `abandon`.

        Returns:
            The future of its result.
        """
        ticket = self._next_ticket
        self._next_ticket += 1
        future: JobFuture[Any] = JobFuture(loop=self.loop)
        submission = pool.submit(job.native, ticket, self.native)
        self._awaited[ticket] = _Awaited(future, owner, job)

        def withdraw() -> None:
            if submission.withdraw():
                del self._awaited[ticket]

        future.withdraw = withdraw
        return future

    def expect_end(self, pool: _native.Pool, owner: object) -> asyncio.Future[None]:
        """Return the future that is done when a pool's last job is; the pool takes no more jobs."""
        ticket = self._next_ticket
        self._next_ticket += 1
        future: asyncio.Future[None] = self.loop.create_future()
        self._awaited[ticket] = _Awaited(future, owner, None)
        pool.end(ticket, self.native)
        return future

    def abandon(self, owner: object) -> None:
        """In the loop's thread, fail the futures of a pool's jobs that have not ended, and warn of these jobs."""
        if running_loop() is self.loop:
            self._abandon(owner)
        else:
            with contextlib.suppress(RuntimeError):  # closed at this moment: no task awaits the futures
                self.loop.call_soon_threadsafe(self._abandon, owner)

    def _abandon(self, owner: object) -> None:
        self._deliver()
        jobs: list[str] = []
        for ticket, awaited in [*self._awaited.items()]:
            if awaited.owner is not owner:
                continue
            del self._awaited[ticket]  # C++ keeps the job
            if awaited.job is None:
                continue
            jobs.append(repr(awaited.job))
            if isinstance(awaited.future, JobFuture):
                awaited.future.withdraw = None
            if not awaited.future.done():
                awaited.future.set_exception(ClosedError(f"{_ABANDONED}; got {jobs[-1]}. {_REMEDY}"))
                awaited.future.exception()  # the warning below reports it, even if no task awaits it
        self._close_unused()
        if jobs:
            warnings.warn(f"{_ABANDONED}; got {', '.join(jobs)}. {_REMEDY}", RuntimeWarning, stacklevel=5)

    def leave(self) -> None:
        """Remove a user; without users it closes, in the loop's own thread or after the loop's end."""
        if self.loop.is_closed() or running_loop() is self.loop:
            self._leave()
        else:
            with contextlib.suppress(RuntimeError):  # closed at this moment: the next mailbox's opening removes this
                self.loop.call_soon_threadsafe(self._leave)

    def join(self) -> "Mailbox":
        """Return the mailbox, with one user more."""
        self._users += 1
        return self

    def _leave(self) -> None:
        self._users -= 1
        self._close_unused()

    def _close_unused(self) -> None:
        if self._users == 0 and (not self._awaited or self.loop.is_closed()):
            self.close()

    def close(self) -> None:
        """Forget the jobs, and drop the results that have arrived: no task waits for them any more."""
        _mailboxes.pop(self.loop, None)
        if not self.loop.is_closed():
            self.loop.remove_reader(self.native.fileno())
        self._awaited.clear()
        if self.native.here:
            self.native.take()

    def _deliver(self) -> None:
        fatal: BaseException | None = None
        for ticket, outcome, value in self.native.take():
            awaited = self._awaited.pop(ticket, None)
            if awaited is None or awaited.future.done():
                continue  # it was abandoned or cancelled
            future = awaited.future
            if isinstance(future, JobFuture):
                future.withdraw = None  # it refers to this mailbox
            if outcome == _RESULT:
                future.set_result(value)
            elif outcome == _FAILED and isinstance(value, BaseException):
                future.set_exception(for_a_future(value, "a native job"))
                fatal = value if isinstance(value, KeyboardInterrupt | SystemExit) else fatal
            else:
                future.set_exception(
                    ClosedError(
                        "the job was not started before its pool's scope was left by an exception, or by being "
                        "cancelled. Await the future inside the scope"
                    )
                )
                future.exception()  # or asyncio logs it, too, beside the error that left the scope
        self._close_unused()
        if fatal is not None:
            raise fatal  # as from any callback of the loop


def join_mailbox(loop: asyncio.AbstractEventLoop) -> "Mailbox":
    """Return the loop's mailbox, with one user more.

    Raises:
        UsageError: the loop was made before this process was forked.
    """
    for other, mailbox in list(_mailboxes.items()):
        if other.is_closed():
            mailbox.close()
    found = _mailboxes.get(loop)
    if found is None:
        found = _mailboxes[loop] = Mailbox(loop)
    if not found.native.here:
        raise UsageError(
            "a loop must be run by the process that made it; got one from before os.fork(). Make a new loop in the "
            "child: asyncio.run(...)"
        )
    return found.join()
