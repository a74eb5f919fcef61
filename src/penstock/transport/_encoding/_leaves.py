"""The sender's handling of each kind of leaf: its key for the layout, and the data to write for it."""

import pickle
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from penstock._pickles import Pickled, dump, dump_by_value
from penstock.transport._bytes import Bytes
from penstock.transport._encoding import _torch_tensors as tensors
from penstock.transport._encoding._cuda import OnDevice, offset_after
from penstock.transport._encoding._dtypes import Dtype, dtype_text, has_text
from penstock.transport._encoding._layout import LeafKey, first_item_bytes, span_bytes

Locate: TypeAlias = Callable[[int, int], object | None]
"""Takes an address and a size, and returns the place by which to send these bytes; None if they must be copied."""

_REMEDY: Final = (
    "Convert it to arrays, numbers or text, call register_container() for its type, or pass allow_pickle=True on both "
    "sides if they are processes of your own."
)
_MAX_TEXTS: Final = 256
_TEXTS: Final[dict[int, tuple[Dtype, str | None]]] = {}  # by identity: equal dtypes may differ


class RefusedError(Exception):
    """A leaf can't be sent. The text is the end of a sentence that begins with the leaf's path."""


class Parts(NamedTuple):
    """The parts of a message, collected from its leaves so far.

    Attributes:
        least_located_bytes: `locate` is not called for smaller leaves; at least 1.
        keys: one for each leaf.
        values: the numbers in the head's struct.
        arrays: the arrays to copy into memory, in order.
        blobs: the data after the arrays, in order; a memoryview is that of a `Bytes`.
        places: the results of `locate`, and tensors on devices, as `OnDevice`.
        device_bytes: the bytes of these tensors so far, by the device's number.
    """

    allow_pickle: bool
    locate: Locate | None
    least_located_bytes: int
    keys: list[LeafKey]
    values: list[object]
    arrays: list[NDArray[Any]]
    blobs: list[bytes | bytearray | memoryview | Pickled]
    places: list[object]
    device_bytes: dict[int, int]


def take(leaves: Iterable[object], parts: Parts) -> None:
    """Add leaves to the parts, in order. A `RefusedError` concerns the first leaf without a key."""
    for leaf in leaves:
        taker = _TAKERS.get(type(leaf))
        if taker is not None:
            taker(leaf, parts)
        elif tensors.is_tensor(leaf):
            _take_tensor(cast("tensors.Tensor", leaf), parts)
        else:
            _take_pickled(leaf, parts)


def _take_none(_leaf: object, parts: Parts) -> None:
    parts.keys.append(("none",))


def _take_bool(leaf: object, parts: Parts) -> None:
    parts.keys.append(("bool",))
    parts.values.append(leaf)


def _take_int(leaf: int, parts: Parts) -> None:
    if -(1 << 63) <= leaf < 1 << 63:
        parts.keys.append(("int",))
        parts.values.append(leaf)
    else:
        _add_blob("integer", leaf.to_bytes(leaf.bit_length() // 8 + 1, "little", signed=True), parts)


def _take_float(leaf: object, parts: Parts) -> None:
    parts.keys.append(("float",))
    parts.values.append(leaf)


def _take_complex(leaf: complex, parts: Parts) -> None:
    parts.keys.append(("complex",))
    parts.values.extend((leaf.real, leaf.imag))


def _take_str(leaf: str, parts: Parts) -> None:
    _add_blob("str", leaf.encode("utf-8", "surrogatepass"), parts)


def _take_bytes(leaf: bytes, parts: Parts) -> None:
    _add_blob("bytes", leaf, parts)


def _take_bytearray(leaf: bytearray, parts: Parts) -> None:
    _add_blob("bytearray", leaf, parts)


def _take_handle(leaf: Bytes, parts: Parts) -> None:
    view, place = memoryview(leaf), None
    if parts.locate is not None and view.nbytes >= parts.least_located_bytes:
        address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
        place = parts.locate(address, view.nbytes)
    parts.keys.append(("handle", place is not None))
    parts.values.append(view.nbytes)
    if place is None:
        parts.blobs.append(view)
    else:
        parts.places.append(place)


def _take_numpy_str(leaf: str, parts: Parts) -> None:
    _add_blob("numpy str", leaf.encode("utf-8", "surrogatepass"), parts)


def _take_numpy_bytes(leaf: bytes, parts: Parts) -> None:
    _add_blob("numpy bytes", bytes(leaf), parts)


def _take_array(leaf: NDArray[Any], parts: Parts) -> None:
    text = _text(leaf.dtype)
    if text is None:
        _take_pickled(leaf, parts)
        return
    flags, place = leaf.flags, None
    # An array that owns its data has it from NumPy's allocator, never in shared memory.
    if parts.locate is not None and leaf.base is not None and leaf.nbytes >= parts.least_located_bytes:
        address: int = leaf.__array_interface__["data"][0]
        if flags.forc:
            place = parts.locate(address, leaf.nbytes)
        elif not has_text(leaf.dtype):
            strides = _strides(leaf.shape, leaf.strides)
            lowest = address - first_item_bytes(leaf.shape, strides)
            place = parts.locate(lowest, span_bytes(leaf.shape, strides, leaf.itemsize))
            if place is not None:
                parts.keys.append(("strided array", text, leaf.shape, strides))
                parts.places.append(place)
                return
    parts.keys.append(("array", text, leaf.shape, flags.fnc, place is not None))
    if place is None:
        parts.arrays.append(leaf)
    else:
        parts.places.append(place)


def _strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return strides with 0 for those without a meaning, so that fewer layouts differ."""
    return tuple(0 if size == 1 else step for size, step in zip(shape, strides, strict=True))


def _take_scalar(leaf: np.generic, parts: Parts) -> None:
    array: NDArray[Any] = np.asarray(leaf)
    text = _text(array.dtype)
    if text is None or array.dtype.type is not type(leaf):
        _take_pickled(leaf, parts)
        return
    parts.keys.append(("scalar", text))
    parts.arrays.append(array)


def _take_tensor(leaf: tensors.Tensor, parts: Parts) -> None:
    if not tensors.detached(leaf):
        raise RefusedError("is a tensor that requires_grad, whose graph can't follow it. Send tensor.detach().")
    obstacle = tensors.obstacle(leaf)
    if obstacle:
        if not parts.allow_pickle:
            raise RefusedError(
                f"{obstacle}, or pass allow_pickle=True on both sides if they are processes of your own."
            )
        _take_pickled(leaf, parts)
    elif tensors.on_host(leaf):
        _take_host_tensor(leaf, parts)
    elif not parts.allow_pickle:
        raise RefusedError(
            "is a CUDA tensor, whose memory is opened only for processes that trust each other. Send tensor.cpu(), or "
            "pass allow_pickle=True on both sides if they are processes of your own."
        )
    else:
        _take_device_tensor(leaf, parts)


def _take_device_tensor(leaf: tensors.Tensor, parts: Parts) -> None:
    name, device = tensors.dtype_name(leaf), int(leaf.get_device())
    nbytes = leaf.numel() * tensors.ITEM_BYTES[name]
    offset = offset_after(parts.device_bytes.get(device, 0))
    parts.device_bytes[device] = offset + nbytes
    parts.keys.append(("device tensor", name, tuple(leaf.shape)))
    parts.values.append(offset)
    parts.places.append(OnDevice(leaf, device, offset, nbytes))


def _take_host_tensor(leaf: tensors.Tensor, parts: Parts) -> None:
    name, shape = tensors.dtype_name(leaf), tuple(leaf.shape)
    place, nbytes = None, leaf.numel() * tensors.ITEM_BYTES[name]
    if parts.locate is not None and nbytes >= parts.least_located_bytes and tensors.is_plain(leaf):
        if leaf.is_contiguous():
            place = parts.locate(leaf.data_ptr(), nbytes)
        else:
            item_bytes = tensors.ITEM_BYTES[name]
            strides = _strides(shape, leaf.stride())
            span = span_bytes(shape, tuple(step * item_bytes for step in strides), item_bytes)
            place = parts.locate(leaf.data_ptr(), span)
            if place is not None:
                parts.keys.append(("strided tensor", name, shape, strides))
                parts.places.append(place)
                return
    parts.keys.append(("tensor", name, shape, place is not None))
    if place is None:
        parts.arrays.append(tensors.tensor_bytes(leaf))
    else:
        parts.places.append(place)


def _take_pickled(leaf: object, parts: Parts) -> None:
    kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}".removeprefix("builtins.")
    # A dict subclass may return an item as an attribute, or raise any exception for a missing one.
    is_container = any(base in type(leaf).__mro__ for base in (dict, list, tuple))
    dtype: object = None if is_container else getattr(leaf, "dtype", None)
    if dtype is not None:
        kind = f"{kind} with the dtype {dtype}"
    if not parts.allow_pickle:
        raise RefusedError(f"has the type {kind}, which only pickle can send. {_REMEDY}")
    try:
        pickled = dump_by_value(leaf) if is_container else dump(leaf)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise RefusedError(f"has the type {kind}, which pickle can't send ({error}). {_REMEDY}") from error
    parts.keys.append(("pickle",))
    parts.values.append(pickled.nbytes)
    parts.blobs.append(pickled)


def _add_blob(kind: str, blob: bytes | bytearray, parts: Parts) -> None:
    parts.keys.append((kind,))
    parts.values.append(len(blob))
    parts.blobs.append(blob)


def _text(dtype: Dtype) -> str | None:
    known = _TEXTS.get(id(dtype))
    if known is not None and known[0] is dtype:
        return known[1]
    text = dtype_text(dtype)
    if len(_TEXTS) >= _MAX_TEXTS:
        _TEXTS.clear()
    _TEXTS[id(dtype)] = (dtype, text)
    return text


_TAKERS: Final[dict[type, Callable[[Any, Parts], None]]] = {
    np.ndarray: _take_array,
    np.memmap: _take_array,
    type(None): _take_none,
    bool: _take_bool,
    int: _take_int,
    float: _take_float,
    complex: _take_complex,
    str: _take_str,
    bytes: _take_bytes,
    bytearray: _take_bytearray,
    Bytes: _take_handle,
    np.str_: _take_numpy_str,
    np.bytes_: _take_numpy_bytes,
    np.void: _take_scalar,
    **{np.dtype(character).type: _take_scalar for character in "?bBhHiIlLqQefdgFDGmM"},
}
PLAIN_LEAVES: Final = frozenset(_TAKERS)
"""Types whose instances are always leaves."""
