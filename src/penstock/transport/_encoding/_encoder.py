"""The encoder: an element becomes a head, a description if its layout is new, and data to write into memory.

The encoder takes the element's containers apart (`_containers`). Each leaf, by its type, adds a key for the layout and
its data to the `_Parts` of the message. A layout is computed once for each structure and keys, and cached while it is
among the last used ones. It costs far more than a message of it does. So all plain values of a structure that
wasn't met lately are packed (`_values`), and the layout is that of the rest. One thread at a time uses an encoder; any
thread may write its results.
"""

import pickle
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from penstock import _tensors as tensors
from penstock._memory import aligned
from penstock._pickles import Pickled, dump_by_value
from penstock._strides import whole_items
from penstock._tree import subject
from penstock.errors import UsageError
from penstock.transport._bytes import Bytes
from penstock.transport._encoding._containers import NUMPY_SCALARS, leaf_path, reason_for_leaf, take_apart
from penstock.transport._encoding._device_tensors import OnDevice, Tensor, offset_after
from penstock.transport._encoding._dtypes import Dtype, dtype_text, has_text
from penstock.transport._encoding._layout import (
    FORM,
    START,
    ArrayLeaf,
    Layout,
    LeafKey,
    Node,
    TensorLeaf,
    first_item_bytes,
    pack_description,
    parse_description,
    span_bytes,
)
from penstock.transport._encoding._values import PackedValues, can_pack_values

Locate: TypeAlias = Callable[[int, int], object | None]
"""A function of an address and a size; it returns the place by which to send these bytes, or None to copy them."""

MAX_LAYOUTS: Final = 256  # a decoder must keep those of all encoders that send to it
MAX_LEAVES: Final = 1 << 17  # of these layouts together, which take about 300 bytes a leaf
_LARGE_BYTES: Final = 65_536  # larger blobs are copied by NumPy, which starts more slowly and releases the GIL
_LATELY: Final = 32  # structures; with more, a layout for one that is met again may be forgotten before it's used
_MAX_TEXTS: Final = 256
_TEXTS: Final[dict[int, tuple[Dtype, str | None]]] = {}  # by identity: equal dtypes may differ
_REMEDY: Final = "Convert it to arrays, numbers or text, or call register_container() for its type"


class Encoded(NamedTuple):
    """An element that is ready to send; it keeps the leaves alive.

    Attributes:
        head: the layout's id, the numbers, and the sizes of the data after the arrays.
        description: the description of a new layout, which receivers must learn before they decode; else None.
        size_bytes: the size of the memory that `write_into` fills; it may be 0.
        places: for each leaf that isn't copied, in order: the result of `locate`, or, for a tensor on a device, an
            `OnDevice`. The sender copies that tensor into a device slot, and sends the slot's place instead.
        leaves: all leaves, to keep them alive.
        arrays: the arrays to copy.
        starts: the start of each array in memory.
        blobs: the data after the arrays, each with its start.
    """

    head: bytes
    description: bytes | None
    size_bytes: int
    places: tuple[object, ...]
    leaves: list[object]
    arrays: list[NDArray[Any]]
    starts: tuple[int, ...]
    blobs: tuple[tuple[int, bytes | bytearray | memoryview], ...]

    def write_into(self, memory: NDArray[np.uint8]) -> None:
        """Copy the leaves into memory; large ones without the GIL.

        Args:
            memory: writable, contiguous, of at least `size_bytes`; arrays are at multiples of 64 bytes from its start.

        Raises:
            UsageError: it is too small.
        """
        if memory.nbytes < self.size_bytes:
            raise UsageError(f"this element needs {self.size_bytes} bytes of memory; got {memory.nbytes}")
        for start, array in zip(self.starts, self.arrays, strict=True):
            order: Literal["C", "F"] = "F" if array.flags.fnc else "C"
            items = whole_items(array)
            np.ndarray(items.shape, items.dtype, memory, start, None, order)[...] = items
        view = memory.data
        for start, blob in self.blobs:
            if len(blob) < _LARGE_BYTES:
                view[start : start + len(blob)] = blob
            else:
                memory[start : start + len(blob)] = np.frombuffer(blob, np.uint8)


@dataclass(frozen=True, slots=True)
class _Cached:
    """A layout, with the start of its heads and the starts of the copied arrays."""

    layout: Layout
    head_start: bytes
    starts: tuple[int, ...]


class _Taken(NamedTuple):
    """An element that was taken apart: its structure and leaves, and the parts of its message."""

    node: Node
    leaves: list[object]
    parts: "_Parts"


class Encoder:
    """Makes messages from elements; used by one thread at a time.

    Args:
        allow_pickle: pickle leaves of other types, and instances of subclasses of dict, list and tuple, and send CUDA
            tensors in device slots.
        locate: a function that takes the lowest address and the size in bytes of an array, tensor or `Bytes`. If it
            returns a place, the leaf is sent by that place, without a copy. It isn't called for arrays that own their
            memory.
        least_located_bytes: `locate` isn't called for smaller leaves.

    Example:
        >>> from penstock.transport._encoding import Decoder
        >>> encoder, decoder = Encoder(), Decoder()
        >>> encoded = encoder.encode({"image": np.arange(3), "label": 7})
        >>> memory = np.empty(encoded.size_bytes, np.uint8)
        >>> encoded.write_into(memory)
        >>> decoder.learn(encoded.description)
        >>> decoder.decode(encoded.head, memory, encoded.places)
        {'image': array([0, 1, 2]), 'label': 7}
    """

    def __init__(
        self,
        *,
        allow_pickle: bool = False,
        locate: Locate | None = None,
        least_located_bytes: int = 0,
    ) -> None:
        self._allow_pickle = allow_pickle
        self._locate = locate
        self._least_located_bytes = max(least_located_bytes, 1)
        self._cached: OrderedDict[tuple[Node, tuple[LeafKey, ...]], _Cached] = OrderedDict()
        self._cached_leaves = 0
        self._met: deque[int] = deque(maxlen=_LATELY)
        self._pickled = 0
        self._layouts = 0

    @property
    def pickled(self) -> int:
        """The number of leaves pickled so far."""
        return self._pickled

    @property
    def layouts(self) -> int:
        """The number of layouts computed so far."""
        return self._layouts

    def encode(self, element: object) -> Encoded:
        """Return the message of an element; its leaves must not change until it is written.

        Raises:
            UsageError: a leaf can't be sent; the text names its path, its type and a remedy.
        """
        taken = self._take_apart(element)
        key = (taken.node, tuple(taken.parts.keys))
        if key not in self._cached and can_pack_values(taken.leaves) and not self._was_met(key):
            taken = self._take_apart(element, packs=True)
            key = (taken.node, tuple(taken.parts.keys))
        parts = taken.parts
        cached = self._cached.get(key)
        description = None
        if cached is None:
            cached = self._cache(key)
            description = cached.layout.description
        else:
            self._cached.move_to_end(key)
        layout = cached.layout
        head = cached.head_start + layout.values.pack(*parts.values)
        blobs: tuple[tuple[int, bytes | bytearray | memoryview], ...] = ()
        end = layout.fixed_bytes
        if parts.blobs:
            blobs, end = _place_blobs(parts.blobs, end)
            self._pickled += sum(isinstance(blob, Pickled) for blob in parts.blobs)
        return Encoded(head, description, end, tuple(parts.places), taken.leaves, parts.arrays, cached.starts, blobs)

    def _take_apart(self, element: object, *, packs: bool = False) -> "_Taken":
        leaves: list[object] = []
        node = take_apart(element, leaves, keeps_types=self._allow_pickle, packs=packs)
        parts = _Parts(self._allow_pickle, self._locate, self._least_located_bytes, [], [], [], [], [], {})
        try:
            _take_leaves(leaves, parts)
        except _RefusedError as refused:
            position = len(parts.keys)
            reason = reason_for_leaf(leaves[position])
            path = subject(leaf_path(node, position))
            raise UsageError(f"{path} {refused}{reason and f' ({reason})'}") from refused.__cause__
        return _Taken(node, leaves, parts)

    def _was_met(self, key: tuple[Node, tuple[LeafKey, ...]]) -> bool:
        """Return whether a structure was met lately, so that a layout for it is likely to be used again."""
        met = hash(key)
        if met in self._met:
            return True
        self._met.append(met)
        return False

    def _cache(self, key: tuple[Node, tuple[LeafKey, ...]]) -> _Cached:
        described = pack_description(*key, keeps_types=self._allow_pickle)
        layout = parse_description(described)  # as the receiver computes it
        self._layouts += 1
        starts = [leaf.start for leaf in layout.leaves if isinstance(leaf, ArrayLeaf | TensorLeaf)]
        head_start = START.pack(FORM, layout.id)
        cached = self._cached[key] = _Cached(layout, head_start, tuple(start for start in starts if start is not None))
        self._cached_leaves += len(layout.leaves)
        while len(self._cached) > MAX_LAYOUTS or (self._cached_leaves > MAX_LEAVES and len(self._cached) > 1):
            _, oldest = self._cached.popitem(last=False)
            self._cached_leaves -= len(oldest.layout.leaves)
        return cached


def _place_blobs(
    blobs: list[bytes | bytearray | memoryview | Pickled], end: int
) -> tuple[tuple[tuple[int, bytes | bytearray | memoryview], ...], int]:
    """Return the pieces of the blobs, each with its start, and the end of the last."""
    placed: list[tuple[int, bytes | bytearray | memoryview]] = []
    for blob in blobs:
        if isinstance(blob, Pickled):
            start = aligned(end)
            placed += [(start + offset, piece) for offset, piece in blob.pieces]
            end = start + blob.nbytes
        elif isinstance(blob, memoryview):
            placed.append((aligned(end), blob))
            end = aligned(end) + blob.nbytes
        else:
            placed.append((end, blob))
            end += len(blob)
    return tuple(placed), end


class _RefusedError(Exception):
    """A leaf can't be sent. The message continues a sentence that begins with the leaf's path."""


class _Parts(NamedTuple):
    """The parts of a message, collected from its leaves so far.

    Attributes:
        least_located_bytes: `locate` is not called for smaller leaves; at least 1.
        keys: one for each leaf.
        values: the numbers and sizes in the head's struct.
        arrays: the arrays to copy into memory, in order.
        blobs: the data after the arrays, in order; a memoryview is over a `Bytes`.
        places: the results of `locate`, and an `OnDevice` for each tensor on a device.
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


def _take_leaves(leaves: Iterable[object], parts: _Parts) -> None:
    """Add leaves to the parts, in order. A `_RefusedError` is about the first leaf that has no key yet."""
    for leaf in leaves:
        taker = _TAKERS.get(type(leaf))
        if taker is not None:
            taker(leaf, parts)
        elif tensors.is_tensor(leaf):
            _take_tensor(cast("Tensor", leaf), parts)
        else:
            _take_pickled(leaf, parts)


def _take_none(_leaf: object, parts: _Parts) -> None:
    parts.keys.append(("none",))


def _take_bool(leaf: object, parts: _Parts) -> None:
    parts.keys.append(("bool",))
    parts.values.append(leaf)


def _take_int(leaf: int, parts: _Parts) -> None:
    if -(1 << 63) <= leaf < 1 << 63:
        parts.keys.append(("int",))
        parts.values.append(leaf)
    else:
        _add_blob("integer", leaf.to_bytes(leaf.bit_length() // 8 + 1, "little", signed=True), parts)


def _take_float(leaf: object, parts: _Parts) -> None:
    parts.keys.append(("float",))
    parts.values.append(leaf)


def _take_complex(leaf: complex, parts: _Parts) -> None:
    parts.keys.append(("complex",))
    parts.values.extend((leaf.real, leaf.imag))


def _take_str(leaf: str, parts: _Parts) -> None:
    _add_blob("str", leaf.encode("utf-8", "surrogatepass"), parts)


def _take_bytes(leaf: bytes, parts: _Parts) -> None:
    _add_blob("bytes", leaf, parts)


def _take_bytearray(leaf: bytearray, parts: _Parts) -> None:
    _add_blob("bytearray", leaf, parts)


def _take_handle(leaf: Bytes, parts: _Parts) -> None:
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


def _take_numpy_str(leaf: str, parts: _Parts) -> None:
    _add_blob("numpy str", leaf.encode("utf-8", "surrogatepass"), parts)


def _take_numpy_bytes(leaf: bytes, parts: _Parts) -> None:
    _add_blob("numpy bytes", bytes(leaf), parts)


def _take_array(leaf: NDArray[Any], parts: _Parts) -> None:
    text = _text(leaf.dtype)
    if text is None:
        _take_pickled(leaf, parts)
        return
    # NumPy's allocator made the data of an array that owns it, so the data is never in shared memory.
    locate = None if leaf.base is None or leaf.nbytes < parts.least_located_bytes else parts.locate
    axes = None if leaf.flags.forc else tensors.memory_order(leaf)
    leaf = leaf if axes is None else leaf.transpose(axes)
    flags, place = leaf.flags, None
    if locate is not None:
        address: int = leaf.__array_interface__["data"][0]
        if flags.forc:
            place = locate(address, leaf.nbytes)
        elif not has_text(leaf.dtype):
            strides = _strides(leaf.shape, leaf.strides)
            lowest = address - first_item_bytes(leaf.shape, strides)
            place = locate(lowest, span_bytes(leaf.shape, strides, leaf.itemsize))
            if place is not None:
                parts.keys.append(("strided array", text, leaf.shape, strides))
                parts.places.append(place)
                return
    parts.keys.append((*_permutation(axes), "array", text, leaf.shape, flags.fnc, place is not None))
    if place is None:
        parts.arrays.append(leaf)
    else:
        parts.places.append(place)


def _permutation(axes: tuple[int, ...] | None) -> LeafKey:
    """Return the start of the key of an array or tensor whose axes were permuted so that it is contiguous."""
    return () if axes is None else ("permuted", tuple(map(axes.index, range(len(axes)))))


def _strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return strides with 0 for dimensions of one item, whose stride has no effect, so that fewer layouts differ."""
    return tuple(0 if size == 1 else step for size, step in zip(shape, strides, strict=True))


def _take_scalar(leaf: np.generic, parts: _Parts) -> None:
    array: NDArray[Any] = np.asarray(leaf)
    text = _text(array.dtype)
    if text is None or array.dtype.type is not type(leaf):
        _take_pickled(leaf, parts)
        return
    parts.keys.append(("scalar", text))
    parts.arrays.append(array)


def _take_tensor(leaf: Tensor, parts: _Parts) -> None:
    obstacle = _obstacle(leaf)
    if obstacle:
        if not parts.allow_pickle:
            raise _RefusedError(
                f"{obstacle}, or pass allow_pickle=True on both sides if they are processes of your own."
            )
        _take_pickled(leaf, parts)
    elif tensors.on_host(leaf):
        _take_host_tensor(leaf, parts)
    elif not parts.allow_pickle:
        raise _RefusedError(
            "is a CUDA tensor, whose memory is opened only for processes that trust each other. Send tensor.cpu(), or "
            "pass allow_pickle=True on both sides if they are processes of your own."
        )
    else:
        _take_device_tensor(leaf, parts)


def _obstacle(leaf: Tensor) -> str:
    """Return the reason why a tensor can't be sent as its bytes, with the remedy; empty if it can."""
    if not tensors.detached(leaf):
        return "is a tensor that requires_grad, and its graph can't be sent; send .detach()"
    obstacle = tensors.obstacle(leaf)
    if obstacle:
        return obstacle
    names = ", ".join(map(repr, vars(leaf)))
    return names and f"is a tensor with attributes ({names}); send .detach(), and their values as leaves"


def _take_device_tensor(leaf: Tensor, parts: _Parts) -> None:
    name, device = tensors.dtype_name(leaf), int(leaf.get_device())
    nbytes = leaf.numel() * tensors.ITEM_BYTES[name]
    offset = offset_after(parts.device_bytes.get(device, 0))
    parts.device_bytes[device] = offset + nbytes
    parts.keys.append(("device tensor", name, tuple(leaf.shape)))
    parts.values.append(offset)
    parts.places.append(OnDevice(leaf, device, offset, nbytes))


def _take_host_tensor(leaf: Tensor, parts: _Parts) -> None:
    axes = None if leaf.is_contiguous() else tensors.tensor_order(leaf)
    leaf = leaf if axes is None else leaf.permute(axes)
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
    parts.keys.append((*_permutation(axes), "tensor", name, shape, place is not None))
    if place is None:
        parts.arrays.append(tensors.tensor_bytes(leaf))
    else:
        parts.places.append(place)


def _take_pickled(leaf: object, parts: _Parts) -> None:
    kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}".removeprefix("builtins.")
    # No attribute of a container is read: a subclass of dict may return an item for it, or raise any exception.
    is_container = any(base in type(leaf).__mro__ for base in (dict, list, tuple))
    dtype: object = None if is_container else getattr(leaf, "dtype", None)
    if dtype is not None:
        kind = f"{kind} with the dtype {dtype}"
    if not parts.allow_pickle:
        raise _RefusedError(
            f"has the type {kind}, which only pickle can send. {_REMEDY}, or pass allow_pickle=True on both "
            "sides if they are processes of your own."
        )
    try:
        pickled = dump_by_value(leaf)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise _RefusedError(f"has the type {kind}, which pickle can't send ({error}). {_REMEDY}.") from error
    parts.keys.append(("pickle",))
    parts.values.append(pickled.nbytes)
    parts.blobs.append(pickled)


def _take_values(leaf: PackedValues, parts: _Parts) -> None:
    _add_blob("values", leaf.packed, parts)


def _add_blob(kind: str, blob: bytes | bytearray, parts: _Parts) -> None:
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


_TAKERS: Final[dict[type, Callable[[Any, _Parts], None]]] = {
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
    PackedValues: _take_values,
    **dict.fromkeys(NUMPY_SCALARS, _take_scalar),
}
