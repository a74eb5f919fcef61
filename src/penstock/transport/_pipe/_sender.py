"""What a writer does, as steps: waits for room and memory, copies, tells the reader; and what it owns."""

import contextlib
import gc
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast

import numpy as np

from penstock._os import Bell
from penstock._tree import Element
from penstock.errors import ClosedError, PenstockError, UsageError
from penstock.transport._arena import Arena, SlotPlace
from penstock.transport._encoding import Encoded, Encoder, OnDevice
from penstock.transport._memory import Lease, array_over
from penstock.transport._pipe._blank import Blank
from penstock.transport._pipe._device_slots import TICKET_BYTES, DeviceSlots
from penstock.transport._pipe._frames import (
    INLINE_BYTES,
    Frame,
    Hello,
    Kind,
    Message,
    Starved,
    pack_device_slot,
    pack_hello,
    pack_message,
    pack_region,
    pack_starved,
)
from penstock.transport._pipe._operations import Operations, Steps
from penstock.transport._pipe._outbox import Outbox

Taken = TypeVar("Taken")


@dataclass(frozen=True, slots=True)
class WriterCounters:
    """What a writer did so far.

    Attributes:
        messages: elements sent.
        copied_bytes: what was copied for that, into shared memory or, if small, into the socket; on devices as well.
        shared_bytes: what was sent by reference, because it is in the arena; for a strided view, all that it spans.
        pickled: leaves that had to be pickled.
        waits: how often `send` had to wait for the reader.

    Example:
        >>> from penstock.transport import TensorPipeReader, TensorPipeWriter
        >>> with TensorPipeReader() as reader, TensorPipeWriter(reader.address) as writer:
        ...     writer.send(7)
        ...     writer.counters
        WriterCounters(messages=1, copied_bytes=0, shared_bytes=0, pickled=0, waits=0)
    """

    messages: int = 0
    copied_bytes: int = 0
    shared_bytes: int = 0
    pickled: int = 0
    waits: int = 0


class Sender:
    """A writer's connection, its part in an arena, and the operations on both; a resource that `operations` closes.

    Args:
        address: of the reader.
        arena: the memory that is sent from.
        capacity: how many messages may be on their way.
        allow_pickle: send by pickle what can't be sent otherwise.
        owns_arena: whether it is closed with this.
        least_shared_bytes: leaves that lie in the arena and are smaller are copied all the same.

    Attributes:
        operations: runs the steps, one after the other.
        arena: as given.
    """

    def __init__(
        self,
        address: str,
        arena: Arena,
        *,
        capacity: int,
        allow_pickle: bool,
        owns_arena: bool,
        least_shared_bytes: int = 0,
    ) -> None:
        self.arena = arena
        self._messages = self._copied_bytes = self._shared_bytes = self._waits = 0
        self._capacity = capacity
        self._owns_arena = owns_arena
        self._told_regions: set[int] = set()
        self._encoder = Encoder(allow_pickle=allow_pickle, locate=self._locate, least_located_bytes=least_shared_bytes)
        self._device_slots = DeviceSlots(arena.max_bytes, self.holds, partial(arena.lease_nowait, TICKET_BYTES))
        self._last_word: Frame | None = None
        self._bell = Bell()
        self._outbox = Outbox(address, allow_pickle=allow_pickle)
        process = -1 if self._outbox.process is None else self._outbox.process.fileno()
        try:
            self._participant = arena.invite(process)
        except BaseException:
            self._outbox.close()
            raise
        try:
            self.operations = Operations("this TensorPipeWriter", self._dispose)
            for descriptor in (self._outbox.descriptor, arena.fileno(), self._bell.fileno(), process):
                if descriptor >= 0:
                    self.operations.watch(descriptor)
            arena.listen(self._bell)
            self._introduce()
        except BaseException:
            self._dispose()
            raise
        self._last_word = Frame(Kind.END, b"")

    @property
    def reader_pid(self) -> int:
        """The number of the reader's process."""
        return self._outbox.pid

    @property
    def counters(self) -> WriterCounters:
        """What was done so far."""
        return WriterCounters(
            self._messages, self._copied_bytes, self._shared_bytes, self._encoder.pickled, self._waits
        )

    def making_room(self) -> Steps[None]:
        """Wait until an element that is sent would not have to wait for the reader.

        Yields:
            Where it has to wait.
        """
        if not self._has_room():
            yield from self._until_room()

    def sending(self, element: object) -> Steps[tuple[int, ...]]:
        """Send an element.

        Yields:
            Where it has to wait, as all steps do.

        Returns:
            The slots in which leaves lie that were sent by reference.
        """
        encoded = self._encoder.encode(element)
        if encoded.description is not None:
            # Once the encoder has told it, it won't again: it goes out even if this element never does.
            self._outbox.post(Frame(Kind.LAYOUT, encoded.description))
        if not self._has_room():
            yield from self._until_room()
        copied_bytes = encoded.size_bytes
        on_device = [place for place in encoded.places if isinstance(place, OnDevice)]
        if on_device:
            encoded = yield from self._on_devices(encoded, on_device)
            copied_bytes += sum(place.size_bytes for place in on_device)
        if encoded.size_bytes <= INLINE_BYTES:
            self._post(encoded, _inline(encoded))
        else:
            lease = yield from self._leased(encoded.size_bytes)
            encoded.write_into(array_over(lease, (encoded.size_bytes,), np.uint8))
            self._post(encoded, self.arena.place_of(lease.slot))
            del lease  # the reader's hold on the slot stays
        yield from self._delivered()
        tickets = self._device_slots.numbers()
        shared = [place for place in cast("tuple[SlotPlace, ...]", encoded.places) if place.slot not in tickets]
        self._messages += 1
        self._copied_bytes += copied_bytes
        self._shared_bytes += sum(place.size_bytes for place in shared)
        return tuple({place.slot for place in shared})

    def holds(self, slot: int) -> bool:
        """Return whether the reader holds a slot of the arena."""
        return self.arena.holds(slot, self._participant) > 0

    def making(self, blank: Blank) -> Steps[Element]:
        """Return an element without contents, once there is memory for it.

        Yields:
            Where it has to wait.

        Returns:
            The element.
        """
        lease = yield from self._leased(max(blank.size_bytes, 1))
        return blank.over(lease)

    def fail(self, described: bytes) -> None:
        """Have a failure be the last word, and not the end."""
        self._last_word = Frame(Kind.FAILED, described)

    def ending(self) -> Steps[None]:
        """Say the last word.

        Yields:
            Where it has to wait.
        """
        self._post_last_word()
        yield from self._flushed()

    def _on_devices(self, encoded: Encoded, leaves: Sequence[OnDevice]) -> Steps[Encoded]:
        """Have tensors copied into slots of their devices, by these devices' current streams.

        Yields:
            Where it has to wait for a slot.

        Returns:
            The message, with the slots' tickets for places.
        """
        tickets: dict[int, SlotPlace] = {}
        for device in dict.fromkeys(leaf.device for leaf in leaves):
            there = [leaf for leaf in leaves if leaf.device == device]
            size_bytes = max(leaf.offset_bytes + leaf.size_bytes for leaf in there)
            slot = yield from self._taken(partial(self._device_slots.take, device, size_bytes), size_bytes)
            slot.memory.fill(there)
            tickets[device] = self.arena.place_of(slot.number)
        places = (tickets[place.device] if isinstance(place, OnDevice) else place for place in encoded.places)
        return encoded._replace(places=tuple(places))

    def _delivered(self) -> Steps[None]:
        """Send the message that was posted, or withdraw it: who was told that it wasn't sent may send it again.

        Yields:
            Where it has to wait.
        """
        try:
            yield from self._flushed()
        except BaseException:
            for slot in self._outbox.withdraw():
                with contextlib.suppress(UsageError):  # the reader died, and what it held came back already
                    self.arena.unhold(slot, self._participant)
            raise

    def _introduce(self) -> None:
        own = os.pidfd_open(os.getpid())  # of ourselves, so that it is us whom the reader watches
        try:
            hello = Hello(self._participant, self._capacity)
            self._outbox.post(pack_hello(hello, (self.arena.table_descriptor, self.arena.bell_descriptor, own)))
            self._outbox.flush()
        finally:
            os.close(own)

    def _locate(self, address: int, size_bytes: int) -> SlotPlace | None:
        found = self.arena.locate(address, size_bytes)
        if found is None:
            return None
        slot = self.arena.place_of(found.slot)
        return SlotPlace(found.slot, slot.region, slot.start_bytes + found.offset_bytes, size_bytes)

    def _post(self, encoded: Encoded, memory: SlotPlace | bytes) -> None:
        places = cast("tuple[SlotPlace, ...]", encoded.places)  # what `_locate` gave
        while self._device_slots.untold:
            self._outbox.post(pack_device_slot(*self._device_slots.untold.pop(0)))
        slots: set[int] = set()
        for place in (*places, memory) if isinstance(memory, SlotPlace) else places:
            slots.add(place.slot)
            if place.region not in self._told_regions:
                self._told_regions.add(place.region)
                self._outbox.post(pack_region(place.region, self.arena.region_descriptor(place.region)))
        for slot in slots:
            self.arena.hold(slot, self._participant)
        self._outbox.post(pack_message(Message(encoded.head, places, memory)), tuple(slots))

    def _until_room(self) -> Steps[None]:
        self._waits += 1
        while True:
            self._clear_bells()
            self._outbox.look()
            if self._has_room():
                return
            yield from self._pause()

    def _clear_bells(self) -> None:
        self._bell.clear()
        self.arena.clear_bell(self._bell)

    def _has_room(self) -> bool:
        return self._messages - self.arena.acknowledged(self._participant) < self._capacity

    def _leased(self, size_bytes: int) -> Steps[Lease]:
        lease = yield from self._taken(partial(self.arena.lease_nowait, size_bytes), size_bytes)
        return lease

    def _taken(self, take: Callable[[], Taken | None], size_bytes: int) -> Steps[Taken]:
        """Wait until there is memory to take.

        Args:
            take: takes it, or returns None where the reader has to give some back first.
            size_bytes: how much.

        Yields:
            Where it has to wait.

        Returns:
            What `take` gave.
        """
        taken = take()
        if taken is not None:
            return taken
        self._waits += 1
        try:
            while True:
                self._clear_bells()
                self._outbox.look()
                self.arena.want(size_bytes)
                returned = self.arena.returned_by(self._participant)  # before the look: what comes later wakes
                taken = take()
                if taken is not None:
                    return taken
                self._find_who_keeps(Starved(size_bytes, returned))
                yield from self._pause()
        finally:
            self.arena.want(0)

    def _find_who_keeps(self, starved: Starved) -> None:
        """Say it, if nobody but this process keeps the memory, or tell the reader, if only these two do.

        Raises:
            UsageError: nobody but this process does.
        """
        counters = self.arena.counters
        num_tickets = len(self._device_slots)
        held = counters.leased - counters.returned - num_tickets
        here = self.arena.held_by(0) - num_tickets
        there = self.arena.held_by(self._participant)
        if held > here + there:
            return  # others do, and may drop it
        if there:
            self._outbox.post(pack_starved(starved))
        elif here and self._owns_arena:
            gc.collect()  # what only a cycle holds comes back now
            if self.arena.held_by(0) - num_tickets == here:
                raise UsageError(
                    f"max_bytes={self.arena.max_bytes} are in use by {here} elements of this process that are still "
                    f"referenced, and {starved.needed_bytes} bytes more are needed. Drop what `empty` gave once it was "
                    "sent, or raise max_bytes."
                )

    def _flushed(self) -> Steps[None]:
        while not self._outbox.flush():
            self._clear_bells()  # what they told is looked for before the next wait for it
            self._outbox.look()
            yield from self._pause()

    def _pause(self) -> Steps[None]:
        """Wait for the bell, a word of the reader's, its end, or, where frames wait to be sent, room in the socket.

        Yields:
            Once.
        """
        flushed = self._outbox.flush()
        if not flushed:
            self.operations.watch_writing(self._outbox.descriptor, wanted=True)
        try:
            yield
        finally:
            if not flushed:
                self.operations.watch_writing(self._outbox.descriptor, wanted=False)

    def _post_last_word(self) -> None:
        if self._last_word is not None:
            self._outbox.post(self._last_word)
            self._last_word = None

    def _dispose(self) -> None:
        self._post_last_word()  # if another operation was inside
        with contextlib.suppress(PenstockError, OSError):  # nobody waits any longer
            self._outbox.flush()
        self._outbox.close()
        self.arena.listen_no_longer(self._bell)
        if self._owns_arena:
            self.arena.close()
        else:
            with contextlib.suppress(ClosedError):  # whose arena it is may have closed it before
                self.arena.dismiss(self._participant, acknowledgements=self._messages)


def _inline(encoded: Encoded) -> bytes:
    memory = np.empty(encoded.size_bytes, np.uint8)
    encoded.write_into(memory)
    return memory.tobytes()
