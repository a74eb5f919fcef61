"""An arena in a process that doesn't own it: the process adopts holds on slots that the owner sends, and ends them.

Guarantees:
  - Each hold that the owner added on this process's behalf is adopted by one lease. The hold ends when the last array
    over that lease is dropped: on any thread, in a collected cycle, or while the interpreter exits; natively and
    without a lock.
  - Each place that the owner sends is checked before memory is touched; a wrong one raises a `MessageError`.

Any thread may call any method.
"""

from penstock._memory import ALIGNMENT, Lease, Region, open_region
from penstock.errors import ClosedError, MessageError, UsageError
from penstock.transport._arena._table import MAX_PARTICIPANTS, ArenaParticipant, ArenaTable, SlotPlace
from penstock.transport._arena._table import open_table as _open_table


class AttachedArena:
    """A participant's side of an arena.

    Args:
        table_descriptor: the descriptor of the owner's table; copied.
        bell_descriptor: the descriptor of the owner's bell; copied.
        participant: the number that the owner's `invite` returned.

    Raises:
        MessageError: the descriptors are not those of an arena of this version, or no participant has that number.
        OSError: no address space is left.

    Example:
        Both ends are in one process here. Between two processes, send descriptors and places over a Unix socket.

        >>> import numpy as np
        >>> from penstock.transport._arena import Arena
        >>> from penstock._memory import array_over
        >>> arena = Arena()
        >>> attached = AttachedArena(arena.table_descriptor, arena.bell_descriptor, arena.invite())
        >>> array = arena.empty((3,), np.uint8)
        >>> array[...] = 1, 2, 3
        >>> place = arena.place_of(arena.locate(array.ctypes.data, array.nbytes).slot)
        >>> arena.hold(place.slot, 1)
        >>> del array
        >>> attached.add_region(place.region, arena.region_descriptor(place.region))
        >>> received = array_over(attached.adopt(place), (3,), np.uint8)
        >>> received.tolist(), arena.held_by(1)
        ([1, 2, 3], 1)
        >>> del received
        >>> arena.held_by(1)
        0
        >>> attached.close()
        >>> arena.close()
    """

    def __init__(self, table_descriptor: int, bell_descriptor: int, participant: int) -> None:
        if not 1 <= participant <= MAX_PARTICIPANTS:
            raise MessageError(f"a participant's number must be in 1 … {MAX_PARTICIPANTS}; got {participant!r}")
        joined = _open_table(table_descriptor, bell_descriptor, participant)
        self._number = participant
        self._joined: tuple[ArenaTable, ArenaParticipant] | None = joined
        self._regions: dict[int, Region] = {}
        self._warm_bytes: dict[int, int] = {}  # of each slot: how many bytes, from its start, have mapped pages

    def close(self) -> None:
        """Close; harmless when repeated. Arrays stay valid and keep their holds and regions; the rest is unmapped."""
        self._joined = None
        self._regions = {}

    def add_region(self, region: int, descriptor: int) -> None:
        """Map a region; the descriptor is copied.

        Args:
            region: the region's number.
            descriptor: the descriptor of the region's memory.

        Raises:
            MessageError: the memory isn't sealed shared memory, or a region has that number already.
            ClosedError: this arena was closed here.
        """
        self._open()
        if region in self._regions:
            raise MessageError(f"each region must be sent once; region {region} was sent before")
        self._regions[region] = open_region(descriptor)

    def region(self, region: int) -> Region:
        """Return the mapping of a region, for a process that writes at the places that the owner names.

        Raises:
            MessageError: the region was never added.
        """
        if region not in self._regions:
            raise MessageError(f"a region must be sent before a slot in it; region {region!r} was not")
        return self._regions[region]

    def adopt(self, place: SlotPlace) -> Lease:
        """Adopt a hold that the owner added on this process's behalf.

        Args:
            place: the result of the owner's `place_of`.

        Returns:
            The lease of the slot; each hold can be adopted once.

        Raises:
            MessageError: the place is in no region that was added, or no hold is left to adopt.
            ClosedError: this arena was closed here.
        """
        table, participant = self._open()
        region = self.region(place.region)
        end = place.start_bytes + place.size_bytes
        inside = 0 <= place.start_bytes <= end <= len(region) and place.start_bytes % ALIGNMENT == 0
        if not inside or not 0 <= place.slot < table.slots:
            raise MessageError(f"a slot must be inside its region of {len(region)} bytes, aligned; got {place}")
        try:
            lease = participant.lease(region, place.start_bytes, place.size_bytes, place.slot)
        except ValueError as error:
            raise MessageError(
                f"the owner must hold a slot on behalf of the process that adopts it: slot {place.slot}: {error}"
            ) from error
        warm_bytes = self._warm_bytes.get(place.slot, 0)
        if warm_bytes < place.size_bytes:
            region.populate(place.start_bytes + warm_bytes, place.size_bytes - warm_bytes, reading=True)
            self._warm_bytes[place.slot] = place.size_bytes
        return lease

    def drop(self, slot: int) -> None:
        """Return a hold on a slot that was not adopted.

        Raises:
            MessageError: this participant has no such hold on the slot.
            ClosedError: this arena was closed here.
        """
        table, participant = self._open()
        if not 0 <= slot < table.slots:
            raise MessageError(f"a slot's number must be below {table.slots}; got {slot!r}")
        try:
            participant.drop(slot)
        except ValueError as error:
            raise MessageError(f"only a hold can be returned: slot {slot}: {error}") from error

    def acknowledge(self) -> None:
        """Count one more acknowledgement of this participant, and ring the owner's bell."""
        self._open()[0].acknowledge(self._number)

    @property
    def wanted(self) -> int:
        """The number of bytes of memory that the owner waits for; 0 if it doesn't wait."""
        return self._open()[0].wanted

    @property
    def returned(self) -> int:
        """The number of holds that this participant has returned since it was invited."""
        return self._open()[0].returned(self._number)

    @property
    def held(self) -> int:
        """The number of holds that this participant has now, adopted or not."""
        table, _ = self._open()
        returned = table.returned(self._number)  # read first, so that the difference isn't negative
        return table.leased(self._number) - returned

    def _open(self) -> tuple[ArenaTable, ArenaParticipant]:
        if self._joined is None:
            raise ClosedError("the arena was closed here; attach to it again with a new participant number")
        if not self._joined[1].here:
            raise UsageError("this arena belongs to the parent of this forked process; attach to it again in the child")
        return self._joined
