"""The writing end of a pipe, and the templates of elements that it makes in shared memory.

Guarantees:
  - Elements arrive in the order in which they were sent, each once. At most `capacity` are on their way; then `send`
    waits. The reader receives an element whose `send` has returned, also if this process ends at once.
  - Memory is used again: in steady state nothing is allocated, and no page is touched for the first time. It is never
    written to while either process has a view of it.
  - Leaving `with` normally sends the end; leaving it by an exception sends the failure. After the reader has closed,
    the next `send` raises a ClosedError; after it has died, a PeerError, also in a `send` that waits.
  - The slots of a dead reader are used again.

Any thread may call any method; `asend` and `aempty` are for the coroutines of one event loop.
"""

import contextlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, cast, runtime_checkable

import numpy as np

from penstock._memory import Lease, aligned, array_over
from penstock._tensors import dtype_name, is_tensor, tensor_over
from penstock._tree import Element, Structure, flatten, leaf_paths, subject, unflatten
from penstock.errors import ClosedError, UsageError
from penstock.transport._arena import Arena
from penstock.transport._pipe._sender import Sender, WriterCounters
from penstock.transport._pipe._socket import pack_failure

ElementT = TypeVar("ElementT")


class TensorPipeWriter:
    """Sends nested elements to the reader at an address, through shared memory; a context manager.

    Elements are dicts, lists, tuples, named tuples and dataclasses of NumPy arrays, torch tensors on the CPU, Python
    and NumPy scalars, str, bytes and `Bytes`. Memory of the arena (see `empty`), and any view of it, is sent by
    reference. All other arrays and `Bytes` are copied once, into a slot that was used before, or into a new one if the
    element has grown. An element of up to 64 kB is sent through the socket. CUDA tensors are copied, on their device's
    current stream, into slots on the device; the reader opens these once by CUDA IPC, and its stream waits for the
    copy. That requires `allow_pickle=True`, and this process must live as long as the reader uses them.

    Args:
        address: the reader's `address`.
        capacity: the number of elements on their way before `send` waits; at least 1.
        max_bytes: the most shared memory in use, and the most memory of each CUDA device; None for no limit. At the
            limit, `send` waits until the reader drops arrays.
        allow_pickle: whether leaves of other types are pickled, and failures sent as exceptions. Only between processes
            that trust each other.
        arena: shared memory for several pipes that send the same arrays; None creates one, with `max_bytes`.

    Raises:
        UsageError: an argument is wrong, or this system is not Linux.
        PeerError: no reader listens at the address.

    Example:
        >>> import numpy as np
        >>> from penstock.transport import TensorPipeReader, TensorPipeWriter
        >>> with TensorPipeReader() as reader, TensorPipeWriter(reader.address) as writer:
        ...     writer.send({"image": np.zeros((2, 3)), "label": 7})
        ...     reader.receive()
        {'image': array([[0., 0., 0.],
               [0., 0., 0.]]), 'label': 7}
    """

    def __init__(
        self,
        address: str,
        *,
        capacity: int = 2,
        max_bytes: int | None = None,
        allow_pickle: bool = False,
        arena: Arena | None = None,
    ) -> None:
        if capacity < 1:
            raise UsageError(f"capacity must be at least 1 element; got {capacity!r}")
        if arena is not None and max_bytes is not None:
            raise UsageError(f"max_bytes must be set on the arena if arena= is given; got max_bytes={max_bytes!r}")
        self._allow_pickle = allow_pickle
        made = Arena(max_bytes=max_bytes) if arena is None else arena
        self._sender = Sender(address, made, capacity=capacity, allow_pickle=allow_pickle, owns_arena=arena is None)

    def send(self, element: object, *, timeout_seconds: float | None = None) -> None:
        """Send an element; wait while `capacity` elements are on their way, or all memory up to `max_bytes` is in use.

        You may change the element as soon as this returns, except arrays of `empty`: the reader sees later writes to
        those.

        Args:
            element: the element.
            timeout_seconds: the longest wait; None for no limit.

        Raises:
            UsageError: a leaf can't be sent (its path is named), the element needs more than `max_bytes`, or the wait
                can't end, as the reader is in this same thread, the only one.
            ClosedError: the reader closed the pipe, or this end is closed.
            PeerError: the reader failed or died.
            TimeoutError: it took longer; nothing was sent.

        Example:
            >>> from penstock.transport import TensorPipeReader, TensorPipeWriter
            >>> with TensorPipeReader() as reader, TensorPipeWriter(reader.address) as writer:
            ...     writer.send([1, "two"])
            ...     reader.receive()
            [1, 'two']
        """
        self._sender.operations.run(self._sender.sending(element), timeout_seconds)

    async def asend(self, element: object) -> None:
        """Send as `send` does, from a coroutine; its waits don't block the event loop.

        The copy into shared memory does block it.

        Raises:
            UsageError: as for `send`.
            ClosedError: as for `send`.
            PeerError: as for `send`.
        """
        await self._sender.operations.run_async(self._sender.sending(element))

    def empty(self, like: ElementT, *, timeout_seconds: float | None = None) -> ElementT:
        """Return an element of the same structure with arrays in shared memory, which `send` sends without a copy.

        Their contents are arbitrary. Views of them (slices, transposes, broadcasts, windows) are sent without a copy,
        too. The memory is used again when every view of it, here and at the reader, was dropped. The reader sees writes
        to it after `send`.

        Args:
            like: an element of NumPy arrays, torch tensors on the CPU, or other objects with `shape` and `dtype`; only
                these two matter.
            timeout_seconds: the longest wait for memory; None for no limit.

        Raises:
            UsageError: a leaf has no shape and dtype (its path is named), or the element needs more than `max_bytes`.
            ClosedError: the reader closed the pipe, or this end is closed.
            PeerError: the reader failed or died.
            TimeoutError: it took longer.

        Example:
            >>> import numpy as np
            >>> from penstock.transport import TensorPipeReader, TensorPipeWriter
            >>> with TensorPipeReader() as reader, TensorPipeWriter(reader.address) as writer:
            ...     batch = writer.empty({"x": np.zeros((512, 512), np.float32)})
            ...     batch["x"][:] = 3
            ...     writer.send(batch)
            ...     writer.counters.copied_bytes, float(reader.receive()["x"].max())
            (0, 3.0)
        """
        template = Template.like(like)
        steps = self._sender.leasing(max(template.size_bytes, 1))
        made: ElementT = template.over(self._sender.operations.run(steps, timeout_seconds))
        return made

    async def aempty(self, like: ElementT) -> ElementT:
        """Return an element as `empty` does, from a coroutine.

        Returns:
            The element.

        Raises:
            UsageError: as for `empty`.
            ClosedError: as for `empty`.
            PeerError: as for `empty`.
        """
        template = Template.like(like)
        steps = self._sender.leasing(max(template.size_bytes, 1))
        made: ElementT = template.over(await self._sender.operations.run_async(steps))
        return made

    @property
    def counters(self) -> WriterCounters:
        """The counts of this writer so far."""
        return self._sender.counters

    @property
    def arena(self) -> Arena:
        """The shared memory; its `counters` show the part in use."""
        return self._sender.arena

    def close(self) -> None:
        """Send the end, and close; the reader still receives all that was sent. Harmless when repeated.

        If the socket is full, it waits for the reader. If another thread is inside `send`, that call ends with a
        ClosedError.

        Raises:
            PeerError: the reader died before it had received all that was sent.
            UsageError: the socket is full, and the reader is in this same thread, the only one.
        """
        with contextlib.suppress(ClosedError):  # a reader that has closed needs no end
            self._sender.operations.close(self._sender.ending())

    def fail(self, error: BaseException) -> None:
        """Close with a failure: the reader raises the error once it has received all that was sent before.

        Args:
            error: sent as type, message and traceback; with `allow_pickle`, the reader raises the exception itself.
        """
        described = pack_failure(error, allow_pickle=self._allow_pickle)
        self._sender.fail(described)
        with contextlib.suppress(Exception):  # of the pipe or the reader: the caller has an error already
            self._sender.operations.close(self._sender.ending())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if error is None:
            self.close()
        else:
            self.fail(error)

    def __del__(self) -> None:
        sender = getattr(self, "_sender", None)
        if sender is not None and not sender.operations.closed and sender.operations.mine:
            warnings.warn(
                "a TensorPipeWriter was dropped without close(); use `with`", ResourceWarning, stacklevel=2, source=self
            )

    def __repr__(self) -> str:
        return f"TensorPipeWriter(to process {self._sender.reader_pid}, {self._sender.counters.messages} messages sent)"


@runtime_checkable
class Shaped(Protocol):
    """An object with a shape and a dtype."""

    @property
    def shape(self) -> Sequence[int]: ...

    @property
    def dtype(self) -> object: ...


@dataclass(frozen=True, slots=True)
class Template:
    """The structure of an element, and the place of each of its arrays.

    Attributes:
        structure: the structure of the element.
        leaves: examples of the leaves; only their shape and dtype matter.
        starts: the start of each leaf, in bytes; multiples of 64.
        size_bytes: the size of all leaves together.
    """

    structure: Structure
    leaves: tuple[Shaped, ...]
    starts: tuple[int, ...]
    size_bytes: int

    @classmethod
    def like(cls, element: Element) -> Self:
        """Return the template of an element.

        Raises:
            UsageError: a leaf has no shape and dtype, or holds Python objects.
        """
        leaves, structure = flatten(element)
        starts: list[int] = []
        size = 0
        for leaf, path in zip(leaves, leaf_paths(structure), strict=True):
            starts.append(size)
            size += aligned(_size_bytes(leaf, path))
        return cls(structure, tuple(leaves), tuple(starts), size)

    def over(self, memory: Lease) -> Element:
        """Return an element of this structure over memory, with the memory's contents."""
        return unflatten(
            self.structure, [_over(memory, leaf, start) for leaf, start in zip(self.leaves, self.starts, strict=True)]
        )


def _size_bytes(leaf: object, path: str) -> int:
    if is_tensor(leaf):
        tensor = cast("Any", leaf)
        return int(tensor.numel() * tensor.element_size())
    if not isinstance(leaf, Shaped) or _dtype(leaf).hasobject:
        raise UsageError(
            f"`like` must hold arrays, or objects with a shape and a dtype without Python objects; {subject(path)} is "
            f"{type(leaf).__qualname__}. Send it beside the arrays: {{**writer.empty(arrays), 'name': name}}."
        )
    return int(np.prod(leaf.shape, dtype=np.int64)) * _dtype(leaf).itemsize


def _dtype(leaf: Shaped) -> np.dtype[Any]:
    return np.dtype(cast("np.dtype[Any]", leaf.dtype))


def _over(memory: Lease, leaf: Shaped, start: int) -> object:
    if is_tensor(leaf):
        tensor = cast("Any", leaf)
        end = start + tensor.numel() * tensor.element_size()
        return tensor_over(memoryview(cast("bytes", memory))[start:end], dtype_name(tensor), tuple(leaf.shape))
    return array_over(memory, tuple(leaf.shape), _dtype(leaf), start_bytes=start)
