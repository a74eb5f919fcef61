"""The memory of batches is bounded for any number of workers, and never overwritten under a live view."""

import hashlib
import os
import platform
import select
import subprocess
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock._runtime._jobs import Learned
from penstock.transport import leased_slots
from tests.equivalence.definition import digest, digests, epoch_of
from tests.loader.gates import Gate
from tests.places import LINUX, PLACES, in_places, place_of
from tests.profiles import IS_LONG, in_short
from tests.programs.forked import outcome
from tests.promptness import PATIENCE_SECONDS
from tests.runtime.large_rows import ROW, Sized, always, larger, reported, results, row
from tests.transport.owners import recycled_bytes

LONG = pytest.mark.long
EXAMPLES = 40 if IS_LONG else 1
BATCHES = 200 if IS_LONG else 100  # of a test whose sizes change every 40 batches at most
ROW_BYTES = 8 * ROW
MEGABYTE = 1 << 20


def large(length: int, size: int) -> ps.Dataset:
    """Return batches of large rows."""
    return ps.range(length, seed=2).shuffle().map(row).batch(size)


def numbers_of(batches: Any) -> list[list[int]]:
    """Return the rows in batches, as the first and the last number of each batch."""
    found = [batch[:, [0, -1]] for batch in batches]
    assert all((pair[:, 0] == pair[:, 1]).all() for pair in found)
    return [pair[:, 0].tolist() for pair in found]


def expected(length: int, size: int) -> list[list[int]]:
    """Return the rows in each batch of epoch 0."""
    order = [int(number) for number in ps.range(length, seed=2).shuffle()]
    return [order[start : start + size] for start in range(0, length, size)]


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (2, 3), (8, 2)])
def test_prefetch_and_one_batches_have_memory(workers: int, prefetch: int) -> None:
    """With one batch in use, at most `prefetch` + 1 have memory, whatever the number of workers, at every moment."""
    size, batch_bytes = 16, 16 * ROW_BYTES
    leases: list[int] = []

    def watched(number: int) -> Any:
        leases.append(leased_slots())
        return row(number)

    dataset = ps.range(12 * size, seed=2).shuffle().map(watched).batch(size)
    with ps.Loader(dataset, num_workers=workers, prefetch=prefetch) as loader:
        most = 0.0
        batches = iter(loader)
        while (batch := next(batches, None)) is not None:
            most = max(most, loader.stats()["bytes_in_flight"])
            assert batch.nbytes == batch_bytes
        assert 0 < most <= (prefetch + 1) * batch_bytes
        assert max(leases) <= prefetch + 1
        assert loader.stats()["bytes_in_flight"] == 0
        assert leased_slots() == 0


def test_a_kept_batch_leaves_room_for_one_less_ahead() -> None:
    """A consumer that holds two batches leaves memory for one batch less to be computed ahead."""
    with ps.Loader(large(96, 8), num_workers=3, prefetch=2) as loader:
        kept: deque[Any] = deque(maxlen=2)
        leases: list[int] = []
        batches = iter(loader)
        while (batch := next(batches, None)) is not None:
            kept.append(batch)
            leases.append(leased_slots())
        assert max(leases) <= 3
        kept.clear()


def test_abandoned_epochs_keep_at_most_one_batch_for_each_worker() -> None:
    """Only workers that still write keep memory of abandoned epochs."""
    size, stuck = 16, 2
    batch_bytes = size * ROW_BYTES
    gates: list[Gate] = []

    def slow(number: int) -> Any:
        return row(gates[-1](number) if gates else number)

    with ps.Loader(ps.range(12 * size).map(slow).batch(size), num_workers=stuck + 1) as loader:
        assert len(list(map(len, loader))) == 12  # what a row looks like is known now
        for _ in range(stuck):
            gates.append(Gate(size))
            batches = iter(loader)
            next(batches)
            gates[-1].wait_entered()
            batches.close()
        gates.append(Gate(-1))
        found = [loader.stats()["bytes_in_flight"] for _ in loader]  # by the worker that is left
        assert len(found) == 12
        assert max(found) <= (2 + 1 + stuck + 1) * batch_bytes  # that worker may still write at the beginning
        assert loader.stats()["bytes_in_flight"] == stuck * batch_bytes
        for gate in gates:
            gate.open()


def test_keeping_all_batches_is_safe() -> None:
    """Kept batches are never overwritten, even if there are more than slots; there is one warning."""
    with ps.Loader(large(240, 2), num_workers=3) as loader:
        with pytest.warns(UserWarning, match=r"batches are kept by the training loop.*copy=True") as warned:
            kept = list(loader)
        assert len(warned) == 1
        assert warned[0].filename == __file__
        assert numbers_of(kept) == expected(240, 2)
        first = numbers_of(kept)
        assert len(list(iter(loader))) == 120  # another epoch, other memory
        assert numbers_of(kept) == first


@pytest.mark.parametrize(
    ("module", "place"),
    [
        place_of("processes", "penstock._runtime._region_pool"),
        place_of("isolated processes", "penstock._runtime._isolated"),
    ],
)
@pytest.mark.filterwarnings("ignore:.* batches are kept by the training loop:UserWarning")
def test_few_of_many_kept_batches_take_a_descriptor(
    module: str, place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 100 large elements that are kept, those after the first ones are copies, which need none."""
    monkeypatch.setattr(f"{module}.MAX_KEPT", 4)
    with ps.Loader(ps.range(100).map(larger), **place) as loader:
        before = len(os.listdir("/proc/self/fd"))
        kept = list(loader)
        assert len(os.listdir("/proc/self/fd")) - before < 40
    assert [(number[0], number[-1]) for number in kept] == [(number, number) for number in range(100)]


@pytest.mark.parametrize(
    ("module", "place"),
    [
        place_of("threads", "penstock._runtime._region_pool"),
        place_of("processes", "penstock._runtime._region_pool"),
        place_of("isolated processes", "penstock._runtime._isolated"),
    ],
)
@pytest.mark.filterwarnings("ignore:.* batches are kept by the training loop:UserWarning")
def test_memory_bounds_many_kept_batches(module: str, place: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With `memory=` no batch is copied for its descriptor, as the bound would not see the copy."""
    monkeypatch.setattr(f"{module}.MAX_KEPT", 4)
    kept: list[Any] = []
    memory = 40 * larger(0).nbytes
    with (
        ps.Loader(ps.range(80).map(larger).batch(1), memory=memory, **place) as loader,
        pytest.raises(ps.errors.UsageError, match=f"memory={memory} is too small"),
    ):
        kept.extend(loader)
    assert len(kept) < 50


@in_places("threads", "processes")
def test_one_batch_is_computed_while_the_loop_is_at_another(place: dict[str, Any], tmp_path: Path) -> None:
    """With `prefetch=1` the next batch is begun once the loop has dropped the batch before its own."""
    size, steps, pipe = 16, 8, tmp_path / "begun"
    os.mkfifo(pipe)
    dataset = ps.range(steps * size).map(partial(reported, pipe, size)).map(row).batch(size)
    with open(os.open(pipe, os.O_RDWR), "rb", buffering=0) as begun, ps.Loader(dataset, **place, prefetch=1) as loader:
        for step, batch in enumerate(loader):
            assert int(batch[0, 0]) == step * size
            assert begun.read(1) == bytes([step])
            if step < steps - 1:
                assert select.select([begun], [], [], PATIENCE_SECONDS)[0]


@pytest.mark.parametrize("kept", [0, 2])
def test_a_program_may_keep_as_many_batches_as_are_ahead(kept: int) -> None:
    """Batches that a program keeps beside those of its loop take no memory from those ahead."""
    size, first, at = 16, 2, 8  # the first batches show the rows; at a later one, the next two are computed
    gates = [Gate((at + 1) * size), Gate((at + 2) * size - 1), Gate((at + 2) * size)]
    dataset = ps.range(12 * size)
    for gate in gates:
        dataset = dataset.map(gate)
    with ps.Loader(dataset.map(row).batch(size), num_workers=2, workers="threads", prefetch=2) as loader:
        batches = iter(loader)
        assert [len(next(batches)) for _ in range(first)] == [size] * first
        samples = [next(batches) for _ in range(kept)]
        for step, batch in enumerate(batches, first + kept):
            assert int(batch[0, 0]) == step * size
            if step == at:
                gates[0].wait_entered()
                gates[1].wait_entered()
                gates[1].open()  # this worker goes on to the batch after the next one
                gates[2].wait_entered()
                gates[2].open()
                gates[0].open()
        assert [int(sample[0, 0]) for sample in samples] == [(first + number) * size for number in range(kept)]


def test_more_batches_than_the_ring_has_slots() -> None:
    """An epoch of more batches than the ring has slots, all of them kept, has them all."""
    rows = ps.range(1100).map(lambda number: np.full(9000, number)).batch(1)
    with ps.Loader(rows, num_workers=2, prefetch=250) as loader, warnings.catch_warnings(action="ignore"):
        kept = list(loader)
    assert [int(batch[0, -1]) for batch in kept] == list(range(1100))


def test_memory_of_dropped_batches_is_reused() -> None:
    """After an epoch of kept batches, the next one that isn't kept takes as little memory as any."""
    batch_bytes = 20 * ROW_BYTES
    with ps.Loader(large(200, 20), num_workers=2) as loader:
        with warnings.catch_warnings(action="ignore"):
            kept = list(loader)
        assert loader.stats()["bytes_in_flight"] > 3 * batch_bytes
        kept.clear()
        assert loader.stats()["bytes_in_flight"] == 0
        most = max(loader.stats()["bytes_in_flight"] for _ in loader)
        assert 0 < most <= 3 * batch_bytes


def test_the_bound_is_kept() -> None:
    """Memory stays within `memory=`; if live batches use all of it, the error has both sizes, and no batch is lost."""
    bound = 5 * 4 * ROW_BYTES
    with ps.Loader(large(80, 4), num_workers=2, memory=bound) as loader:
        kept: list[Any] = []
        batches = iter(loader)
        with (
            warnings.catch_warnings(action="ignore"),
            pytest.raises(ps.errors.UsageError, match=rf"memory={bound} is too small: .* in a loop.s variable, use"),
        ):
            kept.extend(batches)  # extends as far as it gets
        assert loader.stats()["bytes_in_flight"] <= bound
        state, count = loader.state_dict(), loader.state_dict()["step"]
        assert count > 0
        kept.clear()
        assert [batch[0, 0] for batch in batches] == [each[0] for each in expected(80, 4)[count:]]
        loader.load_state_dict(state)
        assert sum(1 for _ in loader) == 20 - count


def test_a_bound_below_the_batches_ahead_is_kept() -> None:
    """With memory for two batches and a half, no more than two have any; with less than for one, it is an error."""
    bound = 10 * ROW_BYTES
    with ps.Loader(large(80, 4), num_workers=2, prefetch=4, memory=bound) as loader:
        found = [loader.stats()["bytes_in_flight"] for _ in loader]
    assert len(found) == 20
    assert max(found) <= bound
    with (
        ps.Loader(large(80, 4), num_workers=2, memory=ROW_BYTES) as loader,
        pytest.raises(ps.errors.UsageError, match=rf"memory={ROW_BYTES} is too small: the next batches need"),
    ):
        list(loader)


@pytest.mark.parametrize("memory", [20_000, "60KB", np.int64(10**9)])
def test_small_batches_fit_into_a_small_bound(memory: Any) -> None:
    """Small batches, computed several at a time, keep the bound by being computed fewer at a time."""
    dataset = ps.range(4000).map(lambda number: np.full(100, number)).batch(4)
    with ps.Loader(dataset, num_workers=2, memory=memory) as loader:
        assert [int(batch[0, 0]) for batch in loader] == list(range(0, 4000, 4))


@pytest.mark.parametrize(
    ("steps", "place"),
    [
        place_of("threads", "rows"),
        place_of("processes", "rows"),
        place_of("processes", "fold"),
        place_of("isolated", "fold"),
        place_of("isolated threads", "rows"),
        place_of("isolated processes", "rows"),
        # The short run has isolated processes and isolated folds in the cases above.
        pytest.param("fold", PLACES["isolated processes"], id="isolated processes above a fold", marks=[LINUX, LONG]),
    ],
)
@pytest.mark.longer
@settings(max_examples=EXAMPLES)
@example(sizes=(1, 60_000), run=40, times=12, prefetch=2)
@example(sizes=(20_001, 20_000), run=2, times=25, prefetch=2)
@example(sizes=(999, 20_001), run=40, times=12, prefetch=2)
@given(
    sizes=st.lists(st.sampled_from([1, 999, 9_000, 20_000, 20_001, 60_000]), min_size=1, max_size=4).map(tuple),
    run=st.sampled_from([1, 2, 7, 40]),
    times=st.sampled_from([12, 30, 100]),
    prefetch=st.sampled_from([1, 2, 6]),
)
def test_batches_of_all_sizes_keep_the_bound(
    place: dict[str, Any], sizes: tuple[int, ...], run: int, times: int, prefetch: int, steps: str
) -> None:
    """Whatever batches come after those that the loader knows, memory for a dozen of the largest is enough."""
    numbers = ps.range(4 * BATCHES, seed=1)
    rows = numbers.filter(always) if steps == "fold" else numbers
    bound = times * 8 * max(*sizes, 1000)
    with ps.Loader(rows.batch(4).map(Sized(sizes, run)), memory=bound, prefetch=prefetch, **place) as loader:
        for _ in range(2):
            most, step = 0.0, -1
            for step, batch in enumerate(loader):
                assert batch[0] == 4 * step
                most = max(most, loader.stats()["bytes_in_flight"])
            assert step == BATCHES - 1
            assert most <= bound


class Living:
    """A function of elements or batches; counts the bytes of its results that are alive."""

    def __init__(self, length: int = ROW) -> None:
        self.most = self._living = 0
        self._length = length
        self._lock = threading.RLock()  # a result may end in any thread

    def __call__(self, given: Any) -> Any:
        """Return an array of the first number, and of zeros, which take no time."""
        made = np.zeros(self._length, np.int64)
        made[0] = np.ravel(given)[0]
        self._count(made.nbytes)
        weakref.finalize(made, self._count, -made.nbytes).atexit = False
        return made

    def _count(self, size_bytes: int) -> None:
        with self._lock:
            self._living += size_bytes
            self.most = max(self.most, self._living)


@pytest.mark.parametrize(
    ("steps", "times", "prefetch"),
    [
        *[("rows", 3, 1), ("rows", 4, 30), ("rows", 20, 2)],
        *[("elements", 3, 1), ("elements", 4, 30), ("elements", 20, 2)],
        *[("fold", 4, 30), ("fold", 20, 2)],
    ],
)
def test_threads_bound_the_results_of_functions(steps: str, times: int, prefetch: int) -> None:
    """Arrays of users' functions, which have memory of their own, keep the bound from the first one on."""
    living = Living()
    count = 200 if steps == "elements" else 800
    dataset = made_by(living, steps, count)
    other = 3_000_000 if steps == "fold" else 0  # batches that the thread of the fold makes itself, to find its pace
    with ps.Loader(
        dataset, num_workers=2, workers="threads", prefetch=prefetch, memory=times * ROW_BYTES + 500
    ) as loader:
        for _ in range(2):
            assert [int(batch[0]) for batch in loader] == list(range(0, count, 1 if steps == "elements" else 4))
        assert living.most <= times * ROW_BYTES + other


@pytest.mark.parametrize("kind", [dict, list])
def test_threads_bound_results_whose_first_parts_are_small(kind: type) -> None:
    """A large array counts, however many numbers are before it."""
    living = Living()

    def made(batch: Any) -> Any:
        array = living(batch)
        return {**dict.fromkeys(range(40)), "image": array} if kind is dict else [*[None] * 40, array]

    with ps.Loader(
        ps.range(800).batch(4).map(made), num_workers=2, workers="threads", prefetch=20, memory=6 * ROW_BYTES + 500
    ) as loader:
        assert [int((batch["image"] if kind is dict else batch[-1])[0]) for batch in loader] == [*range(0, 800, 4)]
    assert living.most <= 6 * ROW_BYTES


def test_functions_above_rows_with_whole_parents_have_a_bound() -> None:
    """Pieces of a large parent are read together; the results of a function above their batches are bounded anyway."""
    living = Living(MEGABYTE)
    parents = ps.range(400).batch(100).map(slowly_made)
    dataset = parents.unbatch().batch(4).map(living)
    with ps.Loader(dataset, num_workers=2, workers="threads", memory=4_000_000_000) as loader:
        numbers: list[int] = []
        for batch in loader:
            hashlib.sha256(batch)
            numbers.append(int(batch[0]))
    assert numbers == list(range(0, 400, 4))
    assert living.most <= 72_000_000


def slowly_made(batch: Any) -> Any:
    """Return the batch, after so much work that workers should not share it."""
    np.sort(np.resize(batch[::-1], 1 << 20))
    return batch


@pytest.mark.parametrize(
    ("steps", "prefetch"),
    [("rows", 2), ("rows", 20), ("elements", 2), ("fold", 2), pytest.param("fold", 20, marks=LONG)],  # another size
)
def test_threads_have_a_usual_bound_for_the_results_of_functions(steps: str, prefetch: int) -> None:
    """Without `memory=`, large arrays that take no time are as few as `prefetch` allows, or 64 MB."""
    living = Living(MEGABYTE)
    count = 60 if steps == "elements" else 240
    with ps.Loader(made_by(living, steps, count), num_workers=2, workers="threads", prefetch=prefetch) as loader:
        numbers: list[int] = []
        for batch in loader:
            hashlib.sha256(batch)  # which takes longer than the threads, and lets them run
            numbers.append(int(batch[0]))
    assert numbers == list(range(0, count, 1 if steps == "elements" else 4))
    assert living.most <= max(72_000_000, 8 * MEGABYTE * (prefetch + 4))


def test_one_large_result_is_forgotten() -> None:
    """A result that is far larger than all others makes the next few jobs smaller, and not those of a whole epoch."""
    learned = Learned[object]()
    learned.made_in_threads(30_000_000, 0, is_merged=True)
    assert learned.made_row_bytes == 30_000_000
    for _ in range(12):
        learned.made_in_threads(32, 0, is_merged=True)
    assert learned.made_row_bytes < 10_000
    assert learned.merged_row_bytes == 30_000_000  # `memory=` allows for another one


def made_by(function: Callable[[Any], Any], steps: str, count: int) -> ps.Dataset:
    """Return a dataset whose elements, or batches, without or with a fold below them, a function makes."""
    rows = ps.range(count, seed=1).filter(always) if steps == "fold" else ps.range(count)
    return (rows if steps == "elements" else rows.batch(4)).map(function)


@in_places("isolated threads", "isolated processes")
@pytest.mark.parametrize("times", [6, *(pytest.param(times, marks=LONG) for times in (12, 20))])  # larger bounds
def test_a_job_that_is_sent_whole_keeps_the_bound(place: dict[str, Any], times: int) -> None:
    """Outside of a helper there is memory for the job that the trainer holds, and for the next one."""
    dataset = ps.range(1200).map(partial(np.full, 3000)).batch(4)
    with ps.Loader(dataset, memory=times * 4 * 3000 * 8, prefetch=1, **place) as loader:
        assert [int(batch[0, 0]) for batch in loader] == list(range(0, 1200, 4))


def test_wrong_bounds_are_refused() -> None:
    """A bound is a number of bytes, or text with a unit."""
    wrong: list[Any] = [0, -1, "2 potatoes", "", True, 1.5]
    for memory in wrong:
        with pytest.raises(ps.errors.UsageError, match='must be a number of bytes above 0, or text such as "2GiB"'):
            ps.Loader(large(8, 2), memory=memory)


def test_copies_keep_no_memory_of_the_loader() -> None:
    """With `copy=True` batches have memory of their own, so keeping all of them keeps no memory of the loader."""
    with ps.Loader(large(80, 4), num_workers=2, copy=True) as loader:
        kept = list(loader)
        assert loader.stats()["bytes_in_flight"] == 0
        assert leased_slots() == 0
        assert numbers_of(kept) == expected(80, 4)
        assert all(batch.flags.owndata for batch in kept)


def test_small_leaves_keep_no_memory_of_the_loader() -> None:
    """Keeping all labels does not keep the images' memory."""
    dataset = ps.range(80).map(lambda number: {"image": row(number), "label": number}).batch(4)
    with ps.Loader(dataset, num_workers=2) as loader:
        labels = [batch["label"] for batch in loader]
        assert loader.stats()["bytes_in_flight"] == 0
    assert [label.tolist() for label in labels] == [[i, i + 1, i + 2, i + 3] for i in range(0, 80, 4)]


def test_views_keep_the_memory_of_their_batch() -> None:
    """A step above `batch` may return views, and a consumer may keep parts: their values don't change."""
    dataset = large(80, 4).map(lambda batch: batch[:, 100:-100:3])
    with ps.Loader(dataset, num_workers=2) as loader, warnings.catch_warnings(action="ignore"):
        parts = [batch[1:3, ::2] for batch in loader]
    assert numbers_of(parts) == [each[1:3] for each in expected(80, 4)]


@in_short(10)
@given(st.integers(1, 4), st.integers(1, 3), st.lists(st.booleans(), min_size=12, max_size=12))
def test_kept_and_dropped_batches_equal_the_definition(workers: int, prefetch: int, keeps: list[bool]) -> None:
    """All batches equal the definition, whichever of them the consumer keeps."""
    dataset = large(24, 2)
    wanted = [digest(batch) for batch in epoch_of(dataset, 0)]
    with ps.Loader(dataset, num_workers=workers, prefetch=prefetch) as loader, warnings.catch_warnings(action="ignore"):
        kept: list[tuple[int, Any]] = []
        for step, (batch, keep) in enumerate(zip(loader, keeps, strict=True)):
            assert digest(batch) == wanted[step]
            if keep:
                kept.append((step, batch))
    assert digests(batch for _, batch in kept) == [wanted[step] for step, _ in kept]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator is known to return such memory")
def test_temporary_memory_of_functions_is_mapped_once() -> None:
    """A function's temporary arrays are in memory that an earlier call has mapped, also in a new program."""
    program = (
        "import penstock as ps; from tests.runtime.large_rows import pages_mapped\n"
        "for workers in (0, 1):\n"
        "    loader = ps.Loader(ps.range(24).map(pages_mapped).batch(4), num_workers=workers)\n"
        "    print(min(map(max, loader)))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert max(map(int, found.stdout.split())) < 100  # of about 950


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_arrays_of_functions_share_no_memory_with_arrays_that_are_alive(workers: Any) -> None:
    """The arrays that a user's function makes take the memory of dropped ones: kept ones stay, zeroes are zero."""
    dataset = large(240, 2).map(results)
    kept: list[Any] = []
    most = 0
    with ps.Loader(dataset, num_workers=2, workers=workers, prefetch=4) as loader:
        for number, batch in enumerate(loader):
            kept += [batch] if number % 40 == 0 else []
            most = max(most, recycled_bytes())
    assert [digest(batch) for batch in kept] == [digest(dataset[number]) for number in range(0, 120, 40)]
    assert (workers == "threads") == (0 < most <= 64_000_000)
    assert recycled_bytes() == 0


def test_large_elements_without_a_batch_are_in_bounded_memory() -> None:
    """Processes write elements into memory that is used again: that of one job more than the window has."""
    window = 6  # more than two rows for each of two workers
    most = 0
    dataset = ps.range(30, seed=2).shuffle().map(row)
    with ps.Loader(dataset, num_workers=2, workers="processes", prefetch=window) as loader:
        for number, element in enumerate(loader):
            assert element.base is not None
            assert digest(element) == digest(dataset[number])
            most = max(most, leased_slots())
    assert 0 < most <= window + 1


KEEPING = """
import numpy as np
from penstock._memory import ALIGNMENT, Memory, aligned, create_region, open_region
from penstock._runtime._room import Offers, Room
from penstock._runtime._sent_elements import received_elements, send_elements

memory, kept, starts, sent = create_region(1 << 24), [], [0], []

def take(size_bytes):
    starts.append(starts[-1] + aligned(size_bytes))
    return starts[-2]

def made():
    kept.append(np.full((1 << 20) + ALIGNMENT, len(kept), np.uint8))
    return kept[-1:]

room = Room(memory, take, Offers())
for _ in range(5):
    sent += send_elements(made, room)
lease = Memory().lease(open_region(memory.descriptor), 0)  # what the consumer sees
print([np.unique(element).tolist() for element in received_elements(sent, lease, 0)])
"""


@LINUX
@pytest.mark.usefixtures("forked_programs")
def test_an_array_that_a_function_keeps_has_pages_of_its_own() -> None:
    """They become private to the process, and no other elements that it sends are in them."""
    assert outcome(KEEPING).stdout == "[[0], [1], [2], [3], [4]]\n"
