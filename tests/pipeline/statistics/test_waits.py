"""The statistics of running stages tell the time in which a stage waits for room from the time in which it is busy."""

from collections.abc import AsyncIterator

import pytest

from penstock.pipeline import PipelineBuilder
from tests.pipeline.running.reading import PATIENCE_SECONDS


async def _elements(items: list[int]) -> AsyncIterator[int]:
    for each in items:
        yield each


@pytest.mark.parametrize(
    "builder",
    [
        PipelineBuilder().add_source([[*range(100)]]).disaggregate(),
        PipelineBuilder().add_source([dict.fromkeys(range(100))]).disaggregate(),
        PipelineBuilder().add_source([[*range(100)]]).pipe(_elements),
    ],
    ids=["a list", "a dict", "an async generator"],
)
def test_a_stage_that_waits_for_room_is_not_busy(builder: PipelineBuilder) -> None:
    """While the reader takes nothing, a stage with several values for an item waits for room."""
    with builder.add_sink(1).build(num_threads=1, statistics=True).auto_stop() as pipeline:
        iterator = pipeline.get_iterator(timeout=PATIENCE_SECONDS)
        assert next(iterator) == 0
        while pipeline.report().elapsed_seconds < 0.1:
            pass
        assert [*iterator] == [*range(1, 100)]
        _, stage, _ = pipeline.report().stages
    assert stage.items == 100
    assert stage.wait_output_seconds > 2 * stage.busy_seconds
