"""Which memory a lease gets, as functions from values to values: an idle slot, a new region, and what goes for it.

A slot is used again if it is large enough and not far too large. Where none is idle, the number of slots of about that
size doubles, so that the number of regions, each of which is a descriptor, grows with the logarithm of what is held.
What is counted against a limit is the memory that was touched, in pages; room behind it costs addresses alone.
"""

import mmap
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

PAGE_BYTES: Final = mmap.PAGESIZE
ROOMIEST: Final = 4  # how many times the size asked for, with its headroom, a slot may have


@dataclass(frozen=True, slots=True)
class Need:
    """What a lease needs of a slot.

    Attributes:
        touched_bytes: the pages that it touches; the smallest slot that will do.
        slot_bytes: the size of a slot made for it, with headroom.
        roomiest_bytes: the largest slot that it should take.
    """

    touched_bytes: int
    slot_bytes: int
    roomiest_bytes: int


@dataclass(frozen=True, slots=True)
class NewRegion:
    """A region to be made: so many slots of one size."""

    slot_bytes: int
    slots: int


def in_pages(size_bytes: int) -> int:
    """Return the size rounded up to whole pages, at least one."""
    return max(-(-size_bytes // PAGE_BYTES), 1) * PAGE_BYTES


@lru_cache(maxsize=128)  # most leases are of a few sizes
def need_of(size_bytes: int, headroom: float) -> Need:
    """Return what a lease of this size needs of a slot.

    Args:
        size_bytes: the size of the lease.
        headroom: by which share of its size a slot made for it is larger.
    """
    slot_bytes = in_pages(size_bytes + int(size_bytes * headroom))
    return Need(in_pages(size_bytes), slot_bytes, ROOMIEST * slot_bytes)


def fitting(sizes: Sequence[int], need: Need) -> int | None:
    """Return the smallest of the sizes, which ascend, that will do; None if none does."""
    at = bisect_left(sizes, need.touched_bytes)
    return sizes[at] if at < len(sizes) and sizes[at] <= need.roomiest_bytes else None


def new_region(need: Need, *, alike: int, most: int) -> NewRegion:
    """Return the region to make where no slot is idle.

    Args:
        need: what for.
        alike: how many slots there are already that would do, were they idle.
        most: how many slots may be made at most; at least 1.
    """
    return NewRegion(need.slot_bytes, max(1, min(alike, most)))


def discarded(idle: Sequence[tuple[int, int]], excess_bytes: int) -> tuple[int, ...] | None:
    """Return the idle slots whose memory is to be given back to the system, or None if all of them are too few.

    Args:
        idle: slot and touched bytes of each idle slot, in the order in which they should go.
        excess_bytes: how much has to go.
    """
    chosen: list[int] = []
    for slot, touched_bytes in idle:
        if excess_bytes <= 0:
            break
        if touched_bytes > 0:
            chosen.append(slot)
            excess_bytes -= touched_bytes
    return tuple(chosen) if excess_bytes <= 0 else None
