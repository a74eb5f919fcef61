"""A loader made again in a loop over epochs warns that it begins with epoch 0, and no other loader does."""

import logging
from collections.abc import Callable
from itertools import count, islice
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.places import in_places

SEEDS = count(100)  # other cases have other datasets


def jittered(number: int, rng: np.random.Generator) -> float:
    """Return the number and a random one."""
    return number + rng.random()


def shuffled(seed: int = 3) -> ps.Dataset[Any]:
    """Return shuffled numbers."""
    return ps.range(8, seed=seed).shuffle().batch(4)


def randomly_mapped(seed: int) -> ps.Dataset[Any]:
    """Return numbers with random parts."""
    return ps.range(8, seed=seed).random_map(jittered).batch(4)


def shuffled_in_order(seed: int) -> ps.Dataset[Any]:
    """Return shuffled numbers that can only be read in order."""
    return ps.range(8, seed=seed).shuffle().filter(bool).batch(4)


def made(dataset: ps.Dataset[Any], **place: Any) -> ps.Loader[Any]:
    """Return a loader, made by this line."""
    return ps.Loader(dataset, **place)


def warnings_of(caplog: pytest.LogCaptureFixture, loader: ps.Loader[Any], most: int | None = None) -> int:
    """Return how many warnings of a repeated epoch come while an epoch, or the beginning of one, is read."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "penstock"):
        list(islice(loader, most))
    return sum("begins with epoch 0" in record.getMessage() for record in caplog.records)


@pytest.mark.each_value
@in_places("inline", "threads", "isolated")
@pytest.mark.parametrize("make", [shuffled, randomly_mapped, shuffled_in_order])
def test_a_loader_in_a_loop_over_epochs_warns(
    make: Callable[[int], ps.Dataset[Any]], place: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The first loader logs nothing, the second one made by the same line logs a warning, and no later one does."""
    dataset, counts = make(next(SEEDS)), list[int]()
    for _ in range(3):
        with ps.Loader(dataset, **place) as loader:
            counts.append(warnings_of(caplog, loader))
    assert counts == [0, 1, 0]


def test_other_loaders_do_not_warn(caplog: pytest.LogCaptureFixture) -> None:
    """A second epoch, a resumed loader, another dataset, a part of an epoch and equal epochs give no warning."""
    loader = made(shuffled())
    assert [warnings_of(caplog, loader), warnings_of(caplog, loader)] == [0, 0]
    resumed = made(shuffled())
    resumed.load_state_dict(loader.state_dict())
    sought = made(shuffled())
    sought.seek(position=0, epoch=1)
    plain = ps.range(8).batch(4)
    for each in (resumed, sought, made(shuffled(4)), ps.Loader(shuffled()), made(plain), made(plain)):
        assert warnings_of(caplog, each) == 0
    for _ in range(2):
        assert warnings_of(caplog, made(shuffled(5)), most=1) == 0
