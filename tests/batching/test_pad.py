"""Padded batches hold each element at the beginning of its row, and the fill behind it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock._tree import flatten, is_array
from penstock.batching import Pad, pad
from penstock.errors import UsageError
from tests.batching.strategies import DTYPES, FORMS, PADDED, formed, numbered, with_zeros_between_fields
from tests.trees import Element

lengths = st.lists(st.integers(0, 6), min_size=1, max_size=5)


def row_of(length: int, row: int, dtype: str, *axes: int) -> NDArray[Any]:
    """Return an array that differs from row to row."""
    return numbered(np.dtype(dtype), (length, *axes), row)


def test_bytes_between_fields_are_zero() -> None:
    """The padding between the fields of a structured row is zero, and so is the fill."""
    rows = [numbered(PADDED, (length,), length) for length in (2, 1)]
    batch = pad(rows)
    filled = [with_zeros_between_fields(row).tobytes().ljust(2 * PADDED.itemsize, b"\0") for row in rows]
    assert batch.tobytes() == b"".join(filled)


@given(lengths, lengths, st.integers(6, 9) | st.none())
def test_values_precede_the_fill(first: list[int], second: list[int], length: int | None) -> None:
    """Each leaf with axes gets the requested length, or that of its longest row."""
    sizes = list(zip(first, second, strict=False))
    elements: list[Element] = [
        {"tokens": row_of(one, row, "i4"), "boxes": row_of(two, row, ">i2", 2), "label": row, "name": str(row)}
        for row, (one, two) in enumerate(sizes)
    ]
    batch = pad(elements, length=length, fill=7)
    assert batch["label"].tolist() == list(range(len(elements)))
    assert batch["name"] == [str(row) for row in range(len(elements))]
    for name, place in (("tokens", 0), ("boxes", 1)):
        longest = max(size[place] for size in sizes)
        column = batch[name]
        assert column.dtype == elements[0][name].dtype
        assert column.shape == (len(elements), longest if length is None else length, *elements[0][name].shape[1:])
        for row, element in enumerate(elements):
            size = sizes[row][place]
            assert column[row, :size].tobytes() == element[name].tobytes()
            assert (column[row, size:] == 7).all()


@given(lengths, st.integers(6, 9) | st.none())
def test_the_mask_marks_the_values(sizes: list[int], length: int | None) -> None:
    """The mask is True exactly where a row has values, for all padded leaves."""
    elements = [{"x": row_of(size, row, "f4"), "y": row_of(size, row, "u1", 3)} for row, size in enumerate(sizes)]
    batch = pad(elements, length=length, mask="valid")
    assert outcome(lambda: Pad(length, mask="valid")(elements)) == outcome(lambda: batch)
    assert list(batch) == ["x", "y", "valid"]
    assert batch["valid"].dtype == np.bool_
    assert batch["valid"].shape == batch["x"].shape
    assert batch["valid"].sum(axis=1).tolist() == sizes
    for row, size in enumerate(sizes):
        assert batch["valid"][row, :size].all()


def test_the_fill_takes_the_leafs_dtype() -> None:
    """The fill is stored as a value of the leaf's own dtype, never cast; 0 means the zero of any dtype."""
    cases: list[tuple[str, float, object]] = [
        *(("i4", -100, -100), ("u1", 255, 255), ("f2", 0.1, np.float16(0.1)), ("f4", float("inf"), np.inf)),
        *(("?", True, True), ("?", 0, False), ("U3", 0, ""), ("c8", 2, 2 + 0j), ("M8[s]", 0, np.datetime64(0, "s"))),
    ]
    for dtype, fill, expected in cases:
        column = pad([np.zeros(1, dtype), np.zeros(2, dtype)], fill=fill)
        assert column.dtype == np.dtype(dtype)
        assert column[0, 1] == expected
    assert np.isnan(pad([np.zeros(0), np.zeros(1)], fill=float("nan"))[0, 0])
    others: list[tuple[str, float]] = [
        *(("i4", 0.5), ("i4", float("nan")), ("i2", 2**15), ("f4", 1e300), ("?", 2), ("U3", 7), ("M8[s]", 7))
    ]
    for dtype, fill in others:
        with pytest.raises(UsageError, match="fill must be a value of each padded leaf's dtype"):
            pad([np.zeros(1, dtype)], fill=fill)


ROWS: list[Element] = [{"x": np.zeros(2)}, {"x": np.zeros(5)}]
MERGE = "or merge the elements yourself with .batch(n, merge=…)."


X_AND_Y: list[Element] = [{"x": np.zeros(2), "y": np.zeros(2)}, {"x": np.zeros(5), "y": np.zeros(4)}]
DICTS = "mask='m' names a key to add, so the elements must be dicts; row 0 is a"
LEAF = (
    "a leaf must be of one dtype and shape in all rows of a batch, since nothing is promoted; ['x'] is float64 of shape"
)
FAULTS: list[tuple[list[Element], Pad, str]] = [
    (
        ROWS,
        Pad(length=4),
        "no row may be longer than length=4; ['x'] of row 1 has 5. Raise length, or shorten the row in .map.",
    ),
    (
        X_AND_Y,
        Pad(mask="m"),
        "with mask='m' all padded leaves of a row must have one length; in row 1 ['x'] has 5 and ['y'] has 4. "
        f"Make them of one length in .map, omit the mask, {MERGE}",
    ),
    (ROWS, Pad(mask="x"), "mask must be a key that the elements don't have; got mask='x'. Choose another name."),
    ([(np.zeros(2),)], Pad(mask="m"), f"{DICTS} tuple of 1. Return a dict from .map, or omit the mask."),
    (
        [np.zeros(2)],
        Pad(mask="m"),
        f"{DICTS} single value (such as an array or None). Return a dict from .map, or omit the mask.",
    ),
    (
        [{"x": 1}],
        Pad(mask="m"),
        "mask='m' needs a padded leaf, an array with at least one axis; row 0 has none. "
        "Return arrays from .map, or omit the mask.",
    ),
    (
        [{"x": np.zeros(2, "u1")}],
        Pad(fill=-1),
        "fill must be a value of each padded leaf's dtype; got fill=-1 for ['x'], which is uint8. "
        f"Choose another fill, convert the leaf in .map, {MERGE}",
    ),
    (
        [{"x": np.zeros((2, 3))}, {"x": np.zeros((2, 4))}],
        Pad(),
        f"{LEAF} (2, 3) in row 0 and float64 of shape (2, 4) in row 1. Make it of one shape in .map, {MERGE}",
    ),
    (
        [{"x": np.zeros(2)}, {"x": np.zeros(3, "f4")}],
        Pad(),
        f"{LEAF} (2,) in row 0 and float32 of shape (3,) in row 1. Convert it to one dtype in .map, {MERGE}",
    ),
    (
        [{"x": [1, 2]}, {"x": [1, 2, 3]}],
        Pad(),
        "the elements of a batch must have one structure; ['x'] is a list of 2 in row 0 and a list of 3 in row 1. "
        "Return one structure from .map (a sequence of varying length as an array), leave out others by .filter, "
        f"{MERGE}",
    ),
    ([], Pad(), "a batch must have at least one element; got none. Pass the elements of its rows."),
]


def test_a_fault_is_named() -> None:
    """The message names the rule, the row, the path, the values and the remedy."""
    for elements, rule, message in FAULTS:
        with pytest.raises(UsageError) as caught:
            rule(elements)
        assert str(caught.value) == message


def test_a_rule_is_a_checked_value() -> None:
    """Invalid lengths and names are errors when the rule is made, before any element; equal rules are equal."""
    with pytest.raises(UsageError, match=r"length must be at least 0; got length=-1\. Omit it for the longest row's\."):
        Pad(length=-1)
    with pytest.raises(UsageError, match=r"mask must name the leaf to add; got mask=''\. Pass a name, or omit it\."):
        Pad(mask="")
    assert {Pad(length=3), Pad(length=3)} == {Pad(length=3)}


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Element], Pad]:
    """Elements of one structure, whose arrays have any dtype, axes and memory; in some, one leaf is another."""
    dtypes = [draw(st.sampled_from(DTYPES)) for _ in range(2)]
    axes = [tuple(draw(st.lists(st.integers(0, 3), max_size=2))) for _ in range(2)]
    container = draw(st.sampled_from(["leaf", "dict", "tuple", "nested"]))
    are_equal = draw(st.booleans())
    rows: list[list[Any]] = []
    for row in range(draw(st.integers(1, 4))):
        size = draw(st.integers(0, 5))
        sizes = [size, size if are_equal else draw(st.integers(0, 5))]
        arrays = [numbered(dtypes[leaf], (sizes[leaf], *axes[leaf]), row) for leaf in range(2)]
        rows.append([*(formed(array, draw(st.sampled_from(FORMS))) for array in arrays), row, str(row), None])
    if draw(st.booleans()):
        odd: list[Any] = [
            3,
            0.5,
            "text",
            b"",
            None,
            np.float32(2),
            np.zeros(()),
            np.zeros(2),
            np.zeros((1, 2), "i2"),
            [1],
        ]
        draw(st.sampled_from(rows))[draw(st.integers(0, 4))] = draw(st.sampled_from(odd))
    elements: list[Element] = [
        {
            "leaf": leaves[0],
            "dict": dict(zip("abcde", leaves, strict=True)),
            "tuple": tuple(leaves),
            "nested": {"x": leaves[:2], "y": {"z": leaves[2:]}},
        }[container]
        for leaves in rows
    ]
    length = draw(st.none() | st.integers(0, 6))
    fill = draw(st.sampled_from([0, 1, -100, 0.5, float("nan"), 1e300]))
    return elements, Pad(length, fill, draw(st.sampled_from([None, "mask", "a"])))


def content(leaf: Any) -> object:
    """Return the dtype, the shape and the bytes of an array, and any other leaf unchanged."""
    return (leaf.dtype, leaf.shape, leaf.tobytes(), leaf.flags.writeable) if is_array(leaf) else leaf


def outcome(make: Callable[[], Any]) -> object:
    """Return the arrays of a batch with their dtypes and bytes, and other leaves; or the error."""
    try:
        batch = make()
    except UsageError as error:
        return str(error)
    leaves, structure = flatten(batch)
    return structure, list(map(content, leaves))


@given(batches())
def test_rows_are_padded_at_once_as_one_by_one(drawn: tuple[list[Element], Pad]) -> None:
    """The merge's bytes, or its error, are those of `pad`, which looks at each leaf of each row."""
    elements, rule = drawn
    expected = outcome(lambda: pad(elements, length=rule.length, fill=rule.fill, mask=rule.mask))
    assert outcome(lambda: rule(elements)) == expected


class Broken:
    """A leaf that can't be converted."""

    def __array__(self, *_: object, **__: object) -> NDArray[Any]:
        raise LookupError("no values")


@pytest.mark.parametrize("row", [0, 1])
def test_the_error_of_a_leaf_names_its_row(row: int) -> None:
    """The exception of a leaf's own conversion passes, with a note of its place, as from `pad`."""
    elements: list[Element] = [{"x": np.zeros(1)}, {"x": np.zeros(2)}]
    elements[row] = {"x": Broken()}
    with pytest.raises(LookupError) as caught:
        Pad()(elements)
    assert caught.value.__notes__ == [
        f"This was raised by ['x'] of row {row}, a Broken, as it was converted to an array."
    ]
