"""What is said of an arena: where a slot lies, where an address lies, and the counters."""

from dataclasses import dataclass
from typing import NamedTuple


class SlotPlace(NamedTuple):
    """Where a lent slot lies; all that another process needs to find it.

    Attributes:
        slot: its number in the arena.
        region: the number of the region that holds it.
        start_bytes: where it starts in that region.
        size_bytes: how much of it is lent.

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
    """Where in which slot some memory lies.

    Attributes:
        slot: the slot's number.
        offset_bytes: how far behind the slot's start.

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
    """What an arena has lent, and what it takes.

    Attributes:
        leased: how many holds were given, to all processes, ever.
        returned: how many of them are over; equal to `leased` when nobody holds anything.
        slots: how many slots there are.
        regions: how many regions, each a descriptor.
        bytes: how much memory was touched and not given back to the system.
        address_bytes: how much the regions would take, were all of it touched.
        discarded_bytes: how much was given back to the system, ever.

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
