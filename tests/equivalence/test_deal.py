"""A deal of the ranks' unfinished work to any number of other ranks loses no element and repeats none."""

import itertools
from collections import Counter as Multiset
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

import penstock as ps
from tests.equivalence.definition import digest, rank_of
from tests.equivalence.joins import Counter, in_order

SIZE = 12


def by_three(number: int) -> int:
    """Return the size by which buckets divide numbers."""
    return number % 3


def mixture() -> ps.Dataset:
    """Return a mixture that ends with its second part, while the window of the first one has elements."""
    return ps.mix({"web": ps.range(14).window_shuffle(4), "code": ps.range(100, 105).map(int)})


ENDED: dict[str, ps.Dataset] = {  # in each, the last window is short, since the steps below leave elements out
    "mixture": mixture().window_shuffle(4),
    "mixture in batches": mixture().batch(4).unbatch(),
    "mixture in a part": ps.interleave([mixture().window_shuffle(4), ps.range(200, 206).filter(bool)]),
    "mixture that is one of two": ps.concatenate([mixture(), ps.range(200, 206).filter(bool)]).window_shuffle(4),
    "mixture in a fold of parts": ps.interleave([mixture().batch(4).unbatch(), ps.range(200, 209)]).window_shuffle(4),
    "bucket": ps.range(17).filter(bool).bucket(by_three, [1, 2], rows=3, remainder="drop").window_shuffle(4).unbatch(),
}


def rows_of(dataset: ps.Dataset, epoch: int, ranks: int) -> Multiset[Any]:
    """Return all rows of an epoch, over all ranks, by the definition."""
    batches = dataset.batch(SIZE, merge=list)
    return Multiset(
        repr(digest(row)) for rank in range(ranks) for batch in rank_of(batches, epoch, rank, ranks) for row in batch
    )


def take(loaders: list[ps.Loader], steps: int | None) -> Multiset[Any]:
    """Return the rows of the next steps of every rank in the first epoch, or of the rest of it."""
    found: Multiset[Any] = Multiset()
    for loader in loaders:
        if loader.epoch:
            continue  # nothing was left for this rank
        for number, batch in enumerate(loader, 1):
            found.update(repr(digest(row)) for row in batch)
            if number == steps:
                break
    return found


def ranks_of(dataset: ps.Dataset, count: int) -> list[ps.Loader]:
    """Return a loader for each rank, of batches that are lists of rows."""
    batches = dataset.batch(SIZE, merge=list)
    return [ps.Loader(batches, shard=ps.Shard(rank, count, uneven=True)) for rank in range(count)]


@given(
    in_order(dealable=True),
    st.sampled_from([1, 2, 3, 4]),
    st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3),
    st.data(),
)
def test_deals_lose_and_repeat_no_row(dataset: ps.Dataset, ranks: int, others: list[int], data: st.DataObject) -> None:
    """However often an epoch is dealt to other ranks, its rows are those of the epoch."""
    try:
        expected = rows_of(dataset, 0, ranks)
    except ValueError:
        reject()  # an element that no substitute could be found for
    loaders = ranks_of(dataset, ranks)
    found: Multiset[Any] = Multiset()
    for count in others:
        steps = data.draw(st.integers(1, 4))
        found += take(loaders, steps)
        states = [loader.state_dict() for loader in loaders]
        loaders = ranks_of(dataset, count)
        for loader in loaders:
            loader.load_state_dict(states)
    found += take(loaders, None)
    assert found == expected


def test_a_part_that_begins_within_a_stream_is_dealt() -> None:
    """A rank's part that begins within a stream, with the stream's state there, may be dealt again."""
    dataset = ps.stream(lambda: Counter(100)).window_shuffle(8)
    loaders = ranks_of(dataset, 1)
    found: Multiset[Any] = Multiset()
    for count in (3, 4, 2):
        found += take(loaders, 1)
        states = [loader.state_dict() for loader in loaders]
        loaders = ranks_of(dataset, count)
        for loader in loaders:
            loader.load_state_dict(states)
    found += take(loaders, None)
    assert found == rows_of(dataset, 0, 1)


def test_a_deal_keeps_the_count_of_a_limit_below_a_fold() -> None:
    """A limit above the batch counts the batches before a deal, though another fold is above the limit."""
    dataset = ps.range(600).filter(bool).batch(4).limit(10).window_shuffle(2)
    loaders = [ps.Loader(dataset, shard=ps.Shard(rank, 2)) for rank in range(2)]
    for loader in loaders:
        assert len(list(itertools.islice(loader, 6))) == 6
    dealt = [ps.Loader(dataset, shard=ps.Shard(rank, 4)) for rank in range(4)]
    for loader in dealt:
        loader.load_state_dict([each.state_dict() for each in loaders])
    assert [len(list(loader)) for loader in dealt] == [4] * 4


def test_a_deal_loses_no_element_that_waits_in_a_bucket() -> None:
    """Elements that waited in the buckets of old ranks come out after a deal, though the last short batches don't."""
    dataset = ps.range(300).filter(bool).bucket(lambda number: int(number % 3 == 0), [0, 1], rows=40, remainder="drop")
    loaders = [ps.Loader(dataset, shard=ps.Shard(rank, 2, uneven=True)) for rank in range(2)]
    before = [next(iter(loader)).tolist() for loader in loaders]
    dealt = ps.Loader(dataset)
    dealt.load_state_dict([loader.state_dict() for loader in loaders])
    after = [row for batch in dealt for row in batch.tolist()]
    delivered = Multiset([*itertools.chain.from_iterable(before), *after])
    assert [delivered[number] for number in range(1, min(map(max, before)))] == [1] * (min(map(max, before)) - 1)


@pytest.mark.parametrize("name", ENDED)
def test_a_short_window_is_continued_after_a_deal(name: str) -> None:
    """A deal after each step repeats no element, and loses none of a window that is short, since the steps below ended.

    After a deal these steps have more elements: those that they held open and would have left out.
    """
    batches = ENDED[name].batch(2, merge=list)
    for steps in range(len(list(batches)) + 1):
        loader, again = ps.Loader(batches), ps.Loader(batches)
        seen: list[int] = list(itertools.chain.from_iterable(itertools.islice(loader, steps)))
        again.load_state_dict(loader.state_dict())
        rest = list(itertools.chain.from_iterable(again))
        dealt = [ps.Loader(batches, shard=ps.Shard(rank, 2, uneven=True)) for rank in range(2)]
        for rank in dealt:
            rank.load_state_dict(loader.state_dict())
        for count in (1, 2):
            for rank in dealt:
                seen += itertools.chain(*(itertools.islice(rank, 1) if not rank.epoch else ()))
            states = [rank.state_dict() for rank in dealt]
            dealt = [ps.Loader(batches, shard=ps.Shard(rank, count, uneven=True)) for rank in range(count)]
            for rank in dealt:
                rank.load_state_dict(states)
        for rank in dealt:
            seen += itertools.chain(*(rank if not rank.epoch else ()))
        assert len(seen) == len(set(seen)), steps
        assert len(rest) >= 4 or set(rest) <= set(seen), steps
