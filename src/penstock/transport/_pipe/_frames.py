"""Frames: what goes through the socket of a pipe, and how each is laid out.

    writer → reader     hello, region, layout, message, starved, end, failed, dropped
    reader → writer     closed, failed, rejected

A frame is one packet: its kind, then its fields. Those too long for a packet are cut, and each piece but the last is
marked as such; a frame that is given up in between ends as dropped. Nothing is trusted: what doesn't parse is a
`MessageError`.
"""

import enum
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import MessageError
from penstock.transport._arena import SlotPlace

MAGIC: Final = b"PENSTOCK"
VERSION: Final = 1

INLINE_BYTES: Final = 65_536  # messages up to this size go through the socket itself
_PACKET_BYTES: Final = 98_304  # of what a Unix socket takes at once; the smallest usual buffer is twice as large
_FRAME_BYTES: Final = 64 << 20  # more than this is no frame of ours
_MAX_DESCRIPTORS: Final = 3


class Kind(enum.IntEnum):
    """What a packet is."""

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
    DROPPED = 10


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole frame: its kind, its fields, and the descriptors that came with it, which are the holder's to close."""

    kind: Kind
    body: bytes
    descriptors: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Hello:
    """A writer's first frame; with it come the descriptors of the arena's table, its bell, and of the process."""

    participant: int
    capacity: int


@dataclass(frozen=True, slots=True)
class Message:
    """An element: what it means, and where it is.

    Attributes:
        head: what `Encoder.encode` said of it.
        places: where the leaves lie that are sent by reference.
        memory: where the rest lies, or the rest itself.
    """

    head: bytes
    places: tuple[SlotPlace, ...]
    memory: SlotPlace | bytes


@dataclass(frozen=True, slots=True)
class Starved:
    """A writer waits for memory that this reader alone can give back.

    Attributes:
        needed_bytes: how much it needs.
        returned: how often the reader had given memory back when the writer last looked. Once it is more, the writer
            has been woken, and will say so if that was not enough.
    """

    needed_bytes: int
    returned: int


_HELLO: Final = struct.Struct("<8sHxxII")
_REGION: Final = struct.Struct("<I")
_MESSAGE: Final = struct.Struct("<IIB")
_PLACE: Final = struct.Struct("<IIQQ")
_STARVED: Final = struct.Struct("<QQ")


def packets(frame: Frame) -> list[tuple[bytes, tuple[int, ...]]]:
    """Return the packets that make up a frame, with the descriptors that go with each."""
    body, last = frame.body, max(len(frame.body) - 1, 0) // _PACKET_BYTES
    cut = [body[start * _PACKET_BYTES : (start + 1) * _PACKET_BYTES] for start in range(last + 1)]
    kinds = [Kind.PIECE] * last + [frame.kind]
    return [
        (bytes([kind]) + piece, frame.descriptors if place == last else ())
        for place, (kind, piece) in enumerate(zip(kinds, cut, strict=True))
    ]


class Inbox:
    """Receives the frames of one socket that never blocks, putting pieces together."""

    __slots__ = ("_pieces", "_size", "_socket")

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._pieces: list[bytes] = []
        self._size = 0

    def receive(self) -> Frame | None:
        """Return the next frame; None once the other end is closed and everything was received.

        Raises:
            BlockingIOError: there is no whole frame yet.
            MessageError: what came is no frame.
        """
        while True:
            packet, descriptors = self._packet()
            if not packet and not descriptors:
                return None
            try:
                kind = Kind(packet[0])
            except (ValueError, IndexError):
                close_all(descriptors)
                raise MessageError(f"a packet must begin with its kind; got {packet[:16]!r}") from None
            self._size += len(packet)
            if self._size > _FRAME_BYTES or (kind is Kind.PIECE and descriptors):
                close_all(descriptors)
                raise MessageError(f"a frame must have at most {_FRAME_BYTES} bytes; got {self._size} and more")
            if kind is not Kind.PIECE:
                body = b"".join([*self._pieces, packet[1:]]) if self._pieces else packet[1:]
                self._pieces, self._size = [], 0
                return Frame(kind, body, descriptors)
            self._pieces.append(packet[1:])

    def _packet(self) -> tuple[bytes, tuple[int, ...]]:
        try:
            packet, descriptors, flags, _ = socket.recv_fds(self._socket, _PACKET_BYTES + 1, _MAX_DESCRIPTORS)
        except ConnectionResetError:
            # The other end closed with something of ours unread. That is told once; what it sent before is still there.
            try:
                packet, descriptors, flags, _ = socket.recv_fds(self._socket, _PACKET_BYTES + 1, _MAX_DESCRIPTORS)
            except ConnectionResetError:
                return b"", ()
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            close_all(descriptors)
            raise MessageError(
                f"a packet must have at most {_PACKET_BYTES + 1} bytes and {_MAX_DESCRIPTORS} descriptors"
            )
        return packet, tuple(descriptors)


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors that came with a frame."""
    for descriptor in descriptors:
        socket.close(descriptor)


def pack_hello(hello: Hello, descriptors: tuple[int, int, int]) -> Frame:
    """Return the frame that introduces a writer: with its arena's table and bell, and itself as a pidfd."""
    body = _HELLO.pack(MAGIC, VERSION, hello.participant, hello.capacity)
    return Frame(Kind.HELLO, body, descriptors)


def parse_hello(frame: Frame) -> Hello:
    """Return what a writer's first frame says.

    Raises:
        MessageError: it is none, or of another version.
    """
    if frame.kind is not Kind.HELLO or len(frame.body) < _HELLO.size or not frame.body.startswith(MAGIC):
        raise MessageError(f"a writer must introduce itself first; got {frame.kind.name} {frame.body[:16]!r}")
    _, version, participant, capacity = _HELLO.unpack_from(frame.body)
    if version != VERSION:
        raise MessageError(
            f"both ends of a pipe must speak the same version; this reader's is {VERSION}, the writer's {version}. "
            "Install the same Penstock on both sides."
        )
    if len(frame.body) != _HELLO.size or len(frame.descriptors) != 3:
        raise MessageError(f"a writer must introduce itself with 3 descriptors; got {len(frame.descriptors)}")
    return Hello(participant, capacity)


def pack_region(region: int, descriptor: int) -> Frame:
    """Return the frame that hands over a region of an arena."""
    return Frame(Kind.REGION, _REGION.pack(region), (descriptor,))


def parse_region(frame: Frame) -> int:
    """Return the region's number.

    Raises:
        MessageError: the frame is malformed.
    """
    if len(frame.body) != _REGION.size or len(frame.descriptors) != 1:
        raise MessageError("a region must come as its number and one descriptor")
    return int(_REGION.unpack(frame.body)[0])


def pack_message(message: Message) -> Frame:
    """Return the frame of a message."""
    inline = isinstance(message.memory, bytes)
    parts = [_MESSAGE.pack(len(message.head), len(message.places), inline), *map(_pack_place, message.places)]
    parts += [message.head, message.memory if isinstance(message.memory, bytes) else _pack_place(message.memory)]
    return Frame(Kind.MESSAGE, b"".join(parts))


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
            raise MessageError(f"a message of {len(body)} bytes is too short for what it says of itself")
        places = tuple(
            SlotPlace(*_PLACE.unpack_from(body, start)) for start in range(_MESSAGE.size, head_start, _PLACE.size)
        )
        memory = body[memory_start:] if inline else SlotPlace(*_PLACE.unpack_from(body, memory_start))
    except struct.error as error:
        raise MessageError(f"a message of {len(body)} bytes is truncated") from error
    return Message(body[head_start:memory_start], places, memory)


def pack_starved(starved: Starved) -> Frame:
    """Return the frame of a writer that waits for memory."""
    return Frame(Kind.STARVED, _STARVED.pack(starved.needed_bytes, starved.returned))


def parse_starved(frame: Frame) -> Starved:
    """Return what a writer says that waits for memory.

    Raises:
        MessageError: the frame is malformed.
    """
    if len(frame.body) != _STARVED.size:
        raise MessageError(f"a {frame.kind.name} frame must have {_STARVED.size} bytes; got {len(frame.body)}")
    return Starved(*_STARVED.unpack(frame.body))


def _pack_place(place: SlotPlace) -> bytes:
    return _PLACE.pack(place.slot, place.region, place.start_bytes, place.size_bytes)
