"""The native side of an arena: its table of holds, this process's part in it, and the shared regions.

What the table guarantees stands in `native/core/arena_table.hpp`.
"""

import sys
from typing import Final

from penstock._native import ArenaParticipant as ArenaParticipant
from penstock._native import ArenaTable as ArenaTable
from penstock._native import arena_participant as join_table
from penstock._native import arena_table as _arena_table
from penstock._native import open_arena_table as _open_arena_table
from penstock._native import open_region as _open_region
from penstock._native import shared_region as _shared_region
from penstock.errors import MessageError
from penstock.transport._memory import Region

MAX_SLOTS: Final = 65_536  # 528 kB of addresses for each participant; touched as far as slots are used
MAX_PARTICIPANTS: Final = 63  # beside the owner

__all__ = ["MAX_PARTICIPANTS", "MAX_SLOTS", "ArenaParticipant", "ArenaTable", "join_table"]


def create_table() -> ArenaTable:
    """Return a new table, of which this process is the owner.

    Raises:
        OSError: no descriptor or no memory is left.
    """
    try:
        return _arena_table(MAX_SLOTS)
    except OSError as error:
        raise OSError(f"an arena needs two descriptors and some shared memory: {error}") from error


def open_table(table_descriptor: int, bell_descriptor: int) -> ArenaTable:
    """Return the mapped table of another process; the descriptors are copied.

    Raises:
        MessageError: it is no table of this version.
    """
    try:
        return _open_arena_table(table_descriptor, bell_descriptor)
    except (ValueError, OSError, MemoryError) as error:
        raise MessageError(
            f"the descriptors must be those of an arena's table and bell, made by this version of Penstock; {error}"
        ) from error


def create_region(size_bytes: int) -> Region:
    """Return new shared memory, of which no page is touched yet.

    Raises:
        OSError: no descriptor is left, or the system doesn't give so many addresses.
    """
    try:
        return _shared_region(min(size_bytes, sys.maxsize))  # more than any system has
    except (OSError, MemoryError) as error:
        raise OSError(
            f"an arena needs one descriptor and {size_bytes} bytes of addresses for more slots: "
            f"{error}; raise the limits (ulimit -n, ulimit -v), or drop some of the arrays that are held"
        ) from error


def open_region(descriptor: int) -> Region:
    """Return the mapped shared memory of another process; the descriptor is copied.

    Raises:
        MessageError: it is no sealed shared memory.
    """
    try:
        return _open_region(descriptor)
    except (ValueError, OSError, MemoryError) as error:
        raise MessageError(f"the descriptor must be that of a region of an arena: {error}") from error
