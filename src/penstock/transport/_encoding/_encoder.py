"""The encoder: it makes a head, a description if the layout is new, and the data to write into memory.

A layout is computed once for each structure with the kind, dtype, shape and order of each leaf, and cached while it is
among the last used ones. One thread at a time uses an encoder; any thread may write its results.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._memory import aligned
from penstock._pickles import Pickled
from penstock._tree import subject
from penstock.errors import UsageError
from penstock.transport._encoding._containers import leaf_path, reason_for_leaf, take_apart
from penstock.transport._encoding._description import Node, describe, parse
from penstock.transport._encoding._layout import FORM, START, ArrayLeaf, Layout, LeafKey, TensorLeaf
from penstock.transport._encoding._leaves import Parts, RefusedError, take

MAX_LAYOUTS: Final = 256  # a decoder keeps far more
_LARGE_BYTES: Final = 65_536  # larger blobs are copied by NumPy, which starts more slowly and releases the GIL


@dataclass(frozen=True, slots=True)
class _Known:
    """A layout, the start of its heads, and the starts of the copied arrays."""

    layout: Layout
    head_start: bytes
    starts: tuple[int, ...]


class Encoded(NamedTuple):
    """An element that is ready to send; it keeps the leaves alive.

    Attributes:
        head: the layout's id, numbers, and the sizes of data of variable size.
        description: the description of a new layout, which receivers must learn before they decode; else None.
        size_bytes: the memory that `write_into` needs; may be 0.
        places: the results of `locate` for the leaves that are not copied, in order, and an `OnDevice` for each tensor
            on a device: the sender copies it into a device slot, and sends the slot's place instead.
        leaves: all leaves, to keep them alive.
        arrays: the arrays that are copied.
        starts: the start of each of them in memory.
        blobs: bytes, and the start of each after the arrays.
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
            np.ndarray(array.shape, array.dtype, memory, start, None, order)[...] = array
        view = memory.data
        for start, blob in self.blobs:
            if len(blob) < _LARGE_BYTES:
                view[start : start + len(blob)] = blob
            else:
                memory[start : start + len(blob)] = np.frombuffer(blob, np.uint8)


class Encoder:
    """Makes messages of elements.

    Args:
        allow_pickle: pickle leaves of other types, and instances of subclasses of dict, list and tuple, and send CUDA
            tensors in device slots.
        locate: called for arrays, tensors and `Bytes`, with the lowest address and the size in bytes that one spans. If
            it returns a place, the leaf is sent by that place instead of being copied. It isn't called for arrays that
            own their memory.
        least_located_bytes: it isn't called for smaller leaves either.

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
        locate: Callable[[int, int], object | None] | None = None,
        least_located_bytes: int = 0,
    ) -> None:
        self._allow_pickle = allow_pickle
        self._locate = locate
        self._least_located_bytes = max(least_located_bytes, 1)
        self._known: OrderedDict[tuple[Node, tuple[LeafKey, ...]], _Known] = OrderedDict()
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
        leaves: list[object] = []
        node = take_apart(element, leaves, keeps_types=self._allow_pickle)
        parts = Parts(self._allow_pickle, self._locate, self._least_located_bytes, [], [], [], [], [], {})
        try:
            take(leaves, parts)
        except RefusedError as refused:
            position = len(parts.keys)
            reason = reason_for_leaf(leaves[position])
            path = subject(leaf_path(node, position))
            raise UsageError(f"{path} {refused}{reason and f' ({reason})'}") from refused.__cause__
        key = (node, tuple(parts.keys))
        known = self._known.get(key)
        description = None
        if known is None:
            known = self._add(key)
            description = known.layout.description
        else:
            self._known.move_to_end(key)
        layout = known.layout
        head = known.head_start + layout.values.pack(*parts.values)
        blobs: tuple[tuple[int, bytes | bytearray | memoryview], ...] = ()
        end = layout.fixed_bytes
        if parts.blobs:
            blobs, end = _placed(parts.blobs, end)
            self._pickled += sum(isinstance(blob, Pickled) for blob in parts.blobs)
        return Encoded(head, description, end, tuple(parts.places), leaves, parts.arrays, known.starts, blobs)

    def _add(self, key: tuple[Node, tuple[LeafKey, ...]]) -> _Known:
        layout = parse(describe(*key))  # as the receiver computes it
        self._layouts += 1
        starts = [leaf.start for leaf in layout.leaves if isinstance(leaf, ArrayLeaf | TensorLeaf)]
        head_start = START.pack(FORM, layout.id)
        known = self._known[key] = _Known(layout, head_start, tuple(start for start in starts if start is not None))
        if len(self._known) > MAX_LAYOUTS:
            self._known.popitem(last=False)
        return known


def _placed(
    blobs: list[bytes | bytearray | memoryview | Pickled], end: int
) -> tuple[tuple[tuple[int, bytes | bytearray | memoryview], ...], int]:
    """Return the start of each piece of the blobs, and their end."""
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
