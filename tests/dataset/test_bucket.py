"""Bucketing: each element once, in batches of one bucket and one shape, after any resume."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from tests.dataset.packing import all_tokens, bare
from tests.equivalence.definition import close_all, concatenated, digests, ranks_of

LENGTHS = st.lists(st.integers(1, 12), max_size=60)
BOUNDARIES = [3, 7, 12]


@given(LENGTHS, st.booleans(), st.sampled_from([4, [6, 3, 2]]))
def test_batches_have_the_shape_of_their_bucket(lengths: list[int], is_planned: object, rows: int | list[int]) -> None:
    """A batch has the rows of one bucket, fewer only at the end, and each element is in one batch."""
    batches = list(bare(lengths).bucket(len, BOUNDARIES, rows=rows, lengths=lengths if is_planned else None))
    found: Counter[int] = Counter()
    short: Counter[int] = Counter()
    for batch in batches:
        number = BOUNDARIES.index(batch.shape[1])
        least = [0, *BOUNDARIES][number]
        counts = (batch > 0).sum(axis=1)
        assert (counts > least).all()
        most = rows if isinstance(rows, int) else rows[number]
        assert len(batch) <= most
        short[number] += len(batch) < most
        found.update(batch[batch > 0].tolist())
    assert found == all_tokens(lengths)
    assert max(short.values(), default=0) <= 1


@given(LENGTHS, st.integers(0, 1000), st.sampled_from([1, 2, 4]))
def test_ranks_divide_planned_batches(lengths: list[int], seed: int, ranks: int) -> None:
    """Ranks divide planned batches by rows, and all ranks have equally many."""
    dataset = ps.read([np.full(n, n) for n in lengths], seed=seed)
    batches = dataset.bucket(len, BOUNDARIES, rows=4, lengths=lengths, remainder="drop").shuffle()
    loaders = ranks_of(batches, ranks)
    for _ in range(2):
        parts = list(zip(*loaders, strict=True))
        assert len(parts) == sum(n // 4 for n in Counter(np.searchsorted(BOUNDARIES, lengths).tolist()).values())
        assert all(len({part.shape for part in row}) <= 1 for row in parts)
    first = ranks_of(batches, ranks)
    assert digests(concatenated(row) for row in zip(*first, strict=True)) == digests(batches)
    close_all(loaders + first)


def test_errors_name_the_element() -> None:
    """An element above the last boundary is named with its size, after the batches before it."""
    dataset = bare([1, 2, 9, 1]).bucket(len, [2, 8], rows=2)
    for each in (dataset, ps.Loader(dataset)):
        elements = iter(each)
        assert next(elements).shape == (2, 2)
        with pytest.raises(ps.errors.GraphError, match=r"last boundary, 8; got one of size 9") as caught:
            next(elements)
        assert "position 2" in caught.value.__notes__[0]


@pytest.mark.parametrize("rows", [2, [2, 1]])
def test_planned_sizes_must_be_the_real_ones(rows: Any) -> None:
    """An element of another bucket than planned is an error that says so."""
    dataset = bare([1, 2, 3]).bucket(len, [2, 8], rows=rows, lengths=[1, 2, 2])
    with pytest.raises(ps.errors.GraphError, match=r"sizes that bucket\(\) was given"):
        list(dataset)
    dropped = bare([1, 3]).bucket(len, [2, 8], rows=2, lengths=[1, 1], remainder="drop")
    with pytest.raises(ps.errors.GraphError, match=r"sizes that bucket\(\) was given"):
        list(dropped)


def test_rows_divide_by_the_ranks() -> None:
    """The error names a bucket whose rows the number of ranks doesn't divide."""
    dataset = bare([1]).bucket(len, [2, 8], rows=[4, 3])
    with pytest.raises(ps.errors.UsageError, match="3 rows in the bucket up to 8 on 2 ranks"):
        ps.Loader(dataset, shard=ps.Shard(0, 2, uneven=True))
    with pytest.raises(ps.errors.GraphError, match="another order in every epoch"):
        bare([1, 2]).shuffle().bucket(len, [2], rows=1, lengths=[1, 2])


def test_a_limit_below_the_batch_counts_on_every_rank() -> None:
    """In order each rank takes so many elements of its part; with positions they are counted over all ranks."""
    rows = ps.range(100)
    for dataset, each in ((rows.filter(lambda number: number >= 0), 8), (rows, 2)):
        shards = [ps.Shard(rank, 4, uneven=True) for rank in range(4)]
        loaders = [ps.Loader(dataset.limit(8).batch(8), shard=shard) for shard in shards]
        assert [sum(map(len, loader)) for loader in loaders] == [each] * 4
