"""Failures of saving and resuming that are known from other loaders, and that must not happen here."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.equivalence.definition import digest, digests

WORKERS = pytest.mark.parametrize("workers", [0, 2])
KINDS = pytest.mark.parametrize("kind", ["indexable", "ordered"])
BAD = 37


def noisy(number: int, rng: np.random.Generator) -> Any:
    """Return the number and a random one."""
    return {"number": number, "noise": rng.random()}


def is_odd(element: Any) -> bool:
    """Keep odd numbers."""
    return bool(element["number"] % 2)


def start(seed: int = 1, length: int = 120) -> ps.Dataset:
    """Return shuffled, noisy numbers."""
    return ps.range(length, seed=seed).shuffle().random_map(noisy)


def test_the_state_of_other_weights_or_parts_is_refused() -> None:
    """A mixture refuses a state with another past of weights or parts, and takes one with another future."""

    def loader(schedule: Any, names: str = "ab") -> ps.Loader:
        parts = {name: ps.range(1000 * ord(name), 1000 * ord(name) + 100).shuffle() for name in names}
        return ps.Loader(ps.mix(parts, schedule, stop="all").batch(8))

    saved = loader({0: {"a": 1, "b": 1}})
    begun = list(islice(saved, 3))
    state = saved.state_dict()
    for other in (loader({0: {"a": 2, "b": 1}}), loader({0: {"a": 1, "b": 1}, 20: {"a": 1}}), loader(None, "abc")):
        with pytest.raises(ps.errors.StateError, match="another"):
            other.load_state_dict(state)
    other = loader({0: {"a": 1, "b": 1}, 24: {"a": 1, "b": 2, "c": 3}}, "cab")
    other.load_state_dict(state)
    rows = np.concatenate([*begun, *other]).tolist()
    assert sorted(rows) == [1000 * ord(name) + number for name in "abc" for number in range(100)]


HOLDS: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "window": lambda dataset: dataset.window_shuffle(8),
    "rows": lambda dataset: dataset.batch(8).unbatch(),
    "flat_map": lambda dataset: dataset.flat_map(lambda number: [10 * number + copy for copy in range(8)]),
}


@pytest.mark.parametrize("name", HOLDS)
def test_weights_do_not_change_within_a_window(name: str) -> None:
    """No window resumes half with other weights: they change after the elements that were read, or it is an error."""

    def loader(schedule: Any) -> ps.Loader:
        parts = {"a": ps.range(20).filter(lambda _: True), "b": ps.range(100, 120).filter(lambda _: True)}
        return ps.Loader(HOLDS[name](ps.mix(parts, schedule, stop="all")).batch(4, merge=list))

    old = {0: {"a": 1, "b": 1}}
    saved = loader(old)
    begun = next(iter(saved))
    state = saved.state_dict()
    for position in (0, 4, 8):
        other = loader({**old, position: {"b": 5, "a": 1} if position else {"b": 1}})
        other.load_state_dict(state)
        if position == 0 or (position == 4 and name != "flat_map"):
            with pytest.raises(ps.errors.StateError, match=r"saved within .* which has other elements"):
                next(iter(other))
        else:
            found = [int(row) for batch in [begun, *other] for row in batch]
            assert sorted(found) == sorted(int(row) for batch in loader(old) for row in batch)


def bad(element: Any) -> Any:
    """Raise at one record."""
    if element["number"] == BAD:
        raise OSError("corrupt")
    return element


class CorruptError(ValueError):
    """An exception that can't be made again from its text."""

    def __init__(self, name: str, *, offset: int) -> None:
        super().__init__(f"{name} at {offset}")


def worse(element: Any) -> Any:
    """Raise an error of a class of this file at one record."""
    if element["number"] == BAD:
        raise CorruptError("shard", offset=BAD)
    return element


@WORKERS
@pytest.mark.parametrize("function", [bad, worse])
@KINDS
def test_an_exception_loses_no_other_row(workers: int, function: Any, kind: str) -> None:
    """An exception is raised unchanged at its step, again at each retry; past it all other rows come."""
    ordered = kind == "ordered"
    rows = start().filter(lambda element: element["number"] < 80) if ordered else start()
    whole = digests(ps.Loader(rows.batch(4)))
    failing = next(step for step, batch in enumerate(ps.Loader(rows.batch(4))) if BAD in batch["number"])
    with ps.Loader(rows.map(function, name="decode").batch(4), num_workers=workers) as loader:
        found: list[Any] = []
        for _ in range(2):
            with pytest.raises((OSError, CorruptError), match=r"corrupt|shard at 37") as caught:
                found.extend(map(digest, loader))
            assert "step 'decode'" in "".join(caught.value.__notes__)
            assert found == whole[:failing]
            loader.load_state_dict(loader.state_dict())
        if not ordered:
            loader.seek(failing + 1)
            assert digests(loader) == whole[failing + 1 :]
        state = loader.state_dict(failing)
    with ps.Loader(rows.map(function, name="decode", on_error="skip").batch(4)) as loader:
        if ordered:  # nothing but that record is left out
            loader.load_state_dict(state, allow={"order"})
            numbers = [number for batch in loader for number in batch["number"].tolist()]
            expected = [number for batch in ps.Loader(rows.batch(4)) for number in batch["number"].tolist()]
            assert numbers == [number for number in expected[4 * failing :] if number != BAD]
