"""Two streams: one yields items in the order in which they were put, one yields results as they complete.

Guarantees, beyond those of every stream:
  - ExtendableStream: items are read in the order in which they were put.
  - CompletionStream: each result is read after those of all awaitables that completed before it, whatever the order in
    which they were put; `stop` ends it once all have completed and been read.
  - An exception of an awaitable is raised by the read whose turn it is, and the reader may continue after it. If it is
    never read, it is printed nowhere.
  - The stream owns no task: coroutines are started in the caller's TaskGroup. Futures that were put are never
    cancelled; `cancel` and `throw(now=True)` cancel only the tasks that were started for the stream.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from penstock.concurrency._stream import Stream
from penstock.errors import ClosedError, UsageError

Item = TypeVar("Item")


class ExtendableStream(Stream[Item, Item], Generic[Item]):
    """An async iterable fed from outside: `put` adds items, and one reader gets them in the same order.

    A subclass may override `async def _next(self)`, which each read awaits; the unread items are in the deque `_items`,
    and `_take()` removes and returns the first one (see `Stream`).

    Args:
        capacity: how many unread items there may be. Default None: any number.

    Raises:
        UsageError: the capacity is below 1.

    Example:
        >>> import asyncio
        >>> from penstock.concurrency import ExtendableStream
        >>> async def main() -> list[str]:
        ...     stream = ExtendableStream[str]()
        ...
        ...     async def produce() -> None:
        ...         stream.put("a")
        ...         await asyncio.sleep(0)
        ...         stream.put("b")
        ...         stream.stop()
        ...
        ...     async with asyncio.TaskGroup() as tasks:
        ...         tasks.create_task(produce())
        ...         return [item async for item in stream]
        >>> asyncio.run(main())
        ['a', 'b']

        Names are put, and each one's record is fetched when it is read:

        >>> class Records(ExtendableStream[str]):
        ...     async def _next(self) -> str:
        ...         name = self._items[0]
        ...         await asyncio.sleep(0)  # a request for the record
        ...         self._take()  # now, so that a cancelled read loses nothing
        ...         return f"the record of {name}"
        >>> async def read() -> list[str]:
        ...     stream = Records()
        ...     stream.put("a")
        ...     stream.stop()
        ...     return [record async for record in stream]
        >>> asyncio.run(read())
        ['the record of a']
    """

    def __init__(self, *, capacity: int | None = None) -> None:
        super().__init__(capacity=capacity)
        self._items: deque[Item] = deque()

    def _store(self, item: Item) -> None:
        self._items.append(item)

    def _take(self) -> Item:
        return self._items.popleft()

    def _held(self) -> int:
        return len(self._items)


class CompletionStream(Stream[Awaitable[Item], Item], Generic[Item]):
    """A stream of awaitables, whose results are read in the order in which they complete.

    Futures and tasks are taken as they are. Anything else, such as a coroutine, is started in `tasks` when it is put.
    If an awaitable raises, the read in its turn raises that exception, and the reader may continue. A cancelled
    awaitable counts as having raised a ClosedError, so that it can't look like the reader's own cancellation.

    Args:
        capacity: how many awaitables there may be whose results are unread, completed or not. Default None: any number.
        on_error: called with an exception that an awaitable raised, when that is read; the read returns its result, or
            raises its exception. Default None: the read raises the awaitable's exception.
        tasks: the group in which coroutines are started. It never sees their exceptions. Default None: only futures and
            tasks can be put.

    Raises:
        UsageError: the capacity is below 1.

    Example:
        >>> import asyncio
        >>> from penstock.concurrency import CompletionStream
        >>> async def after(turns: int) -> int:
        ...     for _ in range(turns):
        ...         await asyncio.sleep(0)
        ...     return turns
        >>> async def main() -> list[int]:
        ...     async with asyncio.TaskGroup() as tasks:
        ...         stream = CompletionStream[int](tasks=tasks)
        ...         for turns in (9, 1, 5):
        ...             stream.put(after(turns))
        ...         stream.stop()
        ...         return [turns async for turns in stream]
        >>> asyncio.run(main())
        [1, 5, 9]
    """

    def __init__(
        self,
        *,
        capacity: int | None = None,
        on_error: Callable[[BaseException], Item] | None = None,
        tasks: asyncio.TaskGroup | None = None,
    ) -> None:
        super().__init__(capacity=capacity)
        self._on_error = on_error
        self._tasks = tasks
        self._futures: set[asyncio.Future[Item]] = set()
        self._complete: deque[asyncio.Future[Item]] = deque()  # of these futures, in the order of their completion
        self._own: set[asyncio.Future[Item]] = set()  # those whose tasks were started here and still run

    def _store(self, item: Awaitable[Item]) -> None:
        if not asyncio.isfuture(item):
            self._start(item)
        elif item in self._futures:
            raise UsageError("a future can be put into a stream once; this one is in it already")
        else:
            self._expect(item)

    def _start(self, item: Awaitable[Item]) -> None:
        if self._tasks is None:
            if inspect.iscoroutine(item):
                item.close()  # otherwise Python also warns that it was never awaited
            raise UsageError(
                f"an awaitable that isn't a future must be started in a task group; got {item!r}. Put "
                "tasks.create_task(coroutine), or make the stream with tasks="
            )
        result = asyncio.get_running_loop().create_future()
        task = self._tasks.create_task(_forward(item, result))
        # A task that is cancelled before its first step never runs `_forward`.
        task.add_done_callback(lambda _: result.cancel())
        self._own.add(result)
        result.add_done_callback(lambda _: task.cancel() if result.cancelled() else None)
        self._expect(result)

    def _expect(self, future: asyncio.Future[Item]) -> None:
        self._futures.add(future)
        future.add_done_callback(self._complete_one)

    def _complete_one(self, future: asyncio.Future[Item]) -> None:
        if not future.cancelled():
            future.exception()  # the read raises it; if there is none, Python must not print it
        self._own.discard(future)
        if future in self._futures:
            self._complete.append(future)
            self._notify()

    def _take(self) -> Item:
        future = self._complete.popleft()
        self._futures.remove(future)
        if future.cancelled():
            error: BaseException | None = ClosedError("an awaitable that was put into the stream was cancelled")
        else:
            error = future.exception()
        if error is None:
            return future.result()
        if self._on_error is not None:
            return self._on_error(error)
        raise error if not isinstance(error, StopAsyncIteration) else _no_end(error)

    def _held(self) -> int:
        return len(self._futures)

    def _is_ready(self) -> bool:
        return bool(self._complete)

    def _drop(self) -> None:
        self._complete.clear()
        self._futures.clear()
        for future in [*self._own]:
            future.cancel()


async def _forward(item: Awaitable[Item], result: asyncio.Future[Item]) -> None:
    """Set a future to the outcome of an awaitable, whose exceptions don't reach the task group."""
    with _Into(result):
        value = await item
        if not result.done():
            result.set_result(value)


class _Into:
    """Sets a future to the exception of its block; an exception that ends the program is raised as well."""

    def __init__(self, result: asyncio.Future[Item]) -> None:
        self._result = result

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is None or self._result.done():
            return isinstance(error, Exception)
        if isinstance(error, asyncio.CancelledError):
            self._result.cancel()
            return False
        self._result.set_exception(error)
        self._result.exception()
        return isinstance(error, Exception)


def _no_end(error: StopAsyncIteration) -> RuntimeError:
    """Return an error that a reader doesn't take for the end of the stream."""
    replacement = RuntimeError("an awaitable that was put into the stream raised StopAsyncIteration")
    replacement.__cause__ = error
    return replacement
