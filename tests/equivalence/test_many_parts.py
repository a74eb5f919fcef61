"""Mixtures of many parts equal the definition, for any number of rows of a part in a block."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.sources import Arrays
from tests.equivalence.definition import epoch_of
from tests.profiles import in_short


class Squares:
    """A source that reads many keys at once, and one at a time."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> int:
        return self.read(np.array([key]))[0]

    def read(self, keys: Any) -> list[int]:
        """Return the squares of keys."""
        return [int(key) ** 2 for key in keys]


def refuse_thirds(number: int) -> int:
    """Return the number, unless three divides it."""
    if number % 3 == 0:
        raise ValueError(number)
    return number


PARTS: list[Callable[[int, int], ps.Dataset]] = [
    lambda length, number: ps.range(length, seed=number).shuffle(),
    lambda length, number: ps.range(length, seed=number).map(lambda x: x * 1000 + number),
    lambda length, number: ps.read(list(range(length)), seed=number).shuffle().map(str).map(len),
    lambda length, number: ps.read(Squares(length), seed=number).shuffle().take(length // 2 + 1).repeat(2),
    lambda length, number: ps.range(length, seed=number).random_map(lambda x, rng: x + int(rng.integers(1000))),
    lambda length, number: ps.range(length, seed=number).map(
        refuse_thirds, on_error=ps.Substitute(attempts=50), name="refuse"
    ),
    lambda length, number: ps.read(Arrays(np.arange(length) + number), seed=number).map(int),
    lambda length, number: ps.range(length, seed=number).batch(2).unbatch().map(int),
    lambda length, number: ps.interleave([ps.range(length), ps.range(number, number + length)]).shuffle(),
]


@in_short(15)
@given(
    st.lists(st.tuples(st.sampled_from(PARTS), st.integers(4, 9), st.integers(1, 4)), min_size=2, max_size=40),
    st.integers(1, 64),
    st.sampled_from(["first", "all", "never"]),
)
def test_a_mixture_of_many_parts_equals_its_definition(
    described: list[tuple[Callable[[int, int], ps.Dataset], int, int]], batch: int, stop: Any
) -> None:
    """Batches of any size, of parts of every kind, equal the elements computed one by one."""
    parts = {f"p{n}": make(length, n) for n, (make, length, _) in enumerate(described)}
    weights = {f"p{n}": weight for n, (_, _, weight) in enumerate(described)}
    dataset = ps.mix(parts, weights, stop=stop).take(300).batch(batch, merge=list)
    expected = [element for rows in epoch_of(dataset, 1) for element in rows]
    with ps.Loader(dataset) as loader:
        loader.seek(len(loader))
        assert [element for rows in loader for element in rows] == expected


class CountedName(str):
    """A part's name, which counts how often names are compared."""

    __slots__ = ()
    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedName.comparisons += 1
        return str.__eq__(self, other)


def test_each_name_of_many_parts_is_compared_a_few_times() -> None:
    """A mixture with a weight for each part, and its fingerprint, compare no name with all others."""
    names: list[str] = [CountedName(f"p{number}") for number in range(100)]
    mixed = ps.mix({name: ps.range(3) for name in names}, dict.fromkeys(names, 1.0))
    with ps.Loader(mixed.batch(2)) as loader:
        loader.state_dict()
    assert CountedName.comparisons < 20 * len(names)


def test_a_failing_row_of_a_mixture_is_named() -> None:
    """A part's function that fails for its only row in a batch raises its own error, with step and position."""
    parts = {f"p{n}": ps.range(3 * n + 1, 3 * n + 3).map(refuse_thirds, name="refuse") for n in range(20)}
    parts["bad"] = ps.range(3, 4).map(refuse_thirds, name="refuse")
    with pytest.raises(ValueError, match="3") as caught:
        list(ps.Loader(ps.mix(parts).batch(21)))
    assert any("step 'refuse'" in note and "position 0" in note for note in caught.value.__notes__)
