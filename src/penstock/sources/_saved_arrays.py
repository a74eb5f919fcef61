"""The arrays of files that NumPy has saved: `.npy` and the members of `.npz`, mapped where they lie in the file.

A member of an `.npz` that is stored, as `np.savez` does, is a whole `.npy` inside of the file, so it is mapped too. A
compressed member is decompressed into memory. Its header and the directory of the archive say how large it becomes;
both are compared before memory is allocated, and with what its compressed bytes can hold.
"""

import math
import os
import zlib
from collections.abc import Sequence
from tokenize import TokenError
from typing import IO, Any, BinaryIO, Final, Literal
from zipfile import BadZipFile, ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources._source import different_names

_NPY_MAGIC: Final = b"\x93NUMPY"
_ZIP_MAGIC: Final = (b"PK\x03\x04", b"PK\x05\x06")  # of a first member, and of an archive without one
_LOCAL_HEADER_BYTES: Final = 30
_NAME_BYTES = slice(26, 28)
_EXTRA_BYTES = slice(28, 30)
_STORED, _DEFLATED = 0, 8
_ENCRYPTED: Final = 1
_DEFLATE_RATIO: Final = 1032  # the most that deflate expands
_SMALLEST: Final = 1 << 16


def open_arrays(path: str, names: Sequence[str] | None) -> dict[str, NDArray[Any]] | NDArray[Any]:
    """Return the array of a `.npy`, or a dict of the arrays of an `.npz`.

    Args:
        path: the file.
        names: the members of an `.npz`; None for all.

    Returns:
        Memory maps of arrays that aren't compressed, and arrays.

    Raises:
        UsageError: the file is neither, `names` aren't those of arrays in it, or an array has Python objects.
        SourceError: the file can't be read.
        CorruptRecordError: the file is damaged.
    """
    try:
        with open(path, "rb") as stream:
            return _arrays_of(path, stream, names)
    except UsageError:
        raise
    except OSError as error:
        failure = SourceError(f"cannot read {path!r}: {error.strerror or error}. Check the path.")
        failure.errno = error.errno
        raise failure from error
    except _DAMAGES as error:
        raise CorruptRecordError(
            f"{path!r} is no whole file of arrays: {error}. Restore it, or save it again."
        ) from error


class _DamageError(Exception):
    """The reason why a file can't be opened."""


# What NumPy, zipfile and zlib raise for damaged files.
_DAMAGES: Final = (
    _DamageError, BadZipFile, zlib.error, ValueError, KeyError, EOFError, OverflowError, RuntimeError, SyntaxError,
)  # fmt: skip


def _arrays_of(path: str, stream: BinaryIO, names: Sequence[str] | None) -> dict[str, NDArray[Any]] | NDArray[Any]:
    begin = stream.read(len(_NPY_MAGIC))
    if begin.startswith(_NPY_MAGIC):
        if names is not None:
            raise UsageError(f"names are those of an .npz file; {path!r} is one array. Omit names=.")
        return _mapped(path, stream, 0, os.fstat(stream.fileno()).st_size)
    if not begin.startswith(_ZIP_MAGIC):
        raise UsageError(
            f"Arrays.open reads .npy and .npz files of NumPy; {path!r} is neither: it begins with {begin!r}. Use the "
            "source of its format."
        )
    return _members(path, stream, names)


_MAX_HEADER_BYTES: Final = 1 << 20  # NumPy's limit, 10,000, is too low for arrays of many fields


@frozen
class _Header:
    """The dtype and shape of an array, and its size."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    bytes: int


def _read_header(path: str, stream: IO[bytes]) -> _Header:
    version = npy.read_magic(stream)
    if version not in {(1, 0), (2, 0)}:
        raise UsageError(
            f"arrays must be saved in version 1 or 2 of the format; {path!r} has {version}, for names of fields that "
            "aren't ASCII. Rename the fields."
        )
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    try:
        shape, is_fortran, dtype = read(stream, max_header_size=_MAX_HEADER_BYTES)
    except (TypeError, TokenError) as error:  # from texts that are no header
        raise _DamageError(f"its header can't be read ({error})") from error
    if dtype.hasobject:
        raise UsageError(
            f"an array of Python objects can't be opened: it is a pickle, which runs code that the file contains; "
            f"{path!r} has one. Save numbers, or texts of a fixed length."
        )
    return _Header(dtype, tuple(map(int, shape)), "F" if is_fortran else "C", math.prod(shape) * dtype.itemsize)


def _mapped(path: str, stream: BinaryIO, begin: int, size: int) -> NDArray[Any]:
    # The array is at `begin`, and has `size` bytes with its header.
    stream.seek(begin)
    header = _read_header(path, stream)
    data = stream.tell()
    if min(header.shape, default=0) < 0 or data + header.bytes > begin + size:
        raise _DamageError(
            f"an array of shape {header.shape} and {header.dtype} needs {header.bytes} bytes at byte "
            f"{data}, and {begin + size - data} follow",
        )
    if header.bytes == 0:
        return np.empty(header.shape, header.dtype)
    return np.memmap(path, header.dtype, "r", data, header.shape, header.order)


def _members(path: str, stream: BinaryIO, names: Sequence[str] | None) -> dict[str, NDArray[Any]]:
    archive = ZipFile(stream)
    infos = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    wanted = list(infos) if names is None else different_names("names", names)
    missing = [name for name in wanted if name not in infos]
    if missing:
        raise UsageError(f"names must be those of arrays in {path!r}, {list(infos)}; got {missing}. Correct them.")
    try:
        return {name: _member(path, stream, archive, infos[name]) for name in wanted}
    except (_DamageError, ValueError) as error:
        if any(info.filename.endswith(".npy") for info in infos.values()):
            raise
        raise UsageError(
            f"an .npz file is a zip archive of .npy files; {path!r} has {next(iter(infos))!r}. Unpack an archive of "
            "other files, and read these; of a file of torch.save, pass what torch.load(path) returns."
        ) from error


def _member(path: str, stream: BinaryIO, archive: ZipFile, info: ZipInfo) -> NDArray[Any]:
    if info.compress_type == _STORED and not info.flag_bits & _ENCRYPTED:
        return _stored(path, stream, info)
    if info.compress_type == _DEFLATED and info.file_size > max(_SMALLEST, info.compress_size * _DEFLATE_RATIO):
        raise _DamageError(f"the member {info.filename!r} can't have {info.file_size} bytes")
    with archive.open(info) as content:
        header = _read_header(path, content)
        if header.bytes != info.file_size - content.tell():
            raise _DamageError(f"the member {info.filename!r} has another size than its array")
        array = np.frombuffer(content.read(), header.dtype)  # it also verifies the checksum
        return array.reshape(header.shape, order=header.order)


def _stored(path: str, stream: BinaryIO, info: ZipInfo) -> NDArray[Any]:
    stream.seek(info.header_offset)
    head = stream.read(_LOCAL_HEADER_BYTES)
    if len(head) < _LOCAL_HEADER_BYTES or not head.startswith(_ZIP_MAGIC[0]):
        raise _DamageError(f"the member {info.filename!r} isn't at byte {info.header_offset}")
    # The directory's copy of these two sizes may differ.
    names = int.from_bytes(head[_NAME_BYTES], "little") + int.from_bytes(head[_EXTRA_BYTES], "little")
    begin = info.header_offset + _LOCAL_HEADER_BYTES + names
    return _mapped(path, stream, begin, min(info.file_size, os.fstat(stream.fileno()).st_size - begin))
