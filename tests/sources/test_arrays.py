"""Arrays: rows by key, memory maps sent by name, and the content that the fingerprint covers."""

import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from penstock.errors import SourceError, UsageError
from penstock.sources import Arrays, can_read_into
from tests.profiles import in_short

LAYOUTS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "as it is": lambda array: array,
    "turned": lambda array: array.T,
    "part of each row": lambda array: array[..., :2],
    "every other row": lambda array: array[::2],
    "reversed": lambda array: array[::-1],
    "one row, repeated": lambda array: np.broadcast_to(array, (4, *array.shape)),
    "windows": lambda array: sliding_window_view(array, min(2, len(array)), axis=0) if len(array) else array,
}
DTYPES = st.sampled_from(["u1", ">i2", "i4", "f2", "f8", "c16", "?", "S3", "U2", "M8[s]", "i4,f8"])


@in_short(10)
@given(
    array=DTYPES.flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5))
    ),
    layout=st.sampled_from(list(LAYOUTS)),
    data=st.data(),
)
def test_rows_are_those_that_numpy_gives(array: NDArray[Any], layout: str, data: st.DataObject) -> None:
    """Reading keys gives the rows that indexing gives, for any dtype, shape and layout."""
    array = LAYOUTS[layout](array)
    keys = data.draw(st.lists(st.integers(0, max(0, len(array) - 1)), max_size=20 if len(array) else 0))
    source = Arrays(array)
    rows = source.read(keys)
    assert [row.tobytes() for row in rows] == [array[key].tobytes() for key in keys]
    assert [row.dtype for row in rows] == [array[key].dtype for key in keys]
    for row, single in zip(rows, [source[key] for key in keys], strict=True):
        assert (type(single), single.dtype, single.shape) == (type(row), row.dtype, row.shape)
        assert single.tobytes() == row.tobytes()
        assert not np.shares_memory(single, array)
        assert single.flags.c_contiguous
    if can_read_into(source):
        out = np.empty((len(keys), *array.shape[1:]), array.dtype)
        source.read_into(np.array(keys, np.int64), out)
        assert out.tobytes() == array[np.array(keys, np.int64)].tobytes()


def test_read_into_writes_rows_that_are_not_contiguous() -> None:
    """A target with gaps is filled, and the bytes between its rows stay unchanged."""
    array = np.arange(12).reshape(4, 3)
    target = np.full((2, 6), -1)
    Arrays(array).read_into([3, 1], target[:, ::2])
    assert target.tolist() == [[9, -1, 10, -1, 11, -1], [3, -1, 4, -1, 5, -1]]


def test_only_the_rows_of_the_keys_are_copied() -> None:
    """A read of three rows takes memory for these, whatever the strides of the array are."""
    for name, layout in LAYOUTS.items():
        source = Arrays(layout(np.zeros((1000, 8, 128))))
        row_bytes = source[0].nbytes
        source.read([0])
        tracemalloc.start()
        try:
            source.read([0, 2, 1])
            assert tracemalloc.get_traced_memory()[1] < 6 * row_bytes + 20_000, name
        finally:
            tracemalloc.stop()


def test_a_key_outside_is_refused_before_anything_is_written() -> None:
    """A key outside [0, length) is an IndexError that names it, and leaves the target unchanged."""
    array = np.arange(16).reshape(4, 4)
    for source in (Arrays(array), Arrays(array[:, :2]), Arrays(array[:, ::2])):
        out = np.full((2, *source[0].shape), -7)
        for key in (-1, 4, 2**62):
            with pytest.raises(IndexError, match=rf"a key must be in \[0, 4\); got {key}"):
                source.read_into(np.array([0, key]), out)
            assert (out == -7).all()
            with pytest.raises(IndexError, match=rf"got {key}"):
                source.read([0, key])


def test_read_into_refuses_a_target_of_another_kind() -> None:
    """A target of another dtype or shape is refused, since bytes are copied as they are."""
    source = Arrays({"x": np.zeros((4, 2), np.float32)})
    with pytest.raises(UsageError, match=r"out must be float32 of shape \(1, 2\); got float64 of shape \(1, 2\)"):
        source.read_into([0], {"x": np.empty((1, 2), np.float64)})
    with pytest.raises(UsageError, match=r"got float32 of shape \(2, 2\)"):
        source.read_into([0], {"x": np.empty((2, 2), np.float32)})


REFUSED: list[tuple[Any, str]] = [
    ({}, "at least one array"),
    ({"image": np.zeros(3), "label": np.zeros(2)}, "all arrays must have one length; got image: 3, label: 2"),
    ({"x": np.float64(1)}, r"arrays\['x'\] must be an array with at least one axis"),
    (np.array(1), "the array must be an array with at least one axis"),
    ({"x": [[1], [2, 3]]}, r"arrays\['x'\] must be an array; got a list that can't be converted"),
    (
        {"train": {"a": 1}},
        "arrays\\['train'\\] must be an array; got a dict. .* if it is a dict of datasets, read one of them",
    ),
    ({"x": np.ma.masked_array([1, 2], [True, False])}, r"arrays\['x'\] must not be a masked array"),
]


def test_other_objects_than_arrays_are_refused() -> None:
    """Objects that have no rows are refused, with the name of the array and the remedy."""
    for arrays, message in REFUSED:
        with pytest.raises(UsageError, match=message):
            Arrays(arrays)


def _views(folder: Path) -> dict[str, NDArray[Any]]:
    path = folder / "a.bin"
    (np.arange(20_000, dtype=np.int32) * 3).tofile(path)
    saved = folder / "b.npy"
    np.save(saved, np.arange(600).reshape(20, 30))
    whole = np.memmap(path, np.int32, "r", shape=(100, 200))
    # Its offset is past the first page, so that the map begins elsewhere than the array.
    late = np.memmap(path, np.int32, "r", offset=4 * 1999, shape=(90, 200))
    return {
        "whole": whole,
        "late": late,
        "rows": late[7:],
        "slice of a slice": late[7:][3:50:2],
        "columns": late[:, 5:17],
        "transposed": late.T,
        "backwards": late[::-1, ::-3],
        "other dtype": late[2:].view(np.uint8),
        "plain view": np.asarray(late)[4:],
        "npy": np.load(saved, mmap_mode="r"),
        "npy rows": np.load(saved, mmap_mode="r")[3:, 1:],
        "fortran": np.load(_fortran(folder), mmap_mode="r")[2:],
        "r+": np.memmap(path, np.int32, "r+", offset=400)[5:],
    }


def _fortran(folder: Path) -> Path:
    path = folder / "f.npy"
    np.save(path, np.asfortranarray(np.arange(60.0).reshape(10, 6)))
    return path


def test_memory_maps_are_sent_by_name(tmp_path: Path) -> None:
    """Every view of a memory map is pickled by its place in its file, and is the same array after unpickling."""
    for name, view in _views(tmp_path).items():
        sent = pickle.dumps(Arrays(view))
        assert len(sent) < 2_000, name
        beside = pickle.loads(pickle.dumps(Arrays({"x": view, "small": np.arange(len(view))})))
        records = beside.read(range(len(view)))
        assert all(np.array_equal(record["x"], row) for record, row in zip(records, view, strict=True)), name
        again = pickle.loads(pickle.dumps(pickle.loads(sent)))
        assert np.array_equal(again.read(range(len(view))), view), name


def test_data_that_differs_from_the_file_is_sent_by_its_bytes(tmp_path: Path) -> None:
    """Copies of rows, and copy-on-write maps, may differ from the file, so their bytes are sent."""
    path = tmp_path / "a.bin"
    np.arange(1000).tofile(path)
    mapped = np.memmap(path, np.int64, "r")
    changed = np.memmap(path, np.int64, "c")
    changed[3] = -5
    picked = mapped[[5, 5, 9]]
    received = pickle.loads(pickle.dumps([Arrays(picked), Arrays(changed), Arrays(mapped + 1)]))
    path.unlink()
    assert [row.item() for row in received[0].read(range(3))] == [5, 5, 9]
    assert received[1][3] == -5
    assert received[2][999] == 1000


def test_a_mapped_file_must_stay(tmp_path: Path) -> None:
    """A map whose file was removed, or has another size, is a SourceError in the receiving process."""
    path = tmp_path / "a.bin"
    np.arange(1000).tofile(path)
    sent = pickle.dumps(Arrays({"x": np.memmap(path, np.int64, "r")}))
    np.arange(900).tofile(path)
    with pytest.raises(SourceError, match="changed its size from 8000 to 7200 bytes"):
        pickle.loads(sent)[0]
    path.unlink()
    with pytest.raises(SourceError, match="don't move or remove the file") as caught:
        pickle.loads(sent)[0]
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert caught.value.errno == caught.value.__cause__.errno


@in_short(10)
@given(array=hnp.arrays("i4", hnp.array_shapes(max_dims=2, max_side=6)), data=st.data())
def test_any_change_of_a_small_array_changes_the_fingerprint(array: NDArray[Any], data: st.DataObject) -> None:
    """Up to 1 MB every element counts, and so do dtype, shape and name; the layout in memory doesn't."""
    fingerprint = Arrays({"x": array}).fingerprint()
    changed = array.copy()
    changed.flat[data.draw(st.integers(0, array.size - 1))] ^= 1
    assert Arrays({"x": changed}).fingerprint() != fingerprint
    assert Arrays({"x": array.view("u4")}).fingerprint() != fingerprint
    assert Arrays({"x": array[..., np.newaxis]}).fingerprint() != fingerprint
    assert Arrays({"y": array}).fingerprint() != fingerprint
    assert Arrays(array).fingerprint() != fingerprint
    assert Arrays({"x": np.asfortranarray(array)}).fingerprint() == fingerprint


def test_a_large_array_is_sampled_for_its_fingerprint() -> None:
    """Of an array over 1 MB, the first and the last elements count, and so does a change of all elements."""
    array = np.arange(1_000_003, dtype=np.int64)
    fingerprint = Arrays(array).fingerprint()
    assert Arrays(array.copy()).fingerprint() == fingerprint
    assert Arrays(np.asfortranarray(array.reshape(1, -1))).fingerprint() != fingerprint
    for changed in (np.where(array == 0, 1, array), np.where(array == len(array) - 1, 1, array), array + 1):
        assert Arrays(changed).fingerprint() != fingerprint


def test_a_moved_memory_map_keeps_its_fingerprint(tmp_path: Path) -> None:
    """Of a memory map the file's name and size count, not its folder; another span of the file is other data."""
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
        np.arange(100).tofile(tmp_path / folder / "a.bin")
    np.arange(100).tofile(tmp_path / "b.bin")
    old, new, other = (np.memmap(tmp_path / name, np.int64, "r") for name in ("old/a.bin", "new/a.bin", "b.bin"))
    assert Arrays(old).fingerprint() == Arrays(new).fingerprint()
    assert Arrays(old).fingerprint() != Arrays(other).fingerprint()
    assert Arrays(old[1:51]).fingerprint() != Arrays(old[:50]).fingerprint()


def test_spans_are_frames_of_rows() -> None:
    """Arrays with a second axis give a copy of a span of it; others give their rows. Numbers of frames must agree."""
    frames = np.arange(24).reshape(2, 4, 3)
    source = Arrays({"x": frames, "label": [5, 6]})
    first, second = source.read_spans([1, 0], np.array([1, 0]), np.array([3, 4]))
    assert first["x"].tolist() == frames[1, 1:3].tolist()
    assert second["x"].tolist() == frames[0].tolist()
    assert (first["label"], second["label"]) == (6, 5)
    first["x"][:] = -1
    assert frames.min() == 0
    with pytest.raises(UsageError, match="arrays with equal numbers of frames"):
        Arrays({"x": frames, "goal": np.zeros((2, 3))}).read_spans([0], np.array([0]), np.array([1]))
    with pytest.raises(IndexError, match=r"in \[0, 2\); got 2"):
        source.read_spans([2], np.array([0]), np.array([1]))


def test_fields_in_another_order_have_a_fingerprint() -> None:
    """Its value depends on the order of the fields and on the content."""
    rows = np.zeros(3, [("a", "<i4"), ("b", "<f8"), ("c", "<i2")])
    other = rows.copy()
    other["c"] = 1
    chosen = (rows[["c", "a"]], rows[["a", "c"]], other[["c", "a"]])
    assert len({Arrays(part).fingerprint() for part in chosen}) == 3
    assert Arrays(rows[["c", "a"]]).fingerprint() == Arrays(rows[["c", "a"]]).fingerprint()
