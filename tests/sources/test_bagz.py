"""Bagz: records between limits, and errors that name file, record and byte."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import zstandard

from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources import Bagz, describe_key

# The records "abcdef", "" and "catcat" * 20, as bagz 0.3.8 writes them to a file .bagz.
WRITTEN = bytes.fromhex(
    "28b52ffd2006310000616263646566" "28b52ffd207855000018636174" "0100d2d40d01"
    "0f00000000000000" "0f00000000000000" "2200000000000000"
)  # fmt: skip
RECORDS = [b"abcdef", b"", b"catcat" * 20]


def limits(*ends: int) -> bytes:
    """Return limits as a file has them."""
    return np.array(ends, "<u8").tobytes()


def test_files_of_the_library(tmp_path: Path) -> None:
    """A compressed file, its records with limits beside, raw frames of it, and an empty file are read as written."""
    (tmp_path / "a.bagz").write_bytes(WRITTEN)
    with Bagz(tmp_path / "a.bagz") as source:
        assert source.read(range(3)) == RECORDS
        assert describe_key(source, 2) == "key 2 (byte 15 of file 'a.bagz')"
        assert pickle.loads(pickle.dumps(source)).read(range(3)) == RECORDS
    (tmp_path / "b.bagz").write_bytes(WRITTEN[:34])
    (tmp_path / "limits.b.bagz").write_bytes(WRITTEN[34:])
    (tmp_path / "c.bagz").touch()
    assert Bagz(f"{tmp_path}/*.bagz").read(range(6)) == RECORDS * 2
    assert Bagz(tmp_path / "a.bagz", compressed=False)[0] == WRITTEN[:15]
    (tmp_path / "a").write_bytes(WRITTEN)
    assert Bagz(tmp_path / "a", compressed=True)[2] == RECORDS[2]
    (tmp_path / "limits.b.bagz").write_bytes(limits(15, 34))
    assert len(Bagz(tmp_path / "b.bagz")) == 2  # other limits are read again


BAD_FILES = {
    "short": (b"abc", "it has 3 bytes, fewer than one limit"),
    "text": (b"this is some text", "its last 8 bytes say that the limits begin at byte 8392569455039049071, and it"),
    "cut": (b"abc" + limits(1, 2, 3)[:-3], "its last 8 bytes say that the limits begin at byte"),
    "odd": (b"abcde" + limits(3, 4), "its limits have 17 bytes, which is no multiple of 8"),
    "falling": (b"abc" + limits(2, 1, 3), "record 1 ends at byte 1, before it begins at byte 2"),
    "huge": (b"abc" + limits(2**64 - 1, 3), f"record 1 ends at byte 3, before it begins at byte {1 << 62}"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_damaged_file_is_refused_when_it_is_indexed(tmp_path: Path, kind: str) -> None:
    """A file whose limits aren't those of its records is a CorruptRecordError with the file and the reason."""
    content, reason = BAD_FILES[kind]
    (tmp_path / "a.bag").write_bytes(content)
    with pytest.raises(CorruptRecordError, match=rf"cannot index '.*a.bag' as a Bagz file: {reason}"):
        Bagz(tmp_path / "a.bag")


def test_limits_in_a_file_of_their_own_must_match(tmp_path: Path) -> None:
    """Limits beside a file that is longer or shorter than they say are a CorruptRecordError."""
    (tmp_path / "a.bag").write_bytes(b"abc")
    (tmp_path / "limits.a.bag").write_bytes(limits(1, 2))
    with pytest.raises(CorruptRecordError, match="its records end at byte 2, and have 3 bytes"):
        Bagz(tmp_path / "a.bag")


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (zstandard.compress(b"abc")[:-1], "the input ends before the end of its stream"),
        (b"abc", "the input is corrupt"),
        (bytes.fromhex("28b52ffde0") + (1 << 40).to_bytes(8, "little"), "must have at most 2147483648 bytes"),
    ],
)
def test_a_damaged_record_is_named(tmp_path: Path, frame: bytes, reason: str) -> None:
    """A record that can't be decompressed, or says that it is huge, is a CorruptRecordError with file, byte and key."""
    good = zstandard.compress(b"good")
    ends = limits(len(good), len(good) + len(frame), 2 * len(good) + len(frame))
    (tmp_path / "a.bagz").write_bytes(good + frame + good + ends)
    source = Bagz(tmp_path / "a.bagz")
    with pytest.raises(CorruptRecordError, match=rf"byte {len(good)} of '.*a.bagz' \(key 1 .*{reason}") as caught:
        source[1]
    assert caught.value.keys == (1,)
    assert source[0] == source[2] == b"good"  # the damage harms no other record


def test_bad_arguments_and_changed_files_are_refused(tmp_path: Path) -> None:
    """Names that don't say whether records are compressed, and a file that changed, are errors with the file."""
    for name in ("a.bag", "b.bagz", "c.bin"):
        (tmp_path / name).write_bytes(WRITTEN)
    for paths in (f"{tmp_path}/[ab].*", tmp_path / "c.bin"):
        with pytest.raises(UsageError, match=r"must end all in .bagz.* got '[ac].*Pass compressed=True or False"):
            Bagz(paths)
    source = Bagz(tmp_path / "b.bagz")
    os.utime(tmp_path / "b.bagz", ns=(1, 1))
    with pytest.raises(SourceError, match=r"b.bagz' changed since it was indexed"):
        source[0]
