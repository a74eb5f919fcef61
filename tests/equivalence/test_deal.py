"""A deal of the ranks' unfinished work to any number of other ranks loses no element and repeats none."""

import itertools
from collections import Counter as Multiset
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import example, given, reject
from hypothesis import strategies as st

import penstock as ps
from tests.equivalence.definition import digest, rank_of
from tests.equivalence.joins import Counter, in_order
from tests.profiles import in_short

SIZE = 12
ROWS = st.integers(1, 6)
RANKS = st.integers(1, 4)


def mixture() -> ps.Dataset:
    """Return a mixture that ends with its second part, while the window of the first one has elements."""
    return ps.mix({"web": ps.range(14).window_shuffle(4), "code": ps.range(100, 105).map(int)})


FILTERED = ps.range(17).filter(bool)
ENDED: dict[str, ps.Dataset] = {  # in each, the last window is short, since the steps below leave elements out
    "mixture": mixture().window_shuffle(4),
    "mixture in batches": mixture().batch(4).unbatch(),
    "mixture in a part": ps.interleave([mixture().window_shuffle(4), ps.range(200, 206).filter(bool)]),
    "mixture that is one of two": ps.concatenate([mixture(), ps.range(200, 206).filter(bool)]).window_shuffle(4),
    "mixture in a fold of parts": ps.interleave([mixture().batch(4).unbatch(), ps.range(200, 209)]).window_shuffle(4),
    "bucket": FILTERED.bucket(lambda n: n % 3, [1, 2], rows=3, remainder="drop").window_shuffle(4).unbatch(),
}

LONG_ENDED = ("mixture that is one of two", "mixture in a fold of parts")  # each a combination of two of the others


def rows_of(dataset: ps.Dataset, epoch: int, ranks: int) -> Multiset[Any]:
    """Return all rows of an epoch, over all ranks, by the definition."""
    batches = dataset.batch(SIZE, merge=list)
    return Multiset(
        repr(digest(row)) for rank in range(ranks) for batch in rank_of(batches, epoch, rank, ranks) for row in batch
    )


def take(loaders: list[ps.Loader], steps: int | None) -> Multiset[Any]:
    """Return the rows of the next steps of every rank in the first epoch, or of the rest of it."""
    found: Multiset[Any] = Multiset()
    (epoch,) = {loader.epoch for loader in loaders}
    for loader in loaders if epoch == 0 else ():
        for number, batch in enumerate(loader, 1):
            found.update(repr(digest(row)) for row in batch)
            if number == steps:
                break
    return found


def ranks_of(dataset: ps.Dataset, count: int) -> list[ps.Loader]:
    """Return a loader for each rank, of batches that are lists of rows."""
    batches = dataset.batch(SIZE, merge=list)
    return [ps.Loader(batches, shard=ps.Shard(rank, count, uneven=True)) for rank in range(count)]


DEALS = st.lists(st.tuples(st.integers(1, 4), RANKS), min_size=1, max_size=3)


@in_short(15)
@given(in_order(dealable=True), RANKS, DEALS)
@example(ps.stream(lambda: Counter(100)).window_shuffle(8), 1, [(1, 3), (1, 4), (1, 2)])  # parts begin within a stream
def test_deals_lose_and_repeat_no_row(dataset: ps.Dataset, ranks: int, deals: list[tuple[int, int]]) -> None:
    """However often an epoch is dealt to other ranks, after some steps each, its rows are those of the epoch."""
    try:
        expected = rows_of(dataset, 0, ranks)
    except ValueError:
        reject()  # an element that no substitute could be found for
    loaders = ranks_of(dataset, ranks)
    found: Multiset[Any] = Multiset()
    for steps, count in deals:
        found += take(loaders, steps)
        states = [loader.state_dict() for loader in loaders]
        loaders = ranks_of(dataset, count)
        for loader in loaders:
            loader.load_state_dict(states)
    found += take(loaders, None)
    assert found == expected


@in_short(15)
@given(st.integers(1, 40), ROWS, ROWS, RANKS, RANKS, st.integers(0, 5))
@example(20, 6, 2, 1, 3, 3)  # two elements are left for three ranks
def test_all_ranks_resume_in_the_same_epoch(
    length: int, old_rows: int, rows: int, old_ranks: int, ranks: int, steps: int
) -> None:
    """However little is left for a rank, the rest of the epoch comes once; then all ranks begin the next one."""
    numbers = ps.range(length).filter(keeps)
    old, new = opened(numbers, old_rows, old_ranks), opened(numbers, rows, ranks)
    delivered = [list(itertools.islice(loader, steps)) for loader in old]
    whole = int(all(len(batches) < steps for batches in delivered))  # the epoch was seen to end on every rank
    for loader in new:
        loader.load_state_dict([each.state_dict() for each in old])
    assert {loader.epoch for loader in new} == {whole}
    rest = flat(flat(new))
    assert sorted([*flat(flat(delivered)), *rest]) == sorted([*numbers, *(numbers if whole else ())])
    assert {loader.state_dict()["epoch"] for loader in new} == {whole + 1}
    assert sorted(flat(flat(new))) == list(numbers)


def opened(numbers: ps.Dataset[int], rows: int, count: int) -> list[ps.Loader[Any]]:
    """Return a loader for each rank, of batches with a number of rows on each."""
    batches = numbers.batch(rows * count)
    return [ps.Loader(batches, shard=ps.Shard(rank, count, uneven=True)) for rank in range(count)]


def flat(groups: Iterable[Iterable[Any]]) -> list[Any]:
    """Return the elements of all groups."""
    return list(itertools.chain.from_iterable(groups))


def keeps(number: int) -> bool:
    """Return whether a number is kept, more often on some ranks than on others."""
    return number % 4 != 3 and number % 5 != 1


@pytest.mark.parametrize("last", [17, 18])
def test_a_state_after_the_last_batch_has_an_empty_rest(last: int, caplog: pytest.LogCaptureFixture) -> None:
    """Inside the loop a resume has an empty pass, also if the last element was read; after the loop, the next epoch.

    An empty rest is no epoch without a batch, so nothing is logged.
    """
    batches = ps.range(last + 1).filter(lambda number: number < 18).batch(6)
    loader, resumed = ps.Loader(batches), ps.Loader(batches)
    for _ in zip(range(3), loader, strict=False):
        pass
    other = ps.Loader(batches, shard=ps.Shard(2, 3, uneven=True))
    for each in (resumed, other):
        each.load_state_dict(loader.state_dict())
        assert (each.epoch, each.steps_done, list(each)) == (0, 3, [])
        assert len(list(each)) == 3
        assert (each.epoch, each.steps_done) == (1, 6)
    loader.load_state_dict(resumed.state_dict())
    assert (loader.epoch, next(iter(loader)).tolist()) == (2, list(range(6)))
    assert not caplog.records


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


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in LONG_ENDED else name for name in ENDED]
)
def test_a_short_window_is_continued_after_a_deal(name: str) -> None:
    """A deal after each step repeats no element, and loses none of a window that is short, since the steps below ended.

    After a deal these steps have more elements: those that they held open and would have left out.
    """
    batches = ENDED[name].batch(2, merge=list)

    def dealt(count: int, states: Any) -> list[ps.Loader]:
        ranks = [ps.Loader(batches, shard=ps.Shard(rank, count, uneven=True)) for rank in range(count)]
        for rank in ranks:
            rank.load_state_dict(states)
        return ranks

    for steps in range(len(list(batches)) + 1):
        loader, again = ps.Loader(batches), ps.Loader(batches)
        seen = flat(itertools.islice(loader, steps))
        again.load_state_dict(loader.state_dict())
        rest = flat(again)
        ranks = dealt(2, loader.state_dict())
        for count in (1, 2):
            seen += flat(batch for rank in ranks if not rank.epoch for batch in itertools.islice(rank, 1))
            ranks = dealt(count, [rank.state_dict() for rank in ranks])
        seen += flat(batch for rank in ranks if not rank.epoch for batch in rank)
        assert len(seen) == len(set(seen)), steps
        assert len(rest) >= 4 or set(rest) <= set(seen), steps
