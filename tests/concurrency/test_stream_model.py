"""Random schedules of puts, ends and reads against a plain model: a list, an end, and a reader that may wait."""

import asyncio
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.concurrency import ExtendableStream
from penstock.errors import ClosedError
from tests.concurrency.loops import on_loop, settle
from tests.profiles import in_short

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ACTIONS = st.lists(
    st.sampled_from(
        ["put", "put_wait", "read"] * 6
        + ["cancel read", "cancel producer"] * 2
        + ["stop", "throw", "throw now", "cancel"]
    ),
    max_size=40,
)


class _Model:
    """A model of a stream whose calls end at once."""

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.items: list[int] = []
        self.producers: list[int] = []  # items that wait for room
        self.end: str | None = None
        self.end_read = False
        self.reads: list[str] = []  # the outcomes of finished reads
        self.waiting = False
        self.puts: list[str] = []  # the outcomes of finished puts

    def put(self, item: int) -> None:
        if self.end is not None:
            self.puts.append(f"{item} closed")
        elif self.is_full():
            self.puts.append(f"{item} full")
        else:
            self.puts.append(f"{item} put")
            self.items.append(item)
        self.go_on()

    def put_wait(self, item: int) -> None:
        if self.end is None and self.is_full():
            self.producers.append(item)
        else:
            self.put(item)

    def finish(self, end: str, *, now: bool) -> None:
        if end == "cancel" and self.end_read:
            return
        if self.end is None or end == "cancel":
            self.end = end
            self.puts += [f"{item} closed" for item in self.producers]
            self.producers = []
            if now:
                self.items = []
        self.go_on()

    def go_on(self) -> None:
        while True:
            if self.waiting and self.items:
                self.waiting = False
                self.reads.append(str(self.items.pop(0)))
            elif self.waiting and self.end is not None:
                self.waiting = False
                self.reads.append("stop" if self.end_read else self.end)
                self.end_read = True
            elif self.producers and not self.is_full():
                item = self.producers.pop(0)
                self.puts.append(f"{item} put")
                self.items.append(item)
            else:
                return

    def is_full(self) -> bool:
        return self.capacity is not None and len(self.items) >= self.capacity


class _Real:
    """The real stream, and tasks that read from it and wait for room."""

    def __init__(self, stream: ExtendableStream[int], tasks: asyncio.TaskGroup) -> None:
        self.stream = stream
        self.reader: AsyncIterator[int] = aiter(self.stream)
        self.tasks = tasks
        self.reads: list[str] = []
        self.puts: list[str] = []
        self.refused_ends = 0
        self.reading: asyncio.Task[None] | None = None
        self.producing: list[tuple[int, asyncio.Task[None]]] = []

    def put(self, item: int) -> None:
        try:
            self.stream.put(item)
            self.puts.append(f"{item} put")
        except ClosedError:
            self.puts.append(f"{item} closed")
        except asyncio.QueueFull:
            self.puts.append(f"{item} full")

    def put_wait(self, item: int) -> None:
        async def put() -> None:
            try:
                await self.stream.put_wait(item)
                self.puts.append(f"{item} put")
            except ClosedError:
                self.puts.append(f"{item} closed")

        self.producing.append((item, self.tasks.create_task(put())))

    def read(self) -> None:
        async def read() -> None:
            try:
                self.reads.append(str(await anext(self.reader)))
            except StopAsyncIteration:
                self.reads.append("stop")
            except KeyError:
                self.reads.append("throw")
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                self.reads.append("cancel")

        self.reading = self.tasks.create_task(read())

    def finish(self, end: str, *, now: bool) -> None:
        if end == "stop":
            self.stream.stop()
        elif end == "cancel":
            self.stream.cancel()
        else:
            try:
                self.stream.throw(KeyError("thrown"), now=now)
            except ClosedError:
                self.refused_ends += 1


class _Waiting(ExtendableStream[int]):
    """A stream that waits before it takes an item."""

    async def _next(self) -> int:
        await asyncio.sleep(0)
        return self._take()


@in_short(10)
@given(actions=ACTIONS, capacity=st.sampled_from([None, 1, 2, 3]), waits=st.booleans())
@on_loop
async def test_as_the_model(actions: list[str], capacity: int | None, *, waits: bool) -> None:
    """For any order of calls, reads and puts have the outcomes of the model, and no item is lost or read twice."""
    model = _Model(capacity)
    async with asyncio.TaskGroup() as tasks:
        real = _Real((_Waiting if waits else ExtendableStream[int])(capacity=capacity), tasks)
        for number, action in enumerate(actions):
            await act(model, real, action, number)
            assert (real.reads, real.puts) == (model.reads, model.puts), action
            assert len(real.stream) == len(model.items)
        real.finish("cancel", now=True)


async def act(model: _Model, real: _Real, action: str, number: int) -> None:
    """Call one method of both, and let all tasks run until they wait."""
    if action == "put":
        model.put(number)
        real.put(number)
    elif action == "put_wait":
        model.put_wait(number)
        real.put_wait(number)
    elif action == "read" and not model.waiting:
        model.waiting = True
        model.go_on()
        real.read()
    elif action == "cancel read" and real.reading is not None:
        model.waiting = False
        real.reading.cancel()
    elif action == "cancel producer" and model.producers:
        item = model.producers.pop(number % len(model.producers))
        next(task for other, task in real.producing if other == item).cancel()
    elif action in ("stop", "throw", "throw now", "cancel"):
        now = action in ("throw now", "cancel")
        model.finish(action.removesuffix(" now"), now=now)
        real.finish(action.removesuffix(" now"), now=now)
    await settle()


@in_short(10)
@given(data=st.data(), count=st.integers(0, 12), capacity=st.sampled_from([None, 1, 3]))
@on_loop
async def test_cancelled_anywhere_loses_nothing(data: Any, count: int, capacity: int | None) -> None:
    """A reader and a producer that are cancelled at random turns of the loop, and try again, lose no item."""
    cancels: list[bool] = data.draw(st.lists(st.booleans(), max_size=80))
    stream = ExtendableStream[int](capacity=capacity)
    reader = aiter(stream)
    received: list[int] = []
    sent: list[int] = []

    async def receive() -> None:
        async for item in reader:
            received.append(item)  # noqa: PERF401 - items received before a cancellation are kept

    async def send() -> None:
        while len(sent) < count:
            await stream.put_wait(len(sent))
            sent.append(len(sent))
        stream.stop()

    async with asyncio.TaskGroup() as tasks:
        running = [(receive, tasks.create_task(receive())), (send, tasks.create_task(send()))]
        for reads in cancels:
            await asyncio.sleep(0)
            begin, task = running[not reads]
            if not task.done():
                task.cancel()
                running[not reads] = begin, tasks.create_task(begin())
    assert received == [*range(count)]
