"""Async code that cancels its own task, and async code that catches its cancellation and goes on.

The first is a failure, since the pipeline was not stopped, and no item is lost. The second, such as a retry with a bare
`except`, doesn't keep a run going: a cancellation is sent to a task once, and a task that goes on would wait for room
that no reader makes.
"""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Literal

import pytest

from penstock.pipeline import Pipeline, PipelineBuilder, StageEnded
from tests.pipeline.meaning.graphs import BrokenError
from tests.pipeline.running.reading import PATIENCE_SECONDS, read_by_for

Way = Literal["now", "at the next await", "swallowed"]
CALLS = ["op", "ordered op", "generator"]
OWN = pytest.mark.parametrize(("kind", "concurrency"), [*itertools.product(CALLS, [1, 2]), ("source", 1)])
EACH_KIND = pytest.mark.parametrize("kind", [*CALLS, "source", "source that ends", "continuous source"])


async def _cancel_at_three(number: int, way: Way) -> int:
    await asyncio.sleep(0)
    if number == 3:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.sleep(0) if way != "at the next await" else None
        except asyncio.CancelledError:
            if way == "now":
                raise
    return number


def _cancelling(kind: str, way: Way, concurrency: int) -> PipelineBuilder:
    async def call(number: int) -> int:
        return await _cancel_at_three(number, way)

    async def generate(number: int) -> AsyncIterator[int]:
        yield await call(number)

    class Numbers:
        async def __aiter__(self) -> AsyncIterator[int]:
            for number in range(8):
                yield await call(number)

    if kind == "source":
        return PipelineBuilder().add_source(Numbers())
    builder = PipelineBuilder().add_source(range(8))
    if kind == "generator":
        return builder.pipe(generate, concurrency=concurrency, name="op")
    order: Any = "input" if kind == "ordered op" else "completion"
    return builder.pipe(call, concurrency=concurrency, output_order=order, name="op")


@OWN
@pytest.mark.parametrize("way", ["now", "at the next await"])
def test_a_task_that_cancels_itself(kind: str, way: Way, concurrency: int) -> None:
    """The pass ends with a failure, whatever its limit is."""
    with _cancelling(kind, way, concurrency).add_sink().build(num_threads=1, max_failures=-1).auto_stop() as pipeline:
        found = read_by_for(pipeline)
    assert found.failure is not None
    assert found.failure.stage == ("source" if kind == "source" else "op")
    assert isinstance(found.failure.__cause__, asyncio.CancelledError)
    assert {*found.items} <= {0, 1, 2, 3, 4, 5}
    if way == "now" and kind != "source":
        assert found.failure.item == "3"


@OWN
def test_a_task_that_swallows_its_own_cancellation(kind: str, concurrency: int) -> None:
    """A task that cancels itself and goes on doesn't end the pass; nor does it keep a later failure or stop waiting."""
    with _cancelling(kind, "swallowed", concurrency).add_sink().build(num_threads=1).auto_stop() as pipeline:
        assert sorted(pipeline.get_iterator(timeout=PATIENCE_SECONDS)) == [*range(8)]
    refusing = _cancelling(kind, "swallowed", concurrency).pipe(lambda number: 1 // (5 - number)).add_sink(1)
    with refusing.build(num_threads=1).auto_stop(timeout=PATIENCE_SECONDS) as pipeline:
        assert read_by_for(pipeline).failure is not None


def test_a_closing_that_raises() -> None:
    """An exception of `aclose` at the end of an async source is ignored, as that of `close` of another source is."""

    class Closing:
        def __aiter__(self) -> "Closing":
            self._left = 3
            return self

        async def __anext__(self) -> int:
            self._left -= 1
            if self._left < 0:
                raise StopAsyncIteration
            return self._left

        async def aclose(self) -> None:
            raise OSError("disconnected")

    with PipelineBuilder().add_source(Closing()).add_sink().build(num_threads=1).auto_stop() as pipeline:
        assert list(pipeline.get_iterator(timeout=PATIENCE_SECONDS)) == [2, 1, 0]


class _Stubborn:
    """Numbers that are made at once for 0, and after a cancellation, which is ignored, for others."""

    def __init__(self, kind: str, *, fails: bool = False) -> None:
        self._kind = kind
        self._fails = fails
        self._waiting = 0
        self._one_waits, self._all_wait = asyncio.Event(), asyncio.Event()
        self.waits = threading.Event()

    def builder(self) -> PipelineBuilder:
        match self._kind:
            case "op" | "ordered op":
                order: Any = "input" if self._kind == "ordered op" else "completion"
                return PipelineBuilder().add_source(range(99)).pipe(self._number, concurrency=4, output_order=order)
            case "generator":
                return PipelineBuilder().add_source(range(99)).pipe(self._numbers, concurrency=4)
            case _:
                return PipelineBuilder().add_source(self, continuous=self._kind == "continuous source")

    async def _number(self, number: int) -> int:
        if number:
            await self._wait()
        elif self._fails:
            await self._all_wait.wait()
            raise BrokenError(number)
        return number

    async def _numbers(self, number: int) -> AsyncIterator[int]:
        yield await self._number(number)
        yield number

    async def __aiter__(self) -> AsyncIterator[int]:
        yield 0
        await self._wait()
        for number in range(0 if self._kind != "source" else 99):
            yield number

    async def refuse(self, number: int) -> None:
        """Raise once a call waits to be cancelled."""
        await self._one_waits.wait()
        raise BrokenError(number)

    async def _wait(self) -> None:
        self._waiting += 1
        if self._waiting == 3:
            self._all_wait.set()
        self._one_waits.set()
        self.waits.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


@EACH_KIND
@pytest.mark.parametrize("stops", [True, False])
def test_a_stop_and_the_next_pass(kind: str, *, stops: bool) -> None:
    """A stop ends all calls, and the pipeline can be started again; so can a pass after one that was left early."""
    if kind == "continuous source" and not stops:
        return  # its pass goes on
    stubborn = _Stubborn(kind)
    pipeline: Pipeline[Any] = stubborn.builder().add_sink(1).build(num_threads=1)
    for _ in range(2):
        assert next(pipeline.get_iterator(timeout=PATIENCE_SECONDS)) == 0
        assert stubborn.waits.wait(PATIENCE_SECONDS)
        stubborn.waits.clear()
        if stops:
            pipeline.stop(timeout=PATIENCE_SECONDS)
    pipeline.stop(timeout=PATIENCE_SECONDS)


@EACH_KIND
def test_a_failure_behind(kind: str) -> None:
    """A failure cancels the stages before it; their items are no longer needed, and the run ends."""
    stubborn, ended = _Stubborn(kind), threading.Event()

    def observe(event: object) -> None:
        if isinstance(event, StageEnded) and event.stage == "sink":
            ended.set()

    pipeline = stubborn.builder().pipe(stubborn.refuse).add_sink(1).build(num_threads=1, observer=observe)
    assert read_by_for(pipeline).failure is not None
    assert ended.wait(PATIENCE_SECONDS)
    pipeline.stop(timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize("kind", CALLS)
def test_a_failure_beside(kind: str) -> None:
    """A failure of one call cancels the other calls of its stage, and is read."""
    with _Stubborn(kind, fails=True).builder().add_sink(1).build(num_threads=1).auto_stop() as pipeline:
        failure = read_by_for(pipeline).failure
    assert failure is not None
    assert failure.item == "0"
