"""A failure of one of several flows that join: of a merged pipeline, of a path, or of all paths."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from penstock.errors import PipelineFailure
from penstock.pipeline import Merge, PathVariants, Pipe, Pipeline, PipelineBuilder, StageEnded
from tests.pipeline.meaning.graphs import BrokenError
from tests.pipeline.running.reading import PATIENCE_SECONDS, Again, gate, read_by_for

FLOWS = pytest.mark.parametrize("flows", ["merge", "nested merges", "paths", "nested paths"])
Stages = Callable[[PipelineBuilder], PipelineBuilder]
BEHIND: list[Stages] = [
    lambda builder: builder,
    lambda builder: builder.pipe(abs),
    lambda builder: builder.pipe(abs, max_items=1).aggregate(2),
]


class Watch:
    """Notes which of the sources without an end are closed, and the end of the run."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0
        self._ended = threading.Event()

    def numbers(self, first: int) -> Iterator[int]:
        """Yield numbers without an end."""
        self.opened += 1
        try:
            yield from itertools.count(first)
        finally:
            self.closed += 1

    async def __aiter__(self) -> AsyncIterator[int]:
        for number in self.numbers(1000):
            await asyncio.sleep(0)
            yield number

    def observe(self, event: object) -> None:
        """Note the end."""
        if isinstance(event, StageEnded) and event.stage == "sink":
            self._ended.set()

    def check_end(self) -> None:
        """Check that the run ends, and that all sources were closed."""
        assert self._ended.wait(PATIENCE_SECONDS)
        assert self.opened == self.closed > 0


def refuse_four(number: int) -> int:
    """Raise for 4."""
    if number == 4:
        raise BrokenError(number)
    return number


def flowing(flows: str, watch: Watch) -> PipelineBuilder:
    """Return endless flows that join, one of which fails."""
    if "paths" in flows:
        builder = PipelineBuilder().add_source(Again(lambda: watch.numbers(0)))
        failing = [Pipe(refuse_four, name="refuse"), Pipe(abs)]
        if flows == "paths":
            return builder.path_variants(lambda number: number % 2, [failing, [Pipe(abs)]], name="way")
        inner = PathVariants(lambda number: number % 4 // 2, (tuple(failing), ()))
        return builder.path_variants(lambda number: number % 2, [[inner], [Pipe(abs)], []], name="way")
    bad = PipelineBuilder().add_source(range(10)).pipe(refuse_four, name="refuse").add_sink().get_config()
    good = PipelineBuilder().add_source(watch).add_sink().get_config()
    if flows == "nested merges":
        bad = PipelineBuilder().add_source(Merge((bad, good))).add_sink().get_config()
    return PipelineBuilder().add_source(Merge((good, bad, good)))


@FLOWS
@pytest.mark.parametrize("behind", BEHIND)
def test_one_flow_fails(flows: str, behind: Stages) -> None:
    """A failure of one flow is read although the others have no end, and stops them, with or without a stage behind."""
    watch = Watch()
    pipeline = behind(flowing(flows, watch)).add_sink(3).build(num_threads=2, observer=watch.observe)
    try:
        found = read_by_for(pipeline)
        watch.check_end()
    finally:
        pipeline.stop()
    assert found.failure is not None
    assert (found.failure.stage.endswith("refuse"), found.failure.item) == (True, "4")


def failing_for_all_paths(where: str, path: Pipe) -> Pipeline[Any]:
    """Return a pipeline of an empty path for even numbers and another path, whose source or router fails at 6."""

    def numbers() -> Iterator[int]:
        yield from range(6)
        if where == "source":
            raise BrokenError(6)
        yield 6

    def choose(number: int) -> int:
        if number == 6:
            raise BrokenError(number)
        return number % 2

    builder = PipelineBuilder().add_source(Again(numbers)).path_variants(choose, [[], [path]])
    return builder.add_sink().build(num_threads=2)


@pytest.mark.parametrize("where", ["source", "router"])
def test_a_failure_before_the_paths(where: str) -> None:
    """A failure of the source or the router comes after the items before it, also after those of a slower path."""
    with gate() as odd:

        def wait(number: int) -> int:
            odd.pass_through()
            return number

        with failing_for_all_paths(where, Pipe(wait)).auto_stop() as pipeline:
            first = [pipeline.get_item(timeout=PATIENCE_SECONDS) for _ in range(3)]
            odd.wait_until(lambda now: now.inside == 1)
            odd.open()
            rest = [pipeline.get_item(timeout=PATIENCE_SECONDS) for _ in range(3)]
            with pytest.raises(PipelineFailure, match="BrokenError: 6"):
                pipeline.get_item(timeout=PATIENCE_SECONDS)
    assert (first, rest) == ([0, 2, 4], [1, 3, 5])
