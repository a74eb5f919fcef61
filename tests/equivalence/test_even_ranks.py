"""Ranks of a dataset that is read in order end together if they have a limit, or no end."""

import itertools
from typing import Any

import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import GraphError
from tests.dataset.functions import double
from tests.equivalence.definition import close_all, digests, epoch_of, outcomes, raised, ranks_of
from tests.equivalence.functions import flat_sum, keeps_two_of_three
from tests.equivalence.graphs import indexable
from tests.profiles import in_short


def kept(dataset: ps.Dataset, rank: int, ranks: int) -> list[Any]:
    """Return the elements that a filter keeps of every `ranks`-th element: the share of one of several ranks."""
    return [
        element for element in itertools.islice(epoch_of(dataset, 0), rank, None, ranks) if keeps_two_of_three(element)
    ]


def sums(elements: list[Any]) -> list[int]:
    """Merge elements of any structure."""
    return [flat_sum(element) for element in elements]


@in_short(15)
@given(indexable(), st.integers(1, 4), st.integers(1, 3), st.integers(0, 9), st.sampled_from([0, 0, 2]))
def test_a_limit_ends_all_ranks_or_one_raises(
    dataset: ps.Dataset, ranks: int, each: int, limit: int, workers: int
) -> None:
    """A rank has the steps of the limit, or raises an error after its own."""
    assume(not raised(outcomes(epoch_of(dataset, 0))))
    batches = (
        dataset.filter(keeps_two_of_three).batch(ranks * each, remainder="drop", merge=sums).map(tuple).limit(limit)
    )
    loaders = ranks_of(batches, ranks, num_workers=workers)
    for rank, loader in enumerate(loaders):
        rows = kept(dataset, rank, ranks)
        expected = [tuple(sums(list(rows[start : start + each]))) for start in range(0, len(rows) - each + 1, each)]
        found: list[Any] = []
        if len(expected) >= limit or ranks == 1:
            found.extend(loader)
        else:
            words = rf"the {limit} elements of limit\({limit}\).* ran out of data after {len(expected)}\. Lower"
            with pytest.raises(GraphError, match=words):
                found.extend(loader)
        assert digests(found) == digests(expected[:limit])
    close_all(loaders)


def test_a_rank_without_data_fails_again_after_a_resume() -> None:
    """The error is raised again after a resume: the epoch of a rank with too few rows is not over."""
    uneven = ps.range(14).filter(lambda number: number % 2 == 0 or number < 4).batch(4).limit(3)
    with ps.Loader(uneven, shard=ps.Shard(1, 2)) as loader, ps.Loader(uneven, shard=ps.Shard(1, 2)) as resumed:
        batches = iter(loader)
        assert next(batches).tolist() == [1, 3]
        resumed.load_state_dict(loader.state_dict())
        for rest in (batches, iter(resumed)):
            with pytest.raises(GraphError, match="ran out of data after 1"):
                next(rest)


def test_which_limits_must_be_filled() -> None:
    """Of two limits the lower one; with uneven=True, and on one rank, none."""
    short = ps.range(20, seed=1).filter(lambda number: number % 2 == 0).batch(4).limit(5)  # all rows are rank 0's
    assert [len(list(ps.Loader(short, shard=ps.Shard(rank, 2, uneven=True)))) for rank in range(2)] == [5, 0]
    assert len(list(ps.Loader(short.limit(9)))) == 3
    dataset = ps.range(40).filter(bool).batch(4).limit(3).map(double).limit(7)
    assert [len(list(ps.Loader(dataset, shard=ps.Shard(rank, 2)))) for rank in range(2)] == [3, 3]


@in_short(15)
@given(indexable(), st.integers(1, 4), st.integers(1, 3))
def test_without_an_end_no_rank_ends(dataset: ps.Dataset, ranks: int, each: int) -> None:
    """If a filtered dataset is repeated below its batches, every rank gets as many steps as it requests."""
    try:
        has_data = all(kept(dataset, rank, ranks) for rank in range(ranks))
    except ValueError:
        reject()  # an element that no substitute could be found for
    assume(has_data)
    loaders = ranks_of(dataset.epoch(0).filter(keeps_two_of_three).repeat().batch(ranks * each, merge=sums), ranks)
    for loader in loaders:
        assert [len(batch) for batch in itertools.islice(loader, 30)] == [each] * 30
    close_all(loaders)


def test_shuffled_batches_below_a_fold() -> None:
    """Shuffled batches are elements: one rank reads them, and several ranks have none to divide."""
    dataset = ps.range(10, seed=2).batch(2).shuffle().window_shuffle(3)
    assert digests(ps.Loader(dataset)) == digests(epoch_of(dataset, 0))
    with pytest.raises(GraphError, match="shard= cuts global batches, and there is none"):
        ps.Loader(dataset, shard=ps.Shard(0, 2, uneven=True))
