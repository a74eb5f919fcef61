"""Csv: the rows that the standard library's parser reads, with types, and errors that name file, line and key."""

import csv
import gzip
import io
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources import Csv, describe_key, read_records
from tests.profiles import in_short

TEXTS = st.text(st.sampled_from('ab",;\n\r é\x85\u2028\0\t'), max_size=6)


def write(path: Path, content: str | bytes) -> Path:
    """Write a file, and return its path."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@in_short(10)
@given(
    rows=st.lists(st.tuples(TEXTS, TEXTS), max_size=6),
    newline=st.sampled_from(["\n", "\r\n"]),
    delimiter=st.sampled_from([",", ";", "\t"]),
    mark=st.sampled_from(["", "\ufeff"]),
)
def test_rows_are_those_of_the_writer(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], newline: str, delimiter: str, mark: str
) -> None:
    """What Python's `csv` writes is read back, in any order."""
    written = io.StringIO(newline="")
    if any("\r" in field for row in rows for field in row):  # the writer leaves it without quotes
        writer = csv.writer(written, delimiter=delimiter, lineterminator=newline, quoting=csv.QUOTE_ALL)
    else:
        writer = csv.writer(written, delimiter=delimiter, lineterminator=newline)
    writer.writerows([("a", "é b"), *rows])
    path = write(tmp_path_factory.mktemp("csv") / "a.csv", mark + written.getvalue())
    with Csv(path, delimiter=delimiter, cache=path.parent) as source:
        keys = list(reversed(range(len(source))))
        assert source.read(keys) == [{"a": a, "é b": b} for a, b in reversed(rows)]


@in_short(10)
@given(content=st.text(st.sampled_from('ab",\n\r é'), max_size=40).map(str.encode) | st.binary(max_size=40))
def test_any_bytes_are_the_rows_of_the_parser_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    """The rows of any bytes are those of Python's `csv` over the whole file, or a SourceError is raised."""
    path = write(tmp_path_factory.mktemp("fuzz") / "a.csv", content)
    try:
        with Csv(path, names=["x", "y"], cache=path.parent, progress=False) as source:
            records = source.read(range(len(source)))
    except SourceError:
        return
    text = io.StringIO(content.decode("utf-8-sig"), newline="\n")  # lines end at \n alone
    assert [list(record.values()) for record in records] == [row for row in csv.reader(text) if row]


def test_fields_are_converted_by_their_types(tmp_path: Path) -> None:
    """Fields of the names in `types` are converted, and others stay str; names may be passed instead of a first row."""
    types = {"n": int, "x": np.float32, "flag": bool, "mask": np.bool_, "part": Fraction}
    path = write(tmp_path / "a.csv", "n,x,flag,mask,part,text\n7,.5,TRUE,False,1/3,007\n")
    record = Csv(path, types)[0]
    assert record == {"n": 7, "x": np.float32(0.5), "flag": True, "mask": False, "part": Fraction(1, 3), "text": "007"}
    assert record["flag"] is True
    assert type(record["mask"]) is np.bool_
    assert type(record["x"]) is np.float32
    bare = write(tmp_path / "bare.csv", '"1"|"a"\n\n2|b')
    source = Csv(bare, {"n": int}, names=["n", "s"], delimiter="|")
    assert source.read([1, 0]) == [{"n": 2, "s": "b"}, {"n": 1, "s": "a"}]
    assert Csv(path).fingerprint() != Csv(path, types).fingerprint()


def test_a_long_field_is_read(tmp_path: Path) -> None:
    """A field may be longer than the limit of Python's `csv`, which the program has set and which stays as it was."""
    path = write(tmp_path / "a.csv", 'a,b\n1,"' + "long\n" * 50_000 + '"\n2,\n')
    usual = csv.field_size_limit(1_000)
    try:
        with Csv(path) as source:
            assert source.read([0, 1]) == [{"a": "1", "b": "long\n" * 50_000}, {"a": "2", "b": ""}]
    finally:
        assert csv.field_size_limit(usual) == 1_000


HEAD = "a,b\n1,2\n"
BAD_FILES: tuple[tuple[str | bytes, str], ...] = (
    ("", "there is no row of names. Remove the file"),
    ("\n\r\n", "there is no row of names"),
    (gzip.compress(HEAD.encode()), "it is compressed by gzip.*Decompress it first"),
    ("é,b\n".encode("latin-1"), "its names aren't UTF-8.*iconv"),
    (HEAD + '\n"x\ny"\n', r"at line 4 \(byte 9\), it has 1 fields, and there are 2 names. Fix the row"),
    (HEAD + "1,2,3\n", r"at line 3 \(byte 8\), it has 3 fields"),
    (HEAD + '1,"2\n3,4\n', "the row at byte 8 has a quote that isn't closed at the end of the file"),
    (HEAD + '1,"' + "x" * (1 << 26) + "\n", "the row at byte 8, which reaches line 3, has more than "),
    ("a,b\r1,2\r", r"line 1 \(byte 0\) is no row: it has a carriage return .*mac2unix"),
)


def test_a_bad_file_is_refused_when_it_is_indexed(tmp_path: Path) -> None:
    """A file that isn't rows of its names is a CorruptRecordError with file, line, byte and remedy."""
    for content, reason in BAD_FILES:
        with pytest.raises(CorruptRecordError, match=rf"cannot index '.*bad.csv' as CSV.*{reason}"):
            Csv(write(tmp_path / "bad.csv", content))


def _refuse(field: str) -> Any:
    raise KeyError(field)


def test_a_field_that_cannot_be_converted_is_named(tmp_path: Path) -> None:
    """A field of another type is a CorruptRecordError with file, line, byte and key."""
    cases: list[tuple[bytes, Any, str]] = [
        (b"x", int, "the field 'b' is 'x', no int .*pass a function in types="),
        (b"1e999999", np.int8, "the field 'b' is '1e999999', no int8"),
        (b"", float, "the field 'b' is '', no float"),
        (b"yes", bool, "the field 'b' is 'yes', not one of true, false, 1 and 0"),
        (b"\xff", str, "it isn't UTF-8.*iconv"),
    ]
    for field, convert, reason in cases:
        source = Csv(write(tmp_path / "a.csv", HEAD.encode() + b'"\n",0\n3,' + field), {"b": convert})
        with pytest.raises(CorruptRecordError, match=r"line 5 of '.*a.csv' \(byte 14, key 2 of Csv") as caught:
            read_records(source, np.array([2]))
        assert caught.match(reason)
        assert caught.value.keys == (2,)
    with pytest.raises(KeyError, match="'2'"):
        Csv(tmp_path / "a.csv", {"b": _refuse})[0]


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    """Names that repeat or differ, types of other names and long delimiters are a UsageError with a remedy."""
    path = write(tmp_path / "a.csv", HEAD)
    other = write(tmp_path / "b.csv", "a,c\n")
    with pytest.raises(UsageError, match=r"same row of names; '.*a.csv' has \['a', 'b'\], '.*b.csv' has \['a', 'c'\]"):
        Csv([path, other])
    with pytest.raises(UsageError, match=r"fields must differ; got \['a', 'a'\] from '.*c.csv'. Pass names="):
        Csv(write(tmp_path / "c.csv", "a,a\n"))
    with pytest.raises(UsageError, match=r"for the names \['a', 'b'\]; got one for 'c'"):
        Csv(path, {"c": int})
    with pytest.raises(UsageError, match="delimiter must be one ASCII character"):
        Csv(path, delimiter=", ")
    with pytest.raises(UsageError, match="Csv reads files; got the folder"):
        Csv(tmp_path)


def test_a_row_that_changed_unnoticed_is_refused(tmp_path: Path) -> None:
    """A row of other fields than the index had is a CorruptRecordError."""
    path = write(tmp_path / "a.csv", HEAD + "3,4\n")
    swapped = Csv(path)
    time_ns = path.stat().st_mtime_ns
    write(path, HEAD + "3;4\n")
    os.utime(path, ns=(time_ns, time_ns))
    with pytest.raises(CorruptRecordError, match=r"line 3 of '.*a.csv' .* it has 1 fields"):
        swapped[1]
    assert describe_key(swapped, 1) == "key 1 (byte 8 of file 'a.csv')"
