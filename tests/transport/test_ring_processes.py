"""A shared ring is one ring in many processes, of which any worker may be killed at any instruction."""

import fcntl
import os
import random  # noqa: TID251 - a test's own seed
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.errors import MessageError, UsageError
from tests.programs.forked import outcome
from tests.transport.ring_crew import PATIENCE_SECONDS, Crew
from tests.transport.ring_worker import BLOCKS, SLOTS, SlotRing

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared rings need memory without a name")


STOPPING = """
import sys
from penstock._ring import SlotRing
memory, bell, *other = {descriptors}
SlotRing.attach(memory, bell).stop()
SlotRing.attach(*other).stop()
"""


def test_no_batch_suffers_from_workers_that_are_killed(tmp_path: Path) -> None:
    """Every batch is complete, each block by one writer, whichever workers are killed.

    After a stop by a process of neither role, workers end by themselves, also those that sleep, and so does the owner's
    wait.
    """
    ring, other = SlotRing.shared(BLOCKS, capacity=SLOTS), SlotRing.shared(1)
    other.arm(0, number=0, blocks=1)
    chance = random.Random(1)
    first = 0
    with Crew(ring, folder=tmp_path, kills=40, seed=1) as crew:
        while crew.kills_left > 0 or first < 30:
            crew.died.clear()
            _play_round(ring, crew.rows, first, chance)
            first += SLOTS
            if crew.kills_left > 0 and chance.random() < 0.05:  # now and then they are killed in their sleep
                assert crew.died.wait(PATIENCE_SECONDS)
        descriptors = (*ring.descriptors(), *other.descriptors())
        program = STOPPING.format(descriptors=descriptors)
        subprocess.run([sys.executable, "-c", program], timeout=PATIENCE_SECONDS, check=True, pass_fds=descriptors)
        assert not other.wait_ready(0)
        crew.join()
        assert ring.stopped
    assert crew.counts.kills == 40
    assert crew.counts.held > 0


def _play_round(ring: SlotRing, rows: NDArray[np.int64], first: int, chance: random.Random) -> None:
    """Fill every slot once, cancel some, and check the written data."""
    shapes = [(chance.randint(1, BLOCKS), chance.random() < 0.5) for _ in range(SLOTS)]
    for slot, (blocks, merge) in enumerate(shapes):
        ring.arm(slot, first + slot, blocks, merge=merge)
    cancelled = {slot for slot in range(SLOTS) if chance.random() < 0.2}
    for slot in cancelled:
        ring.cancel(slot)
    seen: list[NDArray[np.int64]] = []
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
        from tests.transport.ring_worker import SlotRing

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


def test_private_rings_have_no_descriptors_and_sizes_are_checked() -> None:
    """Wrong sizes of a ring are refused before anything is made."""
    with pytest.raises(UsageError, match=r"make it with SlotRing\.shared"):
        SlotRing(1).descriptors()
    with pytest.raises(UsageError, match=r"max_blocks must be in \[1, 1048576\]; got 0"):
        SlotRing.shared(0)
    with pytest.raises(UsageError, match=r"capacity must be in \[1, 1024\] slots; got 1025"):
        SlotRing.shared(1, capacity=1025)


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
