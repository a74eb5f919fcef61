"""Ranks that load the same dataset deliver together exactly the batches of one loader."""

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import penstock as ps
from tests.equivalence.decisions import DECISIONS, random_decisions
from tests.equivalence.definition import close_all, concatenated, digest, digests, epoch_of, outcomes, raised, ranks_of
from tests.equivalence.functions import add_one, totals
from tests.equivalence.graphs import REMAINDERS, indexable

RANKS = st.sampled_from([1, 2, 3, 4, 8])
WORKERS = st.sampled_from([0, 0, 2])


class CountingSource:
    """Integers, and a list of all keys that were read."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.read_keys: list[int] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> int:
        with self._lock:
            self.read_keys.append(key)
        return key


def short_for(dataset: ps.Dataset, size: int, ranks: int) -> bool:
    """Return whether a last short batch has fewer rows than there are ranks."""
    return 0 < len(dataset) % size < ranks


def bounds(rows: int, rank: int, count: int) -> tuple[int, int]:
    """Return the bounds of a rank's rows in a global batch."""
    return rows * rank // count, rows * (rank + 1) // count


@given(indexable(), RANKS, st.integers(1, 4), REMAINDERS, WORKERS, st.sampled_from(["", "map"]), DECISIONS)
def test_ranks_make_the_global_batch(
    dataset: ps.Dataset, ranks: int, each: int, remainder: Any, workers: int, above: str, decisions: int | None
) -> None:
    """The ranks' parts together are the batches of the definition, and all ranks end on the same step."""
    size = ranks * each
    batches = dataset.batch(size, remainder=remainder)
    batches = batches.map(add_one) if above else batches
    expected = [outcomes(epoch_of(batches, epoch)) for epoch in range(2)]
    assume(not any(map(raised, expected)))
    if remainder == "keep" and short_for(dataset, size, ranks):
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


@given(indexable(), RANKS, st.integers(1, 4), WORKERS)
def test_a_custom_merge_gets_the_ranks_rows(dataset: ps.Dataset, ranks: int, each: int, workers: int) -> None:
    """With a merge function, a rank's batch is that function of the definition's rows of this rank."""
    size = ranks * each
    rows = [outcomes(epoch_of(dataset, epoch)) for epoch in range(2)]
    assume(not any(map(raised, rows)))
    loaders = ranks_of(dataset.batch(size, remainder="drop", merge=totals), ranks, num_workers=workers)
    for epoch in range(2):
        elements = list(epoch_of(dataset, epoch))
        for rank, loader in enumerate(loaders):
            low, high = bounds(size, rank, ranks)
            starts = range(0, len(elements) - size + 1, size)
            expected = [totals(elements[start + low : start + high]) for start in starts]
            assert digests(loader) == digests(expected)
    close_all(loaders)


@given(st.integers(8, 100), RANKS, st.integers(1, 4), st.sampled_from([0, 2, 3]), st.integers(0, 5))
def test_only_the_ranks_rows_are_read(length: int, ranks: int, each: int, workers: int, seed: int) -> None:
    """A rank reads each record of its rows once, and no other record."""
    size = ranks * each
    order = [int(key) for key in epoch_of(ps.range(length, seed=seed).shuffle(), 0)]
    for rank in range(ranks):
        source = CountingSource(length)
        dataset = ps.read(source, seed=seed).shuffle().batch(size, remainder="drop")
        with ps.Loader(dataset, num_workers=workers, shard=ps.Shard(rank, ranks)) as loader:
            steps = len(list(loader))
        low, high = bounds(size, rank, ranks)
        expected = [key for step in range(steps) for key in order[step * size + low : step * size + high]]
        assert sorted(source.read_keys) == sorted(expected)


@given(st.integers(1, 70), RANKS, st.integers(1, 4), st.sampled_from([0, 2]))
def test_padding_is_masked_on_every_rank(length: int, ranks: int, each: int, workers: int) -> None:
    """With `remainder="pad"` all ranks have full batches, and the masks tell data from padding, globally."""
    size = ranks * each
    dataset = ps.read({"x": np.arange(length)}, seed=3).shuffle().batch(size, remainder="pad", mask="is_data")
    expected = outcomes(epoch_of(dataset, 0))
    loaders = ranks_of(dataset, ranks, num_workers=workers)
    parts = [list(loader) for loader in loaders]
    assert all(len(batch["x"]) == each for batches in parts for batch in batches)
    assert [digest(concatenated(part)) for part in zip(*parts, strict=True)] == expected
    rows = concatenated([concatenated(part) for part in zip(*parts, strict=True)])
    assert rows["is_data"].tolist() == [position < length for position in range(len(rows["is_data"]))]
    close_all(loaders)
