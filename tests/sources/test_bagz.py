"""Bagz: records between limits, and errors that name file, record and byte."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import zstandard

from penstock.errors import CorruptRecordError, UsageError
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


BAD_FILES = (
    (b"abc", "it has 3 bytes, fewer than one limit"),
    (b"this is some text", "its last 8 bytes say that the limits begin at byte 8392569455039049071, and it"),
    (b"abc" + limits(1, 2, 3)[:-3], "its last 8 bytes say that the limits begin at byte"),
    (b"abcde" + limits(3, 4), "its limits have 17 bytes, which is no multiple of 8"),
    (b"abc" + limits(2, 1, 3), "record 1 ends at byte 1, before it begins at byte 2"),
    (b"abc" + limits(2**64 - 1, 3), f"record 1 ends at byte 3, before it begins at byte {1 << 62}"),
)


def test_a_damaged_file_is_refused_when_it_is_indexed(tmp_path: Path) -> None:
    """A file whose limits aren't those of its records, also in a file of their own, is a CorruptRecordError."""
    for content, reason in BAD_FILES:
        (tmp_path / "a.bag").write_bytes(content)
        with pytest.raises(CorruptRecordError, match=rf"cannot index '.*a.bag' as a Bagz file: {reason}"):
            Bagz(tmp_path / "a.bag")
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


def test_names_must_say_whether_records_are_compressed(tmp_path: Path) -> None:
    """Files of both kinds, or of another suffix, are refused."""
    for name in ("a.bag", "b.bagz", "c.bin"):
        (tmp_path / name).write_bytes(WRITTEN)
    for paths in (f"{tmp_path}/[ab].*", tmp_path / "c.bin"):
        with pytest.raises(UsageError, match=r"must end all in .bagz.* got '[ac].*Pass compressed=True or False"):
            Bagz(paths)
