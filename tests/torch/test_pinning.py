"""Batches of the drop-in in pinned memory: the next is pinned in a thread, while the program computes."""

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.equivalence.decisions import random_decisions
from tests.torch.conformance.datasets import Made

torch = pytest.importorskip("torch")
door = pytest.importorskip("penstock.torch")
THREAD = "penstock-pinning"
BATCHES, ROWS = 12, 4


def row(key: int, bad: int = -1) -> Any:
    """Return a row of one number."""
    if key == bad:
        raise ValueError(f"row {key}")
    return np.full(1000, key, np.float32), key


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
    """Return a loader of all rows, of which one may be bad."""
    return door.DataLoader(Made(BATCHES * ROWS, partial(row, bad=bad)), batch_size=ROWS, num_workers=2, **how)


@pytest.mark.parametrize("how", [{"persistent_workers": True}, {"in_order": False}])
def test_a_thread_pins_the_next_batch(pinning: Pinning, how: dict[str, Any]) -> None:
    """While the program has a batch, the thread pins the next one; all arrive once, in any epoch.

    An epoch that was left early gives nothing to the next one, with the same workers.
    """
    loader = opened(**how)
    next(iter(loader))
    pinning.done.acquire(timeout=0.02)
    for _ in range(2):
        pinning.threads.clear()
        numbers = taken(pinning, loader)
        assert (numbers if how.get("in_order", True) else sorted(numbers)) == list(range(BATCHES))
        assert len(pinning.threads) == BATCHES
        assert THREAD in pinning.threads
        assert pinning.threads[0] == threading.current_thread().name


def test_what_the_thread_can_not_pin_the_program_pins(pinning: Pinning) -> None:
    """An exception in the thread loses no batch; if the program can't pin one either, `next` raises the error."""
    pinning.refuses = THREAD
    assert taken(pinning, opened()) == list(range(BATCHES))
    pinning.refuses = threading.current_thread().name
    with pytest.raises(MemoryError, match="no pinned memory is left"):
        taken(pinning, opened())


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


@pytest.mark.parametrize(
    ("bad", "batch", "seed", "how"),
    [(1, 0, None, {}), (5 * ROWS + 1, 5, None, {}), (-1, 5, 3, {"collate_fn": collated})],
)
def test_an_error_comes_in_its_batchs_place(
    pinning: Pinning, bad: int, batch: int, seed: int | None, how: dict[str, Any]
) -> None:
    """Of a row, or of a batch that can't be unpickled, also if the thread met it, and its job has several batches."""
    numbers: list[int | str] = []
    with random_decisions(seed):
        batches = iter(opened(bad, **how))
        for _ in range(BATCHES):
            try:
                numbers.append(int(next(batches)[1][0]) // ROWS)
            except ValueError:
                numbers.append("error")
            pinning.done.acquire(timeout=0.02)  # the thread may pin meanwhile
    assert numbers == [*range(batch), "error", *range(batch + 1, BATCHES)]
    assert next(batches, None) is None


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
