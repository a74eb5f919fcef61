"""Fetched bytes are parsed where they lie: they are copied once at most, into the memory that both ends have."""

import json
import zlib
from pathlib import Path
from typing import Any, cast

import numpy as np

from penstock.transport import Bytes, TensorPipeReader, TensorPipeWriter

NUMBERS = np.arange(1 << 16, dtype=np.uint32)
RECORDS = [{"name": f"record {number}", "number": number} for number in range(4_000)]
JSON = json.dumps(RECORDS).encode()
PACKED = zlib.compress(NUMBERS.tobytes(), level=0)


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
    with TensorPipeReader() as reader, TensorPipeWriter(reader.address) as writer:
        memory = writer.empty(np.empty(NUMBERS.nbytes + 8, np.uint8))  # as a socket's `recv_into` would fill it
        memory[8:] = NUMBERS.view(np.uint8)
        writer.send({"json": Bytes(JSON), "packed": Bytes(bytearray(PACKED)), "etag": Bytes(b"small")})
        writer.send({"body": Bytes(memory)[8:], "status": 200})
        del memory
        fetched: Any = reader.receive()
        response: Any = reader.receive()
        handles = [fetched["json"], fetched["packed"], response["body"]]
        assert [type(handle) for handle in handles] == [Bytes] * 3
        assert [is_shared(handle) for handle in [*handles, fetched["etag"]]] == [True, True, True, False]
        assert all(handle.readonly for handle in handles)
        counters = writer.counters
        assert len(JSON) + len(PACKED) <= counters.copied_bytes < len(JSON) + len(PACKED) + 5 * 64
        assert (counters.shared_bytes, counters.pickled) == (NUMBERS.nbytes, 0)

        assert json.loads(fetched["json"]) == RECORDS
        assert np.array_equal(np.frombuffer(zlib.decompress(fetched["packed"]), np.uint32), NUMBERS)
        numbers = np.frombuffer(response["body"], np.uint32)
        assert np.array_equal(numbers, NUMBERS)
        parts, etag = [fetched["json"][2:], numbers], fetched["etag"]
        del fetched, response, handles, numbers
        for held in (2, 1, 0):
            memory_counters = writer.arena.counters
            assert memory_counters.leased - memory_counters.returned == held
            del parts[:1]
        assert etag == b"small"
