"""Tokens in shards: Megatron's pair of files, one with all tokens, the other with the length of each document.

The layout of the index is described in `sources/_megatron.py`, which reads both files. Each element is a document of
one sequence.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Self, cast

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._tree import is_array
from penstock._writing._drafts import Draft
from penstock.errors import UsageError

_CODES: Final[Mapping[str, int]] = {"|u1": 1, "|i1": 2, "<i2": 3, "<i4": 4, "<i8": 5, "<u2": 8}
_OF_LISTS: Final = "<i4"


@frozen
class TokenPairs:
    """The tokens of the elements, one after the other, and their lengths.

    Attributes:
        dtype: the dtype of the tokens in the files.
    """

    dtype: str
    suffixes: tuple[str, ...] = (".bin", ".idx")

    @classmethod
    def of(cls, positions: Sequence[int], sample: Sequence[object]) -> Self:
        """Return the format for elements like those of a sample.

        Raises:
            UsageError: the elements are no tokens, or have several dtypes.
        """
        found: dict[str, int] = {}
        for position, element in zip(positions, sample, strict=True):
            _need_tokens(element, position)
            found.setdefault(element.dtype.newbyteorder("<").str if is_array(element) else _OF_LISTS, position)
        dtype, *others = found or {_OF_LISTS: 0}
        if others:
            raise UsageError(
                f"all tokens must have one dtype; the element at position {found[dtype]} has {np.dtype(dtype)}, that "
                f"at position {found[others[0]]} has {np.dtype(others[0])}. Convert them in a map, with astype."
            )
        if dtype not in _CODES:
            raise UsageError(
                f"tokens must be of {', '.join(str(np.dtype(known)) for known in _CODES)}; the element at position "
                f"{found[dtype]} has {np.dtype(dtype)}. Convert it in a map, with astype('int64')."
            )
        return cls(dtype)

    def size_of(self, element: Sequence[int], _: int) -> int:
        """Return the bytes of the tokens."""
        return len(element) * np.dtype(self.dtype).itemsize

    def write(self, blocks: Iterable[tuple[int, Sequence[object]]], drafts: Sequence[Draft]) -> None:
        """Write the tokens, and then the index."""
        tokens, index = drafts
        sizes: list[int] = []
        for begin, elements in blocks:
            arrays = [self._tokens(element, position) for position, element in enumerate(elements, begin)]
            sizes += map(len, arrays)
            tokens.write(np.concatenate(arrays).tobytes())
        index.write(_index(np.array(sizes, np.int64), np.dtype(self.dtype)))

    def _tokens(self, element: object, position: int) -> NDArray[Any]:
        """Return the tokens of an element in the dtype of the files.

        Raises:
            UsageError: it has others.
        """
        if is_array(element) and element.dtype == self.dtype and element.ndim == 1:
            return element
        _need_tokens(element, position)
        dtype = np.dtype(self.dtype)
        tokens = np.asarray(element)
        limits = np.iinfo(dtype)
        if len(tokens) and (int(tokens.min()) < limits.min or int(tokens.max()) > limits.max):
            raise UsageError(
                f"tokens must fit into {dtype}, the dtype of the first elements; those at position {position} are in "
                f"[{tokens.min()}, {tokens.max()}]. Convert all in a map, with astype."
            )
        return tokens.astype(dtype)


def _need_tokens(element: object, position: int) -> None:
    if is_array(element):
        described, are_tokens = f"{element.dtype} of shape {element.shape}", element.ndim == 1 and _is_integer(element)
    else:
        described = f"of type {type(element).__name__}"
        are_tokens = isinstance(element, list | tuple) and _are_integers(cast("Sequence[object]", element))
    if not are_tokens:
        raise UsageError(
            f"an element of tokens must be an array of integers with one axis, or a list of ints; the one at position "
            f'{position} is {described}. Choose the tokens in a map, as in .map(lambda element: element["ids"]).'
        )


def _are_integers(values: Sequence[object]) -> bool:
    return not values or _is_integer(np.asarray(values))


def _is_integer(array: NDArray[Any]) -> bool:
    return array.ndim == 1 and array.dtype.kind in "iu"


def _index(sizes: NDArray[np.int64], dtype: np.dtype[Any]) -> bytes:
    """Return the index of documents of these sizes."""
    header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, _CODES[dtype.str], len(sizes), len(sizes) + 1)
    ends = np.cumsum(sizes) * dtype.itemsize
    arrays = sizes.astype("<i4"), (ends - sizes * dtype.itemsize).astype("<i8"), np.arange(len(sizes) + 1, dtype="<i8")
    return header + b"".join(array.tobytes() for array in arrays)
