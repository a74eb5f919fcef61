"""A resume computes the elements that a fold held open again in a few passes, not in one for each of them."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

import penstock as ps

COUNT = 4_000


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


def document(number: int) -> Any:
    """Return a document; no such lengths add up to 256, so sequences stay open as long as there is room."""
    return np.full(3 + number * 21 % 48, number)


def counted(number: int) -> Any:
    """Return a document, and count it."""
    Counted.reads += 1
    return document(int(number))


STREAM = ps.stream(WithState)
# Their positions are known, but not which of them are kept.
FILTERED = ps.range(1, COUNT + 1).map(counted).filter(lambda values: len(values) != 9)
WEIGHTS = {"a": 1, "b": 2}
DATASETS: dict[str, ps.Dataset[Any]] = {
    "stream": STREAM,
    "stream without a state": ps.stream(Counted),
    "window_shuffle": STREAM.window_shuffle(50),
    "unbatch": STREAM.map(lambda values: np.resize(values, 27)).batch(5).unbatch(),
    "mix": ps.mix({"a": STREAM, "b": STREAM}, WEIGHTS),
    "mix of filtered": ps.mix({"a": FILTERED, "b": FILTERED}, WEIGHTS),
    "concatenate": ps.concatenate([STREAM.limit(100), STREAM]),
}


@pytest.mark.filterwarnings("ignore:.* has no state", "ignore:the dataset's functions")  # they hold the counts
@pytest.mark.parametrize("name", DATASETS)
def test_held_elements_are_read_again_together(name: str) -> None:
    """A resume in the midst of hundreds of open documents reads each element a few times at most."""
    dataset = DATASETS[name].pack(256).batch(2)
    Counted.reads = 0
    first = ps.Loader(dataset)
    batches = iter(first)
    for _ in islice(batches, 30):
        pass
    state, before = first.state_dict(), Counted.reads
    expected = next(batches)

    resumed = ps.Loader(dataset)
    resumed.load_state_dict(state)
    Counted.reads = 0
    found = next(iter(resumed))

    assert {key: found[key].tolist() for key in found} == {key: expected[key].tolist() for key in expected}
    assert sum(len(pieces) // 3 for pieces in state["cursor"][1][3]) > 300
    assert Counted.reads < 20 * before
