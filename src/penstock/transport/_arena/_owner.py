"""The owner of an arena: it alone makes memory and lends slots, to itself and on others' behalf.

Guarantees:
  - A slot is lent again only when nobody holds it: no array of this process is over it, and no participant has a hold
    that it has not given back. Nothing is ever overwritten under a live view.
  - A hold on a participant's behalf counts from `hold` on: an owner that adds it before it drops its own lease, and
    before it tells the participant, can't lose the slot in between.
  - A participant that is killed loses nothing but its own holds, and those come back at `release_participant`.
  - `leased` and `returned` count exactly: they are equal when nobody holds anything.
  - The bell rings at each return, and each acknowledgement: clear it, look, wait on `fileno`.

Any thread of the owner may call any method; a lock is held while a slot is chosen, and never while user code runs. The
owner is one process: in a child made by fork an arena can't be used, and copies of its leases return nothing.
"""

import math
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock._os import Bell
from penstock.errors import ClosedError, UsageError
from penstock.transport._arena._guests import Guests
from penstock.transport._arena._region_pool import Stock
from penstock.transport._arena._room import wait_for_room
from penstock.transport._arena._table import ArenaParticipant, ArenaTable, create_table, join_table
from penstock.transport._arena._values import ArenaCounters, Located, SlotPlace
from penstock.transport._memory import Lease, Region, array_over

ScalarT = TypeVar("ScalarT", bound=np.generic)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What an open arena has; who took it before `close` may go on with it, and nobody else."""

    table: ArenaTable
    participant: ArenaParticipant
    stock: Stock
    guests: Guests


class Arena:
    """Memory for arrays that other processes see without a copy, lent out in slots that come back by themselves.

    Slots are used again, so that their pages are there already. Memory grows as it is needed; what counts is what was
    touched, and room that is kept free behind it costs addresses alone.

    Args:
        max_bytes: how much memory may be touched at once; None for no limit. Beyond it, memory of idle slots is given
            back to the system first; then callers wait.
        headroom: by which share of what is asked for a new slot is larger, so that somewhat larger arrays fit later.

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
                f"an arena needs Linux, whose shared memory has no name and can be sealed; this is {sys.platform!r}. "
                "Use threads, or pipes that copy"
            )
        if max_bytes is not None and max_bytes <= 0:
            raise UsageError(f"max_bytes must be positive, or None for no limit; got {max_bytes!r}")
        if not (math.isfinite(headroom) and headroom >= 0):
            raise UsageError(f"headroom must be a share of 0 or more, such as 0.25; got {headroom!r}")
        table = create_table()
        participant = join_table(table, 0)
        stock = Stock(table, participant, max_bytes=max_bytes, headroom=headroom)
        self._parts: _Parts | None = _Parts(table, participant, stock, Guests(table))
        self._last_counters = ArenaCounters(0, 0, 0, 0, 0, 0, 0)
        self.max_bytes: Final = max_bytes
        self._listeners: tuple[Bell, ...] = ()  # replaced as a whole, since others read it
        self._lock = threading.Lock()  # around choosing a slot and changing who is invited

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lend nothing more, and let go of all memory that no array is over; arrays stay valid. May be called again."""
        parts = self._parts
        if parts is None:
            return
        self._last_counters = self.counters
        self._parts = None
        with self._lock:
            parts.guests.close()
        if parts.participant.here:
            parts.table.ring()  # for who waits in `empty`

    def lease_nowait(self, size_bytes: int) -> Lease | None:
        """Lend memory to this process, aligned to 64 bytes and with any bytes in it.

        Args:
            size_bytes: how much; the lease has exactly that length.

        Returns:
            The lease, or None if what is held leaves no room under `max_bytes`: the bell rings when that may have
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
                f"what is asked for must fit into the arena: {size_bytes} bytes are more than "
                f"max_bytes={self.max_bytes}; raise max_bytes, or use smaller parts"
            )
        stock = self._open().stock
        with self._lock:
            lease = stock.lease(size_bytes)
        if lease is None and self.reclaim():
            with self._lock:
                lease = stock.lease(size_bytes)
        if lease is not None:
            stock.warm(lease.slot)  # it may take milliseconds, and concerns the holder alone
        return lease

    def lease_region(self, size_bytes: int) -> tuple[Region, Lease]:
        """Return a region of at least that size, and a lease of so many bytes from its start.

        It is for who hands its descriptor on and lends its memory again; what is used of it counts there, not here.
        """
        stock = self._open().stock
        with self._lock:
            return stock.lease_region(size_bytes)

    def discard_idle(self) -> None:
        """Give the memory of idle slots back to the system, since it won't be needed again soon."""
        stock = self._open().stock
        with self._lock:
            stock.discard_idle()

    def empty(
        self, shape: Sequence[int], dtype: type[ScalarT] | np.dtype[ScalarT], *, timeout_seconds: float | None = None
    ) -> NDArray[ScalarT]:
        """Return an array of the arena's memory with any bytes in it, once there is room; its last view returns it.

        While it waits, `want` says for how much. It waits for returns, not for deaths: somebody else must call
        `reclaim` or `release_participant`.

        Args:
            shape: the array's shape.
            dtype: its dtype; any that holds no Python objects.
            timeout_seconds: how long to wait at most; None for ever.

        Returns:
            A writable C-ordered array, aligned to 64 bytes.

        Raises:
            UsageError: as for `lease_nowait`; or the dtype holds Python objects; or there is no room and all memory is
                held by arrays of this very process.
            TimeoutError: there was no room in time.
            ClosedError: the arena was closed.
        """
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise UsageError(f"Python objects can't be in memory that processes share; got dtype {kind}")
        if any(length < 0 for length in shape):
            raise UsageError(f"lengths must not be negative; got shape {tuple(shape)}")
        size_bytes = math.prod(shape) * kind.itemsize
        lease = self.lease_nowait(size_bytes)
        if lease is None:
            lease = wait_for_room(self, self._open().table, size_bytes, timeout_seconds)
        return array_over(lease, shape, kind)

    def place_of(self, slot: int) -> SlotPlace:
        """Return where a slot lies, and how much of it was last lent.

        Raises:
            UsageError: there is no such slot.
            ClosedError: the arena was closed.
        """
        return self._stock_of(slot).place_of(slot)

    def locate(self, address: int, size_bytes: int) -> Located | None:
        """Return which slot some memory of this process lies in.

        Args:
            address: where it starts.
            size_bytes: its length.

        Returns:
            The slot, held by this process, that has all of it; None if none has, or the arena was closed.
        """
        parts = self._parts
        return None if parts is None else parts.stock.locate(address, size_bytes)

    def invite(self, process_descriptor: int = -1) -> int:
        """Return a number for a new participant; it needs that and the descriptors.

        Args:
            process_descriptor: of its process, as `os.pidfd_open` gives it; copied. When that ends, `reclaim` takes
                back what it held. -1 where somebody else watches it.

        Raises:
            UsageError: 63 were invited and not released.
            ClosedError: the arena was closed.
        """
        guests = self._open().guests
        with self._lock:
            return guests.invite(process_descriptor)

    def hold(self, slot: int, participant: int) -> None:
        """Hold a slot once more on a participant's behalf, before it is told of it and before one's own lease goes.

        Raises:
            UsageError: nobody holds the slot, so that it may be lent at any time; or that participant isn't invited.
        """
        table = self._check_hold(slot, participant)
        if table.idle(slot):
            raise UsageError(f"a slot must be held when a hold on it is given away; nobody holds slot {slot}")
        table.hold(slot, participant)

    def unhold(self, slot: int, participant: int) -> None:
        """Take back a hold that the participant was never told of.

        Raises:
            UsageError: it has none on that slot; or that participant isn't invited.
        """
        if not self._check_hold(slot, participant).give_back(slot, participant):
            raise UsageError(f"only a hold that was given can be taken back; participant {participant} has none")

    def holds(self, slot: int, participant: int) -> int:
        """Return how many holds a participant has on a slot now; 0 is the owner."""
        return self._table_of(participant).holds(slot, participant)

    def held_by(self, participant: int) -> int:
        """Return how many holds a participant has now; 0 is the owner."""
        table = self._table_of(participant)
        returned = table.returned(participant)  # first, so that the difference isn't negative
        return table.leased(participant) - returned

    def returned_by(self, participant: int) -> int:
        """Return how many holds a participant has given back since it was invited; 0 is the owner."""
        return self._table_of(participant).returned(participant)

    def release_participant(self, participant: int) -> int:
        """Take back all that a participant holds, and its number; it rings the bell.

        Args:
            participant: one that certainly can't touch memory any more: its process is gone, or it has said that it
                dropped all.

        Returns:
            How many holds it had.

        Raises:
            UsageError: that participant isn't invited.
        """
        parts = self._open()
        with self._lock:
            return parts.guests.release(participant)

    def dismiss(self, participant: int, *, acknowledgements: int) -> None:
        """Release a participant as soon as it has nothing left: nothing more will be held on its behalf.

        Args:
            participant: its number, free once all is returned and so often acknowledged, or its process has ended.
            acknowledgements: how often it must have acknowledged.

        Raises:
            UsageError: that participant isn't invited.
        """
        guests = self._open().guests
        with self._lock:
            guests.dismiss(participant, acknowledgements)

    def reclaim(self) -> int:
        """Take back all that participants hold whose processes have ended; their numbers stay until they are released.

        `lease_nowait` does it by itself before it says that there is no room.

        Returns:
            How many holds they had.

        Raises:
            ClosedError: the arena was closed.
        """
        with self._lock:
            return self._open().guests.take_back()

    def acknowledged(self, participant: int) -> int:
        """Return how often a participant has acknowledged something, since it was invited."""
        return self._table_of(participant).acknowledged(participant)

    def want(self, size_bytes: int) -> None:
        """Tell the participants how many bytes the owner waits for; 0 for none."""
        self._open().table.wanted = size_bytes

    def fileno(self) -> int:
        """Return the bell's descriptor: readable when something came back or was acknowledged; not to be read from."""
        return self._open().table.bell_descriptor

    def listen(self, bell: Bell) -> None:
        """Have a bell rung whenever another listener clears the arena's: what that told may be for this one.

        Where several wait on one arena, each brings a bell of its own, and waits on both.
        """
        with self._lock:
            self._listeners = (*self._listeners, bell)

    def listen_no_longer(self, bell: Bell) -> None:
        """Forget a bell that `listen` was given."""
        with self._lock:
            self._listeners = tuple(other for other in self._listeners if other is not bell)

    def clear_bell(self, own: Bell | None = None) -> None:
        """Make the bell's descriptor unreadable; look for what you wait for after this, and before you wait.

        Args:
            own: the caller's, if it listens; it is not rung, and cleared by the caller before this.
        """
        if self._open().table.clear_bell():
            for bell in self._listeners:
                if bell is not own:
                    bell.ring()

    @property
    def table_descriptor(self) -> int:
        """The descriptor of the table, for those invited."""
        return self._open().table.descriptor

    @property
    def bell_descriptor(self) -> int:
        """The descriptor of the bell, for those invited."""
        return self._open().table.bell_descriptor

    def region_descriptor(self, region: int) -> int:
        """Return the descriptor of a region, for those that are told of a slot in it.

        Raises:
            UsageError: there is no such region.
            ClosedError: the arena was closed.
        """
        return self._open().stock.region(region).descriptor

    @property
    def counters(self) -> ArenaCounters:
        """What was lent, and what it takes; after `close`, as it was then."""
        if (parts := self._parts) is None:
            return self._last_counters
        returned = parts.table.all_returned  # first: what comes and goes in between shows as held
        leased = parts.table.all_leased
        with self._lock:
            return parts.stock.counters(leased, returned)

    def _open(self) -> _Parts:
        parts = self._parts
        if parts is None:
            raise ClosedError("the arena was closed; make another")
        if not parts.participant.here:
            raise UsageError(
                "an arena belongs to the process that made it, and this is a child that was forked from it; "
                "attach to it with AttachedArena, or make another arena here"
            )
        return parts

    def _table_of(self, participant: int) -> ArenaTable:
        parts = self._open()
        if participant != 0:
            parts.guests.check(participant)
        return parts.table

    def _check_hold(self, slot: int, participant: int) -> ArenaTable:
        self._open().guests.check(participant)
        self._stock_of(slot)
        return self._open().table

    def _stock_of(self, slot: int) -> Stock:
        stock = self._open().stock
        if not 0 <= slot < len(stock.slots):
            raise UsageError(f"slot must be one of the arena's {len(stock.slots)}; got {slot!r}")
        return stock
