"""Tar: the samples of WebDataset, in every format of tar, and errors that name file, member and byte."""

import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import _native
from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources import Tar, describe_key, read_records
from penstock.sources._tar import record_of
from tests.profiles import in_short

BLOCK = 512
FORMATS = st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
FOLDERS = st.lists(st.sampled_from(["a", "b.c", "é", "d" * 60]), max_size=4).map(
    lambda parts: "".join(f"{p}/" for p in parts)
)
FIELDS = st.dictionaries(
    st.sampled_from(["jpg", "CLS", "seg.png", "x" * 90, ""]), st.binary(max_size=1500), min_size=1, max_size=3
)
SAMPLES = st.lists(
    st.tuples(FOLDERS, st.sampled_from(["0", "1", "k" * 90, "ü"]), FIELDS), max_size=5, unique_by=lambda s: s[:2]
)
LEFT_OUT = st.sampled_from(["", "a/", "a/README", ".hidden.txt", "a/._7.jpg", "__meta__", "__meta__/1.txt"])


def tar_of(members: Sequence[tuple[str, bytes]], format: int = tarfile.GNU_FORMAT) -> bytes:  # noqa: A002 - tarfile's word
    """Return a tar file; a name that ends in `/` is a folder."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=format) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name.rstrip("/"))
            member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return written.getvalue()


def write(path: Path, members: Sequence[tuple[str, bytes]]) -> Path:
    """Write a tar file, and return its path."""
    path.write_bytes(tar_of(members))
    return path


PLAIN = [("a/1.jpg", b"one" * 200), ("a/1.cls", b"1"), ("a/2.jpg", b"two"), ("a/2.cls", b"2")]


@in_short(10)
@given(samples=SAMPLES, left_out=st.lists(LEFT_OUT, max_size=6), format=FORMATS)
def test_records_are_the_runs_of_members_with_one_key(
    tmp_path_factory: pytest.TempPathFactory,
    samples: list[tuple[str, str, dict[str, bytes]]],
    left_out: list[str],
    format: int,  # noqa: A002 - tarfile's word
) -> None:
    """In each format of tar, records have the key and the fields of their members; other members are left out."""
    members: list[tuple[str, bytes]] = []
    expected: list[dict[str, Any]] = []
    others = iter(left_out)
    for folders, base, fields in samples:
        members += [(f"{folders}{base}.{field}", content) for field, content in fields.items()]
        members += [(name, b"" if name.endswith("/") else b"no") for name in [next(others, "")] if name]
        expected.append({"__key__": folders + base, **{field.lower(): content for field, content in fields.items()}})
    folder = tmp_path_factory.mktemp("tar")
    try:
        (folder / "a.tar").write_bytes(tar_of(members, format))
    except ValueError:
        assert format == tarfile.USTAR_FORMAT  # the name is too long for it
        return
    with Tar(folder / "a.tar", cache=folder) as source:
        assert source.read(range(len(source))) == expected


def _record_in(members: Sequence[tuple[str, bytes]], format: int, mtime: float) -> bytes:  # noqa: A002 - tarfile's word
    """Return the members of one record, without an end mark."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=format) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), mtime
            tar.addfile(member, io.BytesIO(content))
        return written.getvalue()[: tar.offset]


USUAL = [("d.e/7.jpg", b"\xff" * 700), ("d.e/7.Seg.PNG", b""), ("d.e/7.cls", b"3" * BLOCK)]
LONG = [(f"{'d' * 90}/7.{field}", b"x") for field in ("jpg", "c" * 90)]
HEADERS = ["path=d/7.cls", "size=1", "GNU.sparse.major=1", "mtime=1.5", "comment=", "=", "LIBARCHIVE.xattr.a=\n"]


def _with_header(entries: Sequence[str], content: bytes) -> bytes:
    """Return the members of a record after an extended header; entries that begin with a star get no length."""
    lines = [f"{len(entry) + 4:02} {entry}\n".encode() if entry[:1] != "*" else entry.encode() for entry in entries]
    header = bytearray(_record_in([("pax", b"".join(lines))], tarfile.USTAR_FORMAT, 0))
    header[156] = ord("x")
    return bytes(header) + content


def test_native_code_makes_usual_records() -> None:
    """It makes records with short names in ASCII in each format, also those with times in fractions of a second."""
    for tar_format in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        made = _native.tar_record(_record_in(USUAL, tar_format, 1.5 if tar_format == tarfile.PAX_FORMAT else 0))
        assert made == {"__key__": "d.e/7", "jpg": b"\xff" * 700, "seg.png": b"", "cls": b"3" * BLOCK}
        assert list(made or {}) == ["__key__", "jpg", "seg.png", "cls"]


@in_short(10)
@given(data=st.data())
def test_native_code_makes_the_record_that_python_makes(data: st.DataObject) -> None:
    """Native code makes the same record of the same bytes, or leaves it to Python, also if the bytes are damaged."""
    members = data.draw(
        st.sampled_from([USUAL, LONG, [*USUAL, ("8.cls", b"")], [*USUAL, USUAL[0]], [("a/__key__", b"")]])
    )
    members = [*members, *[(name, b"no") for name in data.draw(st.lists(LEFT_OUT, max_size=1)) if name[-1:] != "/"]]
    content = _record_in(members, data.draw(st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])), 1.5)
    content = _with_header(data.draw(st.lists(st.sampled_from(HEADERS) | st.text("*1 a=\n"), max_size=3)), content)
    places = data.draw(st.dictionaries(st.integers(0, len(content) - 1), st.integers(0, 255), max_size=3))
    content = bytes(places.get(place, byte) for place, byte in enumerate(content))
    content = content[: data.draw(st.sampled_from([len(content), len(content) - 1, BLOCK, 0]))]
    made = _native.tar_record(content)
    if made is not None:
        expected = record_of(content)
        assert (made, list(made)) == (expected, list(expected))


def test_a_large_number_in_binary_is_a_size(tmp_path: Path) -> None:
    """A size may be in GNU's binary form, which large members have."""
    content = bytearray(tar_of([("1.txt", b"abc")]))
    content[124:136] = b"\x80" + (3).to_bytes(11, "big")
    content[148:156] = b" " * 8
    content[148:156] = f"{sum(content[:BLOCK]):06o}\0 ".encode()
    (tmp_path / "a.tar").write_bytes(content)
    assert Tar(tmp_path / "a.tar")[0] == {"__key__": "1", "txt": b"abc"}


def _special(kind: bytes, name: str = "a/1.lnk") -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "a/1.jpg"
        tar.addfile(member)
    return written.getvalue()


def _with_pax(entries: dict[str, str], *, for_all: bool = False) -> bytes:
    written = io.BytesIO()
    headers = entries if for_all else {}
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT, pax_headers=headers) as tar:
        member = tarfile.TarInfo("1.txt")
        member.pax_headers = {} if for_all else entries
        tar.addfile(member)
    return written.getvalue()


WHOLE = tar_of(PLAIN)
SECOND = 2 * BLOCK + BLOCK  # the offset of the second member
BAD_FILES = [
    (b"\x1f\x8b\x08" + bytes(600), r"at byte 0, it is compressed by gzip.*Decompress it first"),
    (b"RIFF" * 200, "at byte 0, (a header has|there is no header with a right checksum)"),
    (b"tar", "at byte 0, a header has 512 bytes, but 3 follow. The file is truncated"),
    (WHOLE[: SECOND + 100], f"at byte {SECOND}, a header has 512 bytes, but 100 follow"),
    (WHOLE[: BLOCK + 99], r"at byte 0, the member 'a/1.jpg' has 600 bytes, but 99 follow.*truncated"),
    (WHOLE[: SECOND + 3] + b"X" + WHOLE[SECOND + 4 :], f"at byte {SECOND}, there is no header"),
    (WHOLE + tar_of([("3.jpg", b"three")]), "there is an end mark, but more data follows at byte 10240"),
    (WHOLE[:SECOND] + bytes(BLOCK) + WHOLE[SECOND + BLOCK :], f"at byte {SECOND}, there is an end mark, but"),
    (tar_of([("1.jpg", b""), ("1.JPG", b"")]), "'1.JPG' is the second one with the field 'jpg' in the re"),
    (tar_of([("1.__key__", b"")]), "second one with the field '__key__'"),
    (
        tar_of([("1.jpg", b""), ("2.jpg", b""), ("1.cls", b"")]),
        "at byte 1024, the member '1.cls' belongs to the record '1', whose other members are elsewhere",
    ),
    (_special(tarfile.SYMTYPE), "at byte 0, the member 'a/1.lnk' is a symbolic link, not a file"),
    (_special(tarfile.LNKTYPE), "is a hard link, not a file. Write files with their content"),
    (_special(tarfile.FIFOTYPE), "is a pipe, not a file. Leave it out"),
    (_special(b"Z"), "is of the unknown type 'Z'"),
    (_special(tarfile.GNUTYPE_SPARSE), "is a sparse file, not a file. Write it without `tar --sparse`"),
    (_special(b"D"), "is a list of a folder's files, not a file. Write it without `tar --listed-incr"),
    (_with_pax({"GNU.sparse.size": "9"}), "a member is a sparse file"),
    (_with_pax({"size": "9"}, for_all=True), "sets the name or the size of all members"),
    (_with_pax({"size": "-9"}), "has the size '-9'"),
    (_with_pax({"size": "9" * 19}), f"has {'9' * 19} bytes, but"),
    (tar_of([("x" * 2_000_000, b"")]), "an extended header has 2000001 bytes; the limit is 1048576"),
    (tar_of([("x" * 200, b"")])[: 2 * BLOCK] + bytes(BLOCK), "at byte 1024, there is an end mark after"),
    (tar_of([("x" * 200, b"")])[: BLOCK + 9], "an extended header has 201 bytes, but 9 follow"),
]


def test_a_bad_file_is_refused_when_it_is_indexed(tmp_path: Path) -> None:
    """A file that isn't a whole tar file of records is a CorruptRecordError with file, byte and remedy."""
    path = tmp_path / "bad.tar"
    for content, reason in BAD_FILES:
        path.write_bytes(content)
        with pytest.raises(CorruptRecordError, match=rf"cannot index '.*bad.tar' as a tar file.*{reason}"):
            Tar(path)
    assert not list(tmp_path.glob("cache/penstock/*.offsets"))


def test_a_file_without_records_has_none(tmp_path: Path) -> None:
    """An empty archive, and one without samples, have no records, and raise no error."""
    for content in (bytes(10_240), tar_of([("README", b"no field")])):
        (tmp_path / "a.tar").write_bytes(content)
        assert len(Tar(tmp_path / "a.tar")) == 0


def test_a_missing_end_mark_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that ends after a member is read, with a warning, since it may be truncated there."""
    end = SECOND + 2 * BLOCK
    for size, count in ((end, 1), (end - 100, 1), (0, 0)):  # the second without a part of the last fill
        (tmp_path / "a.tar").write_bytes(WHOLE[:size])
        source = Tar(tmp_path / "a.tar")
        assert source.read(range(len(source))) == [{"__key__": "a/1", "jpg": b"one" * 200, "cls": b"1"}] * count
        assert f"has no end mark after byte {size}" in caplog.text
        caplog.clear()


def test_a_swapped_record_is_named(tmp_path: Path) -> None:
    """A record with members of two keys is a CorruptRecordError with file, byte and key."""
    path = write(tmp_path / "a.tar", PLAIN)
    source = Tar(path)
    time_ns = path.stat().st_mtime_ns
    path.write_bytes(WHOLE.replace(b"a/1.cls", b"a/3.cls"))
    os.utime(path, ns=(time_ns, time_ns))
    with pytest.raises(
        CorruptRecordError,
        match=rf"a.tar' doesn't match the index \(key 0 of .*at byte {SECOND}, the member 'a/3.cls' doesn'",
    ) as caught:
        read_records(source, np.array([0, 1]))
    assert caught.value.keys == (0,)
    assert describe_key(source, 1) == f"key 1 (byte {SECOND + 2 * BLOCK} of file 'a.tar')"


def energon_index(content: bytes) -> bytes:
    """Return the index that Energon writes of a tar file: the starts of samples, and that of the end mark."""
    starts: list[int] = []
    last = ""
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        for member in tar:
            named = re.match(r"^((?:.*/|)[^.]+)[.]([^/]*)$", member.name)
            if member.isreg() and named and not re.match(r"__[^/]*__($|/)", member.name):
                starts += [member.offset] if named[1] != last else []
                last = named[1]
        return np.array([*starts, tar.offset], "<u8").tobytes()


def dali_index(content: bytes) -> bytes:
    """Return the index that DALI's `wds2idx` writes of a tar file: a line of text for each sample."""
    samples: dict[str, list[str]] = {}
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        for member in tar:
            folder, slash, name = member.name.rpartition("/")
            base, _, extension = name.partition(".")
            if member.isreg() and base:
                part = f"{extension or name} {member.offset_data} {member.size} {member.name}"
                samples.setdefault(folder + slash + base, []).append(part)
    return "\n".join([f"v1.2 {len(samples)}", *map(" ".join, samples.values()), ""]).encode()


MANY = [
    (f"{'d' * 150 if number % 50 == 7 else 'd'}/{number}.{kind}", b"x" * (number * 7 % 900))
    for number in range(300)
    for kind in ("jpg", "cls")
]
MANY[100:100] = [("d/", b""), ("d/README", b"no"), ("__meta__/1.txt", b"no")]


@pytest.mark.parametrize(
    ("name", "index", "tar_format"),
    [("a.tar.idx", energon_index, tarfile.GNU_FORMAT), ("a.idx", dali_index, tarfile.PAX_FORMAT)],
)
def test_an_index_beside_the_file_saves_the_walk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, index: Callable[[bytes], bytes], tar_format: int
) -> None:
    """With Energon's or DALI's index, records and their places are those of the walk, and most headers stay unread."""
    content = tar_of(MANY, tar_format)
    path = tmp_path / "a.tar"
    path.write_bytes(content)
    walked = Tar(path, cache=tmp_path / "walked")
    expected = walked.read(range(300)), walked.blocks.tolist(), [walked.describe_key(key) for key in range(300)]
    damaged = bytearray(content)
    damaged[content.rindex(b"d/201.cls") + 150] ^= 1  # in its checksum
    path.write_bytes(damaged)
    with pytest.raises(CorruptRecordError, match="right checksum"):
        Tar(path, cache=tmp_path / "damaged")
    (tmp_path / name).write_bytes(index(content))
    source = Tar(path, cache=tmp_path / "indexed")
    assert (source.read(range(300)), source.blocks.tolist(), list(map(source.describe_key, range(300)))) == expected
    assert not caplog.records


OTHER = tar_of([("a/1.jpg", b"one"), ("a/1.cls", b"1"), ("a/2.jpg", b"two"), ("a/2.cls", b"2")])
BAD_INDEXES = [
    ("a.tar.idx", energon_index(OTHER), "the file's records begin elsewhere"),
    ("a.idx", dali_index(OTHER), "at byte 0, the file has another member"),
    ("a.tar.idx", energon_index(WHOLE)[:-8], "at byte 0, the file's records begin elsewhere"),
    ("a.tar.idx", np.array([0, 1 << 60], "<u8").tobytes(), "at which the file can't have headers"),
    ("a.idx", b"v1.2 0\n", ""),  # no members
    ("a.idx", b"v1.2 1\njpg 512 600 a/1 2.jpg\n", ""),
    ("a.idx", b"v1.2 1\njpg 1099511627776 5 a/1.jpg\n", "another member"),
]


def test_an_index_of_another_file_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The file is walked through; if the index could be read, a warning names both and the first difference."""
    path = write(tmp_path / "a.tar", PLAIN)
    for number, (name, content, reason) in enumerate(BAD_INDEXES):
        (tmp_path / name).write_bytes(content)
        source = Tar(path, cache=tmp_path / f"cache {number}")
        assert [record["__key__"] for record in source.read([0, 1])] == ["a/1", "a/2"]
        assert re.search(rf"the index '.*{name}' isn't that of '.*a.tar'.*{reason}" if reason else "^$", caplog.text)
        caplog.clear()
        os.utime(tmp_path / name, (0, 0))  # older than the file
        assert len(Tar(path, cache=tmp_path / f"again {number}")) == 2
        assert not caplog.records
        (tmp_path / name).unlink()


@in_short(10)
@given(data=st.data())
def test_any_index_gives_the_records_of_the_walk(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Random bytes, and indexes with changed bytes, change no record of a small file, all of which is compared."""
    name, right = data.draw(st.sampled_from([("a.tar.idx", energon_index(WHOLE)), ("a.idx", dali_index(WHOLE))]))
    places = st.dictionaries(st.integers(0, len(right) - 1), st.integers(0, 255), max_size=3)
    changed = places.map(lambda found: bytes(found.get(place, byte) for place, byte in enumerate(right)))
    folder = tmp_path_factory.mktemp("index")
    path = write(folder / "a.tar", PLAIN)
    (folder / name).write_bytes(data.draw(st.binary(max_size=40) | changed | places.map(lambda _: right[:-1])))
    with Tar(path, cache=folder) as source:
        assert source.read(range(len(source))) == [
            {"__key__": "a/1", "jpg": b"one" * 200, "cls": b"1"},
            {"__key__": "a/2", "jpg": b"two", "cls": b"2"},
        ]


BAD_LISTS = [
    ('{"shards": []}', UsageError, "isn't: it has no list of files"),
    ("{", UsageError, "isn't: it has no list of files"),
    ('{"shardlist": [{"url": "a.tar"}]}', UsageError, "in place of a url with nsamples"),
    ('{"shardlist": [{"url": "https://x/a.tar", "nsamples": 2}]}', UsageError, "no file of this mach"),
    ('{"shardlist": [{"url": "c.tar", "nsamples": 2}]}', SourceError, "cannot read '.*c.tar'"),
    ('{"shardlist": [{"url": "a.tar", "nsamples": 3}]}', SourceError, "is 2, but .*json' has 3"),
]


def test_the_files_of_a_list(tmp_path: Path) -> None:
    """The files that a list of wids names are read in its order, and compared with it; other JSON is refused."""
    write(tmp_path / "a.tar", PLAIN)
    write(tmp_path / "b.tar", [("3.jpg", b"three")])
    shards = [{"url": "b.tar", "nsamples": 1, "filesize": 10240}, {"url": "a.tar", "nsamples": 2}]
    path = tmp_path / "shards.json"
    path.write_text(json.dumps({"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shards}))
    assert [record["__key__"] for record in Tar(path).read(range(3))] == ["3", "a/1", "a/2"]
    for content, kind, reason in BAD_LISTS:
        path.write_text(content)
        with pytest.raises(kind, match=reason):
            Tar(path)
