"""Tokens: windows and documents over memory-mapped files, against slices of the arrays in memory."""

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import SourceError, UsageError
from penstock.sources import Tokens, can_read_into, describe_key, read_records
from tests.profiles import in_short

if TYPE_CHECKING:
    from numpy.typing import NDArray

DTYPES = ["u1", "<u2", ">u2", "i4", ">i8", "u8"]


@in_short(10)
@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    length=st.integers(1, 12),
    stride=st.none() | st.integers(1, 15),
    dtype=st.sampled_from(DTYPES),
    data=st.data(),
)
def test_windows_are_slices_that_never_cross_files(
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    length: int,
    stride: int | None,
    dtype: str,
    data: st.DataObject,
) -> None:
    """Windows are the slices of each file, file by file, for any dtype, stride, overlap and number of files."""
    folder = tmp_path_factory.mktemp("tokens")
    paths: list[Path] = []
    expected: list[NDArray[Any]] = []
    for number, count in enumerate(counts):
        tokens = (np.arange(count) + 50 * number).astype(dtype)
        paths.append(folder / f"{number}.{'npy' if number % 2 else 'bin'}")
        if number % 2:
            np.save(paths[-1], tokens)
        else:
            tokens.tofile(paths[-1])
        starts = range(0, count - length + 1, length if stride is None else stride)
        expected.extend(tokens[start : start + length] for start in starts)
    if not expected:
        with pytest.raises(UsageError, match=f"at least one file must have length={length} tokens"):
            Tokens(paths, length, dtype=dtype, stride=stride)
        return
    source = Tokens(paths, length, dtype=dtype, stride=stride)
    assert len(source) == len(expected)
    keys = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=20))
    read = source.read(np.array(keys, np.int64))
    assert [record.tobytes() for record in read] == [expected[key].tobytes() for key in keys]
    assert all(record.dtype == np.dtype(dtype) for record in read)
    out = np.zeros((len(keys), length), dtype)
    source.read_into(keys, out)
    assert [row.tobytes() for row in out] == [record.tobytes() for record in read]


@in_short(10)
@given(
    files=st.lists(st.lists(st.integers(0, 3), max_size=30), min_size=1, max_size=4).filter(any),
    dtype=st.sampled_from(DTYPES),
)
def test_documents_end_after_the_separator(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int]], dtype: str
) -> None:
    """The documents of a file, joined, are its tokens; each but the last ends with the only separator in it."""
    folder = tmp_path_factory.mktemp("tokens")
    expected: list[list[int]] = []
    for number, tokens in enumerate(files):
        np.array(tokens, dtype).tofile(folder / f"{number}.bin")
        document: list[int] = []
        for token in tokens:
            document.append(token)
            if token == 0:
                expected.append(document)
                document = []
        expected.extend([document] if document else [])
    source = Tokens(f"{folder}/*.bin", dtype=dtype, separator=0)
    assert [document.tolist() for document in source.read(range(len(source)))] == expected
    assert not can_read_into(source)


def test_globs_are_sorted_and_lists_keep_their_order(tmp_path: Path) -> None:
    """A glob is sorted by name, also in folders; a list is taken as it is, and may hold globs and a file twice."""
    (tmp_path / "d").mkdir()
    for number, name in enumerate(["b.bin", "a.bin", "d/c.bin", "x[1].bin"]):
        np.array([number], np.uint8).tofile(tmp_path / name)

    def firsts(paths: Path | str | list[Path | str]) -> list[int]:
        source = Tokens(paths, 1, dtype="u1")
        return [int(record[0]) for record in source.read(range(len(source)))]

    assert firsts(f"{tmp_path}/*.bin") == [1, 0, 3]
    assert firsts(f"{tmp_path}/**/*.bin") == [1, 0, 2, 3]
    assert firsts([tmp_path / "b.bin", f"{tmp_path}/?.bin", tmp_path / "b.bin"]) == [0, 1, 0, 0]
    assert firsts(tmp_path / "x[1].bin") == [3]


def test_found_documents_are_kept_in_the_cache(tmp_path: Path) -> None:
    """A second source takes the offsets from the cache; a source with another separator doesn't."""
    np.array([1, 0, 2, 2, 0], np.uint16).tofile(tmp_path / "a.bin")
    assert len(Tokens(tmp_path / "a.bin", separator=0, dtype="u2")) == 2
    (cached,) = (tmp_path / "cache" / "penstock").iterdir()
    written = cached.stat().st_mtime_ns
    assert len(Tokens(tmp_path / "a.bin", separator=0, dtype="u2")) == 2
    assert cached.stat().st_mtime_ns == written
    assert len(Tokens(tmp_path / "a.bin", separator=2, dtype="u2")) == 3
    assert len(list((tmp_path / "cache" / "penstock").iterdir())) == 2


def test_files_are_mapped_without_descriptors(tmp_path: Path) -> None:
    """More files can be mapped than descriptors may be open."""
    resource = pytest.importorskip("resource")
    for number in range(100):
        np.array([number] * 3, np.uint8).tofile(tmp_path / f"{number:03}.bin")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (90, before[1]))
    try:
        source = Tokens(f"{tmp_path}/*.bin", 3, dtype="u1")
        assert [record[0] for record in source.read(range(100))] == list(range(100))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_file_cut_short_is_an_error_not_a_crash(tmp_path: Path) -> None:
    """A file whose size changed before it was first read is named with both sizes."""
    path = tmp_path / "a.bin"
    np.arange(100, dtype=np.uint16).tofile(path)
    windows, documents = Tokens(path, 10, dtype="u2"), Tokens(path, dtype="u2", documents=[0, 50, 100])
    sent = pickle.dumps([windows, documents])
    np.arange(99, dtype=np.uint16).tofile(path)
    for source in (windows, documents, *pickle.loads(sent)):
        with pytest.raises(SourceError, match=r"changed its size from 200 to 198 bytes since the source was created"):
            read_records(source, np.array([0]))
    path.unlink()
    with pytest.raises(SourceError, match=r"cannot map .*a.bin.*restore it"):
        pickle.loads(sent)[0].read([0])


def test_the_fingerprint_follows_files_and_cuts(tmp_path: Path) -> None:
    """Names, sizes, dtype, length, stride, separator and offsets each count; the folder doesn't."""
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
        np.zeros(100, np.uint16).tofile(tmp_path / folder / "a.bin")
    np.zeros(98, np.uint16).tofile(tmp_path / "new" / "b.bin")
    old, new = tmp_path / "old" / "a.bin", tmp_path / "new" / "a.bin"
    made: list[dict[str, Any]] = [
        *({"length": 10}, {"length": 10, "stride": 9}, {"length": 9}, {"separator": 0}, {"separator": 1}),
        *({"documents": [0, 50, 100]}, {"documents": [0, 51, 100]}),
    ]
    fingerprints = [Tokens(old, dtype="u2", **arguments).fingerprint() for arguments in made]
    assert len(set(fingerprints)) == len(made)
    assert [Tokens(new, dtype="u2", **arguments).fingerprint() for arguments in made] == fingerprints
    others = [Tokens(new, 10, dtype="i2"), Tokens(tmp_path / "new" / "b.bin", 10, dtype="u2")]
    assert not {other.fingerprint() for other in others} & set(fingerprints)


def test_keys_are_described_by_file_and_tokens(tmp_path: Path) -> None:
    """A message about a key names the file and the range of its tokens."""
    for name in ("a", "b"):
        np.zeros(10, np.uint8).tofile(tmp_path / f"{name}.bin")
    source = Tokens(f"{tmp_path}/*.bin", 4, dtype="u1", stride=3)
    assert describe_key(source, 4) == "key 4 (tokens [3, 7) of file 'b.bin')"
    assert repr(source) == "Tokens(6 windows of 4 in 2 files of uint8)"
    documents = Tokens(tmp_path / "a.bin", dtype="u1", documents=[2, 5, 9])
    assert describe_key(documents, 1) == "key 1 (tokens [5, 9) of file 'a.bin')"
    assert repr(documents) == "Tokens(2 documents in 1 file of uint8)"


DEFAULTS: dict[str, Any] = {"paths": "a.bin", "dtype": "u2"}
BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "exactly one of length, documents and separator must be given; got length=None"),
    ({"length": 4, "separator": 0}, "exactly one of length, documents and separator"),
    ({"separator": 0, "stride": 4}, "stride requires length"),
    ({"length": 0}, "length must be a whole number of at least 1 token; got length=0"),
    ({"length": 3.0}, "length must be a whole number of at least 1 token; got length=3.0"),
    ({"separator": 2.5}, "separator must be a token of .*; got 2.5"),
    ({"length": 4, "stride": 0}, "stride must be a whole number of at least 1 token; got stride=0"),
    ({"length": 11}, "at least one file must have length=11 tokens; the longest, '.*a.bin', has 10"),
    ({"length": 4, "dtype": None}, "raw tokens need a dtype; got none for '.*a.bin'"),
    ({"length": 4, "dtype": "f4"}, "tokens must be integers; '.*a.bin' has float32"),
    ({"length": 4, "dtype": "u8"}, "a file of uint64 must have a multiple of 8 bytes; '.*a.bin' has 20"),
    ({"separator": 70_000}, r"separator must be a token of uint16, in \[0, 65535\]; got 70000"),
    ({"documents": [0]}, "documents must be n \\+ 1 integer offsets"),
    ({"documents": [0.0, 5.0]}, "documents must be n \\+ 1 integer offsets"),
    ({"documents": [0, 11]}, r"documents must be offsets in \[0, 10\]"),
    ({"documents": [-1, 5]}, r"documents must be offsets in \[0, 10\]"),
    ({"documents": [0, 5, 4]}, "never decreasing"),
    ({"documents": [np.array([0, 5]), np.array([0, 5])]}, "one array of offsets for each file; got 2 for 1 files"),
    ({"paths": [], "length": 4}, "Tokens needs at least one file; got an empty list"),
    ({"paths": "missing*.bin", "length": 4}, "a glob must match at least one file; '.*missing\\*.bin' matches none"),
    ({"paths": ".", "length": 4}, "Tokens reads files; got the folder"),
    ({"paths": "table.npy", "length": 4}, r"tokens must have one axis; '.*table.npy' has shape \(2, 3\)"),
    ({"paths": "b.npy", "length": 1, "dtype": "u2"}, "b.npy' has int64; got dtype=uint16. Omit dtype="),
    ({"paths": ["a.bin", "i.npy"], "length": 4, "dtype": "u2"}, "i.npy' has int32; got dtype=uint16"),
    ({"paths": ["b.npy", "i.npy"], "length": 1, "dtype": None}, "all token files must have one dtype"),
    ({"paths": "cut.npy", "length": 1}, "cut.npy' is not a whole .npy file"),
    ({"paths": "text.npy", "length": 1}, "text.npy' is not a whole .npy file"),
    ({"paths": "empty.bin", "separator": 0}, "at least one file must have tokens"),
]


def test_bad_arguments_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mistake has a message with the rule, the value and the file."""
    monkeypatch.chdir(tmp_path)
    np.arange(10, dtype=np.uint16).tofile("a.bin")
    np.array([], np.uint16).tofile("empty.bin")
    np.save("table.npy", np.zeros((2, 3), np.uint16))
    np.save("b.npy", np.arange(4, dtype=np.int64))
    np.save("i.npy", np.arange(4, dtype=np.int32))
    np.save("cut.npy", np.arange(1000, dtype=np.uint16))
    Path("cut.npy").write_bytes(Path("cut.npy").read_bytes()[:-100])
    Path("text.npy").write_text("not an array")
    for arguments, message in BAD:
        with pytest.raises(UsageError, match=message):
            Tokens(**{**DEFAULTS, **arguments})
    with pytest.raises(SourceError, match=r"cannot read '.*missing.bin'"):
        Tokens("missing.bin", 4, dtype="u2")


def test_read_into_refuses_what_does_not_fit(tmp_path: Path) -> None:
    """Bytes are copied unchanged, so dtype, shape and layout must be right; documents have different shapes."""
    np.arange(40, dtype=np.uint16).tofile(tmp_path / "a.bin")
    source = Tokens(tmp_path / "a.bin", 4, dtype="u2")
    for out in (np.zeros((1, 4), np.int32), np.zeros((2, 4), np.uint16), np.zeros((1, 8), np.uint16)[:, ::2]):
        with pytest.raises(UsageError, match=r"out must be C-contiguous uint16 of shape \(1, 4\)"):
            source.read_into([0], out)
    with pytest.raises(IndexError, match=r"a key must be in \[0, 10\); got 10"):
        source.read([3, 10])
    documents = Tokens(tmp_path / "a.bin", dtype="u2", documents=[0, 4, 8])
    with pytest.raises(UsageError, match=r"documents have different lengths"):
        documents.read_into([0], np.zeros((1, 4), np.uint16))
    with pytest.raises(IndexError, match=r"a key must be in \[0, 2\); got -1"):
        documents.read([-1])


def test_records_are_cast_by_the_read(tmp_path: Path) -> None:
    """`astype` returns the same records in another dtype, by every way of reading; the fingerprint has the dtype."""
    np.arange(40, dtype=">u2").tofile(tmp_path / "a.bin")
    path = tmp_path / "a.bin"
    for own in (Tokens(path, 4, dtype=">u2"), Tokens(path, dtype=">u2", documents=[0, 4, 9])):
        cast = pickle.loads(pickle.dumps(own.astype(np.int64)))
        for record, wanted in zip(cast.read([1, 0]), own.read([1, 0]), strict=True):
            assert record.dtype == cast.dtype == np.int64
            assert record.tolist() == wanted.tolist()
            record[:] = 0  # a copy
        assert cast[1].tolist() == own[1].tolist()
        assert cast.fingerprint() != own.fingerprint()
    out = np.zeros((2, 4), np.int64)
    windows = Tokens(tmp_path / "a.bin", 4, dtype=">u2").astype(np.int64)
    windows.read_into([9, 0], out)
    assert out.tolist() == [[36, 37, 38, 39], [0, 1, 2, 3]]
    with pytest.raises(UsageError, match=r"out must be C-contiguous int64 of shape"):
        windows.read_into([0], np.zeros((1, 4), ">u2"))
    for dtype in ("u1", "i2", "f8"):
        with pytest.raises(UsageError, match=r"integers that hold all values of >u2; got dtype=.*Pass 'int64'"):
            windows.astype(dtype)


@pytest.mark.parametrize("stored", ["u1", ">u2", "<i2", "<u4", ">i4", "<i8"])
def test_windows_are_cast_to_every_dtype_that_holds_them(stored: str, tmp_path: Path) -> None:
    """The cast of windows, in blocks and into given memory, is NumPy's, also of negative tokens and of the largest."""
    own = np.dtype(stored)
    tokens = np.concatenate([np.arange(50), np.arange(50) * 251 - 70]).astype("i8").astype(own)
    tokens[:2] = np.iinfo(own).min, np.iinfo(own).max
    tokens.tofile(tmp_path / "a.bin")
    source = Tokens(tmp_path / "a.bin", 7, dtype=own, stride=3)
    keys = np.array([5, 0, len(source) - 1, 2, *range(12)])
    windows = np.stack(source.read(keys))
    for dtype in (np.dtype(order + kind) for order in "<>" for kind in ("u1", "i2", "u2", "i4", "u4", "i8", "u8")):
        if not np.can_cast(own, dtype, "safe"):
            continue
        cast = source.astype(dtype)
        out = np.zeros((len(keys), 7), dtype)
        cast.read_into(keys, out)
        assert out.tolist() == windows.astype(dtype).tolist()
        assert [record.tolist() for record in cast.read(keys)] == out.tolist()
        before = out.copy()
        with pytest.raises(IndexError, match="a key must be in"):
            cast.read_into(np.array([*keys[:-1], len(source)]), out)
        assert out.tolist() == before.tolist()


def test_lengths_are_those_of_the_records(tmp_path: Path) -> None:
    """The lengths of windows and documents, found or given, are known without a read, and plan a packing."""
    np.array([5, 6, 0, 7, 0, 8], np.uint16).tofile(tmp_path / "a.bin")
    np.array([9, 0], np.uint16).tofile(tmp_path / "b.bin")
    paths = [tmp_path / "a.bin", tmp_path / "b.bin"]
    for source in (
        Tokens(paths, 2, dtype="u2"),
        Tokens(paths, dtype="u2", separator=0),
        Tokens(paths, dtype="u2", documents=[np.array([1, 1, 6], np.uint8), np.array([0, 2])]),
    ):
        lengths = source.lengths()
        assert lengths.dtype == np.int64
        assert lengths.tolist() == [len(record) for record in source.read(range(len(source)))]
    documents = Tokens(paths, dtype="u2", separator=0)
    packed = ps.read(documents).pack(4, lengths=documents.lengths())
    assert sum(int((element["segment_ids"] > 0).sum()) for element in packed) == 8


def _with_header(tokens: "np.ndarray[Any, Any]", magic: int, version: int, count: int | None = None) -> bytes:
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens) if count is None else count
    return header.tobytes() + tokens.tobytes()


def test_files_of_llm_c_have_their_dtype_in_the_header(tmp_path: Path) -> None:
    """The header of llm.c names dtype and number of tokens, is no part of a record, and must match the file."""
    path = tmp_path / "a.bin"
    for magic, version, dtype in ((20240520, 1, np.uint16), (20240801, 7, np.uint32)):
        path.write_bytes(_with_header(np.arange(9, dtype=dtype), magic, version))
        for passed in (None, dtype):
            source = Tokens(path, 3, dtype=passed)
            assert source.dtype == dtype
            assert [record.tolist() for record in source.read([2, 0])] == [[6, 7, 8], [0, 1, 2]]
        assert Tokens(path, separator=4)[1].tolist() == [5, 6, 7, 8]
    with pytest.raises(UsageError, match=r"a.bin' has uint32 by its header; got dtype=uint16"):
        Tokens(path, 3, dtype="u2")
    path.write_bytes(_with_header(np.arange(9, dtype=np.uint16), 20240520, 1, count=10))
    with pytest.raises(UsageError, match=r"10 tokens of uint16, so it must have 1044 bytes; it has 1042. Copy"):
        Tokens(path, 3, dtype="u2")


def test_only_the_array_of_a_npy_file_is_read(tmp_path: Path) -> None:
    """Bytes after the array belong to no document, and the suffix may be upper case."""
    path = tmp_path / "T.NPY"
    with path.open("wb") as file:
        np.save(file, np.array([1, 2, 0, 3, 0, 4], np.uint16))
        file.write(b"\0\0\7\0" * 5)
    assert [record.tolist() for record in ps.read(Tokens(path, separator=0))] == [[1, 2, 0], [3, 0], [4]]
    assert Tokens(path, separator=0).lengths().tolist() == [3, 2, 1]
