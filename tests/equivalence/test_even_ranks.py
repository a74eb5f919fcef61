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


def kept(dataset: ps.Dataset, rank: int, ranks: int) -> list[Any]:
    """Return the elements that a filter keeps of every `ranks`-th element: the share of one of several ranks."""
    return [element for element in itertools.islice(epoch_of(dataset, 0), rank, None, ranks) if keeps(element)]


def keeps(element: Any) -> bool:
    """Return a pseudo-random but pure verdict."""
    return keeps_two_of_three(element)


def sums(elements: list[Any]) -> list[int]:
    """Merge elements of any structure."""
    return [flat_sum(element) for element in elements]


@given(indexable(), st.integers(1, 4), st.integers(1, 3), st.integers(0, 9), st.sampled_from([0, 0, 2]))
def test_a_limit_ends_all_ranks_or_one_raises(
    dataset: ps.Dataset, ranks: int, each: int, limit: int, workers: int
) -> None:
    """A rank has the steps of the limit, or raises an error after its own."""
    assume(not raised(outcomes(epoch_of(dataset, 0))))
    batches = dataset.filter(keeps).batch(ranks * each, remainder="drop", merge=sums).map(tuple).limit(limit)
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


SHORT = ps.range(20, seed=1).filter(lambda number: number % 2 == 0).batch(4).limit(5)
"""Rank 0 of 2 has five steps, and rank 1 none."""


def test_a_rank_without_data_fails_again_after_a_resume() -> None:
    """The error is raised again after a resume: the epoch of a rank with too few rows is not over."""
    uneven = ps.range(14).filter(lambda number: number % 2 == 0 or number < 4).batch(4).limit(3)
    with ps.Loader(uneven, shard=ps.Shard(1, 2)) as loader:
        batches = iter(loader)
        assert next(batches).tolist() == [1, 3]
        state = loader.state_dict()
        with pytest.raises(GraphError, match="ran out of data after 1"):
            next(batches)
    with ps.Loader(uneven, shard=ps.Shard(1, 2)) as resumed:
        resumed.load_state_dict(state)
        with pytest.raises(GraphError, match="ran out of data after 1"):
            next(iter(resumed))


def test_uneven_ranks_may_have_less_than_the_limit() -> None:
    """With uneven=True each rank gets its rows, and no error."""
    steps = [len(list(ps.Loader(SHORT, shard=ps.Shard(rank, 2, uneven=True)))) for rank in range(2)]
    assert steps == [5, 0]
    assert len(list(ps.Loader(SHORT.limit(9)))) == 3


def test_the_least_limit_must_be_filled() -> None:
    """A larger limit above it requests no more elements than there are."""
    dataset = ps.range(40).filter(bool).batch(4).limit(3).map(double).limit(7)
    assert [len(list(ps.Loader(dataset, shard=ps.Shard(rank, 2)))) for rank in range(2)] == [3, 3]


@given(indexable(), st.integers(1, 4), st.integers(1, 3))
def test_without_an_end_no_rank_ends(dataset: ps.Dataset, ranks: int, each: int) -> None:
    """If a filtered dataset is repeated below its batches, every rank gets as many steps as it requests."""
    try:
        has_data = all(kept(dataset, rank, ranks) for rank in range(ranks))
    except ValueError:
        reject()  # an element that no substitute could be found for
    assume(has_data)
    loaders = ranks_of(dataset.epoch(0).filter(keeps).repeat().batch(ranks * each, merge=sums), ranks)
    for loader in loaders:
        assert [len(batch) for batch in itertools.islice(loader, 30)] == [each] * 30
    close_all(loaders)


def test_shuffled_batches_below_a_fold() -> None:
    """Shuffled batches are elements: one rank reads them, and several ranks have none to divide."""
    dataset = ps.range(10, seed=2).batch(2).shuffle().window_shuffle(3)
    assert digests(ps.Loader(dataset)) == digests(epoch_of(dataset, 0))
    with pytest.raises(GraphError, match="shard= cuts global batches, and there is none"):
        ps.Loader(dataset, shard=ps.Shard(0, 2, uneven=True))
