"""Megatron: documents and windows of indexed token files, and errors that name the file."""

import pickle
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources import Megatron, describe_key


def index_of(sizes: Sequence[int], boundaries: Sequence[int], *, code: int = 8, item_bytes: int = 2) -> bytes:
    """Return an index of sequences and documents."""
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sizes), len(boundaries))
    pointers = np.concatenate([[0], np.cumsum(sizes)[:-1]]) * item_bytes
    arrays = np.array(sizes, "<i4"), np.array(pointers, "<i8"), np.array(boundaries, "<i8")
    return head + b"".join(array.tobytes() for array in arrays)


def write(folder: Path, index: bytes, count: int = 9) -> Path:
    """Write the tokens 0 to count - 1 and an index, and return the prefix."""
    folder.mkdir(exist_ok=True)
    np.arange(count, dtype="<u2").tofile(folder / "text.bin")
    (folder / "text.idx").write_bytes(index)
    return folder / "text"


WHOLE = index_of([2, 0, 3, 4], [0, 1, 2, 4])


def test_records_are_documents_or_windows(tmp_path: Path) -> None:
    """A document has its sequences, windows cross documents, and a pickled copy loads the index again."""
    prefix = write(tmp_path, WHOLE)
    source = Megatron(prefix)
    for copy in (source, pickle.loads(pickle.dumps(source)), source.astype("int64")):
        assert [record.tolist() for record in copy.read([0, 1, 2])] == [[0, 1], [], [2, 3, 4, 5, 6, 7, 8]]
        assert copy.lengths().tolist() == [2, 0, 7]
    assert source.dtype == np.uint16
    assert describe_key(source, 2) == "key 2 (tokens [2, 9) of file 'text.bin')"
    windows = Megatron(str(prefix), 4, stride=3)
    assert [record.tolist() for record in windows.read([0, 1])] == [[0, 1, 2, 3], [3, 4, 5, 6]]
    assert source.fingerprint() != windows.fingerprint()


BAD = (
    (b"", "it has no header"),
    (b"x" + WHOLE[1:], "it begins with b'xMIDIDX.*, not with 'MMIDIDX' and version 1"),
    (WHOLE[:9] + b"\2" + WHOLE[10:], "not with 'MMIDIDX' and version 1"),
    (WHOLE[:-1], "too few for 4 sequences and 4 boundaries"),
    (WHOLE[:18] + b"\xff" * 8 + WHOLE[26:], f"too few for {2**64 - 1} sequences"),
    (index_of([2, 3], [0, 1]), "its documents don't cover all sequences"),
    (index_of([2, 3], [0, 2, 1, 2]), "its documents don't cover all sequences"),
    (index_of([2, -3], [0, 2]), "its sequences don't follow each other"),
    (index_of([2, 3], [0, 2], item_bytes=4), "its sequences don't follow each other"),
    (index_of([2, 9], [0, 2]), r"text.idx' has 11 tokens, and '.*text.bin' 9. .* copy both again"),
)


def test_a_damaged_index_is_refused(tmp_path: Path) -> None:
    """An index that is damaged, or isn't that of the tokens, is a CorruptRecordError with the file."""
    for index, reason in BAD:
        with pytest.raises(CorruptRecordError, match=reason) as caught:
            Megatron(write(tmp_path, index))
        assert caught.match(r"text.idx'")


def test_other_files_are_refused(tmp_path: Path) -> None:
    """Missing files, floats and no document are a UsageError, and an index that changes a SourceError."""
    with pytest.raises(UsageError, match=r"'.*text.idx' doesn't exist. Pass their path without"):
        Megatron(tmp_path / "text")
    (tmp_path / "loop.idx").symlink_to("loop.idx")
    with pytest.raises(SourceError, match=r"cannot read '.*loop.idx': Too many levels of symbolic links"):
        Megatron(tmp_path / "loop")
    with pytest.raises(UsageError, match=r"text.idx' has numbers of the code 6"):
        Megatron(write(tmp_path, index_of([1], [0, 1], code=6)))
    with pytest.raises(UsageError, match=r"text.idx' has none. Leave it out"):
        Megatron([write(tmp_path / "whole", WHOLE), write(tmp_path, index_of([], [0]), 0)])
    sent = pickle.dumps(Megatron(write(tmp_path, WHOLE)))
    (tmp_path / "text.idx").write_bytes(WHOLE + b"\0")
    with pytest.raises(SourceError, match=r"text.idx' changed since the source was created"):
        pickle.loads(sent)[0]


def test_windows_end_with_the_index(tmp_path: Path) -> None:
    """Tokens that no document has are in no window, and the fingerprint says so."""
    whole, longer = write(tmp_path / "whole", WHOLE), write(tmp_path / "longer", WHOLE, count=12)
    for prefix in (whole, longer):
        assert [record.tolist() for record in ps.read(Megatron(prefix, 3))] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert Megatron(whole, 3).fingerprint() != Megatron(longer, 3).fingerprint()
