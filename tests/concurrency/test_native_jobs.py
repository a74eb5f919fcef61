"""Jobs have the results of Python's own functions, on any buffers, and refuse impossible arguments."""

import ctypes
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from penstock.concurrency import NativeJob
from penstock.errors import UsageError
from penstock.transport import Bytes
from tests.concurrency.loops import run_jobs
from tests.profiles import in_short

LINUX = Path("/proc/self/comm").exists()
LONG = Path("/proc/kallsyms")  # it reports a size of 0, and has megabytes
DTYPES = [np.uint8, np.int16, np.float32, np.complex128, np.bool_, "datetime64[ns]", "S5", [("a", "i2"), ("b", "f8")]]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of 10,000 bytes."""
    path = tmp_path_factory.mktemp("files") / "données"
    path.write_bytes(np.random.default_rng(3).bytes(10_000))  # noqa: TID251 - the test's own bytes
    return path


@in_short(10)
@given(ranges=st.lists(st.tuples(st.integers(0, 11_000), st.integers(0, 11_000) | st.none()), max_size=12))
def test_ranges_are_slices_of_the_file(file: Path, ranges: list[tuple[int, int | None]]) -> None:
    """Each range is the file's slice, also in given memory; one past the end fails, and the error names it."""
    whole = file.read_bytes()
    outs = [np.empty((2, 0 if size is None else size), np.uint8) for _, size in ranges]
    with file.open("rb") as opened:
        jobs: list[NativeJob[Any]] = [NativeJob.read_file(file, start, size=size) for start, size in ranges]
        jobs += [NativeJob.read_file(opened.fileno(), start, size=size) for start, size in ranges]
        opened.seek(17)
    jobs += [NativeJob.read_file(str(file), start, out=out[1]) for out, (start, _) in zip(outs, ranges, strict=True)]
    results = run_jobs(*jobs)
    for job_result, (start, size) in zip(results, ranges * 3, strict=True):
        if size is not None and start + size > len(whole) and size > 0:
            assert isinstance(job_result, OSError)
            assert f"bytes [{start}, {start + size})" in str(job_result)
        elif isinstance(job_result, np.ndarray):
            assert job_result.tobytes() == whole[start : start + (size or 0)]
        else:
            assert type(job_result) is Bytes
            assert job_result == whole[start : None if size is None else start + size]
    for found, out in zip(results[2 * len(ranges) :], outs, strict=True):
        assert isinstance(found, OSError) or found.base is out


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Each failure is the OSError that Python would raise, with the path."""
    missing, folder, pipe = tmp_path / "missing", tmp_path / "folder", os.pipe()
    folder.mkdir()
    results = run_jobs(
        NativeJob.read_file(missing, 3, size=4),
        NativeJob.read_file(folder, size=1),
        NativeJob.read_file(pipe[0], size=1),
    )
    assert [type(error) for error in results] == [FileNotFoundError, IsADirectoryError, OSError]
    assert results[0].filename == str(missing)
    assert "bytes [3, 7)" in str(results[0])
    assert f"descriptor {pipe[0]}" in str(results[2])
    for end in pipe:
        os.close(end)
    with pytest.raises(OSError, match="Bad file descriptor"):
        NativeJob.read_file(pipe[0], size=1)


@pytest.mark.skipif(not LINUX, reason="no file without a known size")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer ends such a process")
def test_ranges_larger_than_memory(file: Path) -> None:
    """A range larger than all memory is a MemoryError of its future, and other jobs work."""
    failed, fine = run_jobs(NativeJob.read_file("/proc/self/status", size=2**62), NativeJob.read_file(file, size=3))
    assert isinstance(failed, MemoryError)
    assert fine == file.read_bytes()[:3]


def test_files_without_a_known_size(file: Path) -> None:
    """A range longer than the file is refused before memory is taken; a file that reports a size of 0 is read whole."""
    failed, named = run_jobs(
        NativeJob.read_file(file, size=2**62), NativeJob.read_file("/proc/self/comm" if LINUX else file, size=4)
    )
    assert isinstance(failed, OSError)
    assert "ends at byte 10000" in str(failed)
    assert len(named) == 4


@pytest.mark.skipif(not LINUX, reason="no file without a known size")
def test_files_without_a_known_size_are_read_to_their_end(tmp_path: Path) -> None:
    """Without a range, a file that reports a size of 0 is read to its end; a device has none, unless it is empty."""
    empty, pipe = tmp_path / "empty", os.pipe()
    empty.touch()
    long = LONG if LONG.exists() else Path("/proc/version")
    found, rest, nothing, null, zeros, piped = run_jobs(
        NativeJob.read_file(long),
        NativeJob.read_file("/proc/version", 6),
        NativeJob.read_file(empty),
        NativeJob.read_file("/dev/null"),
        NativeJob.read_file("/dev/zero", 3),
        NativeJob.read_file(pipe[0]),
    )
    assert found == long.read_bytes()
    assert rest == Path("/proc/version").read_bytes()[6:]
    assert (bytes(nothing), bytes(null)) == (b"", b"")
    assert isinstance(zeros, OSError)
    assert "a device may have no end, and bytes [3, end) were requested" in str(zeros)
    assert isinstance(piped, OSError)
    for end in pipe:
        os.close(end)


def test_a_descriptor_may_be_closed_at_once(file: Path) -> None:
    """A job keeps its open file, even if its descriptor's number belongs to another file when it runs."""
    descriptor = os.open(file, os.O_RDONLY)
    job = NativeJob.read_file(descriptor, 5, size=5)
    os.close(descriptor)
    assert run_jobs(job) == [file.read_bytes()[5:10]]


@in_short(10)
@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(0, 2**32 - 1))
def test_checksums_are_zlibs(parts: list[bytes], initial: int) -> None:
    """CRC-32 equals that of zlib, for bytes of every length, and every initial value."""
    whole = b"".join(parts)
    jobs = [*(NativeJob.crc32(part) for part in parts), NativeJob.crc32(whole, initial=initial)]
    assert run_jobs(*jobs) == [*(zlib.crc32(part) for part in parts), zlib.crc32(whole, initial)]


@in_short(10)
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_stacks_are_numpys(data: st.DataObject, dtype: Any) -> None:
    """Arrays of any dtype and shape are stacked as `np.stack` does, byte by byte."""
    shape = data.draw(npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    count = data.draw(st.integers(1, 6))
    raw = data.draw(st.binary(min_size=1, max_size=40))
    arrays = [_filled(shape, dtype, raw, number) for number in range(count)]
    out = np.zeros((count, *shape), dtype)
    assert run_jobs(NativeJob.stack(arrays, out))[0] is out
    assert out.tobytes() == np.stack(arrays).tobytes()


@in_short(10)
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_gathered_rows_are_numpys(data: st.DataObject, dtype: Any) -> None:
    """Rows equal those of NumPy; a wrong key is an IndexError, and leaves `out` unchanged."""
    shape = data.draw(npst.array_shapes(min_dims=0, max_dims=2, min_side=1, max_side=5))
    length = data.draw(st.integers(1, 9))
    source = _filled((length, *shape), dtype, data.draw(st.binary(min_size=1, max_size=40)), 0)
    keys = np.array(data.draw(st.lists(st.integers(0, length - 1), max_size=12)), np.int32)
    out = np.zeros((len(keys), *shape), dtype)
    untouched = np.zeros((2, 1, *shape), dtype)
    wrong = [NativeJob.gather(source, np.array([key]), out=untouched[row]) for row, key in enumerate((-1, length))]
    found, *failed = run_jobs(NativeJob.gather(source, keys, out=out), *wrong)
    assert found is out
    assert out.tobytes() == np.take(source, keys, axis=0).tobytes()
    assert [type(error) for error in failed] == [IndexError, IndexError]
    assert untouched.tobytes() == bytes(untouched.nbytes)


@in_short(10)
@given(st.binary(max_size=100), st.integers(0, 100))
def test_copies_are_bytes(source: bytes, shift: int) -> None:
    """Bytes are copied, even to an overlapping place."""
    out, memory = bytearray(len(source)), bytearray(source + bytes(100))
    view = memoryview(memory)
    run_jobs(NativeJob.copy(source, out), NativeJob.copy(view[: len(source)], view[shift : shift + len(source)]))
    assert out == source
    assert memory[shift : shift + len(source)] == source
    view.release()


def _filled(shape: tuple[int, ...], dtype: Any, raw: bytes, number: int) -> NDArray[Any]:
    array = np.zeros(shape, dtype)
    raw = raw[number % len(raw) :] + raw
    filled = np.frombuffer((raw * (array.nbytes // len(raw) + 1))[: array.nbytes], np.uint8) & 1  # valid as a bool
    return np.frombuffer(filled.tobytes(), dtype).reshape(shape) if array.size else array


ROWS = np.zeros((3, 4))
WRONG_KEYS: Any = np.zeros(2)
READ_ONLY = np.frombuffer(bytes(96)).reshape(3, 4)


IMPOSSIBLE: list[Callable[[], object]] = [
    lambda: NativeJob.read_file("f", -1),
    lambda: NativeJob.read_file("f", size=-1),
    lambda: NativeJob.read_file("f", 2**63 - 5, size=6),
    lambda: NativeJob.read_file("f", 2**64),
    lambda: NativeJob.read_file("f", size=3, out=bytearray(4)),
    lambda: NativeJob.read_file("f", out=memoryview(b"abc")),
    lambda: NativeJob.read_file("f", out=np.zeros(8)[::2]),
    lambda: NativeJob.read_file("a\0b", size=1),
    lambda: NativeJob.copy(b"abc", bytearray(4)),
    lambda: NativeJob.copy(b"abc", READ_ONLY),
    lambda: NativeJob.copy(ROWS[:, 0], bytearray(24)),
    lambda: NativeJob.stack([ROWS, ROWS], np.zeros((3, 3, 4))),
    lambda: NativeJob.stack([ROWS, ROWS[:2]], np.zeros((2, 3, 4))),
    lambda: NativeJob.stack([ROWS, ROWS.astype("f4")], np.zeros((2, 3, 4))),
    lambda: NativeJob.stack([ROWS, np.zeros((4, 3)).T], np.zeros((2, 3, 4))),
    lambda: NativeJob.stack([ROWS[0], ROWS[1], ROWS[2]], ROWS),
    lambda: NativeJob.stack([ROWS[0], ROWS[1], ROWS[2]], READ_ONLY),
    lambda: NativeJob.stack([], np.zeros(())),
    lambda: NativeJob.gather(ROWS, WRONG_KEYS, out=np.zeros((2, 4))),
    lambda: NativeJob.gather(ROWS, np.zeros((2, 1), int), out=np.zeros((2, 4))),
    lambda: NativeJob.gather(ROWS, np.zeros(2, int), out=np.zeros((3, 4))),
    lambda: NativeJob.gather(ROWS, np.zeros(2, int), out=np.zeros((2, 4), "f4")),
    lambda: NativeJob.gather(ROWS, np.zeros(2, int), out=ROWS[:2]),
    lambda: NativeJob.gather(ROWS.T, np.zeros(2, int), out=np.zeros((2, 3))),
    lambda: NativeJob.crc32(ROWS[:, 0]),
    lambda: NativeJob.crc32(b"", initial=2**32),
    lambda: NativeJob.crc32(b"", initial=-1),
]


def test_impossible_jobs_are_refused() -> None:
    """A job that can't be done is refused when it is made, with the remedy."""
    for make in IMPOSSIBLE:
        with pytest.raises(UsageError, match="got"):
            make()


OBJECTS: Any = np.array([[None, 1], ["a", 2]], object)
FIELDS: Any = np.zeros(2, [("number", "i4"), ("object", "O")])


OF_OBJECTS: list[Callable[[], object]] = [
    lambda: NativeJob.read_file("f", out=OBJECTS),
    lambda: NativeJob.copy(OBJECTS, bytearray(32)),
    lambda: NativeJob.copy(bytes(32), memoryview(OBJECTS)),
    lambda: NativeJob.copy(memoryview(FIELDS), bytearray(24)),
    lambda: NativeJob.copy((ctypes.py_object * 2)(), bytearray(16)),
    lambda: NativeJob.stack([OBJECTS, OBJECTS], np.empty((2, 2, 2), object)),
    lambda: NativeJob.stack([FIELDS], np.zeros((1, 2), FIELDS.dtype)),
    lambda: NativeJob.gather(OBJECTS, np.zeros(1, int), out=np.empty((1, 2), object)),
    lambda: NativeJob.crc32(OBJECTS),
    lambda: NativeJob.xxh3_64(FIELDS),
    lambda: NativeJob.decompress(OBJECTS),
    lambda: NativeJob.decompress(zlib.compress(bytes(32)), out=OBJECTS),
]


def test_python_objects_are_refused() -> None:
    """A job copies bytes and counts no references, so it refuses buffers with Python objects.

    So are rows of a StringDType, which refer to memory of their array.
    """
    for make in OF_OBJECTS:
        with pytest.raises(UsageError, match="no Python objects; got"):
            make()
    if hasattr(np.dtypes, "StringDType"):  # NumPy 2
        texts: Any = np.array(["a", "b" * 100], "T")
        with pytest.raises(UsageError, match="no Python objects; got"):
            NativeJob.gather(texts, np.zeros(2, int), out=np.empty_like(texts))


def test_names_of_fields_are_no_objects() -> None:
    """A field whose name has the letter of objects is no object."""
    rows: Any = np.ones(2, [("O", "i4")])
    out = bytearray(8)
    run_jobs(NativeJob.copy(memoryview(rows), out))
    assert out == rows.tobytes()
