"""Ranks that load the same dataset deliver together exactly the batches of one loader, also where ranks change."""

import itertools
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import StateError
from tests.equivalence.decisions import DECISIONS, random_decisions
from tests.equivalence.definition import close_all, concatenated, digest, digests, epoch_of, outcomes, raised, ranks_of
from tests.equivalence.functions import add_one, totals
from tests.equivalence.graphs import REMAINDERS, indexable
from tests.profiles import in_short

RANKS = st.sampled_from([1, 2, 3, 4, 8])
WORKERS = st.sampled_from([0, 0, 2])


class CountingSource:
    """Records with their numbers, and a list of all keys that were read."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.read_keys: list[int] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> dict[str, int]:
        with self._lock:
            self.read_keys.append(key)
        return {"x": key}


def bounds(rows: int, rank: int, count: int) -> tuple[int, int]:
    """Return the bounds of a rank's rows in a global batch."""
    return rows * rank // count, rows * (rank + 1) // count


@in_short(15)
@given(indexable(), RANKS, st.integers(1, 4), REMAINDERS, WORKERS, st.booleans(), DECISIONS)
def test_ranks_make_the_global_batch(
    dataset: ps.Dataset,
    ranks: int,
    each: int,
    remainder: Any,
    workers: int,
    above: bool,  # noqa: FBT001 - drawn
    decisions: int | None,
) -> None:
    """The ranks' parts together are the batches of the definition, and all ranks end on the same step.

    With a merge function, a rank's batch is that function of the definition's rows of this rank.
    """
    size = ranks * each
    batches = dataset.batch(size, remainder=remainder)
    batches = batches.map(add_one) if above else batches
    expected = [outcomes(epoch_of(batches, epoch)) for epoch in range(2)]
    assume(not any(map(raised, expected)))
    if remainder == "keep" and 0 < len(dataset) % size < ranks:
        with pytest.raises(ps.errors.UsageError, match=r"some would end a step early"):
            ps.Loader(batches, shard=ps.Shard(0, ranks))
        return
    loaders = ranks_of(batches, ranks, num_workers=workers)
    for whole in expected:
        with random_decisions(decisions):
            parts = [list(loader) for loader in loaders]
        assert {len(batches_of_rank) for batches_of_rank in parts} == {len(whole)}
        assert [digest(concatenated(part)) for part in zip(*parts, strict=True)] == whole
    close_all(loaders)
    elements = list(itertools.islice(epoch_of(dataset, 0), len(dataset) // size * size))  # the rest may raise
    loaders = ranks_of(dataset.batch(size, remainder="drop", merge=totals), ranks, num_workers=workers)
    for rank, loader in enumerate(loaders):
        low, high = bounds(size, rank, ranks)
        starts = range(0, len(elements), size)
        assert digests(loader) == digests([totals(elements[start + low : start + high]) for start in starts])
    close_all(loaders)


@in_short(15)
@given(st.integers(1, 100), RANKS, st.integers(1, 4), st.sampled_from([0, 2, 3]), st.integers(0, 5))
def test_only_the_ranks_rows_are_read(length: int, ranks: int, each: int, workers: int, seed: int) -> None:
    """A rank reads each record of its rows once, and no other one; padding, which reads none anew, is masked."""
    size = ranks * each
    order = [int(key) for key in epoch_of(ps.range(length, seed=seed).shuffle(), 0)]
    parts: list[list[Any]] = []
    for rank in range(ranks):
        source = CountingSource(length)
        dataset = ps.read(source, seed=seed).shuffle().batch(size, remainder="pad", mask="is_data")
        with ps.Loader(dataset, num_workers=workers, shard=ps.Shard(rank, ranks)) as loader:
            parts.append(list(loader))
        low, high = bounds(size, rank, ranks)
        expected = [key for start in range(0, length, size) for key in order[start + low : start + high]]
        assert sorted(set(source.read_keys) - {order[-1]}) == sorted(set(expected) - {order[-1]})
        assert all(source.read_keys.count(key) == 1 for key in set(expected) - {order[-1]})
        assert all(len(batch["x"]) == each for batch in parts[-1])
    rows = concatenated([concatenated(step) for step in zip(*parts, strict=True)])
    assert rows["is_data"].tolist() == [position < length for position in range(len(rows["x"]))]
    assert rows["x"].tolist() == order + [order[-1]] * (len(rows["x"]) - length)


def test_a_last_batch_that_is_too_short_for_the_new_ranks_is_refused() -> None:
    """A state with which some rank would end a step early is refused, and the loader doesn't move."""
    loader = ps.Loader(ps.range(1000).batch(260))
    next(iter(loader))
    resumed = ps.Loader(ps.range(1000).batch(246), shard=ps.Shard(0, 6))
    with pytest.raises(StateError, match=r"ends with one of 2 rows for 6 ranks, so some would end a step early"):
        resumed.load_state_dict(loader.state_dict())
    assert resumed.step == 0
    padded = ps.Loader(ps.range(1000).batch(246, remainder="pad"), shard=ps.Shard(0, 6))
    padded.load_state_dict(loader.state_dict())
    assert [len(batch) for batch in padded] == [41] * 4


def test_another_size_or_remainder_may_not_fit() -> None:
    """Batches that a step above orders keep their size; with `remainder="drop"` earlier steps are unknown."""
    loader = ps.Loader(ps.range(12).batch(5).shuffle())
    next(iter(loader))
    other = ps.Loader(ps.range(12).batch(4).shuffle())  # as many batches, of other rows
    with pytest.raises(StateError, match=r"a step above batch\(4\) .* the state counts batches of 5"):
        other.load_state_dict(loader.state_dict())
    loader = ps.Loader(ps.range(10).batch(4))
    assert len(list(loader)) == 3
    batches = iter(loader)
    next(batches)
    other = ps.Loader(ps.range(10).batch(4, remainder="drop"))
    other.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in other] == [[4, 5, 6, 7]]
    assert (other.step, other.epoch) == (4, 1)
    with pytest.raises(StateError, match=r"steps before 4 are no longer known"):
        other.batch_at(3)
    assert np.array_equal(other.batch_at(5), [0, 1, 2, 3])
