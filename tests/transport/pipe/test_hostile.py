"""Messages of other processes aren't trusted: malformed ones are errors, and nothing crashes, hangs or leaks."""

import os
import socket
import struct
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.errors import EndOfPipeError, MessageError, PeerError, PenstockError
from penstock.transport import Arena, TensorPipeReader, TensorPipeWriter
from tests.profiles import IS_LONG
from tests.transport.pipe.children import element_of, running

HELLO = 1
EXAMPLES = settings().max_examples * (4 if IS_LONG else 1)


@contextmanager
def stranger(address: str) -> Generator[socket.socket]:
    """Connect to a reader as a process that doesn't follow the protocol."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connected:
        connected.connect(address if "/" in address else "\0" + address[1:])
        yield connected


Recorded = list[tuple[bytes, list[int]]]  # packets, with their descriptors


@pytest.fixture(scope="module")
def recorded() -> Iterator[Recorded]:
    """Yield the packets that a real writer sent."""
    packets: Recorded = []
    name = f"@penstock-recorder-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind("\0" + name[1:])
        listening.listen()
        writer = TensorPipeWriter(name, capacity=10)
        with listening.accept()[0] as connected:
            writer.send({"x": np.arange(3), "label": 7, "name": "a"})
            writer.send(element_of(1))
            writer.send({**writer.empty({"y": np.zeros(30_000)}), "text": "b"})
            writer.close()
            while not packets or packets[-1][0][:1] not in (b"", b"\6"):  # its last word
                packets.append(socket.recv_fds(connected, 1 << 17, 8)[:2])
    yield packets
    for _, descriptors in packets:
        for descriptor in descriptors:
            os.close(descriptor)


def play(recorded: Recorded, change: Callable[[int, bytes], bytes | None]) -> list[object]:
    """Send recorded packets, each changed or left out, and return what the reader made of them: elements and errors."""
    found: list[object] = []
    with TensorPipeReader() as reader:
        with stranger(reader.address) as connected:
            for place, (packet, descriptors) in enumerate(recorded):
                changed = change(place, packet)
                if changed:
                    socket.send_fds(connected, [changed], descriptors)
        for _ in range(20):
            try:
                found.append(reader.receive(timeout_seconds=5))
            except EndOfPipeError:
                return found
            except PenstockError as error:
                found.append(error)
    raise AssertionError("the reader never came to an end")


def connect_as_nobody(address: str) -> None:
    """Connect to a reader as another user's process."""
    os.setuid(65534)
    with pytest.raises(PeerError, match=r"both ends of a pipe must belong to one user; .* to 65534, the peer to 0"):
        TensorPipeWriter(address)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start another user's program")
def test_another_users_reader_gets_nothing() -> None:
    """A writer refuses to connect to it."""
    with TensorPipeReader() as reader, running("fork", connect_as_nobody, reader.address) as process:
        process.join()
        assert process.exitcode == 0


def test_packets_that_are_played_back_are_understood(recorded: Recorded) -> None:
    """A reader accepts the recording; its memory is gone, so only inline messages are whole."""
    found = play(recorded, lambda _, packet: packet)
    assert isinstance(found[0], dict)
    assert found[0]["name"] == "a"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=EXAMPLES)
@given(data=st.data())
def test_changed_packets_are_elements_or_message_errors(recorded: Recorded, data: st.DataObject) -> None:
    """Whatever bytes are flipped, cut off, added or left out: no crash, no hang, no other error."""
    victim = data.draw(st.integers(0, len(recorded) - 1), label="packet")
    kind = data.draw(st.sampled_from(["flip", "cut", "add", "drop", "number"]), label="change")
    length = len(recorded[victim][0])
    at = data.draw(st.integers(0, length - 1), label="at")
    value = data.draw(st.integers(0, 255), label="value")
    number = data.draw(
        st.sampled_from([0, 1, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1]), label="number"
    )

    def change(place: int, packet: bytes) -> bytes | None:
        if place != victim:
            return packet
        changed = bytearray(packet)
        if kind == "flip":
            changed[at] ^= value
        elif kind == "cut":
            del changed[max(at, 1) :]
        elif kind == "add":
            changed += bytes([value]) * (at + 1)
        elif kind == "number":
            raw = struct.pack("<Q", number)
            changed[at : at + 8] = raw[: len(changed[at : at + 8])]
        else:
            return None
        return bytes(changed)

    for each in play(recorded, change):
        assert not isinstance(each, Exception) or isinstance(each, MessageError | PeerError)


@given(packets=st.lists(st.binary(min_size=1, max_size=300), max_size=5))
@example([b"\x06"])  # an end without a hello
def test_random_packets_are_message_errors(packets: list[bytes]) -> None:
    """A stranger is heard once, and then no longer."""
    with TensorPipeReader() as reader:
        with stranger(reader.address) as connected:
            for packet in packets:
                try:
                    connected.send(packet)
                except BrokenPipeError:
                    break
        with pytest.raises((MessageError, PeerError)):
            reader.receive(timeout_seconds=5)
        with pytest.raises(EndOfPipeError):
            reader.receive(timeout_seconds=5)


HELLO_OF_THIS_VERSION = bytes([HELLO]) + struct.pack("<8sHxxII", b"PENSTOCK", 1, 1, 2)


def test_a_hello_with_other_descriptors_is_refused() -> None:
    """Too few, too many, or none of what they should be; and none of them leaks."""
    with TensorPipeReader(num_writers=None) as reader, open("/dev/null", "rb") as null:
        for count in range(5):
            with stranger(reader.address) as connected:
                socket.send_fds(connected, [HELLO_OF_THIS_VERSION], [null.fileno()] * count)
                with pytest.raises(MessageError):
                    reader.receive(timeout_seconds=5)


def test_a_bell_that_could_block_is_refused() -> None:
    """A writer that hands over a pipe, which blocks when it is full, can't hold up the reader."""
    ends, process = os.pipe(), os.pidfd_open(os.getpid())
    try:
        with Arena() as arena, TensorPipeReader() as reader, stranger(reader.address) as connected:
            socket.send_fds(connected, [HELLO_OF_THIS_VERSION], [arena.table_descriptor, ends[1], process])
            with pytest.raises(MessageError, match="eventfd"):
                reader.receive(timeout_seconds=5)
    finally:
        for descriptor in (*ends, process):
            os.close(descriptor)


def test_another_version_is_named() -> None:
    """On both sides: here and in the writer's error."""
    with TensorPipeReader() as reader, stranger(reader.address) as connected:
        connected.send(bytes([HELLO]) + struct.pack("<8sHxxII", b"PENSTOCK", 99, 1, 2))
        with pytest.raises(MessageError, match="version; this reader has 1, the writer 99"):
            reader.receive(timeout_seconds=5)
        assert b"version" in connected.recv(4096)


def test_endless_pieces_are_cut_off() -> None:
    """A frame that never ends doesn't fill the memory."""
    piece = bytes(98_305)
    with TensorPipeReader() as reader, stranger(reader.address) as connected:
        connected.settimeout(0)
        with pytest.raises(MessageError, match="at most"):
            _send_for_ever(connected, piece, reader)


def test_a_pickle_is_not_opened_where_it_is_not_allowed() -> None:
    """Though the writer made one; an untrusted writer can't make this process run code. The writer gets the refusal."""
    with TensorPipeReader() as reader:
        writer = TensorPipeWriter(reader.address, allow_pickle=True)
        writer.send({"what": Bomb()})
        with pytest.raises(MessageError, match="allow_pickle"):
            reader.receive(timeout_seconds=5)
        with pytest.raises(MessageError, match=r"refused.*allow_pickle"):
            writer.close()
    assert not Bomb.exploded


def _send_for_ever(connected: socket.socket, piece: bytes, reader: TensorPipeReader) -> None:
    for _ in range(2_000):
        try:
            connected.send(piece)
        except BlockingIOError:
            with pytest.raises(TimeoutError):
                reader.receive(timeout_seconds=0)


class Bomb:
    """Unpickling it is noticed."""

    exploded = False

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _explode, ()


def _explode() -> None:
    Bomb.exploded = True
