"""A handle over bytes of any owner: Python, C++, shared memory, an array or a tensor; it shares and never copies.

Guarantees:
  - Making a handle, slicing it, copying it (`copy` and `deepcopy` too) and viewing it copy no bytes.
  - The owner is dropped with the last handle, slice, memoryview or array over it, on the thread that drops it. Owners
    from C++ are dropped without the GIL.
  - Any thread may use a handle and read through it. Concurrent writes to the bytes are not locked.

The garbage collector doesn't find a reference cycle through a handle (an object that holds a handle over itself).

The counted C++ owner behind a handle follows `std::shared_ptr`; the capsule in which extensions exchange handles
(`penstock/bytes.hpp`) follows DLPack and Arrow's C data interface: a plain struct with its own release function.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Final, Protocol, SupportsIndex, TypeAlias, cast, final, overload

from penstock._native import BytesHandle as BytesHandle
from penstock.errors import InternalError, UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_SHOWN: Final = 16  # bytes in a repr
_COPYING: Final = frozenset(name for name in dir(bytes) if not name.startswith("_"))
_Span: TypeAlias = SupportsIndex | None  # a bound of a span, as `bytes.find` takes it


class _Device(Protocol):
    type: str


class _Tensor(Protocol):
    dtype: object
    device: _Device

    def is_contiguous(self) -> bool: ...
    def numpy(self) -> object: ...


@final
class Bytes(BytesHandle):
    r"""Bytes that are shared and not copied, and that read like `bytes`.

    Functions that take bytes take a handle: sockets, asyncio transports, HTTP clients and servers, `json.loads`,
    `zlib`, `hashlib`, `struct`, files, `io.BytesIO`, image decoders, `memoryview`, `np.frombuffer`, `torch.frombuffer`.
    It has the buffer protocol, and reading methods that copy nothing. The other methods of `bytes` (`split`, `strip`
    and so on) work on a copy. Slices of step 1 share the bytes; other steps copy.

    A handle over a read-only source is read-only: see `readonly`. A read-only handle has the hash of the equal `bytes`;
    as with a `memoryview`, that assumes that the bytes don't change. A writable one has no hash: hash its
    `toreadonly()`. `==` and the order compare by value, with every object that holds bytes.

    `isinstance(handle, bytes)` is true, although `type(handle)` is `Bytes`: `__class__` returns `bytes`, as a proxy's
    does. `json`, asyncio and aiohttp check for one of three types before they take a buffer, and a true subclass of
    `bytes` can't hold memory of another owner. C code that requires exact `bytes` (`PyBytes_Check`) still refuses a
    handle, with a TypeError; pass it `bytes(handle)`. `functools.singledispatch` chooses the function that is
    registered for `bytes`. Type checkers see a `Buffer`, not `bytes`: if a signature names `bytes`, or a list of types
    as NumPy's do, cast, or pass `memoryview(handle)`.

    With pickle's protocol 5 and a `buffer_callback`, the bytes are sent out of band, without a copy; otherwise inside
    the pickle. Unpickling returns a `Bytes`.

    Extensions in C++ create and accept handles by the headers `penstock/bytes.hpp` and `penstock/bytes_python.hpp`: see
    `include_directory`.

    Args:
        source: any C-contiguous buffer of unsigned bytes, of any shape (bytes, bytearray, memoryview, uint8 array,
            mmap, memory from a lease, ...); a uint8 tensor of torch on the CPU; another `Bytes`; or a capsule
            `penstock.bytes.v1` from an extension.

    Raises:
        UsageError: the source is another object.

    Example:
        >>> pixels = np.arange(256, dtype=np.uint8)
        >>> data = Bytes(pixels)
        >>> data[1:4], data[255], len(data)
        (<Bytes: 3 bytes of ndarray, writable, b'\x01\x02\x03'>, 255, 256)
        >>> np.shares_memory(np.frombuffer(data[1:4], np.uint8), pixels)
        True
        >>> Bytes(b"penstock") == b"penstock"
        True
    """

    __slots__ = ()  # the native base supports weak references

    def __init__(self, source: "Buffer | _Tensor | object") -> None:
        # Zero-argument `super` would use `__class__`.
        try:
            BytesHandle.__init__(self, _array_of(source))
        except (TypeError, ValueError, BufferError, RuntimeError) as error:
            raise UsageError(
                "Bytes must be made from a C-contiguous buffer of unsigned bytes, such as bytes, a memoryview or a "
                f"uint8 array or CPU tensor; got {_described(source)} ({error}). Convert it first: "
                "numpy.ascontiguousarray(array).view(numpy.uint8), tensor.cpu().contiguous().view(torch.uint8), "
                "or text.encode()"
            ) from error

    @property
    def nbytes(self) -> int:
        """The number of bytes, as `len`; arrays and memoryviews use this name."""
        return len(self)

    def toreadonly(self) -> "Bytes":
        """Return a read-only handle over the same bytes.

        Example:
            >>> hash(Bytes(bytearray(b"key")).toreadonly()) == hash(b"key")
            True
        """
        return Bytes(self.share_readonly())

    def tobytes(self) -> bytes:
        """Return a copy, as plain `bytes`."""
        return memoryview(self).tobytes()

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the text that the bytes encode, as `bytes.decode` does."""
        return str(self, encoding, errors)

    def hex(self, sep: str | bytes = "", bytes_per_sep: int = 1) -> str:
        """Return two hexadecimal digits a byte, as `bytes.hex` does."""
        return memoryview(self).hex(sep, bytes_per_sep) if sep else memoryview(self).hex()

    def find(self, sub: "Buffer | SupportsIndex", start: _Span = None, end: _Span = None, /) -> int:
        """Return the lowest position in `[start, end)` of the bytes, or of the one byte; -1 if they are not there."""
        needle, span = _needle(sub), self._span(start, end)
        return self.find_between(needle, *span) if span else -1

    def rfind(self, sub: "Buffer | SupportsIndex", start: _Span = None, end: _Span = None, /) -> int:
        """Return the highest position in `[start, end)` of the bytes, or of the one byte; -1 if they are not there."""
        needle, span = _needle(sub), self._span(start, end)
        return self.rfind_between(needle, *span) if span else -1

    def index(self, sub: "Buffer | SupportsIndex", start: _Span = None, end: _Span = None, /) -> int:
        """Return the result of `find`.

        Raises:
            ValueError: it is not there.
        """
        return _found(self.find(sub, start, end))

    def rindex(self, sub: "Buffer | SupportsIndex", start: _Span = None, end: _Span = None, /) -> int:
        """Return the result of `rfind`.

        Raises:
            ValueError: it is not there.
        """
        return _found(self.rfind(sub, start, end))

    def count(self, sub: "Buffer | SupportsIndex", start: _Span = None, end: _Span = None, /) -> int:
        """Return the number of occurrences of the bytes, or of the one byte, in `[start, end)`, without overlaps."""
        needle, span = _needle(sub), self._span(start, end)
        return self.count_between(needle, *span) if span else 0

    def startswith(self, prefix: "Buffer | tuple[Buffer, ...]", start: _Span = None, end: _Span = None, /) -> bool:
        """Return whether `[start, end)` starts with the bytes, or with any of a tuple of them."""
        span = self._span(start, end)
        part = memoryview(self)[slice(*span)] if span else None
        return any(part is not None and part[: len(each)] == each for each in _choices(prefix))

    def endswith(self, suffix: "Buffer | tuple[Buffer, ...]", start: _Span = None, end: _Span = None, /) -> bool:
        """Return whether `[start, end)` ends with the bytes, or with any of a tuple of them."""
        span = self._span(start, end)
        part = memoryview(self)[slice(*span)] if span else None
        return any(
            part is not None and len(each) <= len(part) and part[len(part) - len(each) :] == each
            for each in _choices(suffix)
        )

    def _span(self, start: _Span, end: _Span) -> tuple[int, int] | None:
        """Return the span inside these bytes; None if `bytes.find` finds nothing in it, not even empty bytes."""
        first, last, _ = slice(start, end).indices(len(self))
        beyond = start is not None and start.__index__() > len(self)
        return None if beyond or first > last else (first, last)

    @overload
    def __getitem__(self, key: SupportsIndex, /) -> int: ...
    @overload
    def __getitem__(self, key: slice, /) -> "Bytes": ...
    def __getitem__(self, key: "SupportsIndex | slice", /) -> "int | Bytes":
        if not isinstance(key, slice):
            return memoryview(self)[key]
        start, stop, step = key.indices(len(self))
        if step != 1:
            return Bytes(memoryview(self)[key].tobytes())
        return Bytes(self.share(start, max(0, stop - start)))

    def __iter__(self) -> Iterator[int]:
        view: memoryview[int] = memoryview(self)
        return iter(view)

    def __contains__(self, sub: object, /) -> bool:
        return self.find(cast("Buffer", sub)) >= 0

    def __add__(self, other: "Buffer") -> bytes:
        return b"".join((self, other))

    def __bytes__(self) -> bytes:
        return self.tobytes()

    def __eq__(self, other: object, /) -> bool:
        view = _viewed(other)
        if view is None:
            return NotImplemented
        if view.ndim == 1 and view.format == "B" and view.c_contiguous:
            return len(self) == len(view) and self.compare(view) == 0
        return memoryview(self) == view

    def __lt__(self, other: "Buffer") -> bool:
        return self.compare(other) < 0 if _viewed(other) is not None else NotImplemented

    def __le__(self, other: "Buffer") -> bool:
        return self.compare(other) <= 0 if _viewed(other) is not None else NotImplemented

    def __gt__(self, other: "Buffer") -> bool:
        return self.compare(other) > 0 if _viewed(other) is not None else NotImplemented

    def __ge__(self, other: "Buffer") -> bool:
        return self.compare(other) >= 0 if _viewed(other) is not None else NotImplemented

    def __hash__(self) -> int:
        if not self.readonly:
            raise TypeError("a writable Bytes has no hash, since its value may change; hash its toreadonly()")
        # A memoryview hashes its object first: here a plain handle, which hashes by identity.
        return hash(memoryview(cast("bytes", self.share_readonly())))

    def __repr__(self) -> str:
        written = "read-only" if self.readonly else "writable"
        shown = f"{self[:_SHOWN].tobytes()!r}{'...' if len(self) > _SHOWN else ''}"
        return f"<Bytes: {len(self)} bytes of {self.owner_name}, {written}, {shown}>"

    __str__ = __repr__

    def __copy__(self) -> "Bytes":
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> "Bytes":
        return self

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> "tuple[type[Bytes], tuple[object]]":
        # Protocol 5 is the first with buffers. The pickler in Python can't write two equal ones of less than 2 bytes.
        if protocol.__index__() >= 5 and len(self) > 1:
            return Bytes, (PickleBuffer(self),)
        return Bytes, (bytes(self) if self.readonly else bytearray(self),)

    if TYPE_CHECKING:

        def __buffer__(self, flags: int, /) -> memoryview: ...  # the native base has it

    else:
        # Hidden from type checkers, so that they report methods that copy, and don't take a handle for `bytes`.
        __class__ = property(lambda _: bytes, doc="`bytes`, for code that checks for one of three types.")

        def __getattr__(self, name: str) -> object:
            if name in _COPYING:
                return getattr(bytes(self), name)
            raise AttributeError(f"'Bytes' object has no attribute {name!r}", name=name, obj=self)


def include_directory() -> str:
    """Return the folder of the public C++ headers, for extensions that make or take `Bytes`.

    It holds `penstock/bytes.hpp` (C++17, no dependencies) and `penstock/bytes_python.hpp` (includes `Python.h`; for
    pybind11, nanobind and the plain C API). Add it with `-I` to compile; there is nothing to link.

    Returns:
        The folder's absolute path.

    Raises:
        InternalError: the headers are missing from this installation.

    Example:
        >>> import pathlib
        >>> (pathlib.Path(include_directory()) / "penstock" / "bytes.hpp").exists()
        True
    """
    package = Path(__file__).resolve().parents[1]
    # In the package if it is installed; in the sources if it runs from a checkout.
    for folder in (package / "include", package.parents[1] / "native" / "include"):
        if (folder / "penstock" / "bytes.hpp").exists():
            return str(folder)
    raise InternalError(f"the C++ headers must be in {package / 'include'}; they are missing: reinstall Penstock")


def _array_of(source: object) -> object:
    """Return the array over a torch tensor's memory; another object unchanged. Torch is not imported.

    Raises:
        BufferError: the tensor has another dtype or device, or is strided.
    """
    tensor_type = cast("type | None", getattr(sys.modules.get("torch"), "Tensor", None))
    if tensor_type is None or not isinstance(source, tensor_type):
        return source
    tensor = cast("_Tensor", source)
    if tensor.device.type != "cpu" or str(tensor.dtype) != "torch.uint8" or not tensor.is_contiguous():
        raise BufferError("a tensor must be on the CPU, of dtype uint8, and contiguous")
    return tensor.numpy()


def _described(source: object) -> str:
    """Return a description of a refused source, without its contents."""
    facts = [f"{name}={getattr(source, name)}" for name in ("shape", "dtype", "device") if hasattr(source, name)]
    return f"{type(source).__name__}({', '.join(facts)})"


def _needle(sub: "Buffer | SupportsIndex") -> "Buffer":
    """Return the bytes to search for: bytes, or the one byte of a number from 0 to 255."""
    if isinstance(sub, SupportsIndex) and _viewed(sub) is None:
        return bytes((sub.__index__(),))
    return cast("Buffer", sub)


def _choices(affix: "Buffer | tuple[Buffer, ...]") -> list[memoryview]:
    return [memoryview(each) for each in (affix if isinstance(affix, tuple) else (affix,))]


def _viewed(other: object) -> memoryview | None:
    """Return a view of an object that holds bytes; None for other objects."""
    try:
        return memoryview(cast("Buffer", other))
    except (TypeError, BufferError):
        return None


def _found(position: int) -> int:
    """Return the position.

    Raises:
        ValueError: it is -1.
    """
    if position < 0:
        raise ValueError("subsection not found")
    return position
