"""With `skip_none=True` a result that is None is skipped; without, it is an item."""

import pytest

from penstock.pipeline import SKIP, Pipe, PipelineBuilder, ProcessExecutor
from tests.pipeline.meaning.graphs import KINDS, Kind, of_kind


def odd_or_none(number: int) -> object:
    """Return an odd number itself, SKIP for a multiple of 4, and None for another number."""
    if number % 2:
        return number
    return SKIP if number % 4 == 0 else None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("concurrency", [1, 3])
def test_none_is_skipped(kind: Kind, concurrency: int) -> None:
    """SKIP is always skipped, None only with `skip_none=True`."""
    for skip_none in (True, False):
        builder = PipelineBuilder().add_source(range(8))
        builder.pipe(of_kind(kind, odd_or_none), skip_none=skip_none, concurrency=concurrency).add_sink()
        with builder.build(num_threads=3).auto_stop() as pipeline:
            found = sorted(map(str, pipeline))
        assert found == ["1", "3", "5", "7"] + ([] if skip_none else ["None", "None"])


def test_none_is_skipped_in_processes() -> None:
    """A function that runs in processes skips None, too."""
    builder = PipelineBuilder().add_source(range(8))
    builder.pipe(odd_or_none, skip_none=True, executor=ProcessExecutor(1)).add_sink()
    with builder.build(num_threads=1).auto_stop() as pipeline:
        assert list(pipeline) == [1, 3, 5, 7]


def test_the_text_of_a_stage_that_skips_none() -> None:
    """The text of the stage says that it skips None."""
    config = PipelineBuilder().add_source([1]).pipe(abs, skip_none=True).add_sink().get_config()
    assert "without None" in str(config)
    assert Pipe(abs, skip_none=True) != Pipe(abs)
