"""A failure of one of several flows that join: of a merged pipeline, of a path, or of all paths."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from penstock.errors import PipelineFailure
from penstock.pipeline import Merge, PathVariants, Pipe, PipelineBuilder
from tests.pipeline.meaning.graphs import BrokenError
from tests.pipeline.running.reading import PATIENCE_SECONDS, Again, EndOfRun, gate, over, read_by_for, waiting

BEHIND: list[Callable[[PipelineBuilder], PipelineBuilder]] = [
    lambda builder: builder,
    lambda builder: builder.pipe(abs),
    lambda builder: builder.pipe(abs, max_items=1).aggregate(2),
]


class _Endless:
    """A source without an end; it notes how often it was opened and closed."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0

    def numbers(self, first: int) -> Iterator[int]:
        self.opened += 1
        try:
            yield from itertools.count(first)
        finally:
            self.closed += 1

    async def __aiter__(self) -> AsyncIterator[int]:
        for number in self.numbers(1000):
            await asyncio.sleep(0)
            yield number


def _refuse_four(number: int) -> int:
    if number == 4:
        raise BrokenError(number)
    return number


def _flowing(flows: str, endless: _Endless) -> PipelineBuilder:
    """Return endless flows that join, one of which fails."""
    if "paths" in flows:
        builder = over(Again(lambda: endless.numbers(0)))
        failing = [Pipe(_refuse_four, name="refuse"), Pipe(abs)]
        if flows == "paths":
            return builder.path_variants(lambda number: number % 2, [failing, [Pipe(abs)]])
        inner = PathVariants(lambda number: number % 4 // 2, (tuple(failing), ()))
        return builder.path_variants(lambda number: number % 2, [[inner], [Pipe(abs)], []])
    bad = over(range(10)).pipe(_refuse_four, name="refuse").add_sink().get_config()
    good = over(endless).add_sink().get_config()
    if flows == "nested merges":
        bad = over(Merge((bad, good))).add_sink().get_config()
    return over(Merge((good, bad, good)))


@pytest.mark.parametrize("flows", ["merge", "nested merges", "paths", "nested paths"])
def test_one_flow_fails(flows: str) -> None:
    """A failure of one flow is read although the others have no end, and stops them, with or without a stage behind."""
    for behind in BEHIND:
        endless, end = _Endless(), EndOfRun()
        pipeline = behind(_flowing(flows, endless)).add_sink(3).build(num_threads=2, observer=end)
        try:
            found = read_by_for(pipeline)
            end.wait()
            assert endless.opened == endless.closed > 0
        finally:
            pipeline.stop()
        assert found.failure is not None
        assert (found.failure.stage.endswith("refuse"), found.failure.item) == (True, "4")


@pytest.mark.parametrize("where", ["source", "router"])
def test_a_failure_before_the_paths(where: str) -> None:
    """A failure of the source or the router comes after the items before it, also after those of a slower path."""

    def numbers() -> Iterator[int]:
        yield from range(6)
        if where == "source":
            raise BrokenError(6)
        yield 6

    def choose(number: int) -> int:
        if number == 6:
            raise BrokenError(number)
        return number % 2

    with gate() as odd:
        builder = over(Again(numbers)).path_variants(choose, [[], [Pipe(waiting(odd))]])
        with builder.add_sink().build(num_threads=2).auto_stop() as pipeline:
            first = [pipeline.get_item(timeout=PATIENCE_SECONDS) for _ in range(3)]
            odd.wait_until(lambda now: now.inside == 1)
            odd.open()
            rest = [pipeline.get_item(timeout=PATIENCE_SECONDS) for _ in range(3)]
            with pytest.raises(PipelineFailure, match="BrokenError: 6"):
                pipeline.get_item(timeout=PATIENCE_SECONDS)
    assert (first, rest) == ([0, 2, 4], [1, 3, 5])
