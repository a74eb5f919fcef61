"""The steps of a writer: it waits for room and memory, copies leaves, and sends frames. It owns the connection."""

import contextlib
import gc
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast

import numpy as np

from penstock._memory import Lease, array_over
from penstock._os import Bell
from penstock._tree import Element
from penstock.errors import ClosedError, PenstockError, UsageError
from penstock.transport._arena import Arena, SlotPlace
from penstock.transport._encoding import Encoded, Encoder, OnDevice
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
from penstock.transport._pipe._template import Template

TakenT = TypeVar("TakenT")


@dataclass(frozen=True, slots=True)
class WriterCounters:
    """The counts of a writer so far.

    Attributes:
        messages: elements sent.
        copied_bytes: bytes copied for them, into shared memory, into the socket if small, or on devices.
        shared_bytes: bytes sent by reference, since they are in the arena; for a strided view, all that it spans.
        pickled: leaves that were pickled.
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
        address: the reader's address.
        arena: the memory to send from.
        capacity: the number of messages that may be on their way.
        allow_pickle: whether leaves of other types are pickled.
        owns_arena: whether the arena is closed with the sender.
        least_shared_bytes: smaller leaves are copied although they are in the arena.

    Attributes:
        operations: runs the steps, one operation at a time.
        arena: the arena of the arguments.
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
        self._sent_regions: set[int] = set()
        self._encoder = Encoder(allow_pickle=allow_pickle, locate=self._locate, least_located_bytes=least_shared_bytes)
        self._device_slots = DeviceSlots(arena.max_bytes, self.holds, partial(arena.lease_nowait, TICKET_BYTES))
        self._final_frame: Frame | None = None
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
            self._send_hello()
        except BaseException:
            self._dispose()
            raise
        self._final_frame = Frame(Kind.END, b"")

    @property
    def reader_pid(self) -> int:
        """The pid of the reader's process."""
        return self._outbox.pid

    @property
    def counters(self) -> WriterCounters:
        """The counts so far."""
        return WriterCounters(
            self._messages, self._copied_bytes, self._shared_bytes, self._encoder.pickled, self._waits
        )

    def making_room(self) -> Steps[None]:
        """Wait until another element can be sent without a wait for the reader.

        Yields:
            At each wait.
        """
        if not self._has_room():
            yield from self._wait_for_room()

    def sending(self, element: object) -> Steps[tuple[int, ...]]:
        """Send an element.

        Yields:
            At each wait, as all steps do.

        Returns:
            The slots of the leaves that were sent by reference.
        """
        encoded = self._encoder.encode(element)
        if encoded.description is not None:
            # The encoder returns a description once, so it is sent even if this element never is.
            self._outbox.post(Frame(Kind.LAYOUT, encoded.description))
        if not self._has_room():
            yield from self._wait_for_room()
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
            del lease  # the reader's hold on the slot remains
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

    def making(self, template: Template) -> Steps[Element]:
        """Return an element with arbitrary contents, once there is memory for it.

        Yields:
            At each wait.

        Returns:
            The element.
        """
        lease = yield from self._leased(max(template.size_bytes, 1))
        return template.over(lease)

    def fail(self, described: bytes) -> None:
        """Make the last frame a failure instead of the end."""
        self._final_frame = Frame(Kind.FAILED, described)

    def ending(self) -> Steps[None]:
        """Send the last frame.

        Yields:
            At each wait.
        """
        self._post_final_frame()
        yield from self._flushed()

    def _on_devices(self, encoded: Encoded, leaves: Sequence[OnDevice]) -> Steps[Encoded]:
        """Copy tensors into slots of their devices, on the devices' current streams.

        Yields:
            At each wait for a slot.

        Returns:
            The message, with the slots' tickets as places.
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
        """Send the message that was posted, or withdraw it if that fails, so that the caller may send it again.

        Yields:
            At each wait.
        """
        try:
            yield from self._flushed()
        except BaseException:
            for slot in self._outbox.withdraw():
                with contextlib.suppress(UsageError):  # the reader died, and its holds were removed already
                    self.arena.unhold(slot, self._participant)
            raise

    def _send_hello(self) -> None:
        own = os.pidfd_open(os.getpid())  # for the reader, which watches this process
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
        places = cast("tuple[SlotPlace, ...]", encoded.places)  # from `_locate`
        while self._device_slots.unsent:
            self._outbox.post(pack_device_slot(*self._device_slots.unsent.pop(0)))
        slots: set[int] = set()
        for place in (*places, memory) if isinstance(memory, SlotPlace) else places:
            slots.add(place.slot)
            if place.region not in self._sent_regions:
                self._sent_regions.add(place.region)
                self._outbox.post(pack_region(place.region, self.arena.region_descriptor(place.region)))
        for slot in slots:
            self.arena.hold(slot, self._participant)
        self._outbox.post(pack_message(Message(encoded.head, places, memory)), tuple(slots))

    def _wait_for_room(self) -> Steps[None]:
        self._waits += 1
        while True:
            self._clear_bells()
            self._outbox.check_reader()
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

    def _taken(self, take: Callable[[], TakenT | None], size_bytes: int) -> Steps[TakenT]:
        """Wait until there is memory to take.

        Args:
            take: takes the memory, or returns None if the reader must return some first.
            size_bytes: the size.

        Yields:
            At each wait.

        Returns:
            The result of `take`.
        """
        taken = take()
        if taken is not None:
            return taken
        self._waits += 1
        try:
            while True:
                self._clear_bells()
                self._outbox.check_reader()
                self.arena.want(size_bytes)
                returned = self.arena.returned_by(
                    self._participant
                )  # before `take`, so that a later return wakes this end
                taken = take()
                if taken is not None:
                    return taken
                self._check_memory_holders(Starved(size_bytes, returned))
                yield from self._pause()
        finally:
            self.arena.want(0)

    def _check_memory_holders(self, starved: Starved) -> None:
        """Raise if only this process keeps the memory; notify the reader if only these two processes do.

        Raises:
            UsageError: only this process does.
        """
        counters = self.arena.counters
        num_tickets = len(self._device_slots)
        held = counters.leased - counters.returned - num_tickets
        here = self.arena.held_by(0) - num_tickets
        there = self.arena.held_by(self._participant)
        if held > here + there:
            return  # other readers hold memory, too, and may drop it
        if there:
            self._outbox.post(pack_starved(starved))
        elif here and self._owns_arena:
            gc.collect()  # drops arrays that only a reference cycle keeps
            if self.arena.held_by(0) - num_tickets == here:
                raise UsageError(
                    f"{here} elements that are still referenced in this process use all of "
                    f"max_bytes={self.arena.max_bytes}, and {starved.needed_bytes} bytes more are needed. Drop the "
                    "elements of empty() once they are sent, or raise max_bytes."
                )

    def _flushed(self) -> Steps[None]:
        while not self._outbox.flush():
            self._clear_bells()  # before the check: a later ring ends the next wait
            self._outbox.check_reader()
            yield from self._pause()

    def _pause(self) -> Steps[None]:
        """Wait for the bell, a frame of the reader, its end, or, if frames are queued, room in the socket.

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

    def _post_final_frame(self) -> None:
        if self._final_frame is not None:
            self._outbox.post(self._final_frame)
            self._final_frame = None

    def _dispose(self) -> None:
        self._post_final_frame()  # if another operation was inside `close`
        with contextlib.suppress(PenstockError, OSError):  # the end is closed: no caller is left to raise to
            self._outbox.flush()
        self._outbox.close()
        self.arena.listen_no_longer(self._bell)
        if self._owns_arena:
            self.arena.close()
        else:
            with contextlib.suppress(ClosedError):  # its owner may have closed it before
                self.arena.dismiss(self._participant, acknowledgements=self._messages)


def _inline(encoded: Encoded) -> bytes:
    memory = np.empty(encoded.size_bytes, np.uint8)
    encoded.write_into(memory)
    return memory.tobytes()
