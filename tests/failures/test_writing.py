"""Functions may write to their element; where one raises for another element, each was still called once for each."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock as ps
from tests.equivalence.definition import epoch_of, outcomes

BAD = 13
PLACES: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2, "workers": "threads"},
    {"num_workers": 2, "workers": "processes"},
]


def array(number: int) -> NDArray[np.int64]:
    """Return an element that can be written to."""
    return np.full(3, number)


def doubled(element: NDArray[np.int64]) -> NDArray[np.int64]:
    """Double an element where it lies; of one raise an error then, by which nobody would know it a second time."""
    element *= 2
    if element[0] == 2 * BAD:
        raise ValueError(f"no element {BAD}")
    return element


def doubled_batch(batch: NDArray[np.int64]) -> NDArray[np.int64]:
    """Double a batch where it lies; raise an error then if one of its elements is the bad one."""
    batch *= 2
    if (batch == 2 * BAD).any():
        raise ValueError(f"no batch with element {BAD}")
    return batch


def doubled_or_stopped(element: NDArray[np.int64]) -> NDArray[np.int64]:
    """Do the same; the error is one that would end an iteration."""
    element *= 2
    if element[0] == 2 * BAD:
        raise StopIteration
    return element


def noisy(element: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Add a number to an element where it lies, and then maybe raise."""
    is_bad = element[0] % 4 == 1
    element += rng.integers(1000)
    if is_bad:
        raise ValueError("bad")
    return element


def copies(element: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return two elements made of one, which is doubled where it lies."""
    return [doubled(element), element + 1]


def is_any(element: object) -> bool:
    """Keep every element."""
    return element is not None


MAKES: dict[str, Callable[[Any], Any]] = {
    "skip": lambda rows: rows.map(doubled, on_error="skip").batch(4),
    "substitute": lambda rows: rows.map(doubled, on_error=ps.Substitute()).batch(4),
    "random": lambda rows: rows.random_map(noisy, on_error=ps.Substitute(attempts=50)).batch(4),
    "raise": lambda rows: rows.map(doubled).batch(4),
    "elements": lambda rows: rows.map(doubled),
    "skip in order": lambda rows: rows.window_shuffle(8).map(doubled, on_error="skip").batch(4),
    "raise in order": lambda rows: rows.window_shuffle(8).map(doubled).batch(4),
    "flat": lambda rows: rows.window_shuffle(8).flat_map(copies),
    "skipped batches": lambda rows: rows.filter(is_any).batch(4).map(doubled_batch, on_error="skip"),
    "batches": lambda rows: rows.filter(is_any).batch(1).map(doubled).limit(20),
}


@pytest.mark.parametrize("place", PLACES, ids=["inline", "threads", "processes"])
@pytest.mark.parametrize("steps", list(MAKES))
def test_each_element_is_written_to_once(steps: str, place: dict[str, Any]) -> None:
    """Batches and errors are the definition's, which calls the function of one element after the other."""
    dataset = MAKES[steps](ps.range(40).map(array))
    with ps.Loader(dataset, **place) as loader:
        assert outcomes(loader) == outcomes(epoch_of(dataset, 0))


@pytest.mark.parametrize("place", PLACES, ids=["inline", "threads", "processes"])
def test_an_error_may_be_a_stop_iteration(place: dict[str, Any]) -> None:
    """It is told as what it would otherwise hide, with itself as the cause; batches before it come first."""
    with ps.Loader(ps.range(40).map(array).map(doubled_or_stopped).batch(4), **place) as loader:
        batches = iter(loader)
        assert [next(batches)[0, 0] for _ in range(3)] == [0, 8, 16]
        with pytest.raises(RuntimeError, match="raised StopIteration") as caught:
            next(batches)
    assert isinstance(caught.value.__cause__, StopIteration)


@pytest.mark.parametrize("place", PLACES[:2])
@pytest.mark.parametrize("steps", ["unbatch", "flat_map"])
def test_a_row_that_is_chosen_twice_is_not_shared(steps: str, place: dict[str, Any]) -> None:
    """Each choice of a row, of a batch that is taken apart or of a list of `flat_map`, has memory of its own."""
    arrays = ps.range(8).map(array)
    rows = arrays.batch(4).unbatch() if steps == "unbatch" else arrays.flat_map(copies, counts=[2] * 8)
    dataset = rows.select([2, 5, 2, 2, 5, 1]).map(doubled, name="again").batch(6)
    with ps.Loader(dataset, **place) as loader:
        assert outcomes(loader) == outcomes(epoch_of(dataset, 0))
