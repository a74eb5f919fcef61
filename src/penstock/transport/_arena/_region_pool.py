"""The owner's pool of regions and slots: it leases slots, grows, and returns pages to the system.

The decisions are functions from values to values, at the end: which idle slot to lease, how large a region to create,
which pages to discard. A slot is used again if it is large enough and not far too large. If none is idle, the number of
slots of about that size doubles. So the number of regions, each of which has a descriptor, grows with the logarithm of
the slots in use. The limit counts touched pages; the untouched rest of a slot costs address space only.

One thread at a time may call `lease`, `lease_region` and `discard_idle`, and only the holder of a lease `warm`; any
thread may call all other methods.
"""

import mmap
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from penstock._memory import Lease, Region, create_region
from penstock.errors import UsageError
from penstock.transport._arena._table import MAX_SLOTS, ArenaCounters, ArenaParticipant, ArenaTable, Located, SlotPlace

PAGE_BYTES: Final = mmap.PAGESIZE
ROOMIEST: Final = 4  # the largest slot for a lease, as a multiple of the lease's size with headroom


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


@dataclass(slots=True)
class _Slot:
    """A slot, as its owner sees it.

    Attributes:
        number: its number in the arena.
        region: the number of its region.
        start_bytes: its start in the region.
        size_bytes: its size.
        leased: the place of its last lease.
        touched_bytes: the largest size that was leased since its pages were discarded; it counts against the limit.
        warm_bytes: the part of `touched_bytes` whose pages are populated.
        last_lease: the number of its last lease, among all leases of the pool.
        is_region: whether it is leased as a region, whose pages its holder counts.
    """

    number: int
    region: int
    start_bytes: int
    size_bytes: int
    leased: SlotPlace | None = None
    touched_bytes: int = 0
    warm_bytes: int = 0
    last_lease: int = 0
    is_region: bool = False


@dataclass(frozen=True, slots=True)
class _Span:
    """The addresses of a region in this process: `slots` slots from `first_slot` on, each of `slot_bytes`."""

    address: int
    first_slot: int
    slot_bytes: int
    slots: int


class RegionPool:
    """The regions of an arena, divided into slots, and the idle slots among them.

    Args:
        table: the holds of all participants.
        participant: the owner's part in the table.
        max_bytes: the most memory that may be touched at once; None for no limit.
        headroom: the share of a lease's size by which a new slot is larger.
    """

    def __init__(
        self, table: ArenaTable, participant: ArenaParticipant, *, max_bytes: int | None, headroom: float
    ) -> None:
        self._table = table
        self._participant = participant
        self._limit_bytes = None if max_bytes is None else in_pages(max_bytes)
        self._headroom = headroom
        self.regions: list[Region] = []
        self.slots: list[_Slot] = []
        self.touched_bytes = 0
        self.discarded_bytes = 0
        self._leases = 0
        self._idle: dict[int, list[_Slot]] = {}  # by size; each list ends with the slot that was used last
        self._idle_sizes: list[int] = []  # sizes with an idle slot; ascending
        self._spans: tuple[list[int], list[_Span]] = ([], [])  # by address; immutable, since other threads read it

    def lease(self, size_bytes: int) -> Lease | None:
        """Return a new lease of this process, or None if the held slots leave no room under the limit."""
        self._collect()
        need = need_of(size_bytes, self._headroom)
        size = fitting(self._idle_sizes, need)
        slot = None if size is None else self._idle[size][-1]
        if not self._make_room(need, slot):
            return None
        if slot is None:
            self._grow(need)
            slot = self._idle[need.slot_bytes][-1]
        self._take(slot)  # before the lease: an exception in between must not leave a slot both idle and leased
        lease = self._participant.lease(self.regions[slot.region], slot.start_bytes, size_bytes, slot.number)
        if slot.leased is None or slot.leased.size_bytes != size_bytes:
            slot.leased = SlotPlace(slot.number, slot.region, slot.start_bytes, size_bytes)
        if slot.touched_bytes < need.touched_bytes:
            self.touched_bytes += need.touched_bytes - slot.touched_bytes
            slot.touched_bytes = need.touched_bytes
        self._leases += 1
        slot.last_lease = self._leases
        return lease

    def lease_region(self, size_bytes: int) -> tuple[Region, Lease]:
        """Return a region that is one slot, and a new lease of this process over its first `size_bytes`."""
        self._collect()
        slot = self._idle_region(size_bytes)
        if slot is None:
            (slot,) = self._add_region(NewRegion(in_pages(size_bytes), 1))
        else:
            self._idle[slot.size_bytes].remove(slot)
            self._drop_empty_size(slot.size_bytes)
            self.touched_bytes -= slot.touched_bytes
            slot.touched_bytes = slot.warm_bytes = 0
        region = self.regions[slot.region]
        slot.leased, slot.is_region = SlotPlace(slot.number, slot.region, 0, size_bytes), True
        return region, self._participant.lease(region, 0, size_bytes, slot.number)

    def discard_idle(self) -> None:
        """Return the memory of idle slots to the system."""
        self._collect()
        for idle in self._idle.values():
            for slot in idle:
                self._discard(slot)

    def warm(self, number: int) -> None:
        """Populate the touched pages of a slot, so that writes cause no page fault; called by its holder."""
        slot = self.slots[number]
        if slot.warm_bytes < slot.touched_bytes:
            start, size = slot.start_bytes + slot.warm_bytes, slot.touched_bytes - slot.warm_bytes
            self.regions[slot.region].populate(start, size, reading=False)
            slot.warm_bytes = slot.touched_bytes

    def place_of(self, number: int) -> SlotPlace:
        """Return the place of a slot, with the size of its last lease; 0 if it was never leased."""
        slot = self.slots[number]
        return slot.leased or SlotPlace(number, slot.region, slot.start_bytes, 0)

    def region(self, number: int) -> Region:
        """Return a region.

        Raises:
            UsageError: no region has that number.
        """
        if not 0 <= number < len(self.regions):
            raise UsageError(f"region must be one of the arena's {len(self.regions)}; got {number!r}")
        return self.regions[number]

    def counters(self, leased: int, returned: int) -> ArenaCounters:
        """Return the counters; the table has counted `leased` and `returned`."""
        return ArenaCounters(
            leased=leased,
            returned=returned,
            slots=len(self.slots),
            regions=len(self.regions),
            bytes=self.touched_bytes,
            address_bytes=sum(len(region) for region in self.regions),
            discarded_bytes=self.discarded_bytes,
        )

    def locate(self, address: int, size_bytes: int) -> Located | None:
        """Return the slot, held by this process, whose lease contains all of this memory; None if none does."""
        addresses, spans = self._spans
        at = bisect_right(addresses, address) - 1
        if at < 0:
            return None
        span = spans[at]
        slot, offset_bytes = divmod(address - span.address, span.slot_bytes)
        if slot >= span.slots:
            return None
        slot += span.first_slot
        leased = self.slots[slot].leased
        if leased is None or offset_bytes + size_bytes > leased.size_bytes or not self._table.holds(slot, 0):
            return None
        return Located(slot, offset_bytes)

    def _collect(self) -> None:
        for number in self._participant.take_idle():
            slot = self.slots[number]
            if slot.is_region:
                self.regions[slot.region].discard(0, slot.size_bytes)
                slot.is_region = False
            self._put_idle(slot)

    def _make_room(self, need: Need, slot: _Slot | None) -> bool:
        """Return whether the lease fits under the limit, after the return of idle memory to the system if needed."""
        if self._limit_bytes is None:
            return True
        more_bytes = max(need.touched_bytes - (slot.touched_bytes if slot else 0), 0)
        excess_bytes = self.touched_bytes + more_bytes - self._limit_bytes
        if excess_bytes <= 0:
            return True
        others = [other for idle in self._idle.values() for other in idle if other is not slot]
        others.sort(key=lambda other: other.last_lease)
        chosen = discarded([(other.number, other.touched_bytes) for other in others], excess_bytes)
        for number in chosen or ():
            self._discard(self.slots[number])
        return chosen is not None

    def _discard(self, slot: _Slot) -> None:
        self.regions[slot.region].discard(slot.start_bytes, slot.touched_bytes)
        self.touched_bytes -= slot.touched_bytes
        self.discarded_bytes += slot.touched_bytes
        slot.touched_bytes = slot.warm_bytes = 0

    def _grow(self, need: Need) -> None:
        most = MAX_SLOTS - len(self.slots)
        if self._limit_bytes is not None:
            most = min(most, max(self._limit_bytes // need.touched_bytes, 1))
        alike = sum(need.touched_bytes <= slot.size_bytes <= need.roomiest_bytes for slot in self.slots)
        for slot in reversed(self._add_region(new_region(need, alike=alike, most=most))):
            self._put_idle(slot)

    def _add_region(self, planned: NewRegion) -> list[_Slot]:
        if len(self.slots) == MAX_SLOTS:
            raise UsageError(
                f"an arena has at most {MAX_SLOTS} slots, and no idle one has a suitable size; drop some of the arrays "
                "that you keep, or put several into one"
            )
        region = create_region(planned.slot_bytes * planned.slots)
        first = len(self.slots)
        self.regions.append(region)
        self.slots.extend(
            _Slot(first + number, len(self.regions) - 1, number * planned.slot_bytes, planned.slot_bytes)
            for number in range(planned.slots)
        )
        spans = sorted([*self._spans[1], _Span(region.address, first, planned.slot_bytes, planned.slots)], key=_address)
        self._spans = ([span.address for span in spans], spans)
        return self.slots[first:]

    def _idle_region(self, size_bytes: int) -> _Slot | None:
        """Return the smallest idle slot that is a whole region and neither too small nor far too large, or None."""
        for size in self._idle_sizes[bisect_left(self._idle_sizes, size_bytes) :]:
            if size > need_of(size_bytes, self._headroom).roomiest_bytes:
                break
            for slot in self._idle[size]:
                if len(self.regions[slot.region]) == size:
                    return slot
        return None

    def _put_idle(self, slot: _Slot) -> None:
        stack = self._idle.setdefault(slot.size_bytes, [])
        if not stack:
            insort(self._idle_sizes, slot.size_bytes)
        stack.append(slot)

    def _take(self, slot: _Slot) -> None:
        """Remove a slot, which is the last of its list, from the idle ones."""
        self._idle[slot.size_bytes].pop()
        self._drop_empty_size(slot.size_bytes)

    def _drop_empty_size(self, size_bytes: int) -> None:
        if not self._idle[size_bytes]:
            self._idle_sizes.remove(size_bytes)


def _address(span: _Span) -> int:
    return span.address


def in_pages(size_bytes: int) -> int:
    """Return the size rounded up to whole pages, at least one."""
    return max(-(-size_bytes // PAGE_BYTES), 1) * PAGE_BYTES


@lru_cache(maxsize=128)  # most leases are of a few sizes
def need_of(size_bytes: int, headroom: float) -> Need:
    """Return the bounds on the slot of a lease of this size.

    Args:
        size_bytes: the size of the lease.
        headroom: the share of that size by which a new slot is larger.
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
    """Return the idle slots whose pages to return to the system, or None if all together have too few pages.

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
