"""The operations on one end of a pipe: one at a time, by blocking threads or by coroutines.

The problem: an operation may wait, in a blocking call or in a coroutine; a timeout, a cancellation, Ctrl-C or `close`
may end it meanwhile; and none of these may lose a message, or leave an end that is never disposed of.

The solution: an operation is written once, as *steps*: a generator that yields wherever it must wait until one of the
watched descriptors is ready. `run` blocks the thread at a yield, and `run_async` returns to the event loop. Only there
can an operation end early: elsewhere signals are held back. Each public call holds them once, at its boundary
(`holding_interrupts`), and its waits let them through.

Rejected: to hold signals back in a coroutine across its waits, too. Coroutines end in any order, so one scope would
restore the handlers that another one had set. `run_async` has one scope between two waits instead.

Guarantees:
  - Operations take turns, in the order in which they were called; none sees the half-done work of another.
  - Ctrl-C, a timeout, cancellation and `close` end an operation only at one of its yields. A Ctrl-C that arrives after
    the result is computed is raised as well, and `put_back` gets the result.
  - Any thread may call `close` at any time: an operation that waits ends with ClosedError, and the last operation
    inside disposes of the end's resources. `close` never waits for another operation.
  - After a fork, the child's copy refuses every operation.

Threads, or the coroutines of one event loop, may use an end, but not both at the same time.
"""

import asyncio
import os
import select
import threading
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Final, TypeAlias, TypeVar

from penstock._caught import waited
from penstock._os import Bell, HeldInterrupts, Waiter, holding_interrupts
from penstock.errors import ClosedError

ResultT = TypeVar("ResultT")
Steps: TypeAlias = Generator[None, None, ResultT]


class Operations:
    """Runs the operations of one end, and owns the descriptor that is ready when any of them can continue.

    Args:
        name: the end's name in messages.
        dispose: called once, when the end is closed and no operation is inside.
        put_back: called with a result that could not be returned because of a Ctrl-C.

    Attributes:
        closed: whether the end is closed.
        blocks: whether the operation that has the turn blocks its thread at a wait, without a limit in time.
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
        "blocks",
        "closed",
    )

    def __init__(
        self, name: str, dispose: Callable[[], None], *, put_back: Callable[[object], None] | None = None
    ) -> None:
        self.closed: bool = False
        self.blocks: bool = False
        self._name: Final = name
        self._dispose = dispose
        self._put_back = put_back
        self._pid = os.getpid()
        self._turn = threading.Lock()
        self._async_turn = asyncio.Lock()
        self._lock = threading.Lock()  # protects `_inside`
        self._inside = 0
        self._waiter = Waiter()
        self._bell = Bell()
        self._poll = select.epoll()
        self.watch(self._bell.fileno())

    @property
    def mine(self) -> bool:
        """Whether this process opened the end; False in a forked child."""
        return self._pid == os.getpid()

    def fileno(self) -> int:
        """Return the descriptor that is readable when a waiting operation can continue."""
        return self._poll.fileno()

    def watch(self, descriptor: int) -> None:
        """Wake when the descriptor is readable, or its other end is closed.

        Raises:
            OSError: it can't be watched.
        """
        self._poll.register(descriptor, select.EPOLLIN)

    def watch_writing(self, descriptor: int, *, wanted: bool) -> None:
        """Start or stop waking when a watched descriptor can be written to."""
        self._poll.modify(descriptor, select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor; call this before it is closed."""
        self._poll.unregister(descriptor)

    def ready(self) -> list[int]:
        """Return the descriptors that are ready now."""
        return [descriptor for descriptor, _ in self._poll.poll(0)]

    @holding_interrupts
    def run(self, held: HeldInterrupts, steps: Steps[ResultT], timeout_seconds: float | None) -> ResultT:
        """Run the steps, and block this thread where they have to wait.

        Returns:
            Their result.

        Raises:
            TimeoutError: they took longer than `timeout_seconds`.
            ClosedError: the end is closed, or was closed during the wait, or this process was forked from its owner.
        """
        self._check_owner()
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        operation = self._entered(steps)
        taken: list[bool] = []
        try:
            self._take_turn(taken, held, timeout_seconds)
            result = self._do(operation, held, deadline)
        finally:
            operation.close()
            if any(taken):
                self._turn.release()
        if result is None:
            raise self._timeout_error(timeout_seconds)
        if self._put_back is not None:
            held.undo = partial(self._put_back, result[0])
        return result[0]

    async def run_async(self, steps: Steps[ResultT]) -> ResultT:
        """Run the steps, and return to the event loop where they have to wait.

        Returns:
            Their result.

        Raises:
            ClosedError: as for `run`.
        """
        self._check_owner()
        operation = self._entered(steps)
        async with self._async_turn:
            try:
                while (result := self._advance(operation)) is None:
                    await self._readable()
            except BaseException:  # cancelled, or interrupted at the end of `_advance`; else this has no effect
                self._abandon(operation)
                raise
            return result[0]

    @holding_interrupts
    def close(self, held: HeldInterrupts, last_steps: Steps[None] | None = None) -> None:
        """Close the end: a waiting operation ends with ClosedError. Harmless when repeated.

        Args:
            held: the scope that holds signals back; callers don't pass it.
            last_steps: run before the close, if no operation is inside; they may block this thread.
        """
        if not self.mine:
            return
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

    def _entered(self, steps: Steps[ResultT]) -> Steps[ResultT]:
        """Count the steps as inside, from their start until they end or this generator is closed.

        Yields:
            At each wait of the steps.

        Returns:
            Their result.
        """
        self._enter()
        try:
            return (yield from steps)
        finally:
            self._leave()

    @holding_interrupts
    def _advance(self, held: HeldInterrupts, operation: Steps[ResultT]) -> tuple[ResultT] | None:
        """Run an operation to its next wait.

        Returns:
            The result, in a tuple, if the operation has ended.
        """
        with self._turn:
            self.blocks = False
            result = self._next(operation)
        if result is not None and self._put_back is not None:
            held.undo = partial(self._put_back, result[0])
        return result

    @holding_interrupts
    def _abandon(self, _held: HeldInterrupts, operation: Steps[object]) -> None:
        """End an operation that waits."""
        with self._turn:
            operation.close()

    def _take_turn(self, taken: list[bool], held: HeldInterrupts, timeout_seconds: float | None) -> None:
        """Wait for the turn. `taken` records whether it was taken, even if this raises."""
        if self._turn.acquire(blocking=False):
            taken.append(True)
            return
        try:
            held.allow()
            # One call of C code, so that no interrupt arrives between the acquisition and its record in `taken`.
            taken.extend(map(self._turn.acquire, (True,), (-1 if timeout_seconds is None else timeout_seconds,)))
        finally:
            held.hold()
        if not any(taken):
            raise self._timeout_error(timeout_seconds)

    def _do(self, steps: Steps[ResultT], held: HeldInterrupts, deadline: float | None) -> tuple[ResultT] | None:
        """Run the steps to their end.

        Returns:
            The result, in a tuple; None if the deadline passed first.
        """
        self.blocks = deadline is None
        while True:
            done = self._next(steps)
            if done is not None:
                return done
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:  # checked here, since a descriptor may be ready at every wait
                return None
            try:
                held.allow()
                ready = waited(self._waiter.wait, self._poll.fileno(), left)
            finally:
                held.hold()
            if not ready:
                return None

    def _next(self, steps: Steps[ResultT]) -> tuple[ResultT] | None:
        """Run to the next wait.

        Returns:
            The result, in a tuple, if the steps have ended.
        """
        if self.closed:
            raise self._closed_error()
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

    def _check_owner(self) -> None:
        """Refuse a forked child, where a thread of the parent may have the turn for ever.

        Raises:
            ClosedError: this process was forked from the end's owner.
        """
        if not self.mine:
            raise ClosedError(
                f"{self._name} belongs to the process that opened it, {self._pid}; this one, {os.getpid()}, was forked "
                "from it. Open another one here."
            )

    def _enter(self) -> None:
        with self._lock:
            if self.closed:
                raise self._closed_error()
            self._inside += 1

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
            last = self.closed and self._inside == 0
        if last:
            dispose = self._dispose
            self._dispose, self._put_back = _nothing, None  # they refer to the owner: this breaks the cycle
            try:
                dispose()
            finally:
                self._poll.close()

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"{self._name} is closed. Open another one.")

    def _timeout_error(self, timeout_seconds: float | None) -> TimeoutError:
        return TimeoutError(f"{self._name} had to wait longer than timeout_seconds={timeout_seconds}")


def _nothing() -> None:
    pass


def _set(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)
