"""The choice of memory for a lease, as functions from values to values: an idle slot, a new region, pages to discard.

A slot is used again if it is large enough and not far too large. If none is idle, the number of slots of about that
size doubles, so the number of regions, each of which has a descriptor, grows with the logarithm of the slots in use.
The limit counts the pages that were touched; untouched room behind them costs address space only.
"""

import mmap
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

PAGE_BYTES: Final = mmap.PAGESIZE
ROOMIEST: Final = 4  # the largest slot for a lease, in sizes of that lease with its headroom


@dataclass(frozen=True, slots=True)
class Need:
    """The bounds on the slot of a lease.

    Attributes:
        touched_bytes: the pages that the lease touches; the smallest slot for it.
        slot_bytes: the size of a new slot for it, with headroom.
        roomiest_bytes: the largest slot for it.
    """

    touched_bytes: int
    slot_bytes: int
    roomiest_bytes: int


@dataclass(frozen=True, slots=True)
class NewRegion:
    """A region to create: a number of slots of one size."""

    slot_bytes: int
    slots: int


def in_pages(size_bytes: int) -> int:
    """Return the size rounded up to whole pages, at least one."""
    return max(-(-size_bytes // PAGE_BYTES), 1) * PAGE_BYTES


@lru_cache(maxsize=128)  # most leases are of a few sizes
def need_of(size_bytes: int, headroom: float) -> Need:
    """Return the bounds on the slot of a lease of this size.

    Args:
        size_bytes: the size of the lease.
        headroom: the share of its size by which a new slot is larger.
    """
    slot_bytes = in_pages(size_bytes + int(size_bytes * headroom))
    return Need(in_pages(size_bytes), slot_bytes, ROOMIEST * slot_bytes)


def fitting(sizes: Sequence[int], need: Need) -> int | None:
    """Return the smallest of the ascending sizes within the bounds; None if there is none."""
    at = bisect_left(sizes, need.touched_bytes)
    return sizes[at] if at < len(sizes) and sizes[at] <= need.roomiest_bytes else None


def new_region(need: Need, *, alike: int, most: int) -> NewRegion:
    """Return the region to create when no slot is idle.

    Args:
        need: the bounds on the slot.
        alike: the number of existing slots within these bounds.
        most: the largest number of new slots; at least 1.
    """
    return NewRegion(need.slot_bytes, max(1, min(alike, most)))


def discarded(idle: Sequence[tuple[int, int]], excess_bytes: int) -> tuple[int, ...] | None:
    """Return the idle slots whose pages to return to the system, or None if all of them together are too few.

    Args:
        idle: number and touched bytes of each idle slot, in the order in which to discard them.
        excess_bytes: the bytes to discard.
    """
    chosen: list[int] = []
    for slot, touched_bytes in idle:
        if excess_bytes <= 0:
            break
        if touched_bytes > 0:
            chosen.append(slot)
            excess_bytes -= touched_bytes
    return tuple(chosen) if excess_bytes <= 0 else None
