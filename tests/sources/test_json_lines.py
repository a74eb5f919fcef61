"""JsonLines: the lines of files, the cached index, and errors for files that change."""

import errno
import gzip
import json
import logging
import os
import pickle
import pwd
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ClosedError, CorruptRecordError, SourceError, UsageError
from penstock.sources import JsonLines, describe_key, read_records
from tests.constants import SetConstant
from tests.profiles import in_short
from tests.programs.forked import started

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=3), values, max_size=3),
    max_leaves=4,
)
BLANKS = st.lists(st.sampled_from([b"\n", b"\r\n", b"  \n", b"\t\r\n"]), max_size=3).map(b"".join)
LINES = st.lists(st.tuples(BLANKS, st.sampled_from([b"", b" ", b"\t"]), VALUES, st.booleans()), max_size=8)


def _records(source: JsonLines) -> list[Any]:
    return source.read(range(len(source)))


@in_short(10)
@given(
    files=st.lists(st.tuples(st.booleans(), LINES, st.booleans()), min_size=1, max_size=3),
    chunk_bytes=st.sampled_from([1, 2, 3, 7, 64, 1 << 20]),
)
def test_every_line_that_is_not_blank_is_a_record(
    tmp_path_factory: pytest.TempPathFactory, files: list[tuple[bool, list[Any], bool]], chunk_bytes: int
) -> None:
    """Byte order marks, blank lines, CRLF, blanks around a value and a missing last newline change no record."""
    folder = tmp_path_factory.mktemp("lines")
    expected: list[Any] = []
    for number, (marked, lines, ended) in enumerate(files):
        content = b"\xef\xbb\xbf" if marked else b""
        for blank, indent, value, crlf in lines:
            text = json.dumps(value, ensure_ascii=crlf).encode(errors="surrogatepass")
            content += blank + indent + text + (b"\r\n" if crlf else b"\n")
            expected.append(value)
        content = content if ended else content.removesuffix(b"\n")
        (folder / f"{number}.jsonl").write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.sources._json_lines._CHUNK_BYTES", chunk_bytes)
        source = JsonLines(f"{folder}/*.jsonl", cache=folder / "cache")
    assert len(source) == len(expected)
    assert _records(source) == expected
    source.close()


def _corrupt(content: bytes) -> list[bytes]:
    middle = len(content) // 2
    return [
        *(content[:-8], content + content[-8:], b"", b"x" + content[1:]),
        content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
        *(b"{}" * 400, b"[]".ljust(256) + content[256:], content[:middle] + b"????" + content[middle + 4 :]),
    ]


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"n": {n}}}\n' for n in range(50)))
    return path


def _cached(tmp_path: Path) -> Path:
    (cached,) = (tmp_path / "cache" / "penstock").iterdir()
    return cached


def test_the_index_is_kept(path: Path, tmp_path: Path) -> None:
    """A second source reads no line of the file: it takes the index from the cache."""
    with JsonLines(path) as source:
        assert len(source) == 50
    before = path.stat()
    # Other content of the same size and time shows that the cache was used.
    path.write_bytes(path.read_bytes().replace(b"\n", b" "))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with JsonLines(path) as source:
        assert len(source) == 50
    assert _cached(tmp_path).name.endswith(".offsets")


def test_the_index_of_a_changed_file_is_computed_again(path: Path, tmp_path: Path) -> None:
    """After a change of size or time the index is computed again, into the same file."""
    for later, content in ((0, "1\n2\n3\n"), (1, "4\n5\n6\n")):
        assert len(JsonLines(path)) in (50, 3)
        time_ns = path.stat().st_mtime_ns
        path.write_text(content)
        os.utime(path, ns=(time_ns, time_ns + later))
        assert _records(JsonLines(path)) == list(map(int, content.split()))
    assert _cached(tmp_path).exists()


def test_a_damaged_cache_is_replaced(path: Path, tmp_path: Path) -> None:
    """A cached index with any damage is replaced by a right one."""
    assert len(JsonLines(path)) == 50
    whole = _cached(tmp_path).read_bytes()
    for damaged in _corrupt(whole):
        _cached(tmp_path).write_bytes(damaged)
        assert [record["n"] for record in _records(JsonLines(path))] == list(range(50))
        assert _cached(tmp_path).read_bytes() == whole


def test_without_a_cache_it_works_with_a_warning(path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A cache that can't be written is logged once for the file, and the source works, also in another process."""
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING, "penstock"):
        source = JsonLines(path, cache=tmp_path / "file" / "cache")
    assert "can't be written to the cache" in caplog.text
    assert "Pass another cache=" in caplog.text
    caplog.clear()
    received = pickle.loads(pickle.dumps(source))
    assert received[49] == {"n": 49}
    assert caplog.text == ""


def test_a_failed_write_leaves_nothing_behind(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the disk is full when the index is written, no partial file is left, and the source works."""

    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, f"no space for {source} and {target}")

    monkeypatch.setattr(os, "replace", full)
    with caplog.at_level(logging.WARNING, "penstock"):
        assert len(JsonLines(path)) == 50
    assert "no space" in caplog.text
    assert list((tmp_path / "cache" / "penstock").iterdir()) == []


INDEXING = """
import sys
from penstock.sources import JsonLines
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.readline()
source = JsonLines({path!r}, cache={cache!r})
assert [source[key]["n"] for key in range(len(source))] == list(range(50))
"""


@pytest.mark.usefixtures("forked_programs")
def test_several_processes_may_index_at_once(path: Path, tmp_path: Path) -> None:
    """Processes that index the same file at once each get a right index, and leave one cache file."""
    programs = [started(INDEXING.format(path=str(path), cache=str(tmp_path / "own"))) for _ in range(3)]
    for program in programs:
        with program:
            assert program.stdout.readline() == "ready\n"
            program.stdin.write("\n")
            program.stdin.flush()
    assert [program.returncode for program in programs] == [0] * 3
    assert len(list((tmp_path / "own").rglob("*.offsets"))) == len(list((tmp_path / "own").iterdir())) == 1


def test_another_process_with_another_cache_makes_its_own_index(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pickled source whose cache is missing is indexed again; the index isn't sent."""
    source = JsonLines(path)
    sent = pickle.dumps(source)
    assert len(sent) < 1_500
    _cached(tmp_path).unlink()
    received = pickle.loads(sent)
    assert received[7] == {"n": 7}
    assert _cached(tmp_path).exists()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert pickle.loads(sent)[8] == {"n": 8}


def test_a_user_without_a_home(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The index stays in memory, with a warning; no folder of the name ~ is made."""
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # as for the number of a user whom the system doesn't list
    monkeypatch.chdir(tmp_path)
    assert JsonLines(path)[7] == {"n": 7}
    assert "can't be written to the cache" in caplog.text
    assert not (tmp_path / "~").exists()


def test_compressed_lines_are_refused(tmp_path: Path) -> None:
    """When they are indexed: offsets in compressed bytes would be of no lines."""
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 1000))
    with pytest.raises(SourceError, match=r"cannot index .*a\.jsonl\.gz': it is compressed by gzip.*Decompress it"):
        JsonLines(path, cache=tmp_path)


def test_a_file_that_changed_on_the_way_to_another_process_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pickled source whose file was written again is a SourceError; another host may have a copy of another time."""
    sent = pickle.dumps(JsonLines(path))
    content, time_ns = path.read_bytes(), path.stat().st_mtime_ns
    os.utime(path, ns=(time_ns, time_ns + 1))
    with pytest.raises(SourceError, match=r"was written again since it was indexed"):
        pickle.loads(sent)[0]
    monkeypatch.setattr(os, "uname", lambda: types.SimpleNamespace(nodename="another"))
    assert pickle.loads(sent)[7] == {"n": 7}
    for changed, reason in (
        (content + b"1\n", r"changed its size from"),
        (b" " + content[1:10].replace(b"\n", b" ") + content[10:], r"changed since it was indexed: it had 50 records"),
    ):
        path.write_bytes(changed)
        os.utime(path, ns=(time_ns, time_ns + 2))
        with pytest.raises(SourceError, match=reason):
            pickle.loads(sent)[0]


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    """A line that isn't JSON is a CorruptRecordError with file, line, byte and key; other lines can be read."""
    for number, (line, reason) in enumerate(
        (
            *((b"{'n': 1}", "Expecting property name"), (b'{"n": ', "Expecting value"), (b"1 2", "Extra data")),
            *((b'"\xff"', "can't decode byte 0xff"), (b"[" * 100_000, "recursion|too deep|Expecting|maximum")),
        )
    ):
        path = tmp_path / f"{number} bad.jsonl"
        path.write_bytes(b'"one"\n\n\n"two"\n' + line + b"\n3\n")
        source = JsonLines([path, path])
        assert source[3] == 3
        with pytest.raises(CorruptRecordError, match=r"line 5 of '.*bad.jsonl' \(byte 14, key 6 of JsonL") as caught:
            read_records(source, np.array([5, 6, 7]))
        assert caught.value.keys == (6,)
        assert caught.value.__cause__ is not None
        with pytest.raises(CorruptRecordError, match=reason):
            source[2]
        assert describe_key(source, 6) == f"key 6 (byte 14 of file '{number} bad.jsonl')"


def test_a_file_that_changed_after_indexing_is_refused(path: Path) -> None:
    """Content that doesn't belong to the index is never parsed."""
    source = JsonLines(path)
    path.write_text("0\n" * 500)
    with pytest.raises(SourceError, match=r"changed since it was indexed: it had .* bytes and has 1000"):
        source[0]


def test_a_file_that_vanished_is_named(path: Path) -> None:
    """A file that was removed after indexing is a SourceError with errno, path and key."""
    source = JsonLines(path)
    path.unlink()
    with pytest.raises(SourceError, match=r"cannot read '.*a.jsonl' \(key 3 of .*restore it") as caught:
        read_records(source, np.array([3]))
    assert caught.value.errno == errno.ENOENT
    assert caught.value.keys == (3,)


def test_a_file_cut_short_while_open_is_refused(path: Path) -> None:
    """A record whose bytes were cut off is a SourceError, not half a record."""
    source = JsonLines(path)
    assert source[0] == {"n": 0}
    os.truncate(path, 20)
    with pytest.raises(SourceError, match=r"was truncated while it was read \(key 49"):
        source[49]


def test_a_failed_read_of_an_open_file_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that the system fails, of a file that could be read before, is a SourceError with errno, path and key."""
    read = os.pread
    failing: set[int] = set()

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        if offset in failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    source = JsonLines(path)
    assert source[0] == {"n": 0}
    failing.add(9)  # the second line
    with pytest.raises(SourceError, match=r"cannot read '.*a.jsonl' \(key 1 of .*Input/output error") as caught:
        source[1]
    assert (caught.value.errno, caught.value.keys) == (errno.EIO, (1,))
    failing.clear()
    assert source[1] == {"n": 1}


def test_a_source_that_is_closed_during_its_first_read_keeps_no_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may close a source during a read, which returns its record; the descriptor is closed after it."""
    read, source = os.pread, JsonLines(path)

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        source.close()
        return read(descriptor, size, offset)

    before = os.listdir("/dev/fd")
    monkeypatch.setattr(os, "pread", pread)
    assert source[0] == {"n": 0}
    assert os.listdir("/dev/fd") == before


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="the system doesn't show the descriptors of a process")
def test_only_so_many_files_are_open_at_once(tmp_path: Path, set_constant: SetConstant) -> None:
    """Sources that have more files together than may be open let go of them, and records stay right."""
    set_constant("MAX_OPEN", 3)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for number in range(5):
            (tmp_path / folder / f"{number}.jsonl").write_text(f'"{folder}{number}"\n')
    sources = {folder: JsonLines(f"{tmp_path}/{folder}/*.jsonl") for folder in ("a", "b")}
    before = len(os.listdir("/dev/fd"))
    for key in [*range(5), 0, 3, 0, 4, 4, 1]:
        for folder, source in sources.items():
            assert source[key] == f"{folder}{key}"
            assert len(os.listdir("/dev/fd")) - before <= 3


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system doesn't show the maps of a process")
def test_small_indexes_are_not_mapped(tmp_path: Path) -> None:
    """A process may have 65,530 maps, and a source more files than that; a large index is mapped."""
    for number in range(50):
        (tmp_path / f"{number:03}.jsonl").write_text(f"{number}\n")
    (tmp_path / "large.jsonl").write_text("1\n" * 10_000)
    for _ in range(2):  # the second source finds the indexes of the first one
        source = JsonLines(f"{tmp_path}/*.jsonl", cache=tmp_path)
        assert source.read([0, 49, 50, 10_049]) == [0, 49, 1, 1]
        assert Path("/proc/self/maps").read_text().count(".offsets") == 1


def test_sources_leave_half_of_the_descriptors_to_the_program(tmp_path: Path) -> None:
    """Sources of more files than a process may have open read all of them, while the program opens others."""
    resource = pytest.importorskip("resource")
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    for number in range(120):
        (tmp_path / f"{number:03}.jsonl").write_text(f"{number}\n")
    sources = [JsonLines(f"{tmp_path}/{first}*.jsonl") for first in (0, 1)]
    in_use = len(os.listdir("/dev/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 80, usual[1]))
    try:
        assert [record for source in sources for record in source.read(range(len(source)))] == list(range(120))
        for _ in range(5):
            os.close(os.open(tmp_path, os.O_RDONLY))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)


@pytest.mark.skipif(not hasattr(os, "pread"), reason="the test reads other files during a pread")
def test_a_file_is_not_closed_while_it_is_read(
    tmp_path: Path, set_constant: SetConstant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may read all other files between the opening of a file and its read; the record stays right."""
    set_constant("MAX_OPEN", 3)
    for number in range(10):
        (tmp_path / f"{number}.jsonl").write_text(f"{number}\n")
    source = JsonLines(f"{tmp_path}/*.jsonl")
    read, others = os.pread, list(range(1, 10))

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        while others:
            source[others.pop()]
        return read(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    assert source[0] == 0


def test_files_are_read_without_pread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a system without pread, records are read by seek and read."""
    monkeypatch.delattr(os, "pread", raising=False)
    assert [record["n"] for record in _records(JsonLines(path))] == list(range(50))


def test_files_without_lines_have_no_records(tmp_path: Path) -> None:
    """A file without lines has no records, and raises no error."""
    for number, content in enumerate((b"", b"\n \n\r\n  ", b"\xef\xbb\xbf")):
        (tmp_path / f"{number}.jsonl").write_bytes(content)
        assert _records(JsonLines(tmp_path / f"{number}.jsonl")) == []


def test_a_closed_source_cannot_be_read(path: Path) -> None:
    """After close, or the end of a with block, reading is a ClosedError; closing again does nothing."""
    with JsonLines(path) as source:
        assert source[1] == {"n": 1}
    source.close()
    never_read = JsonLines(path)
    never_read.close()
    for closed in (source, never_read):
        with pytest.raises(ClosedError, match="was closed, and can't be read any more"):
            closed.read([1])
    assert len(source) == 50


def test_bad_paths_are_refused(tmp_path: Path) -> None:
    """An empty list, a folder, and a glob without matches each have a message."""
    with pytest.raises(UsageError, match="JsonLines needs at least one file"):
        JsonLines([])
    with pytest.raises(UsageError, match="JsonLines reads files; got the folder"):
        JsonLines(tmp_path)
    with pytest.raises(UsageError, match="a glob must match at least one file"):
        JsonLines(f"{tmp_path}/*.jsonl")
    with pytest.raises(SourceError, match=r"cannot read '.*missing.jsonl'"):
        JsonLines(tmp_path / "missing.jsonl")


def test_a_glob_leaves_out_no_file_that_cannot_be_accessed(tmp_path: Path) -> None:
    """A link to nothing among the matches is an error, not a record less; a folder among them is left out."""
    (tmp_path / "a.jsonl").write_text("1\n")
    (tmp_path / "b.jsonl").mkdir()
    assert len(JsonLines(f"{tmp_path}/*.jsonl", cache=tmp_path)) == 1
    (tmp_path / "c.jsonl").symlink_to(tmp_path / "gone")
    with pytest.raises(SourceError, match=r"cannot read '.*c.jsonl': No such file .*It is a link: restore what"):
        JsonLines(f"{tmp_path}/*.jsonl", cache=tmp_path)


@pytest.mark.parametrize("paths", [None, 3, b"a.jsonl", {"a.jsonl", "b.jsonl"}])
def test_what_is_no_list_of_paths_is_refused(paths: Any) -> None:
    """A set has another order in each run, and with it the records."""
    with pytest.raises(UsageError, match=r"paths must be a path or a list of paths; got .* sort a set to a list"):
        JsonLines(paths)


def test_the_fingerprint_follows_names_and_sizes(tmp_path: Path) -> None:
    """The fingerprint changes with names, sizes and order of the files, not with the folder."""
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
        for name in ("a", "b"):
            (tmp_path / folder / name).write_text(f'"{folder}"')
    old, new = ([tmp_path / folder / name for name in ("a", "b")] for folder in ("old", "new"))
    fingerprint = JsonLines(old).fingerprint()
    assert JsonLines(new).fingerprint() == fingerprint
    assert JsonLines(old[::-1]).fingerprint() != fingerprint
    (tmp_path / "new" / "a").write_text('"longer"')
    assert JsonLines(new).fingerprint() != fingerprint
