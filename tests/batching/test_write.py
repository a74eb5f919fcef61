"""Rows written directly into columns are the batch of `stack`, or a layout mismatch is raised."""

import itertools
import pickle
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.batching import Batch, Layout, LayoutMismatchError, Merge, fast_stack, layout_of, stack, write_rows
from penstock.errors import UsageError
from tests.batching.strategies import PADDED, element_lists, formed, numbered, odd_lists, with_zeros_between_fields
from tests.trees import Element, assert_same, structure_of


def outcome(merge: Merge, elements: list[Element]) -> tuple[Batch, str]:
    """Return the batch, or None and the error's message."""
    try:
        return merge(elements), ""
    except UsageError as error:
        return None, str(error)


def fits(layout: Layout, element: Element, first: Element) -> bool:
    """Return whether `stack` accepts an element beside the layout's own, with keys in the same order."""
    try:
        stack([first, element])
    except UsageError:
        return False
    return structure_of(element) == layout.structure


@given(element_lists(max_rows=7), st.data())
def test_blocks_make_the_batch_of_stack(elements: list[Element], data: st.DataObject) -> None:
    """Elements written in blocks of any size and order, into memory of any content, make exactly `stack(elements)`."""
    layout = layout_of(elements[0])
    rows = len(elements)
    memory = None
    if data.draw(st.booleans()):
        memory = bytearray(b"\xa5" * layout.leaf_offsets(rows)[1])
    columns = layout.columns(rows, memory)
    cuts = sorted({0, rows, *data.draw(st.lists(st.integers(0, rows), max_size=3))})
    for start, stop in data.draw(st.permutations(list(itertools.pairwise(cuts)))):
        write_rows(layout, elements[start:stop], columns, start)
    assert_same(stack(elements), layout.batch(columns))


@given(odd_lists() | element_lists())
def test_fast_stack_is_stack(elements: list[Element]) -> None:
    """The fast path returns the batch that `stack` returns, or raises the same message."""
    expected, expected_message = outcome(stack, elements)
    actual, message = outcome(fast_stack, elements)
    assert message == expected_message
    assert_same(expected, actual)


@given(odd_lists())
def test_a_mismatch_names_the_lowest_row(elements: list[Element]) -> None:
    """`write_rows` refuses exactly where `stack` would, and names the lowest such row."""
    try:
        layout = layout_of(elements[0])
    except UsageError:
        return
    expected = next((row for row, element in enumerate(elements) if not fits(layout, element, elements[0])), None)
    columns = layout.columns(len(elements))
    if expected is None:
        write_rows(layout, elements, columns, 0)
        assert_same(stack(elements), layout.batch(columns))
    else:
        with pytest.raises(LayoutMismatchError) as caught:
            write_rows(layout, elements, columns, 0)
        assert caught.value.row == expected


NEARLY: list[tuple[object, object]] = [
    *((1, 2**63), (1, -(2**63) - 1), (1, True), (1, 1.0), (1, np.int32(1)), (1.0, 1), (1.0, np.float32(1))),
    *((True, 1), (True, np.uint8(1)), (np.int32(1), 1), (np.int32(1), np.int16(1)), (np.array(1, ">i4"), np.int32(1))),
    *((np.datetime64(1, "s"), np.datetime64(1, "ms")), (np.zeros((2, 3)), np.zeros((3, 2)))),
    *((np.zeros(3), np.zeros((3, 1))), (np.zeros(1), 0.0), (np.zeros(2, "f4"), np.zeros(2, "i4"))),
    *((np.zeros(2), np.ma.masked_array([0.0, 0.0], [True, False])), (np.zeros(2, "U3"), np.zeros(2, "U2"))),
    *(("a", b"a"), ("a", None), (None, "a"), (None, 0)),
]


def test_what_nearly_fits_is_refused() -> None:
    """A leaf of another type, dtype or shape is never cast, however similar it is."""
    for good, bad in NEARLY:
        layout = layout_of({"x": good})
        with pytest.raises(LayoutMismatchError) as caught:
            write_rows(layout, [{"x": good}, {"x": good}, {"x": bad}, {"x": good}], layout.columns(4), 0)
        assert caught.value.row == 2
        with pytest.raises(UsageError, match="row 2"):
            stack([{"x": good}, {"x": good}, {"x": bad}])


def test_large_rows_are_copied() -> None:
    """Blocks that are large enough to release the GIL are written as small ones are, also between unusual ones."""
    for form in ("plain", "reversed", "memmap"):
        rows = [formed(numbered(np.dtype("u2"), (64, 65), seed), form if seed % 3 else "plain") for seed in range(20)]
        elements: list[Element] = [{"x": row, "y": seed} for seed, row in enumerate(rows)]
        assert_same(stack(elements), fast_stack(elements))


def test_many_small_batches_have_zeros_between_fields() -> None:
    """They are copied out of the rows' memory, whole, into memory that was used before."""
    rows = 40
    elements = [numbered(PADDED, (3,), seed) for seed in range(rows)]
    layout, expected = layout_of(elements[0]), with_zeros_between_fields(np.stack(elements))
    columns = layout.columns(rows)
    write_rows(layout, elements, columns, 0)
    used = [np.full(2 * expected[0].nbytes, 0xA5, np.uint8) for _ in range(rows)]
    del used
    batches = layout.batches(columns, range(0, rows + 1, 2), copied_bytes=1 << 16)
    assert b"".join(batch.tobytes() for batch in batches) == expected.tobytes()


def test_rows_outside_the_block_stay() -> None:
    """Only the rows of the block are written."""
    layout = layout_of((np.zeros(2, np.int8), 1, "a"))
    columns = layout.columns(4, bytearray(b"\x01" * layout.leaf_offsets(4)[1]))
    write_rows(layout, [(np.array([5, 6], np.int8), 7, "b")], columns, 2)
    batch = layout.batch(columns)
    assert batch[0].tolist() == [[1, 1], [1, 1], [5, 6], [1, 1]]
    assert batch[1].tolist()[2] == 7
    assert batch[2] == [None, None, "b", None]


@pytest.mark.parametrize("bad", [None, {"x": np.zeros(3), "n": "no"}, {"x": np.zeros(4), "n": 1}, {"x": 1, "n": 1}])
def test_writing_holds_no_references(bad: Element) -> None:
    """After a block was written, or refused, arrays have as many references as before."""
    arrays = [np.zeros(3) for _ in range(5)]
    elements: list[Element] = [{"x": array, "n": 2**40 + row} for row, array in enumerate(arrays)]
    before = [sys.getrefcount(array) for array in arrays], sys.getrefcount(np.dtype("f8"))
    layout = layout_of(elements[0])
    columns = layout.columns(6)
    with pytest.raises(LayoutMismatchError) as caught:
        write_rows(layout, [*elements, bad], columns, 0)
    assert caught.value.row == 5
    del caught
    write_rows(layout, elements, columns, 0)
    del layout, columns
    assert before == ([sys.getrefcount(array) for array in arrays], sys.getrefcount(np.dtype("f8")))


def test_a_list_column_holds_each_item_once() -> None:
    """A str in a batch is the element's own object, referred to once."""
    names = ["-".join(["name", str(row)]) for row in range(3)]
    before = [sys.getrefcount(name) for name in names]
    batch = fast_stack([{"name": name} for name in names])
    assert [sys.getrefcount(name) for name in names] == [count + 1 for count in before]
    del batch
    assert [sys.getrefcount(name) for name in names] == before


@given(element_lists(max_rows=1), st.integers(0, 9))
def test_columns_are_aligned_and_do_not_overlap(elements: list[Element], rows: int) -> None:
    """Each array begins at a multiple of 64 bytes, none overlaps another, and all are in the requested memory."""
    layout = layout_of(elements[0])
    offsets, total_bytes = layout.leaf_offsets(rows)
    memory = np.zeros(total_bytes, np.uint8)
    end = 0
    for offset, column in zip(offsets, layout.columns(rows, memory), strict=True):
        if isinstance(column, np.ndarray):
            assert offset is not None
            assert offset % 64 == 0
            assert offset >= end
            end = offset + column.nbytes
            assert len(column) == rows
            assert column.nbytes == 0 or np.shares_memory(column, memory)
        else:
            assert offset is None
    assert end <= total_bytes
    assert layout.row_bytes * rows <= total_bytes


@given(element_lists())
def test_a_layout_is_a_value(elements: list[Element]) -> None:
    """All elements of a list have equal layouts, which hash alike and survive pickling."""
    first = layout_of(elements[0])
    for element in elements:
        again: Any = pickle.loads(pickle.dumps(layout_of(element)))
        assert again == first
        assert hash(again) == hash(first)


def test_bytes_between_fields_are_zero_in_reused_memory() -> None:
    """A structured row overwrites what an earlier batch left between its fields."""
    elements = [numbered(PADDED, (2,), seed) for seed in range(3)]
    layout = layout_of(elements[0])
    columns = layout.columns(3, bytearray(b"\xff" * layout.leaf_offsets(3)[1]))
    write_rows(layout, elements, columns, 0)
    assert layout.batch(columns).tobytes() == stack(elements).tobytes()
