"""Streams: one reader, their ends, the orders they come in, and silence when nobody reads."""

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.concurrency import CompletionStream, ExtendableStream, Stream
from penstock.errors import ClosedError, UsageError
from tests.concurrency.loops import LOOPS, run_on, settle

ON_LOOPS = pytest.mark.parametrize("loop", LOOPS)


@ON_LOOPS
def test_a_second_reader_is_refused(loop: str) -> None:
    """Only one reader may be made, and only one task may read from it at a time."""

    async def main() -> None:
        stream = ExtendableStream[int]()
        reader = aiter(stream)
        with pytest.raises(UsageError, match="one reader"):
            aiter(stream)
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(_next(reader.__anext__))
            await settle()
            with pytest.raises(UsageError, match="one task at a time"):
                await anext(reader)
            stream.put(7)
        assert first.result() == 7

    run_on(loop, main)


async def _next(read: Callable[[], Awaitable[int]]) -> int:
    return await read()


@ON_LOOPS
def test_items_from_another_thread(loop: str) -> None:
    """The documented way from another thread delivers in order and wakes the reader."""

    async def main() -> list[int]:
        stream, running = ExtendableStream[int](), asyncio.get_running_loop()

        def produce() -> None:
            for item in range(100):
                running.call_soon_threadsafe(stream.put, item)
            running.call_soon_threadsafe(stream.stop)

        thread = threading.Thread(target=produce)
        thread.start()
        received = [item async for item in stream]
        thread.join()
        return received

    assert run_on(loop, main) == [*range(100)]


@pytest.mark.parametrize("now", [False, True])
@pytest.mark.parametrize("waiting", [False, True])
def test_thrown_errors_are_raised_once(*, now: bool, waiting: bool) -> None:
    """A thrown error comes after the items or before them, once, as the same object; then comes the end."""

    async def main() -> None:
        stream, error, got = ExtendableStream[int](), KeyError("a"), list[int]()
        reader = aiter(stream)

        async def read() -> None:
            while True:
                got.append(await anext(reader))

        async def feed() -> None:
            if waiting:
                await settle()
            stream.put(1)
            stream.throw(error, now=now)

        async def both() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(feed())
                tasks.create_task(read())

        with pytest.raises(ExceptionGroup) as group:
            await both()
        assert group.value.exceptions[0] is error
        assert got == ([] if now else [1])
        with pytest.raises(StopAsyncIteration):
            await anext(reader)
        with pytest.raises(ClosedError):
            stream.throw(error)

    run_on("asyncio", main)


@pytest.mark.parametrize("error", [StopIteration(), StopAsyncIteration()], ids=repr)
def test_ends_are_not_thrown(error: BaseException) -> None:
    """What a reader would take for the end is refused."""
    with pytest.raises(UsageError, match="must not be one that means an end"):
        ExtendableStream[int]().throw(error)


def test_capacity_is_checked() -> None:
    """A stream without room is refused."""
    with pytest.raises(UsageError, match="capacity must be at least 1"):
        ExtendableStream[int](capacity=0)


class Refusing(Stream[int, int]):
    """Keeps even numbers, refuses odd ones, and fails to give 4."""

    def __init__(self, *, capacity: int) -> None:
        super().__init__(capacity=capacity)
        self._items: list[int] = []

    def _store(self, item: int) -> None:
        if item % 2:
            raise ValueError(f"odd: {item}")
        self._items.append(item)

    def _take(self) -> int:
        item = self._items.pop(0)
        if item == 4:
            raise LookupError("four")
        return item

    def _held(self) -> int:
        return len(self._items)


@ON_LOOPS
def test_what_an_order_raises(loop: str) -> None:
    """What `_store` raises comes from the put, whose room goes to the next; what `_take` raises from the read."""

    async def main() -> None:
        stream = Refusing(capacity=1)
        reader = aiter(stream)
        stream.put(2)
        async with asyncio.TaskGroup() as tasks:

            async def refused() -> None:
                with pytest.raises(ValueError, match="odd: 3"):
                    await stream.put_wait(3)

            tasks.create_task(refused())
            tasks.create_task(stream.put_wait(4))
            tasks.create_task(stream.put_wait(6))
            await settle()
            assert await anext(reader) == 2
            await settle()
            with pytest.raises(LookupError, match="four"):
                await anext(reader)
            assert await anext(reader) == 6

    run_on(loop, main)


@ON_LOOPS
def test_room_that_nobody_takes_goes_on(loop: str) -> None:
    """Room given to a producer that is cancelled before it runs goes to the next, not to a plain put."""

    async def main() -> list[int]:
        stream = ExtendableStream[int](capacity=1)
        reader = aiter(stream)
        stream.put(0)
        async with asyncio.TaskGroup() as tasks:
            first, second = tasks.create_task(stream.put_wait(1)), tasks.create_task(stream.put_wait(2))
            await settle()
            received = [await anext(reader)]
            first.cancel()
            with pytest.raises(asyncio.QueueFull):
                stream.put(3)
            await settle()
            assert second.done()
            return [*received, await anext(reader)]

    assert run_on(loop, main) == [0, 2]


@ON_LOOPS
def test_coroutines_cancelled_before_they_begin(loop: str) -> None:
    """A coroutine whose task is cancelled before its first step is read as cancelled, not waited for."""

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            stream = CompletionStream[int](tasks=tasks)
            coroutine = value_after(1)
            stream.put(coroutine)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            with pytest.raises(ClosedError, match="was cancelled"):
                await anext(aiter(stream))
            coroutine.close()  # nobody has begun it

    run_on(loop, main)


OUTCOMES = st.lists(
    st.tuples(st.sampled_from(["value", "error", "cancelled"]), st.integers(0, 3)), min_size=7, max_size=7
)


@given(order=st.permutations(range(7)), outcomes=OUTCOMES, handled=st.booleans())
def test_completions_come_in_order(order: list[int], outcomes: list[tuple[str, int]], *, handled: bool) -> None:
    """Results are read as they complete, errors and cancellations in their turns, as told or raised."""
    expected: dict[str, type] = {"error": KeyError, "cancelled": ClosedError}

    async def main() -> list[object]:
        futures = [asyncio.get_running_loop().create_future() for _ in order]
        stream = CompletionStream[object](on_error=(lambda error: type(error)) if handled else None)
        for future in futures:
            stream.put(future)
        stream.stop()
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read_all(stream))
            for number in order:
                outcome, turns = outcomes[number]
                complete(futures[number], outcome, number)
                await settle(turns)
        assert len(stream) == 0
        return reading.result()

    assert run_on("asyncio", main) == [expected.get(outcomes[number][0], number) for number in order]


def complete(future: asyncio.Future[object], outcome: str, value: int) -> None:
    """Bring a future to that outcome."""
    if outcome == "value":
        future.set_result(value)
    elif outcome == "error":
        future.set_exception(KeyError(value))
    else:
        future.cancel()


async def read_all(stream: CompletionStream[object]) -> list[object]:
    """Read to the end, also through errors; return what was read, and the errors' types."""
    reader, got = aiter(stream), list[object]()
    while True:
        try:
            got.append(await anext(reader))
        except StopAsyncIteration:
            return got
        except (KeyError, ClosedError) as error:
            got.append(type(error))


async def value_after(turns: int) -> int:
    """Return the number after as many turns of the loop; raise if it is 3."""
    await settle(turns)
    if turns == 3:
        raise KeyError(turns)
    return turns


@ON_LOOPS
def test_coroutines_run_in_the_group(loop: str) -> None:
    """Coroutines are started in the caller's group, which never sees what they raise."""

    async def main() -> list[int]:
        async with asyncio.TaskGroup() as tasks:
            stream = CompletionStream[int](tasks=tasks, on_error=lambda error: -error.args[0])
            for turns in (9, 3, 6, 1):
                stream.put(value_after(turns))
            stream.stop()
            return [value async for value in stream]

    assert run_on(loop, main) == [1, -3, 6, 9]


@ON_LOOPS
def test_cancel_stops_what_the_stream_started(loop: str) -> None:
    """Cancelling the stream cancels its own coroutines, even before their first step, and nobody else's futures."""

    async def main() -> None:
        other = asyncio.get_running_loop().create_future()
        async with asyncio.TaskGroup() as tasks:
            stream = CompletionStream[int](tasks=tasks)
            stream.put(asyncio.Event().wait())
            stream.put(other)
            await settle()
            stream.put(asyncio.Event().wait())
            stream.cancel()
        assert not other.done()
        with pytest.raises(ClosedError):
            await anext(aiter(stream))

    run_on(loop, main)


def test_coroutines_need_a_group() -> None:
    """Without a group a coroutine is refused, and closed, so that Python doesn't warn of it; a future is in it once."""

    async def main() -> None:
        stream = CompletionStream[int]()
        with pytest.raises(UsageError, match="must be started in a task group"):
            stream.put(value_after(1))
        future = asyncio.get_running_loop().create_future()
        stream.put(future)
        with pytest.raises(UsageError, match="once"):
            stream.put(future)
        assert len(stream) == 1

    run_on("asyncio", main)


def test_the_end_can_not_be_forged() -> None:
    """A future that failed with StopAsyncIteration doesn't end the stream."""

    async def main() -> None:
        future = asyncio.get_running_loop().create_future()
        future.set_exception(StopAsyncIteration())
        stream = CompletionStream[int]()
        stream.put(future)
        with pytest.raises(RuntimeError, match="raised StopAsyncIteration"):
            await anext(aiter(stream))

    run_on("asyncio", main)


@ON_LOOPS
def test_forgotten_streams_are_silent(loop: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Streams with unread items, errors and failed futures are collected without a word."""

    async def main() -> None:
        plain = ExtendableStream[int]()
        plain.put(1)
        plain.throw(KeyError("never read"))
        completions = CompletionStream[int]()
        future = asyncio.get_running_loop().create_future()
        completions.put(future)
        future.set_exception(KeyError("never read"))
        reader = aiter(ExtendableStream[int]())
        await settle()
        del plain, completions, future, reader
        gc.collect()
        await settle()

    run_on(loop, main)
    assert capfd.readouterr() == ("", "")
