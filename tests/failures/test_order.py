"""Failures of order and randomness that are known from other loaders, and that must not happen here."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

import penstock as ps

WORKERS = pytest.mark.parametrize("workers", [0, 2])


def epochs_of(dataset: ps.Dataset, count: int, workers: int = 0) -> list[list[Any]]:
    """Return the elements of the first epochs, read by a loader."""
    with ps.Loader(dataset, num_workers=workers) as loader:
        return [list(loader) for _ in range(count)]


def test_a_slice_of_a_shuffle_keeps_its_records_in_every_pass() -> None:
    """Every pass of a shuffled, sliced and repeated part has each of its records once, and no other."""
    shuffled = ps.range(100, seed=1).shuffle()
    for part in (shuffled[:20], shuffled.take(20), shuffled[80:], shuffled.shard(1, 5)):
        own = sorted(part)
        repeated = list(part.repeat(6))
        assert [sorted(repeated[start : start + 20]) for start in range(0, 120, 20)] == [own] * 6
        assert [sorted(epoch) for epoch in epochs_of(part, 4)] == [own] * 4
    train, validation = shuffled[20:], shuffled[:20]
    assert not set(train.repeat(5)) & set(validation.repeat(5))


@pytest.mark.parametrize("length", [25, 7, 10, 1])
def test_a_partial_window_loses_nothing(length: int) -> None:
    """A shuffle with a partial last window has each element of its epoch once, and none of the next."""
    dataset = ps.range(length, seed=3).window_shuffle(10)
    for epoch in epochs_of(dataset, 4):
        assert sorted(epoch) == list(range(length))
        assert sorted(epoch[:10]) == list(range(min(length, 10)))


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_padded_windows_cover_every_frame(stride: int) -> None:
    """With `partial="pad"`, every frame of every episode is in a window, also those after the last full one."""
    lengths = [5, 1, 0, 3, 8]
    episodes = [{"frame": np.arange(count) + 100 * number} for number, count in enumerate(lengths)]
    windows = ps.read(episodes).windows(3, stride, lengths=lengths, partial="pad", mask="is_data")
    found = {int(frame) for window in windows for frame in window["frame"][window["is_data"]]}
    assert found == {int(frame) for episode in episodes for frame in episode["frame"]}


@pytest.mark.parametrize("length", [1, 2, 5, 4**8 + 1, 4**9 + 1, 4**10 + 1, 2**17 + 1])
def test_a_shuffle_is_a_permutation_just_above_powers_of_four(length: int) -> None:
    """With one element more than a power of four, each element comes once."""
    shuffled = ps.range(length, seed=9).shuffle()
    with ps.Loader(shuffled.batch(1 << 16)) as loader:
        for _ in range(2):
            counts = np.zeros(length, np.int64)
            for batch in loader:
                np.add.at(counts, batch, 1)
            assert counts.min() == counts.max() == 1


def test_epoch_1_of_seed_1_is_not_epoch_0_of_seed_2() -> None:
    """Runs with neighbouring seeds share no epoch's order and no element's random numbers."""
    seeds, count = range(4), 4
    orders: list[tuple[int, ...]] = []
    numbers: list[tuple[float, ...]] = []
    for seed in seeds:
        shuffled = ps.range(64, seed=seed).shuffle()
        drawn = ps.range(64, seed=seed).random_map(lambda _, rng: rng.random(), name="draw")
        orders += map(tuple, epochs_of(shuffled, count))
        numbers += map(tuple, epochs_of(drawn, count))
    assert len(set(orders)) == len(orders)
    assert len({number for epoch in numbers for number in epoch}) == 64 * len(numbers)


def crop(number: int, rng: np.random.Generator) -> tuple[int, float]:
    """Return the number and a random one."""
    return number, rng.random()


def flip(element: Any, rng: np.random.Generator) -> tuple[Any, ...]:
    """Return one random number more."""
    return (*element, rng.random())


def test_another_step_reseeds_none() -> None:
    """Another map, random map or shuffle changes no random number of the named steps."""
    start = ps.range(30, seed=5)
    plain = start.random_map(crop).random_map(flip)
    expected = {element[0]: element for element in plain}
    others = [
        start.map(int).random_map(crop).map(tuple).random_map(flip),
        start.random_map(lambda number, _: number).random_map(crop).random_map(flip),
        start.random_map(crop).random_map(lambda element, _: element).random_map(flip),
        start.filter(lambda _: True).random_map(crop).random_map(flip),
    ]
    for other in others:
        assert {element[0]: element for element in other} == expected
    assert [element[2] for element in start.map(lambda n: (n, 0.0)).random_map(flip)] == [e[2] for e in plain]


def test_two_lambdas_have_two_streams() -> None:
    """Random steps never share a stream: not lambdas, not a repeated function, not equal parts of a mixture."""
    twice = (
        ps.range(200, seed=2).random_map(lambda _, rng: (rng.random(),)).random_map(lambda e, rng: (*e, rng.random()))
    )
    assert all(first != second for first, second in twice)
    again = ps.range(200, seed=2).map(lambda _: ()).random_map(draw).random_map(draw)
    assert all(first != second for first, second in again)
    one = ps.range(200, seed=2).map(lambda _: ()).random_map(draw)
    mixed = ps.mix({"one": one, "other": one})
    assert len(set(mixed)) == len(mixed) == 400


def draw(element: tuple[float, ...], rng: np.random.Generator) -> tuple[float, ...]:
    """Return one random number more."""
    return (*element, rng.random())


@WORKERS
def test_none_is_an_element(workers: int) -> None:
    """A map that returns None is no filter: its elements are None, and the others keep their positions."""
    dataset = ps.range(10).map(lambda number: None if number % 3 == 0 else number)
    expected = [None if number % 3 == 0 else number for number in range(10)]
    assert list(dataset) == expected
    assert epochs_of(dataset, 1, workers) == [expected]


def test_zip_of_unequal_lengths_is_refused() -> None:
    """Unequal lengths are an error, at once or where they are met, unless `unequal` allows them."""
    with pytest.raises(ps.errors.GraphError, match="equal lengths"):
        ps.zip([ps.range(3), ps.range(4)])
    filtered = ps.range(8).filter(lambda number: number % 2)
    with pytest.raises(ps.errors.GraphError, match="equal lengths"):
        list(ps.zip([filtered, ps.range(7)]))
    assert len(ps.zip([ps.range(3), ps.range(4)], unequal="shortest")) == 3
    assert len(list(ps.zip([filtered, ps.range(7)], unequal="shortest"))) == 4


@WORKERS
def test_filtered_data_can_be_repeated(workers: int) -> None:
    """Filtered data repeats, also without end, in full batches and new orders, with every element in each pass."""
    odd = ps.range(21, seed=4).shuffle().filter(lambda number: number % 2)
    (batches,) = epochs_of(odd.repeat(3).batch(4), 1, workers)
    assert [len(batch) for batch in batches] == [4] * 7 + [2]
    rows = np.concatenate(batches).tolist()
    passes: list[list[int]] = [rows[start : start + 10] for start in (0, 10, 20)]
    assert [sorted(each) for each in passes] == [list(range(1, 21, 2))] * 3
    assert len({tuple(each) for each in passes}) == 3
    with ps.Loader(odd.repeat().batch(4), num_workers=workers) as loader:
        batches = [batch for batch, _ in zip(loader, range(50), strict=False)]
    assert set(Counter[int](np.concatenate(batches).tolist()).values()) == {20}


@WORKERS
def test_every_epoch_begins_again(workers: int) -> None:
    """A whole epoch follows an epoch that ended or was abandoned."""
    with ps.Loader(ps.range(10, seed=1).shuffle().batch(3), num_workers=workers) as loader:
        for epoch in range(3):
            assert sorted(np.concatenate(list(loader)).tolist()) == list(range(10))
            assert loader.epoch == epoch
        next(iter(loader))
        assert sorted(np.concatenate(list(loader)).tolist()) == list(range(10))
        assert loader.epoch == 4


def test_every_rank_meets_every_record() -> None:
    """The shuffle goes over all ranks: a rank gets other records in each epoch, not those of a fixed part."""
    batches = ps.range(64, seed=6).shuffle().batch(8)
    for rank in range(4):
        with ps.Loader(batches, shard=ps.Shard(rank, 4)) as loader:
            epochs = [frozenset(np.concatenate(list(loader)).tolist()) for _ in range(40)]
        assert {len(each) for each in epochs} == {16}
        assert len(set(epochs)) == 40
        assert frozenset[int]().union(*epochs) == set(range(64))
