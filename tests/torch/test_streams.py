"""Iterable datasets with workers: one stream each, in turns."""

import json
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset, get_worker_info

from penstock.errors import StateError, UsageError
from penstock.torch import DataLoader
from tests.torch.conformance.datasets import Counting, OnlyNext, OwnIterator, Rewinding, Sized
from tests.torch.conformance.outcome import Loader, described, going_on, tried
from tests.torch.conformance.untyped import torch


class Drawing(IterableDataset[Any]):
    """Draws from torch's generator, each worker its own numbers."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(5):
            yield number, torch.rand(2)


class Uneven(IterableDataset[int]):
    """Streams of different lengths: 1 and 6 elements."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        return iter(range(100 * worker, 100 * worker + 1 + 5 * worker))


class Failing(IterableDataset[int]):
    """Raises in between."""

    def __iter__(self) -> Iterator[int]:
        yield from (1, 2, 3)
        raise ValueError("no more")


class Stopping(IterableDataset[int]):
    """A dataset whose iterator continues after an exception."""

    def __iter__(self) -> Iterator[int]:
        return map(at, [1, 2, 0, 3])


def at(number: int) -> int:
    """Return 6 divided by a number."""
    return 6 // number


class Dying(IterableDataset[int]):
    """Kills its worker once, at element 5."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.begin = 0

    def __iter__(self) -> Iterator[int]:
        for number in range(self.begin, 8):
            mark = self.folder / "died"
            if number == 5 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            self.begin = number + 1
            yield number


class OneLarge(IterableDataset[Any]):
    """Small elements, but for the third: it takes more memory than is there for a batch of unknown size."""

    def __init__(self, taken: Path) -> None:
        self.taken = taken

    def __iter__(self) -> Iterator[Any]:
        for number in range(6):
            if number == 3:
                self.taken.write_bytes(b"")  # waits for the program, which then requests the large one
            yield torch.full((1 << 28 if number == 2 else 1,), number, dtype=torch.uint8)


class Stateful(Dying):
    """A dataset that can save its state."""

    def state_dict(self) -> dict[str, int]:
        """Return where it is."""
        return {"begin": self.begin}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go there."""
        self.begin = state["begin"]


def sized(loader: Loader) -> object:
    """Yield more elements than the reported length."""
    made = loader(Sized(9, 3), num_workers=2, batch_size=None)
    return len(made), list(made)


def epochs(loader: Loader) -> object:
    """Go through two epochs with persistent workers, the first to its middle."""
    made = loader(Counting(9), num_workers=2, batch_size=2, persistent_workers=True)
    first = next(iter(made))
    return first, list(made), list(made)


def first(batches: Any) -> list[Any]:
    """Return the first batches, of a loader that may have no end."""
    return list(islice(batches, 20))


PROGRAMS: dict[str, Callable[[Loader], object]] = {
    "shared": lambda loader: list(loader(Counting(11), num_workers=2, batch_size=2)),
    "dropped": lambda loader: list(loader(Counting(11), num_workers=2, batch_size=2, drop_last=True)),
    "single": lambda loader: list(loader(Counting(5), num_workers=2, batch_size=None)),
    "repeated": lambda loader: list(loader(Counting(5, shares=False), num_workers=2, batch_size=2)),
    "uneven": lambda loader: list(loader(Uneven(), num_workers=2)),
    "empty": lambda loader: list(loader(Counting(0), num_workers=2)),
    "own": lambda loader: list(loader(Counting(5), num_workers=1, batch_size=2, collate_fn=tuple)),
    "its own iterator": lambda loader: first(loader(OwnIterator(), num_workers=2, batch_size=2)),
    "its own iterator, single": lambda loader: first(loader(OwnIterator(), num_workers=1, batch_size=None)),
    "rewinding": lambda loader: first(loader(Rewinding(), num_workers=2, batch_size=2)),
    "only next": lambda loader: list(loader(OnlyNext(), num_workers=1, batch_size=2)),
    "drawing": lambda loader: list(loader(Drawing(), num_workers=2, batch_size=2)),
    "failing": lambda loader: going_on(iter(loader(Failing(), num_workers=1, batch_size=2))),
    "going on": lambda loader: going_on(iter(loader(Stopping(), num_workers=1))),
    "sized": sized,
    "epochs": epochs,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    """The program comes to what it comes to with torch's loader; its workers draw the same numbers, too."""
    results: list[object] = []
    for loader in (DataLoader, TorchLoader):
        torch.manual_seed(3)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = described(PROGRAMS[name](loader))
        words = [str(each.message) for each in caught if "Length of Iterable" in str(each.message)]
        results.append((result, [each.partition("at 0x")[0] for each in words]))
    assert results[0] == results[1]


def test_a_death_is_torchs_error(tmp_path: Path) -> None:
    """A stream that is lost with its worker raises torch's RuntimeError, and the other streams continue."""
    batches = iter(DataLoader(Dying(tmp_path), num_workers=1, batch_size=2))
    assert [next(batches).tolist(), next(batches).tolist()] == [[0, 1], [2, 3]]
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly"):
        next(batches)
    assert list(batches) == []


def refuse_three(element: Any) -> Any:
    """Return an element, unless it is 3."""
    assert int(element[-1]) != 3
    return element


def test_batches_that_follow_one_without_room(tmp_path: Path) -> None:
    """They are delivered, though the worker has taken them from the stream before the large one gets more memory."""
    taken = tmp_path / "taken"
    os.mkfifo(taken)
    batches = iter(DataLoader(OneLarge(taken), batch_size=None, num_workers=1, collate_fn=refuse_three))
    found = [int(next(batches)[0]) for _ in range(2)]
    taken.read_bytes()
    found.append(int(next(batches)[-1]))
    with pytest.raises(AssertionError):
        next(batches)
    assert [*found, *(int(batch[-1]) for batch in batches)] == [0, 1, 2, 4, 5]


def test_a_stateful_dataset_resumes_after_a_death(tmp_path: Path) -> None:
    """If the dataset has a state, a worker's death changes nothing."""
    loader = DataLoader(Stateful(tmp_path), num_workers=1, batch_size=2)
    found: list[Any] = list(loader)
    assert [batch.tolist() for batch in found] == [[0, 1], [2, 3], [4, 5], [6, 7]]


class Share(IterableDataset[int]):
    """Each worker's share of some integers; it can save its state."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        begin, self.given = self.given, 0
        for number in range(worker, 13 - worker, workers)[begin:]:
            begin += 1
            self.given = begin
            yield number
        self.given = 0

    def state_dict(self) -> int:
        """Return where it is."""
        return self.given

    def load_state_dict(self, state: int) -> None:
        """Go there."""
        self.given = state


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_resuming_streams(workers: int) -> None:
    """A new loader delivers the rest, and then whole epochs."""
    whole = described(list(DataLoader(Share(), batch_size=2, num_workers=workers)))
    for reached in (0, 1, 4):
        loader = DataLoader(Share(), batch_size=2, num_workers=workers)
        batches: Iterator[Any] = iter(loader)
        for _ in range(reached):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        rest = described(list(batches))
        resumed = DataLoader(Share(), batch_size=2, num_workers=workers)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert described(list(resumed)) == rest
        assert described(list(resumed)) == whole


class Damaged(Share):
    """Raises at element 6, and its generator ends."""

    def __iter__(self) -> Iterator[int]:
        for number in super().__iter__():
            if number == 6:
                raise ValueError("it is damaged")
            yield number


def halves(rows: list[int]) -> list[int]:
    """Divide by 2 what is not below 2."""
    if 0 in rows or 8 in rows:
        raise ValueError("it can't be divided")
    return [row // 2 for row in rows]


@pytest.mark.parametrize("dataset", [Share, Damaged])
def test_resuming_streams_after_errors(dataset: Callable[[], Any]) -> None:
    """An error is in the place of a batch: a new loader delivers what came after it, also after a first one."""
    whole = going_on(iter(DataLoader(dataset(), batch_size=2, num_workers=1, collate_fn=halves)))
    for reached in (1, 2, 4):
        loader = DataLoader(dataset(), batch_size=2, num_workers=1, collate_fn=halves)
        batches: Iterator[Any] = iter(loader)
        for _ in range(reached):
            tried(partial(next, batches))
        state = json.loads(json.dumps(loader.state_dict()))
        resumed = DataLoader(dataset(), batch_size=2, num_workers=1, collate_fn=halves)
        resumed.load_state_dict(state)
        assert going_on(iter(resumed)) == (whole[reached:] or whole)  # after the last one the next epoch begins


class Numbers(IterableDataset[int]):
    """Integers; it saves its position, and begins again after its end."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 5:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self) -> int:
        """Return where it is."""
        return self.at

    def load_state_dict(self, state: int) -> None:
        """Go there."""
        self.at = state


def test_a_batch_that_is_not_full_ends_its_stream() -> None:
    """A state after a worker's last batch has its end, though the dataset's own state is that of a beginning."""
    loader = DataLoader(Numbers(), batch_size=3, num_workers=2)
    batches: Iterator[Any] = iter(loader)
    assert [next(batches).tolist() for _ in range(3)] == [[1, 2, 3], [1, 2, 3], [4, 5]]
    resumed = DataLoader(Numbers(), batch_size=3, num_workers=2)
    resumed.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in batches] == [[4, 5]]
    assert loader.state_dict() == DataLoader(Numbers(), batch_size=3, num_workers=2).state_dict()
    assert [batch.tolist() for batch in first(resumed)] == [[4, 5]]


class Large(IterableDataset[Any]):
    """Large elements, of which each worker has some."""

    def __iter__(self) -> Iterator[Any]:
        info: Any = get_worker_info()
        return (torch.full((250_000,), 10.0 * info.id + number) for number in range(4))


def test_memory_that_is_held_takes_no_turn() -> None:
    """After an error of `memory` the same stream is the next one, so the order stays."""
    loader = DataLoader(Large(), batch_size=None, num_workers=2, memory="6MB")
    batches: Iterator[Any] = iter(loader)
    held: list[Any] = []
    found: list[int] = []
    errors = 0
    while len(found) < 8:
        try:
            held.append(next(batches))
            found.append(int(held[-1][0]))
        except UsageError:
            errors += 1
            held.clear()
    assert errors
    assert found == [0, 10, 1, 11, 2, 12, 3, 13]


def test_streams_need_as_many_workers() -> None:
    """A stream is one worker's, so a state inside of some needs as many."""
    loader = DataLoader(Share(), num_workers=2)
    batches: Iterator[Any] = iter(loader)
    next(batches)
    with pytest.raises(StateError, match="of 2 streams, one for each worker, and num_workers is 1"):
        DataLoader(Share(), num_workers=1).load_state_dict(loader.state_dict())
