"""Functions may write to their element, and each is called once for an element, also where another element raises."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock as ps
from tests.dataset.functions import keep
from tests.equivalence.definition import epoch_of, outcomes
from tests.places import LINUX, PLACES, in_places, place_of

BAD = 13


def array(number: int) -> NDArray[np.int64]:
    """Return an element that can be written to."""
    return np.full(3, number)


def doubled(element: NDArray[np.int64]) -> NDArray[np.int64]:
    """Double an element in place; then raise at one, where a second call would not recognise it."""
    element *= 2
    if element[0] == 2 * BAD:
        raise ValueError(f"no element {BAD}")
    return element


def doubled_batch(batch: NDArray[np.int64]) -> NDArray[np.int64]:
    """Double a batch in place; then raise if one of its elements is the bad one."""
    batch *= 2
    if (batch == 2 * BAD).any():
        raise ValueError(f"no batch with element {BAD}")
    return batch


def noisy(element: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Add a random number to an element in place; then raise at some."""
    is_bad = element[0] % 4 == 1
    element += rng.integers(1000)
    if is_bad:
        raise ValueError("bad")
    return element


def copies(element: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return two elements made of one, which is doubled in place."""
    return [doubled(element), element + 1]


MAKES: dict[str, Callable[[Any], Any]] = {
    "skip": lambda rows: rows.map(doubled, on_error="skip").batch(4),
    "substitute": lambda rows: rows.map(doubled, on_error=ps.Substitute()).batch(4),
    "random": lambda rows: rows.random_map(noisy, on_error=ps.Substitute(attempts=50)).batch(4),
    "raise": lambda rows: rows.map(doubled).batch(4),
    "elements": lambda rows: rows.map(doubled),
    "skip in order": lambda rows: rows.window_shuffle(8).map(doubled, on_error="skip").batch(4),
    "raise in order": lambda rows: rows.window_shuffle(8).map(doubled).batch(4),
    "flat": lambda rows: rows.window_shuffle(8).flat_map(copies),
    "skipped batches": lambda rows: rows.filter(keep).batch(4).map(doubled_batch, on_error="skip"),
    "batches": lambda rows: rows.filter(keep).batch(1).map(doubled).limit(20),
}


LONG = {"substitute", "raise", "elements", "skip in order", "batches"}  # processes do with them what threads do


@pytest.mark.parametrize(
    ("steps", "place"),
    [
        *(place_of(place, steps) for steps in MAKES for place in ("inline", "threads")),
        *(place_of("processes", steps) for steps in MAKES if steps not in LONG),
        *(pytest.param(steps, PLACES["processes"], marks=[LINUX, pytest.mark.long]) for steps in sorted(LONG)),
    ],
)
def test_each_element_is_written_to_once(steps: str, place: dict[str, Any]) -> None:
    """Batches and errors are the definition's, which calls the function once for each element."""
    dataset = MAKES[steps](ps.range(40).map(array))
    with ps.Loader(dataset, **place) as loader:
        assert outcomes(loader) == outcomes(epoch_of(dataset, 0))


@in_places("inline", "threads")
@pytest.mark.parametrize("steps", ["unbatch", "flat_map"])
def test_a_row_that_is_chosen_twice_is_not_shared(steps: str, place: dict[str, Any]) -> None:
    """Each selection of a row has memory of its own, from a batch or from a list of `flat_map`, in one block or two."""
    arrays = ps.range(8).map(array)
    rows = arrays.batch(4).unbatch() if steps == "unbatch" else arrays.flat_map(copies, counts=[2] * 8)
    for size in (1, 2, 6):
        dataset = rows.select([2, 5, 2, 2, 5, 1]).map(doubled, name="again").batch(size)
        with ps.Loader(dataset, **place) as loader:
            assert outcomes(loader) == outcomes(epoch_of(dataset, 0))
