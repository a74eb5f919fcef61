"""A loader made again in a loop over epochs warns that it begins with epoch 0, and no other loader does."""

import logging
from collections.abc import Callable
from itertools import count, islice
from typing import Any

import pytest

import penstock as ps
from tests.dataset.functions import noisy
from tests.places import in_places

SEEDS = count(100)  # other cases have other datasets


MAKES: dict[str, Callable[[int], ps.Dataset[Any]]] = {
    "shuffled": lambda seed: ps.range(8, seed=seed).shuffle().batch(4),
    "randomly mapped": lambda seed: ps.range(8, seed=seed).random_map(noisy).batch(4, merge=list),
    "in order": lambda seed: ps.range(8, seed=seed).shuffle().filter(bool).batch(4),
}
shuffled = MAKES["shuffled"]


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
@pytest.mark.parametrize("kind", MAKES)
def test_a_loader_in_a_loop_over_epochs_warns(
    kind: str, place: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The first loader logs nothing, the second one made by the same line logs a warning, and no later one does."""
    dataset, counts = MAKES[kind](next(SEEDS)), list[int]()
    for _ in range(3):
        with ps.Loader(dataset, **place) as loader:
            counts.append(warnings_of(caplog, loader))
    assert counts == [0, 1, 0]


def test_other_loaders_do_not_warn(caplog: pytest.LogCaptureFixture) -> None:
    """A second epoch, a resumed loader, another dataset, a part of an epoch and equal epochs give no warning."""
    loader = made(shuffled(3))
    assert [warnings_of(caplog, loader), warnings_of(caplog, loader)] == [0, 0]
    resumed = made(shuffled(3))
    resumed.load_state_dict(loader.state_dict())
    sought = made(shuffled(3))
    sought.seek(position=0, epoch=1)
    plain = ps.range(8).batch(4)
    for each in (resumed, sought, made(shuffled(4)), ps.Loader(shuffled(3)), made(plain), made(plain)):
        assert warnings_of(caplog, each) == 0
    for _ in range(2):
        assert warnings_of(caplog, made(shuffled(5)), most=1) == 0
    below = ps.range(8).shuffle().random_map(noisy).epoch(0)
    above = ps.range(8).shuffle().epoch(0)[1:].map(int).random_map(noisy)
    for fixed in (below, above, ps.zip((below[1:], above))):
        for _ in range(2):
            assert warnings_of(caplog, made(fixed.batch(4, merge=list))) == 0
    part = ps.concatenate([above, ps.range(8).random_map(noisy)])
    assert [warnings_of(caplog, made(part.batch(4, merge=list))) for _ in range(2)] == [0, 1]
    count = ps.range(8).epoch(0).select([1, 1]).random_map(noisy)  # its positions are those of the list
    assert [warnings_of(caplog, made(count.batch(4, merge=list))) for _ in range(2)] == [0, 1]
