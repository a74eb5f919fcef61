"""An arena's table of holds in shared memory, and the values that describe an arena.

The table and this process's part in it are native classes, which this module wraps; `native/core/arena_table.hpp`
states their guarantees.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock._native import ArenaParticipant as ArenaParticipant
from penstock._native import ArenaTable as ArenaTable
from penstock._native import arena_participant as _arena_participant
from penstock._native import arena_table as _arena_table
from penstock._native import open_arena_table as _open_arena_table
from penstock.errors import MessageError

MAX_SLOTS: Final = 65_536  # 528 kB of address space for each participant; only the pages of used slots are touched
MAX_PARTICIPANTS: Final = 63  # beside the owner

__all__ = [
    "MAX_PARTICIPANTS",
    "MAX_SLOTS",
    "ArenaCounters",
    "ArenaParticipant",
    "ArenaTable",
    "Located",
    "SlotPlace",
    "create_table",
    "open_table",
]


class SlotPlace(NamedTuple):
    """The place of a leased slot: all that another process needs to find it.

    Attributes:
        slot: its number in the arena.
        region: the number of the region that contains it.
        start_bytes: its start in that region.
        size_bytes: the size of its leased part.

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
    """The slot that contains some memory, and the memory's offset in it.

    Attributes:
        slot: the slot's number.
        offset_bytes: the distance from the slot's start to the memory's start.

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
        leased: the number of holds that were added so far, for all processes.
        returned: the number of holds that have ended; equal to `leased` when no process holds anything.
        slots: the number of slots.
        regions: the number of regions, each with a descriptor.
        bytes: the memory that was touched and not returned to the system.
        address_bytes: the size of all regions, including pages that were never touched.
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


def create_table() -> tuple[ArenaTable, ArenaParticipant]:
    """Return a new table, which this process owns, and the process's part in it.

    Raises:
        OSError: no descriptor, memory or address space is left.
    """
    try:
        table = _arena_table(MAX_SLOTS)
        return table, _arena_participant(table, 0)
    except (OSError, MemoryError) as error:
        raise OSError(
            f"an arena needs two descriptors and 34 MB of address space for shared memory: {error}; raise the limits "
            "(ulimit -n, ulimit -v)"
        ) from error


def open_table(table_descriptor: int, bell_descriptor: int, participant: int) -> tuple[ArenaTable, ArenaParticipant]:
    """Return the mapped table of another process, and this process's part in it; the descriptors are copied.

    Raises:
        MessageError: the memory holds no table of this version.
        OSError: no address space is left to map it.
    """
    try:
        table = _open_arena_table(table_descriptor, bell_descriptor)
        return table, _arena_participant(table, participant)
    except MemoryError as error:
        raise OSError(
            "the table of a writer's arena needs 35 MB of address space, and this process has less left; raise the "
            "limit (ulimit -v)"
        ) from error
    except (ValueError, OSError) as error:
        raise MessageError(
            f"the descriptors must be those of an arena's table and bell, made by this version of Penstock; {error}"
        ) from error
