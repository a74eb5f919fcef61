"""Batches of the drop-in in pinned memory: the next is pinned in a thread, while the program computes."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.equivalence.decisions import random_decisions

torch = pytest.importorskip("torch")
door = pytest.importorskip("penstock.torch")
THREAD = "penstock-pinning"
BATCHES, ROWS = 12, 4


class Numbers:
    """Rows of one number each."""

    def __len__(self) -> int:
        return BATCHES * ROWS

    def __getitem__(self, key: int) -> Any:
        if key == self.bad:
            raise ValueError(f"row {key}")
        return np.full(1000, key, np.float32), key

    bad = -1


class Pinning:
    """A stand-in for torch's pinning, which copies; it notes the threads, and may raise in one."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.done = threading.Semaphore(0)  # of the thread
        self.refuses = ""

    def __call__(self, batch: Any, device: str) -> Any:
        """Return a copy."""
        assert device == "cuda"
        self.threads.append(threading.current_thread().name)
        if self.threads[-1] == THREAD:
            self.done.release()
        if self.threads[-1] == self.refuses:
            raise MemoryError("no pinned memory is left")
        return [leaf.clone() for leaf in batch]


@pytest.fixture
def pinning(monkeypatch: pytest.MonkeyPatch) -> Pinning:
    """Let torch find a device, and replace its pinning."""
    replaced = Pinning()
    private: Any = pytest.importorskip("penstock.torch._data_loader._torch_private")
    begin: Any = private.begin
    iterators: Any = pytest.importorskip("penstock.torch._data_loader._iterators")

    def begin_pinned(loader: object) -> Any:
        return begin(loader)._replace(pin_device="cuda")

    pinning: Any = pytest.importorskip("penstock.torch._data_loader._pinning")
    monkeypatch.setattr(iterators, "begin", begin_pinned)
    monkeypatch.setattr(pinning, "pinned", replaced)
    return replaced


def taken(pinning: Pinning, loader: Any) -> list[int]:
    """Return the numbers of the batches, each taken after a moment in which the next may be pinned."""
    numbers: list[int] = []
    for x, y in loader:
        assert x[:, 0].tolist() == y.tolist() == [int(y[0]) + row for row in range(ROWS)]
        numbers.append(int(y[0]) // ROWS)
        pinning.done.acquire(timeout=0.02)
    return numbers


def opened(bad: int = -1, **how: Any) -> Any:
    """Return a loader of all rows."""
    rows = Numbers()
    rows.bad = bad
    return door.DataLoader(rows, batch_size=ROWS, num_workers=2, **how)


@pytest.mark.parametrize("how", [{"persistent_workers": True}, {"in_order": False}])
def test_a_thread_pins_the_next_batch(pinning: Pinning, how: dict[str, Any]) -> None:
    """While the program has a batch, the thread pins the next one; all arrive once, in any epoch."""
    loader = opened(**how)
    for _ in range(2):
        pinning.threads.clear()
        numbers = taken(pinning, loader)
        assert (numbers if how.get("in_order", True) else sorted(numbers)) == list(range(BATCHES))
        assert len(pinning.threads) == BATCHES
        assert THREAD in pinning.threads
        assert pinning.threads[0] == threading.current_thread().name


def test_what_the_thread_can_not_pin_the_program_pins(pinning: Pinning) -> None:
    """An exception in the thread loses no batch: the program pins that one itself."""
    pinning.refuses = THREAD
    assert taken(pinning, opened()) == list(range(BATCHES))


def test_an_error_of_pinning_is_raised(pinning: Pinning) -> None:
    """If the program can't pin a batch, `next` raises the error."""
    pinning.refuses = threading.current_thread().name
    with pytest.raises(MemoryError, match="no pinned memory is left"):
        taken(pinning, opened())


def numbers_of(batches: Iterator[Any], pinning: Pinning) -> list[int | str]:
    """Return the number of each batch of an epoch, and "error" for one that raises; the thread may pin meanwhile."""
    numbers: list[int | str] = []
    for _ in range(BATCHES):
        try:
            numbers.append(int(next(batches)[1][0]) // ROWS)
        except ValueError:
            numbers.append("error")
        pinning.done.acquire(timeout=0.02)
    return numbers


@pytest.mark.parametrize("batch", [0, 5])
def test_an_error_of_a_row_comes_in_its_batchs_place(pinning: Pinning, batch: int) -> None:
    """The batches before it are delivered, and those after it."""
    batches = iter(opened(bad=batch * ROWS + 1))
    assert numbers_of(batches, pinning) == [*range(batch), "error", *range(batch + 1, BATCHES)]
    with pytest.raises(StopIteration):
        next(batches)


class Refusing(list[Any]):
    """A batch that can't be unpickled if it is the sixth."""

    def __reduce__(self) -> Any:
        return refusing, (list(self),)


def refusing(leaves: list[Any]) -> Refusing:
    """Return a batch as it is unpickled."""
    if int(leaves[1][0]) == 5 * ROWS:
        raise ValueError("can't be unpickled")
    return Refusing(leaves)


def collated(rows: list[Any]) -> Refusing:
    """Return a batch of torch's, in a class."""
    return Refusing(torch.utils.data.default_collate(rows))


def test_a_batch_that_can_not_be_unpickled_loses_no_other(pinning: Pinning) -> None:
    """Its error comes in its place, also if the thread met it, and its job has several batches."""
    with random_decisions(3):
        numbers = numbers_of(iter(opened(collate_fn=collated)), pinning)
    assert numbers == [*range(5), "error", *range(6, BATCHES)]


@pytest.mark.parametrize("steps", [1, 7])
def test_a_state_counts_delivered_batches(pinning: Pinning, steps: int) -> None:
    """A batch that was pinned ahead isn't in the state, and a resumed loader begins with it."""
    loader = opened()
    batches = iter(loader)
    for _ in range(steps):
        next(batches)
        pinning.done.acquire(timeout=0.02)
    state = loader.state_dict()
    del batches
    resumed = opened()
    resumed.load_state_dict(state)
    assert taken(pinning, resumed) == list(range(steps, BATCHES))


def test_a_new_epoch_drops_what_was_pinned(pinning: Pinning) -> None:
    """An epoch that was left early gives nothing to the next one, with the same workers."""
    loader = opened(persistent_workers=True)
    for x, _ in loader:
        assert x[0, 0] == 0
        pinning.done.acquire(timeout=0.02)
        break
    assert taken(pinning, loader) == list(range(BATCHES))
