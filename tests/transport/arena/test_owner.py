"""The owner lends slots, grows, keeps to its limit, and says where things lie."""

import gc
import mmap
import os
import resource
import select
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import ClosedError, UsageError
from penstock.transport import Arena, AttachedArena, Located, SlotPlace, leased_slots
from tests.transport.arena.peers import bytes_of, lease_of

PAGE = mmap.PAGESIZE


def touched_bytes(arena: Arena) -> int:
    """Return how much memory the system has given to the arena's regions."""
    return sum(os.fstat(arena.region_descriptor(region)).st_blocks * 512 for region in range(arena.counters.regions))


def address_of(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> int:
    """Return where an array's memory starts."""
    return int(array.__array_interface__["data"][0])


def test_a_returned_slot_is_used_again() -> None:
    """The same slot is leased as long as the requested size fits, and isn't far smaller."""
    with Arena() as arena:
        numbers = {lease_of(arena, size).slot for size in (10 * PAGE, 12 * PAGE, 5 * PAGE, 4 * PAGE)}
        assert numbers == {0}
        assert lease_of(arena, 2 * PAGE).slot != 0
        assert lease_of(arena, 20 * PAGE).slot != 0
        assert arena.counters.bytes == (12 + 2 + 20) * PAGE


def test_the_slot_used_last_is_used_next() -> None:
    """Of idle slots of one size, the one with the warmest pages is leased."""
    with Arena() as arena:
        leases = [lease_of(arena, PAGE) for _ in range(4)]
        for number in (2, 0, 3, 1):
            leases[number] = lease_of(arena, 100 * PAGE)
            assert lease_of(arena, PAGE).slot == number


def test_regions_double() -> None:
    """The number of regions, and so of descriptors, grows with the logarithm of the held slots."""
    with Arena() as arena:
        leases = [lease_of(arena, 1000) for _ in range(100)]
        assert len({lease.slot for lease in leases}) == 100
        assert (arena.counters.regions, arena.counters.slots) == (8, 128)
        assert arena.counters.bytes == 100 * PAGE


def test_headroom_costs_no_memory() -> None:
    """Only the requested part of a slot is touched, however large the slot is; growth within it is touched later."""
    with Arena(headroom=1.0) as arena:
        small = lease_of(arena, 10 * PAGE)
        assert touched_bytes(arena) == arena.counters.bytes == 10 * PAGE
        assert arena.counters.address_bytes == 20 * PAGE
        del small
        grown = lease_of(arena, 15 * PAGE)
        assert touched_bytes(arena) == arena.counters.bytes == 15 * PAGE
        assert len(grown) == 15 * PAGE
        assert arena.counters.regions == 1


def test_at_the_limit_there_is_no_lease_until_one_is_dropped() -> None:
    """Held memory never exceeds max_bytes; the bell rings when another request may succeed."""
    with Arena(max_bytes=4 * PAGE) as arena:
        leases = [lease_of(arena, 2 * PAGE), lease_of(arena, 2 * PAGE)]
        arena.clear_bell()
        assert arena.lease_nowait(1) is None
        assert arena.counters.bytes == 4 * PAGE
        del leases[0]
        assert _readable(arena)
        assert len(lease_of(arena, PAGE)) == PAGE


@pytest.mark.parametrize(("more", "discarded"), [(1, 1), (2, 4)])
def test_idle_memory_is_given_back_first(more: int, discarded: int) -> None:
    """Slots without holds make room for those of another size, the least recently used first, and as few as do."""
    with Arena(max_bytes=12 * PAGE) as arena:
        assert [lease_of(arena, size * PAGE).slot for size in (1, 3, 8)] == [0, 1, 2]
        assert touched_bytes(arena) == arena.counters.bytes == 12 * PAGE
        grown = lease_of(arena, (8 + more) * PAGE)
        assert grown.slot == 2
        assert touched_bytes(arena) == arena.counters.bytes == (12 + more - discarded) * PAGE
        assert arena.counters.discarded_bytes == discarded * PAGE
        assert arena.lease_nowait((5 - more) * PAGE) is None
        again = bytes_of(lease_of(arena, (4 - more) * PAGE))
        assert not again.any()


def test_threads_lend_and_drop_at_once() -> None:
    """Arrays that several threads of the owner make, fill and drop never share memory, and the counts are exact."""
    wrong: list[int] = []

    def use(value: int) -> None:
        for round_ in range(300):
            array = arena.empty((100 + round_ % 7 * PAGE,), np.uint8)
            array[...] = value
            if not (array == value).all():
                wrong.append(value)

    with Arena() as arena:
        threads = [threading.Thread(target=use, args=(value,)) for value in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert arena.counters.leased == arena.counters.returned == 1200


def test_a_lack_of_descriptors_raises() -> None:
    """If the system gives no more, the error names the need and the limit to raise; the arena stays usable."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Arena() as arena:
        first = lease_of(arena, PAGE)
        lowest = os.dup(arena.table_descriptor)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            with pytest.raises(OSError, match=r"need one descriptor .* Too many open files; raise the limits"):
                arena.lease_nowait(PAGE)
            with pytest.raises(OSError, match=r"an arena needs two descriptors .* Too many open files"):
                Arena()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        with pytest.raises(OSError, match=r"\d+ bytes of shared memory need one descriptor .*ulimit -f"):
            arena.lease_nowait(1 << 62)
        with pytest.raises(OSError, match=r"\d+ bytes of shared memory need one descriptor"):
            arena.lease_nowait(1 << 70)
        assert lease_of(arena, PAGE).slot != first.slot


def test_a_lack_of_address_space_raises() -> None:
    """The error names the limit to raise, and doesn't blame the version of the other process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with Arena() as arena:
        used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
        resource.setrlimit(resource.RLIMIT_AS, (used_bytes + (8 << 20), hard))
        try:
            with pytest.raises(OSError, match=r"an arena needs .* address space.*ulimit -v"):
                Arena()
            with pytest.raises(OSError, match=r"a writer's arena needs .* address space.*ulimit -v"):
                AttachedArena(arena.table_descriptor, arena.bell_descriptor, arena.invite())
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_an_array_waits_for_room() -> None:
    """`empty` returns once another participant drops enough, and says meanwhile what it waits for."""
    wanted: list[int] = []
    held: list[object] = []

    class Watched(Arena):
        def want(self, size_bytes: int) -> None:
            super().want(size_bytes)
            wanted.append(other.wanted)
            threading.Thread(target=held.clear).start()

    with Watched(max_bytes=4 * PAGE) as arena:
        other = AttachedArena(arena.table_descriptor, arena.bell_descriptor, arena.invite())
        lease = lease_of(arena, 4 * PAGE)
        other.add_region(0, arena.region_descriptor(0))
        arena.hold(lease.slot, 1)
        held.append(other.adopt(arena.place_of(lease.slot)))
        del lease
        assert arena.empty((2, PAGE), np.uint8).shape == (2, PAGE)
        assert wanted == [2 * PAGE]
        assert other.wanted == 0
        other.close()


def test_waiting_ends_in_time() -> None:
    """A wait for memory that another process doesn't drop is bounded."""
    with Arena(max_bytes=PAGE) as arena:
        participant = arena.invite()
        lease = lease_of(arena, PAGE)
        arena.hold(lease.slot, participant)
        with pytest.raises(TimeoutError, match=r"no process returned enough of the arena for 10 bytes within 0\.01 s"):
            arena.empty((10,), np.uint8, timeout_seconds=0.01)
        arena.release_participant(participant)


def test_a_process_never_waits_for_itself() -> None:
    """If only arrays of this process hold the memory, an endless wait is an error, and leaves no bell behind."""
    with Arena(max_bytes=PAGE) as arena:
        kept = arena.empty((PAGE,), np.uint8)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with pytest.raises(UsageError, match=r"arrays of this process hold so much .* copy those that you keep"):
                arena.empty((1,), np.uint8)
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before
        assert kept.nbytes == PAGE


def test_garbage_is_collected_before_giving_up() -> None:
    """An array that only a cycle keeps doesn't count as held for ever."""
    with Arena(max_bytes=PAGE) as arena:
        gc.disable()
        try:
            cycle: list[object] = [arena.empty((PAGE,), np.uint8)]
            cycle.append(cycle)
            del cycle
            assert arena.empty((PAGE,), np.uint8).nbytes == PAGE
        finally:
            gc.enable()


def test_an_address_is_located() -> None:
    """Memory of a held slot is found with its offset; all other memory, and what ends behind the slot, is not."""
    with Arena() as arena:
        arrays = [arena.empty((PAGE,), np.uint8) for _ in range(5)]
        for array in arrays:
            located = arena.locate(address_of(array) + 10, PAGE - 10)
            assert located is not None
            assert located.offset_bytes == 10
            place = arena.place_of(located.slot)
            assert place == SlotPlace(located.slot, place.region, place.start_bytes, PAGE)
        assert arena.locate(address_of(arrays[0]), 2 * PAGE) is None
        assert arena.locate(address_of(np.zeros(10)), 80) is None
        assert arena.locate(0, 1) is None
        first = address_of(arrays[0])
        assert arena.locate(first, 1) == Located(0, 0)
        arrays.clear()
        assert arena.locate(first, 1) is None
    assert arena.locate(first, 1) is None


def test_a_whole_region_is_leased() -> None:
    """It begins with its lease, and is leased again after its return; its holder counts its pages.

    Slots without holds can be given back to the system, which takes their memory.
    """
    with Arena() as arena:
        arena.empty((PAGE,), np.uint8)[...] = 1  # a slot that is idle, and too small
        region, lease = arena.lease_region(3 * PAGE + 1)
        assert (len(region), len(lease)) == (4 * PAGE, 3 * PAGE + 1)
        assert arena.locate(region.address, 3 * PAGE + 1) == Located(lease.slot, 0)
        assert arena.locate(region.address, 3 * PAGE + 2) is None
        place = arena.place_of(lease.slot)
        assert arena.region_descriptor(place.region) == region.descriptor
        assert arena.counters.bytes == PAGE
        assert arena.lease_region(4 * PAGE)[1].slot != lease.slot
        bytes_of(lease)[...] = 7
        number = lease.slot
        del lease
        held = arena.empty((PAGE,), np.uint8)
        held[...] = 7
        arena.discard_idle()
        assert touched_bytes(arena) == arena.counters.bytes == PAGE
        assert (held == 7).all()
        leases = [arena.lease_region(4 * PAGE)[1] for _ in range(2)]
        assert number in {lease.slot for lease in leases}


def test_arrays_outlive_the_arena() -> None:
    """After close nothing is leased, arrays stay valid, and their memory is freed with the last of them."""
    arena = Arena()
    array = arena.empty((1000,), np.int64)
    array[...] = np.arange(1000)
    arena.close()
    arena.close()
    with pytest.raises(ClosedError, match="the arena was closed"):
        arena.lease_nowait(1)
    assert array.tolist() == list(range(1000))
    before = leased_slots()
    del array
    assert leased_slots() == before - 1


def test_close_wakes_waiting_threads() -> None:
    """A thread that waits in `empty` gets the error of a closed arena."""
    arena = Arena(max_bytes=PAGE)
    lease = lease_of(arena, PAGE)
    participant = arena.invite()
    arena.hold(lease.slot, participant)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            arena.empty((1,), np.uint8)
        except ClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    arena.close()
    thread.join()
    assert len(raised) == 1


def test_wrong_calls_raise() -> None:
    """Each wrong argument is named with the rule and a remedy."""
    with pytest.raises(UsageError, match="max_bytes must be positive"):
        Arena(max_bytes=0)
    with pytest.raises(UsageError, match="headroom must be a share"):
        Arena(headroom=-0.1)
    with Arena(max_bytes=1000) as arena:
        assert len(lease_of(arena, 1000)) == 1000  # though it isn't whole pages
        with pytest.raises(UsageError, match=r"1001 bytes are more than max_bytes=1000; raise max_bytes"):
            arena.lease_nowait(1001)
        with pytest.raises(UsageError, match="size_bytes must not be negative"):
            arena.lease_nowait(-1)
        with pytest.raises(UsageError, match="shared memory can't hold Python objects"):
            arena.empty((1,), np.dtype(object))
        with pytest.raises(UsageError, match="lengths must not be negative"):
            arena.empty((-1,), np.uint8)
        with pytest.raises(UsageError, match="slot must be one of the arena's 1"):
            arena.place_of(1)
        with pytest.raises(UsageError, match="region must be one of the arena's 1"):
            arena.region_descriptor(1)
        with pytest.raises(UsageError, match="participant must be a number that invite"):
            arena.hold(0, 1)


def test_participants_are_counted() -> None:
    """63 can be invited; the number of one that was released is given again, with nothing acknowledged."""
    with Arena() as arena:
        assert [arena.invite() for _ in range(63)] == list(range(1, 64))
        with pytest.raises(UsageError, match="at most 63 participants"):
            arena.invite()
        attached = AttachedArena(arena.table_descriptor, arena.bell_descriptor, 7)
        attached.acknowledge()
        assert arena.acknowledged(7) == 1
        assert arena.release_participant(7) == 0
        assert arena.invite() == 7
        assert arena.acknowledged(7) == 0


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """On another system there is a clear error, with what to do instead."""
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UsageError, match="an arena requires Linux"):
        Arena()


def _readable(arena: Arena) -> bool:
    return bool(select.select([arena.fileno()], [], [], 0)[0])
