"""Streams: async iterables that producers feed while one reader reads, in the order that a subclass defines.

Guarantees:
  - Each item is read exactly once, by one reader: a loop in a second task is refused, and so are two reads at a time.
  - The stream ends once and for good: after `stop` the reader gets every earlier item, then the end; after `throw`
    every earlier item, then the error (or the error at once); after `cancel` a CancelledError at once. From then on
    `put` and `put_wait` raise a ClosedError, even in producers that already wait for room.
  - With a capacity there are never more unread items than that. Producers that wait for room get it first come, first
    served, and no plain `put` takes it from them.
  - Cancelling a read loses no item, unless a subclass's `_next` waits after it has taken one. Cancelling `put_wait`
    leaves the stream as if it had not been called.
  - The stream starts no task and has no finaliser: dropping a stream prints nothing.

All methods must be called from the thread of one event loop; while that loop runs, a call from elsewhere is refused,
since it would not wake a waiting reader. Another thread calls `loop.call_soon_threadsafe(stream.put, item)`; an
exception of `put` then goes to the loop's exception handler, so such a stream should have no capacity. A stream that
has ended, and whose items have all completed, can be read by any loop.
"""

import asyncio
import inspect
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, Self, TypeVar

from penstock.concurrency._worker import running_loop
from penstock.errors import ClosedError, UsageError

Item = TypeVar("Item")
Read = TypeVar("Read")

_NO_END: Final = "_next and _take must not raise StopAsyncIteration; call stop() to end the stream"
_PLAIN_METHODS: Final = ("_store", "_take", "_held", "_is_ready", "_drop")


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a stream: with an error, or, if that is None, a plain end."""

    error: BaseException | None


class Stream(ABC, AsyncIterator[Read], Generic[Item, Read]):
    """The base class of streams: ends, errors, one reader, producers that wait for room. A subclass defines the order.

    A subclass has three plain methods, which are called from the loop's thread and never wait:

    - `_store(item)` keeps an item that was put. If it raises, `put` raises its exception; then nothing may be kept.
    - `_take()` returns the next item and removes it. It is called only if `_held()` is at least 1. If it raises, that
      read raises its exception, and the next read continues.
    - `_held()` returns how many items are kept; the stream compares it with the capacity.

    A subclass whose reads wait, for a request or a lock, overrides `async def _next()`, which each read awaits in the
    reader's task in place of `_take()`, and which returns `_take()` by default. If the reader is cancelled, or the
    stream ends at once, the await in `_next` raises CancelledError; the item is kept if `_next` calls `_take` after its
    last await, and lost if it calls `_take` before. If `_next` raises, that read raises its exception, and the next
    read continues. StopAsyncIteration from `_next` or `_take` becomes a RuntimeError, since `stop()` ends a stream.

    The type parameters are the types of the items that are put and of those that are read.

    A stream belongs to one event loop, whose thread calls all of its methods; while that loop runs, a call from
    elsewhere raises UsageError. Another thread calls `loop.call_soon_threadsafe(stream.put, item)`.

    Args:
        capacity: how many unread items there may be. Default None: any number.

    Raises:
        UsageError: the capacity is below 1; or, when a subclass is made, one of its plain methods is async or a
            generator.

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

    _waits_in_next: ClassVar[bool] = False  # whether a subclass overrides `_next`

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._waits_in_next = vars(Stream)["_next"] is not cls._next
        for name in _PLAIN_METHODS:
            if kind := _waiting_kind(getattr(cls, name)):
                raise UsageError(
                    f"{cls.__qualname__}.{name} must be a plain function, since the stream never awaits it; got "
                    f"{kind}. Override `async def _next(self)` to wait for an item"
                )
        if inspect.isasyncgenfunction(cls._next) or inspect.isgeneratorfunction(cls._next):
            raise UsageError(
                f"{cls.__qualname__}._next must be an async function that returns one item; got a generator. "
                "Use return in place of yield"
            )

    def __init__(self, *, capacity: int | None = None) -> None:
        if capacity is not None and capacity < 1:
            raise UsageError(f"capacity must be at least 1, or None for any number; got capacity={capacity}")
        self._capacity = capacity
        self._loop: asyncio.AbstractEventLoop | None = None  # the one that has used the stream
        self._end: _End | None = None  # set when no more items can be put
        self._at_once = False  # the end comes before the held items
        self._finished = False  # the end was read
        self._reader: weakref.ref[asyncio.Task[object]] | None = None  # the task of the first read since a loop began
        self._is_being_read = False
        self._reading: asyncio.Future[None] | None = None  # wakes a read that waits for an item
        self._next_task: asyncio.Task[object] | None = None  # the task of a read that waits in `_next`
        self._interrupted = False  # that read was cancelled by an end that comes at once
        self._producers: deque[asyncio.Future[None]] = deque()  # wake producers that wait for room, in order
        self._reserved = 0  # places of producers that got room and have not run since

    @abstractmethod
    def _store(self, item: Item) -> None:
        """Keep an item that was put."""

    @abstractmethod
    def _take(self) -> Read:
        """Return the next item, and remove it."""

    async def _next(self) -> Read:
        """Return the next item, and remove it; a subclass may wait here."""
        return self._take()

    @abstractmethod
    def _held(self) -> int:
        """Return how many items are kept."""

    def _is_ready(self) -> bool:
        """Return whether `_take` can return an item now; if not, `_notify` will be called when it may."""
        return self._held() > 0

    def _drop(self) -> None:
        """Drop all kept items: they will not be read."""
        while self._held():
            self._take()

    # -- for producers

    def put(self, item: Item) -> None:
        """Add an item; the reader gets it in its turn.

        Args:
            item: the item.

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
        """Add an item, after waiting for room. If this is cancelled, nothing was added.

        Args:
            item: the item.

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
            self.put(item)  # the reserved place is free, and no other task has run since
        finally:
            self._give_room()  # to others, if the item was refused

    def stop(self) -> None:
        """End the stream: the reader gets the items that were put, and then the end. Does nothing after an end.

        Example:
            >>> from penstock.concurrency import ExtendableStream
            >>> stream = ExtendableStream[int]()
            >>> stream.stop()
            >>> stream.put(1)
            Traceback (most recent call last):
            penstock.errors.ClosedError: the stream has ended: nothing can be put any more
        """
        if self._end is None:
            self._check_loop()
            self._finish_with(_End(None), at_once=False)

    def throw(self, error: BaseException, *, now: bool = False) -> None:
        """End the stream with an error, which the reader gets in its turn or at once.

        Args:
            error: the error, which one read raises; after it the stream is at its end.
            now: whether the error comes at once, and the unread items are dropped. Default False: it comes after them.

        Raises:
            ClosedError: the stream has ended already.
            UsageError: the error is a StopIteration or StopAsyncIteration, which would look like a plain end.

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
        """Cancel the reading: `throw(CancelledError(), now=True)`.

        Unread items are dropped, and the reader's read raises asyncio.CancelledError, which ends its task as
        `Task.cancel` does. Unlike `throw`, it may be called after `stop` and `throw` too, and changes nothing once the
        end was read.

        Example:
            >>> import asyncio
            >>> from penstock.concurrency import ExtendableStream
            >>> async def main() -> None:
            ...     stream = ExtendableStream[int]()
            ...     stream.put(1)
            ...     stream.cancel()
            ...     try:
            ...         await anext(stream)
            ...     except asyncio.CancelledError as error:
            ...         print(error)
            >>> asyncio.run(main())
            the stream was cancelled
        """
        if not self._finished:
            self._check_loop()
            self._finish_with(_End(asyncio.CancelledError("the stream was cancelled")), at_once=True)

    def __len__(self) -> int:
        """Return how many items are unread."""
        return self._held()

    def __bool__(self) -> bool:
        """Return True, even if no item is unread."""
        return True

    # -- for the reader

    def __aiter__(self) -> Self:
        """Return the stream itself, for its one reader.

        Raises:
            UsageError: another task, which has not ended, reads the stream; or the stream was read to its end.
        """
        reader = None if self._reader is None else self._reader()
        if reader is not None and not reader.done() and reader is not _current_task():
            raise UsageError(
                "a stream is read once, by one reader; got a loop in a second task, while the first one "
                f"({reader.get_name()}) is running. Loop in one task; single items may be read by anext(stream) in any"
            )
        if self._finished:
            raise UsageError("a stream is read once, by one reader; got a loop after its end. Make a new stream")
        self._reader = None
        return self

    async def __anext__(self) -> Read:
        """Return the next item, after waiting for it. After the end it raises StopAsyncIteration.

        Raises:
            UsageError: another read waits, or another event loop uses the stream.
            RuntimeError: `_take` or `_next` raised StopAsyncIteration.
        """
        if self._is_being_read:
            raise UsageError("a stream is read by one task at a time; got a read while another one waits")
        if self._end is None or not self._is_readable():
            self._check_loop()
        else:
            self._loop = running_loop()
        if self._reader is None and (task := _current_task()) is not None:
            self._reader = weakref.ref(task)
        if not self._is_readable():
            await self._until_readable()
        if self._end is not None and (self._at_once or not self._held()):
            raise self._read_end(self._end)
        if not self._waits_in_next:
            try:
                return self._take()  # no await follows, so a cancelled read has taken nothing
            except StopAsyncIteration as error:
                raise RuntimeError(_NO_END) from error
            finally:
                self._give_room()
        self._is_being_read = True
        try:
            return await self._awaited(_current_task())
        finally:
            self._is_being_read = False

    async def _until_readable(self) -> None:
        self._is_being_read = True
        try:
            while not self._is_readable():
                self._reading = asyncio.get_running_loop().create_future()
                try:
                    await self._reading
                finally:
                    self._reading = None
        finally:
            self._is_being_read = False

    async def _awaited(self, task: "asyncio.Task[object] | None") -> Read:
        """Return the item of `_next`. If the stream ends at once, its end interrupts `_next`, and is raised.

        Raises:
            RuntimeError: `_next` raised StopAsyncIteration.
            CancelledError: other code has cancelled the task.
        """
        already = 0 if task is None else task.cancelling()
        self._next_task = task
        try:
            item = await self._next()
            if not self._at_once:
                return item
        except StopAsyncIteration as error:
            raise RuntimeError(_NO_END) from error
        except asyncio.CancelledError:
            if not self._withdraw_interrupt(task, already):
                raise
        finally:
            self._withdraw_interrupt(task, already)
            self._next_task = None
            self._give_room()
        assert self._end is not None  # the end came at once, while `_next` waited
        raise self._read_end(self._end)

    def _withdraw_interrupt(self, task: "asyncio.Task[object] | None", already: int) -> bool:
        """Take back the stream's cancellation of a read.

        Returns:
            Whether there was one, and no other code has cancelled the task meanwhile.
        """
        if not self._interrupted or task is None:
            return False
        self._interrupted = False
        return task.uncancel() <= already  # asyncio.timeout does the same

    def _is_readable(self) -> bool:
        return self._is_ready() or (self._end is not None and (self._at_once or not self._held()))

    def _read_end(self, end: _End) -> BaseException:
        error = None if self._finished else end.error
        self._finished = True
        return StopAsyncIteration() if error is None else error

    # -- for both

    def _notify(self) -> None:
        """Wake a read that waits, so that it looks again."""
        if self._reading is not None:
            _wake(self._reading)

    def _finish_with(self, end: _End, *, at_once: bool) -> None:
        self._end = end
        self._at_once = self._at_once or at_once
        try:
            if at_once:
                self._drop()
        finally:  # a `_take` of a subclass may have raised
            if at_once:
                self._cancel_next()
            while self._producers:
                _wake(self._producers.popleft())
            self._notify()

    def _cancel_next(self) -> None:
        """Cancel `_next`, unless it ends the stream itself: its task would be cancelled after its return."""
        reader = self._next_task
        if reader is not None and reader is not _current_task() and not self._interrupted:
            self._interrupted = True
            reader.cancel()

    def _check_open(self) -> None:
        if self._end is not None:
            raise ClosedError("the stream has ended: nothing can be put any more")
        self._check_loop()

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_loop": None}  # which can't be pickled, and is another one there

    def _check_loop(self) -> None:
        """Check that the loop that runs here is the one that uses the stream, while that runs.

        Raises:
            UsageError: it is another one, or none.
        """
        loop = running_loop()
        if loop is self._loop:
            return
        if self._loop is not None and self._loop.is_running():
            raise UsageError(
                "a stream belongs to the event loop that uses it; got a call from "
                f"{'another loop' if loop is not None else 'a thread without one'}, which could not wake a task "
                "there. Call it in that loop, or its method by loop.call_soon_threadsafe"
            )
        self._loop = loop

    def _is_full(self) -> bool:
        return self._capacity is not None and self._held() + self._reserved >= self._capacity

    async def _wait_for_room(self) -> None:
        """Return once a place is reserved.

        Raises:
            ClosedError: the stream has ended.
            CancelledError: the wait was cancelled.
        """
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


def _current_task() -> "asyncio.Task[object] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs: the stream is used before one does
        return None


def _waiting_kind(function: object) -> str:
    """Return the kind of a function that can't be called plainly; an empty string if it is plain."""
    if inspect.iscoroutinefunction(function):
        return "an async function"
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        return "a generator"
    return ""


def _wake(waiting: asyncio.Future[None]) -> bool:
    """Wake a waiting task.

    Returns:
        False if it was cancelled meanwhile.
    """
    if waiting.done():
        return False
    waiting.set_result(None)
    return True
