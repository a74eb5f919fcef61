"""The template of an element: the place of each of its arrays in one piece of memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, cast, runtime_checkable

import numpy as np

from penstock._memory import Lease, aligned, array_over
from penstock._tree import Element, Structure, flatten, leaf_paths, subject, unflatten
from penstock.errors import UsageError
from penstock.transport._encoding import dtype_name, is_tensor, tensor_over


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
        leaves: examples of the leaves; only shape and dtype matter.
        starts: the start of each, in bytes; multiples of 64.
        size_bytes: the size of all of them together.
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
        """Return an element over memory; its contents are those of the memory."""
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
