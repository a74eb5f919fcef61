"""A shared ring is one ring in many processes, of which any worker may be killed at any instruction."""

import fcntl
import mmap
import multiprocessing.connection
import os
import random  # noqa: TID251 - a test's own seed
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock._ring import SlotRing
from penstock.errors import MessageError, UsageError
from tests.profiles import IS_LONG
from tests.programs.forked import outcome
from tests.promptness import PATIENCE_SECONDS

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared rings need memory without a name")

SLOTS: Final = 3
BLOCKS: Final = 4
CELLS: Final = 48  # of a block; all are written with the same value
PIECES: Final = 4  # in which a block is written
WORKERS: Final = 3  # at a time
KILLS: Final = 40 if IS_LONG else 15
SUICIDES: Final = 0.002  # how often a worker kills itself, of the points at which it may; each fifth at its first block
Rows = NDArray[np.int64]  # the blocks of all slots, of shape (SLOTS, BLOCKS + 1, CELLS)


def work(descriptors: tuple[int, int], rows: Rows, number: int) -> None:
    """Be a worker until the ring is stopped, or until death."""
    ring, chance = SlotRing.attach(*descriptors), random.Random(number)

    def perhaps_die() -> None:
        if number % 5 == 1 or chance.random() < SUICIDES:
            os.kill(os.getpid(), signal.SIGKILL)

    while (claim := ring.claim_wait(number)) is not None:
        perhaps_die()
        assert claim.generation == claim.number // SLOTS + 1, "slots are armed in turn, each once for a batch"
        if claim.merge:
            assert (rows[claim.slot, : claim.block] >> 32 == claim.number).all(), "merged before all rows were written"
        for piece in range(PIECES):
            cells = slice(piece * CELLS // PIECES, (piece + 1) * CELLS // PIECES)
            rows[claim.slot, claim.block, cells] = claim.number << 32 | number << 8 | claim.block
            perhaps_die()
        ring.finish(claim.slot, claim.block, number)
        perhaps_die()


class Crew:
    """Forked workers of a ring, looked after by a thread, beside the owner, that kills and replaces them.

    Attributes:
        kills_left: how many it will kill.
        died: set at each death.
        held: how many blocks dead workers held.
        wrong: what must not have happened.
    """

    def __init__(self, ring: SlotRing, rows: Rows, *, kills: int) -> None:
        self.kills_left, self.held, self.wrong = kills, 0, list[str]()
        self.died = threading.Event()
        self._ring, self._rows = ring, rows
        self._chance = random.Random(kills)
        self._workers: dict[int, BaseProcess] = {}
        self._numbers = 0
        for _ in range(WORKERS):
            self._start()
        self._thread = threading.Thread(target=self._keep)
        self._thread.start()

    def join(self) -> None:
        """Wait until the workers have ended, because somebody stopped the ring."""
        self._thread.join()

    def _start(self) -> None:
        self._numbers += 1  # never used again: one worker's claims must not be taken for another's
        arguments = (self._ring.descriptors(), self._rows, self._numbers)
        self._workers[self._numbers] = multiprocessing.get_context("fork").Process(target=work, args=arguments)
        self._workers[self._numbers].start()

    def _keep(self) -> None:
        try:
            while self._workers:
                numbers = {worker.sentinel: number for number, worker in self._workers.items()}
                patience = self._chance.random() * 0.02 if self.kills_left else PATIENCE_SECONDS
                dead = multiprocessing.connection.wait([*numbers], patience)
                for sentinel in dead:
                    assert isinstance(sentinel, int)
                    self._bury(numbers[sentinel])
                if not dead:
                    assert self.kills_left, "no worker ends"
                    self._workers[self._chance.choice([*self._workers])].kill()
                    self.kills_left -= 1
        except BaseException as error:  # noqa: BLE001 - the test says it
            self.wrong.append(repr(error))
            self._ring.stop()

    def _bury(self, number: int) -> None:
        worker = self._workers.pop(number)
        worker.join()
        self.held += self._ring.release_worker(number)
        if worker.exitcode not in (0, -signal.SIGKILL):
            self.wrong.append(f"worker {number} ended with {worker.exitcode}")
        worker.close()
        if not self._ring.stopped:
            self._start()
        self.died.set()


STOPPING = """
from penstock._ring import SlotRing
memory, bell, *other = {descriptors}
SlotRing.attach(memory, bell).stop()
SlotRing.attach(*other).stop()
"""


@pytest.mark.longer
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # the thread forks
def test_no_batch_suffers_from_workers_that_are_killed() -> None:
    """Every batch is complete, each block by one writer, whichever workers are killed.

    After a stop by a process of neither role, workers end by themselves, also those that sleep, and so does the owner's
    wait.
    """
    ring, other = SlotRing.shared(BLOCKS, capacity=SLOTS), SlotRing.shared(1)
    other.arm(0, number=0, blocks=1)
    rows = np.frombuffer(mmap.mmap(-1, SLOTS * (BLOCKS + 1) * CELLS * 8), np.int64).reshape(SLOTS, BLOCKS + 1, CELLS)
    chance, first, crew = random.Random(1), 0, Crew(ring, rows, kills=KILLS)
    try:
        # On a busy machine, workers may be killed before they claim a block; one that kills itself holds one by then.
        while crew.kills_left > 0 or crew.held == 0 or first < 30:
            crew.died.clear()
            _play_round(ring, rows, first, chance)
            first += SLOTS
            if crew.kills_left > 0 and chance.random() < 0.05:  # now and then they are killed in their sleep
                assert crew.died.wait(PATIENCE_SECONDS)
        descriptors = (*ring.descriptors(), *other.descriptors())
        program = STOPPING.format(descriptors=descriptors)
        subprocess.run([sys.executable, "-c", program], timeout=PATIENCE_SECONDS, check=True, pass_fds=descriptors)
        assert not other.wait_ready(0)
        assert ring.stopped
    finally:
        ring.stop()
        crew.join()
    assert crew.wrong == []


def _play_round(ring: SlotRing, rows: Rows, first: int, chance: random.Random) -> None:
    """Fill every slot once, cancel some, and check the written data."""
    shapes = [(chance.randint(1, BLOCKS), chance.random() < 0.5) for _ in range(SLOTS)]
    for slot, (blocks, merge) in enumerate(shapes):
        ring.arm(slot, first + slot, blocks, merge=merge)
    cancelled = {slot for slot in range(SLOTS) if chance.random() < 0.2}
    for slot in cancelled:
        ring.cancel(slot)
    seen: list[Rows] = []
    for slot, (blocks, merge) in enumerate(shapes):
        is_through = ring.drained if slot in cancelled else ring.ready
        _wait(ring, lambda: is_through(slot))  # noqa: B023 - called before the next round of the loop
        seen.append(rows[slot].copy())
        if slot not in cancelled:
            written = rows[slot, : blocks + merge]
            assert (written == written[:, :1]).all(), "a block holds what two writers wrote"
            np.testing.assert_array_equal(written[:, 0] >> 32, first + slot)
            np.testing.assert_array_equal(written[:, 0] & 0xFF, np.arange(blocks + merge))
        ring.retire(slot)
    np.testing.assert_array_equal(rows, seen, "somebody wrote after all was done")


def _wait(ring: SlotRing, condition: Callable[[], bool]) -> None:
    """Wait on the bell as `wait_ready` does, but not for ever."""
    while not condition():
        ring.bell.clear()
        if condition():
            return
        assert ring.bell.wait(PATIENCE_SECONDS), "the bell was not rung"


@pytest.mark.usefixtures("forked_programs")
def test_an_interrupt_ends_wait_ready_and_nothing_else() -> None:
    """Each Ctrl-C comes out of the owner's wait while a worker holds the block; the batch is completed all the same.

    The worker was forked, and uses the ring as it inherited it.
    """
    program = """
        import os, signal, threading
        from penstock._ring import SlotRing

        ring = SlotRing.shared(1)
        ring.arm(0, number=0, blocks=1)
        read_end, tell = os.pipe()
        worker = os.fork()
        if worker == 0:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            claim = ring.claim_wait(worker=1)
            os.read(read_end, 1)
            ring.finish(claim.slot, claim.block, worker=1)
            os._exit(0)
        interrupted = 0
        while interrupted < 100:
            try:
                threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()
                ring.wait_ready(0)
            except KeyboardInterrupt:
                interrupted += 1
        os.write(tell, b"!")
        print(ring.wait_ready(0), os.waitpid(worker, 0)[1])
    """
    assert outcome(program) == (0, "True 0\n", "")


def test_other_memory_is_not_attached_to() -> None:
    """Only sealed memory with a ring of this version in it, and a bell, are taken; descriptors stay the caller's."""
    ring = SlotRing.shared(2, capacity=3)
    memory, bell = ring.descriptors()
    attached = SlotRing.attach(memory, bell)
    assert (attached.max_blocks, attached.capacity) == (2, 3)
    assert not set(attached.descriptors()) & {memory, bell}

    empty = os.memfd_create("empty", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(empty, 1 << 16)
    fcntl.fcntl(empty, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    unsealed = os.memfd_create("unsealed")  # its maker could cut it off under the others, whatever it holds
    os.sendfile(unsealed, memory, 0, os.fstat(memory).st_size)
    closed = os.memfd_create("closed")
    os.close(closed)
    for wrong, rule in (
        ((empty, bell), "the memory holds no ring"),
        ((closed, bell), "Bad file descriptor"),
        ((bell, bell), "must be sealed"),
        ((unsealed, bell), "must be sealed"),
        ((memory, memory), "must be an eventfd"),
        ((memory, -1), "must be an eventfd"),
    ):
        with pytest.raises(MessageError, match=rf"got memory {wrong[0]}, bell {wrong[1]}: .*{rule}"):
            SlotRing.attach(*wrong)
    for descriptor in (empty, unsealed):
        os.close(descriptor)


def test_private_rings_have_no_descriptors() -> None:
    """The error says how a shared ring is made."""
    with pytest.raises(UsageError, match=r"make it with SlotRing\.shared"):
        SlotRing(1).descriptors()


def test_a_ring_lives_as_long_as_anybody_uses_it() -> None:
    """The maker may drop it; an attached process continues, and its bell works."""
    ring = SlotRing.shared(1)
    attached = SlotRing.attach(*ring.descriptors())
    ring.arm(0, number=5, blocks=1)
    bell = attached.bell
    del ring
    claim = attached.claim(worker=1)
    assert claim is not None
    assert claim.number == 5
    assert attached.finish(0, 0, worker=1)
    del attached
    assert bell.wait(0.0)
    bell.clear()
    assert not bell.wait(0.0)
