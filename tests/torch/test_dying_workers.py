"""Workers that die, hang, or can't be sent what they need."""

import gc
import os
import random
import signal
import sys
import threading
import warnings
import weakref
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Dataset, get_worker_info

from penstock.errors import UsageError, WorkerError
from penstock.torch import DataLoader
from tests.equivalence.decisions import random_decisions
from tests.torch.conformance.datasets import Drawing, Failing, Numbers
from tests.torch.conformance.outcome import described, going_on
from tests.torch.conformance.untyped import torch
from tests.workers.processes.shared_memory import shared_bytes

DEADLY = r"DataLoader worker \(pid\(s\) (\d+)\) exited unexpectedly: .*row 1, index 7.* \(pid \1\) .*exit code 3\.$"


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


class Shown(Drawing):
    """Draws, and shows the seed of torch's generator."""

    def __getitem__(self, index: int) -> Any:
        return torch.initial_seed(), super().__getitem__(index)


def seeding(number: int) -> None:
    """Seed torch's generator in a worker, each with a seed of its own."""
    torch.manual_seed(100 + number)


class Deadly(Numbers):
    """Kills every worker that reads index 7."""

    def __getitem__(self, index: int) -> int:
        if index == 7:
            os._exit(3)
        return index


class DeadlyAndLarge(Deadly):
    """Items of 600 kB, of which two are too much for several batches of a job."""

    def __getitem__(self, index: int) -> Any:
        return np.full(600_000, super().__getitem__(index), np.uint8)


def firsts(rows: list[Any]) -> list[int]:
    """Return a number of each item."""
    return [int(np.ravel(row)[0]) for row in rows]


class Locked(Numbers):
    """Holds what can't be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Unsendable(Numbers):
    """Index 2 is what can't be sent."""

    def __getitem__(self, index: int) -> Any:
        return threading.Lock() if index == 2 else index


class Waiting(Numbers):
    """Index 0 is never there."""

    def __getitem__(self, index: int) -> int:
        if index == 0:
            threading.Event().wait()
        return index


class Writing(Dataset[Any]):
    """Writes to its own tensor, which is a view of another."""

    def __init__(self) -> None:
        self.all = torch.zeros(100_000)
        self.part = self.all[10:20]

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        self.part += 2 ** (10 * info.id)
        return info.id, float(self.all[10]), index


def drawn(dataset: Drawing, workers: int, **given: Any) -> list[object]:
    """Return two epochs of items that draw."""
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of workers that are more than processors
        loader = DataLoader(dataset, batch_size=5, shuffle=True, num_workers=workers, **given)
        return [described(list(loader)) for _ in range(2)]


def test_items_draw_the_same_in_any_worker() -> None:
    """The numbers that an item draws depend on the seed, the batch and the row, not on the number of workers."""
    one = drawn(Drawing(24), 1)
    assert drawn(Drawing(24), 3) == one
    assert drawn(Drawing(24), 2, collate_fn=list, prefetch_factor=4) != one  # it is another batch
    assert drawn(Drawing(24), 2, persistent_workers=True)[0] == one[0]


@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_draw_differently(*, persistent: bool) -> None:
    """The same index draws something else in the next epoch."""
    torch.manual_seed(1)
    loader = DataLoader(Drawing(4), batch_size=4, num_workers=1, persistent_workers=persistent)
    first, second = next(iter(loader)), next(iter(loader))
    assert all(not torch.equal(one, other) for one, other in zip(first[1:], second[1:], strict=True))
    assert len(first[1].unique()) == 4


def test_a_seed_of_worker_init_fn_decides_what_items_draw() -> None:
    """With it, items draw the same for any base seed and any number of workers, and `initial_seed` returns it."""
    found: list[Any] = []
    for workers in (1, 2):
        torch.manual_seed(workers)
        found.append(list(DataLoader(Shown(8), batch_size=4, num_workers=workers, worker_init_fn=seeding)))
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


def test_deaths_change_nothing(tmp_path: Path) -> None:
    """Batches, and what their items draw, are as they would be without the workers' deaths."""
    assert drawn(DyingOnce(tmp_path, {3, 11, 20}), 2) == drawn(Drawing(24), 2)


def test_a_loader_counts_batches_and_deaths(tmp_path: Path) -> None:
    """`stats` counts the batches of all epochs, and `deaths` has the workers that died in each."""
    loader = DataLoader(DyingOnce(tmp_path, {3}), batch_size=4, num_workers=1)
    assert (loader.stats()["batches"], loader.deaths()) == (0, ())
    assert [len(list(loader)) for _ in range(2)] == [6, 6]
    (death,) = loader.deaths()
    assert death.exit_code == -signal.SIGKILL
    stats = loader.stats()
    assert (stats["batches"], stats["worker_restarts"]) == (12, 1)
    assert 0 < stats["wait_share"] <= 1


def test_an_item_that_crashes_workers_is_named() -> None:
    """An item that crashes one worker after the other is an error of its batch; the other batches are delivered."""
    batches = iter(DataLoader(Deadly(), batch_size=2, num_workers=2))
    assert [next(batches).tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(WorkerError, match=DEADLY):
        next(batches)
    assert [batch.tolist() for batch in batches] == [[8, 9]]


@pytest.mark.parametrize("dataset", [Deadly(), DeadlyAndLarge()], ids=["small", "large"])
@pytest.mark.parametrize("seed", [None, 2, 3])
def test_an_item_that_crashes_workers_is_named_whoever_collates(dataset: Deadly, seed: int | None) -> None:
    """Also where one worker reads all items of a batch and collates them, in a job of one batch or of several."""
    with random_decisions(seed):
        batches = iter(DataLoader(dataset, batch_size=2, num_workers=2, collate_fn=list))
        assert [firsts(next(batches)) for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
        with pytest.raises(WorkerError, match=DEADLY):
            next(batches)
        assert list(map(firsts, batches)) == [[8, 9]]


def test_a_dataset_that_cannot_be_pickled_is_an_error_on_request() -> None:
    """With `strict=True` the error is pickle's, with a remedy."""
    with pytest.raises(TypeError, match="cannot pickle") as raised:
        iter(DataLoader(Locked(), num_workers=1, strict=True))
    assert "open unpicklable objects" in raised.value.__notes__[0]


def test_results_that_cannot_be_sent_are_errors() -> None:
    """A batch that can't be pickled is an error in its place, where torch's loader waits for ever."""
    batches = iter(DataLoader(Unsendable(4), batch_size=None, num_workers=1))
    assert [next(batches), next(batches)] == [0, 1]
    with pytest.raises(TypeError, match="cannot pickle"):
        next(batches)
    assert list(batches) == [3]


def test_lambdas_are_sent() -> None:
    """Datasets and functions may be lambdas and local ones."""

    class Local(Numbers):
        pass

    loader = DataLoader(Local(6), batch_size=3, num_workers=1, collate_fn=lambda rows: max(rows))
    assert list(loader) == [2, 5]


def test_picklable_datasets_need_no_cloudpickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset of objects of classes, such as paths, is sent by pickle itself: by name, as torch sends it."""
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    assert [row for batch in DataLoader(DyingOnce(tmp_path, set()), batch_size=8, num_workers=1) for row in batch[0]]


def test_a_timeout() -> None:
    """A batch that takes longer than `timeout` raises torch's error."""
    batches = iter(DataLoader(Waiting(), num_workers=1, timeout=0.25))
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.25 seconds"):
        next(batches)


class WaitingLate(Numbers):
    """Index 30 is never there."""

    def __getitem__(self, index: int) -> int:
        if index == 30:
            threading.Event().wait()
        return index


def test_a_slow_batch_delays_none_before_it() -> None:
    """With `timeout`, a job has one batch, so those before a slow one are delivered."""
    found: list[Any] = []
    with random_decisions(3):
        batches = iter(DataLoader(WaitingLate(40), num_workers=1, timeout=0.05))
        for _ in range(130):  # a busy machine may take longer, too
            with suppress(RuntimeError):
                found.append(int(next(batches)))
            if len(found) == 30:
                break
    assert found == list(range(30))


def test_each_worker_has_its_own_dataset() -> None:
    """A worker's writes to its dataset, views of one memory included, are seen by no other worker."""
    found = [row for batch in DataLoader(Writing(), num_workers=2, batch_size=1) for row in zip(*batch, strict=True)]
    for worker, value, _ in found:
        assert float(value) % 2 ** (10 * int(worker)) == 0
        assert float(value) < 2 ** (10 * int(worker)) * 100


def test_kept_batches_keep_no_descriptors() -> None:
    """All batches of an epoch can be kept, with fewer descriptors than batches."""
    before = len(os.listdir("/proc/self/fd"))
    loader = DataLoader(Large(), batch_size=1, num_workers=1)
    kept = list(loader)
    assert len(os.listdir("/proc/self/fd")) - before < 120
    assert [int(batch[0, 0]) for batch in kept] == list(range(200))


class Large(Numbers):
    """Items of more than is copied in any case."""

    def __init__(self) -> None:
        super().__init__(200)

    def __getitem__(self, index: int) -> Any:
        return torch.full((30_000,), index)


class Late(Numbers):
    """Draws from one generator after the other, each for the first time at another index, and fails in between."""

    def __getitem__(self, index: int) -> Any:
        if index < 6:
            return index, 0.0, 0.0
        python, numpy = random.random(), float(np.random.rand()) if index >= 12 else 0.0
        if index == 9:
            raise ValueError(f"drew {python}")
        return index, python, numpy


def test_the_first_to_draw_is_seeded_too() -> None:
    """Whichever worker meets the first items that draw, and in whatever order, they draw the same."""
    found: list[object] = []
    for workers in (1, 2):
        torch.manual_seed(1)
        loader = DataLoader(Late(18), batch_size=3, num_workers=workers)
        found.append(described(going_on(iter(loader))))
    assert found[0] == found[1]


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


def test_a_collate_function_that_draws_may_change_its_rows() -> None:
    """It is called again with new rows, once it drew from a generator that wasn't seeded."""
    found: list[list[Any]] = []
    for workers in (1, 2):
        torch.manual_seed(1)
        found.append(list(DataLoader(Together(18), batch_size=3, num_workers=workers, collate_fn=with_noise)))
    assert described(found[0]) == described(found[1])
    noise = [(rows - 2 * torch.arange(3 * step, 3 * step + 3)).tolist() for step, (rows, _) in enumerate(found[0])]
    assert noise[:2] == [[0, 0, 0]] * 2
    assert len({each[0] for each in noise[2:]}) == 4
    assert all(0 < each[0] < 2 and each == pytest.approx([each[0]] * 3) for each in noise[2:])


def drawn_and_collated(seed: int | None) -> list[object]:
    """Return the batches of items that draw, collated by a function that changes them and draws, too."""
    torch.manual_seed(1)
    with random_decisions(seed):
        loader = DataLoader(Drawing(48), batch_size=4, num_workers=2, collate_fn=with_more_noise)
        return [described(batch) for batch in loader]


def with_more_noise(rows: list[Any]) -> Any:
    """Take the last row out, and add numbers of all three generators."""
    rows.pop()
    return rows, random.random(), float(np.random.rand()), torch.rand(2)


def test_items_and_collate_functions_draw_the_same_whoever_collates() -> None:
    """One worker may read all items of a batch and collate them, or workers may share the items."""
    expected = drawn_and_collated(None)
    assert len(set(map(repr, expected))) == 12
    assert all(drawn_and_collated(seed) == expected for seed in range(3))


def test_generators_draw_different_numbers() -> None:
    """The numbers that an item draws from `random` and from NumPy are unrelated, although both use one algorithm."""
    for _, python, numpy, _ in DataLoader(Drawing(8), batch_size=8, num_workers=1):
        assert not set(python.tolist()) & set(numpy.tolist())


def test_batches_in_memory() -> None:
    """No more batches are in memory than `prefetch_factor` and the one in use, from the first to the last."""
    before, most = shared_bytes(), 0
    for batch in DataLoader(Wide(), batch_size=8, num_workers=2):
        most = max(most, shared_bytes() - before)
        assert batch.shape[0] == 8
    assert most <= 3.05 * 8 * Wide.size_bytes


def test_batches_that_are_dropped_are_gone() -> None:
    """At once, also that which was handed out when the sampler came to its end: no traceback keeps it for a while."""
    gc.disable()
    try:
        given: list[weakref.ref[Any]] = []
        for batch in DataLoader(Wide(), batch_size=8, num_workers=2):
            given.append(weakref.ref(batch))
            assert [each() is not None for each in given] == [False] * (len(given) - 1) + [True]
        assert len(given) == 12
    finally:
        gc.enable()


class Wide(Numbers):
    """Items of a megabyte."""

    size_bytes = 1 << 20

    def __init__(self) -> None:
        super().__init__(96)

    def __getitem__(self, index: int) -> Any:
        return torch.full((self.size_bytes // 4,), float(index))


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
