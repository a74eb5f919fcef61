"""A participant in another process, which adopts and drops slots on orders over a Unix socket.

Run as a program with the name of a start method, it is an owner that lends to two processes started by it, and prints
what they saw.
"""

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import penstock
from penstock._memory import Lease, array_over
from penstock.transport import Arena, AttachedArena, SlotPlace

CHECKOUT = Path(__file__).parents[3]
Bytes = NDArray[np.uint8]


def lease_of(arena: Arena, size_bytes: int) -> Lease:
    """Return a lease, for which there must be room."""
    lease = arena.lease_nowait(size_bytes)
    assert lease is not None
    return lease


def bytes_of(lease: Lease) -> Bytes:
    """Return an array over a lease, which keeps it."""
    return array_over(lease, (len(lease),), np.uint8)


def filled(arena: Arena, size_bytes: int, value: int | Bytes) -> Lease:
    """Return a lease of memory in which each byte has this value."""
    lease = lease_of(arena, size_bytes)
    bytes_of(lease)[...] = value
    return lease


def serve(path: str) -> None:
    """Follow the orders of the owner that listens at this path, until it hangs up; answer each with a number."""
    held: dict[int, list[Bytes]] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection, ExitStack() as scope:
        connection.connect(path)
        order, descriptors = _receive(connection)
        arena = AttachedArena(descriptors[0], descriptors[1], order["participant"])
        scope.callback(arena.close)
        _close(descriptors)
        while True:
            connection.send(json.dumps(arena.held).encode())
            order, descriptors = _receive(connection)
            if not order:
                return
            if descriptors:
                arena.add_region(order["region"], descriptors[0])
                _close(descriptors)
            if "drop" in order:
                held[order["drop"]].pop()
                continue
            place = SlotPlace(order["slot"], order["region"], order["start"], order["size"])
            array = bytes_of(arena.adopt(place))
            assert (array == order["value"]).all()
            held.setdefault(place.slot, []).append(array[1:])
            del array


class Peer:
    """The owner's end of the socket to a participant."""

    def __init__(self, arena: Arena, connection: socket.socket) -> None:
        self.participant = arena.invite()
        self._arena = arena
        self._connection = connection
        self._regions: set[int] = set()
        self._ask({"participant": self.participant}, arena.table_descriptor, arena.bell_descriptor)

    def give(self, slot: int, value: int) -> int:
        """Let it adopt a slot in which each byte has this value; return how many holds it has then."""
        place = self._arena.place_of(slot)
        self._arena.hold(slot, self.participant)
        order = {"slot": slot, "region": place.region, "start": place.start_bytes, "size": place.size_bytes}
        new = {place.region} - self._regions
        self._regions |= new
        return self._ask({**order, "value": value}, *(self._arena.region_descriptor(region) for region in new))

    def drop(self, slot: int) -> int:
        """Let it drop one of its arrays over a slot; return how many holds it has then."""
        return self._ask({"drop": slot})

    def _ask(self, order: dict[str, int], *descriptors: int) -> int:
        socket.send_fds(self._connection, [json.dumps(order).encode()], descriptors)
        answer = self._connection.recv(100)
        assert answer, "the participant died"
        return int(answer)


@contextmanager
def unrelated(arena: Arena) -> Generator[tuple[Peer, int]]:
    """Start a program that has nothing of this one but a path, as a participant; give it and its process's number."""
    with ExitStack() as scope, tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/owner"
        listener = scope.enter_context(_listen(path))
        program = f"from tests.transport.arena.peers import serve; serve({path!r})"
        process = scope.enter_context(subprocess.Popen([sys.executable, "-c", program], env=environment()))
        connection = scope.enter_context(listener.accept()[0])
        yield Peer(arena, connection), process.pid


def environment() -> dict[str, str]:
    """Return the environment in which a program finds Penstock and the tests."""
    return {**os.environ, "PYTHONPATH": f"{Path(penstock.__file__).parents[1]}:{CHECKOUT}"}


def lend_to_two(method: str) -> str:
    """Lend slots to two processes started by this method of multiprocessing; return what the counters say."""
    with Arena() as arena, tempfile.TemporaryDirectory() as folder, ExitStack() as scope:
        path = f"{folder}/owner"
        listener = scope.enter_context(_listen(path))
        processes = [_process(method, path) for _ in range(2)]
        for process in processes:
            process.start()
        peers = [Peer(arena, scope.enter_context(listener.accept()[0])) for _ in processes]
        for value in range(1, 40):
            array = arena.empty((1000 * value,), np.uint8)
            array[...] = value
            located = arena.locate(int(array.__array_interface__["data"][0]), array.nbytes)
            assert located is not None
            del array
            # The owner's own hold has ended, and the slot is idle, until it is leased once more for the two.
            lease = filled(arena, 1000 * value, value)
            assert [peer.give(lease.slot, value) for peer in peers] == [1, 1]
            slot = lease.slot
            del lease
            assert [peer.drop(slot) for peer in peers] == [0, 0]
        scope.close()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0, 0]
        counters = arena.counters
        return f"leased {counters.leased}, returned {counters.returned}"


def _process(method: str, path: str) -> BaseProcess:
    match method:
        case "fork":
            return multiprocessing.get_context("fork").Process(target=serve, args=(path,))
        case "forkserver":
            return multiprocessing.get_context("forkserver").Process(target=serve, args=(path,))
        case _:
            return multiprocessing.get_context("spawn").Process(target=serve, args=(path,))


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen()
    return listener


def _receive(connection: socket.socket) -> tuple[dict[str, int], list[int]]:
    message, descriptors, _, _ = socket.recv_fds(connection, 4096, 2)
    order: dict[str, int] = json.loads(message) if message else {}
    return order, descriptors


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


if __name__ == "__main__":
    print(lend_to_two(sys.argv[1]))  # noqa: T201 - what it prints is its result
