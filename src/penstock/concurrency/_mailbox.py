"""The mailbox of an event loop: threads of C++ put the jobs that have ended into it.

Guarantees:
  - A loop has one mailbox, and so one descriptor to watch, however many pools put jobs there.
  - All jobs that have arrived are taken at once, and their futures are set in that one pass.
  - A future that was cancelled stays so; a job of it that was not started is dropped at once, and one that was started
    keeps its buffers until it has ended.
  - A pool may abandon its jobs: their futures fail at once, and the jobs keep their buffers until they have ended.
  - A mailbox lives as long as a pool uses it or a future waits. After its loop's end, results are dropped.

All methods must be called from the loop's thread, but `leave` and `abandon`.
"""

import asyncio
import contextlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from penstock import _native
from penstock.concurrency._native_job import NativeJob
from penstock.concurrency._worker import for_a_future
from penstock.errors import ClosedError, UsageError

_Result = TypeVar("_Result")

_RESULT: Final = 0
_FAILED: Final = 1
_ABANDONED: Final = (
    "a job must end within the patience of its pool after the pool's scope is left, or it is abandoned: it keeps its "
    "thread and buffers until it ends"
)
_REMEDY: Final = "Give the pool more patience=, or await the job inside the scope"

# Each loop's entry is made and removed in that loop's thread, so nothing more is locked than a dict locks itself.
_mailboxes: Final[dict[asyncio.AbstractEventLoop, "Mailbox"]] = {}


class JobFuture(asyncio.Future[_Result], Generic[_Result]):
    """A future whose `cancel` withdraws the job, if it wasn't started."""

    withdraw: Callable[[], object] | None = None

    def cancel(self, msg: object = None) -> bool:
        """Return whether the future was cancelled by this, and not done before."""
        cancelled = super().cancel(msg)
        withdraw, self.withdraw = self.withdraw, None
        if cancelled and withdraw is not None:
            withdraw()
        return cancelled


@dataclass(frozen=True, slots=True)
class _Awaited:
    """A job that a pool was given, or the end of a pool, and its future."""

    future: asyncio.Future[Any]
    owner: object  # identifies the pool, without a reference to it
    job: NativeJob[Any] | None  # None for the end of the pool; C++ owns the job's buffers


class Mailbox:
    """Receives the results that threads of C++ send to one event loop."""

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
        """Return the future that is done when the last job of a pool is, which is ended here."""
        ticket = self._next_ticket
        self._next_ticket += 1
        future: asyncio.Future[None] = self.loop.create_future()
        self._awaited[ticket] = _Awaited(future, owner, None)
        pool.end(ticket, self.native)
        return future

    def abandon(self, owner: object) -> None:
        """Fail the futures of a pool's jobs that have not ended, and warn of them, in the loop's own thread."""
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
        """Count one user less; the last one's leave closes it, in the loop's own thread or after the loop's end."""
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
        """Forget the awaited jobs, and drop the results that have arrived: no task waits for them any more."""
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
        self._close_unused()
        if fatal is not None:
            raise fatal  # as from any callback of the loop


def join(loop: asyncio.AbstractEventLoop) -> Mailbox:
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


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
