"""A batch of a type of the user's has that type wherever it is computed, from the first batch to the last."""

from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import penstock as ps
from tests.equivalence.kinds import is_dict


class Attributes(dict[str, Any]):
    """A dict whose items are attributes, as those of many libraries."""

    def __getattr__(self, key: str) -> Any:
        return self[key]


class Frozen(dict[str, Any]):
    """A dict that takes no other values, so that no other one can be made from it."""

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("frozen")

    def __reduce__(self) -> Any:
        return (Frozen, (dict(self),))


class Shape(tuple[int, ...]):
    """A tuple of a type of its own, as torch.Size."""

    __slots__ = ()


class Named(NamedTuple):
    """A named tuple."""

    x: Any
    dtype: Any


@dataclass
class Data:
    """A dataclass."""

    x: Any
    dtype: Any


def counted(items: dict[str, Any]) -> defaultdict[str, Any]:
    """Return a dict with a default."""
    return defaultdict(list, items)


def named(items: dict[str, Any]) -> Named:
    """Return a named tuple."""
    return Named(**items)


def data(items: dict[str, Any]) -> Data:
    """Return a dataclass."""
    return Data(**items)


KINDS: list[Any] = [
    Attributes,
    OrderedDict,
    Frozen,
    counted,
    named,
    data,
]


@dataclass(frozen=True)
class Packed:
    """Makes a batch of one of the types, with a key that an array has as an attribute."""

    number: int

    def __call__(self, batch: Any) -> Any:
        """Return the batch."""
        return KINDS[self.number]({"x": batch, "dtype": [Shape((1, 2)), batch * 2]})


FUNCTIONS = [Packed(number) for number in range(len(KINDS))]


def kind_of(part: object) -> type:
    """Return the type of a part of a batch."""
    return type(part)


def types(batch: Any) -> tuple[type, type]:
    """Return the types inside a batch, having checked its values."""
    x, inner = (batch["x"], batch["dtype"]) if is_dict(batch) else (batch.x, batch.dtype)
    assert np.array_equal(x * 2, inner[1])
    return kind_of(batch), kind_of(inner[0])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_threads_keep_the_types_of_batches(function: Any) -> None:
    """Threads copy small arrays out of the memory they share, and the containers around them stay what they are."""
    dataset = ps.range(64).batch(8).map(function)
    expected = list(map(types, dataset))
    with ps.Loader(dataset, num_workers=2, workers="threads") as loader:
        assert [types(batch) for _ in range(2) for batch in loader] == expected * 2


@pytest.mark.parametrize("place", [{"num_workers": 1, "workers": "processes"}, {"isolated": True}], ids=str)
def test_other_processes_keep_the_types_of_batches(place: Any) -> None:
    """What comes from another process has the types that it was made with there."""
    parts = [ps.range(16).batch(8).map(function) for function in FUNCTIONS]
    dataset = ps.concatenate(parts)
    with ps.Loader(dataset, **place) as loader:
        assert list(map(types, loader)) == list(map(types, dataset))


def test_stacked_elements_are_plain_containers_everywhere() -> None:
    """Stacking makes dicts of elements whose type derives from dict, as the dataset itself does."""
    dataset = ps.range(32).map(Numbers()).batch(8)
    assert {type(batch) for batch in dataset} == {dict}
    for workers in (0, 2):
        with ps.Loader(dataset, num_workers=workers, workers="threads") as loader:
            assert {type(batch) for batch in loader} == {dict}


class Numbers:
    """Makes an element of a number."""

    def __call__(self, number: int) -> Attributes:
        """Return the element."""
        return Attributes(x=number, y=2.0)


def test_an_element_that_is_taken_twice_keeps_its_type() -> None:
    """A copy for the second time is what the element is."""
    dataset = ps.range(4).map(Numbers()).flat_map(list_of, counts=[1] * 4).select([1, 1, 2])
    with ps.Loader(dataset) as loader:
        assert [type(element) for element in loader] == [Attributes] * 3


def list_of(element: Any) -> list[Any]:
    """Return a list of the element alone."""
    return [element]
