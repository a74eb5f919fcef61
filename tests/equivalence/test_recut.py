"""A run resumes with other numbers of ranks and other batch sizes, and no row is lost or repeated."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import penstock as ps
from tests.equivalence.definition import close_all, concatenated, digest, epoch_of, ranks_of
from tests.equivalence.functions import jitter
from tests.equivalence.kinds import is_dict
from tests.profiles import fewer

LENGTHS = st.integers(200, 400)
SEEDS = st.integers(0, 50)


def rows_of(dataset: ps.Dataset) -> ps.Dataset:
    """Return random rows, each with its record's number."""
    return dataset.shuffle().random_map(jitter)


def steps_of(loaders: list[ps.Loader]) -> Iterator[Any]:
    """Yield each batch of an epoch, joined from the ranks' parts."""
    for parts in zip(*loaders, strict=True):
        yield concatenated(parts)


def segment(dataset: ps.Dataset, ranks: int, state: Any, stop: int | None) -> tuple[list[Any], Any]:
    """Resume a state on some ranks, and stop after some steps; return the batches and the state then."""
    loaders = ranks_of(dataset, ranks)
    if state is not None:
        for loader in loaders:
            loader.load_state_dict(state)
    found: list[Any] = []
    for batch in steps_of(loaders):
        found.append(batch)
        if len(found) == stop:
            break
    states = [loader.state_dict() for loader in loaders]
    close_all(loaders)
    shapes = [{**each, "rank": 0} for each in states]
    assert all(each == shapes[0] for each in shapes)  # all ranks' states are equal: any of them will do
    return found, states[-1]


def ends_together(left: int, size: int, ranks: int) -> bool:
    """Return whether every rank gets a row of the last batch."""
    return not 0 < left % size < ranks


@fewer()
@given(st.integers(500, 900), SEEDS, st.integers(1, 3), st.integers(1, 2))
def test_eight_ranks_resume_as_six_then_three(length: int, seed: int, first: int, second: int) -> None:
    """8 ranks x 32 resume as 6 x 40, then as 3 x 33: each row of the epoch once, in order."""
    rows = rows_of(ps.range(length, seed=seed))
    first = min(first, length // 256)
    left = length - first * 256
    second = min(second, left // 240)
    rest = left - second * 240
    assume(second and rest)
    assume(ends_together(length, 256, 8))
    assume(ends_together(length, 240, 6) and ends_together(left, 240, 6))
    assume(ends_together(length, 99, 3) and ends_together(rest, 99, 3))
    batches, state = segment(rows.batch(256), 8, None, first)
    more, state = segment(rows.batch(240), 6, state, second)
    last, state = segment(rows.batch(99), 3, state, None)
    expected = [digest(row) for row in epoch_of(rows.batch(1), 0)]
    found = [digest(part) for batch in [*batches, *more, *last] for part in singles(batch)]
    assert found == expected
    assert (state["epoch"], state["position"]) == (1, 0)


def singles(batch: Any) -> list[Any]:
    """Return a batch as batches of one row."""
    return [_row(batch, row) for row in range(len(batch["noise"]))]


def _row(batch: Any, row: int) -> Any:
    if is_dict(batch):
        return {key: _row(value, row) for key, value in batch.items()}
    return batch[row : row + 1]


def test_a_last_batch_that_is_too_short_for_the_new_ranks_is_refused() -> None:
    """A state with which some rank would end a step early is refused, and the loader doesn't move."""
    loader = ps.Loader(ps.range(1000).batch(260))
    next(iter(loader))
    resumed = ps.Loader(ps.range(1000).batch(246), shard=ps.Shard(0, 6))
    with pytest.raises(
        ps.errors.StateError, match=r"ends with one of 2 rows for 6 ranks, so some would end a step ear"
    ):
        resumed.load_state_dict(loader.state_dict())
    assert resumed.step == 0
    padded = ps.Loader(ps.range(1000).batch(246, remainder="pad"), shard=ps.Shard(0, 6))
    padded.load_state_dict(loader.state_dict())
    assert [len(batch) for batch in padded] == [41] * 4


def test_reordered_batches_keep_their_size() -> None:
    """If a step above `batch` orders batches, another batch size is refused."""
    loader = ps.Loader(ps.range(12).batch(5).shuffle())
    next(iter(loader))
    other = ps.Loader(ps.range(12).batch(4).shuffle())  # as many batches, of other rows
    with pytest.raises(ps.errors.StateError, match=r"a step above batch\(4\) .* the state counts batches of 5"):
        other.load_state_dict(loader.state_dict())


def test_another_remainder_forgets_earlier_steps() -> None:
    """A resume with `remainder="drop"` works; earlier steps are unknown then, and are refused."""
    loader = ps.Loader(ps.range(10).batch(4))
    assert len(list(loader)) == 3
    batches = iter(loader)
    next(batches)
    other = ps.Loader(ps.range(10).batch(4, remainder="drop"))
    other.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in other] == [[4, 5, 6, 7]]
    assert (other.step, other.epoch) == (4, 1)
    with pytest.raises(ps.errors.StateError, match=r"steps before 4 are no longer known"):
        other.batch_at(3)
    assert np.array_equal(other.batch_at(5), [0, 1, 2, 3])
