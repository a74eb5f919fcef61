"""Async code that catches its cancellation and goes on, such as a retry with a bare `except`, doesn't keep a run going.

A cancellation is sent to a task once; a task that goes on would wait for room that no reader makes.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Literal

import pytest

from penstock.pipeline import Pipeline, PipelineBuilder, StageEnded
from tests.pipeline.meaning.graphs import BrokenError
from tests.pipeline.running.reading import PATIENCE_SECONDS, read_by_for

Kind = Literal["op", "ordered op", "generator", "source", "source that ends", "continuous source"]
EACH_KIND = pytest.mark.parametrize(
    "kind", ["op", "ordered op", "generator", "source", "source that ends", "continuous source"]
)


class Stubborn:
    """Numbers that are made at once for 0, and after a cancellation, which is ignored, for others."""

    def __init__(self, kind: Kind, *, fails: bool = False) -> None:
        self._kind = kind
        self._fails = fails
        self._waiting = 0
        self._one_waits, self._all_wait = asyncio.Event(), asyncio.Event()
        self.waits = threading.Event()

    def builder(self) -> PipelineBuilder:
        """Return a pipeline with these numbers."""
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

    async def wait(self) -> None:
        """Wait until a call waits to be cancelled."""
        await self._one_waits.wait()

    async def _wait(self) -> None:
        self._waiting += 1
        if self._waiting == 3:
            self._all_wait.set()
        self._one_waits.set()
        self.waits.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


def first_of(stubborn: Stubborn, pipeline: Pipeline[Any]) -> Any:
    """Return the first item of a pass, once later ones wait."""
    first = next(pipeline.get_iterator(timeout=PATIENCE_SECONDS))
    assert stubborn.waits.wait(PATIENCE_SECONDS)
    stubborn.waits.clear()
    return first


@EACH_KIND
def test_a_stop(kind: Kind) -> None:
    """A stop ends all calls, and the pipeline can be started again."""
    stubborn = Stubborn(kind)
    pipeline = stubborn.builder().add_sink(1).build(num_threads=1)
    for _ in range(2):
        assert first_of(stubborn, pipeline) == 0
        pipeline.stop(timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize("kind", ["op", "ordered op", "generator", "source", "source that ends"])
def test_the_next_pass(kind: Kind) -> None:
    """A pass that was left early ends, and the next one starts."""
    stubborn = Stubborn(kind)
    pipeline = stubborn.builder().add_sink(1).build(num_threads=1)
    for _ in range(2):
        assert first_of(stubborn, pipeline) == 0
    pipeline.stop(timeout=PATIENCE_SECONDS)


@EACH_KIND
def test_a_failure_behind(kind: Kind) -> None:
    """A failure cancels the stages before it; their items are no longer needed, and the run ends."""
    stubborn, ended = Stubborn(kind), threading.Event()

    async def refuse(number: int) -> None:
        await stubborn.wait()
        raise BrokenError(number)

    def observe(event: object) -> None:
        if isinstance(event, StageEnded) and event.stage == "sink":
            ended.set()

    pipeline = stubborn.builder().pipe(refuse).add_sink(1).build(num_threads=1, observer=observe)
    assert read_by_for(pipeline).failure is not None
    assert ended.wait(PATIENCE_SECONDS)
    pipeline.stop(timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize("kind", ["op", "ordered op", "generator"])
def test_a_failure_beside(kind: Kind) -> None:
    """A failure of one call cancels the other calls of its stage, and is read."""
    stubborn = Stubborn(kind, fails=True)
    pipeline = stubborn.builder().add_sink(1).build(num_threads=1)
    failure = read_by_for(pipeline).failure
    assert failure is not None
    assert failure.item == "0"
    pipeline.stop(timeout=PATIENCE_SECONDS)
