"""The owner of an arena: it alone creates memory and leases slots, for itself and on behalf of the participants.

Guarantees:
  - A slot is leased again only when it has no holds: no array of this process is over it, and every participant has
    returned its holds on it. Memory is never overwritten while a view of it exists.
  - A hold on a participant's behalf counts from the call of `hold`. An owner that calls it before it sends the slot to
    the participant, and before it drops its own lease, can't lose the slot in between.
  - A participant that is killed loses only its own holds; `release_participant` removes them.
  - `leased` and `returned` count exactly: they are equal when no process holds anything.
  - The bell rings at each return and at each acknowledgement: clear it, check your condition, wait on `fileno`.

Any thread of the owner may call any method. A lock is held while a slot is chosen, and never while user code runs. The
owner is one process: a forked child can't use the arena, and its copies of leases return nothing.
"""

import gc
import io
import math
import os
import select
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock._memory import Lease, Region, array_over
from penstock._os import Bell, Waiter
from penstock.errors import ClosedError, UsageError
from penstock.transport._arena._region_pool import RegionPool
from penstock.transport._arena._table import (
    MAX_PARTICIPANTS,
    ArenaCounters,
    ArenaParticipant,
    ArenaTable,
    Located,
    SlotPlace,
    create_table,
)

ScalarT = TypeVar("ScalarT", bound=np.generic)


@dataclass(frozen=True, slots=True)
class _OpenArena:
    """The parts of an open arena. A call that got them before `close` may go on to use them; later calls get none."""

    table: ArenaTable
    participant: ArenaParticipant
    pool: RegionPool
    participants: "Participants"


class Arena:
    """Memory for arrays that other processes see without a copy, leased in slots.

    A slot returns when the last array over it is dropped, and is then leased again, with its pages already populated.
    The arena grows on demand. The limit counts touched pages; the headroom of a slot costs address space only.

    Args:
        max_bytes: the most memory that may be touched at once; None for no limit. At the limit, the memory of idle
            slots is returned to the system first; then callers wait.
        headroom: the share of a lease's size by which a new slot is larger, so that somewhat larger arrays fit later.

    Raises:
        UsageError: max_bytes is not positive, headroom is negative, or this system is not Linux.
        OSError: no descriptor or memory is left.

    Example:
        >>> with Arena() as arena:
        ...     image = arena.empty((480, 640, 3), np.uint8)
        ...     image[...] = 7
        ...     counters = arena.counters
        >>> counters.leased - counters.returned
        1
    """

    def __init__(self, *, max_bytes: int | None = None, headroom: float = 0.25) -> None:
        if sys.platform != "linux":
            raise UsageError(
                f"an arena requires Linux, for sealed shared memory without a name; this is {sys.platform!r}. "
                "Use threads, or pipes that copy"
            )
        if max_bytes is not None and max_bytes <= 0:
            raise UsageError(f"max_bytes must be positive, or None for no limit; got {max_bytes!r}")
        if not (math.isfinite(headroom) and headroom >= 0):
            raise UsageError(f"headroom must be a share of 0 or more, such as 0.25; got {headroom!r}")
        table, participant = create_table()
        pool = RegionPool(table, participant, max_bytes=max_bytes, headroom=headroom)
        self._opened: _OpenArena | None = _OpenArena(table, participant, pool, Participants(table))
        self._last_counters = ArenaCounters(0, 0, 0, 0, 0, 0, 0)
        self.max_bytes: Final = max_bytes
        self._listeners: tuple[Bell, ...] = ()  # immutable, since other threads iterate over it
        self._lock = threading.Lock()  # around the choice of a slot and changes of the participants

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lease nothing more, and release all memory without arrays; arrays stay valid. Harmless when repeated."""
        opened = self._opened
        if opened is None:
            return
        self._last_counters = self.counters
        self._opened = None
        with self._lock:
            opened.participants.close()
        if opened.participant.here:
            opened.table.ring()  # wakes threads in `empty`

    def lease_nowait(self, size_bytes: int) -> Lease | None:
        """Lease memory to this process, aligned to 64 bytes, with arbitrary contents.

        Args:
            size_bytes: the size; the lease has exactly that length.

        Returns:
            The lease, or None if the held slots leave no room under `max_bytes`. The bell rings when that may have
            changed.

        Raises:
            UsageError: the size is negative or more than `max_bytes`, too many slots are held, or this is a forked
                child of the owner.
            ClosedError: the arena was closed.
            OSError: no descriptor or address space is left.
        """
        if size_bytes < 0:
            raise UsageError(f"size_bytes must not be negative; got {size_bytes!r}")
        if self.max_bytes is not None and size_bytes > self.max_bytes:
            raise UsageError(
                f"a lease must fit into the arena: {size_bytes} bytes are more than max_bytes={self.max_bytes}; "
                "raise max_bytes, or lease smaller parts"
            )
        pool = self._open().pool
        with self._lock:
            lease = pool.lease(size_bytes)
        if lease is None and self.reclaim():
            with self._lock:
                lease = pool.lease(size_bytes)
        if lease is not None:
            pool.warm(lease.slot)  # without the lock: it may take milliseconds, and only the holder needs it
        return lease

    def lease_region(self, size_bytes: int) -> tuple[Region, Lease]:
        """Return a region of at least that size, and a lease of `size_bytes` from its start.

        It is for a caller that sends the region's descriptor to other processes and leases the memory in parts itself.
        That caller, not this arena, counts the memory in use.
        """
        pool = self._open().pool
        with self._lock:
            return pool.lease_region(size_bytes)

    def discard_idle(self) -> None:
        """Return the memory of idle slots to the system; call it when it won't be used again soon."""
        pool = self._open().pool
        with self._lock:
            pool.discard_idle()

    def empty(
        self, shape: Sequence[int], dtype: type[ScalarT] | np.dtype[ScalarT], *, timeout_seconds: float | None = None
    ) -> NDArray[ScalarT]:
        """Return an array in the arena's memory, with arbitrary contents; wait for room.

        The memory returns when the array's last view is dropped, or the process that has it ends. While this waits,
        `want` publishes the size.

        Args:
            shape: the array's shape.
            dtype: its dtype; any that holds no Python objects.
            timeout_seconds: the longest wait; None for no limit.

        Returns:
            A writable C-ordered array, aligned to 64 bytes.

        Raises:
            UsageError: as for `lease_nowait`; or the dtype holds Python objects; or there is no room, and only arrays
                of this process hold memory.
            TimeoutError: there was no room in time.
            ClosedError: the arena was closed.
        """
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise UsageError(f"shared memory can't hold Python objects; got dtype {kind}")
        if any(length < 0 for length in shape):
            raise UsageError(f"lengths must not be negative; got shape {tuple(shape)}")
        size_bytes = math.prod(shape) * kind.itemsize
        lease = self.lease_nowait(size_bytes)
        if lease is None:
            lease = _wait_for_room(self, self._open().table, size_bytes, timeout_seconds)
        return array_over(lease, shape, kind)

    def place_of(self, slot: int) -> SlotPlace:
        """Return the place of a slot, with the size of its last lease.

        Raises:
            UsageError: there is no such slot.
            ClosedError: the arena was closed.
        """
        return self._pool_of(slot).place_of(slot)

    def locate(self, address: int, size_bytes: int) -> Located | None:
        """Return the slot that contains some memory of this process.

        Args:
            address: the memory's start.
            size_bytes: its length.

        Returns:
            The slot, held by this process, that contains all of it; None if there is none, or the arena was closed.
        """
        opened = self._opened
        return None if opened is None else opened.pool.locate(address, size_bytes)

    def invite(self, process_descriptor: int = -1) -> int:
        """Return the number of a new participant, which attaches with it and the descriptors.

        Args:
            process_descriptor: the descriptor of its process, from `os.pidfd_open`; copied. After the process has
                ended, `reclaim` removes its holds. -1 if the caller watches the process itself.

        Raises:
            UsageError: 63 were invited and not released.
            ClosedError: the arena was closed.
        """
        participants = self._open().participants
        with self._lock:
            return participants.invite(process_descriptor)

    def hold(self, slot: int, participant: int) -> None:
        """Add a hold on a participant's behalf, before the slot is sent to it and before the owner drops its lease.

        Raises:
            UsageError: the slot has no holds, so it may be leased at any time; or that participant isn't invited.
        """
        table = self._check_hold(slot, participant)
        if table.idle(slot):
            raise UsageError(f"a hold can be added only to a slot that is held; slot {slot} has no holds")
        table.hold(slot, participant)

    def unhold(self, slot: int, participant: int) -> None:
        """Remove a hold on a slot that was never sent to the participant.

        Raises:
            UsageError: it has none on that slot; or that participant isn't invited.
        """
        if not self._check_hold(slot, participant).give_back(slot, participant):
            raise UsageError(
                f"only a hold that was added can be removed; participant {participant} has none on slot {slot}"
            )

    def holds(self, slot: int, participant: int) -> int:
        """Return the number of holds of a participant on a slot now; 0 is the owner."""
        return self._table_of(participant).holds(slot, participant)

    def held_by(self, participant: int) -> int:
        """Return the number of holds of a participant now; 0 is the owner."""
        table = self._table_of(participant)
        returned = table.returned(participant)  # first, so that the difference isn't negative
        return table.leased(participant) - returned

    def returned_by(self, participant: int) -> int:
        """Return the number of holds that a participant has returned since it was invited; 0 is the owner."""
        return self._table_of(participant).returned(participant)

    def release_participant(self, participant: int) -> int:
        """Remove all holds of a participant, free its number, and ring the bell.

        Args:
            participant: one that certainly uses no memory of the arena any more: its process has ended, or it has
                reported that it dropped everything.

        Returns:
            The number of its holds.

        Raises:
            UsageError: that participant isn't invited.
        """
        opened = self._open()
        with self._lock:
            return opened.participants.release(participant)

    def dismiss(self, participant: int, *, acknowledgements: int) -> None:
        """Release a participant as soon as it holds nothing; no further hold may be added on its behalf.

        Args:
            participant: its number. The number is free once the participant has returned all holds and has
                acknowledged that many messages, or its process has ended.
            acknowledgements: the number of acknowledgements to wait for.

        Raises:
            UsageError: that participant isn't invited.
        """
        participants = self._open().participants
        with self._lock:
            participants.dismiss(participant, acknowledgements)

    def reclaim(self) -> int:
        """Remove all holds of participants whose processes have ended; their numbers stay in use until released.

        `lease_nowait` calls it before it returns None.

        Returns:
            The number of those holds.

        Raises:
            ClosedError: the arena was closed.
        """
        with self._lock:
            return self._open().participants.take_back()

    def acknowledged(self, participant: int) -> int:
        """Return the number of acknowledgements of a participant since it was invited."""
        return self._table_of(participant).acknowledged(participant)

    def want(self, size_bytes: int) -> None:
        """Publish to the participants the number of bytes that the owner waits for; 0 for none."""
        self._open().table.wanted = size_bytes

    def fileno(self) -> int:
        """Return the bell's descriptor: readable after a return or an acknowledgement. Do not read from it."""
        return self._open().table.bell_descriptor

    def listen(self, bell: Bell) -> None:
        """Ring `bell` whenever another thread clears the arena's bell, since that ring may have been for this thread.

        If several threads wait on one arena, each adds a bell of its own, and waits on both bells.
        """
        with self._lock:
            self._listeners = (*self._listeners, bell)

    def listen_no_longer(self, bell: Bell) -> None:
        """Remove a bell that `listen` added."""
        with self._lock:
            self._listeners = tuple(other for other in self._listeners if other is not bell)

    def clear_bell(self, own: Bell | None = None) -> None:
        """Make the bell's descriptor unreadable; check your condition after this, and before you wait.

        Args:
            own: the bell that the caller gave to `listen`; it is not rung. The caller clears it before this call.
        """
        if self._open().table.clear_bell():
            for bell in self._listeners:
                if bell is not own:
                    bell.ring()

    @property
    def ends_descriptor(self) -> int:
        """The descriptor that is readable if the process of a participant has ended since the last `reclaim`.

        A program that waits for room by itself watches it beside `fileno()`, and then calls `reclaim`, which returns
        that process's memory. It is closed with the arena.

        Raises:
            ClosedError: the arena was closed.
        """
        return self._open().participants.ends_descriptor

    @property
    def table_descriptor(self) -> int:
        """The descriptor of the table, for participants."""
        return self._open().table.descriptor

    @property
    def bell_descriptor(self) -> int:
        """The descriptor of the bell, for participants."""
        return self._open().table.bell_descriptor

    def region_descriptor(self, region: int) -> int:
        """Return the descriptor of a region, for the participants that get a slot in it.

        Raises:
            UsageError: there is no such region.
            ClosedError: the arena was closed.
        """
        return self._open().pool.region(region).descriptor

    @property
    def counters(self) -> ArenaCounters:
        """The counts of leases and of memory in use; after `close`, those at the time of the close."""
        if (opened := self._opened) is None:
            return self._last_counters
        returned = opened.table.all_returned  # read first: a lease that begins and ends in between counts as held
        leased = opened.table.all_leased
        with self._lock:
            return opened.pool.counters(leased, returned)

    def _open(self) -> _OpenArena:
        opened = self._opened
        if opened is None:
            raise ClosedError("the arena was closed; create another")
        if not opened.participant.here:
            raise UsageError(
                "an arena belongs to the process that created it, and this is a forked child of it; "
                "attach to it with AttachedArena, or create another arena here"
            )
        return opened

    def _table_of(self, participant: int) -> ArenaTable:
        opened = self._open()
        if participant != 0:
            opened.participants.check(participant)
        return opened.table

    def _check_hold(self, slot: int, participant: int) -> ArenaTable:
        self._open().participants.check(participant)
        self._pool_of(slot)
        return self._open().table

    def _pool_of(self, slot: int) -> RegionPool:
        pool = self._open().pool
        if not 0 <= slot < len(pool.slots):
            raise UsageError(f"slot must be one of the arena's {len(pool.slots)} slots; got {slot!r}")
        return pool


def _wait_for_room(arena: Arena, table: ArenaTable, size_bytes: int, timeout_seconds: float | None) -> Lease:
    """Return a lease as soon as there is room.

    Args:
        arena: leases the memory.
        table: its table, which stays valid while this waits, even if the arena is closed.
        size_bytes: the size of the lease.
        timeout_seconds: the longest wait; None for no limit.

    Raises:
        UsageError: only this process holds memory, so that no other process can return any.
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
            either.register(arena.ends_descriptor, select.EPOLLIN)
            while True:
                bell.clear()
                arena.clear_bell(bell)
                lease = _try_lease(arena, table, size_bytes)
                if lease is not None:
                    return lease
                left_seconds = None if deadline is None else max(deadline - time.monotonic(), 0)
                if not waiter.wait(either.fileno(), left_seconds):
                    raise TimeoutError(
                        f"no process returned enough of the arena for {size_bytes} bytes within {timeout_seconds} s"
                    )
    finally:
        arena.listen_no_longer(bell)
        table.wanted = 0


def _try_lease(arena: Arena, table: ArenaTable, size_bytes: int) -> Lease | None:
    lease = arena.lease_nowait(size_bytes)
    if lease is not None or not _only_owner_holds(table):
        return lease
    gc.collect()  # drops leases that only a reference cycle keeps
    lease = arena.lease_nowait(size_bytes)
    if lease is None and _only_owner_holds(table):
        raise UsageError(
            f"arrays of this process hold so much of the arena that {size_bytes} bytes don't fit below its max_bytes, "
            "and no other process holds any of it; drop arrays, copy those that you keep, or raise max_bytes"
        )
    return lease


def _only_owner_holds(table: ArenaTable) -> bool:
    # In this order, leases of other threads in between make other processes seem to hold more, never less.
    others_returned = table.all_returned - table.returned(0)
    own_leased = table.leased(0)
    return table.all_leased - own_leased <= others_returned


class Participants:
    """The participants beside the owner, with the descriptors of their processes. Used under the arena's lock.

    Args:
        table: the arena's table.
    """

    def __init__(self, table: ArenaTable) -> None:
        self._table = table
        self._ends = select.epoll()
        self._invited: set[int] = set()
        self._processes: dict[int, io.FileIO] = {}
        self._ended: set[int] = set()
        self._leaving: dict[int, int] = {}  # by participant: the acknowledgements after which it is released

    def invite(self, process_descriptor: int) -> int:
        """Return a free number.

        Raises:
            UsageError: all are in use.
        """
        self._release_finished()
        free = set(range(1, MAX_PARTICIPANTS + 1)) - self._invited
        if not free:
            raise UsageError(
                f"an arena has at most {MAX_PARTICIPANTS} participants beside its owner, and all are invited; "
                "release those that have ended, close some of the pipes that share it, or use a second arena"
            )
        participant = min(free)
        if process_descriptor >= 0:
            process = io.FileIO(os.dup(process_descriptor))
            self._ends.register(process.fileno(), select.EPOLLIN)
            self._processes[participant] = process
        self._invited.add(participant)
        self._table.welcome(participant)
        return participant

    def release(self, participant: int) -> int:
        """Remove all holds of a participant, and free its number.

        Returns:
            The number of its holds.

        Raises:
            UsageError: it isn't invited.
        """
        self.check(participant)
        self._invited.remove(participant)
        self._ended.discard(participant)
        self._leaving.pop(participant, None)
        if participant in self._processes:
            self._forget_process(participant)
        return self._table.release(participant)

    def dismiss(self, participant: int, acknowledgements: int) -> None:
        """Release a participant once it holds nothing and has acknowledged that often, or its process has ended.

        Raises:
            UsageError: it isn't invited.
        """
        self.check(participant)
        self._leaving[participant] = acknowledgements
        self._release_finished()

    def take_back(self) -> int:
        """Remove all holds of participants whose processes have ended.

        Returns:
            The number of those holds.
        """
        # A hold may have been added after the last call. A release rings the bell, and wakes all that wait.
        holding = {each for each in self._ended if self._table.leased(each) != self._table.returned(each)}
        descriptors = {descriptor for descriptor, _ in self._ends.poll(0)}
        ended = {each for each, process in self._processes.items() if process.fileno() in descriptors}
        for participant in ended:
            self._forget_process(participant)
        self._ended |= ended
        holds = sum(map(self._table.release, ended | holding))
        self._release_finished()
        return holds

    def check(self, participant: int) -> None:
        """Check that a participant is invited.

        Raises:
            UsageError: it isn't.
        """
        if participant not in self._invited:
            raise UsageError(
                f"participant must be a number that invite() returned and that was not released; got {participant}"
            )

    def close(self) -> None:
        """Close the descriptors."""
        for process in self._processes.values():
            process.close()
        self._processes = {}
        self._ends.close()

    @property
    def ends_descriptor(self) -> int:
        """As `Arena.ends_descriptor`."""
        return self._ends.fileno()

    def _forget_process(self, participant: int) -> None:
        process = self._processes.pop(participant)
        self._ends.unregister(process.fileno())  # its closing alone doesn't: other descriptors of the process are open
        process.close()

    def _release_finished(self) -> None:
        for participant, acknowledgements in list(self._leaving.items()):
            done = self._table.acknowledged(participant) >= acknowledgements
            empty = self._table.returned(participant) == self._table.leased(participant)
            if participant in self._ended or (done and empty):
                self.release(participant)
