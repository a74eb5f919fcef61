"""Jobs for threads of C++: values that hold the buffers they use, and that run without the interpreter's lock.

Guarantees:
  - A job holds the buffers it was given from the moment it is made until it has ended or was withdrawn: they can't be
    freed or resized meanwhile, even if all other references to them are dropped. A thread of Python releases them.
  - A job runs once. The content of buffers that it writes is undefined until its future has a result, and after a
    failure.
  - A job copies bytes and counts no references, so its buffers hold no Python objects.
  - Nothing is locked: if two jobs, or a job and Python, write the same bytes at the same time, the result is either's.
"""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, cast, final, overload

import numpy as np
from numpy.typing import NDArray

from penstock import _native
from penstock.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.transport import Bytes

    _Memory: TypeAlias = Buffer | NDArray[Any]  # an array is a buffer, but checkers know it only from Python 3.12 on
    _Out = TypeVar("_Out", bound=_Memory)

Result = TypeVar("Result", covariant=True)
_Array = TypeVar("_Array", bound=NDArray[Any])  # of any dtype without Python objects

_Codec: TypeAlias = Literal["zlib", "gzip", "deflate", "zstd"]

_LARGEST = 2**63 - 1  # the largest file offset
_GIBIBYTE = 2**30
_FIELD_NAME = re.compile(":[^:]*:")  # in the format of a buffer


@final
class NativeJob(Generic[Result]):
    """A job for a thread of a `NativeThreadPool`; made by one of the static methods below, submitted once.

    `Result` is the type of the future's result.

    Example:
        >>> job = NativeJob.crc32(b"penstock")
        >>> job
        <NativeJob: crc32 of 8 bytes>
    """

    __slots__ = ("_description", "native")

    def __init__(self, native: _native.PoolJob, description: str) -> None:
        self.native: _native.PoolJob = native
        self._description = description

    def __repr__(self) -> str:
        return f"<NativeJob: {self._description}>"

    @overload
    @staticmethod
    def read_file(
        file: str | os.PathLike[str] | int, start: int = 0, *, size: int | None = None, out: None = None
    ) -> "NativeJob[Bytes]": ...
    @overload
    @staticmethod
    def read_file(
        file: str | os.PathLike[str] | int, start: int = 0, *, size: int | None = None, out: "_Out"
    ) -> "NativeJob[_Out]": ...
    @staticmethod
    def read_file(
        file: str | os.PathLike[str] | int, start: int = 0, *, size: int | None = None, out: "_Memory | None" = None
    ) -> "NativeJob[Any]":
        """Return a job that reads a range of a file.

        Args:
            file: a path, opened when the job runs; or the descriptor of an open file, whose own position isn't used or
                moved, and which may be closed as soon as the job is made.
            start: the first byte.
            size: how many bytes; None reads as many as `out` has, or all from `start` to the end of the file, also of a
                file that reports no size, such as those in /proc. A device needs a size, unless it is empty.
            out: the destination, a writable C-contiguous buffer of any items but Python objects, such as an array or a
                slot of an arena. Default None: new memory.

        Returns:
            A job whose result is `out`, or new `Bytes`. If the file can't be read, or ends before the range does, it
            fails with an OSError that names the file and the range.

        Raises:
            UsageError: `start` or `size` is negative or too large, `size` isn't that of `out`, `out` is another kind of
                buffer, or the path contains a null character.
            OSError: the descriptor isn't open.

        Example:
            >>> import asyncio, pathlib
            >>> from penstock.concurrency import NativeThreadPool
            >>> async def middle(path: str) -> bytes:
            ...     async with NativeThreadPool(2) as pool:
            ...         return bytes(await pool.submit(NativeJob.read_file(path, 2, size=3)))
            >>> pathlib.Path("letters").write_bytes(b"abcdefgh")
            8
            >>> asyncio.run(middle("letters"))
            b'cde'
        """
        last = start + (size or 0)
        if start < 0 or (size is not None and size < 0) or last > _LARGEST:
            raise UsageError(
                f"start, size and their sum must be in [0, 2**63); got start={start}, size={size}. "
                "Count from the start of the file"
            )
        path = b"" if isinstance(file, int) else os.fsencode(file)
        if b"\0" in path:
            raise UsageError(f"a path must have no null character; got {file!r}. Pass the path without it")
        _check_plain(out=out)
        where = f"[{start}, {'end' if size is None else last}) of {file!r}"
        try:
            if isinstance(file, int):
                native = _native.read_descriptor_job(file, start, size, out)
            else:
                native = _native.read_path_job(path, start, size, out)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"out must be a writable C-contiguous buffer of as many bytes as are read; got {_described(out)} for "
                f"{where} ({error}). Pass an array of that size, or omit size"
            ) from error
        return NativeJob(native, f"read {where}")

    @staticmethod
    def copy(source: "_Memory", out: "_Out") -> "NativeJob[_Out]":
        """Return a job that copies bytes, even if the two buffers overlap.

        Args:
            source: a C-contiguous buffer of any items but Python objects.
            out: a writable C-contiguous buffer of as many bytes.

        Returns:
            A job whose result is `out`.

        Raises:
            UsageError: the buffers are of another kind, or of different sizes.

        Example:
            >>> NativeJob.copy(b"abc", bytearray(3))
            <NativeJob: copy 3 bytes>
        """
        _check_plain(source=source, out=out)
        try:
            native = _native.copy_job(source, out)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"copy needs a C-contiguous source, and a writable C-contiguous out of as many bytes; got "
                f"{_described(source)} and {_described(out)} ({error}). Convert them first: "
                "numpy.ascontiguousarray(source), numpy.empty_like(source)"
            ) from error
        return NativeJob(native, f"copy {memoryview(cast('Buffer', out)).nbytes} bytes")

    @staticmethod
    def stack(arrays: Sequence[NDArray[Any]], out: _Array) -> "NativeJob[_Array]":
        """Return a job that copies arrays into the rows of a batch, as `np.stack` does along the first axis.

        Args:
            arrays: a list or tuple of C-contiguous arrays of one shape and dtype, without Python objects.
            out: a C-contiguous array of shape (len(arrays), *shape) and that dtype, which overlaps none of them.

        Returns:
            A job whose result is `out`.

        Raises:
            UsageError: an array has another layout, shape or dtype. None is converted.

        Example:
            >>> NativeJob.stack([np.zeros(3), np.ones(3)], np.empty((2, 3)))
            <NativeJob: stack 2 arrays>
        """
        _check_plain(out=out)
        try:
            native = _native.stack_job(arrays, out)
        except (TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                "stack needs C-contiguous arrays of one dtype and shape, and a writable C-contiguous out of shape "
                f"(len(arrays), *shape) and that dtype; got out={_described(out)} ({error}). Convert the arrays first, "
                "or use penstock.batching.stack_arrays, which does"
            ) from error
        return NativeJob(native, f"stack {len(arrays)} arrays")

    @staticmethod
    def gather(source: NDArray[Any], keys: NDArray[np.integer[Any]], *, out: _Array) -> "NativeJob[_Array]":
        """Return a job that copies rows of an array by their numbers, as `np.take(source, keys, axis=0)` does.

        Args:
            source: a C-contiguous array of at least one axis, without Python objects; it may be memory-mapped.
            keys: integers that fit int64, of shape (n,), of which a copy is taken; each in [0, len(source)).
            out: a C-contiguous array of shape (n, *source.shape[1:]) and the dtype of `source`, which it doesn't
                overlap.

        Returns:
            A job whose result is `out`. If a key isn't the number of a row, it fails with an IndexError before it
            writes anything.

        Raises:
            UsageError: an array has another layout, shape or dtype.

        Example:
            >>> NativeJob.gather(np.arange(10), np.array([3, 1]), out=np.empty(2, np.int64))
            <NativeJob: gather 2 rows>
        """
        _check_plain(source=source, out=out)
        try:
            numbers = np.asarray(keys).astype(np.int64, casting="safe", copy=False)
            native = _native.gather_job(source, np.ascontiguousarray(numbers), out)
        except (TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                "gather needs a C-contiguous source, integer keys of one axis, and a writable C-contiguous out of "
                f"shape (len(keys), *source.shape[1:]) and the source's dtype; got source={_described(source)}, "
                f"keys={_described(keys)}, out={_described(out)} ({error}). Make out by "
                "numpy.empty((len(keys), *source.shape[1:]), source.dtype)"
            ) from error
        return NativeJob(native, f"gather {len(keys)} rows")

    @staticmethod
    def crc32(source: "_Memory", *, initial: int = 0) -> "NativeJob[int]":
        """Return a job that computes the same checksum as `zlib.crc32`.

        Args:
            source: a C-contiguous buffer of any items but Python objects.
            initial: the checksum of the preceding bytes, in [0, 2**32).

        Returns:
            A job whose result is the checksum, in [0, 2**32).

        Raises:
            UsageError: the source isn't a C-contiguous buffer, or `initial` is out of range.

        Example:
            >>> import asyncio
            >>> from penstock.concurrency import NativeThreadPool
            >>> async def checksum(data: bytes) -> int:
            ...     async with NativeThreadPool(1) as pool:
            ...         return await pool.submit(NativeJob.crc32(data))
            >>> hex(asyncio.run(checksum(b"123456789")))
            '0xcbf43926'
        """
        _check_plain(source=source)
        try:
            native = _native.checksum_job(source, initial)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"crc32 needs a C-contiguous buffer and an initial value in [0, 2**32); got {_described(source)} and "
                f"initial={initial} ({error}). Convert the source first: numpy.ascontiguousarray(source)"
            ) from error
        return NativeJob(native, f"crc32 of {memoryview(cast('Buffer', source)).nbytes} bytes")

    @staticmethod
    def xxh3_64(source: "_Memory", *, seed: int = 0) -> "NativeJob[int]":
        """Return a job that computes the 64-bit XXH3, a fast hash that isn't cryptographic.

        The system's xxHash computes it, version 0.8 or newer.

        Args:
            source: a C-contiguous buffer of any items but Python objects.
            seed: selects one hash of the family, in [0, 2**64).

        Returns:
            A job whose result is the hash, in [0, 2**64).

        Raises:
            UsageError: the source isn't a C-contiguous buffer, or `seed` is out of range.
            ImportError: the system doesn't have the library; the message says how to install it.

        Example:
            >>> import asyncio
            >>> from penstock.concurrency import NativeThreadPool
            >>> async def hashed(data: bytes) -> int:
            ...     async with NativeThreadPool(1) as pool:
            ...         return await pool.submit(NativeJob.xxh3_64(data))
            >>> hex(asyncio.run(hashed(b"")))
            '0x2d06800538d394c2'
        """
        _check_plain(source=source)
        try:
            native = _native.xxh3_job(source, seed)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"xxh3_64 needs a C-contiguous buffer and a seed in [0, 2**64); got {_described(source)} and "
                f"seed={seed} ({error}). Convert the source first: numpy.ascontiguousarray(source)"
            ) from error
        return NativeJob(native, f"xxh3_64 of {memoryview(cast('Buffer', source)).nbytes} bytes")

    @overload
    @staticmethod
    def decompress(
        source: "_Memory",
        *,
        codec: _Codec = "zlib",
        size: int | None = None,
        out: None = None,
        max_size: int = _GIBIBYTE,
    ) -> "NativeJob[Bytes]": ...
    @overload
    @staticmethod
    def decompress(
        source: "_Memory", *, codec: _Codec = "zlib", size: int | None = None, out: "_Out", max_size: int = _GIBIBYTE
    ) -> "NativeJob[_Out]": ...
    @staticmethod
    def decompress(
        source: "_Memory",
        *,
        codec: _Codec = "zlib",
        size: int | None = None,
        out: "_Memory | None" = None,
        max_size: int = _GIBIBYTE,
    ) -> "NativeJob[Any]":
        """Return a job that decompresses data that is in memory.

        The system's zlib, or its zstd (1.4 or newer), decompresses it; no package of Python is needed.

        Args:
            source: a C-contiguous buffer of any items but Python objects, such as the `Bytes` of a job that has read
                it; not copied.
            codec: `zlib` or `deflate` (raw, without header or checksum) for one stream; `gzip` for members, or `zstd`
                for frames, whose outputs are concatenated.
            size: the exact size of the output in bytes. Default None: the size of `out`, or any.
            out: the destination, a writable C-contiguous buffer of any items but Python objects, which doesn't overlap
                the source. Default None: new memory.
            max_size: the most bytes that the output may have, if neither `size` nor `out` is given. Default 1 GiB. A
                few bytes of input can claim an output of any size; no more memory than this is taken.

        Returns:
            A job whose result is `out`, or new `Bytes`. It fails with a ValueError if the input is corrupt or cut off,
            or if its output doesn't have the given size or exceeds `max_size`; the message names the place.

        Raises:
            UsageError: there is no such codec, `size` or `max_size` is negative or too large, `size` isn't that of
                `out`, or a buffer is of another kind.
            ImportError: the system doesn't have the library; the message says how to install it.

        Example:
            >>> import asyncio, zlib
            >>> from penstock.concurrency import NativeThreadPool
            >>> async def decompressed(data: bytes) -> bytes:
            ...     async with NativeThreadPool(2) as pool:
            ...         return bytes(await pool.submit(NativeJob.decompress(data)))
            >>> asyncio.run(decompressed(zlib.compress(b"penstock")))
            b'penstock'
        """
        _check_plain(source=source, out=out)
        try:
            native = _native.decompress_job(source, codec, size, out, max_size)
        except (TypeError, ValueError) as error:
            raise UsageError(
                "decompress needs a C-contiguous source, a codec of zlib, gzip, deflate and zstd, sizes in [0, 2**64), "
                f"and a writable C-contiguous out of that size, not overlapping the source; got {_described(source)}, "
                f"codec={codec!r}, size={size}, out={_described(out)}, max_size={max_size} ({error}). Make out by "
                "numpy.empty(size, numpy.uint8), or omit it"
            ) from error
        return NativeJob(native, f"decompress {codec} of {memoryview(cast('Buffer', source)).nbytes} bytes")

    @staticmethod
    def from_extension(capsule: object) -> "NativeJob[Any]":
        """Return the job that an extension made with the header `penstock/job.hpp`.

        Args:
            capsule: a `PyCapsule` of the name `penstock.job.v2`, from which the job can be taken once; see
                `penstock.transport.include_directory` for the headers.

        Returns:
            A job whose result is the `Bytes` that the extension's function returned, or None. If the job has a second
            function, which runs with the interpreter's lock (`make_python_job`), the result is the object it returned.
            An exception of C++ is raised as one of Python with its text: `std::out_of_range` as an IndexError,
            `std::invalid_argument`, `domain_error`, `length_error` and `range_error` as a ValueError,
            `std::overflow_error` as an OverflowError, `std::system_error` as an OSError with its errno,
            `std::bad_alloc` as a MemoryError, and any other as a RuntimeError.

        Raises:
            UsageError: the capsule is of another kind, or its job was taken before.

        Example:
            >>> NativeJob.from_extension("a text")
            Traceback (most recent call last):
            penstock.errors.UsageError: ...
        """
        try:
            native = _native.foreign_job(capsule)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"a job must come in a capsule penstock.job.v2, whose job can be taken once; got {capsule!r} "
                f"({error}). Make a new one in the extension: penstock::to_capsule(penstock::make_job(...))"
            ) from error
        return NativeJob(native, "of an extension")


def _check_plain(**buffers: object) -> None:
    """Check that buffers, by the names of their arguments, hold no Python objects: a copy would not count references.

    Raises:
        UsageError: one does.
    """
    for name, buffer in buffers.items():
        if _holds_objects(buffer):
            raise UsageError(
                f"a native job copies bytes, so its buffers must hold no Python objects; got {name}="
                f"{_described(buffer)}. Pass an array of numbers, or copy by NumPy"
            )


def _holds_objects(buffer: object) -> bool:
    known = getattr(getattr(buffer, "dtype", None), "hasobject", None)
    if known is not None:
        return bool(known)
    layout = ""
    with suppress(TypeError, ValueError, BufferError):  # no buffer, which the job itself refuses
        layout = memoryview(cast("Buffer", buffer)).format
    return "O" in layout and "O" in _FIELD_NAME.sub("", layout)


def _described(value: object) -> str:
    if value is None:
        return "None"
    facts = [f"{name}={getattr(value, name)}" for name in ("shape", "dtype") if hasattr(value, name)]
    return f"{type(value).__name__}({', '.join(facts)})"
