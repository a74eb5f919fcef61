"""Leased memory: a lease returns to its owner when the last array over it is dropped.

Problem: a batch's memory must be reused, since touching new pages costs as much as filling them; but a consumer may
keep a batch, or a view of one, for any time. Solution: a lease that ends with its last view. In NumPy every view refers
to its array by `base`, and torch, DLPack and memoryview keep that reference, too. Rejected: a lease that ends at the
next batch, as in ring buffers. It overwrites the batches that a consumer keeps.

Guarantees:
  - A region stays mapped as long as anything refers to it: its owner, a lease, or an array, tensor or memoryview over
    either. Nothing is ever overwritten or unmapped under a live view.
  - `released` returns the slot of each dropped lease exactly once. The last view may be dropped on any thread, in a
    collected cycle, or while the interpreter exits: the drop takes no lock, and runs no Python code but `after`.
  - `leased` and `returned` count exactly.

One thread at a time calls `released`; any thread may call the other methods. Regions never change their size; memory
grows by another region.

**Recycled arrays** are those that users' functions make. malloc returns large blocks to the system soon. So results
that live together, and are dropped together, cost a page fault for each page. Their memory is no region, since it isn't
known what a function keeps; NumPy itself requests it from `native/core/recycled.hpp`, in threads that have called
`recycle_arrays`. Rejected: malloc's own thresholds, which would hold for the whole of the user's process; processes of
ours have them (`_processes/_begin.py`), and others keep as little as `keep_memory_of_blocks` says.

**Offered memory** is the part of a region in which a worker process expects a function to make its result
(`offer_array`). NumPy gives it to the next array of exactly its size. A function may keep
that array: if one still uses the memory when an offer ends, its pages become private (`native/core/offered.hpp`).

Private regions are for the threads of one process (`Memory.allocate`), shared ones for several processes
(`create_region`, `open_region`). Shared memory has no name: a process maps it by its descriptor, and it is freed with
the last process that does.
"""

import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from penstock._native import CallWhenDropped
from penstock._native import Lease as Lease
from penstock._native import Region as Region
from penstock._native import allow_recycled as _allow_recycled
from penstock._native import end_offer as _end_offer
from penstock._native import is_offer_free as _is_offer_free
from penstock._native import lease as _lease
from penstock._native import living_leases as _living_leases
from penstock._native import offer_block as _offer_block
from penstock._native import open_region as _open_region
from penstock._native import recycle_arrays as _recycle_arrays
from penstock._native import recycled_bytes as _recycled_bytes
from penstock._native import region as _region
from penstock._native import returned_leases as _returned_leases
from penstock._native import shared_region as _shared_region
from penstock._os import Bell
from penstock.errors import MessageError, UsageError

ScalarT = TypeVar("ScalarT", bound=np.generic)

ALIGNMENT: Final = 64  # bytes; JAX and DLPack consumers copy arrays with less
_KEPT_BYTES: Final = 1 << 21  # half of what a thread may keep; from twice this size on, NumPy asks for huge pages


def leased_slots() -> int:
    """Return the number of leases in this process now: 0 when every batch of every loader was dropped.

    Example:
        >>> memory = Memory()
        >>> before = leased_slots()
        >>> lease = memory.lease(memory.allocate(64), slot=0)
        >>> leased_slots() - before
        1
    """
    return _living_leases()


def aligned(size_bytes: int) -> int:
    """Return the size rounded up to a multiple of 64 bytes, so that the bytes after it are aligned.

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
        start_bytes: its start in `memory`; a multiple of 64 keeps it aligned.

    Raises:
        TypeError: the array doesn't fit into the memory (the text is NumPy's).
    """
    # NumPy accepts any object with the buffer protocol, but its type stubs require `memoryview`.
    return np.ndarray(shape, dtype, cast("memoryview", memory), start_bytes)


class Memory:
    """Regions of memory, and the leases over them.

    Args:
        bell: rung each time a lease is returned; this object doesn't keep it alive. None for no bell.

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
            prefault: touch every page now, without the GIL, so that later writes cause no page fault.

        Returns:
            The region: a writable buffer of that size.

        Raises:
            UsageError: the size is negative.
            MemoryError: the system has no memory left.
        """
        if size_bytes < 0:
            raise UsageError(f"size_bytes must not be negative; got {size_bytes!r}")
        return _region(size_bytes, prefault)

    def lease(
        self,
        region: Region,
        slot: int,
        *,
        start_bytes: int = 0,
        size_bytes: int | None = None,
        after: Callable[[], None] | None = None,
    ) -> Lease:
        """Lease a part of a region, until the lease and every array over it are dropped.

        Args:
            region: the memory.
            slot: the number that `released` returns when the lease has ended; not negative. Leases of one slot may
                overlap; each is returned by itself.
            start_bytes: the lease's start in the region.
            size_bytes: its length; None for the rest of the region.
            after: called when the lease has ended, once `released` would return the slot, in the thread that dropped
                the last array. It must not raise: an exception counts as that of a signal's handler, which ends the
                call, and which the program gets next. None for no call.

        Returns:
            The lease: a writable buffer over that part.

        Raises:
            UsageError: the part is not inside the region, or the slot is negative.
        """
        size = len(region) - start_bytes if size_bytes is None else size_bytes
        if slot < 0 or start_bytes < 0 or size < 0 or start_bytes + size > len(region):
            raise UsageError(
                f"a lease must be inside its region, and slot must not be negative; got slot={slot}, "
                f"bytes [{start_bytes}, {start_bytes + size}) of a region of {len(region)} bytes"
            )
        called = None if after is None else CallWhenDropped(after, never_raises=True)
        return _lease(region, start_bytes, size, self._returns, slot, called)

    def released(self) -> list[int]:
        """Return the slots whose leases were dropped since the last call, in the order of the drops; never waits."""
        return self._returns.take()

    @property
    def leased(self) -> int:
        """The number of leases made so far."""
        return self._returns.leased

    @property
    def returned(self) -> int:
        """The number of them that were dropped."""
        return self._returns.returned


_forks: Final = [0]


def forks() -> int:
    """Return a number that has grown if this process was forked since: the child then maps what was leased before.

    Private memory is copied when one of the two processes writes to it. Of shared memory the child sees what is written
    there later, so a region that it may have views of must not be written to again.
    """
    return _forks[0]


def _note_fork() -> None:
    _forks[0] += 1


if hasattr(os, "register_at_fork"):
    # Twice: other threads may lease memory right before the fork, and return some right after it.
    os.register_at_fork(before=_note_fork, after_in_parent=_note_fork)


def keep_memory_of_blocks() -> None:
    """Let this process keep a few megabytes that it has freed, for the next block of elements.

    A block's arrays and lists are freed together. By default glibc then returns them to the system, and the next block
    waits while its pages are mapped and zeroed again, which takes more time than a cheap function. glibc adapts to the
    largest piece that was freed: pieces of up to that size no longer have a mapping of their own, and twice that size
    stays with each thread. So one piece is freed here, untouched. A program that sets glibc's limits itself, or has
    another allocator, is left alone. Worker processes have larger limits (`_processes._begin.keep_freed_memory`), which
    would be too much for a program of the user's.
    """
    np.empty(_KEPT_BYTES, np.uint8)


def create_region(size_bytes: int) -> Region:
    """Return new shared memory. No page of it is touched yet.

    Raises:
        OSError: no descriptor or no address space is left, or files may not be as large.
    """
    try:
        return _shared_region(min(size_bytes, sys.maxsize))  # the system refuses even that size
    except (OSError, MemoryError) as error:
        raise OSError(
            f"{size_bytes} bytes of shared memory need one descriptor and as much room, in a file and in the address "
            f"space: {error}; raise the limits (ulimit -n, ulimit -f, ulimit -v), or drop arrays that you keep"
        ) from error


def open_region(descriptor: int) -> Region:
    """Return the mapped shared memory of another process; the descriptor is copied.

    Raises:
        MessageError: it is no sealed shared memory.
    """
    try:
        return _open_region(descriptor)
    except (ValueError, OSError, MemoryError) as error:
        raise MessageError(f"the descriptor must be that of a shared region: {error}") from error


def recycle_arrays() -> None:
    """Let arrays that this thread makes from now on take the memory of arrays that were dropped, of 16 kB to 16 MB."""
    core = _numpy_core()
    if core is not None:
        _recycle_arrays(core)


def _numpy_core() -> ModuleType | None:
    """Return NumPy's native module. NumPy has imported it: to ask for it again takes 0.1 ms of a first batch."""
    # The names since NumPy 2, and before.
    return sys.modules.get("numpy._core._multiarray_umath") or sys.modules.get("numpy.core._multiarray_umath")


_kept: Final[list[Region]] = []  # memory that has private pages, since arrays use them


def offer_array(memory: Region, start_bytes: int, size_bytes: int) -> None:
    """Give a part of shared memory to the next array of exactly its size that this thread makes, until `end_offer`."""
    recycle_arrays()
    _offer_block(memory, start_bytes, size_bytes)


def is_offer_free() -> bool:
    """Return whether no array is in the part that is offered."""
    return _is_offer_free()


def end_offer(memory: Region) -> bool:
    """End the offer in some memory; return whether an array still uses that part.

    Then its pages are private to this process from now on, and other processes don't see what is written there.
    """
    is_used = _end_offer()
    if is_used:
        _kept.append(memory)  # it stays mapped
    return is_used


RECYCLED_BYTES: Final = 64_000_000
"""The memory of dropped arrays that a loader's threads keep at most; more results are rarely alive at once."""


def allow_recycled(more_bytes: int) -> None:
    """Change the memory of dropped arrays that this process keeps at most; it is 0 at first.

    Args:
        more_bytes: the change; below 0 for less.
    """
    _allow_recycled(more_bytes)


def recycled_bytes() -> int:
    """Return the memory of dropped arrays that this process keeps now."""
    return _recycled_bytes()
