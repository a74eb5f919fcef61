"""A lease comes back exactly once, when the last view over it dies, wherever and however that happens."""

import gc
from typing import cast

import numpy as np
import pytest

from penstock._memory import ALIGNMENT, Memory, aligned, array_over
from penstock.errors import UsageError
from tests.programs.forked import outcome


def bytes_of(holder: object) -> memoryview:
    """Return a view of a buffer; that it is one can't be said of a native class before Python 3.12."""
    return memoryview(cast("bytes", holder))


@pytest.mark.each_value
@pytest.mark.parametrize("prefault", [False, True])
@pytest.mark.parametrize("size_bytes", [0, 1, 64, 5_000_000])
def test_regions_are_aligned_and_zero(size_bytes: int, *, prefault: bool) -> None:
    """A region starts on a 64-byte boundary, has the requested size, is all zeroes and can be written to."""
    region = Memory().allocate(size_bytes, prefault=prefault)
    array = array_over(region, (size_bytes,), np.uint8)
    assert array.ctypes.data % ALIGNMENT == 0
    assert array.flags.writeable
    assert not array.any()
    array[...] = 255
    assert bytes(bytes_of(region)) == b"\xff" * size_bytes


def test_aligned_rounds_up_to_the_next_multiple() -> None:
    """The aligned size is the smallest multiple of 64 that is not below the size."""
    assert [aligned(n) for n in (0, 1, 63, 64, 65, 128)] == [0, 64, 64, 64, 128, 128]


def test_an_array_outlives_memory_and_region() -> None:
    """Written data stays readable when only an array is left."""
    memory = Memory()
    array = array_over(memory.allocate(4096), (512,), np.int64)
    lease = memory.lease(memory.allocate(4096), slot=0)
    leased = array_over(lease, (512,), np.int64)
    array[...] = leased[...] = np.arange(512)
    del memory, lease
    gc.collect()
    assert array.tolist() == leased.tolist() == list(range(512))


def test_the_last_of_many_views_returns_the_lease() -> None:
    """Slices, transposes, reshapes, memoryviews and arrays built on those hold the lease; the last one returns it."""
    memory = Memory()
    lease = memory.lease(memory.allocate(4096 + 64), slot=9, start_bytes=64, size_bytes=4096)
    array = array_over(lease, (8, 16), np.float32)
    label = array_over(lease, (2,), np.int64, start_bytes=1024)
    label[...] = (1, 2)
    assert np.frombuffer(bytes_of(lease), np.int64)[127:131].tolist() == [0, 1, 2, 0]
    views: list[object] = [label, array[2:4], array.T, array.reshape(-1)[::3], bytes_of(array), array.view(np.uint8)]
    views.append(np.frombuffer(bytes_of(lease), np.uint8))
    views.append(np.asarray(bytes_of(lease)[5:9]))
    del lease, array, label
    while views:
        assert memory.released() == []
        assert (memory.leased, memory.returned) == (1, 0)
        del views[0]
    assert memory.released() == [9]
    assert (memory.leased, memory.returned) == (1, 1)


def test_a_function_is_called_after_the_return() -> None:
    """A lease's function is called once, when the slot of the last view can be taken, also in a collected cycle."""
    memory, taken = Memory(), list[list[int]]()
    for slot in range(3):
        lease = memory.lease(memory.allocate(64), slot, after=lambda: taken.append(memory.released()))
        array = array_over(lease, (8,), np.int64)
        cycle: list[object] = [array[2:]]
        cycle.append(cycle)
        del lease, array
        assert len(taken) == slot
        del cycle
        gc.collect()
        assert taken[-1] == [slot]
    assert len(taken) == 3


HOLDERS = """
import sys, threading
from penstock._os import Bell
from penstock._memory import Memory, array_over
from penstock.transport import Arena, Bytes
memory, arena = Memory(bell=Bell()), Arena()
views = [array_over(memory.lease(memory.allocate(64), slot), (64,), "u1") for slot in range(10)]
arrays = [arena.empty((1000,), "u1") for _ in range(10)]
handles = [Bytes(bytearray(64))[1:], memoryview(Bytes(b"abc")), Bytes(b"x")]
sys.kept = []
for held in (views, arrays, handles):
    kept = held[1:]
    kept.append(kept)
    sys.kept.append(kept)
    threading.Thread(target=lambda view: threading.Event().wait(), args=(held.pop(),), daemon=True).start()
"""


@pytest.mark.usefixtures("forked_programs")
def test_memory_may_be_held_to_the_end_of_the_interpreter() -> None:
    """Memory held by globals, cycles and running threads at exit ends the process silently, with status 0."""
    assert outcome(HOLDERS) == (0, "", "")


def test_wrong_sizes_are_refused() -> None:
    """The message names the rule and the requested bytes, and nothing is counted."""
    memory = Memory()
    for slot, start, size in [(-1, 0, 64), (0, -1, 8), (0, 0, 65), (0, 64, 1), (0, 65, None), (0, 0, -1)]:
        expected = rf"a lease must be inside its region.* got slot={slot}, bytes \[{start},"
        with pytest.raises(UsageError, match=expected):
            memory.lease(memory.allocate(64), slot, start_bytes=start, size_bytes=size)
    assert memory.leased == 0
    with pytest.raises(UsageError, match=r"size_bytes must not be negative; got -1"):
        memory.allocate(-1)
