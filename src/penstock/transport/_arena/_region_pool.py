"""The owner's stock of regions and slots: lends them, grows, and gives memory back, as `_plan` decides.

One thread at a time calls `lease`, `lease_region` and `discard_idle`; `warm` is called by who got the lease, and all
else by anyone.
"""

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass

from penstock.errors import UsageError
from penstock.transport._arena._plan import Need, NewRegion, discarded, fitting, in_pages, need_of, new_region
from penstock.transport._arena._table import MAX_SLOTS, ArenaParticipant, ArenaTable, create_region
from penstock.transport._arena._values import ArenaCounters, Located, SlotPlace
from penstock.transport._memory import Lease, Region


@dataclass(slots=True)
class _Slot:
    """A slot as its owner knows it; `touched_bytes` counts against the limit, `warm_bytes` were made to be there."""

    number: int
    region: int
    start_bytes: int
    size_bytes: int
    leased: SlotPlace | None = None  # as it was last lent
    touched_bytes: int = 0
    warm_bytes: int = 0
    last_lease: int = 0
    is_region: bool = False  # lent as a region, whose pages count elsewhere


@dataclass(frozen=True, slots=True)
class _Span:
    """Where a region lies in this process: `first_slot` and those behind it, each of `slot_bytes`."""

    address: int
    first_slot: int
    slot_bytes: int
    slots: int


class Stock:
    """Regions divided into slots, most of them lent.

    Args:
        table: which slots are held, and by whom.
        participant: the owner's part.
        max_bytes: how much memory may be touched at once; None for no limit.
        headroom: by which share of a lease a slot made for it is larger.
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
        self._idle: dict[int, list[_Slot]] = {}  # by size; the last of a list was used last
        self._idle_sizes: list[int] = []  # of lists that aren't empty; ascending
        self._spans: tuple[list[int], list[_Span]] = ([], [])  # by address; replaced as a whole, since others read it

    def lease(self, size_bytes: int) -> Lease | None:
        """Return a new lease of this process, or None if what is held leaves no room under the limit."""
        self._collect()
        need = need_of(size_bytes, self._headroom)
        size = fitting(self._idle_sizes, need)
        slot = None if size is None else self._idle[size][-1]
        if not self._make_room(need, slot):
            return None
        if slot is None:
            self._grow(need)
            slot = self._idle[need.slot_bytes][-1]
        self._take(slot)  # before it is lent: were this call broken off in between, it must not be idle and lent
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
        """Return a region that is one slot, and a new lease of this process over what was asked for of it."""
        self._collect()
        slot = self._idle_region(size_bytes)
        if slot is None:
            (slot,) = self._add_region(NewRegion(in_pages(size_bytes), 1))
        else:
            self._idle[slot.size_bytes].remove(slot)
            self._forget_size(slot.size_bytes)
            self.touched_bytes -= slot.touched_bytes
            slot.touched_bytes = slot.warm_bytes = 0
        region = self.regions[slot.region]
        slot.leased, slot.is_region = SlotPlace(slot.number, slot.region, 0, size_bytes), True
        return region, self._participant.lease(region, 0, size_bytes, slot.number)

    def discard_idle(self) -> None:
        """Give the memory of idle slots back to the system."""
        self._collect()
        for idle in self._idle.values():
            for slot in idle:
                self._discard(slot)

    def warm(self, number: int) -> None:
        """Make all pages that were lent of a slot be there, so that writing meets no fault; by who holds it."""
        slot = self.slots[number]
        if slot.warm_bytes < slot.touched_bytes:
            start, size = slot.start_bytes + slot.warm_bytes, slot.touched_bytes - slot.warm_bytes
            self.regions[slot.region].populate(start, size, reading=False)
            slot.warm_bytes = slot.touched_bytes

    def place_of(self, number: int) -> SlotPlace:
        """Return where a slot lies, with the size of its last lease; 0 if it was never lent."""
        slot = self.slots[number]
        return slot.leased or SlotPlace(number, slot.region, slot.start_bytes, 0)

    def region(self, number: int) -> Region:
        """Return a region.

        Raises:
            UsageError: there is none with that number.
        """
        if not 0 <= number < len(self.regions):
            raise UsageError(f"region must be one of the arena's {len(self.regions)}; got {number!r}")
        return self.regions[number]

    def counters(self, leased: int, returned: int) -> ArenaCounters:
        """Return what was lent, which is known elsewhere, and what it takes."""
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
        """Return which slot, held by this process, has all of these addresses lent; None if none has."""
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
        """Return whether what is needed fits under the limit, for which idle memory is given back to the system."""
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
                f"an arena has at most {MAX_SLOTS} slots, and none that is idle would do; drop some of the arrays "
                "that are held, or hold several in one"
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
        """Return the smallest idle slot that has a region of its own, if one is large enough and not far too large."""
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
        """Take the slot that is the last of its list."""
        self._idle[slot.size_bytes].pop()
        self._forget_size(slot.size_bytes)

    def _forget_size(self, size_bytes: int) -> None:
        if not self._idle[size_bytes]:
            self._idle_sizes.remove(size_bytes)


def _address(span: _Span) -> int:
    return span.address
