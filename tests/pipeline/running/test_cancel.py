"""Stopped at its 1st, 2nd, 3rd … step, a pipeline ends, closes everything it opened, and leaks nothing.

The pipeline's event loop counts the steps of tasks that it schedules. At the n-th, it is held until `stop` has been
called, so each run stops at another point.
"""

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVarTuple, Unpack

import pytest

from penstock.errors import PenstockError
from penstock.pipeline import Merge, Pipe, Pipeline, PipelineBuilder
from tests.pipeline.running.reading import PATIENCE_SECONDS, Gate, gate, over
from tests.profiles import IS_LONG

Arguments = TypeVarTuple("Arguments")

MAX_STOPS = 24 if IS_LONG else 8  # how many of a run's steps are tried, spread evenly
HOLD_SECONDS = 0.5  # a limit for a `stop` that doesn't call the loop


class _Loop(asyncio.SelectorEventLoop):
    """A loop that counts the steps that it schedules; at the n-th it waits until another thread has called `stop`."""

    def __init__(self, stopping: "_Stopping") -> None:
        self._counted_by = stopping
        super().__init__()
        self.set_exception_handler(lambda _, context: stopping.complaints.append(context))

    def call_soon(
        self,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = super().call_soon(callback, *args, context=context)
        self._counted_by.count()
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = super().call_soon_threadsafe(callback, *args, context=context)
        self._counted_by.note_call()
        return handle


class _Stopping:
    """Counts the steps of new loops, and lets another thread stop the pipeline at the n-th."""

    def __init__(self, stop_at: int) -> None:
        self._stop_at = stop_at
        self._requested = threading.Event()
        self._stopper = 0
        self.steps = 0
        self.reached = threading.Event()
        self.complaints: list[dict[str, Any]] = []

    def stop_when_reached(self, pipeline: Pipeline) -> None:
        """Stop the pipeline at the n-th step, in the calling thread."""
        self._stopper = threading.get_ident()
        if self.reached.wait(PATIENCE_SECONDS):
            pipeline.stop(timeout=PATIENCE_SECONDS)
            self._requested.set()

    def note_call(self) -> None:
        """Release the loop if the stopping thread has called it."""
        if threading.get_ident() == self._stopper:
            self._requested.set()

    def count(self) -> None:
        self.steps += 1
        if self.steps == self._stop_at:
            self.reached.set()
            self._requested.wait(HOLD_SECONDS)


class _Opened:
    """Functions and sources that are open while they run; counts how often one was opened, and how often closed."""

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

    def sync(self, item: int) -> int:
        with self:
            return item

    async def awaits(self, item: int) -> int:
        with self:
            try:
                await asyncio.sleep(0)
            finally:
                await asyncio.sleep(0)
            return item

    def generate(self, item: int) -> Iterator[int]:
        with self:
            yield item
            yield item

    async def generate_async(self, item: int) -> AsyncIterator[int]:
        with self:
            try:
                yield item
                await asyncio.sleep(0)
                yield item
            finally:
                await asyncio.sleep(0)


class _Source:
    def __init__(self, opened: _Opened, count: int = 12) -> None:
        self.opened = opened
        self.count = count

    def __iter__(self) -> Iterator[int]:
        with self.opened:
            yield from range(self.count)


class _AsyncSource(_Source):
    async def __aiter__(self) -> AsyncIterator[int]:
        with self.opened:
            try:
                for number in range(self.count):
                    await asyncio.sleep(0)
                    yield number
            finally:
                await asyncio.sleep(0)


def _merged(opened: _Opened) -> PipelineBuilder:
    parts = [over(kind(opened)).pipe(opened.awaits).add_sink(1).get_config() for kind in (_Source, _AsyncSource)]
    return over(Merge(tuple(parts), order="turns")).pipe(opened.generate)


SHAPES: dict[str, Callable[[_Opened], PipelineBuilder]] = {
    "sync": lambda opened: (
        over(_Source(opened)).pipe(opened.sync, concurrency=2).pipe(opened.sync, concurrency=2, output_order="input")
    ),
    "async": lambda opened: (
        over(_AsyncSource(opened))
        .pipe(opened.awaits, concurrency=3)
        .pipe(opened.awaits, concurrency=3, output_order="input")
        .aggregate(5)
        .disaggregate()
    ),
    "generators": lambda opened: (
        over(_AsyncSource(opened))
        .pipe(opened.generate, concurrency=2)
        .pipe(opened.generate_async, concurrency=2)
        .aggregate(4)
    ),
    "paths": lambda opened: over(_Source(opened)).path_variants(
        lambda item: item % 2, [[Pipe(opened.awaits)], [Pipe(opened.sync)]]
    ),
    "merged": _merged,
    "continuous": lambda opened: (
        over(_AsyncSource(opened, 4), continuous=True).pipe(opened.awaits, concurrency=2).pipe(opened.generate_async)
    ),
}


def _run_and_stop(monkeypatch: pytest.MonkeyPatch, build: Callable[[_Opened], PipelineBuilder], stop_at: int) -> int:
    """Run at most three passes, stop at a step, and return how many steps there were."""
    stopping, opened = _Stopping(stop_at), _Opened()
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: _Loop(stopping))
    monkeypatch.setattr(asyncio.events, "new_event_loop", lambda: _Loop(stopping))
    pipeline = build(opened).add_sink(2).build(num_threads=2)
    thread = threading.Thread(target=stopping.stop_when_reached, args=(pipeline,))
    thread.start()
    try:
        _read_until_stopped(pipeline, stopping)
    finally:
        stopping.reached.set()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert not stopping.complaints
    assert opened.opened == opened.closed
    assert opened.opened > 0 or stop_at < 10
    return stopping.steps


def _read_until_stopped(pipeline: Pipeline, stopping: _Stopping) -> None:
    for _ in range(3):
        try:
            for _ in pipeline.get_iterator(timeout=PATIENCE_SECONDS):
                pass
        except PenstockError:
            assert stopping.reached.is_set()
        if stopping.reached.is_set():
            return


@pytest.mark.longer
@pytest.mark.parametrize("shape", SHAPES)
def test_stopped_at_every_step(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the stop comes, nothing hangs, nothing stays open, and the loop reports no error."""
    total = _run_and_stop(monkeypatch, SHAPES[shape], stop_at=10**9)
    assert total > 20
    for stop_at in sorted({*range(1, 10), *range(1, total, max(total // MAX_STOPS, 1))}):
        _run_and_stop(monkeypatch, SHAPES[shape], stop_at)


class _Endless(Iterator[int]):
    def __init__(self, opened: _Opened) -> None:
        self._opened = opened
        opened.__enter__()

    def __next__(self) -> int:
        return 0

    def close(self) -> None:
        self._opened.__exit__()


class _SlowlyOpened:
    def __init__(self, opened: _Opened, opening: Gate) -> None:
        self._opened = opened
        self._opening = opening

    def __iter__(self) -> Iterator[int]:
        self._opening.pass_through()
        return _Endless(self._opened)


@pytest.mark.parametrize("as_item", [False, True])
def test_stopped_while_an_iterator_is_opened(*, as_item: bool) -> None:
    """An iterator, of a source or of an item, that is made while the pipeline stops is closed."""
    opened = _Opened()
    with gate() as opening:
        slow = _SlowlyOpened(opened, opening)
        builder = over([slow]).disaggregate() if as_item else over(slow)
        pipeline = builder.add_sink().build(num_threads=1)
        pipeline.start()
        opening.wait_until(lambda now: now.inside == 1)
        pipeline.stop(wait=False)
        opening.open()
        pipeline.stop(timeout=PATIENCE_SECONDS)
    assert opened.opened == opened.closed == 1
