"""The decoder: it makes an element from the head and the memory of a message, or raises a MessageError.

The decoder trusts nothing. Whatever the head, the description and the memory contain, it reads nothing outside the
memory, and copies no more than the memory's size, because it checks every start, size and count before it uses it. With
`allow_pickle` it trusts the sender.
"""

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

import numpy as np

from penstock import _tensors as tensors
from penstock._memory import aligned
from penstock._pickles import load
from penstock._strides import copied_items
from penstock.errors import MessageError, UsageError
from penstock.transport._bytes import Bytes
from penstock.transport._encoding._containers import Builder, builder_of
from penstock.transport._encoding._device_tensors import DevicePlace, Tensor
from penstock.transport._encoding._dtypes import check_text
from penstock.transport._encoding._layout import (
    FORM,
    START,
    ArrayLeaf,
    DeviceLeaf,
    Layout,
    SimpleLeaf,
    TensorLeaf,
    first_item_bytes,
    parse_description,
)
from penstock.transport._encoding._values import unpack_values

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST_COPIED_BYTES: Final = 65_536  # a label that the reader keeps must not keep the memory of its image
_MAX_LAYOUTS: Final = 4_096  # those that were not used for longest are forgotten; more than an encoder keeps
_MAX_LEAVES: Final = 1 << 18  # of these layouts together; more than an encoder keeps
_EVERYTHING: Final = 1 << 63


@dataclass(slots=True)
class _Learned:
    """A layout, and the function that builds its elements; None until an element is decoded."""

    layout: Layout
    builder: Builder | None = None


class Unreadable:
    """Takes the place of a pickled leaf that can't be rebuilt in this process. It is a leaf, so it is no dataclass.

    Attributes:
        error: the reason.
    """

    def __init__(self, error: MessageError) -> None:
        self.error = error


class Decoder:
    """Makes elements from messages. One thread at a time may use it.

    Args:
        allow_pickle: unpickle pickled leaves, import types that aren't registered, and open device slots: only for
            messages from processes of your own.
        keeps_unreadable: put an `Unreadable` in the place of a pickled leaf that can't be rebuilt, and raise no error.

    Attributes:
        has_unreadable: whether an element had such a leaf.

    Example:
        >>> from penstock.transport._encoding import Encoder
        >>> encoded = Encoder().encode(["a", 1])
        >>> memory = np.empty(encoded.size_bytes, np.uint8)
        >>> encoded.write_into(memory)
        >>> decoder = Decoder()
        >>> decoder.learn(encoded.description)
        >>> decoder.decode(encoded.head, memory, encoded.places)
        ['a', 1]
    """

    def __init__(self, *, allow_pickle: bool = False, keeps_unreadable: bool = False) -> None:
        self.has_unreadable = False
        self._allow_pickle = allow_pickle
        self._keeps_unreadable = keeps_unreadable
        self._learned: OrderedDict[bytes, _Learned] = OrderedDict()
        self._learned_leaves = 0

    def learn(self, description: bytes) -> None:
        """Learn the layout of a description, so that messages with its id can be decoded; it may be repeated.

        Raises:
            MessageError: `description` isn't a description of this version.
        """
        layout = parse_description(bytes(description))
        if layout.id not in self._learned:
            self._learned[layout.id] = _Learned(layout)
            self._learned_leaves += len(layout.leaves)
            while len(self._learned) > _MAX_LAYOUTS or (self._learned_leaves > _MAX_LEAVES and len(self._learned) > 1):
                _, oldest = self._learned.popitem(last=False)
                self._learned_leaves -= len(oldest.layout.leaves)
        self._learned.move_to_end(layout.id)

    def decode(self, head: bytes, memory: object, places: Sequence[object], *, copy: bool = False) -> object:
        """Return the element of a message.

        Args:
            head: the message's head.
            memory: a contiguous buffer of at least the message's size. Arrays of more than 65,536 bytes are views that
                keep it alive, and are writable if it is; others are private copies. The same holds for a `Bytes`, but
                it is always read-only.
            places: for each leaf that was sent by reference, a buffer that starts with it; the leaf is a view of it, of
                any size. For each leaf in a device slot, a `DevicePlace`.
            copy: make private copies of all leaves.

        Returns:
            The element.

        Raises:
            MessageError: the message is truncated, damaged or of another version, its layout was not learned or was
                forgotten, or it needs a type or pickle that is not allowed here.
            UsageError: the message has a CUDA tensor of this same process.
        """
        if len(head) < START.size or not head.startswith(FORM):
            raise MessageError(f"a message's head must have version {FORM[-1]}; got {bytes(head[:8])!r}…")
        learned = self._learned.get(head[len(FORM) : START.size])
        if learned is None:
            raise MessageError("this message's layout is not known here: its description must be learned first")
        self._learned.move_to_end(learned.layout.id)
        if learned.builder is None:
            learned.builder = builder_of(learned.layout.tree, allow_pickle=self._allow_pickle)
        copied_bytes = _EVERYTHING if copy else LARGEST_COPIED_BYTES
        message = _Message(
            learned.layout,
            head,
            cast("memoryview", memory),
            _bytes_of(memory),
            copied_bytes,
            self._allow_pickle,
            self._kept if self._keeps_unreadable else None,
        )
        try:
            return learned.builder(iter(_leaves(message, places)))
        except (MessageError, UsageError):
            raise
        except (ValueError, TypeError, OverflowError, MemoryError) as error:
            raise MessageError(f"this message is damaged ({type(error).__name__}: {error})") from error

    def _kept(self, error: MessageError) -> Unreadable:
        self.has_unreadable = True
        return Unreadable(error)


class _Message(NamedTuple):
    """A message that is being decoded.

    Attributes:
        memory: any object with the buffer protocol; NumPy's type stubs require `memoryview`.
        view: all of it, as bytes.
        unreadable: returns what takes the place of a leaf that can't be rebuilt; None if the error is raised.
    """

    layout: Layout
    head: bytes
    memory: memoryview
    view: memoryview
    copied_bytes: int
    allow_pickle: bool
    unreadable: Callable[[MessageError], Unreadable] | None


def _leaves(message: _Message, places: Sequence[object]) -> list[object]:
    """Return the leaves of a message, in order.

    Raises:
        MessageError: the sizes of its head, its memory and its places don't fit its layout.
    """
    layout, head, size_bytes = message.layout, message.head, message.view.nbytes
    head_bytes = START.size + layout.values.size
    if len(head) < head_bytes or size_bytes < layout.fixed_bytes or len(places) != layout.num_places:
        raise MessageError(
            f"this message is truncated: it has a head of {len(head)} bytes, {size_bytes} bytes of memory and "
            f"{len(places)} places; its layout needs {head_bytes}, {layout.fixed_bytes} and {layout.num_places}"
        )
    values, next_places, end = iter(layout.values.unpack_from(head, START.size)), iter(places), layout.fixed_bytes
    leaves: list[object] = []
    for leaf in layout.leaves:
        if isinstance(leaf, DeviceLeaf):
            leaves.append(_on_device(leaf, next(next_places), next(values), message))
        elif not isinstance(leaf, SimpleLeaf):
            leaves.append(
                _array(leaf, message) if leaf.start is not None else _referred(leaf, next(next_places), message)
            )
        elif leaf.kind in _FROM_HEAD:
            leaves.append(_FROM_HEAD[leaf.kind](values))
        elif leaf.by_reference:
            size_bytes, place = next(values), next(next_places)
            there = _at_place(place, size_bytes, message)
            leaves.append(_handle(there.view[:size_bytes], there.copied_bytes))
        else:
            start = aligned(end) if leaf.kind in _ALIGNED else end
            end = start + next(values)
            leaves.append(_sized(leaf.kind, _part(message.view, start, end), message))
    if head_bytes != len(head):
        raise MessageError(f"this message's head has {len(head) - head_bytes} bytes too many")
    return leaves


def _array(leaf: ArrayLeaf | TensorLeaf, message: _Message) -> object:
    """Return an array, scalar or tensor from the message's memory, which the caller found large enough."""
    start = leaf.start or 0
    if leaf.axes is not None:
        return _permuted(leaf, leaf.axes, message)
    if leaf.strides is not None:
        return _strided(leaf, leaf.strides, message)
    if isinstance(leaf, TensorLeaf):
        return _tensor(leaf, message.view[start : start + leaf.nbytes], message)
    if not leaf.nbytes:
        return np.empty(leaf.shape, leaf.dtype, leaf.order)
    array = np.ndarray(leaf.shape, leaf.dtype, message.memory, start, None, leaf.order)
    if leaf.has_text and not message.allow_pickle:
        check_text(array)
    if leaf.is_scalar:
        scalar: object = copied_items(array, "C")[()]
        return scalar
    return copied_items(array, leaf.order) if leaf.nbytes <= message.copied_bytes else array


def _permuted(leaf: ArrayLeaf | TensorLeaf, axes: tuple[int, ...], message: _Message) -> object:
    contiguous: Any = _array(dataclasses.replace(leaf, axes=None), message)
    return contiguous.permute(axes) if isinstance(leaf, TensorLeaf) else contiguous.transpose(axes)


def _strided(leaf: ArrayLeaf | TensorLeaf, strides: tuple[int, ...], message: _Message) -> object:
    """Return an array or tensor with strides at the start of the message's memory, which the caller found large enough.

    A private copy takes no more memory than the leaf spans, even if its strides repeat items.

    Raises:
        MessageError: torch is missing here, or refuses the tensor.
    """
    if isinstance(leaf, TensorLeaf):
        span = message.view[: leaf.nbytes]
        private = leaf.nbytes <= message.copied_bytes or span.readonly
        try:
            return tensors.strided_tensor_over(span, leaf.dtype, leaf.shape, strides, private=private)
        except (ImportError, AttributeError, RuntimeError) as error:
            raise MessageError(f"this message has a torch tensor, which can't be made here ({error})") from error
    if not leaf.nbytes:
        return np.empty(leaf.shape, leaf.dtype)
    private, start = leaf.nbytes <= message.copied_bytes, first_item_bytes(leaf.shape, strides)
    is_copied = private and math.prod(leaf.shape) * leaf.dtype.itemsize > leaf.nbytes
    memory = np.frombuffer(message.view, np.uint8, leaf.nbytes).copy() if is_copied else message.memory
    array: NDArray[Any] = np.ndarray(leaf.shape, leaf.dtype, memory, start, strides)
    return copied_items(array, "C") if private and not is_copied else array


def _referred(leaf: ArrayLeaf | TensorLeaf, place: object, message: _Message) -> object:
    """Return an array or tensor that was sent by reference, from the start of its place.

    Raises:
        MessageError: the place is too small.
    """
    return _array(dataclasses.replace(leaf, start=0), _at_place(place, leaf.nbytes, message))


def _at_place(place: object, size_bytes: int, message: _Message) -> _Message:
    """Return the message with a place instead of its memory.

    Raises:
        MessageError: the place is too small.
    """
    view = _bytes_of(place)
    if view.nbytes < size_bytes:
        raise MessageError(f"a place has {view.nbytes} bytes; its leaf needs {size_bytes}")
    # Even a small leaf isn't copied, because the reader sees the writer's later writes to such a leaf.
    copied_bytes = message.copied_bytes if message.copied_bytes == _EVERYTHING else -1
    return message._replace(memory=cast("memoryview", place), view=view, copied_bytes=copied_bytes)


def _tensor(leaf: TensorLeaf, chunk: memoryview, message: _Message) -> object:
    # Torch has no read-only tensors, so read-only memory is copied.
    private = leaf.nbytes <= message.copied_bytes or chunk.readonly
    try:
        return tensors.tensor_over(bytearray(chunk) if private else chunk, leaf.dtype, leaf.shape)
    except (ImportError, AttributeError, RuntimeError) as error:
        raise MessageError(f"this message has a torch tensor, which can't be made here ({error})") from error


def _on_device(leaf: DeviceLeaf, place: object, offset_bytes: int, message: _Message) -> object:
    if not message.allow_pickle:
        raise MessageError(
            "this message has a CUDA tensor. Pass allow_pickle=True if its sender is a process of your own."
        )
    if not isinstance(place, DevicePlace):
        raise MessageError(
            "a CUDA tensor must be in a device slot that was sent before; this message names no such slot"
        )
    try:
        tensor = place.slot.tensor(place.lease, leaf.dtype, leaf.shape, offset_bytes, leaf.nbytes)
    except (ImportError, AttributeError, RuntimeError) as error:
        raise MessageError(f"this message has a CUDA tensor, which can't be opened here ({error})") from error
    return cast("Tensor", tensor).clone() if message.copied_bytes == _EVERYTHING else tensor


def _handle(chunk: memoryview, copied_bytes: int) -> Bytes:
    if chunk.nbytes > copied_bytes:
        return Bytes(chunk.toreadonly())
    private = np.frombuffer(chunk, np.uint8).copy()  # unlike `bytes(chunk)`, this copies without the GIL
    private.flags.writeable = False
    return Bytes(private)


def _sized(kind: str, chunk: memoryview, message: _Message) -> object:
    if kind == "handle":
        return _handle(chunk, message.copied_bytes)
    if kind != "pickle":
        return _FROM_BYTES[kind](chunk)
    if not message.allow_pickle:
        raise MessageError(
            "this message has a leaf that must be unpickled. Pass allow_pickle=True if its sender is a process of your "
            "own."
        )
    try:
        return load(chunk, copied_bytes=message.copied_bytes)
    except MessageError as error:
        if message.unreadable is None:
            raise
        return message.unreadable(error)


_Buffer = TypeVar("_Buffer", bytes, memoryview)


def _part(whole: _Buffer, start: int, end: int) -> _Buffer:
    if end > len(whole):
        raise MessageError(f"this message is truncated: it has {len(whole)} bytes where {end} are needed")
    return whole[start:end]


def _bytes_of(memory: object) -> memoryview:
    view = memoryview(cast("bytes", memory))  # any object with the buffer protocol
    return view.cast("B") if view.nbytes else memoryview(b"")


def _none(_values: Iterator[Any]) -> None:
    return None


def _complex(values: Iterator[Any]) -> complex:
    return complex(next(values), next(values))


def _str(chunk: memoryview) -> str:
    return str(chunk, "utf-8", "surrogatepass")


def _integer(chunk: memoryview) -> int:
    return int.from_bytes(chunk, "little", signed=True)


def _numpy_str(chunk: memoryview) -> np.str_:
    return np.str_(_str(chunk))


def _numpy_bytes(chunk: memoryview) -> np.bytes_:
    return np.bytes_(bytes(chunk))


_FROM_HEAD: Final[Mapping[str, Callable[[Iterator[Any]], object]]] = {
    "none": _none,
    "bool": next,
    "int": next,
    "float": next,
    "complex": _complex,
}
_ALIGNED: Final = frozenset({"handle", "pickle"})
_FROM_BYTES: Final[Mapping[str, Callable[[memoryview], object]]] = {
    "str": _str,
    "bytes": bytes,
    "bytearray": bytearray,
    "integer": _integer,
    "numpy str": _numpy_str,
    "numpy bytes": _numpy_bytes,
    "values": unpack_values,
}
