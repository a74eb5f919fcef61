"""The reader's connection to one writer: it parses the writer's frames and adopts the memory of its messages."""

import contextlib
import gc
import io
import os
import select
import socket
from typing import Final, cast

from penstock._memory import ALIGNMENT, Lease
from penstock._processes import has_ended
from penstock.errors import MessageError, PeerError
from penstock.transport._arena import AttachedArena, SlotPlace
from penstock.transport._encoding import Decoder, DevicePlace, ReaderSlot
from penstock.transport._pipe._address import peer_pid, require_same_user
from penstock.transport._pipe._failure import unpack_failure
from penstock.transport._pipe._frames import (
    Frame,
    Inbox,
    Kind,
    Message,
    Starved,
    close_all,
    packets,
    parse_device_slot,
    parse_hello,
    parse_message,
    parse_region,
    parse_starved,
)


class Nothing:
    """The type of NOTHING, which `Connection.next` returns at the end; None would be an element."""


NOTHING: Final = Nothing()


class Connection:
    """Receives what one writer sends; a resource.

    Attributes:
        descriptors: the descriptors to watch: the socket, and the writer's process once its hello has arrived.
        ended: whether the writer sent its end or failure, or the connection is broken; then nothing more arrives.
        pid: the writer's process.
        capacity: the most elements that it sends ahead; 0 before its hello.
    """

    def __init__(self, connected: socket.socket, *, allow_pickle: bool, copy: bool) -> None:
        self.descriptors = [connected.fileno()]
        self.ended = False
        self.capacity = 0
        self._socket = connected
        self._inbox = Inbox(connected)
        self._decoder = Decoder(allow_pickle=allow_pickle)
        self._allow_pickle = allow_pickle
        self._copy = copy
        self._starved: Starved | None = None
        self._arena: AttachedArena | None = None
        self._device_slots: dict[int, ReaderSlot] = {}  # by the arena slots of their tickets
        self._has_references = False  # whether a message has arrived with leaves by reference
        self._slots_each = 1  # slots of the last message that had any
        self._process: io.FileIO | None = None
        self.pid = peer_pid(connected)
        connected.settimeout(0)

    @property
    def held(self) -> int:
        """The writer's memory that is on its way or kept here, as a number of messages of the last one's slots."""
        return self.slots // self._slots_each

    @property
    def slots(self) -> int:
        """The number of the writer's slots that are on their way or kept here."""
        return 0 if self._arena is None else self._arena.held

    @property
    def keeps_referred(self) -> bool:
        """Whether slots are kept here, and any message has had leaves by reference."""
        return self._has_references and self.slots > 0

    def kept_from_writer(self) -> int:
        """Return the bytes that the writer waits for, if only this process keeps its memory; else 0."""
        if self._starved is None or self._arena is None:
            return 0
        gc.collect()  # drops arrays that only a reference cycle keeps
        stuck = self._arena.returned == self._starved.returned and self._arena.held > 0
        return self._starved.needed_bytes if stuck else 0

    def next(self) -> object:
        """Return the next element, or NOTHING at the end.

        Raises:
            BlockingIOError: there is none yet.
            PeerError: the writer failed or died.
            MessageError: the frame is malformed, or may not be read here.
            OSError: no descriptor is left for those that came with it.
            MemoryError: no memory is left for it.
        """
        try:
            while True:
                frame = self._receive()
                try:
                    if frame.kind is Kind.MESSAGE:
                        return self._element(parse_message(frame))
                    if frame.kind is Kind.END and self._arena is not None:  # an END before the hello is refused
                        self.ended = True
                        return NOTHING
                    self._handle(frame)
                finally:
                    close_all(frame.descriptors)
        except BlockingIOError:
            raise
        except (MessageError, OSError, MemoryError) as error:
            self.ended = True
            self._send_quietly(Frame(Kind.REJECTED, str(error).encode()[:4096]))
            error.add_note(f"It came from process {self.pid}; this reader has closed the connection to it.")
            raise

    def close(self, final_frame: Frame) -> None:
        """Send a last frame, return the holds of messages that were never received, and close."""
        self._send_quietly(final_frame)
        self._return_unread()
        self._socket.close()
        if self._process is not None:
            self._process.close()
        if self._arena is not None:
            self._arena.close()

    def _receive(self) -> Frame:
        try:
            frame = self._inbox.receive()
        except BlockingIOError:
            # The process may have ended while a child of it keeps the socket open.
            if self._process is None or not has_ended(self._process):
                raise
            try:
                frame = self._inbox.receive()  # a frame that it sent between that read and its end
            except BlockingIOError:
                frame = None
        if frame is None:
            self.ended = True
            raise PeerError(
                f"a writer (process {self.pid}) died, or closed its socket, without an end or a failure. Everything "
                "that it had sent was received.",
                pid=self.pid,
            )
        return frame

    def _handle(self, frame: Frame) -> None:
        if self._arena is None:
            self._arena = self._welcome(frame)
        elif frame.kind is Kind.REGION:
            self._arena.add_region(parse_region(frame), frame.descriptors[0])
        elif frame.kind is Kind.DEVICE_SLOT:
            self._handle_device_slot(*parse_device_slot(frame))
        elif frame.kind is Kind.LAYOUT:
            self._decoder.learn(frame.body)
        elif frame.kind is Kind.STARVED:
            self._starved = parse_starved(frame)
        elif frame.kind is Kind.FAILED:
            self.ended = True
            raise unpack_failure(frame.body, peer="a writer", pid=self.pid, allow_pickle=self._allow_pickle)
        else:
            raise MessageError(f"a writer can't send {frame.kind.name} here")

    def _handle_device_slot(self, number: int, shared: bytes) -> None:
        if not shared:
            self._device_slots.pop(number, None)
        elif number in self._device_slots:
            raise MessageError(f"each device slot must be sent once; slot {number} was sent before")
        else:
            self._device_slots[number] = ReaderSlot(shared)

    def _welcome(self, frame: Frame) -> AttachedArena:
        hello = parse_hello(frame)
        try:
            require_same_user(self._socket)
        except PeerError as error:
            raise MessageError(str(error)) from error
        table, bell, process = frame.descriptors
        with select.epoll() as probe:
            try:
                probe.register(process, select.EPOLLIN)
            except OSError as error:
                raise MessageError(
                    f"a writer's hello must hold the descriptor of its process ({error.strerror})"
                ) from error
        arena = AttachedArena(table, bell, hello.participant)
        self._process = io.FileIO(os.dup(process))
        self.descriptors.append(self._process.fileno())
        self.capacity = hello.capacity
        return arena

    def _element(self, message: Message) -> object:
        arena = self._arena
        if arena is None:
            raise MessageError("a writer must send its hello before a message")
        memory: object = message.memory
        places: list[object] = []
        if message.places:
            *places, memory = _adopted(arena, message)
            places = [
                part if place.slot not in self._device_slots else DevicePlace(self._device_slots[place.slot], part)
                for place, part in zip(message.places, places, strict=True)
            ]
            self._has_references = True
            self._slots_each = len({place.slot for place in _places(message)})
        elif isinstance(message.memory, SlotPlace):
            memory = arena.adopt(message.memory)
            self._slots_each = 1
        arena.acknowledge()
        self._starved = None
        return self._decoder.decode(message.head, memory, places, copy=self._copy)

    def _send_quietly(self, word: Frame) -> None:
        with contextlib.suppress(OSError):  # it has ended, or its socket is full
            for packet, _ in packets(word):
                self._socket.send(packet)

    def _return_unread(self) -> None:
        with contextlib.suppress(OSError, MessageError, MemoryError):  # the writer has ended, or sent malformed frames
            self._socket.shutdown(socket.SHUT_RD)  # nothing more arrives; the frames that did can still be read
            while (frame := self._inbox.receive()) is not None:
                try:
                    if self._arena is None:
                        self._arena = self._welcome(frame)
                    elif frame.kind is Kind.MESSAGE:
                        for slot in _extents(parse_message(frame)):
                            self._arena.drop(slot)
                        self._arena.acknowledge()
                finally:
                    close_all(frame.descriptors)


def _places(message: Message) -> list[SlotPlace]:
    memory = message.memory
    return [*message.places, memory] if isinstance(memory, SlotPlace) else list(message.places)


def _extents(message: Message) -> dict[int, SlotPlace]:
    """Return, for each slot of a message, the smallest place that contains all of the message's places in it.

    Returns:
        The places by slot; their starts are aligned.

    Raises:
        MessageError: two places put one slot into two regions.
    """
    extents: dict[int, SlotPlace] = {}
    for place in _places(message):
        known = extents.get(place.slot, place)
        if known.region != place.region:
            raise MessageError(f"slot {place.slot} can't be in two regions, {known.region} and {place.region}")
        start = min(known.start_bytes, place.start_bytes // ALIGNMENT * ALIGNMENT)
        end = max(known.start_bytes + known.size_bytes, place.start_bytes + place.size_bytes)
        extents[place.slot] = SlotPlace(place.slot, place.region, start, end - start)
    return extents


def _adopted(arena: AttachedArena, message: Message) -> list[object]:
    """Adopt the slots of a message, each by one lease.

    Returns:
        Its places, as buffers, and its memory after them.
    """
    extents = _extents(message)
    leases = {slot: arena.adopt(extent) for slot, extent in extents.items()}
    parts: list[object] = [
        _part(leases[place.slot], place, extents[place.slot].start_bytes) for place in _places(message)
    ]
    return parts if isinstance(message.memory, SlotPlace) else [*parts, message.memory]


def _part(lease: Lease, place: SlotPlace, start_bytes: int) -> object:
    """Return the part of a lease at a place; it keeps the lease alive."""
    start = place.start_bytes - start_bytes
    if start == 0 and place.size_bytes == len(lease):
        return lease
    return memoryview(cast("bytes", lease))[start : start + place.size_bytes]  # any object with the buffer protocol
