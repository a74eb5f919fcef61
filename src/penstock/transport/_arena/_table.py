"""An arena's table of holds in shared memory, and this process's part in it: the wrapper of the native classes.

`native/core/arena_table.hpp` states the guarantees of the table.
"""

from typing import Final

from penstock._native import ArenaParticipant as ArenaParticipant
from penstock._native import ArenaTable as ArenaTable
from penstock._native import arena_participant as join_table
from penstock._native import arena_table as _arena_table
from penstock._native import open_arena_table as _open_arena_table
from penstock.errors import MessageError

MAX_SLOTS: Final = 65_536  # 528 kB of address space for each participant; only the pages of used slots are touched
MAX_PARTICIPANTS: Final = 63  # without the owner

__all__ = ["MAX_PARTICIPANTS", "MAX_SLOTS", "ArenaParticipant", "ArenaTable", "join_table"]


def create_table() -> ArenaTable:
    """Return a new table; this process is its owner.

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
        MessageError: the memory holds no table of this version.
    """
    try:
        return _open_arena_table(table_descriptor, bell_descriptor)
    except (ValueError, OSError, MemoryError) as error:
        raise MessageError(
            f"the descriptors must be those of an arena's table and bell, made by this version of Penstock; {error}"
        ) from error
