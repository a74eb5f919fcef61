"""Values that describe an arena: the place of a slot, the place of an address, and the counters."""

from dataclasses import dataclass
from typing import NamedTuple


class SlotPlace(NamedTuple):
    """The place of a leased slot: all that another process needs to find it.

    Attributes:
        slot: its number in the arena.
        region: the number of the region that it is in.
        start_bytes: its start in that region.
        size_bytes: the leased part of it.

    Example:
        >>> from penstock.transport import Arena
        >>> with Arena() as arena:
        ...     lease = arena.lease_nowait(1000)
        ...     arena.place_of(lease.slot)
        SlotPlace(slot=0, region=0, start_bytes=0, size_bytes=1000)
    """

    slot: int
    region: int
    start_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Located:
    """The slot that some memory is in, and the offset in it.

    Attributes:
        slot: the slot's number.
        offset_bytes: the memory's start, from the slot's start.

    Example:
        >>> from penstock.transport import Arena
        >>> with Arena() as arena:
        ...     numbers = arena.empty((100,), np.int64)
        ...     arena.locate(numbers[3:].ctypes.data, 8)
        Located(slot=0, offset_bytes=24)
    """

    slot: int
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class ArenaCounters:
    """The leases of an arena so far, and the memory that it uses.

    Attributes:
        leased: the holds that were added so far, for all processes.
        returned: the holds that have ended; equal to `leased` when nobody holds anything.
        slots: the number of slots.
        regions: the number of regions, each with a descriptor.
        bytes: the memory that was touched and not returned to the system.
        address_bytes: the size of all regions, touched or not.
        discarded_bytes: the memory that was returned to the system so far.

    Example:
        >>> from penstock.transport import Arena
        >>> with Arena() as arena:
        ...     numbers = arena.empty((1000,), np.int64)
        ...     arena.counters.bytes
        8192
    """

    leased: int
    returned: int
    slots: int
    regions: int
    bytes: int
    address_bytes: int
    discarded_bytes: int
