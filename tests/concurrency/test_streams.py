"""Streams: one reader, ends, orders, and no output for streams that are not read."""

import asyncio
import gc
import pickle
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.concurrency import CompletionStream, ExtendableStream, Stream
from penstock.errors import ClosedError, UsageError
from tests.concurrency.loops import in_another_thread, on_loop, on_loops, settle
from tests.profiles import in_short


@on_loop
async def test_a_second_reader_is_refused() -> None:
    """While one task reads, a loop in another is refused, and so is a read while another one waits."""
    stream = ExtendableStream[int]()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(_read_all(stream), name="first")
        await settle()
        with pytest.raises(UsageError, match=r"one reader; got a loop in a second task, .*\(first\)"):
            await _read_all(stream)
        with pytest.raises(UsageError, match="one task at a time"):
            await anext(stream)
        stream.put(7)
        stream.stop()
    assert first.result() == [7]
    with pytest.raises(UsageError, match="got a loop after its end"):
        await _read_all(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


@on_loop
async def test_the_stream_is_its_own_iterator() -> None:
    """`aiter` returns the stream: a task continues where its loop was left, and another task where that one ended."""
    stream = ExtendableStream[int]()
    assert aiter(stream) is stream
    for item in range(6):
        stream.put(item)
    stream.stop()
    async for item in stream:
        if item == 1:
            break
    assert await anext(stream) == 2
    async with asyncio.TaskGroup() as tasks:
        assert await tasks.create_task(_next(stream)) == 3
    assert await _read_all(stream) == [4, 5]


async def _next(stream: Stream[Any, int]) -> int:
    return await anext(stream)


async def _read_all(stream: ExtendableStream[int]) -> list[int]:
    return [item async for item in stream]


def test_async_orders_are_refused() -> None:
    """A subclass whose plain methods are async or generators can't be made, mixins included."""

    def generate(_: object) -> Iterator[int]:
        yield 1

    async def generate_async(_: object) -> AsyncIterator[int]:
        yield 1

    async def wait(_: object) -> int:
        return 1

    with pytest.raises(UsageError, match=r"Async\._take must be a plain function.*an async function.*async def _next"):
        type("Async", (ExtendableStream,), {"_take": wait})
    for name in ("_store", "_take", "_held", "_is_ready", "_drop"):
        for function in (wait, generate, generate_async):
            mixin = type("Mixin", (), {name: function})
            for bases, own in (((ExtendableStream,), {name: function}), ((mixin, CompletionStream), {})):
                with pytest.raises(UsageError, match=rf"{name} must be a plain function"):
                    type("Made", bases, own)
    for function in (generate, generate_async):
        with pytest.raises(UsageError, match="_next must be an async function that returns one item"):
            type("Generated", (ExtendableStream,), {"_next": function})


class _Gated(ExtendableStream[int]):
    """A stream that waits for its gate before it takes an item; the item 0 raises StopAsyncIteration."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Semaphore(0)

    async def _next(self) -> int:
        await self.gate.acquire()
        if (item := self._take()) == 0:
            raise StopAsyncIteration
        return item * 10


@pytest.mark.parametrize("both", [False, True])
@on_loop
async def test_an_end_at_once_interrupts_next(*, both: bool) -> None:
    """An end that comes at once ends a wait in `_next`; a real cancellation at the same time is raised."""
    stream, error = _Gated(), KeyError("a")
    stream.put(1)
    caught: list[BaseException] = []

    async def read() -> None:
        try:
            await anext(stream)
        except (asyncio.CancelledError, KeyError) as raised:
            caught.append(raised)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == both
            await asyncio.sleep(0)  # nothing is left of the interrupt

    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read())
        await settle()
        stream.throw(error, now=True)
        if both:
            reading.cancel()
    assert len(stream) == 0
    if both:
        assert isinstance(caught[0], asyncio.CancelledError)
        with pytest.raises(KeyError) as raised:
            await anext(stream)
        assert raised.value is error
    else:
        assert caught == [error]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


class _Ending(ExtendableStream[int]):
    """A stream that ends itself during a read, or shields its wait from the end."""

    async def _next(self) -> int:
        if (item := self._take()) == 1:
            self.throw(KeyError("itself"), now=True)
        else:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if item == 3:
                    raise ValueError("cleaning up failed") from None
        return item


@pytest.mark.parametrize(("item", "error"), [(1, KeyError), (2, asyncio.CancelledError), (3, ValueError)])
@on_loop
async def test_ends_within_next(item: int, error: type[BaseException]) -> None:
    """However `_next` returns or raises when the stream ends, the read gives no item, and its task isn't cancelled."""
    stream = _Ending()
    stream.put(item)
    async with asyncio.TaskGroup() as tasks:

        async def read() -> None:
            with pytest.raises(error):
                await anext(stream)
            await asyncio.sleep(0)
            if error is ValueError:
                with pytest.raises(asyncio.CancelledError, match="the stream was cancelled"):
                    await anext(stream)

        reading = tasks.create_task(read())
        await settle()
        stream.cancel()
    assert not reading.cancelled()


@on_loop
async def test_the_end_can_not_be_forged() -> None:
    """StopAsyncIteration from `_next`, or of a future that failed with it, doesn't end the stream."""
    future = asyncio.get_running_loop().create_future()
    future.set_exception(StopAsyncIteration())
    completions = CompletionStream[int]()
    completions.put(future)
    with pytest.raises(RuntimeError, match="raised StopAsyncIteration"):
        await anext(aiter(completions))
    stream = _Gated()
    stream.put(0)
    stream.put(1)
    stream.gate.release()
    stream.gate.release()
    with pytest.raises(RuntimeError, match=r"must not raise StopAsyncIteration; call stop\(\)"):
        await anext(stream)
    assert await anext(stream) == 10


@on_loops
async def test_items_from_another_thread() -> None:
    """The documented way to put from another thread delivers in order and wakes the reader."""
    stream, running = ExtendableStream[int](), asyncio.get_running_loop()

    def produce() -> None:
        for item in range(100):
            running.call_soon_threadsafe(stream.put, item)
        running.call_soon_threadsafe(stream.stop)

    thread = threading.Thread(target=produce)
    thread.start()
    received = [item async for item in stream]
    thread.join()
    assert received == [*range(100)]


@on_loops
async def test_another_loop_is_refused() -> None:
    """While a loop uses a stream, a call from another loop, or from a thread without one, is refused: it wakes none."""
    stream = ExtendableStream[int]()
    async with asyncio.TaskGroup() as tasks:
        reader = tasks.create_task(_read_all(stream))
        await settle()
        for call in (lambda: stream.put(1), stream.stop, stream.cancel):
            with pytest.raises(UsageError, match="got a call from a thread without one"):
                await asyncio.to_thread(call)
        with pytest.raises(UsageError, match="got a call from another loop"):
            await in_another_thread(stream.put_wait(1))
        stream.put(2)
        stream.stop()
    assert reader.result() == [2]


@on_loops
async def test_another_loop_reads_a_stream_that_has_ended() -> None:
    """A loop can't read a stream that another one uses; once it has ended, any loop can."""
    stream = ExtendableStream[int]()
    stream.put(1)
    with pytest.raises(UsageError, match="got a call from another loop"):
        await in_another_thread(_read_all(stream))
    stream.stop()
    received: list[int] = []

    async def read() -> None:
        received.extend(await _read_all(stream))

    await in_another_thread(read())
    assert received == [1]


@on_loops
async def test_another_loop_may_not_wait_for_a_job() -> None:
    """A stream that has ended, but whose job hasn't completed, can't wake another loop; once it has, that may read."""
    stream = CompletionStream[int]()
    future = asyncio.get_running_loop().create_future()
    stream.put(future)
    stream.stop()
    with pytest.raises(UsageError, match="got a call from another loop"):
        await in_another_thread(_next(stream))
    future.set_result(1)
    await settle()

    async def read() -> None:
        assert await _next(stream) == 1
        stream.cancel()  # the loop that reads it now may do so

    await in_another_thread(read())


@on_loops
async def test_a_stream_that_a_loop_has_filled_is_pickled() -> None:
    """It is read by the loop of another process."""
    stream = ExtendableStream[int]()
    stream.put(1)
    stream.stop()
    assert await _read_all(pickle.loads(pickle.dumps(stream))) == [1]


def test_loops_use_a_stream_one_after_the_other() -> None:
    """Once a loop has ended, another one may use its stream."""
    stream = ExtendableStream[int]()

    async def put() -> None:
        stream.put(1)

    asyncio.run(put())
    assert asyncio.run(_next(stream)) == 1


def test_wrong_arguments_are_refused() -> None:
    """A capacity below 1 is refused, and so is an error that would look like the end, and a second one."""
    with pytest.raises(UsageError, match="capacity must be at least 1"):
        ExtendableStream[int](capacity=0)
    stream = ExtendableStream[int]()
    for error in (StopIteration(), StopAsyncIteration()):
        with pytest.raises(UsageError, match="must not be one that means an end"):
            stream.throw(error)
    stream.throw(KeyError("a"))
    with pytest.raises(ClosedError):
        stream.throw(KeyError("b"))


class _Refusing(Stream[int, int]):
    """A stream of even numbers that refuses odd ones, and raises for 4."""

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


@on_loop
async def test_errors_of_an_order_are_raised() -> None:
    """An exception of `_store` is raised by the put, whose room goes to the next; one of `_take` by the read."""
    stream = _Refusing(capacity=1)
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


class _Late(_Refusing):
    """Such a stream, whose items are read only after an event that never comes."""

    async def _next(self) -> int:
        await asyncio.Event().wait()
        return self._take()


@on_loop
async def test_an_error_of_an_order_holds_back_no_end() -> None:
    """If `_take` raises for an item that is dropped, the caller gets that error, and reader and producers the end."""
    stream = _Late(capacity=1)
    stream.put(4)
    async with asyncio.TaskGroup() as tasks:

        async def read() -> None:
            with pytest.raises(OSError, match="gone"):
                await anext(stream)

        async def put() -> None:
            with pytest.raises(ClosedError):
                await stream.put_wait(6)

        tasks.create_task(read())
        tasks.create_task(put())
        await settle()
        with pytest.raises(LookupError, match="four"):
            stream.throw(OSError("gone"), now=True)


@on_loop
async def test_room_that_is_not_taken_passes_on() -> None:
    """Room of a producer that is cancelled before it runs goes to the next producer, not to a plain put."""
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
        assert [*received, await anext(reader)] == [0, 2]


@on_loop
async def test_coroutines_cancelled_before_they_begin() -> None:
    """A coroutine whose task is cancelled before its first step is read as cancelled."""
    async with asyncio.TaskGroup() as tasks:
        stream = CompletionStream[int](tasks=tasks)
        coroutine = value_after(1)
        stream.put(coroutine)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        with pytest.raises(ClosedError, match="was cancelled"):
            await anext(aiter(stream))
        coroutine.close()  # it was not started


OUTCOMES = st.lists(
    st.tuples(st.sampled_from(["value", "error", "cancelled"]), st.integers(0, 3)), min_size=7, max_size=7
)


@in_short(10)
@given(order=st.permutations(range(7)), outcomes=OUTCOMES, handled=st.booleans())
@on_loop
async def test_completions_are_read_in_order(
    order: list[int], outcomes: list[tuple[str, int]], *, handled: bool
) -> None:
    """Results are read as they complete; errors and cancellations, too, by `on_error` or raised."""
    expected: dict[str, type] = {"error": KeyError, "cancelled": ClosedError}
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
    assert reading.result() == [expected.get(outcomes[number][0], number) for number in order]


def complete(future: asyncio.Future[object], outcome: str, value: int) -> None:
    """Set a future to that outcome."""
    if outcome == "value":
        future.set_result(value)
    elif outcome == "error":
        future.set_exception(KeyError(value))
    else:
        future.cancel()


async def read_all(stream: CompletionStream[object]) -> list[object]:
    """Read to the end, and continue after errors; return the items, and the errors' types."""
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


@on_loop
async def test_coroutines_run_in_the_group() -> None:
    """Coroutines are started in the caller's group, which never sees their exceptions."""
    async with asyncio.TaskGroup() as tasks:
        stream = CompletionStream[int](tasks=tasks, on_error=lambda error: -error.args[0])
        for turns in (9, 3, 6, 1):
            stream.put(value_after(turns))
        stream.stop()
        assert [value async for value in stream] == [1, -3, 6, 9]


@on_loop
async def test_cancel_stops_tasks_that_the_stream_started() -> None:
    """Cancelling the stream cancels its own coroutines, even before their first step, and no future of the user's."""
    other = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as tasks:
        stream = CompletionStream[int](tasks=tasks)
        stream.put(asyncio.Event().wait())
        stream.put(other)
        await settle()
        stream.put(asyncio.Event().wait())
        stream.cancel()
    assert not other.done()
    with pytest.raises(asyncio.CancelledError):
        await anext(stream)


@on_loop
async def test_coroutines_need_a_group() -> None:
    """Without a group a coroutine is refused and closed, so that Python doesn't warn; a future can be put once."""
    stream = CompletionStream[int]()
    with pytest.raises(UsageError, match="must be started in a task group"):
        stream.put(value_after(1))
    future = asyncio.get_running_loop().create_future()
    stream.put(future)
    with pytest.raises(UsageError, match="once"):
        stream.put(future)
    assert len(stream) == 1


@on_loop
async def test_forgotten_streams_are_silent(capfd: pytest.CaptureFixture[str]) -> None:
    """Streams with unread items, errors and failed futures are collected without a warning or log line."""
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
    assert capfd.readouterr() == ("", "")
