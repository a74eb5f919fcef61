"""The order of a shuffle that has few blocks open at a time: a bijection of [0, length), computed per position.

The problem: records are stored in blocks (row groups of Parquet, members of a tar file that are read together, objects
in a store), and a block costs as much to read as all its records. A uniform shuffle reads a block for each record. A
shuffle buffer, or the shuffle of whole blocks, costs less, but leaves neighbours together, has no position that a
resume could start from, and mixes worse where the reads are as few.

The solution, *lanes*: the blocks form a line, in random order. The line is cut into lanes of equal length, and each
round of the shuffle takes one record from each lane, the lanes in another order in each round. So exactly as many
blocks are open as there are lanes, every block is read from its begin to its end while it is open, and any two records
of different lanes may meet in a batch. A lane begins in the middle of a block, another place in each lane, so that the
blocks don't all end in one round; a block that a border cuts is two *pieces*. Within a piece the order is random.

The lanes form *columns*, which have the same rows of each batch. Ranks that take consecutive rows of a batch read from
their own columns, so each block is read by one rank, but for those that a border cuts. A block keeps its column in
every epoch, and is in another place of it each time: a rank that caches its columns reads nothing twice.

The law behind the choice of the number of lanes: the mean of a sorted feature over a batch of b records has
max(1, b / lanes) times the variance that it has under a uniform shuffle, whatever the form of the shuffle (measured in
`benchmarks`, scenario `shuffle-blocks`). So as many lanes as a batch has rows are enough for single batches.

Rejected: windows of blocks (levanter's: the mixing at half of the blocks in memory), buffers (a state as large as the
buffer), and a list of shuffled positions (memory).

Invariants: every epoch is an exact permutation, for any blocks; a column has the same keys in all epochs; a position
costs a search among the pieces.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from penstock import _native
from penstock._frozen import frozen
from penstock._seeds import derive, derive_block
from penstock.errors import UsageError
from penstock.sampling._arguments import array_digest, check_position, checked_integer, checked_seed, int64_block
from penstock.sampling._permutation import Permutation, by_epoch
from penstock.sampling._sampler import OrderFacts, OwnSampler

_MAX_COLUMNS: Final = 64
_MAX_LIVE: Final = 1 << 24
_MANY_BLOCKS: Final = 1 << 14  # an epoch of more takes up to 16 bytes a block in each entry of the cache


@frozen(cached=True)
class BlockShuffle(OwnSampler):
    """All elements in another order every epoch, which reads each block once, and has about `live` of them open.

    It is a value: two are equal if their fields are. It holds 24 bytes a block, and 16 more for each of the last
    epochs, which are cached. To prepare an epoch takes less than a microsecond a block, and about 80 bytes meanwhile.
    The order is a compatibility promise: it is the same on every machine.

    The order, for an epoch e of n elements, with `derive` and `Permutation` of this package:

    - *Columns.* K is the largest common divisor of `rows` and `live` up to 64. With w = rows / K, position p is in
      column c = (p mod rows) div w, at place u = (p div rows) * w + p mod w; a last batch that isn't full fills the
      first columns.
    - *Line.* The blocks are in the order of Permutation(blocks, derive(seed, "line")), and each column has the next
      part of this line, as long as it has positions. So a border of columns cuts a block into two pieces.
    - *Epoch.* Within a column the pieces are sorted by derive(derive(seed, e, "order"), i) of their number i in the
      line.
    - *Lanes.* A column has g = live / K lanes, consecutive parts of it, the first ones longer by one where its
      length L isn't divisible. Round r = u div g takes one record of each lane, in the order of
      F(g, derive(derive(seed, e, "lane"), c, r)); the last round, which isn't full, of the longer lanes.
    - *Phase.* Lane l begins at its place floor(l * S / g) modulo its length, where S is the mean length of a block, and
      wraps around.
    - *Pieces.* The record is in the part of a piece that is within the lane and on one side of its phase. With its
      first key b and its length m, place i of it has the key b + F(m, derive(derive(seed, e, "piece"), b))(i).

    F(length, seed) is the network that the docstring of `Permutation` describes, here for every length, with the round
    keys mix(seed + j * GOLDEN) >> 32 for j from 1 to 8.

    Attributes:
        bounds: int64 of shape (blocks + 1,): the key at which each block begins, and, last, the length. It begins with
            0 and never decreases. It is copied, and the copy is read-only.
        seed: from 0 to 2**64 - 1.
        live: the number of blocks that are open at a time, from 1 to 2**24. Default 256.
        rows: of a global batch, at least 1. Default 256. Up to K ranks read blocks of their own. Another batch size
            later keeps the order, but then several ranks may read the same blocks.

    Raises:
        UsageError: if one of them is out of range.

    Example:
        >>> shuffle = BlockShuffle(np.array([0, 4, 8, 12]), seed=7, live=1, rows=1)
        >>> keys = [shuffle(0, position)[1] for position in range(12)]
        >>> sorted(keys) == list(range(12))
        True
        >>> [key // 4 for key in keys[:4]]  # one block at a time
        [2, 2, 2, 2]
    """

    bounds: NDArray[np.int64]
    seed: int
    live: int = 256
    rows: int = 256

    def __penstock_order__(self) -> OrderFacts:
        return OrderFacts(takes_once=True, keeps_all=True)

    def __penstock_reach__(self) -> int | None:
        return len(self)

    def __penstock_reseeded__(self, change: Callable[[int], int]) -> Self:
        return replace(self, seed=change(self.seed))

    def __post_init__(self) -> None:
        object.__setattr__(self, "bounds", _checked_bounds(self.bounds))
        object.__setattr__(self, "seed", checked_seed(self.seed))
        live = checked_integer("live", self.live, range(1, _MAX_LIVE + 1), f"[1, {_MAX_LIVE}]. Pass a number of blocks")
        object.__setattr__(self, "live", live)
        rows = checked_integer("rows", self.rows, range(1, 1 << 40), "[1, 2**40). Pass the size of your global batch")
        object.__setattr__(self, "rows", rows)

    @cached_property
    def columns(self) -> int:
        """The number of columns: the largest common divisor of `rows` and `live` up to 64."""
        common = math.gcd(self.rows, self.live)
        return next(columns for columns in range(_MAX_COLUMNS, 0, -1) if common % columns == 0)

    def __len__(self) -> int:
        """Return the number of positions per epoch."""
        return int(self.bounds[-1])

    def __call__(self, epoch: int, position: int, /) -> tuple[int, int]:
        """Return (epoch, key) of one position."""
        return epoch, int(self._keys_in(epoch, np.array([position], np.int64))[0])

    def block(
        self, epochs: NDArray[np.int64], positions: NDArray[np.int64], /
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (epochs, keys) of many positions: int64, all of shape (n,)."""
        return epochs, by_epoch(self._keys_in, epochs, positions)

    def _keys_in(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        lanes = (_large_epoch if len(self.bounds) > _MANY_BLOCKS else _small_epoch)(self, epoch)
        positions = np.ascontiguousarray(positions)
        keys = np.empty_like(positions)
        filled = lanes.keys_at(positions, keys)
        if filled < len(positions):
            check_position(int(positions[filled]), len(self))
        return keys

    @cached_property
    def _digest(self) -> str:
        return array_digest(self.bounds)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BlockShuffle):
            return NotImplemented
        return self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[str, int, int, int]:
        return self._digest, self.seed, self.live, self.rows

    def __repr__(self) -> str:
        blocks = f"<{len(self.bounds) - 1} blocks, {self._digest}>"
        return f"BlockShuffle({blocks}, seed={self.seed}, live={self.live}, rows={self.rows})"

    def __reduce__(self) -> tuple[type[Self], tuple[NDArray[np.int64], int, int, int]]:
        # Through the constructor, since an unpickled array is writable.
        return type(self), (self.bounds, self.seed, self.live, self.rows)


def _checked_bounds(bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    array = int64_block("bounds", bounds).copy()
    if not len(array) or array[0] != 0 or (np.diff(array) < 0).any():
        raise UsageError(
            f"bounds must begin with 0 and never decrease; got {len(array)} numbers, the first {array[:4].tolist()}. "
            "Pass the key at which each block begins, and, last, the length."
        )
    array.flags.writeable = False
    return array


@frozen
class _Line:
    """The pieces of the line: for each its column, the key at which it begins, and its length; int64 arrays."""

    columns: NDArray[np.int64]
    begins: NDArray[np.int64]
    lengths: NDArray[np.int64]


@lru_cache(maxsize=8)  # a large one has megabytes, and is needed once an epoch
def _line(shuffle: BlockShuffle) -> _Line:
    count = len(shuffle.bounds) - 1
    order = Permutation(count, derive(shuffle.seed, "line")).block(np.arange(count))
    lengths = np.diff(shuffle.bounds)[order]
    order, lengths = order[lengths > 0], lengths[lengths > 0]
    starts = np.cumsum(lengths) - lengths
    column_starts = _column_starts(shuffle)
    borders = np.unique(column_starts[column_starts < len(shuffle)])
    cut = starts.searchsorted(borders, side="right") - 1  # the block that a border is in, or before
    borders, cut = borders[starts[cut] < borders], cut[starts[cut] < borders]
    keys = shuffle.bounds[order]
    begins = np.insert(starts, cut + 1, borders)
    at_columns = np.append(begins.searchsorted(column_starts), len(begins))
    return _Line(
        np.repeat(np.arange(shuffle.columns), np.diff(at_columns)),
        np.insert(keys, cut + 1, keys[cut] + borders - starts[cut]),
        np.diff(begins, append=len(shuffle)),
    )


def _column_starts(shuffle: BlockShuffle) -> NDArray[np.int64]:
    batches, rest = divmod(len(shuffle), shuffle.rows)
    rows = np.arange(shuffle.columns) * (shuffle.rows // shuffle.columns)
    return rows * batches + np.minimum(rows, rest)


def _epoch(shuffle: BlockShuffle, epoch: int) -> _native.Lanes:
    """Return the order of an epoch: the pieces of each column in another order."""
    line = _line(shuffle)
    keys = derive_block(derive(shuffle.seed, epoch, "order"), np.arange(len(line.begins)))
    order = np.lexsort((keys[: len(line.begins)], line.columns))
    return _native.Lanes(
        shuffle.rows,
        shuffle.columns,
        shuffle.live // shuffle.columns,
        max(1, len(shuffle) // max(1, len(shuffle.bounds) - 1)),
        np.cumsum(line.lengths[order]),
        line.begins[order],
        derive(shuffle.seed, epoch, "piece"),
        derive(shuffle.seed, epoch, "lane"),
    )


# Parts of a mixture have a few blocks each, and there may be hundreds of them: 64 MiB. Two epochs of a large dataset
# meet where one ends.
_small_epoch = lru_cache(maxsize=256)(_epoch)
_large_epoch = lru_cache(maxsize=4)(_epoch)
