"""One writer, as its reader sees it."""

import contextlib
import gc
import io
import os
import select
import socket
from typing import Final, cast

from penstock._processes._pidfd import has_ended
from penstock.errors import MessageError, PeerError
from penstock.transport._arena import AttachedArena, SlotPlace
from penstock.transport._encoding import Decoder, DevicePlace, ReaderSlot
from penstock.transport._memory import ALIGNMENT, Lease
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
    """What a connection returns when it ended: no element, since None is one."""


NOTHING: Final = Nothing()


class Connection:
    """Receives what one writer sends; a resource.

    Attributes:
        descriptors: what to watch: the socket, and the writer's process as soon as it introduced itself.
        ended: whether it said its end or failure, or is broken; then nothing more comes.
        pid: the writer's process.
        capacity: how many elements it has on their way at most; 0 before it introduced itself.
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
        self._device_slots: dict[int, ReaderSlot] = {}  # by the slots of the arena that are their tickets
        self._has_referred = False  # whether a message came that refers to slots
        self._slots_each = 1  # that the last message took, of those that took any
        self._process: io.FileIO | None = None
        self.pid = peer_pid(connected)
        connected.settimeout(0)

    @property
    def held(self) -> int:
        """How much of the writer's memory is on its way or kept here, in messages, were they all like the last."""
        return self.slots // self._slots_each

    @property
    def slots(self) -> int:
        """How many of the writer's slots are on their way or kept here."""
        return 0 if self._arena is None else self._arena.held

    @property
    def keeps_referred(self) -> bool:
        """Whether slots are kept here that messages refer to, beside those that messages were copied into."""
        return self._has_referred and self.slots > 0

    def kept_from_writer(self) -> int:
        """Return the bytes that the writer waits for, if nobody but this process keeps its memory; else 0."""
        if self._starved is None or self._arena is None:
            return 0
        gc.collect()  # what only a cycle holds comes back now
        stuck = self._arena.returned == self._starved.returned and self._arena.held > 0
        return self._starved.needed_bytes if stuck else 0

    def next(self) -> object:
        """Return the next element, or NOTHING at the end.

        Raises:
            BlockingIOError: there is none yet.
            PeerError: the writer failed or died.
            MessageError: what came is no message, or none that may be read here.
            OSError: no descriptor is left for what came.
            MemoryError: nor memory.
        """
        try:
            while True:
                frame = self._receive()
                try:
                    if frame.kind is Kind.MESSAGE:
                        return self._element(parse_message(frame))
                    if frame.kind is Kind.END and self._arena is not None:  # a stranger has nothing to end
                        self.ended = True
                        return NOTHING
                    self._heed(frame)
                finally:
                    close_all(frame.descriptors)
        except BlockingIOError:
            raise
        except (MessageError, OSError, MemoryError) as error:
            self.ended = True
            self._say(Frame(Kind.REJECTED, str(error).encode()[:4096]))
            error.add_note(f"It came from process {self.pid}, to which this reader listens no longer.")
            raise

    def close(self, last_word: Frame) -> None:
        """Say a last word, give back what was sent and never received, and close."""
        self._say(last_word)
        self._give_back_unread()
        self._socket.close()
        if self._process is not None:
            self._process.close()
        if self._arena is not None:
            self._arena.close()

    def _receive(self) -> Frame:
        try:
            frame = self._inbox.receive()
        except BlockingIOError:
            # The process may have ended while a child of its own keeps the socket open.
            if self._process is None or not has_ended(self._process):
                raise
            try:
                frame = self._inbox.receive()  # what it said between that look and its end
            except BlockingIOError:
                frame = None
        if frame is None:
            self.ended = True
            raise PeerError(
                f"a writer (process {self.pid}) died, or closed its socket, before it said that it had ended. What it "
                "had sent was received.",
                pid=self.pid,
            )
        return frame

    def _heed(self, frame: Frame) -> None:
        if self._arena is None:
            self._arena = self._welcome(frame)
        elif frame.kind is Kind.REGION:
            self._arena.add_region(parse_region(frame), frame.descriptors[0])
        elif frame.kind is Kind.DEVICE_SLOT:
            self._heed_device_slot(*parse_device_slot(frame))
        elif frame.kind is Kind.LAYOUT:
            self._decoder.learn(frame.body)
        elif frame.kind is Kind.STARVED:
            self._starved = parse_starved(frame)
        elif frame.kind is Kind.FAILED:
            self.ended = True
            raise unpack_failure(frame.body, who="a writer", pid=self.pid, allow_pickle=self._allow_pickle)
        else:
            raise MessageError(f"a writer can't say {frame.kind.name} here")

    def _heed_device_slot(self, number: int, shared: bytes) -> None:
        if not shared:
            self._device_slots.pop(number, None)
        elif number in self._device_slots:
            raise MessageError(f"each device slot must be sent once; slot {number} was there already")
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
                    f"a writer must introduce itself with a process to watch ({error.strerror})"
                ) from error
        arena = AttachedArena(table, bell, hello.participant)
        self._process = io.FileIO(os.dup(process))
        self.descriptors.append(self._process.fileno())
        self.capacity = hello.capacity
        return arena

    def _element(self, message: Message) -> object:
        arena = self._arena
        if arena is None:
            raise MessageError("a writer must introduce itself before it sends")
        memory: object = message.memory
        places: list[object] = []
        if message.places:
            *places, memory = _adopted(arena, message)
            places = [
                part if place.slot not in self._device_slots else DevicePlace(self._device_slots[place.slot], part)
                for place, part in zip(message.places, places, strict=True)
            ]
            self._has_referred = True
            self._slots_each = len({place.slot for place in _places(message)})
        elif isinstance(message.memory, SlotPlace):
            memory = arena.adopt(message.memory)
            self._slots_each = 1
        arena.acknowledge()
        self._starved = None
        return self._decoder.decode(message.head, memory, places, copy=self._copy)

    def _say(self, word: Frame) -> None:
        with contextlib.suppress(OSError):  # it is gone, or doesn't listen
            for packet, _ in packets(word):
                self._socket.send(packet)

    def _give_back_unread(self) -> None:
        with contextlib.suppress(OSError, MessageError, MemoryError):  # the writer is gone, or talks nonsense
            self._socket.shutdown(socket.SHUT_RD)  # nothing more comes in after this, and what is in can still be read
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
    """Return, for each slot that a message refers to, the smallest place that holds all it refers to there.

    Returns:
        The places by slot; their starts are aligned.

    Raises:
        MessageError: one slot is said to lie in two regions.
    """
    extents: dict[int, SlotPlace] = {}
    for place in _places(message):
        known = extents.get(place.slot, place)
        if known.region != place.region:
            raise MessageError(f"slot {place.slot} can't lie in two regions, {known.region} and {place.region}")
        start = min(known.start_bytes, place.start_bytes // ALIGNMENT * ALIGNMENT)
        end = max(known.start_bytes + known.size_bytes, place.start_bytes + place.size_bytes)
        extents[place.slot] = SlotPlace(place.slot, place.region, start, end - start)
    return extents


def _adopted(arena: AttachedArena, message: Message) -> list[object]:
    """Take over the slots that a message refers to, each by one lease.

    Returns:
        Its places, as buffers, and its memory behind them.
    """
    extents = _extents(message)
    leases = {slot: arena.adopt(extent) for slot, extent in extents.items()}
    parts: list[object] = [
        _part(leases[place.slot], place, extents[place.slot].start_bytes) for place in _places(message)
    ]
    return parts if isinstance(message.memory, SlotPlace) else [*parts, message.memory]


def _part(lease: Lease, place: SlotPlace, start_bytes: int) -> object:
    """Return the part of a lease that a place names; it keeps the lease."""
    start = place.start_bytes - start_bytes
    if start == 0 and place.size_bytes == len(lease):
        return lease
    return memoryview(cast("bytes", lease))[start : start + place.size_bytes]  # any object with the buffer protocol
