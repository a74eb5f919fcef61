"""A replay yields the first items as they are loaded, and then repeats the last of them."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import UsageError
from penstock.pipeline import replay
from tests.pipeline.running.reading import build


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"keep": 1}, [0, 0, 0, 0, 0, 0, 0]),
        ({"keep": 3}, [0, 1, 2, 0, 1, 2, 0]),
        ({"keep": 2, "warm_up": 4}, [0, 1, 2, 3, 2, 3, 2]),
        ({"keep": 2, "warm_up": 6, "stop_after": 5}, [0, 1, 2, 3, 4]),
        ({"keep": 3, "warm_up": 100}, [0, 1, 2, 3, 4, 2, 3]),
    ],
)
def test_the_warm_up_and_the_replay(options: dict[str, Any], expected: list[int]) -> None:
    """The warm-up is yielded unchanged; its last items, or the last there were, are repeated in order."""
    assert [*islice(replay(range(5), **options), 7)] == expected


def test_nothing_is_loaded_after_the_warm_up() -> None:
    """After the warm-up, the iterator is closed, and no further item is requested."""
    seen: list[object] = []

    def numbers() -> Iterator[int]:
        try:
            for number in range(100):
                seen.append(number)
                yield number
        finally:
            seen.append("closed")

    assert [*replay(numbers(), keep=1, warm_up=2, stop_after=4)] == [0, 1, 1, 1]
    assert seen == [0, 1, "closed"]


def test_pipelines_and_loaders() -> None:
    """The items of a pipeline and the batches of a loader can be replayed."""
    with build(range(100), str).auto_stop() as pipeline:
        assert [*replay(pipeline, keep=2, warm_up=3, stop_after=6)] == ["0", "1", "2", "1", "2", "1"]
    with ps.Loader(ps.range(100).batch(10), num_workers=0) as loader:
        batches = [*replay(loader, keep=4, stop_after=20)]
    assert all(np.array_equal(batch, range(step % 4 * 10, step % 4 * 10 + 10)) for step, batch in enumerate(batches))


def test_wrong_arguments() -> None:
    """A wrong argument is refused when the replay is made, and an empty iterable when it is read."""
    wrong: list[dict[str, Any]] = [{"keep": 0}, {"keep": 3, "warm_up": 2}, {"stop_after": 0}]
    for options in wrong:
        with pytest.raises(UsageError):
            replay([1], **options)
    with pytest.raises(UsageError, match="at least one item"):
        next(replay(list[int]()))
