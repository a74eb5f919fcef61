"""A resume computes the elements that a fold held open again in a few passes, not in one for each of them."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

import penstock as ps

COUNT = 4_000
BATCHES = 30


def document(number: int) -> Any:
    """Return a document; no such lengths add up to 256, so sequences stay open as long as there is room."""
    return np.full(3 + number * 21 % 48, number)


class Counted:
    """An iterator without a state, which counts what is read."""

    reads = 0

    def __init__(self) -> None:
        self._at = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._at == COUNT:
            raise StopIteration
        self._at += 1
        Counted.reads += 1
        return document(self._at)


class WithState(Counted):
    """An iterator with a state."""

    def get_state(self) -> int:
        """Return the number of elements so far."""
        return self._at

    def set_state(self, state: int | None) -> None:
        """Continue there."""
        self._at = state or 0


def is_kept(values: Any) -> bool:
    """Return whether a document is kept."""
    return len(values) != 9


def counted(number: int) -> Any:
    """Return a document, and count it."""
    Counted.reads += 1
    return document(int(number) + 1)


def filtered() -> ps.Dataset[Any]:
    """Return documents whose positions are known, but not which of them are kept."""
    return ps.range(COUNT).map(counted).filter(is_kept)


Make = Callable[[Callable[[], ps.Dataset[Any]]], ps.Dataset[Any]]
FORMS: dict[str, Make] = {
    "stream": lambda read: read(),
    "window_shuffle": lambda read: read().window_shuffle(50),
    "unbatch": lambda read: read().map(lambda values: np.resize(values, 27)).batch(5).unbatch(),
    "mix": lambda read: ps.mix({"a": read(), "b": read()}, weights={"a": 1, "b": 2}),
    "concatenate": lambda read: ps.concatenate([read().limit(100), read()]),
}
READS: dict[str, Callable[[], ps.Dataset[Any]]] = {
    "with state": lambda: ps.stream(WithState),
    "without state": lambda: ps.stream(Counted),
    "filtered": filtered,
}
CASES = [*((form, "with state") for form in FORMS), ("stream", "without state"), ("mix", "filtered")]


@pytest.mark.filterwarnings("ignore:.* has no state", "ignore:.* hold other values")  # the values: the counts
@pytest.mark.parametrize(("form", "read"), CASES)
def test_held_elements_are_read_again_together(form: str, read: str) -> None:
    """A resume in the midst of hundreds of open documents reads each element a few times at most."""
    dataset = FORMS[form](READS[read]).pack(256).batch(2)
    Counted.reads = 0
    first = ps.Loader(dataset, num_workers=0)
    batches = iter(first)
    for _ in islice(batches, BATCHES):
        pass
    state, before = first.state_dict(), Counted.reads
    expected = next(batches)

    resumed = ps.Loader(dataset, num_workers=0)
    resumed.load_state_dict(state)
    Counted.reads = 0
    found = next(iter(resumed))

    assert {name: column.tolist() for name, column in found.items()} == {
        name: column.tolist() for name, column in expected.items()
    }
    assert sum(len(pieces) // 3 for pieces in state["cursor"][1][3]) > 300
    assert Counted.reads < 20 * before
