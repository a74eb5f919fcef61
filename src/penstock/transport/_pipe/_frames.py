"""Frames: the units that the socket of a pipe carries, and the format of each.

    writer → reader     hello, region, device slot, layout, message, starved, end, failed
    reader → writer     closed, failed, rejected

A frame is one packet: its kind, then its fields. A frame that is too long for a packet is split; each piece but the
last has the kind PIECE. If the last one is never sent, VOID discards the pieces before it. The receiver trusts nothing:
a frame that doesn't parse raises `MessageError`.
"""

import array
import enum
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.errors import MessageError
from penstock.transport._arena import SlotPlace

MAGIC: Final = b"PENSTOCK"
VERSION: Final = 1

INLINE_BYTES: Final = 65_536  # messages up to this size go through the socket itself
_PACKET_BYTES: Final = 98_304  # a Unix socket takes this at once; the smallest usual buffer is twice as large
_FRAME_BYTES: Final = 64 << 20  # the reader refuses longer ones
_MAX_DESCRIPTORS: Final = 3
_CLOSED_IN_PROGRAMS: Final = int(socket.MSG_CMSG_CLOEXEC)
_CUT: Final = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_ANCILLARY_BYTES: Final = socket.CMSG_LEN(_MAX_DESCRIPTORS * array.array("i").itemsize)


class Kind(enum.IntEnum):
    """The kind of a packet."""

    PIECE = 0
    HELLO = 1
    REGION = 2
    LAYOUT = 3
    MESSAGE = 4
    STARVED = 5
    END = 6
    FAILED = 7
    CLOSED = 8
    REJECTED = 9
    VOID = 10
    DEVICE_SLOT = 11


_KINDS: Final = {kind.value: kind for kind in Kind}


class Frame(NamedTuple):
    """A whole frame: its kind, its fields, and the descriptors that came with it, which its receiver must close."""

    kind: Kind
    body: bytes
    descriptors: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Hello:
    """A writer's first frame; it carries the descriptors of the arena's table and bell, and of the process."""

    participant: int
    capacity: int


class Message(NamedTuple):
    """An element: its layout, and the places of its data.

    Attributes:
        head: the head from `Encoder.encode`.
        places: the places of the leaves that are sent by reference.
        memory: the place of the other leaves, or their data itself.
    """

    head: bytes
    places: tuple[SlotPlace, ...]
    memory: SlotPlace | bytes


@dataclass(frozen=True, slots=True)
class Starved:
    """A writer waits for memory that only this reader can return.

    Attributes:
        needed_bytes: the size that it needs.
        returned: the number of holds that the reader had returned when the writer last checked. A larger number has
            woken the writer; it sends another frame if that was not enough.
    """

    needed_bytes: int
    returned: int


_HELLO: Final = struct.Struct("<8sHxxII")
_REGION: Final = struct.Struct("<I")  # a number alone
_MESSAGE: Final = struct.Struct("<IIB")
_PLACE: Final = struct.Struct("<IIQQ")
_STARVED: Final = struct.Struct("<QQ")


def packets(frame: Frame) -> list[tuple[bytes, tuple[int, ...]]]:
    """Return the packets that make up a frame, with the descriptors that go with each."""
    body = frame.body
    if len(body) <= _PACKET_BYTES:
        return [(bytes((frame.kind,)) + body, frame.descriptors)]
    last = (len(body) - 1) // _PACKET_BYTES
    cut = [body[start * _PACKET_BYTES : (start + 1) * _PACKET_BYTES] for start in range(last + 1)]
    kinds = [Kind.PIECE] * last + [frame.kind]
    return [
        (bytes([kind]) + piece, frame.descriptors if place == last else ())
        for place, (kind, piece) in enumerate(zip(kinds, cut, strict=True))
    ]


class Inbox:
    """Receives the frames of one non-blocking socket, and joins their pieces."""

    __slots__ = ("_packet", "_pieces", "_size", "_socket")

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._packet: Final = memoryview(bytearray(_PACKET_BYTES + 1))  # used for every packet
        self._pieces: list[bytes] = []
        self._size = 0

    def receive(self) -> Frame | None:
        """Return the next frame; None once the other end is closed and all was received.

        Raises:
            BlockingIOError: there is no whole frame yet.
            MessageError: the packet is malformed.
        """
        while True:
            packet, descriptors = self._next_packet()
            if not packet and not descriptors:
                return None
            kind = _KINDS.get(packet[0]) if packet else None
            if kind is None:
                close_all(descriptors)
                raise MessageError(f"a packet must begin with its kind; got {bytes(packet[:16])!r}")
            self._size += len(packet)
            if self._size > _FRAME_BYTES or (kind is Kind.PIECE and descriptors):
                close_all(descriptors)
                raise MessageError(f"a frame must have at most {_FRAME_BYTES} bytes; got {self._size} and more")
            if kind is Kind.VOID:
                close_all(descriptors)
                self._pieces, self._size = [], 0
                continue
            if kind is not Kind.PIECE:
                body = b"".join([*self._pieces, packet[1:]]) if self._pieces else bytes(packet[1:])
                self._pieces, self._size = [], 0
                return Frame(kind, body, descriptors)
            self._pieces.append(bytes(packet[1:]))

    def _next_packet(self) -> tuple[memoryview, tuple[int, ...]]:
        try:
            size, ancillary, flags = self._read()
        except ConnectionResetError:
            # The other end closed before it read all. The socket reports that once; earlier packets can still be read.
            try:
                size, ancillary, flags = self._read()
            except ConnectionResetError:
                return self._packet[:0], ()
        descriptors = _descriptors(ancillary) if ancillary else ()
        if flags & _CUT:
            close_all(descriptors)
            if flags & socket.MSG_CTRUNC and len(descriptors) < _MAX_DESCRIPTORS:  # there was room for more
                raise MessageError(
                    "this process can't take the descriptors of shared memory that a writer sent: it has reached its "
                    "limit of open files; raise it (ulimit -n), or close some"
                )
            raise MessageError(
                f"a packet must have at most {_PACKET_BYTES + 1} bytes and {_MAX_DESCRIPTORS} descriptors"
            )
        return self._packet[:size], descriptors

    def _read(self) -> tuple[int, list[tuple[int, int, bytes]], int]:
        # Not `recv_fds`: a program that another thread starts at that moment would inherit its descriptors.
        size, ancillary, flags, _ = self._socket.recvmsg_into((self._packet,), _ANCILLARY_BYTES, _CLOSED_IN_PROGRAMS)
        return size, ancillary, flags


def _descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> tuple[int, ...]:
    """Return the descriptors in the ancillary data of a packet."""
    found = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return tuple(found)


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors that came with a frame."""
    for descriptor in descriptors:
        socket.close(descriptor)


def pack_hello(hello: Hello, descriptors: tuple[int, int, int]) -> Frame:
    """Return the hello of a writer: with its arena's table and bell, and a pidfd of its process."""
    body = _HELLO.pack(MAGIC, VERSION, hello.participant, hello.capacity)
    return Frame(Kind.HELLO, body, descriptors)


def parse_hello(frame: Frame) -> Hello:
    """Return the fields of a writer's hello.

    Raises:
        MessageError: the frame is no hello, or one of another version.
    """
    if frame.kind is not Kind.HELLO or len(frame.body) < _HELLO.size or not frame.body.startswith(MAGIC):
        raise MessageError(f"a writer must send its hello first; got {frame.kind.name} {frame.body[:16]!r}")
    _, version, participant, capacity = _HELLO.unpack_from(frame.body)
    if version != VERSION:
        raise MessageError(
            f"both ends of a pipe must have the same protocol version; this reader has {VERSION}, the writer "
            f"{version}. Install the same Penstock on both sides."
        )
    if len(frame.body) != _HELLO.size or len(frame.descriptors) != 3:
        raise MessageError(f"a writer's hello must have 3 descriptors; got {len(frame.descriptors)}")
    return Hello(participant, capacity)


def pack_region(region: int, descriptor: int) -> Frame:
    """Return the frame that sends a region of an arena."""
    return Frame(Kind.REGION, _REGION.pack(region), (descriptor,))


def parse_region(frame: Frame) -> int:
    """Return the region's number.

    Raises:
        MessageError: the frame is malformed.
    """
    if len(frame.body) != _REGION.size or len(frame.descriptors) != 1:
        raise MessageError("a region frame must hold its number and one descriptor")
    return int(_REGION.unpack(frame.body)[0])


def pack_device_slot(slot: int, shared: bytes) -> Frame:
    """Return the frame that describes a device slot; with an empty description, the reader drops the slot."""
    return Frame(Kind.DEVICE_SLOT, _REGION.pack(slot) + shared)


def parse_device_slot(frame: Frame) -> tuple[int, bytes]:
    """Return a device slot's number, and its description.

    Raises:
        MessageError: the frame is malformed.
    """
    if len(frame.body) < _REGION.size or frame.descriptors:
        raise MessageError("a device slot frame must hold its number and its handles")
    return int(_REGION.unpack_from(frame.body)[0]), frame.body[_REGION.size :]


def pack_message(message: Message) -> Frame:
    """Return the frame of a message."""
    head, places, memory = message
    inline = isinstance(memory, bytes)
    last = memory if isinstance(memory, bytes) else _pack_place(memory)
    start = _MESSAGE.pack(len(head), len(places), inline)
    return Frame(Kind.MESSAGE, b"".join([start, *map(_pack_place, places), head, last]))


def parse_message(frame: Frame) -> Message:
    """Return the message that a frame holds.

    Raises:
        MessageError: the frame is malformed.
    """
    body = frame.body
    try:
        head_bytes, num_places, inline = _MESSAGE.unpack_from(body)
        head_start = _MESSAGE.size + num_places * _PLACE.size
        memory_start = head_start + head_bytes
        if len(body) < memory_start or (not inline and len(body) != memory_start + _PLACE.size):
            raise MessageError(f"a message of {len(body)} bytes is too short for the sizes in it")
        places: tuple[SlotPlace, ...] = ()
        if num_places:
            places = tuple(map(SlotPlace._make, _PLACE.iter_unpack(body[_MESSAGE.size : head_start])))
        memory = body[memory_start:] if inline else SlotPlace._make(_PLACE.unpack_from(body, memory_start))
    except struct.error as error:
        raise MessageError(f"a message of {len(body)} bytes is truncated") from error
    return Message(body[head_start:memory_start], places, memory)


def pack_starved(starved: Starved) -> Frame:
    """Return the frame of a writer that waits for memory."""
    return Frame(Kind.STARVED, _STARVED.pack(starved.needed_bytes, starved.returned))


def parse_starved(frame: Frame) -> Starved:
    """Return the fields of the frame of a writer that waits for memory.

    Raises:
        MessageError: the frame is malformed.
    """
    if len(frame.body) != _STARVED.size:
        raise MessageError(f"a {frame.kind.name} frame must have {_STARVED.size} bytes; got {len(frame.body)}")
    return Starved(*_STARVED.unpack(frame.body))


def _pack_place(place: SlotPlace) -> bytes:
    return _PLACE.pack(*place)
