"""The sampler of a shuffle: uniform, or by blocks, which the source has or which are equal."""

import numpy as np
from numpy.typing import NDArray

from penstock import _streaming
from penstock._graph import Cache, Combine, Map, Node, Read, Reindex, need_count, verb_text
from penstock.errors import GraphError, UsageError
from penstock.sampling import BlockShuffle, Shuffle, Slice
from penstock.sources import name_of

_DEFAULT_LIVE = 256
_DEFAULT_ROWS = 256


def shuffle_sampler(
    node: Node, count: int, seed: int, *, blocks: bool | int, live: int | None, rows: int | None
) -> Shuffle | BlockShuffle:
    """Return the order of the `count` elements of a node by the arguments of `shuffle`.

    Raises:
        GraphError: the node has no blocks.
        UsageError: an argument is out of its range, or goes with others.
    """
    if blocks is False:
        for name, value in (("live", live), ("rows", rows)):
            if value is not None:
                raise UsageError(
                    f"{name} is an argument of a shuffle by blocks; got {name}={value!r} without blocks. "
                    "Pass blocks=True."
                )
        return Shuffle(count, seed)
    return BlockShuffle(
        _bounds_of(node) if blocks is True else _equal_bounds(count, need_count("blocks", blocks, 1)),
        seed,
        _DEFAULT_LIVE if live is None else live,
        _DEFAULT_ROWS if rows is None else rows,
    )


def _equal_bounds(count: int, size: int) -> NDArray[np.int64]:
    return np.append(np.arange(0, count, size), count)


def _bounds_of(node: Node) -> NDArray[np.int64]:
    """Return the positions at which the blocks of the sources below a node begin, and, last, the node's length.

    Raises:
        GraphError: a source has no blocks, or a step changes the order of its records.
    """
    match node:
        case Read(source=source, length=length):
            return _bounds_of_source(source, length)
        case Map(parent=parent) | Cache(parent=parent):
            return _bounds_of(parent)
        case Combine(parts=parts, value=_streaming.Concatenate()):
            joined: NDArray[np.int64] = np.zeros(1, np.int64)
            for part in parts:
                joined = np.append(joined, _bounds_of(part)[1:] + joined[-1])
            return joined
        case Reindex(parent=parent, sampler=Slice(start=start, step=1, length=length)):
            bounds = _bounds_of(parent)
            return np.unique(np.clip(bounds, start, start + length)) - start if length else np.zeros(1, np.int64)
        case _:
            raise GraphError(
                f"shuffle(blocks=True) needs elements in the order of a source; {verb_text(node)} changes it. Use "
                "shuffle(blocks=True) before it, or pass a number of elements for a block, such as blocks=4096."
            )


def _bounds_of_source(source: object, length: int) -> NDArray[np.int64]:
    """Return the blocks of a source.

    Raises:
        GraphError: it has none.
        UsageError: they don't fit the source.
    """
    blocks = getattr(source, "blocks", None)
    if blocks is None:
        raise GraphError(
            f"shuffle(blocks=True) needs a source with blocks, and {name_of(source)} has none. Pass a number of "
            "elements for a block, such as blocks=4096, or give the source an attribute blocks."
        )
    bounds = np.asarray(blocks)
    if bounds.dtype.kind not in "iu" or bounds.ndim != 1 or not len(bounds) or bounds[-1] != length:
        raise UsageError(
            f"blocks of {name_of(source)} must be integers along one axis, from 0 to its length {length}; got "
            f"{bounds.dtype} of shape {bounds.shape}. List the key at which each block begins, and, last, the length."
        )
    return bounds.astype(np.int64)
