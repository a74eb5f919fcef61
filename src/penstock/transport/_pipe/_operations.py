"""The operations on one end of a pipe: one at a time, by threads that block or by coroutines.

What may have to wait is written once, as *steps*: a generator that yields whenever nothing can be done before one of
the watched descriptors is ready. `run` blocks the thread there; `run_async` lets the event loop go on.

Guarantees:
  - Operations take turns, in the order in which they came; none sees another's half-done work.
  - Ctrl-C, a timeout, cancelling and `close` end an operation at one of its yields and nowhere else. Ctrl-C that comes
    when the result is there already is raised as well; the result goes to `put_back`.
  - `close` may be called at any time, by anyone: an operation that waits ends with ClosedError, and the last one inside
    disposes of what the end holds. `close` never waits for another operation.
  - After a fork, the child's copy refuses every operation.

Threads, or the coroutines of one event loop, may use an end; not both at the same time.
"""

import asyncio
import os
import select
import threading
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Final, TypeAlias, TypeVar

from penstock._os import Bell, HeldInterrupts, Waiter
from penstock.errors import ClosedError

ResultT = TypeVar("ResultT")
Steps: TypeAlias = Generator[None, None, ResultT]


class Operations:
    """Runs the operations of one end, and owns the descriptor that stands for all they wait for.

    Args:
        name: what the end is called in messages.
        dispose: called once, when the end is closed and no operation is inside.
        put_back: given a result that Ctrl-C came before.
    """

    __slots__ = (
        "_async_turn",
        "_bell",
        "_dispose",
        "_inside",
        "_lock",
        "_name",
        "_pid",
        "_poll",
        "_put_back",
        "_turn",
        "_waiter",
        "closed",
    )

    def __init__(
        self, name: str, dispose: Callable[[], None], *, put_back: Callable[[object], None] | None = None
    ) -> None:
        self.closed = False
        self._name: Final = name
        self._dispose = dispose
        self._put_back = put_back
        self._pid = os.getpid()
        self._turn = threading.Lock()
        self._async_turn = asyncio.Lock()
        self._lock = threading.Lock()  # around `_inside` alone
        self._inside = 0
        self._waiter = Waiter()
        self._bell = Bell()
        self._poll = select.epoll()
        self.watch(self._bell.fileno())

    @property
    def mine(self) -> bool:
        """Whether the end belongs to this process, and not to the one that this was forked from."""
        return self._pid == os.getpid()

    def fileno(self) -> int:
        """Return the descriptor that is readable when an operation that had to wait can go on."""
        return self._poll.fileno()

    def watch(self, descriptor: int) -> None:
        """Wake when the descriptor is readable, or its other end gone.

        Raises:
            OSError: it can't be watched.
        """
        self._poll.register(descriptor, select.EPOLLIN)

    def watch_writing(self, descriptor: int, *, wanted: bool) -> None:
        """Wake also when a watched descriptor can be written to, or no longer for that."""
        self._poll.modify(descriptor, select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def forget(self, descriptor: int) -> None:
        """Watch a descriptor no longer; called before it is closed."""
        self._poll.unregister(descriptor)

    def ready(self) -> list[int]:
        """Return the descriptors that something can be done with now."""
        return [descriptor for descriptor, _ in self._poll.poll(0)]

    def run(self, steps: Steps[ResultT], timeout_seconds: float | None) -> ResultT:
        """Do the steps, and block this thread where they have to wait.

        Returns:
            Their result.

        Raises:
            TimeoutError: it took longer than that.
            ClosedError: the end is closed, or was while this waited, or this process was forked from its owner.
        """
        taken: list[bool] = []
        with HeldInterrupts() as held:
            self._enter()
            try:
                deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
                self._take_turn(taken, held, timeout_seconds)
                result = self._do(steps, held, deadline)
            finally:
                steps.close()
                if any(taken):
                    self._turn.release()
                self._leave()
            if result is None:
                raise self._too_late(timeout_seconds)
            if self._put_back is not None:
                held.undo = partial(self._put_back, result[0])
            return result[0]

    async def run_async(self, steps: Steps[ResultT]) -> ResultT:
        """Do the steps, and let the event loop go on where they have to wait.

        Returns:
            Their result.

        Raises:
            ClosedError: as `run`.
        """
        inside = False
        try:
            with HeldInterrupts():
                self._enter()
                inside = True
            async with self._async_turn:
                try:
                    while True:
                        with HeldInterrupts() as held, self._turn:
                            done = self._next(steps)
                            if done is not None and self._put_back is not None:
                                held.undo = partial(self._put_back, done[0])
                        if done is not None:
                            return done[0]
                        await self._readable()
                finally:
                    with HeldInterrupts(), self._turn:
                        steps.close()
        finally:
            if inside:
                with HeldInterrupts():
                    self._leave()

    def close(self, last_steps: Steps[None] | None = None) -> None:
        """End the operation that waits, and have everything disposed of; harmless when repeated.

        Args:
            last_steps: done before, if no operation is inside; they may block this thread.
        """
        if not self.mine:
            return
        with HeldInterrupts() as held:
            with self._lock:
                if self.closed:
                    return
                self._inside += 1
            try:
                if last_steps is not None and self._turn.acquire(blocking=False):
                    try:
                        self._do(last_steps, held, None)
                    finally:
                        last_steps.close()
                        self._turn.release()
            finally:
                self.closed = True
                self._bell.ring()
                self._leave()

    def _take_turn(self, taken: list[bool], held: HeldInterrupts, timeout_seconds: float | None) -> None:
        """Wait for the turn; whether it was taken is in `taken`, also if this raises."""
        if self._turn.acquire(blocking=False):
            taken.append(True)
            return
        try:
            held.allow()
            # One call, so that no interrupt finds the turn taken and that not written down.
            taken.extend(map(self._turn.acquire, (True,), (-1 if timeout_seconds is None else timeout_seconds,)))
        finally:
            held.hold()
        if not any(taken):
            raise self._too_late(timeout_seconds)

    def _do(self, steps: Steps[ResultT], held: HeldInterrupts, deadline: float | None) -> tuple[ResultT] | None:
        """Do the steps to their end.

        Returns:
            The result, in a tuple; None if the time was over before.
        """
        while True:
            done = self._next(steps)
            if done is not None:
                return done
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:  # looked at here, since there may be always something ready
                return None
            try:
                held.allow()
                ready = self._waiter.wait(self._poll.fileno(), left)
            finally:
                held.hold()
            if not ready:
                return None

    def _next(self, steps: Steps[ResultT]) -> tuple[ResultT] | None:
        """Go on to the next wait.

        Returns:
            The result, in a tuple, if there is nothing more to wait for.
        """
        if self.closed:
            raise self._refusal()
        try:
            next(steps)
        except StopIteration as done:
            return (done.value,)
        return None

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        readable = loop.create_future()
        loop.add_reader(self._poll.fileno(), _set, readable)
        try:
            await readable
        finally:
            loop.remove_reader(self._poll.fileno())

    def _enter(self) -> None:
        if not self.mine:
            raise ClosedError(
                f"{self._name} belongs to the process that opened it, {self._pid}; this one, {os.getpid()}, was forked "
                "from it. Open another one here."
            )
        with self._lock:
            if self.closed:
                raise self._refusal()
            self._inside += 1

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
            last = self.closed and self._inside == 0
        if last:
            dispose, self._dispose, self._put_back = self._dispose, _nothing, None  # its owner's: no cycle is left
            try:
                dispose()
            finally:
                self._poll.close()

    def _refusal(self) -> ClosedError:
        return ClosedError(f"{self._name} is closed. Open another one.")

    def _too_late(self, timeout_seconds: float | None) -> TimeoutError:
        return TimeoutError(f"{self._name} had to wait longer than timeout_seconds={timeout_seconds}")


def _nothing() -> None:
    pass


def _set(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)
