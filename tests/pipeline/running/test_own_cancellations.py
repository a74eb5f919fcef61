"""Async code that cancels its own task: that is a failure, since the pipeline was not stopped, and no item is lost."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest

from penstock.errors import PipelineFailure
from penstock.pipeline import PipelineBuilder
from tests.pipeline.running.reading import PATIENCE_SECONDS, read_by_for

Way = Literal["now", "at the next await", "swallowed"]
WAYS = pytest.mark.parametrize("way", ["now", "at the next await"])


async def cancel_at(number: int, way: Way, at: int = 3) -> int:
    """Return the number, but cancel the current task for one."""
    await asyncio.sleep(0)
    if number == at:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.sleep(0) if way != "at the next await" else None
        except asyncio.CancelledError:
            if way == "now":
                raise
    return number


class Numbers:
    """An async source that cancels its task before one of its numbers."""

    def __init__(self, way: Way) -> None:
        self._way: Way = way

    async def __aiter__(self) -> AsyncIterator[int]:
        for number in range(8):
            yield await cancel_at(number, self._way)


def builder_of(kind: str, way: Way, concurrency: int) -> PipelineBuilder:
    """Return a pipeline whose source or op cancels its own task."""

    async def call(number: int) -> int:
        return await cancel_at(number, way)

    async def generate(number: int) -> AsyncIterator[int]:
        yield await cancel_at(number, way)

    if kind == "source":
        return PipelineBuilder().add_source(Numbers(way))
    builder = PipelineBuilder().add_source(range(8))
    if kind == "generator":
        return builder.pipe(generate, concurrency=concurrency, name="op")
    order: Any = "input" if kind == "ordered op" else "completion"
    return builder.pipe(call, concurrency=concurrency, output_order=order, name="op")


@WAYS
@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("kind", ["op", "ordered op", "generator", "source"])
def test_a_task_that_cancels_itself(kind: str, way: Way, concurrency: int) -> None:
    """The pass ends with a failure, whatever its limit is."""
    pipeline = builder_of(kind, way, concurrency).add_sink().build(num_threads=1, max_failures=-1)
    found = read_by_for(pipeline)
    pipeline.stop(timeout=PATIENCE_SECONDS)
    assert found.failure is not None
    assert found.failure.stage == ("source" if kind == "source" else "op")
    assert isinstance(found.failure.__cause__, asyncio.CancelledError)
    assert {*found.items} <= {0, 1, 2, 3, 4, 5}
    if way == "now" and kind != "source":
        assert found.failure.item == "3"


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("kind", ["op", "ordered op", "generator", "source"])
def test_a_task_that_swallows_its_own_cancellation(kind: str, concurrency: int) -> None:
    """A task that cancels itself and goes on doesn't end the pass; nor does it keep a later failure or stop waiting."""
    builder = builder_of(kind, "swallowed", concurrency)
    with builder.add_sink().build(num_threads=1).auto_stop() as pipeline:
        assert sorted(pipeline.get_iterator(timeout=PATIENCE_SECONDS)) == [*range(8)]

    def refuse(number: int) -> int:
        return 1 // (5 - number)

    pipeline = builder_of(kind, "swallowed", concurrency).pipe(refuse).add_sink(1).build(num_threads=1)
    assert isinstance(read_by_for(pipeline).failure, PipelineFailure)
    pipeline.stop(timeout=PATIENCE_SECONDS)


def test_a_closing_that_raises() -> None:
    """An exception of `aclose` at the end of an async source is ignored, as that of `close` of another source is."""

    class Closing:
        def __init__(self) -> None:
            self._left = 3

        async def __anext__(self) -> int:
            self._left -= 1
            if self._left < 0:
                raise StopAsyncIteration
            return self._left

        def __aiter__(self) -> "Closing":
            return self

        async def aclose(self) -> None:
            raise OSError("disconnected")

    class Source:
        def __aiter__(self) -> Closing:
            return Closing()

    with PipelineBuilder().add_source(Source()).add_sink().build(num_threads=1).auto_stop() as pipeline:
        assert list(pipeline.get_iterator(timeout=PATIENCE_SECONDS)) == [2, 1, 0]
