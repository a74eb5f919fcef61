"""A batch of a user's type keeps that type in every place, from the first batch to the last."""

from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import penstock as ps
from tests.equivalence.kinds import is_dict
from tests.places import in_places


class Attributes(dict[str, Any]):
    """A dict whose items are attributes, as in many libraries."""

    def __getattr__(self, key: str) -> Any:
        return self[key]


class Frozen(dict[str, Any]):
    """A dict that takes no new values, so that none can be copied item by item."""

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("frozen")

    def __reduce__(self) -> Any:
        return (Frozen, (dict(self),))


class Shape(tuple[int, ...]):
    """A tuple of its own type, as torch.Size."""

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


def padded(number: int) -> dict[str, Any]:
    """Return structured arrays, also one with gaps, with bytes between the fields that are not zero."""
    rows = np.frombuffer(bytearray([number + 1] * 640), np.dtype([("a", "i1"), ("b", "f8")], align=True))
    return {"rows": rows, "gaps": rows[::2], "wide gaps": rows[::20]}


def counted(items: dict[str, Any]) -> defaultdict[str, Any]:
    """Return a dict with a default."""
    return defaultdict(list, items)


def named(items: dict[str, Any]) -> Named:
    """Return a named tuple."""
    return Named(**items)


def data(items: dict[str, Any]) -> Data:
    """Return a dataclass."""
    return Data(**items)


KINDS: list[Any] = [Attributes, OrderedDict, Frozen, counted, named, data]


@dataclass(frozen=True)
class Packed:
    """A function that makes a batch of one of the types, with a key that is also an array's attribute."""

    number: int

    def __call__(self, batch: Any) -> Any:
        """Return the batch."""
        return KINDS[self.number]({"x": batch, "dtype": [Shape((1, 2)), batch * 2]})


def kind_of(part: object) -> type:
    """Return the type of a part of a batch."""
    return type(part)


def types(batch: Any) -> tuple[type, type]:
    """Check a batch's values; return the types inside it."""
    x, inner = (batch["x"], batch["dtype"]) if is_dict(batch) else (batch.x, batch.dtype)
    assert np.array_equal(x * 2, inner[1])
    return kind_of(batch), kind_of(inner[0])


@in_places("threads", "processes", "isolated")
def test_every_place_keeps_the_types_of_batches(place: Any) -> None:
    """A batch has the types that its function gave it, though its arrays are copied or come from another process."""
    dataset = ps.concatenate([ps.range(16).batch(8).map(Packed(number)) for number in range(len(KINDS))])
    with ps.Loader(dataset, **place) as loader:
        assert [types(batch) for _ in range(2) for batch in loader] == list(map(types, dataset)) * 2


def pairs_of(kind: Any) -> ps.Dataset[Any]:
    """Return batches of rows of a class of two fields."""
    return ps.range(64).map(lambda number: kind(np.full(2, number), number)).batch(4)


@in_places("threads", "processes")
def test_rows_may_be_of_a_class_of_a_function(place: Any) -> None:
    """It can't be imported, so it travels by value, with the layout of its rows, too; a helper process refuses it."""

    class Pair(NamedTuple):
        x: Any
        number: Any

    @dataclass
    class Same:
        x: Any
        number: Any

    for kind in (Pair, Same):
        with ps.Loader(pairs_of(kind), **place) as loader:
            for step, batch in enumerate(loader):
                found: Any = batch
                assert found.__class__ is kind
                assert found.number.tolist() == found.x[:, 1].tolist() == list(range(4 * step, 4 * step + 4))


def in_another_byte_order(number: int) -> list[Any]:
    """Return arrays whose byte order isn't the machine's, as in files of telescopes and scanners; a key is no text."""
    table = np.arange(24).reshape(4, 6) + number
    strided = [table.astype(dtype)[::2, ::-1] for dtype in (">i2", ">f4", ">c16", ">U3", ">M8[s]", ">m8[D]")]
    return [*strided, {None: table.astype(">M8[Y]"), 1: table[0, 0, ...].astype(">M8[s]"), 2: table[:0].astype(">f4")}]


@in_places("threads", "processes", "isolated", "isolated processes")
@pytest.mark.parametrize("is_batched", [False, True])
def test_every_place_keeps_the_byte_order(place: Any, *, is_batched: bool) -> None:
    """Arrays from other processes have the dtypes and values that they have in this one."""
    dataset: Any = ps.range(8).map(in_another_byte_order)
    dataset = dataset.batch(2) if is_batched else dataset
    with ps.Loader(dataset, **place) as loader:
        for found, expected in zip(loader, dataset, strict=True):
            for one, other in zip(leaves_of(found), leaves_of(expected), strict=True):
                assert one.dtype == other.dtype
                assert np.array_equal(one, other)


def leaves_of(batch: Any) -> list[Any]:
    """Return the arrays of a batch."""
    return [*batch[:-1], *batch[-1].values()]


def test_stacked_elements_are_plain_containers_everywhere() -> None:
    """Stacking makes plain dicts of elements whose type derives from dict, as the dataset itself does."""
    dataset = ps.range(32).map(Numbers()).batch(8)
    assert {type(batch) for batch in dataset} == {dict}
    for workers in (0, 2):
        with ps.Loader(dataset, num_workers=workers, workers="threads") as loader:
            assert {type(batch) for batch in loader} == {dict}


class Numbers:
    """A function that makes an element of a number."""

    def __call__(self, number: int) -> Attributes:
        """Return the element."""
        return Attributes(x=number, y=2.0)


def test_an_element_that_is_taken_twice_keeps_its_type() -> None:
    """The second copy of an element has the element's type."""
    dataset = ps.range(4).map(Numbers()).flat_map(lambda element: [element], counts=[1] * 4).select([1, 1, 2])
    with ps.Loader(dataset) as loader:
        assert [type(element) for element in loader] == [Attributes] * 3


@dataclass
class Brightened:
    """A dataclass whose constructor changes its values."""

    image: Any
    label: Any

    def __post_init__(self) -> None:
        self.image = np.asarray(self.image) + 1
        self.shown = str(self.label)


def brightened(number: int) -> Brightened:
    """Return a small image."""
    return Brightened(np.full(3, number), number)


def large(number: int) -> Brightened:
    """Return an image of a megabyte."""
    return Brightened(np.full((1024, 1024), number, np.uint8), number)


def first(value: Any) -> tuple[Any, ...]:
    """Return what shows how often a value was constructed."""
    return value.__class__, value.image.reshape(-1)[0].item(), value.image.dtype, value.shown


@in_places("inline", "threads", "processes", "isolated", "isolated processes")
@pytest.mark.parametrize(
    "dataset",
    [
        ps.range(12).map(brightened),
        ps.range(6).map(large),
        ps.range(12).map(brightened).batch(2),
        ps.range(12).map(brightened).batch(2).map(lambda batch: batch),
        ps.range(12).batch(2).map(lambda batch: Brightened(batch, 1)),
        ps.range(12).map(brightened).filter(bool).batch(2).map(lambda batch: batch),
    ],
    ids=["elements", "large elements", "batches", "a function above", "made above", "in order"],
)
def test_a_constructor_runs_where_a_function_or_a_merge_calls_it(dataset: ps.Dataset[Any], place: Any) -> None:
    """No copy of a dataclass, and no way to another process, calls it again."""
    with ps.Loader(dataset, **place) as loader:
        assert list(map(first, loader)) == list(map(first, dataset))


@dataclass
class Widened:
    """A dataclass with a constructor of its own, which changes what it gets."""

    low: Any
    high: Any

    def __init__(self, low: Any, high: Any) -> None:
        self.low, self.high = np.asarray(low) - 1, np.asarray(high) + 1


@dataclass
class Slotted:
    """A dataclass with a slot beside its fields."""

    __slots__ = ("extra", "x")
    x: int


@dataclass
class Doubled:
    """A dataclass of which setting a field computes."""

    x: int

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value * 2)


class Image(NamedTuple):
    """A named tuple."""

    image: Any


class Sourced(Image):
    """A named tuple that has attributes."""


def widened(number: int) -> Widened:
    """Return a range around a number."""
    return Widened(number, number)


def with_more(number: int) -> list[Any]:
    """Return instances that hold more than their constructors would make of their fields."""
    image: Any = np.full((1024, 1024), number, np.uint8)
    parts: list[Any] = [widened(number), Slotted(number), Doubled(number), Sourced(image), Data(1, "a")]
    for part, name in zip(parts[1:], ("extra", "x", "source", "source"), strict=True):
        setattr(part, name, number)
    return parts


def attributes(element: Any) -> list[Any]:
    """Return the types of an element's instances, and what they hold."""
    names = "low", "high", "x", "extra", "source", "image"
    parts = element if hasattr(element, "append") else [element]
    return [(type(part), [np.asarray(getattr(part, name, None)).tolist() for name in names]) for part in parts]


@in_places("processes", "isolated")
@pytest.mark.parametrize(
    "dataset", [ps.range(2).map(with_more), ps.range(12).map(widened).batch(2)], ids=["elements", "batches"]
)
def test_an_instance_arrives_with_all_that_it_holds(dataset: ps.Dataset[Any], place: Any) -> None:
    """Attributes beside the fields arrive, and no constructor changes the fields on the way."""
    with ps.Loader(dataset, **place) as loader:
        assert list(map(attributes, loader)) == list(map(attributes, dataset))


@in_places("thread", "processes", "isolated")
def test_the_bytes_between_fields_are_the_same_everywhere(place: dict[str, Any]) -> None:
    """Those of elements are the function's; those of a batch are zero."""
    dataset = ps.range(24).map(padded)
    with ps.Loader(dataset, **place) as loader:
        for number, element in enumerate(loader):
            assert all(set(leaf.view("V16").tobytes()) == {number + 1} for leaf in element.values())
    with ps.Loader(dataset.batch(2), **place) as loader:
        for batch in loader:
            assert all(not leaf.view("u1").reshape(-1, 16)[:, 1:8].any() for leaf in batch.values())
