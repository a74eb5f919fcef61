"""The sender: it carries out a writer's operations, and owns the writer's connection.

The steps of an operation wait for room and memory, copy leaves, and send frames. Three classes share the work:
  - `Sender`: the steps, and the sender's part in the arena.
  - `Outbox`: the frames that are not sent yet. `post` queues a frame without waiting; `flush` sends packets in order,
    as far as the socket has room. The reader's frames arrive on the same socket: it closed, failed, or rejects this
    writer. A reader that dies sends no frame; its socket and its pidfd show the end.
  - `DeviceSlots`: the slots on CUDA devices, within a limit on their memory. A slot is idle when the reader has no hold
    on its *ticket*, a small lease in the arena. Slots that are too small are dropped before a device's slots exceed the
    limit.
"""

import _thread
import contextlib
import gc
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar, cast

import numpy as np

from penstock._memory import Lease, array_over
from penstock._os import Bell, has_ended, watch_process
from penstock.errors import ClosedError, MessageError, PeerError, UsageError
from penstock.transport._arena import Arena, SlotPlace
from penstock.transport._encoding import MIN_SLOT_BYTES, Encoded, Encoder, OnDevice, WriterSlot
from penstock.transport._pipe._operations import Operations, Steps
from penstock.transport._pipe._socket import (
    INLINE_BYTES,
    Frame,
    Hello,
    Inbox,
    Kind,
    Message,
    Starved,
    close_all,
    connect,
    pack_device_slot,
    pack_hello,
    pack_message,
    pack_region,
    pack_starved,
    packets,
    peer_pid,
    unpack_failure,
)

TakenT = TypeVar("TakenT")

_TICKET_BYTES: Final = 64
_FIRST_STEP_SECONDS: Final = 0.2  # in which a thread that was started gets the GIL


@dataclass(frozen=True, slots=True)
class WriterCounters:
    """The counts of a writer so far.

    Attributes:
        messages: the number of elements sent.
        copied_bytes: the bytes copied for them: into shared memory, into the socket if small, or on devices.
        shared_bytes: the bytes sent by reference, since they are in the arena; for a strided view, all that it spans.
        pickled: the number of leaves that were pickled.
        waits: the number of waits for the reader, in `send` or `empty`.

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
        capacity: the most messages that may be on their way.
        allow_pickle: whether leaves of other types are pickled.
        owns_arena: whether the arena is closed with the sender.
        least_shared_bytes: smaller leaves are copied, even if they are in the arena.

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
        self._device_slots = DeviceSlots(arena.max_bytes, self.holds, partial(arena.lease_nowait, _TICKET_BYTES))
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
            self.operations: Operations = Operations("this TensorPipeWriter", self._dispose)
            for descriptor in (self._outbox.descriptor, self._bell.fileno(), arena.fileno(), arena.ends_descriptor):
                self.operations.watch(descriptor)
            if process >= 0:
                self.operations.watch(process)
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
            # The encoder returns each description once, so this frame is sent even if the element isn't.
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
            lease = yield from self.leasing(encoded.size_bytes)
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

    def leasing(self, size_bytes: int) -> Steps[Lease]:
        """Return a lease of the arena's memory, once there is room for it.

        Yields:
            At each wait.

        Returns:
            The lease.
        """
        lease = yield from self._taken(partial(self.arena.lease_nowait, size_bytes), size_bytes)
        return lease

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
            flushed = self._outbox.flush()
            self._check_wait()
            yield from self._pause(flushed=flushed)

    def _check_wait(self) -> None:
        """Check that a wait for the reader can end.

        Raises:
            UsageError: the reader is in this process, where this thread is the only one and blocks.
        """
        if self.operations.blocks and self.reader_pid == os.getpid() and not _has_threads():
            raise UsageError(
                "this wait for the reader can't end: the reader is in this process, which has no other thread that "
                f"could receive. Receive what was sent first (capacity={self._capacity} elements are sent ahead, as "
                "far as their structure fits the socket), or send from another thread or process."
            )

    def _clear_bells(self) -> None:
        self.arena.reclaim()  # first, since it rings
        self._bell.clear()
        self.arena.clear_bell(self._bell)

    def _has_room(self) -> bool:
        return self._messages - self.arena.acknowledged(self._participant) < self._capacity

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
        may_collect = True
        try:
            while True:
                self._clear_bells()
                self._outbox.check_reader()
                self.arena.want(size_bytes)
                # Read before `take`, so that a later return wakes this end.
                returned = self.arena.returned_by(self._participant)
                taken = take()
                if taken is not None:
                    return taken
                may_collect = self._check_memory_holders(Starved(size_bytes, returned), may_collect=may_collect)
                yield from self._pause(flushed=self._outbox.flush())
        finally:
            self.arena.want(0)

    def _check_memory_holders(self, starved: Starved, *, may_collect: bool) -> bool:
        """Raise if only this process keeps the memory; notify the reader if only this process and the reader do.

        Args:
            starved: the notice.
            may_collect: whether this wait may still drop arrays that only a reference cycle keeps.

        Returns:
            Whether it still may.

        Raises:
            UsageError: only this process keeps the memory, and no other writer can use it.
        """
        counters = self.arena.counters
        num_tickets = len(self._device_slots)
        held = counters.leased - counters.returned - num_tickets
        here = self.arena.held_by(0) - num_tickets
        there = self.arena.held_by(self._participant)
        if held > here + there:
            return may_collect  # other readers keep memory, too, and may drop it
        if there:
            self._outbox.post(pack_starved(starved))
        elif here and may_collect:
            gc.collect()
            if self._owns_arena and self.arena.held_by(0) - num_tickets == here:
                raise UsageError(
                    f"{here} elements that are still referenced in this process use all of "
                    f"max_bytes={self.arena.max_bytes}, and {starved.needed_bytes} bytes more are needed. Drop the "
                    "elements of empty() once they are sent, or raise max_bytes."
                )
            return self._owns_arena  # other threads may wait on a shared arena, too, and each return wakes them all
        return may_collect

    def _flushed(self) -> Steps[None]:
        while not self._outbox.flush():
            self._clear_bells()  # before the check, so that a later ring ends the next wait
            self._outbox.check_reader()
            self._check_wait()
            # Nothing is sent between `flush` and the wait, so a wait that ends early finds all that is to be withdrawn.
            yield from self._pause(flushed=False)

    def _pause(self, *, flushed: bool) -> Steps[None]:
        """Wait for the bell, a frame of the reader, its end, or, unless all frames were sent, room in the socket.

        Yields:
            Once.
        """
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
        # The end is closed, so no caller could get the error, which may be the reader's own of any type.
        with contextlib.suppress(Exception):
            self._outbox.flush()
        self._outbox.close()
        self.arena.listen_no_longer(self._bell)
        if self._owns_arena:
            self.arena.close()
        else:
            with contextlib.suppress(ClosedError):  # its owner may have closed it before
                self.arena.dismiss(self._participant, acknowledgements=self._messages)


def _has_threads() -> bool:
    """Return whether Python has started other threads that may run now; also such as `threading` doesn't know.

    A thread counts from its first step on, for which it needs the GIL.
    """
    if not _num_others():
        threading.Event().wait(_FIRST_STEP_SECONDS)
    return _num_others() > 0


def _num_others() -> int:
    count: int = vars(_thread)["_count"]()
    return max(threading.active_count() - 1, count)


def _inline(encoded: Encoded) -> bytes:
    memory = np.empty(encoded.size_bytes, np.uint8)
    encoded.write_into(memory)
    return memory.tobytes()


class Outbox:
    """One writer's connection to its reader; a resource.

    Attributes:
        descriptor: the socket's descriptor.
        process: the pidfd of the reader's process; None if the system gives none.
        pid: the reader's process.
    """

    __slots__ = (
        "_allow_pickle",
        "_has_ended",
        "_inbox",
        "_last_frame",
        "_message_packets",
        "_posted",
        "_socket",
        "descriptor",
        "pid",
        "process",
    )

    def __init__(self, address: str, *, allow_pickle: bool) -> None:
        self._socket = connect(address)
        self._inbox = Inbox(self._socket)
        self._allow_pickle = allow_pickle
        self._posted: deque[tuple[bytes, tuple[int, ...], Sequence[int]]] = deque()
        self._message_packets = 0  # packets of the last message
        self._has_ended = False
        self._last_frame: Frame | None = None  # the reader's; None if it died
        self.descriptor = self._socket.fileno()
        self.pid = peer_pid(self._socket)
        self.process = watch_process(self.pid)

    def post(self, frame: Frame, slots: Sequence[int] = ()) -> None:
        """Queue a frame. `slots` are the arena's slots that are held on the reader's behalf for this frame."""
        *pieces, (packet, descriptors) = packets(frame)
        if frame.kind is Kind.MESSAGE:
            self._message_packets = 1 + len(pieces)
        for piece, no_descriptors in pieces:
            self._posted.append((piece, no_descriptors, ()))
        self._posted.append((packet, descriptors, slots))

    def flush(self) -> bool:
        """Send the queued packets, as far as the socket has room now.

        Returns:
            Whether all were sent.

        Raises:
            ClosedError: the reader closed the pipe.
            PeerError: the reader failed or died.
            MessageError: the reader rejected this writer.
        """
        while self._posted:
            packet, descriptors, _ = self._posted[0]
            try:
                if descriptors:
                    socket.send_fds(self._socket, [packet], descriptors)
                else:
                    self._socket.send(packet)
            except BlockingIOError:
                return False
            except (BrokenPipeError, ConnectionResetError):
                self.check_reader()
                self._has_ended = True
                raise self._end_error() from None
            self._posted.popleft()
        return True

    def check_reader(self) -> None:
        """Check that the reader still reads.

        Raises:
            ClosedError: the reader closed the pipe.
            PeerError: the reader failed or died.
            MessageError: the reader rejected this writer.
        """
        if not self._has_ended:
            try:
                self._last_frame = self._inbox.receive()
            except BlockingIOError:
                if self.process is None or not has_ended(self.process):
                    return
            self._has_ended = True
            close_all(self._last_frame.descriptors if self._last_frame is not None else ())
        raise self._end_error()

    def withdraw(self) -> Sequence[int]:
        """Remove the message that was posted last and isn't sent whole, so that the reader won't receive it.

        Returns:
            The slots that are held on the reader's behalf for the message.
        """
        slots = self._posted[-1][2]
        waiting = min(len(self._posted), self._message_packets)
        for _ in range(waiting):
            self._posted.pop()
        if waiting < self._message_packets:
            self.post(Frame(Kind.VOID, b""))
        return slots

    def close(self) -> None:
        """Close the socket; the reader still receives all that was sent."""
        self._socket.close()
        if self.process is not None:
            self.process.close()

    def _end_error(self) -> Exception:
        """Return the error for the reader's end: a new one each time, since a raised one holds the frames it passed."""
        frame = self._last_frame
        if frame is None:
            return PeerError(
                f"the reader (process {self.pid}) died, or closed its socket without a last frame", pid=self.pid
            )
        if frame.kind is Kind.CLOSED:
            return ClosedError(f"the reader (process {self.pid}) closed the pipe; further elements would be lost")
        if frame.kind is Kind.FAILED:
            return unpack_failure(frame.body, peer="the reader", pid=self.pid, allow_pickle=self._allow_pickle)
        if frame.kind is Kind.REJECTED:
            return MessageError(f"the reader (process {self.pid}) refused: {frame.body.decode(errors='replace')}")
        return MessageError(f"a reader can't send {frame.kind.name}")


@dataclass(frozen=True, eq=False, slots=True)
class DeviceSlot:
    """A slot and its ticket."""

    memory: WriterSlot
    ticket: Lease

    @property
    def number(self) -> int:
        """The number by which the reader knows it: the arena's slot of its ticket."""
        return self.ticket.slot


class DeviceSlots:
    """A writer's slots on CUDA devices.

    Args:
        limit_bytes: the most memory on each device; None for no limit.
        is_held: returns whether the reader has a hold on a slot of the arena.
        lease_ticket: leases a ticket, or returns None if the arena has no room now.
    """

    def __init__(
        self, limit_bytes: int | None, is_held: Callable[[int], bool], lease_ticket: Callable[[], Lease | None]
    ) -> None:
        self._limit_bytes = limit_bytes
        self._is_held = is_held
        self._lease_ticket = lease_ticket
        self._slots: list[DeviceSlot] = []
        self.unsent: list[tuple[int, bytes]] = []
        """The numbers and descriptions of slots to send to the reader, in order, before the next message.

        An empty description makes the reader drop the slot; a later slot may have the same number.
        """

    def __len__(self) -> int:
        return len(self._slots)

    def numbers(self) -> set[int]:
        """Return the slots' numbers."""
        return {slot.number for slot in self._slots}

    def take(self, device: int, size_bytes: int) -> DeviceSlot | None:
        """Return an idle slot that is large enough, or a new one; None if there is no room now.

        Args:
            device: the device's number.
            size_bytes: the size to hold.

        Raises:
            UsageError: the size is more than the limit.
        """
        if self._limit_bytes is not None and size_bytes > self._limit_bytes:
            raise UsageError(
                f"an element's tensors on a device must fit max_bytes={self._limit_bytes}; got {size_bytes} bytes on "
                f"cuda:{device}. Raise max_bytes, or send smaller elements"
            )
        idle = [slot for slot in self._slots if slot.memory.device == device and not self._is_held(slot.number)]
        fitting = [slot for slot in idle if slot.memory.size_bytes >= size_bytes]
        if fitting:
            return min(fitting, key=lambda slot: slot.memory.size_bytes)
        wanted_bytes = self._with_headroom(size_bytes)
        if not self._make_room(device, wanted_bytes, idle):
            wanted_bytes = size_bytes
            if not self._make_room(device, wanted_bytes, idle):
                return None
        ticket = self._lease_ticket()
        if ticket is None:
            return None
        slot = DeviceSlot(WriterSlot(device, wanted_bytes), ticket)
        self.unsent.append((slot.number, slot.memory.shared()))
        self._slots.append(slot)
        return slot

    def _with_headroom(self, size_bytes: int) -> int:
        return -(-(size_bytes + size_bytes // 4) // MIN_SLOT_BYTES) * MIN_SLOT_BYTES

    def _make_room(self, device: int, size_bytes: int, idle: Sequence[DeviceSlot]) -> bool:
        """Return whether a new slot fits under the limit, once idle slots were dropped for it where needed."""
        if self._limit_bytes is None:
            # The new slot replaces one that was too small.
            self._drop(idle[:1])
            return True
        total = sum(slot.memory.size_bytes for slot in self._slots if slot.memory.device == device)
        free = sum(slot.memory.size_bytes for slot in idle if slot in self._slots)
        if total - free + size_bytes > self._limit_bytes:
            return False
        for slot in [slot for slot in idle if slot in self._slots]:
            if total + size_bytes <= self._limit_bytes:
                break
            total -= slot.memory.size_bytes
            self._drop([slot])
        return True

    def _drop(self, slots: Sequence[DeviceSlot]) -> None:
        for slot in slots:
            if slot in self._slots:
                self._slots.remove(slot)
                self.unsent.append((slot.number, b""))
