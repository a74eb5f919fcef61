"""A batch of a user's type keeps that type in every place, from the first batch to the last."""

from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import penstock as ps
from tests.equivalence.kinds import as_array, is_dict, is_list_or_tuple, is_numpy
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


def in_another_byte_order(number: int) -> list[Any]:
    """Return arrays whose byte order isn't the machine's, as in files of telescopes and scanners; a key is no text."""
    table = np.arange(24).reshape(4, 6) + number
    strided = [table.astype(dtype)[::2, ::-1] for dtype in (">i2", ">f4", ">c16", ">U3", ">M8[s]", ">m8[D]")]
    return [*strided, {None: table.astype(">M8[Y]"), 1: table[0, 0, ...].astype(">M8[s]"), 2: table[:0].astype(">f4")}]


class Numbers:
    """A function that makes an element of a number."""

    def __call__(self, number: int) -> Attributes:
        """Return the element."""
        return Attributes(x=number, y=2.0)


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


def local_classes() -> dict[str, ps.Dataset[Any]]:
    """Return batches of rows of classes that can't be imported, which travel by value, with the layout of the rows."""

    class Pair(NamedTuple):
        x: Any
        number: Any

    @dataclass
    class Same:
        x: Any
        number: Any

    return {"rows of a local named tuple": pairs_of(Pair), "rows of a local dataclass": pairs_of(Same)}


def pairs_of(kind: Any) -> ps.Dataset[Any]:
    """Return batches of rows of a class of two fields."""
    return ps.range(64).map(lambda number: kind(np.full(2, number), number)).batch(4)


DATASETS: dict[str, ps.Dataset[Any]] = {
    "batches of many types": ps.concatenate(
        [ps.range(16).batch(8).map(Packed(number)) for number in range(len(KINDS))]
    ),
    "constructed elements": ps.range(12).map(brightened),
    "large constructed elements": ps.range(6).map(large),
    "constructed rows": ps.range(12).map(brightened).batch(2),
    "a function above": ps.range(12).map(brightened).batch(2).map(lambda batch: batch),
    "made above": ps.range(12).batch(2).map(lambda batch: Brightened(batch, 1)),
    "in order": ps.range(12).map(brightened).filter(bool).batch(2).map(lambda batch: batch),
    "elements with more": ps.range(2).map(with_more),
    "rows with a constructor": ps.range(12).map(widened).batch(2),
    "elements in another byte order": ps.range(8).map(in_another_byte_order),
    "rows in another byte order": ps.range(8).map(in_another_byte_order).batch(2),
    "elements with gaps": ps.range(24).map(padded),
    "rows with gaps": ps.range(24).map(padded).batch(2),
}


def described(value: Any) -> Any:
    """Return the types, dtypes and bytes of a value, and the attributes of its objects."""
    kind: Any = value.__class__
    if is_numpy(value):
        array = as_array(value)
        return kind, array.dtype, array.shape, (array.view("V16") if array.dtype.names else array).tobytes()
    held = {
        **getattr(value, "__dict__", {}),
        **{name: getattr(value, name, None) for name in vars(kind).get("__slots__", ())},
    }
    parts: Any = None if held else value
    if is_dict(value):
        parts = [(key, described(part)) for key, part in value.items()]
    elif is_list_or_tuple(value):
        parts = [described(part) for part in value]
    return kind, parts, [(name, described(part)) for name, part in held.items()]


@in_places("inline", "threads", "processes", "isolated", "isolated processes")
def test_every_place_keeps_the_types_of_batches(place: dict[str, Any]) -> None:
    """Batches have the types, attributes, byte orders and bytes between fields that they have in this process.

    No copy of a dataclass, and no way to another process, calls its constructor again. A helper process refuses a class
    that can't be imported.
    """
    datasets = {**DATASETS, **local_classes()}
    if "isolated" in place:
        datasets = {"all": ps.concatenate([*DATASETS.values()])}  # one start for all
    with ps.Loader(next(iter(datasets.values())), **place) as owner:
        for name, dataset in datasets.items():
            with owner if name == "all" else ps.Loader(dataset, workers=owner) as loader:
                assert list(map(described, loader)) == list(map(described, dataset)), name


def test_the_bytes_between_fields() -> None:
    """Those of elements are the function's; those of a batch are zero."""
    for number, element in enumerate(ps.Loader(DATASETS["elements with gaps"])):
        assert all(set(leaf.view("V16").tobytes()) == {number + 1} for leaf in element.values())
    for batch in ps.Loader(DATASETS["rows with gaps"]):
        assert all(not leaf.view("u1").reshape(-1, 16)[:, 1:8].any() for leaf in batch.values())


def test_rows_of_types() -> None:
    """Stacking makes plain dicts of elements whose type derives from dict; an element's copy has its type."""
    rows = ps.range(4).map(Numbers())
    assert {type(batch) for loader in (rows.batch(2), ps.Loader(rows.batch(2))) for batch in loader} == {dict}
    twice = rows.flat_map(lambda element: [element], counts=[1] * 4).select([1, 1, 2])
    assert [type(element) for element in ps.Loader(twice)] == [Attributes] * 3
    for batch in DATASETS["batches of many types"]:
        x, inner = (batch["x"], batch["dtype"]) if is_dict(batch) else (batch.x, batch.dtype)
        assert (type(inner[0]), (x * 2).tolist()) == (Shape, inner[1].tolist())
