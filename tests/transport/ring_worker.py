"""Worker processes of a shared ring: a program that forks one for each line of its input, and ends with it.

The owner of the ring has nothing in common with them but the path of a socket. A worker connects to it, sends a pidfd
of itself, and is sent its number, its seed, how often it is to kill itself, and the descriptors of ring and rows.
Whatever it has to say before it ends, it says there: `end`, `suicide`, or a traceback. Of a worker that was killed
nothing is heard.
"""

import json
import mmap
import os
import random  # noqa: TID251 - a test's own seed
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock._ring import Claim as Claim
from penstock._ring import SlotRing as SlotRing

SLOTS: Final = 3
BLOCKS: Final = 4
CELLS: Final = 48  # of a block; all are written with the same value
PIECES: Final = 4  # in which a block is written
ROWS_BYTES: Final = SLOTS * (BLOCKS + 1) * CELLS * 8


def rows_over(descriptor: int) -> NDArray[np.int64]:
    """Return the blocks of all slots, int64 of shape (SLOTS, BLOCKS + 1, CELLS), over shared memory."""
    return np.frombuffer(mmap.mmap(descriptor, ROWS_BYTES), np.int64).reshape(SLOTS, BLOCKS + 1, CELLS)


def content(claim: Claim, worker: int) -> int:
    """Return what every cell of a block must hold that this worker wrote for this claim."""
    return claim.number << 32 | worker << 8 | claim.block


def work(path: str) -> None:
    """Be a worker until the ring is stopped, or until death."""
    with socket.socket(socket.AF_UNIX) as owner:
        owner.connect(path)
        itself = os.pidfd_open(os.getpid())
        socket.send_fds(owner, [b"here"], [itself])
        os.close(itself)
        message, descriptors, _, _ = socket.recv_fds(owner, 100, 3)
        number, seed, suicides = json.loads(message)
        chance = random.Random(seed)
        try:
            _fill(number, descriptors, lambda: _perhaps_die(suicides, chance, owner))
        except BaseException:  # noqa: BLE001 - it is sent to the owner
            owner.sendall(traceback.format_exc().encode())
        else:
            owner.sendall(b"end")


def _perhaps_die(probability: float, chance: random.Random, owner: socket.socket) -> None:
    if chance.random() < probability:
        owner.sendall(b"suicide")
        os.kill(os.getpid(), signal.SIGKILL)


def _fill(number: int, descriptors: list[int], perhaps_die: Callable[[], None]) -> None:
    memory, bell, shared_rows = descriptors
    ring = SlotRing.attach(memory, bell)
    rows = rows_over(shared_rows)
    for descriptor in descriptors:
        os.close(descriptor)
    while (claim := ring.claim_wait(number)) is not None:
        perhaps_die()
        value = content(claim, number)
        assert claim.generation == claim.number // SLOTS + 1, "slots are armed in turn, each once for a batch"
        if claim.merge:
            assert (rows[claim.slot, : claim.block] >> 32 == claim.number).all(), "merged before all rows were written"
        for piece in range(PIECES):
            rows[claim.slot, claim.block, piece * CELLS // PIECES : (piece + 1) * CELLS // PIECES] = value
            perhaps_die()
        ring.finish(claim.slot, claim.block, number)
        perhaps_die()


def main(path: str) -> None:
    """Fork workers as they are wanted."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the owner watches them by their pidfds
    for _ in sys.stdin:
        if os.fork() == 0:
            try:
                work(path)
            finally:
                os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
