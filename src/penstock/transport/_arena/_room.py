"""Waiting for room in an arena: until something comes back, or it is clear that nothing can."""

import gc
import select
import time
from typing import Protocol

from penstock._os import Bell, Waiter
from penstock.errors import UsageError
from penstock.transport._arena._table import ArenaTable
from penstock.transport._memory import Lease


class Lender(Protocol):
    """What waiting needs of an arena."""

    def lease_nowait(self, size_bytes: int, /) -> Lease | None: ...
    def want(self, size_bytes: int, /) -> None: ...
    def fileno(self) -> int: ...
    def clear_bell(self, own: Bell | None = None, /) -> None: ...
    def listen(self, bell: Bell, /) -> None: ...
    def listen_no_longer(self, bell: Bell, /) -> None: ...


def wait_for_room(arena: Lender, table: ArenaTable, size_bytes: int, timeout_seconds: float | None) -> Lease:
    """Return a lease as soon as there is room.

    Args:
        arena: what to lease from.
        table: its table, which stays while this waits, even if the arena is closed.
        size_bytes: how much to lease.
        timeout_seconds: how long to wait at most; None for ever.

    Raises:
        UsageError: nobody but this process holds memory, so that nothing comes back from others.
        TimeoutError: there was no room in time.
        ClosedError: the arena was closed.
    """
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    bell, waiter = Bell(), Waiter()
    arena.listen(bell)
    try:
        arena.want(size_bytes)
        with select.epoll() as either:
            either.register(arena.fileno(), select.EPOLLIN)
            either.register(bell.fileno(), select.EPOLLIN)
            while True:
                bell.clear()
                arena.clear_bell(bell)
                lease = _look(arena, table, size_bytes)
                if lease is not None:
                    return lease
                left_seconds = None if deadline is None else max(deadline - time.monotonic(), 0)
                if not waiter.wait(either.fileno(), left_seconds):
                    raise TimeoutError(
                        f"nobody returned enough of the arena for {size_bytes} bytes within {timeout_seconds} s"
                    )
    finally:
        arena.listen_no_longer(bell)
        table.wanted = 0


def _look(arena: Lender, table: ArenaTable, size_bytes: int) -> Lease | None:
    lease = arena.lease_nowait(size_bytes)
    if lease is not None or not _only_owner_holds(table):
        return lease
    gc.collect()  # what only a cycle holds comes back now
    lease = arena.lease_nowait(size_bytes)
    if lease is None and _only_owner_holds(table):
        raise UsageError(
            f"arrays of this very process hold so much of the arena that {size_bytes} bytes don't fit below its "
            "max_bytes, and nobody else holds any of it; drop arrays, copy those that are kept, or raise max_bytes"
        )
    return lease


def _only_owner_holds(table: ArenaTable) -> bool:
    # Read in this order, what other threads lease and return in between makes others seem to hold more, never less.
    others_returned = table.all_returned - table.returned(0)
    own_leased = table.leased(0)
    return table.all_leased - own_leased <= others_returned
