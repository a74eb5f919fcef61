"""ArrayRecord: records of the format's own writer, in groups of all sizes, and errors that name file and record."""

import hashlib
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources import ArrayRecord, describe_key
from tests.constants import SetConstant
from tests.sources.promises import check_source

module: Any = pytest.importorskip("array_record.python.array_record_module")

RECORDS = [hashlib.shake_128(b"%d" % number).digest(number % 300) for number in range(500)]


def write(path: Path, records: Sequence[bytes] = RECORDS, group_size: int = 1) -> Path:
    """Write a file, and return its path."""
    writer = module.ArrayRecordWriter(str(path), f"group_size:{group_size}")
    for record in records:
        writer.write(record)
    writer.close()
    return path


@pytest.mark.parametrize(("group_size", "decoded_bytes"), [(1, 1 << 20), (64, 0)])
def test_files_keep_the_promises_of_a_source(tmp_path: Path, group_size: int, decoded_bytes: int) -> None:
    """Three files, one of them empty, with groups of one record, or of 64, of which one is kept."""
    for number, part in enumerate((RECORDS[:201], [], RECORDS[201:])):
        write(tmp_path / f"train.array_record-{number:05}-of-00003", part, group_size)
    check_source(lambda: ArrayRecord(tmp_path / "train.array_record*", decoded_bytes=decoded_bytes), RECORDS)


def test_a_path_a_pickle_and_processes(tmp_path: Path) -> None:
    """`ps.read` takes a folder, pickles hold no records, and worker processes read what the definition reads."""
    write(tmp_path / "a.array_record", group_size=10)
    dataset = ps.read(tmp_path, seed=3).shuffle(blocks=True)
    source = ArrayRecord(tmp_path / "a.array_record")
    assert [*source.blocks] == [*range(0, 501, 10)]
    assert describe_key(source, 499) == "key 499 (record 499 of file 'a.array_record')"
    assert len(pickle.dumps(source)) < 1000 + 8 * len(source.blocks)
    assert pickle.loads(pickle.dumps(source)).read([7, 499, 7]) == [RECORDS[7], RECORDS[499], RECORDS[7]]
    assert source.fingerprint() == pickle.loads(pickle.dumps(source)).fingerprint()
    with ps.Loader(dataset.batch(50, merge=list), num_workers=2, workers="processes") as loader:
        assert [record for batch in loader for record in batch] == list(dataset)


def test_more_files_than_open_readers(tmp_path: Path) -> None:
    """The descriptors of a source with many files have a bound, and all records are read."""
    for number in range(100):
        write(tmp_path / f"{number:03}.array_record", [RECORDS[number]])
    source = ArrayRecord(tmp_path / "*.array_record")
    before = len(os.listdir("/proc/self/fd"))
    assert [source[number] for number in range(100)] == RECORDS[:100]
    assert len(os.listdir("/proc/self/fd")) - before <= 64


def test_sources_of_many_files_share_the_limit_of_a_process(tmp_path: Path, set_constant: SetConstant) -> None:
    """Readers of one source are let go where another one opens files, and all records are read."""
    set_constant("MAX_OPEN", 5)
    for number in range(8):
        write(tmp_path / f"{number:03}.array_record", [RECORDS[number]])
    sources = [ArrayRecord(tmp_path / "*.array_record") for _ in range(2)]
    before = len(os.listdir("/proc/self/fd"))
    for number in range(8):
        assert [source[number] for source in sources] == [RECORDS[number]] * 2
        assert len(os.listdir("/proc/self/fd")) - before <= 5


def damage(content: bytes) -> bytes:
    """Change bytes of a record in the middle."""
    at = content.index(RECORDS[299][:40])
    return content[:at] + bytes(40) + content[at + 40 :]


@pytest.mark.parametrize("group_size", [1, 16])
def test_a_damaged_record_is_named(tmp_path: Path, group_size: int) -> None:
    """Reading it fails with its number and file; other groups are read."""
    path = write(tmp_path / "a.array_record", group_size=group_size)
    path.write_bytes(damage(path.read_bytes()))
    source = ArrayRecord(path)
    first = 299 // group_size * group_size
    with pytest.raises(CorruptRecordError, match=rf"record {first} of file 'a.array_record' .*hash mismatch") as raised:
        source.read([5, 299, 400])
    assert raised.value.keys[0] == first
    assert source.read([5, 400]) == [RECORDS[5], RECORDS[400]]


def test_arguments_and_changed_files(tmp_path: Path) -> None:
    """Wrong arguments and other files are refused; a file that changed since it was listed isn't read."""
    path = write(tmp_path / "bad.array_record")
    for bad in (b"text" * 40_000, b"", path.read_bytes()[: path.stat().st_size // 2]):
        path.write_bytes(bad)
        with pytest.raises(CorruptRecordError, match=r"bad.array_record' can't be read as ArrayRecord.*restore it"):
            ArrayRecord(path)
    with pytest.raises(UsageError, match="reads files; got the folder"):
        ArrayRecord(tmp_path)
    with pytest.raises(SourceError, match="No such file"):
        ArrayRecord(tmp_path / "none.array_record")
    path = write(tmp_path / "a.array_record")
    with pytest.raises(UsageError, match="decoded_bytes must be at least 0"):
        ArrayRecord(path, decoded_bytes=-1)
    source = ArrayRecord(path)
    write(path, RECORDS[:10])
    with pytest.raises(SourceError, match="changed since it was indexed"):
        source[0]
