"""A batch of a user's type keeps that type in every place, from the first batch to the last."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import penstock as ps
from tests.equivalence.kinds import as_array, is_dict, is_list_or_tuple, is_numpy
from tests.loader.user_types import (
    KINDS,
    Attributes,
    Blob,
    Brightened,
    Numbers,
    Packed,
    Shape,
    brightened,
    in_another_byte_order,
    large,
    padded,
    widened,
    with_more,
)
from tests.places import in_places


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
    "objects with other attributes than arrays": ps.range(4).map(Blob),
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
    slots: tuple[str, ...] = getattr(kind, "__slots__", ())
    held: dict[str, Any] = {**getattr(value, "__dict__", {}), **{name: getattr(value, name, None) for name in slots}}
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
