"""Leases of an arena, and a participant in another process, which adopts and drops slots on orders over a socket."""

import json
import os
import socket
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import numpy as np
from numpy.typing import NDArray

from penstock._memory import Lease, array_over
from penstock.transport import Arena, AttachedArena, SlotPlace
from tests.programs.forked import started

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
    """Start a program that has nothing of this one but a path, as a participant; give it and its process's number.

    The test uses the fixture `forked_programs`.
    """
    with ExitStack() as scope, tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/owner"
        listener = scope.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind(path)
        listener.listen()
        program = scope.enter_context(started(f"from tests.transport.arena.peers import serve; serve({path!r})"))
        connection = scope.enter_context(listener.accept()[0])
        yield Peer(arena, connection), program.pid


def _receive(connection: socket.socket) -> tuple[dict[str, int], list[int]]:
    message, descriptors, _, _ = socket.recv_fds(connection, 4096, 2)
    order: dict[str, int] = json.loads(message) if message else {}
    return order, descriptors


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
