"""Stopped at its 1st, 2nd, 3rd … await, a pipeline ends, closes everything it opened, and leaks nothing.

A wrapper drives every task of the pipeline's event loop and counts its suspensions. At the n-th, the loop is held until
`stop` has been called, so each run stops at another point.
"""

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import Any, TypeVarTuple, Unpack

import pytest

from penstock.errors import PenstockError
from penstock.pipeline import Merge, Pipe, Pipeline, PipelineBuilder
from tests.pipeline.running.reading import PATIENCE_SECONDS, Gate, gate

Arguments = TypeVarTuple("Arguments")

MAX_STOPS = 40  # how many of a run's awaits are tried, spread evenly
HOLD_SECONDS = 0.5  # a limit for a `stop` that doesn't call the loop


class Held(Coroutine[Any, Any, Any]):
    """A coroutine that calls a function each time that it is suspended."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], waits: Callable[[], None]) -> None:
        self._coroutine = coroutine
        self._waits = waits

    def send(self, value: Any, /) -> Any:
        """Resume."""
        waited = self._coroutine.send(value)
        self._waits()
        return waited

    def throw(self, *error: Any) -> Any:
        """Resume with an exception."""
        waited = self._coroutine.throw(*error)
        self._waits()
        return waited

    def close(self) -> None:
        """Close the coroutine."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()


class Stopping:
    """Counts the awaits of all tasks of new loops, and lets another thread stop the pipeline at the n-th."""

    def __init__(self, stop_at: int) -> None:
        self._stop_at = stop_at
        self._requested = threading.Event()
        self._stopper = 0
        self.waits = 0
        self.reached = threading.Event()
        self.complaints: list[dict[str, Any]] = []

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """Return a loop whose tasks are counted."""
        loop = _Loop(self)
        loop.set_task_factory(self._new_task)
        loop.set_exception_handler(lambda _, context: self.complaints.append(context))
        return loop

    def stop_when_reached(self, pipeline: Pipeline) -> None:
        """Stop the pipeline at the n-th await, in the calling thread."""
        self._stopper = threading.get_ident()
        if self.reached.wait(PATIENCE_SECONDS):
            pipeline.stop(timeout=PATIENCE_SECONDS)
            self._requested.set()

    def note_call(self) -> None:
        """Release the loop if the stopping thread has called it."""
        if threading.get_ident() == self._stopper:
            self._requested.set()

    def _new_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **keywords: Any) -> asyncio.Task[Any]:
        return asyncio.Task(Held(coroutine, self._count), loop=loop, **keywords)

    def _count(self) -> None:
        self.waits += 1
        if self.waits == self._stop_at:
            self.reached.set()
            self._requested.wait(HOLD_SECONDS)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, stopping: Stopping) -> None:
        super().__init__()
        self._counted_by = stopping

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = super().call_soon_threadsafe(callback, *args, context=context)
        self._counted_by.note_call()
        return handle


class Opened:
    """Counts how often something was opened, and how often it was closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.opened = 0
        self.closed = 0

    def __enter__(self) -> None:
        with self._lock:
            self.opened += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.closed += 1


class Source:
    """A source of numbers that is open while it is iterated over."""

    def __init__(self, opened: Opened, count: int = 12) -> None:
        self._opened = opened
        self._count = count

    def __iter__(self) -> Iterator[int]:
        with self._opened:
            yield from range(self._count)


class AsyncSource(Source):
    """An async source of numbers, which also awaits at its end."""

    async def __aiter__(self) -> AsyncIterator[int]:
        with self._opened:
            try:
                for number in range(self._count):
                    await asyncio.sleep(0)
                    yield number
            finally:
                await asyncio.sleep(0)


def sync_function(opened: Opened) -> Any:
    """Return a function that is open while it runs."""

    def apply(item: int) -> int:
        with opened:
            return item

    return apply


def async_function(opened: Opened) -> Any:
    """Return an async function, which also awaits at its end."""

    async def apply(item: int) -> int:
        with opened:
            try:
                await asyncio.sleep(0)
            finally:
                await asyncio.sleep(0)
            return item

    return apply


def generator(opened: Opened) -> Any:
    """Return a generator."""

    def generate(item: int) -> Iterator[int]:
        with opened:
            yield item
            yield item

    return generate


def async_generator(opened: Opened) -> Any:
    """Return an async generator, which also awaits at its end."""

    async def generate(item: int) -> AsyncIterator[int]:
        with opened:
            try:
                yield item
                await asyncio.sleep(0)
                yield item
            finally:
                await asyncio.sleep(0)

    return generate


def merged(opened: Opened) -> Any:
    """Return two pipelines merged into one source."""
    builders = [PipelineBuilder().add_source(kind(opened)) for kind in (Source, AsyncSource)]
    parts = [builder.pipe(async_function(opened)).add_sink(1).get_config() for builder in builders]
    return Merge(tuple(parts), order="turns")


SHAPES: dict[str, Callable[[Opened], PipelineBuilder]] = {
    "sync": lambda opened: (
        PipelineBuilder().add_source(Source(opened)).pipe(sync_function(opened), concurrency=2).pipe(abs)
    ),
    "sync ordered": lambda opened: (
        PipelineBuilder().add_source(Source(opened)).pipe(sync_function(opened), concurrency=2, output_order="input")
    ),
    "async": lambda opened: (
        PipelineBuilder()
        .add_source(AsyncSource(opened))
        .pipe(async_function(opened), concurrency=3)
        .pipe(async_function(opened))
    ),
    "async ordered": lambda opened: (
        PipelineBuilder()
        .add_source(AsyncSource(opened))
        .pipe(async_function(opened), concurrency=3, output_order="input")
        .aggregate(5)
        .disaggregate()
    ),
    "generators": lambda opened: (
        PipelineBuilder()
        .add_source(AsyncSource(opened))
        .pipe(generator(opened), concurrency=2)
        .pipe(async_generator(opened), concurrency=2)
        .aggregate(4)
    ),
    "paths": lambda opened: (
        PipelineBuilder()
        .add_source(Source(opened))
        .path_variants(lambda item: item % 2, [[Pipe(async_function(opened))], [Pipe(sync_function(opened))]])
    ),
    "merged": lambda opened: PipelineBuilder().add_source(merged(opened)).pipe(generator(opened)),
    "continuous": lambda opened: (
        PipelineBuilder()
        .add_source(AsyncSource(opened, count=4), continuous=True)
        .pipe(async_function(opened), concurrency=2)
        .pipe(async_generator(opened))
    ),
}


def run_and_stop(monkeypatch: pytest.MonkeyPatch, build: Callable[[Opened], PipelineBuilder], stop_at: int) -> int:
    """Run at most three passes, stop at an await, and return how many awaits there were."""
    stopping, opened = Stopping(stop_at), Opened()
    monkeypatch.setattr(asyncio, "new_event_loop", stopping.new_loop)
    monkeypatch.setattr(asyncio.events, "new_event_loop", stopping.new_loop)
    pipeline = build(opened).add_sink(2).build(num_threads=2)
    thread = threading.Thread(target=stopping.stop_when_reached, args=(pipeline,))
    thread.start()
    try:
        read_until_stopped(pipeline, stopping)
    finally:
        stopping.reached.set()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert not stopping.complaints
    assert opened.opened == opened.closed
    assert opened.opened > 0 or stop_at < 10
    return stopping.waits


def read_until_stopped(pipeline: Pipeline, stopping: Stopping) -> None:
    """Read passes until the pipeline is stopped."""
    for _ in range(3):
        try:
            for _ in pipeline.get_iterator(timeout=PATIENCE_SECONDS):
                pass
        except PenstockError:
            assert stopping.reached.is_set()
        if stopping.reached.is_set():
            return


@pytest.mark.parametrize("shape", SHAPES)
def test_stopped_at_every_await(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the stop comes, nothing hangs, nothing stays open, and the loop reports no error."""
    total = run_and_stop(monkeypatch, SHAPES[shape], stop_at=10**9)
    assert total > 20
    for stop_at in sorted({*range(1, 13), *range(1, total, max(total // MAX_STOPS, 1))}):
        run_and_stop(monkeypatch, SHAPES[shape], stop_at)


class Unclosed(Iterator[int]):
    """An iterator without end, which is open until its `close` is called."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        opened.__enter__()

    def __next__(self) -> int:
        return 0

    def close(self) -> None:
        """Close it."""
        self._opened.__exit__()


class SlowlyOpened:
    """An iterable that opens its iterator when a gate is open."""

    def __init__(self, opened: Opened, opening: Gate) -> None:
        self._opened = opened
        self._opening = opening

    def __iter__(self) -> Iterator[int]:
        self._opening.pass_through()
        return Unclosed(self._opened)


def as_source(iterable: SlowlyOpened) -> PipelineBuilder:
    """Return a pipeline that iterates over its source."""
    return PipelineBuilder().add_source(iterable)


def as_item(iterable: SlowlyOpened) -> PipelineBuilder:
    """Return a pipeline that iterates over an item."""
    return PipelineBuilder().add_source([iterable]).disaggregate()


@pytest.mark.parametrize("build", [as_source, as_item])
def test_stopped_while_an_iterator_is_opened(build: Callable[[SlowlyOpened], PipelineBuilder]) -> None:
    """An iterator that is made while the pipeline stops is closed."""
    opened = Opened()
    with gate() as opening:
        pipeline = build(SlowlyOpened(opened, opening)).add_sink().build(num_threads=1)
        pipeline.start()
        opening.wait_until(lambda now: now.inside == 1)
        pipeline.stop(wait=False)
        opening.open()
        pipeline.stop(timeout=PATIENCE_SECONDS)
    assert opened.opened == opened.closed == 1
