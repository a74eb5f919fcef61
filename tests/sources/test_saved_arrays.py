"""Arrays.open: the arrays of .npy and .npz files, mapped unless they are compressed, and refused if damaged."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources import Arrays
from penstock.testing import assert_same

ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "x": np.arange(24, dtype=">f4").reshape(4, 3, 2),
    "fortran": np.asfortranarray(np.arange(8, dtype=np.int16).reshape(4, 2)),
    "text": np.array(["a", "bb", "é", ""]),
    "flag": np.array([True, False, False, True]),
    "empty": np.zeros((4, 0), np.uint8),
    "pair": np.array([(n, n / 2) for n in range(4)], [("n", "i4"), ("h", "f8")]),
}


def saved(**arrays: np.ndarray[Any, Any]) -> bytes:
    """Return an .npz of stored arrays."""
    written = io.BytesIO()
    np.savez(written, allow_pickle=True, **arrays)
    return written.getvalue()


def write(path: Path, content: bytes) -> Path:
    """Write a file, and return its path."""
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_has_the_rows_of_its_arrays(tmp_path: Path, save: Any) -> None:
    """The rows of all arrays are those that were saved, also in a pickled copy; `names` chooses some of them."""
    save(tmp_path / "a.npz", **ARRAYS)
    source = Arrays.open(tmp_path / "a.npz")
    for opened in (source, pickle.loads(pickle.dumps(source))):
        assert_same(opened.read([3, 0]), Arrays(ARRAYS).read([3, 0]))
    assert repr(Arrays.open(str(tmp_path / "a.npz"), ["flag", "x"])) == "Arrays({'flag': bool[4], 'x': >f4[4, 3, 2]})"


def test_stored_arrays_are_mapped(tmp_path: Path) -> None:
    """A .npy, and a stored member of an .npz, is sent to other processes by its place in the file."""
    large = np.arange(1 << 16)
    np.save(tmp_path / "a.npy", large)
    np.savez(tmp_path / "a.npz", x=large)
    for name in ("a.npy", "a.npz"):
        source = Arrays.open(tmp_path / name)
        sent = pickle.dumps(source)
        assert len(sent) < 1_500
        for opened in (source, pickle.loads(sent)):
            record = opened[77]
            assert (record if name == "a.npy" else record["x"]) == 77


NPY = io.BytesIO()
np.save(NPY, np.arange(5, dtype=np.int32))
WHOLE = NPY.getvalue()


def _bomb() -> bytes:
    # The directory says that the member has 1 TB.
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", WHOLE)
        archive.getinfo("x.npy").file_size = 1 << 40
    return content.getvalue()


def _claim(shape: str) -> bytes:
    return WHOLE.replace(b"(5,), }" + b" " * (len(shape) - 4), shape.encode() + b", }")


DAMAGED = (
    (WHOLE[:-1], "shape .5,. and int32 needs 20 bytes at byte 128, and 19 follow"),
    (WHOLE[:50], "no whole file of arrays"),
    (WHOLE[:6], "no whole file of arrays"),
    (_claim("(99999999999999,)"), "needs 399999999999996 bytes at byte 128, and 20 follow"),
    (_claim("(-5,)"), "shape .-5,."),
    (saved(x=np.zeros(3))[:-30], "no whole file of arrays"),
    (_bomb(), "the member 'x.npy' can't have 1099511627776 bytes"),
    (saved(x=np.zeros(3)).replace(b"PK\3\4", b"PK\3\5", 1), "neither"),
)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    """A file that is cut, or that claims more than it has, is refused by its name, without memory for the claim."""
    for content, reason in DAMAGED:
        with pytest.raises((CorruptRecordError, UsageError), match=reason) as caught:
            Arrays.open(write(tmp_path / "a.npz", content))
        assert caught.match("a.npz'")


def test_other_files_are_refused(tmp_path: Path) -> None:
    """Pickled objects, other formats, unknown names and unequal lengths are a UsageError with a remedy."""
    path = write(tmp_path / "a.npz", saved(x=np.zeros(3), y=np.zeros(4), o=np.array([None])))
    for names, reason in (
        ("xy", "names must be a sequence of names.*got names='xy'"),
        (["x", "x"], "names must be different names; got 'x' twice"),
        (["o"], "it is a pickle, which runs code"),
        (["x", "z"], r"names must be those of arrays in '.*a.npz', \['x', 'y', 'o'\]; got \['z'\]"),
        (["x", "y"], "all arrays must have one length; got x: 3, y: 4"),
    ):
        with pytest.raises(UsageError, match=reason):
            Arrays.open(path, names)
    with pytest.raises(UsageError, match=r"reads .npy and .npz files of NumPy; '.*a.txt' is neither"):
        Arrays.open(write(tmp_path / "a.txt", b"text"))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", "text")
    with pytest.raises(UsageError, match=r"zip archive of .npy files; '.*a.zip' has 'a.txt'. Unpack .* torch.load"):
        Arrays.open(tmp_path / "a.zip")
    with pytest.raises(UsageError, match=r"'.*a.npy' is one array. Omit names="):
        Arrays.open(write(tmp_path / "a.npy", WHOLE), ["x"])
    with pytest.raises(SourceError, match=r"cannot read '.*absent.npy': No such file"):
        Arrays.open(tmp_path / "absent.npy")


def test_a_changed_byte_of_a_header_is_refused(tmp_path: Path) -> None:
    """In the size of a member's header, and in its description."""
    content = saved(x=np.arange(5, dtype=np.int32))
    for place, value in ((63, 1), (105, 98)):
        changed = content[:place] + bytes([value]) + content[place + 1 :]
        with pytest.raises((SourceError, UsageError)):
            Arrays.open(write(tmp_path / "a.npz", changed)).read(range(5))


def test_an_array_of_many_fields_is_opened(tmp_path: Path) -> None:
    """Its header is longer than NumPy reads by default."""
    rows = np.zeros(2, [(f"field_{number}", "<i4") for number in range(1000)])
    np.save(tmp_path / "wide.npy", rows)
    assert Arrays.open(tmp_path / "wide.npy")[1] == rows[1]
