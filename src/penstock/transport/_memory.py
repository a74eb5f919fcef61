"""Memory that is lent out by leases: a lease comes back when the last array over it is dropped.

Guarantees:
  - A region stays mapped as long as anything refers to it: its owner, a lease, or an array, tensor or memoryview over
    either. Nothing is ever overwritten or unmapped under a live view.
  - The slot of every dropped lease is in `released` exactly once. The last view may die on any thread, in a collected
    cycle, or while the interpreter exits: it takes no lock and runs no Python code.
  - `leased` and `returned` count exactly.

`released` is called by one thread at a time; all else may be called from any thread. Growth is another region; regions
never change their size.

Leases that end with the last derived view, rather than at the next batch, are what makes keeping a batch safe; the
mechanism is NumPy's `base` chain, which torch, DLPack and memoryview keep too.
"""

from collections.abc import Sequence
from typing import Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from penstock._native import Lease as Lease
from penstock._native import Region as Region
from penstock._native import lease as _lease
from penstock._native import living_leases as _living_leases
from penstock._native import region as _region
from penstock._native import returned_leases as _returned_leases
from penstock._os import Bell
from penstock.errors import UsageError

ScalarT = TypeVar("ScalarT", bound=np.generic)

ALIGNMENT: Final = 64  # bytes; jax and DLPack consumers copy what is aligned to less


def leased_slots() -> int:
    """Return how many leases there are in this process now: 0 when every batch of every loader was dropped.

    Example:
        >>> memory = Memory()
        >>> before = leased_slots()
        >>> lease = memory.lease(memory.allocate(64), slot=0)
        >>> leased_slots() - before
        1
    """
    return _living_leases()


def aligned(size_bytes: int) -> int:
    """Return the size rounded up to a multiple of 64 bytes, so that what follows it is aligned.

    Example:
        >>> aligned(65)
        128
    """
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def array_over(
    memory: Region | Lease,
    shape: Sequence[int],
    dtype: type[ScalarT] | np.dtype[ScalarT],
    *,
    start_bytes: int = 0,
) -> NDArray[ScalarT]:
    """Return a writable C-ordered array over memory, without a copy; it, and every view of it, keeps `memory` alive.

    Args:
        memory: a region or a lease.
        shape: the array's shape.
        dtype: its dtype; any that holds no Python objects.
        start_bytes: where in `memory` it starts; a multiple of 64 keeps it aligned.

    Raises:
        TypeError: the array doesn't fit into the memory (worded by NumPy).
    """
    # NumPy takes any object with the buffer protocol; its type stubs ask for a name that a native class has not.
    return np.ndarray(shape, dtype, cast("memoryview", memory), start_bytes)


class Memory:
    """Regions of memory, and the leases over them.

    Args:
        bell: rung each time a lease is returned, as long as someone else keeps it; None for no bell.

    Example:
        >>> memory = Memory()
        >>> region = memory.allocate(1024)
        >>> batch = array_over(memory.lease(region, slot=3), (16, 16), np.float32)
        >>> part = batch[2:4]
        >>> del batch
        >>> memory.released()
        []
        >>> del part
        >>> memory.released()
        [3]
    """

    __slots__ = ("_returns",)

    def __init__(self, *, bell: Bell | None = None) -> None:
        self._returns = _returned_leases(None if bell is None else bell.native)

    def allocate(self, size_bytes: int, *, prefault: bool = False) -> Region:
        """Map a new region of zeroes, aligned to at least 64 bytes.

        Args:
            size_bytes: its size.
            prefault: touch every page now, without the interpreter's lock, so that later writes meet no page fault.

        Returns:
            The region: a writable buffer of that size.

        Raises:
            UsageError: the size is negative.
            MemoryError: the system refused.
        """
        if size_bytes < 0:
            raise UsageError(f"size_bytes must not be negative; got {size_bytes!r}")
        return _region(size_bytes, prefault)

    def lease(self, region: Region, slot: int, *, start_bytes: int = 0, size_bytes: int | None = None) -> Lease:
        """Lend out a part of a region until the lease, and every array over it, is dropped.

        Args:
            region: the memory.
            slot: what `released` gives when the lease is over; not negative. Leases of one slot may overlap: each is
                returned by itself.
            start_bytes: where the lease starts in the region.
            size_bytes: how long it is; None for all the rest.

        Returns:
            The lease: a writable buffer over that part.

        Raises:
            UsageError: the part lies outside the region, or the slot is negative.
        """
        size = len(region) - start_bytes if size_bytes is None else size_bytes
        if slot < 0 or start_bytes < 0 or size < 0 or start_bytes + size > len(region):
            raise UsageError(
                f"a lease must lie inside its region and slot must not be negative; got slot={slot}, "
                f"bytes [{start_bytes}, {start_bytes + size}) of a region of {len(region)} bytes"
            )
        return _lease(region, start_bytes, size, self._returns, slot)

    def released(self) -> list[int]:
        """Return the slots whose leases were dropped since the last call, in that order; never waits."""
        return self._returns.take()

    @property
    def leased(self) -> int:
        """How many leases were given, ever."""
        return self._returns.leased

    @property
    def returned(self) -> int:
        """How many of them were dropped."""
        return self._returns.returned
