"""The slot ring: each block is delivered once, earliest batch first; a slot is ready when all blocks are written."""

import itertools
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
)

from penstock._os._bell import Bell
from penstock._ring import Claim, SlotRing
from penstock.errors import UsageError
from tests.profiles import in_short


@pytest.mark.parametrize("make", [SlotRing, SlotRing.shared])
def test_rest_ends_with_the_ring_or_after_its_time(make: Callable[[int], SlotRing]) -> None:
    """A rest lasts as long as its argument, ends with the ring, and takes no wake-up from a worker in claim_wait."""
    ring = make(1)
    began = time.monotonic()
    ring.rest(0.02)
    assert time.monotonic() - began >= 0.02
    for nothing in (0, -1.0, float("nan")):
        ring.rest(nothing)
    with ThreadPoolExecutor(2) as pool:
        resting, waiting = pool.submit(ring.rest, 60), pool.submit(ring.claim_wait, 1)
        ring.arm(0, number=0, blocks=1)
        assert waiting.result(timeout=20) is not None
        assert not resting.done()
        ring.stop()
        resting.result(timeout=20)
    ring.rest(60)


def test_calls_out_of_turn_are_refused() -> None:
    """A call that the slot's state doesn't allow raises, and changes nothing."""
    ring = SlotRing(max_blocks=1)
    with pytest.raises(RuntimeError, match="only an armed slot can be cancelled"):
        ring.cancel(0)
    ring.arm(0, number=0, blocks=1)
    ring.claim(1)
    with pytest.raises(RuntimeError, match="only an idle slot can be armed"):
        ring.arm(0, number=1, blocks=1)
    with pytest.raises(RuntimeError, match="only a slot that is ready or drained can be retired"):
        ring.retire(0)
    with pytest.raises(RuntimeError, match="only the worker that holds a block can finish it"):
        ring.finish(0, 0, 2)
    assert ring.finish(0, 0, 1)
    with pytest.raises(RuntimeError, match="only the worker that holds a block can finish it"):
        ring.finish(0, 0, 1)


def test_numbers_out_of_range_are_refused() -> None:
    """Every number is checked before it reaches the words."""
    for make in (SlotRing, SlotRing.shared):
        with pytest.raises(UsageError, match=r"max_blocks must be in \[1, 1048576\]; got 0"):
            make(max_blocks=0)
        with pytest.raises(UsageError, match=r"capacity must be in \[1, 1024\] slots; got 1025"):
            make(max_blocks=1, capacity=1025)
    ring = SlotRing(max_blocks=2, capacity=4)
    for slot, number, blocks in ((4, 0, 1), (-1, 0, 1), (0, -1, 1), (0, 0, 0), (0, 0, 3)):
        with pytest.raises(UsageError, match=rf"got slot={slot}, number={number}, blocks={blocks}"):
            ring.arm(slot, number, blocks)
    with pytest.raises(IndexError):
        ring.ready(4)
    with pytest.raises(IndexError):
        ring.finish(0, 3, 1)
    with pytest.raises(IndexError):
        ring.claim(1 << 22)


def test_waits_end_with_what_they_wait_for_or_the_stop() -> None:
    """A sleeping worker gets what becomes claimable in each way, and None at the stop; so does the owner's wait."""
    ring = SlotRing(max_blocks=1)
    got: list[Claim | None] = []
    arrived = threading.Semaphore(0)

    def work() -> None:
        while True:
            got.append(ring.claim_wait(worker=1))
            arrived.release()
            if got[-1] is None:
                return

    with ThreadPoolExecutor(2) as pool:
        working = pool.submit(work)
        ring.arm(0, number=0, blocks=1, merge=True)
        arrived.acquire()
        ring.finish(0, 0, 1)
        arrived.acquire()
        finishing = pool.submit(ring.finish, 0, 1, 1)
        assert ring.wait_ready(0)
        assert finishing.result()
        ring.retire(0)
        ring.arm(0, number=1, blocks=1)
        arrived.acquire()
        ring.finish(0, 0, 1)
        ring.retire(0)
        ring.arm(0, number=2, blocks=0, merge=True)
        arrived.acquire()
        pool.submit(ring.stop)
        assert not ring.wait_ready(0)
        working.result(timeout=20)
    claims = [None if claim is None else (claim.number, claim.block, claim.merge) for claim in got]
    assert claims == [(0, 0, False), (0, 1, True), (1, 0, False), (2, 0, True), None]
    assert ring.stopped
    assert ring.claim_wait(worker=1) is None


@dataclass
class _ModelSlot:
    """The model of an armed slot; a block is "free", "done" or the number of the worker that holds it."""

    number: int
    rows: int
    generation: int
    blocks: list[str | int]
    cancelled: bool = False

    def open_blocks(self) -> list[int]:
        if self.cancelled:
            return []
        free = [row for row in range(self.rows) if self.blocks[row] == "free"]
        merge_is_open = all(row == "done" for row in self.blocks[: self.rows]) and self.blocks[self.rows :] == ["free"]
        return [self.rows] if merge_is_open else free

    def is_through(self) -> bool:
        return all(block == "done" for block in self.blocks)


class RingMachine(RuleBasedStateMachine):
    """Random calls in one thread, each through another of three mappings of a shared ring, against a plain model."""

    claims: Bundle[tuple[_ModelSlot, int, Claim]] = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        made = SlotRing.shared(max_blocks=3, capacity=4)
        attached = SlotRing.attach(*made.descriptors())
        self.rings = itertools.cycle([made, attached, SlotRing.attach(*attached.descriptors())])
        self.slots: dict[int, _ModelSlot] = {}
        self.armed = [0] * 4  # how often each slot was
        self.number = 0

    @property
    def ring(self) -> SlotRing:
        """The ring, by the next of its objects."""
        return next(self.rings)

    @rule(slot=st.integers(0, 3), blocks=st.integers(0, 3), merge=st.booleans())
    def arm(self, slot: int, blocks: int, merge: bool) -> None:  # noqa: FBT001 - Hypothesis passes by name
        """An idle slot is armed with the next batch."""
        if slot in self.slots or not blocks + merge:
            return
        self.ring.arm(slot, self.number, blocks, merge=merge)
        self.armed[slot] += 1
        self.slots[slot] = _ModelSlot(self.number, blocks, self.armed[slot], ["free"] * (blocks + merge))
        self.number += 1

    @rule(target=claims, worker=st.integers(0, 3))
    def claim(self, worker: int) -> MultipleResults[tuple[_ModelSlot, int, Claim]]:
        """Claim: the first open block of the earliest batch.

        Returns:
            The claim with its slot and worker, for `finish`; nothing if there was none.
        """
        claim = self.ring.claim(worker)
        candidates = [(state.number, slot) for slot, state in self.slots.items() if state.open_blocks()]
        if not candidates:
            assert claim is None
            return multiple()
        number, slot = min(candidates)
        assert claim is not None
        assert (claim.slot, claim.block, claim.number) == (slot, self.slots[slot].open_blocks()[0], number)
        assert claim.generation == self.slots[slot].generation
        self.slots[slot].blocks[claim.block] = worker
        return multiple((self.slots[slot], worker, claim))

    @rule(held=consumes(claims))
    def finish(self, held: tuple[_ModelSlot, int, Claim]) -> None:
        """A held block is finished, unless its worker was released in the meantime."""
        state, worker, claim = held
        if state.blocks[claim.block] != worker:
            return
        complete = self.ring.finish(claim.slot, claim.block, worker)
        state.blocks[claim.block] = "done"
        assert complete == state.is_through()

    @rule(worker=st.integers(0, 3))
    def release(self, worker: int) -> None:
        """A worker dies; what it held is free, or done where the slot is cancelled."""
        held = 0
        for state in self.slots.values():
            held += state.blocks.count(worker)
            given_back = "done" if state.cancelled else "free"
            state.blocks = [given_back if block == worker else block for block in state.blocks]
        assert self.ring.release_worker(worker) == held

    @precondition(lambda self: bool(self.slots))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """A slot is given up."""
        slot = data.draw(st.sampled_from(sorted(self.slots)))
        state = self.slots[slot]
        state.cancelled = True
        state.blocks = ["done" if block == "free" else block for block in state.blocks]
        assert self.ring.cancel(slot) == state.is_through()

    @rule()
    def retire(self) -> None:
        """Every slot that is through becomes idle."""
        for slot in [slot for slot, state in self.slots.items() if state.is_through()]:
            self.ring.retire(slot)
            del self.slots[slot]

    @invariant()
    def ready_and_drained_agree(self) -> None:
        """Ready and drained are what the model says, for every slot."""
        for slot in range(4):
            state = self.slots.get(slot)
            through = state is not None and state.is_through()
            cancelled = state is not None and state.cancelled
            assert self.ring.ready(slot) == (through and not cancelled)
            assert self.ring.drained(slot) == (through and cancelled)


RingMachine.TestCase.settings = settings(in_short(10), stateful_step_count=40, deadline=None)
TestSharedRing = pytest.mark.skipif(sys.platform != "linux", reason="shared rings need Linux")(RingMachine.TestCase)


def test_a_slot_that_becomes_ready_before_the_bell_is_cleared_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner looks again after it has cleared the bell, since that may have been the last ring."""
    ring, clear = SlotRing(max_blocks=1), Bell.clear
    ring.arm(0, number=0, blocks=1)
    assert ring.claim(worker=1) is not None

    def clear_late(bell: Bell) -> bool:
        if not ring.ready(0):
            ring.finish(0, 0, worker=1)
        return clear(bell)

    monkeypatch.setattr(Bell, "clear", clear_late)
    thread = threading.Thread(target=ring.wait_ready, args=(0,))
    thread.start()
    thread.join(20)
    is_lost = thread.is_alive()
    ring.stop()
    thread.join()
    assert not is_lost
