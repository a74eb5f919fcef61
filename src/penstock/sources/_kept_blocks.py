"""Blocks of a source, decoded once for all reads that follow: the unit in which a compressed format is read.

`KeptBlocks` keeps them. Its guarantees:
  - Kept blocks have at most `bound_bytes` in all, unless a single one has more. The least recently used one is dropped
    first.
  - Of several threads that need a block, one decodes it, and the others wait. Different blocks are decoded at the same
    time, also by threads that need all of them (`in_turn`). If the decoding fails, each waiting thread tries by itself,
    and so gets the error itself.
  - A forked child begins without blocks, and waits for no thread of its parent.
  - The exception of a signal's handler ends the decoding, or the wait for it, and leaves nothing locked.
  - Of several processes that have copies of one source, one decodes a block (`_shared_blocks.py`).

`Waste` warns, once, where reads need other blocks than those that are kept.
"""

import copy
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

import numpy as np

from penstock._os import HeldInterrupts, holding_interrupts, renewed_after_fork
from penstock.errors import UsageError
from penstock.sources._shared_blocks import SharedBlocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")
DECODED_BYTES: Final = 256 << 20
_JUDGED: Final = 200  # decoded blocks, after which a warning is due
_WASTEFUL: Final = 20  # decoded records for each that is returned


_BLOCK_BYTES: Final = 1 << 20  # at least, where a file has so many
_LARGEST_BYTES: Final = 64 << 20  # of a block, unless a single chunk has more


def rows_of_blocks(chunk_rows: Collection[int], row_bytes: int) -> int:
    """Return the number of rows to decode at once: of whole chunks, at least 1 MiB, and not far more than 64 MiB.

    Args:
        chunk_rows: the numbers of rows in the chunks of each array; at least one number, each at least 1.
        row_bytes: the size of a row of all arrays, in bytes, at least 1.
    """
    rows = max((rows for rows in chunk_rows if rows * row_bytes <= _LARGEST_BYTES), default=min(chunk_rows))
    return rows * max(1, _BLOCK_BYTES // (rows * row_bytes))


def own(value: object) -> object:
    """Return a row's value as a copy that shares nothing with the block, which later reads must find unchanged.

    Args:
        value: an item of a block's array: an array, a row of fields, or a scalar, which can't be changed.
    """
    if not isinstance(value, np.ndarray | np.void):
        return value
    known = cast("NDArray[Any] | np.void", value)
    return copy.deepcopy(known) if known.dtype.hasobject else known.copy()  # an object may be an array, too


def check_decoded_bytes(decoded_bytes: int) -> None:
    """Check the bound of the blocks that each process keeps.

    Raises:
        UsageError: it is negative.
    """
    if decoded_bytes < 0:
        raise UsageError(f"decoded_bytes must be at least 0; got {decoded_bytes}. Omit it for {DECODED_BYTES:,}.")


class KeptBlocks(Generic[T]):
    """Blocks by number, decoded by one thread each, of which the last used ones are kept.

    Args:
        bound_bytes: what the kept blocks may have in all.
        shared: the blocks that other processes have decoded.
    """

    def __init__(self, bound_bytes: int, shared: SharedBlocks) -> None:
        self._bound_bytes = bound_bytes
        self._shared = shared
        self.renew_after_fork()
        renewed_after_fork(self)

    def renew_after_fork(self) -> None:
        """Begin without blocks."""
        self._lock = threading.Lock()  # guards all below
        self._kept: OrderedDict[int, tuple[T, int]] = OrderedDict()
        self._bytes = 0
        self._opening: dict[int, threading.Lock] = {}  # each is locked until its block was decoded

    def get(self, block: int) -> T | None:
        """Return a block that is kept."""
        with self._lock:
            known = self._kept.get(block)
            if known is None:
                return None
            self._kept.move_to_end(block)
            return known[0]

    def get_all(self, blocks: Sequence[int]) -> list[T | None]:
        """Return blocks that are kept, and None for each other one."""
        with self._lock:
            found = list(map(self._kept.get, blocks))
            for block, known in zip(blocks, found, strict=True):
                if known is not None:
                    self._kept.move_to_end(block)
        return [None if known is None else known[0] for known in found]

    def has(self, block: int) -> bool:
        """Return whether a block is kept; a moment later it may be otherwise."""
        return block in self._kept

    def in_turn(self, blocks: Sequence[int]) -> Iterator[int]:
        """Yield the indices of blocks in the order in which to open them: in theirs, but those that others decode last.

        So several threads or processes that need the same blocks decode different ones, and wait for none of them.
        """
        left = list(range(len(blocks)))
        while left:
            number = next((number for number in left if not self._is_being_decoded(blocks[number])), left[0])
            left.remove(number)
            yield number

    def _is_being_decoded(self, block: int) -> bool:
        """Return whether another thread or process decodes a block; a moment later it may be otherwise."""
        return block in self._opening or self._shared.is_being_decoded(block)

    def opened(self, block: int, decode: Callable[[int], tuple[T, int]]) -> T:
        """Return a block, decoded here, by another thread or by another process."""
        known = self.get(block)
        return self._opened(block, decode) if known is None else known

    @holding_interrupts
    def _opened(self, held: HeldInterrupts, block: int, decode: Callable[[int], tuple[T, int]]) -> T:
        ours = threading.Lock()
        with ours:
            while (known := self.get(block)) is None:
                with self._lock:
                    other = self._opening.get(block)
                    if other is None and block not in self._kept:
                        self._opening[block] = ours
                        break
                if other is not None:
                    _wait_for(other, held)
            else:
                return known
            try:
                self._shed(self._shared.take_excess_bytes())
                rows, size = self._shared.opened(block, decode, self._make_way, held)
                with self._lock:
                    self._drop(self._bytes + size - self._bound_bytes)
                    self._kept[block] = rows, size
                    self._bytes += size
            finally:
                with self._lock:
                    del self._opening[block]
        return rows

    def _make_way(self, size: int) -> None:
        """Drop the least recently used blocks, until another one with `size` bytes is within the bound."""
        with self._lock:
            self._drop(self._bytes + size - self._bound_bytes)

    def _shed(self, size: int) -> None:
        """Drop the least recently used blocks, until they had `size` bytes in all, or none is left."""
        with self._lock:
            self._drop(size)

    def _drop(self, size: int) -> None:
        """Drop blocks as `_shed` does, while this thread has the lock."""
        while size > 0 and self._kept:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._bytes -= dropped
            size -= dropped


def _wait_for(other: threading.Lock, held: HeldInterrupts) -> None:
    """Wait until a lock was released."""
    taken: list[bool] = []
    try:
        # One call of C code, so that no interrupt arrives between the acquisition and its record in `taken`.
        held.allowing(taken.extend, map(other.acquire, (True,)))
    finally:
        if taken:
            other.release()


class Waste:
    """The number of records that were decoded, and of those that were returned, by one source in one process.

    It is for a warning alone, so threads may count at once.

    Args:
        noun: what a block is called in the warning, such as "group".
        decoded_bytes: the bound of the blocks that are kept.

    Attributes:
        returned: the number of records that were returned.
    """

    def __init__(self, noun: str, decoded_bytes: int) -> None:
        self.returned = 0
        self._noun = noun
        self._decoded_bytes = decoded_bytes
        self._blocks = 0
        self._records = 0

    def add(self, records: int, source: object) -> None:
        """Count a block that was decoded; warn if far more records were decoded than returned.

        Args:
            records: the number of records in the block.
            source: the source, for the warning.
        """
        self._blocks += 1
        self._records += records
        if self._blocks == _JUDGED and self._records > _WASTEFUL * self.returned:
            logging.getLogger("penstock").warning(
                "%s decoded %s records to return %s, since a %s is decoded as a whole, and those that were used last "
                "are kept only up to decoded_bytes=%s. Shuffle with blocks=True, keep more, or write smaller ones.",
                repr(source),  # a record of the log may be kept, and would keep the source
                f"{self._records:,}",
                f"{self.returned:,}",
                self._noun,
                f"{self._decoded_bytes:,}",
            )
