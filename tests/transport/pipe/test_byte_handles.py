"""One process fetches bytes, another parses them: they are copied once at most, into the memory that both have."""

import json
import multiprocessing
import zlib
from dataclasses import astuple, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import numpy as np

from penstock.transport import Bytes, TensorPipeReader, TensorPipeWriter
from tests.transport.pipe.children import running

NUMBERS = np.arange(1 << 16, dtype=np.uint32)
RECORDS = [{"name": f"record {number}", "number": number} for number in range(4_000)]
JSON = json.dumps(RECORDS).encode()
PACKED = zlib.compress(NUMBERS.tobytes(), level=0)


@dataclass(frozen=True)
class Counts:
    """The counts that the fetching process reports."""

    copied_bytes: int
    shared_bytes: int
    pickled: int
    held: int


def fetch(address: str, parser: Connection) -> None:
    """Send the fetched bytes, in handles and in shared memory; then report counts as often as requested."""
    with TensorPipeWriter(address) as writer:
        received = writer.empty(np.empty(NUMBERS.nbytes + 8, np.uint8))  # as a socket's `recv_into` would fill it
        received[8:] = NUMBERS.view(np.uint8)
        writer.send({"json": Bytes(JSON), "packed": Bytes(bytearray(PACKED)), "etag": Bytes(b"small")})
        writer.send({"body": Bytes(received)[8:], "status": 200})
        del received
        while parser.recv() == "tell":
            done, memory = writer.counters, writer.arena.counters
            counts = Counts(done.copied_bytes, done.shared_bytes, done.pickled, memory.leased - memory.returned)
            parser.send(astuple(counts))


def is_shared(handle: Bytes) -> bool:
    """Return whether all of a handle's bytes lie in one mapping of memory that has no name in any folder."""
    array = np.frombuffer(cast("bytes", handle), np.uint8)
    start = array.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= start and start + array.nbytes <= last:
            return "/memfd:" in line
    return False


def test_fetched_bytes_are_parsed_where_they_lie() -> None:
    """Handles arrive as views of shared memory, and their memory comes back with the last one."""
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs, TensorPipeReader() as reader, running("fork", fetch, reader.address, theirs):

        def counts() -> Counts:
            ours.send("tell")
            return Counts(*ours.recv())

        fetched: Any = reader.receive()
        response: Any = reader.receive()
        handles = [fetched["json"], fetched["packed"], response["body"]]
        assert [type(handle) for handle in handles] == [Bytes] * 3
        assert [is_shared(handle) for handle in [*handles, fetched["etag"]]] == [True, True, True, False]
        assert all(handle.readonly for handle in handles)

        counted = counts()
        assert len(JSON) + len(PACKED) <= counted.copied_bytes < len(JSON) + len(PACKED) + 5 * 64
        assert (counted.shared_bytes, counted.pickled, counted.held) == (NUMBERS.nbytes, 0, 2)

        assert json.loads(fetched["json"]) == RECORDS
        assert np.array_equal(np.frombuffer(zlib.decompress(fetched["packed"]), np.uint32), NUMBERS)
        numbers = np.frombuffer(response["body"], np.uint32)
        assert np.array_equal(numbers, NUMBERS)
        assert np.shares_memory(numbers, np.frombuffer(response["body"], np.uint8))

        etag, part = fetched["etag"], fetched["json"][2:]
        del fetched, response, handles
        assert counts().held == 2
        del part
        assert counts().held == 1
        del numbers
        assert counts() == Counts(counted.copied_bytes, counted.shared_bytes, 0, 0)
        assert etag == b"small"
        ours.send("end")


def test_copies_of_handles_keep_no_memory() -> None:
    """With copy=True handles are the receiver's own, also those that were sent by reference."""
    with TensorPipeReader(copy=True) as reader, TensorPipeWriter(reader.address) as writer:
        shared = writer.empty(np.empty(100_000, np.uint8))
        shared[:] = 1
        writer.send([Bytes(shared), Bytes(bytes(100_000))])
        received: Any = reader.receive()
        shared[:] = 2
        assert [bytes(handle[:2]) for handle in received] == [b"\1\1", b"\0\0"]
        del shared
        counters = writer.arena.counters
        assert counters.leased == counters.returned
