"""The one place of an event loop into which threads of C++ put the jobs that have ended.

Guarantees:
  - A loop has one mailbox, and so one descriptor to watch, however many pools put jobs there.
  - All that has come is taken at once, and all its futures are set in that one pass.
  - A future that was cancelled stays so; a job of it that was not started is dropped at once, and one that was started
    keeps its buffers until it has ended.
  - A mailbox lives as long as a pool uses it or a future waits; after its loop's end, nobody is told any more.

All methods must be called from the loop's thread, but `leave`.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from penstock import _native
from penstock.errors import ClosedError, UsageError

_Result = TypeVar("_Result")

_RESULT: Final = 0
_FAILED: Final = 1

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


class Mailbox:
    """What threads of C++ send to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: Final = loop
        self.native: Final = _native.Mailbox()
        self._users = 0
        self._next_ticket = 0
        self._awaited: dict[int, asyncio.Future[Any]] = {}
        loop.add_reader(self.native.fileno(), self._deliver)

    def submit(self, pool: _native.Pool, job: _native.PoolJob) -> asyncio.Future[Any]:
        """Return the future of the result of a job that a pool is given here."""
        ticket = self._next_ticket
        self._next_ticket += 1
        future: JobFuture[Any] = JobFuture(loop=self.loop)
        submission = pool.submit(job, ticket, self.native)
        self._awaited[ticket] = future

        def withdraw() -> None:
            if submission.withdraw():
                del self._awaited[ticket]

        future.withdraw = withdraw
        return future

    def expect_end(self, pool: _native.Pool) -> asyncio.Future[None]:
        """Return a future that is done when the last job of a pool is, which is ended here."""
        ticket = self._next_ticket
        self._next_ticket += 1
        future: asyncio.Future[None] = self.loop.create_future()
        self._awaited[ticket] = future
        pool.end(ticket, self.native)
        return future

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
        """Forget what is awaited, and drop what has come: nobody is left to tell."""
        _mailboxes.pop(self.loop, None)
        if not self.loop.is_closed():
            self.loop.remove_reader(self.native.fileno())
        self._awaited.clear()
        if self.native.here:
            self.native.take()

    def _deliver(self) -> None:
        for ticket, outcome, value in self.native.take():
            future = self._awaited.pop(ticket)
            if future.done():
                continue
            if isinstance(future, JobFuture):
                future.withdraw = None  # it refers to this mailbox
            if outcome == _RESULT:
                future.set_result(value)
            elif outcome == _FAILED and isinstance(value, Exception):
                future.set_exception(value)
            else:
                future.set_exception(
                    ClosedError(
                        "the job was not started before its pool's scope was left by an exception, or by being "
                        "cancelled. Await the future inside the scope"
                    )
                )
        self._close_unused()


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
