"""Arrays are stacked into given memory, on any number of threads, with the bytes of NumPy's result."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.batching import stack_arrays
from penstock.errors import UsageError
from tests.batching.strategies import DTYPES, PADDED, arrays, numbered, shapes, with_zeros_between_fields

LARGE = 3 << 20  # three such rows are enough for two threads


@st.composite
def array_lists(draw: st.DrawFn) -> list[NDArray[Any]]:
    """Lists of arrays of one dtype and shape, of any arrangement in memory."""
    one = arrays(draw(st.sampled_from(DTYPES)), draw(shapes))
    return [draw(one) for _ in range(draw(st.integers(1, 5)))]


def numpy_stack(given_arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """Return the result of NumPy, stacked into zeros of the rows' dtype, since it would change the byte order."""
    target = np.zeros((len(given_arrays), *given_arrays[0].shape), given_arrays[0].dtype)
    return np.stack(given_arrays, out=target)


@given(array_lists(), st.integers(1, 3), st.sampled_from(["new", "given"]))
def test_rows_are_what_numpy_stacks(given_arrays: list[NDArray[Any]], num_threads: int, memory: str) -> None:
    """The bytes are NumPy's for every dtype and memory, in a new array and in a given one."""
    expected = numpy_stack(given_arrays)
    out = None
    if memory == "given":
        out = np.frombuffer(bytearray(b"\xee" * expected.nbytes), expected.dtype).reshape(expected.shape)
    stacked = stack_arrays(given_arrays, out=out, num_threads=num_threads)
    assert out is None or stacked is out
    assert (stacked.dtype, stacked.shape) == (expected.dtype, expected.shape)
    assert stacked.tobytes() == expected.tobytes()
    assert stacked.flags.c_contiguous
    assert stacked.flags.writeable


@st.composite
def views(draw: st.DrawFn) -> NDArray[Any]:
    """Views with any strides: parts of an array with steps, mirrored, transposed, with repeated and single axes."""
    name = draw(st.sampled_from(["u1", "<u2", ">i4", "f8", "c16", "?", "S3", "V5"]))
    shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    view = numbered(np.dtype(name), tuple(shape), draw(st.integers(0, 99)))
    steps = st.sampled_from([1, 1, 2, 3])
    parts = [slice(draw(st.integers(0, 4)), draw(st.integers(5, 9)), draw(steps)) for _ in shape]
    directions = [slice(None, None, draw(st.sampled_from([1, -1]))) for _ in shape]
    order = draw(st.permutations(range(len(shape))))
    view = view[tuple(parts)][tuple(directions)].transpose(order)
    if draw(st.booleans()):
        view = np.broadcast_to(view, (draw(st.integers(0, 9)), *view.shape))
    return view


@given(views(), st.integers(0, 3))
def test_views_with_any_strides_are_copied(view: NDArray[Any], place: int) -> None:
    """A row may be mirrored, transposed, cut with steps or repeated, between rows that are plain."""
    rows: list[NDArray[Any]] = [np.ascontiguousarray(view)] * 3
    rows.insert(place, view)
    assert stack_arrays(rows).tobytes() == numpy_stack(rows).tobytes()


def test_pieces_of_any_size_are_copied() -> None:
    """A mirrored image may have pixels of any number of bytes, and lines of any number of pixels."""
    for size, width in itertools.product(range(1, 18), (1, 7, 8, 9, 20)):
        image = numbered(np.dtype("u1"), (3, width, size), size)
        mirrored = image[:, ::-1]
        assert np.array_equal(stack_arrays([mirrored, image]), np.stack([mirrored, image]))


def test_large_rows_are_shared_by_threads() -> None:
    """Any number of threads copies each byte of many megabytes to its place."""
    rows = [numbered(np.dtype("u1"), (LARGE + 1,), row) for row in range(4)]
    rows[2] = rows[2][::-1].copy()[::-1]  # one thread copies this one, in between
    for num_threads in (2, 3):
        assert np.array_equal(stack_arrays(rows, num_threads=num_threads), np.stack(rows))


def test_a_row_may_be_in_its_place() -> None:
    """An array that already is its own row of out stays unchanged."""
    out = np.arange(6).reshape(3, 2)
    rows = [np.array([7, 8]), out[1], np.array([9, 10])]
    assert stack_arrays(rows, out=out) is out
    assert out.tolist() == [[7, 8], [2, 3], [9, 10]]


def test_exported_arrays_and_scalars_are_rows() -> None:
    """An object that exports an array counts as that array, and a batch's array as the sequence of its rows."""

    class Exporter:
        def __array__(self, dtype: object = None, copy: object = None) -> NDArray[Any]:
            return np.array([1.0, 2.0])

    rows: Any = [np.array([3.0, 4.0]), Exporter()]
    assert stack_arrays(rows).tolist() == [[3.0, 4.0], [1.0, 2.0]]
    assert stack_arrays(np.arange(6).reshape(3, 2)).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert stack_arrays(np.arange(3)).tolist() == [0, 1, 2]


def test_bytes_between_fields_are_zero() -> None:
    """A structure's bytes that belong to no field are zero, whatever rows and out held there."""
    row = np.frombuffer(b"\xff" * (2 * PADDED.itemsize), PADDED)
    out = np.frombuffer(bytearray(b"\xee" * (4 * PADDED.itemsize)), PADDED).reshape(2, 2)
    stack_arrays([row, row], out=out)
    assert out.tobytes() == with_zeros_between_fields(row).tobytes() * 2


def message(rows: object, **keywords: Any) -> str:
    """Return the message that a call is refused with."""
    given_rows: Any = rows
    with pytest.raises(UsageError) as raised:
        stack_arrays(given_rows, **keywords)
    return str(raised.value)


def test_rows_that_differ_are_refused() -> None:
    """The message names the row, with its dtype and shape and those of row 0."""
    zeros = np.zeros((2, 3), np.uint8)
    text = message([zeros, zeros, np.zeros((2, 4), np.uint8)])
    assert "row 0 is uint8 of shape (2, 3) and row 2 is uint8 of shape (2, 4)" in text
    assert "row 1 is float32 of shape (2, 3)" in message([zeros, zeros.astype(np.float32)])
    assert "nothing is promoted" in message([np.zeros(1, "<i4"), np.zeros(1, ">i4")])


def test_what_is_no_array_of_values_is_refused() -> None:
    """Objects, texts and containers aren't stacked, and the message names the row."""
    for row in (np.array([None]), "text", b"bytes", None, {1: 2}, np.ma.masked_array([1])):
        assert "row 1 is" in message([np.zeros(1), row])
        assert "row 0 is" in message([row])
    assert "got none" in message([])
    assert "num_threads=0" in message([np.zeros(1)], num_threads=0)


@pytest.mark.parametrize(
    ("out", "fault"),
    [
        (np.zeros((2, 3)), "got float64 of shape (2, 3)"),
        (np.zeros((2, 2), np.int64), "got int64 of shape (2, 2)"),
        (np.zeros((3, 2), np.int64).T, "one that isn't C-contiguous"),
        (np.broadcast_to(np.int64(0), (2, 3)), "a read-only one"),
        (np.ma.masked_array(np.zeros((2, 3), np.int64)), "got a MaskedArray"),
        ([[0, 0, 0], [0, 0, 0]], "got a list"),
    ],
)
def test_an_out_that_does_not_fit_is_refused(out: object, fault: str) -> None:
    """The message has dtype and shape of the result and of out."""
    assert fault in message([np.arange(3), np.arange(3)], out=out)


def test_rows_within_out_are_refused() -> None:
    """A row that other rows of out would overwrite is refused."""
    out = np.arange(6).reshape(2, 3)
    assert "row 1 does" in message([np.arange(3), out[0]], out=out)
    assert "row 0 does" in message([out.reshape(-1)[1:4], np.arange(3)], out=out)
    assert "row 0 does" in message([out[0, ::-1], np.arange(3)], out=out)
