"""Workers that die, hang, or can't be sent what they need; and what items draw, whichever worker reads them."""

import gc
import os
import random
import signal
import sys
import threading
import weakref
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import get_worker_info

from penstock.errors import UsageError, WorkerError
from penstock.torch import DataLoader
from tests.equivalence.decisions import random_decisions
from tests.torch.conformance.datasets import Drawing, Failing, Made, Numbers
from tests.torch.conformance.outcome import Raised, described, going_on
from tests.torch.conformance.untyped import torch
from tests.workers.processes.shared_memory import shared_bytes


def drawn(dataset: Drawing, workers: int, **given: Any) -> tuple[list[Any], DataLoader[Any]]:
    """Return two epochs of items that draw, and their loader."""
    torch.manual_seed(1)
    loader = DataLoader(dataset, batch_size=5, shuffle=True, num_workers=workers, **given)
    return [list(loader) for _ in range(2)], loader


def test_items_draw_the_same_in_any_worker() -> None:
    """The numbers that an item draws depend on the seed, the epoch, the batch and the row, not on the workers.

    Those from `random` and from NumPy are unrelated, although both use one algorithm.
    """
    one, _ = drawn(Drawing(24), 1)
    two, _ = drawn(Drawing(24), 2)
    kept, _ = drawn(Drawing(24), 2, persistent_workers=True)
    assert described(one) == described(two)
    assert described(one[0]) == described(kept[0])
    for epochs in (one, kept):
        draws = [number for epoch in epochs for batch in epoch for column in batch[1:] for number in column.ravel()]
        assert len({float(number) for number in draws}) == 2 * 24 * 4


class DrawingAtOnce(Drawing):
    """Draws for whole batches, and raises for a share of them."""

    def __init__(self, share: float) -> None:
        super().__init__(240)
        self.share = share

    def __getitems__(self, indices: list[int]) -> Any:
        drawn = self[len(indices)]
        if drawn[1] < self.share:
            raise ValueError(f"{drawn[1]} is low")
        return drawn


def collated_with_draws(batch: Any) -> Any:
    """Return a batch, and what a collate function draws."""
    return batch, random.random(), float(np.random.rand()), torch.rand(2)


@pytest.mark.parametrize("share", [pytest.param(0.2, marks=pytest.mark.long), 0.8])  # of the batches, a share raises
def test_whole_batches_draw_the_same_in_any_worker(share: float) -> None:
    """So do collate functions, and a batch that raises by what it draws does so in any worker."""
    found: list[Any] = []
    for workers in (1, 2):
        torch.manual_seed(1)
        loader = DataLoader(DrawingAtOnce(share), batch_size=4, num_workers=workers, collate_fn=collated_with_draws)
        found.append(going_on(iter(loader)))
    assert described(found[0]) == described(found[1])
    assert abs(sum(isinstance(each, Raised) for each in found[0]) - 60 * share) < 15


class DyingOnce(Drawing):
    """Kills the worker that first reads some index."""

    def __init__(self, folder: Path, deadly: set[int]) -> None:
        super().__init__(24)
        self.folder = folder
        self.deadly = deadly

    def __getitem__(self, index: int) -> Any:
        mark = self.folder / str(index)
        if index in self.deadly and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_deaths_change_nothing(tmp_path: Path) -> None:
    """Batches, and what their items draw, are as they would be without the workers' deaths, which are counted."""
    found, loader = drawn(DyingOnce(tmp_path, {3, 11, 20}), 2)
    assert described(found) == described(drawn(Drawing(24), 1)[0])
    assert [death.exit_code for death in loader.deaths()] == [-signal.SIGKILL] * 3
    stats = loader.stats()
    assert (stats["batches"], stats["worker_restarts"]) == (10, 3)
    assert 0 < stats["wait_share"] <= 1


def seeding(number: int) -> None:
    """Seed torch's generator in a worker, each with a seed of its own."""
    torch.manual_seed(100 + number)


def test_a_seed_of_worker_init_fn_decides_what_items_draw() -> None:
    """With it, items draw the same for any base seed and any number of workers, and `initial_seed` returns it."""
    found: list[Any] = []
    shown = Made(8, lambda index: (torch.initial_seed(), Drawing(8)[index]))
    for workers in (1, 2):
        torch.manual_seed(workers)
        found.append(list(DataLoader(shown, batch_size=4, num_workers=workers, worker_init_fn=seeding)))
    assert described(found[0]) == described(found[1])
    assert [batch[0].tolist() for batch in found[0]] == [[100] * 4] * 2
    assert len(torch.cat([batch[1][3] for batch in found[0]]).unique()) == 16


def test_the_workers_of_an_iterator_are_visible() -> None:
    """`_workers` has the living processes; one that is killed shows its exit code, and no batch is lost."""
    batches: Any = iter(DataLoader(Drawing(24), batch_size=4, num_workers=2))
    one, two = attrgetter("_workers")(batches)
    assert (one.is_alive(), one.exitcode, two.is_alive(), one.pid == two.pid) == (True, None, True, False)
    two.kill()
    two.join()
    assert (two.is_alive(), two.exitcode) == (False, -signal.SIGKILL)
    assert len(list(batches)) == 6
    one.join()
    assert one.exitcode == 0


def deadly(index: int) -> int:
    """Return the index; kill every worker that reads 7."""
    if index == 7:
        os._exit(3)
    return index


def large_and_deadly(index: int) -> Any:
    """Return an item of 600 kB, of which two are too much for several batches of a job."""
    return np.full(600_000, deadly(index), np.uint8)


@pytest.mark.parametrize(
    ("make", "seed", "given"),
    [
        (deadly, None, {}),
        (deadly, None, {"collate_fn": list}),
        (deadly, 3, {"collate_fn": list}),
        (large_and_deadly, 2, {"collate_fn": list}),
        pytest.param(large_and_deadly, 3, {"collate_fn": list}, marks=pytest.mark.long),  # other decisions
    ],
)
def test_an_item_that_crashes_workers_is_named(make: Any, seed: int | None, given: dict[str, Any]) -> None:
    """An item that crashes one worker after the other is an error of its batch; the other batches are delivered.

    Also where one worker reads all items of a batch and collates them, in a job of one batch or of several.
    """

    def firsts(batch: Any) -> list[int]:
        return [int(np.ravel(row)[0]) for row in batch]

    message = (
        r"DataLoader worker \(pid\(s\) (\d+)\) exited unexpectedly: .*row 1, index 7.* \(pid \1\) .*exit code 3\.$"
    )
    with random_decisions(seed):
        batches: Any = iter(DataLoader(Made(10, make), batch_size=2, num_workers=2, **given))
        assert [firsts(next(batches)) for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
        with pytest.raises(WorkerError, match=message):
            next(batches)
        assert list(map(firsts, batches)) == [[8, 9]]


class Locked(Numbers):
    """Holds what can't be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def test_what_cannot_be_sent_is_an_error() -> None:
    """With `strict=True` a dataset's is pickle's, with a remedy; a batch's, for which torch waits, is in its place."""
    with pytest.raises(TypeError, match="cannot pickle") as raised:
        iter(DataLoader(Locked(), num_workers=1, strict=True))
    assert "open unpicklable objects" in raised.value.__notes__[0]
    results = Made(4, lambda index: threading.Lock() if index == 2 else index)
    batches = iter(DataLoader(results, batch_size=None, num_workers=1))
    assert [next(batches), next(batches)] == [0, 1]
    with pytest.raises(TypeError, match="cannot pickle"):
        next(batches)
    assert list(batches) == [3]


def test_what_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Datasets and functions may be local ones; objects of classes, such as paths, need no cloudpickle, as in torch."""

    class Local(Numbers):
        pass

    loader = DataLoader(Local(6), batch_size=3, num_workers=1, collate_fn=lambda rows: max(rows))
    assert list(loader) == [2, 5]
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    assert [row for batch in DataLoader(DyingOnce(tmp_path, set()), batch_size=8, num_workers=1) for row in batch[0]]


def wait_for_30(index: int) -> int:
    """Return the index; 30 is never there."""
    if index == 30:
        threading.Event().wait()
    return index


def test_a_timeout_delays_no_batch_before_it() -> None:
    """A batch that takes longer raises torch's error; with `timeout`, a job has one batch, so earlier ones come."""
    found: list[Any] = []
    with random_decisions(3):
        batches = iter(DataLoader(Made(40, wait_for_30), num_workers=1, timeout=0.05))
        for _ in range(130):  # a busy machine may take longer, too
            with suppress(RuntimeError):
                found.append(int(next(batches)))
            if len(found) == 30:
                break
        with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.05 seconds"):
            next(batches)
    assert found == list(range(30))


class Writing(Numbers):
    """Writes to its own tensor, which is a view of another."""

    def __init__(self) -> None:
        super().__init__(6)
        self.all = torch.zeros(100_000)
        self.part = self.all[10:20]

    def __getitem__(self, index: int) -> Any:
        info: Any = get_worker_info()
        self.part += 2 ** (10 * info.id)
        return info.id, float(self.all[10]), index


def test_each_worker_has_its_own_dataset() -> None:
    """A worker's writes to its dataset, views of one memory included, are seen by no other worker."""
    found = [row for batch in DataLoader(Writing(), num_workers=2, batch_size=1) for row in zip(*batch, strict=True)]
    for worker, value, _ in found:
        assert float(value) % 2 ** (10 * int(worker)) == 0
        assert float(value) < 2 ** (10 * int(worker)) * 100


def late(index: int) -> Any:
    """Draw from one generator after the other, each for the first time at another index, and fail in between."""
    if index < 6:
        return index, 0.0, 0.0
    python, numpy = random.random(), float(np.random.rand()) if index >= 12 else 0.0
    if index == 9:
        raise ValueError(f"drew {python}")
    return index, python, numpy


class Together(Numbers):
    """Returns the rows of a batch in one call, as an array."""

    def __getitems__(self, indices: list[int]) -> Any:
        return np.array(indices, np.float64)


def with_noise(rows: Any) -> Any:
    """Change an array, and add numbers of all three generators from row 6 on."""
    rows *= 2
    if rows[0] >= 12:
        rows += random.random() + float(np.random.rand())
    return torch.from_numpy(rows), torch.rand(2)


def test_the_first_to_draw_is_seeded_too() -> None:
    """Whichever worker meets the first items or batches that draw, in whatever order, they draw the same.

    A collate function may change its rows: it is called again with new ones, once it drew from an unseeded generator.
    """
    found: list[list[Any]] = []
    for workers in (1, 2):
        torch.manual_seed(1)
        items = described(going_on(iter(DataLoader(Made(18, late), batch_size=3, num_workers=workers))))
        collated = list(DataLoader(Together(18), batch_size=3, num_workers=workers, collate_fn=with_noise))
        found.append([items, described(collated), collated])
    assert found[0][:2] == found[1][:2]
    noise = [(rows - 2 * torch.arange(3 * step, 3 * step + 3)).tolist() for step, (rows, _) in enumerate(found[0][2])]
    assert noise[:2] == [[0, 0, 0]] * 2
    assert len({each[0] for each in noise[2:]}) == 4
    assert all(0 < each[0] < 2 and each == pytest.approx([each[0]] * 3) for each in noise[2:])


def with_more_noise(rows: list[Any]) -> Any:
    """Take the last row out, and add numbers of all three generators."""
    rows.pop()
    return rows, random.random(), float(np.random.rand()), torch.rand(2)


def test_items_and_collate_functions_draw_the_same_whoever_collates() -> None:
    """One worker may read all items of a batch and collate them, or workers may share the items."""
    found: list[list[object]] = []
    for seed in (None, 0, 1, 2):
        torch.manual_seed(1)
        with random_decisions(seed):
            loader = DataLoader(Drawing(48), batch_size=4, num_workers=2, collate_fn=with_more_noise)
            found.append([described(batch) for batch in loader])
    assert len(set(map(repr, found[0]))) == 12
    assert found == found[:1] * 4


MEGABYTE = 1 << 20


def wide(index: int) -> Any:
    """Return an item of a megabyte."""
    return torch.full((MEGABYTE // 4,), float(index))


def test_batches_in_memory() -> None:
    """They are no more than `prefetch_factor` and the one in use; what is dropped is gone at once.

    Also that which was handed out when the sampler came to its end: no traceback keeps it for a while.
    """
    gc.disable()
    try:
        before, most = shared_bytes(), 0
        given: list[weakref.ref[Any]] = []
        for batch in DataLoader(Made(96, wide), batch_size=8, num_workers=2):
            most = max(most, shared_bytes() - before)
            given.append(weakref.ref(batch))
            assert [each() is not None for each in given] == [False] * (len(given) - 1) + [True]
        assert len(given) == 12
        assert most <= 3.05 * 8 * MEGABYTE
    finally:
        gc.enable()


def test_workers_end_with_an_iterator_that_is_dropped_after_an_error() -> None:
    """At once: the error's traceback doesn't keep them until the garbage collector runs."""
    gc.disable()
    try:
        batches = iter(DataLoader(Failing(), num_workers=1))
        with pytest.raises(ValueError, match="Caught ValueError") as raised:
            list(batches)
        held = weakref.ref(batches)
        del raised, batches
        assert held() is None
    finally:
        gc.enable()


class Seen(Numbers):
    """200 kB for each index, and the indices that workers have read so far."""

    def __init__(self) -> None:
        super().__init__(60)
        self.seen: Any = torch.zeros(60).share_memory_()

    def __getitem__(self, index: int) -> Any:
        self.seen[index] = 1
        return torch.full((25_000,), index)


def test_memory_bounds_the_batches_ahead() -> None:
    """`memory=` is stronger than `prefetch_factor`, and an error says if it has no room for the next batch."""
    data, ahead = Seen(), 0
    for number, batch in enumerate(DataLoader(data, num_workers=2, prefetch_factor=16, memory="900kB")):
        ahead = max(ahead, int(data.seen.sum()) - number)
        assert batch.unique().tolist() == [number]
    assert 1 <= ahead <= 4  # of 200 kB, with the one that the program holds
    batches = iter(DataLoader(Seen(), num_workers=2, memory=300_000))
    kept = next(batches)
    with pytest.raises(UsageError, match="memory=300000 is too small"):
        next(batches)
    del kept
    assert next(batches).unique().tolist() == [1]


class AtOnce(Numbers):
    """17 kB for each index; a batch is read at once, in no time."""

    row = torch.zeros(17_000, dtype=torch.uint8)

    def __getitems__(self, indices: list[int]) -> Any:
        return [self.row for _ in indices]


def batches_per_job(loader: DataLoader[Any]) -> list[int]:
    """Return the numbers of batches that one piece of memory holds, one after the other."""
    counts: list[int] = []
    end = 0
    for batch in list(loader):
        if batch.data_ptr() == end:
            counts[-1] += 1
        else:
            counts.append(1)
        end = batch.data_ptr() + batch.nbytes
    return counts


def test_a_job_has_several_small_batches() -> None:
    """As many as let all jobs ahead take 16 MB, and a power of two: 4 of 68 kB, if 32 and 2 more jobs may be ahead."""
    loader = DataLoader(AtOnce(400), batch_size=4, num_workers=1, prefetch_factor=32, persistent_workers=True)
    epochs = (max(batches_per_job(loader)) for _ in range(10))  # on a busy machine, items may look slow for a while
    assert next((most for most in epochs if most > 2), 0) == 4
