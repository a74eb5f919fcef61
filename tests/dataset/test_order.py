"""The verbs that change the order or the choice of elements."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.sampling import FixedOrder, Shuffle
from tests.dataset.functions import draw, noisy
from tests.profiles import fewer, in_short

SIZES = st.sampled_from([0, 1, 2, 3, 7, 8, 9, 16, 17, 31, 97])


@in_short(15)
@given(SIZES, st.integers(0, 99), st.integers(1, 5), st.integers(0, 40))
def test_shuffles_shards_and_parts(size: int, seed: int, count: int, part: int) -> None:
    """Every epoch has each element once, in an order of its own; shards keep their records, `take` and `skip` divide.

    Shards are disjoint, complete and equal but for one element.
    """
    shuffled = ps.range(size, seed=seed).shuffle()
    orders = [tuple(shuffled.epoch(epoch)) for epoch in range(4)]
    assert all(sorted(order) == list(range(size)) for order in orders)
    assert len(set(orders)) == len(orders) or size < 7
    parts = [shuffled.shard(index, count) for index in range(count)]
    assert [list(shard) for shard in parts] == [list(shuffled)[index::count] for index in range(count)]
    assert [sorted(shard.epoch(3)) for shard in parts] == [sorted(shard) for shard in parts]
    assert (list(shuffled.take(part)), list(shuffled.skip(part))) == ([*orders[0]][:part], [*orders[0]][part:])


def test_a_window_shuffle_keeps_each_element_in_its_window() -> None:
    """Each epoch has each element once, and a window of ten has the next ten, the last window the rest."""
    for length in (25, 7, 10):
        with ps.Loader(ps.range(length, seed=3).window_shuffle(10)) as loader:
            for epoch in (list(loader), list(loader)):
                windows = [sorted(epoch[start : start + 10]) for start in range(0, length, 10)]
                assert [number for window in windows for number in window] == list(range(length))


@in_short(15)
@given(st.integers(1, 5), st.integers(0, 20))
def test_a_selection_of_alternating_orders_is_one_set(cycle: int, count: int) -> None:
    """Orders that alternate between epochs are held like a shuffle, so a part exchanges no elements with the rest."""
    alternating = ps.range(20).reindex(ps.sampling.FixedOrder(ps.sampling.Shuffle(20, seed=7), cycle))
    sets = [set(alternating.take(count).epoch(epoch)) for epoch in range(6)]
    assert sets == sets[:1] * 6
    rest = set(alternating.skip(count).epoch(1))
    assert not rest & sets[0]


def test_a_selection_without_a_shuffle_keeps_its_order() -> None:
    """A selection reorders nothing by itself."""
    assert [list(ps.range(9)[2:5].epoch(epoch)) for epoch in range(3)] == [[2, 3, 4]] * 3
    fixed = ps.range(20).shuffle().epoch(1)
    assert list(fixed[:4].epoch(7)) == list(fixed)[:4]


def test_a_selection_of_several_passes_without_a_shuffle_keeps_their_order() -> None:
    """Each pass of an unshuffled dataset has the same order, so a selection of passes has it in each epoch, too."""
    for times, expected in ((1, [*range(8)]), (2, [*range(8), 0, 1]), (None, [*range(8), 0, 1])):
        chosen = ps.range(8).repeat(times).take(10)
        assert [list(chosen.epoch(epoch)) for epoch in range(3)] == [expected] * 3
        assert list(chosen.cache()) == expected  # which refuses a dataset of another order in every epoch


def test_random_maps_below_a_selection_change_with_the_epoch() -> None:
    """A slice fixes the set of elements, and not their augmentation."""
    chosen = ps.range(40, seed=2).shuffle().random_map(draw)[:10]
    draws = [number for epoch in range(4) for number in chosen.epoch(epoch)]
    assert len(set(draws)) == 40


@pytest.mark.parametrize("count", [5, 24])
def test_subset_covers_everything_equally(count: int) -> None:
    """Each epoch has `count` different elements, and over many epochs all come about equally often."""
    dataset = ps.range(24, seed=1).subset(count)
    assert len(dataset) == count
    with ps.Loader(dataset.batch(count)) as loader:
        epochs = [batch.tolist() for _ in range(240) for batch in loader]
    assert all(len(set(epoch)) == count for epoch in epochs)
    counts = Counter(number for epoch in epochs for number in epoch)
    expected = 240 * count / 24
    deviation = (expected * (1 - count / 24)) ** 0.5
    assert all(abs(counts[number] - expected) <= 5 * deviation for number in range(24))


@fewer()
@given(SIZES, st.integers(1, 4))
def test_repeat_continues_over_epochs(size: int, times: int) -> None:
    """Each pass is another epoch, and no two epochs of the repeated dataset share one.

    Without reshuffling, order and random maps are those of the first pass, which differs in each epoch.
    """
    dataset = ps.range(size, seed=8).shuffle().random_map(noisy)
    repeated, same = dataset.repeat(times), dataset.repeat(times, reshuffle=False)
    assert len(repeated) == len(same) == size * times
    for outer in range(2):
        epochs = range(outer * times, (outer + 1) * times)
        assert list(repeated.epoch(outer)) == [element for epoch in epochs for element in dataset.epoch(epoch)]
        assert list(same.epoch(outer)) == list(dataset.epoch(outer)) * times


def test_epoch_fixes_order_and_randomness() -> None:
    """A fixed epoch is the same in every pass, and equals that epoch of the loader."""
    dataset = ps.range(12, seed=8).shuffle().random_map(noisy)
    fixed = dataset.epoch(2)
    with ps.Loader(dataset) as loader, ps.Loader(fixed) as fixed_loader:
        epochs = [list(loader) for _ in range(3)]
        assert [list(fixed_loader) for _ in range(2)] == [epochs[2]] * 2
    assert list(fixed) == list(fixed.epoch(5)) == epochs[2]
    assert list(dataset.epoch(0)) == epochs[0] == list(dataset)


def test_random_maps_above_a_repeated_order() -> None:
    """Above `epoch` they repeat their draws in every epoch, above `reshuffle=False` in every pass.

    Above and below a FixedOrder they don't, as the messages say that tell how to fix an order.
    """
    shuffled = ps.range(12, seed=8).shuffle()
    above = shuffled.epoch(2).random_map(noisy)
    assert list(above.epoch(0)) == list(above.epoch(1)) == list(shuffled.random_map(noisy).epoch(2))
    again = shuffled.repeat(2, reshuffle=False).random_map(noisy)
    assert list(again)[:12] == list(again)[12:] == list(shuffled.random_map(noisy))
    assert list(again) != list(again.epoch(1))
    order = FixedOrder(Shuffle(12, seed=8))
    fixed = ps.range(12, seed=8).reindex(order)
    assert list(fixed.epoch(0)) == list(fixed.epoch(1)) == list(fixed.cache())
    for varying in (
        fixed.random_map(noisy),
        ps.range(12).random_map(noisy).reindex(order),
        fixed.cache().random_map(noisy),
    ):
        assert not set(varying.epoch(0)) & set(varying.epoch(1))


def test_a_schedule_takes_positions_of_any_type_of_integers() -> None:
    """Also such that a dict finds by identity alone, as tensors of torch."""

    class Position:
        def __index__(self) -> int:
            return 4

    parts = {"a": ps.range(10), "b": ps.range(100, 110)}
    schedules: list[dict[Any, dict[str, float]]] = [{0: {"a": 1}, at: {"b": 1}} for at in (4, Position())]
    first, second = (list(ps.mix(parts, schedule)) for schedule in schedules)
    assert first == second == [*range(4), *range(100, 110)]
