"""Stopped at its 1st, 2nd, 3rd … await, a pipeline ends, closes what it opened, and leaves nothing behind.

Every task of the pipeline's event loop is driven by a wrapper that counts its suspensions. At the n-th the loop is held
until `stop` has told it to end, so each run stops somewhere else, wherever that is.
"""

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import Any, TypeVarTuple, Unpack

import pytest

from penstock.errors import PenstockError
from penstock.pipeline import Merge, Pipe, Pipeline, PipelineBuilder
from tests.pipeline.running.reading import PATIENCE_SECONDS

Arguments = TypeVarTuple("Arguments")

MAX_STOPS = 40  # of the awaits of a run, so many are tried, spread evenly
HOLD_SECONDS = 0.5  # a safety net: `stop` that tells the loop nothing must not hold it for ever


class Held(Coroutine[Any, Any, Any]):
    """A coroutine that says each time that it waits."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], waits: Callable[[], None]) -> None:
        self._coroutine = coroutine
        self._waits = waits

    def send(self, value: Any, /) -> Any:
        """Go on."""
        waited = self._coroutine.send(value)
        self._waits()
        return waited

    def throw(self, *error: Any) -> Any:
        """Go on with an exception."""
        waited = self._coroutine.throw(*error)
        self._waits()
        return waited

    def close(self) -> None:
        """End it."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        """Wait for its end."""
        return self._coroutine.__await__()


class Stopping:
    """Counts the awaits of all tasks of new loops, and at the n-th has somebody stop the pipeline."""

    def __init__(self, stop_at: int) -> None:
        self._stop_at = stop_at
        self._told = threading.Event()
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
        """Stop it when it is time, from the thread that this is called in."""
        self._stopper = threading.get_ident()
        if self.reached.wait(PATIENCE_SECONDS):
            pipeline.stop(timeout=PATIENCE_SECONDS)
            self._told.set()

    def note_call(self) -> None:
        """Go on if it was the stopping thread that told the loop something."""
        if threading.get_ident() == self._stopper:
            self._told.set()

    def _new_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **keywords: Any) -> asyncio.Task[Any]:
        return asyncio.Task(Held(coroutine, self._count), loop=loop, **keywords)

    def _count(self) -> None:
        self.waits += 1
        if self.waits == self._stop_at:
            self.reached.set()
            self._told.wait(HOLD_SECONDS)


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
    """Counts what is opened, and what has been closed of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.opened = 0
        self.closed = 0

    def __enter__(self) -> None:
        """Open."""
        with self._lock:
            self.opened += 1

    def __exit__(self, *_: object) -> None:
        """Close."""
        with self._lock:
            self.closed += 1


class Source:
    """Numbers, plainly or asynchronously, from something that is open meanwhile."""

    def __init__(self, opened: Opened, count: int = 12) -> None:
        self._opened = opened
        self._count = count

    def __iter__(self) -> Iterator[int]:
        """Iterate."""
        with self._opened:
            yield from range(self._count)


class AsyncSource(Source):
    """Asynchronously, with something to wait for in the end, too."""

    async def __aiter__(self) -> AsyncIterator[int]:
        """Iterate."""
        with self._opened:
            try:
                for number in range(self._count):
                    await asyncio.sleep(0)
                    yield number
            finally:
                await asyncio.sleep(0)


def sync_function(opened: Opened) -> Any:
    """Return a function that opens something while it runs."""

    def apply(item: int) -> int:
        with opened:
            return item

    return apply


def async_function(opened: Opened) -> Any:
    """Return an async one, which waits in the end, too."""

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
    """Return an async generator, which waits in the end, too."""

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
    """Run three passes at most, stop at an await, and return how many awaits there were."""
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
    """Read passes until somebody stops the pipeline."""
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
    """Nothing hangs and nothing stays open, wherever the stop comes; the loop has nothing to complain about."""
    total = run_and_stop(monkeypatch, SHAPES[shape], stop_at=10**9)
    assert total > 20
    for stop_at in sorted({*range(1, 13), *range(1, total, max(total // MAX_STOPS, 1))}):
        run_and_stop(monkeypatch, SHAPES[shape], stop_at)
