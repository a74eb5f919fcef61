"""An async iterable that is fed from outside while it is read, in any order that a subclass gives.

Guarantees:
  - Each item is read exactly once, by one reader: a second one is refused, and so is reading in two tasks at a time.
  - The end is told once and for good: after `stop` the reader gets every earlier item, then the end; after `throw`
    every earlier item, then the error (or the error at once); after `cancel` a ClosedError at once, which nobody can
    mistake for the end. From then on putting is a ClosedError, also for producers that wait for room.
  - With a capacity there are never more unread items than that. Producers that wait for room get it in the order in
    which they came, and no plain `put` takes it from them.
  - Cancelling a read loses no item; cancelling `put_wait` leaves the stream as if it had not been called.
  - Nothing is started, and no finaliser exists: a stream that nobody reads any more is forgotten in silence.

All methods must be called from the event loop's thread. From another one it is
`loop.call_soon_threadsafe(stream.put, item)`; what `put` raises then goes to the loop's exception handler, so such a
stream had better have no capacity.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from penstock.errors import ClosedError, UsageError

Item = TypeVar("Item")
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class _End:
    """How the stream ends once nothing is held: with an error, or, if there is none, plainly."""

    error: BaseException | None


class Stream(ABC, Generic[Item, Read]):
    """What all streams share: ends, errors, one reader, producers that wait for room. The order is a subclass's.

    A subclass has three methods, which are called from the loop's thread and never wait:

    - `_store(item)` keeps an item that was put. What it raises comes from `put`, and nothing may be kept then.
    - `_take()` gives the item that is next, and forgets it. It is called only where `_held()` is at least 1. What it
      raises comes from that read, and the next read goes on.
    - `_held()` tells how many items are kept, which is compared with the capacity.

    The type parameters are what is put and what is read.

    Args:
        capacity: how many unread items there may be; None (the default) means any number.

    Raises:
        UsageError: the capacity is below 1.

    Example:
        The smallest item comes first, whenever it was put:

        >>> import asyncio, heapq
        >>> from penstock.concurrency import Stream
        >>> class PriorityStream(Stream[int, int]):
        ...     def __init__(self) -> None:
        ...         super().__init__()
        ...         self._heap: list[int] = []
        ...
        ...     def _store(self, item: int) -> None:
        ...         heapq.heappush(self._heap, item)
        ...
        ...     def _take(self) -> int:
        ...         return heapq.heappop(self._heap)
        ...
        ...     def _held(self) -> int:
        ...         return len(self._heap)
        >>> async def main() -> list[int]:
        ...     stream = PriorityStream()
        ...     for item in (5, 1, 3):
        ...         stream.put(item)
        ...     stream.stop()
        ...     return [item async for item in stream]
        >>> asyncio.run(main())
        [1, 3, 5]
    """

    def __init__(self, *, capacity: int | None = None) -> None:
        if capacity is not None and capacity < 1:
            raise UsageError(f"capacity must be at least 1, or None for any number; got capacity={capacity}")
        self._capacity = capacity
        self._end: _End | None = None  # set once putting is over
        self._at_once = False  # the end comes before what is held
        self._finished = False  # the end was read
        self._has_reader = False
        self._reading: asyncio.Future[None] | None = None  # of a read that waits
        self._producers: deque[asyncio.Future[None]] = deque()  # that wait for room, in the order of their coming
        self._reserved = 0  # places of producers that were given room and have not run since

    @abstractmethod
    def _store(self, item: Item) -> None:
        """Keep an item that was put."""

    @abstractmethod
    def _take(self) -> Read:
        """Give the next item, and forget it."""

    @abstractmethod
    def _held(self) -> int:
        """Return how many items are kept."""

    def _is_ready(self) -> bool:
        """Return whether `_take` can give an item now; else `_notify` will be called when it may."""
        return self._held() > 0

    def _drop(self) -> None:
        """Forget everything that is kept: nobody will read it."""
        while self._held():
            self._take()

    # -- the producers' side

    def put(self, item: Item) -> None:
        """Add an item; the reader gets it in its turn.

        Args:
            item: what to add.

        Raises:
            ClosedError: the stream has ended.
            asyncio.QueueFull: the stream holds as many unread items as its capacity allows; `put_wait` waits instead.

        Example:
            >>> from penstock.concurrency import ExtendableStream
            >>> stream = ExtendableStream[int](capacity=1)
            >>> stream.put(1)
            >>> stream.put(2)
            Traceback (most recent call last):
            asyncio.queues.QueueFull: the stream holds capacity=1 unread items; wait for room with put_wait
        """
        self._check_open()
        if self._is_full():
            raise asyncio.QueueFull(
                f"the stream holds capacity={self._capacity} unread items; wait for room with put_wait"
            )
        self._store(item)
        self._notify()

    async def put_wait(self, item: Item) -> None:
        """Add an item, once there is room for it. Cancelled, it has added nothing.

        Args:
            item: what to add.

        Raises:
            ClosedError: the stream has ended, before the call or while it waited.

        Example:
            >>> import asyncio
            >>> from penstock.concurrency import ExtendableStream
            >>> async def main() -> list[int]:
            ...     stream = ExtendableStream[int](capacity=1)
            ...
            ...     async def produce() -> None:
            ...         for item in range(3):
            ...             await stream.put_wait(item)
            ...         stream.stop()
            ...
            ...     async with asyncio.TaskGroup() as tasks:
            ...         tasks.create_task(produce())
            ...         return [item async for item in stream]
            >>> asyncio.run(main())
            [0, 1, 2]
        """
        self._check_open()
        if not self._is_full():
            self.put(item)
            return
        await self._wait_for_room()
        self._reserved -= 1
        try:
            self.put(item)  # what was reserved is free, and nothing else has run since
        finally:
            self._give_room()  # to others, if the item was refused

    def stop(self) -> None:
        """End the stream: the reader gets what was put, and then the end. Stopping what has ended changes nothing.

        Example:
            >>> from penstock.concurrency import ExtendableStream
            >>> stream = ExtendableStream[int]()
            >>> stream.stop()
            >>> stream.put(1)
            Traceback (most recent call last):
            penstock.errors.ClosedError: the stream has ended: nothing can be put any more
        """
        if self._end is None:
            self._finish_with(_End(None), at_once=False)

    def throw(self, error: BaseException, *, now: bool = False) -> None:
        """End the stream with an error, which the reader gets in its turn or at once.

        Args:
            error: what the reader's read raises, once; after it the stream is at its end.
            now: whether the error comes before the items that are still unread, which are dropped then; by default it
                comes after them.

        Raises:
            ClosedError: the stream has ended already.
            UsageError: the error would be taken for the plain end: StopIteration and StopAsyncIteration.

        Example:
            >>> import asyncio
            >>> from penstock.concurrency import ExtendableStream
            >>> async def main() -> None:
            ...     stream = ExtendableStream[int]()
            ...     stream.put(1)
            ...     stream.throw(OSError("the disk is gone"))
            ...     async for item in stream:
            ...         print(item)
            >>> asyncio.run(main())
            Traceback (most recent call last):
            OSError: the disk is gone
        """
        if isinstance(error, StopIteration | StopAsyncIteration):
            raise UsageError(f"error must not be one that means an end; got {error!r}. Call stop() to end the stream")
        self._check_open()
        self._finish_with(_End(error), at_once=now)

    def cancel(self) -> None:
        """End the stream at once: what is unread is dropped, and the reader gets a ClosedError instead of the end.

        It may be called after `stop` and `throw` too; once the end was read, it changes nothing.

        Example:
            >>> import asyncio
            >>> from penstock.concurrency import ExtendableStream
            >>> async def main() -> None:
            ...     stream = ExtendableStream[int]()
            ...     stream.put(1)
            ...     stream.cancel()
            ...     await anext(aiter(stream))
            >>> asyncio.run(main())
            Traceback (most recent call last):
            penstock.errors.ClosedError: the stream was cancelled: what was unread is dropped
        """
        if not self._finished:
            self._finish_with(_End(ClosedError("the stream was cancelled: what was unread is dropped")), at_once=True)

    def __len__(self) -> int:
        """Return how many items are unread."""
        return self._held()

    def __bool__(self) -> bool:
        """Return True, also while nothing is unread."""
        return True

    # -- the reader's side

    def __aiter__(self) -> AsyncIterator[Read]:
        """Return the only reader.

        Returns:
            The iterator over the items.

        Raises:
            UsageError: there is a reader already.
        """
        if self._has_reader:
            raise UsageError(
                "a stream is read once, by one reader; got a second. Keep the first: reader = aiter(stream)"
            )
        self._has_reader = True
        return _Reader(self._read)

    async def _read(self) -> Read:
        if self._reading is not None:
            raise UsageError("a stream is read by one task at a time; got a read while another one waits")
        while not self._is_readable():
            self._reading = asyncio.get_running_loop().create_future()
            try:
                await self._reading
            finally:
                self._reading = None
        # From here on nothing waits, so that whoever is cancelled has taken nothing.
        if self._end is not None and (self._at_once or not self._held()):
            raise self._read_end(self._end)
        try:
            return self._take()
        finally:
            self._give_room()

    def _is_readable(self) -> bool:
        return self._is_ready() or (self._end is not None and (self._at_once or not self._held()))

    def _read_end(self, end: _End) -> BaseException:
        error = None if self._finished else end.error
        self._finished = True
        return StopAsyncIteration() if error is None else error

    # -- both

    def _notify(self) -> None:
        """Let a read that waits look again."""
        if self._reading is not None:
            _wake(self._reading)

    def _finish_with(self, end: _End, *, at_once: bool) -> None:
        self._end = end
        if at_once:
            self._at_once = True
            self._drop()
        while self._producers:
            _wake(self._producers.popleft())
        self._notify()

    def _check_open(self) -> None:
        if self._end is not None:
            raise ClosedError("the stream has ended: nothing can be put any more")

    def _is_full(self) -> bool:
        return self._capacity is not None and self._held() + self._reserved >= self._capacity

    async def _wait_for_room(self) -> None:
        # Returns with a place reserved, or raises.
        room = asyncio.get_running_loop().create_future()
        self._producers.append(room)
        try:
            await room
        except asyncio.CancelledError:
            if room.cancelled():
                self._producers = deque(other for other in self._producers if other is not room)
            elif self._end is None:
                self._reserved -= 1
                self._give_room()
            raise
        if self._end is not None:
            raise ClosedError("the stream ended while put_wait waited for room: the item was not put")

    def _give_room(self) -> None:
        """Reserve free places for the producers that have waited longest."""
        while self._producers and not self._is_full():
            if _wake(self._producers.popleft()):
                self._reserved += 1


class _Reader(AsyncIterator[Read], Generic[Read]):
    """The one reader of a stream."""

    def __init__(self, read: Callable[[], Awaitable[Read]]) -> None:
        self._read = read

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Read:
        return await self._read()


def _wake(waiting: asyncio.Future[None]) -> bool:
    """Return whether it was woken: False if it was cancelled meanwhile."""
    if waiting.done():
        return False
    waiting.set_result(None)
    return True
