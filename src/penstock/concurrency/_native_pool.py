"""Threads of C++ run jobs, whose results asyncio awaits: no thread of Python, no interpreter's lock in between.

Guarantees:
  - Jobs start in the order they were submitted, and end in any. All results that have come are set in one pass of the
    loop that submitted them; several loops, in several threads, may submit to one pool, and one loop to several pools.
  - Cancelling a future, or the task that awaits it, withdraws its job, if it wasn't started. A job that was started
    can't be stopped: it runs to its end and keeps its buffers until then, though its result is dropped.
  - Leaving the scope waits until every job that was submitted has ended. Left by an exception, or cancelled while it
    waits, it withdraws those not started: their futures get a ClosedError. After the scope nothing runs, but for
    abandoned jobs.
  - A job hangs if no job of the pool has ended for `patience` seconds while the scope is being left, or for half a
    second where the scope is left by a cancellation, such as Ctrl-C, or was cancelled meanwhile. The pool abandons
    jobs that hang: their futures get a ClosedError, a RuntimeWarning names them, they keep their buffers until they
    end, and their threads end after them.
  - Where a loop ends without leaving the scope, jobs not started are dropped with the pool, and those running end by
    themselves. The interpreter's end, too, doesn't wait for them.
  - In a forked child the parent's pool has no threads: `submit` raises a UsageError, leaving its scope does nothing.
  - The threads block all signals, so Ctrl-C reaches the main thread as usual.

There is no bound on how many jobs are submitted: a program whose jobs need more memory than there is awaits some of
them first, or counts them with a semaphore.
"""

import asyncio
import math
import warnings
from types import TracebackType
from typing import Final, Self, TypeVar

from penstock import _native
from penstock.concurrency import _mailbox
from penstock.concurrency._native_job import NativeJob
from penstock.errors import ClosedError, UsageError

_Result = TypeVar("_Result")

_MAX_THREADS: Final = 4096  # more is a mistake, and would take a process's share of threads
_CANCELLED_PATIENCE_SECONDS: Final = 0.5  # enough for a read from a disk, and short for a person after Ctrl-C


class NativeThreadPool:
    """Threads of C++ for `async with`, which run jobs without the interpreter's lock.

    One job costs a few microseconds on the loop's side; a job of less is better done in place. Where Python is busy in
    another thread, as a training loop is, the pool's jobs run on.

    Args:
        num_threads: how many jobs run at the same time, from 1. They are started by entering the scope.
        patience: how many seconds leaving the scope waits while no job ends, by default 60; then it abandons the jobs
            that still run. None waits for ever.

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
        self._mailboxes: dict[asyncio.AbstractEventLoop, _mailbox.Mailbox] = {}

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
        """Return the future of a job that is submitted: `await pool(job)` is `await pool.submit(job)`."""
        return self.submit(job)

    def submit(self, job: NativeJob[_Result]) -> asyncio.Future[_Result]:
        """Submit a job to the threads of the pool; return at once.

        Args:
            job: the job; it can't be submitted again.

        Returns:
            A future of the running loop, for its result. A job that fails sets its exception: an OSError for files, an
            IndexError for keys, a ValueError for data that can't be decompressed, a MemoryError, or for a job of an
            extension the one that `NativeJob.from_extension` lists. A job that its pool abandoned, or never started,
            sets a ClosedError.

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
        """Wait until all jobs have ended, or those that have not hang; pass a cancellation on afterwards."""
        loop = asyncio.get_running_loop()
        ended = self._mailboxes[loop].expect_end(native, self._token)
        patience, started = self._patience, loop.time()
        if is_hurried:
            patience = min(patience, _CANCELLED_PATIENCE_SECONDS)
        cancelled: asyncio.CancelledError | None = None
        while not ended.done():
            rest = patience - min(loop.time() - started, native.idle_seconds)
            if rest <= 0:
                native.withdraw_all()
                # Its own comes last, since the warning may be an error.
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

    def _mailbox(self, loop: asyncio.AbstractEventLoop) -> _mailbox.Mailbox:
        joined = self._mailboxes[loop] = _mailbox.join(loop)
        return joined

    def _leave(self) -> None:
        while self._mailboxes:
            self._mailboxes.popitem()[1].leave()

    def __del__(self) -> None:
        native = getattr(self, "_native", None)  # absent where the arguments were refused
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
    if _mailbox.running_loop() is None:
        return (
            f"submit must be called by a coroutine or callback of a running event loop; got none, for {job!r}. Use "
            "asyncio.run, or loop.call_soon_threadsafe from another thread"
        )
    return f"a job must be submitted once; got {job!r} again. Make a new one each time"
