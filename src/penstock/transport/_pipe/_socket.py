"""The Unix socket between a writer and its reader: its address, and the frames that it carries.

The reader's address is text. `@name` is an abstract address (Linux): it has no file, and ends with its last process. An
address with a `/` is a path. Only the owner may use its file; `close` removes the file, and a new reader replaces that
of a killed one. Both ends refuse processes of other users.

    writer → reader     hello, region, device slot, layout, message, starved, end, failed
    reader → writer     closed, failed, rejected

A frame is one packet: its kind, then its fields. A frame that is too long for a packet is split; each piece but the
last has the kind PIECE. If the last one is never sent, VOID discards the pieces before it. The receiver trusts nothing:
a frame that doesn't parse raises `MessageError`. A failure carries an exception as JSON text, so that an end that isn't
trusted can send only text; it is pickled beside the text if both ends allow pickle.
"""

import array
import contextlib
import enum
import errno
import json
import os
import secrets
import socket
import stat
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from penstock._processes import PackedError, pack_error, unpack_error
from penstock.errors import MessageError, PeerError, UsageError
from penstock.transport._arena import SlotPlace

MAGIC: Final = b"PENSTOCK"
VERSION: Final = 1
INLINE_BYTES: Final = 65_536  # messages up to this size go through the socket itself
_PACKET_BYTES: Final = 98_304  # the largest packet; the smallest usual buffer of a socket is twice as large
_FRAME_BYTES: Final = 64 << 20  # the largest frame; longer ones are refused
_PICKLED_BYTES: Final = 16_384  # the largest pickled exception: an end that fails sends without waiting for room
_MAX_DESCRIPTORS: Final = 3
_CLOSE_ON_EXEC: Final = int(socket.MSG_CMSG_CLOEXEC)
_TRUNCATED: Final = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_ANCILLARY_BYTES: Final = socket.CMSG_LEN(_MAX_DESCRIPTORS * array.array("i").itemsize)
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid of the peer, from the kernel
_BACKLOG: Final = 128  # writers that wait to be accepted
_MAX_ADDRESS_BYTES: Final = 107  # sun_path without its terminating zero
_HELLO: Final = struct.Struct("<8sHxxII")
_REGION: Final = struct.Struct("<I")  # a number alone
_MESSAGE: Final = struct.Struct("<IIB")
_PLACE: Final = struct.Struct("<IIQQ")
_STARVED: Final = struct.Struct("<QQ")


def new_address() -> str:
    """Return a new abstract address."""
    return f"@penstock-{os.getpid()}-{secrets.token_hex(8)}"


def listen(address: str) -> socket.socket:
    """Return a non-blocking socket that listens at the address.

    Raises:
        UsageError: this system has no such sockets, the address is malformed, or another process listens there.
    """
    native = _native_form(address)
    made = _new_socket()
    try:
        if _is_path(address) and os.path.exists(address):
            _remove_if_stale(address)
        made.bind(native)
        if _is_path(address):
            os.chmod(address, 0o600)
        made.listen(_BACKLOG)
        made.settimeout(0)
    except OSError as error:
        made.close()
        raise UsageError(
            f"a reader's address must be free, and its folder must exist and be writable; got {address!r}: "
            f"{error.strerror}. Omit address= for a generated one."
        ) from error
    except BaseException:
        made.close()
        raise
    return made


def absolute(address: str) -> str:
    """Return the address, with an absolute path if it is a path, so that it is valid in every folder."""
    return os.path.abspath(address) if _is_path(address) else address


def remove_file(address: str) -> None:
    """Remove the file of the address, if it is a path."""
    if _is_path(address):
        with contextlib.suppress(OSError):
            os.unlink(address)


def connect(address: str) -> socket.socket:
    """Return a non-blocking socket that is connected to the reader at the address.

    Raises:
        UsageError: this system has no such sockets, or the address is malformed.
        PeerError: no reader listens there, or it is another user's process.
    """
    made = _new_socket()
    try:
        _connect(made, address)
        require_same_user(made)
    except BaseException:
        made.close()
        raise
    made.settimeout(0)  # not earlier: `connect` must wait while the backlog is full
    return made


def peer_pid(connected: socket.socket) -> int:
    """Return the number of the process at the other end; 0 if this process can't see it."""
    return _credentials(connected)[0]


def require_same_user(connected: socket.socket) -> None:
    """Check that the process at the other end belongs to this user.

    Raises:
        PeerError: it belongs to another user.
    """
    pid, user, _ = _credentials(connected)
    if user != os.geteuid():
        raise PeerError(
            f"both ends of a pipe must belong to one user; this process belongs to {os.geteuid()}, the peer to {user}",
            pid=pid,
        )


def _credentials(connected: socket.socket) -> tuple[int, int, int]:
    packed = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, group = _CREDENTIALS.unpack(packed)
    return pid, user, group


def _new_socket() -> socket.socket:
    if sys.platform != "linux":
        raise UsageError(f"a tensor pipe requires Linux, to send memory by descriptor; this is {sys.platform}")
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _is_path(address: str) -> bool:
    return "/" in address and not address.startswith("@")


def _native_form(address: str) -> bytes:
    abstract = address.startswith("@") and len(address) > 1
    if not abstract and not _is_path(address):
        raise UsageError(
            f"an address must be '@name' or a path with a '/' in it; got {address!r}. Pass the reader's .address "
            "unchanged."
        )
    native = b"\0" + os.fsencode(address[1:]) if abstract else os.fsencode(address)
    if len(native) > _MAX_ADDRESS_BYTES or "\0" in address:
        raise UsageError(
            f"an address must have at most {_MAX_ADDRESS_BYTES} bytes, none of them zero; {address!r} has "
            f"{len(native)}. Use a shorter path, such as one in /tmp, or '@name'."
        )
    return native


def _connect(made: socket.socket, address: str) -> None:
    try:
        made.connect(_native_form(address))
    except OSError as error:
        raise PeerError(
            f"no reader listens at {address!r} ({error.strerror}). Open the TensorPipeReader first, keep it open, and "
            "give its .address to the writer."
        ) from error


def _remove_if_stale(path: str) -> None:
    """Remove the socket file of a reader that has ended; leave any other file, so that `bind` raises.

    Raises:
        OSError: the file can't be read or removed.
    """
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        return  # `bind` raises for it
    # A socket of another type shows whether a reader listens, without becoming a writer of that reader.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except OSError as error:
            if error.errno != errno.EPROTOTYPE:
                raise


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
    """A whole frame: its kind, its fields, and the descriptors that came with it, which the receiver must close."""

    kind: Kind
    body: bytes
    descriptors: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Hello:
    """A writer's first frame; it carries the descriptors of the arena's table and bell, and of the process."""

    participant: int
    capacity: int


class Message(NamedTuple):
    """An element: its head, and the places of its data.

    Attributes:
        head: the head from `Encoder.encode`.
        places: the places of the leaves that are sent by reference.
        memory: the place of the other leaves' data, or the data itself.
    """

    head: bytes
    places: tuple[SlotPlace, ...]
    memory: SlotPlace | bytes


@dataclass(frozen=True, slots=True)
class Starved:
    """A writer waits for memory that only this reader can return.

    Attributes:
        needed_bytes: the size that it needs.
        returned: the number of holds that the reader had returned when the writer last checked. Each further return
            wakes the writer, which sends another frame if that wasn't enough.
    """

    needed_bytes: int
    returned: int


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
            # The other end closed with unread packets. The socket reports that once; its own packets can still be read.
            try:
                size, ancillary, flags = self._read()
            except ConnectionResetError:
                return self._packet[:0], ()
        descriptors = _descriptors(ancillary) if ancillary else ()
        if flags & _TRUNCATED:
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
        # Not `recv_fds`: a program that another thread starts at that moment would inherit the descriptors.
        size, ancillary, flags, _ = self._socket.recvmsg_into((self._packet,), _ANCILLARY_BYTES, _CLOSE_ON_EXEC)
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


def pack_failure(error: BaseException, *, allow_pickle: bool) -> bytes:
    """Return a description of an exception, with the exception itself if pickle is allowed and works for it."""
    packed = pack_error(error, with_pickle=allow_pickle, contain=Exception)
    described: dict[str, Any] = {"type": packed.kind, "message": packed.message, "traceback": packed.traceback}
    if packed.pickled and len(packed.pickled) <= _PICKLED_BYTES:
        described["pickled"] = packed.pickled.hex()
    return json.dumps(described).encode()


def unpack_failure(described: bytes, *, peer: str, pid: int, allow_pickle: bool) -> Exception:
    """Return the exception to raise for a failure at the other end.

    Args:
        described: the result of `pack_failure` there.
        peer: the name of the other end in messages: "the writer".
        pid: its process.
        allow_pickle: whether it is trusted.

    Returns:
        The original exception, with the remote traceback as a note; else a PeerError with type, message and traceback.

    Raises:
        MessageError: the description is malformed.
    """
    try:
        fields = json.loads(described)
        kind, message, text = (str(fields[name]) for name in ("type", "message", "traceback"))
        pickled = bytes.fromhex(fields.get("pickled", ""))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        raise MessageError(
            f"a failure must be described by type, message and traceback; got {described[:64]!r}"
        ) from cause
    packed = PackedError(pickled if allow_pickle else b"", kind, message, text.rstrip(), pid)
    replacement = PeerError(f"{peer} failed with {kind}: {message}", pid=pid)
    return unpack_error(packed, replacement=replacement, place="At the other end of the pipe, in")
