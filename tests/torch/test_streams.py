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
from tests.torch.conformance.datasets import Counting, OnlyNext, OwnIterator, Rewinding, Sized, Streamed
from tests.torch.conformance.outcome import Loader, described, going_on, tried
from tests.torch.conformance.untyped import torch


def lists(batches: Any) -> list[list[int]]:
    """Return batches as lists."""
    return [batch.tolist() for batch in batches]


def whole(dataset: object, num_workers: int = 1, **given: Any) -> Callable[[Loader], object]:
    """Return the program that goes through a dataset, and past errors."""
    return lambda loader: going_on(iter(loader(dataset, num_workers=num_workers, **given)))


def first(dataset: object, num_workers: int = 1, **given: Any) -> Callable[[Loader], object]:
    """Return the program that goes through the first batches, of a loader that may have no end."""

    def run(loader: Loader) -> list[Any]:
        return list(islice(loader(dataset, num_workers=num_workers, **given), 20))

    return run


def sized(loader: Loader) -> object:
    """Yield more elements than the reported length."""
    made = loader(Sized(9, 3), num_workers=1, batch_size=None)
    return len(made), list(made)


def epochs(loader: Loader) -> object:
    """Go through two epochs with persistent workers, the first to its middle."""
    made = loader(Counting(9), num_workers=2, batch_size=2, persistent_workers=True)
    return next(iter(made)), list(made), list(made)


PROGRAMS: dict[str, Callable[[Loader], object]] = {
    "shared": whole(Counting(11), 2, batch_size=2),
    "dropped": whole(Counting(11), 2, batch_size=2, drop_last=True),
    "repeated": whole(Counting(5, shares=False), 2, batch_size=2),
    "uneven": whole(Streamed(lambda worker, workers: range(100 * worker, 105 * worker + 1)), 2),
    "empty": whole(Counting(0)),
    "own": whole(Counting(5), batch_size=2, collate_fn=tuple),
    "its own iterator": first(OwnIterator(), 2, batch_size=2),
    "its own iterator, single": first(OwnIterator(), batch_size=None),
    "rewinding": first(Rewinding(), batch_size=2),
    "only next": whole(OnlyNext(), batch_size=2),
    "drawing": whole(
        Streamed(lambda worker, workers: ((number, torch.rand(2)) for number in range(5))), 2, batch_size=2
    ),
    "failing": whole(Streamed(lambda worker, workers: (6 // number for number in [1, 2, 3, 0])), batch_size=2),
    "going on": whole(Streamed(lambda worker, workers: map((6).__floordiv__, [1, 2, 0, 3]))),  # after an exception
    "sized": sized,
    "epochs": epochs,
}


# Others have the same streams in batches, whole streams of two workers, and collate functions.
LONG = {"its own iterator, single", "repeated", "own"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in PROGRAMS]
)
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


class Stateful(Dying):
    """A dataset that can save its state."""

    def state_dict(self) -> dict[str, int]:
        """Return where it is."""
        return {"begin": self.begin}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go there."""
        self.begin = state["begin"]


def test_a_death(tmp_path: Path) -> None:
    """A stream that is lost with its worker raises torch's RuntimeError; if the dataset has a state, none is lost."""
    batches = iter(DataLoader(Dying(tmp_path), num_workers=1, batch_size=2))
    assert lists(islice(batches, 2)) == [[0, 1], [2, 3]]
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly"):
        next(batches)
    assert list(batches) == []
    (tmp_path / "died").unlink()
    assert lists(DataLoader(Stateful(tmp_path), num_workers=1, batch_size=2)) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def refuse_three(element: Any) -> Any:
    """Return an element, unless it is 3."""
    assert int(element[-1]) != 3
    return element


def test_batches_that_follow_one_without_room(tmp_path: Path) -> None:
    """They are delivered, though the worker has taken them from the stream before the large one gets more memory."""
    taken = tmp_path / "taken"
    os.mkfifo(taken)

    def one_large(*_: int) -> Iterator[Any]:
        for number in range(6):
            if number == 3:
                taken.write_bytes(b"")  # waits for the program, which then requests the large one
            yield torch.full((1 << 28 if number == 2 else 1,), number, dtype=torch.uint8)

    batches = iter(DataLoader(Streamed(one_large), batch_size=None, num_workers=1, collate_fn=refuse_three))
    found = [int(next(batches)[0]) for _ in range(2)]
    taken.read_bytes()
    found.append(int(next(batches)[-1]))
    with pytest.raises(AssertionError):
        next(batches)
    assert [*found, *(int(batch[-1]) for batch in batches)] == [0, 1, 2, 4, 5]


class Share(IterableDataset[int]):
    """Each worker's share of some integers; it can save its state."""

    damaged = -1

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        begin, self.given = self.given, 0
        for number in range(worker, 13 - worker, workers)[begin:]:
            begin += 1
            self.given = begin
            if number == self.damaged:
                raise ValueError("it is damaged")
            yield number
        self.given = 0

    def state_dict(self) -> int:
        """Return where it is."""
        return self.given

    def load_state_dict(self, state: int) -> None:
        """Go there."""
        self.given = state


class Damaged(Share):
    """Raises at element 6, and its generator ends."""

    damaged = 6


def halves(rows: list[int]) -> list[int]:
    """Divide by 2 what is not below 2."""
    if 0 in rows or 8 in rows:
        raise ValueError("it can't be divided")
    return [row // 2 for row in rows]


def resumed_after(reached: int, dataset: Callable[[], Any], **given: Any) -> Any:
    """Return a loader that resumes after some batches or errors of an epoch."""
    loader = DataLoader(dataset(), batch_size=2, **given)
    batches: Iterator[Any] = iter(loader)
    for _ in range(reached):
        tried(partial(next, batches))
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = DataLoader(dataset(), batch_size=2, **given)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    return resumed


def test_resuming_streams() -> None:
    """A new loader delivers the rest, also where one stream is at its end, and then whole epochs."""
    all_batches = lists(DataLoader(Share(), batch_size=2, num_workers=2))
    for reached in (1, 4):
        resumed = resumed_after(reached, Share, num_workers=2)
        assert (lists(resumed), lists(resumed)) == (all_batches[reached:], all_batches)


@pytest.mark.parametrize(("dataset", "places"), [(Share, (5,)), (Damaged, (1, 2, 4))])
def test_resuming_streams_after_errors(dataset: Callable[[], Any], places: tuple[int, ...]) -> None:
    """An error is in the place of a batch: a new loader delivers what came after it, also after a first one."""
    given: dict[str, Any] = {"num_workers": 1, "collate_fn": halves}
    all_batches = going_on(iter(DataLoader(dataset(), batch_size=2, **given)))
    for reached in places:
        resumed = resumed_after(reached, dataset, **given)
        assert going_on(iter(resumed)) == (all_batches[reached:] or all_batches)  # after the last the next epoch begins


class FromItsEnd(Share):
    """Integers; it saves its position, and begins again after its end."""

    def __iter__(self) -> Iterator[int]:
        while self.given < 5:
            self.given += 1
            yield self.given
        self.given = 0


def test_a_batch_that_is_not_full_ends_its_stream() -> None:
    """A state after a worker's last batch has its end, though the dataset's own state is that of a beginning.

    A stream is one worker's, so a state inside of some needs as many.
    """
    loader = DataLoader(FromItsEnd(), batch_size=3, num_workers=2)
    batches: Iterator[Any] = iter(loader)
    assert lists(islice(batches, 3)) == [[1, 2, 3], [1, 2, 3], [4, 5]]
    state = loader.state_dict()
    resumed = DataLoader(FromItsEnd(), batch_size=3, num_workers=2)
    resumed.load_state_dict(state)
    assert lists(batches) == [[4, 5]]
    assert loader.state_dict() == DataLoader(FromItsEnd(), batch_size=3, num_workers=2).state_dict()
    assert lists(islice(resumed, 20)) == [[4, 5]]
    with pytest.raises(StateError, match="of 2 streams, one for each worker, and num_workers is 1"):
        DataLoader(FromItsEnd(), batch_size=3, num_workers=1).load_state_dict(state)


def test_memory_that_is_held_takes_no_turn() -> None:
    """After an error of `memory` the same stream is the next one, so the order stays."""
    large = Streamed(lambda worker, workers: (torch.full((250_000,), 10.0 * worker + number) for number in range(4)))
    batches: Iterator[Any] = iter(DataLoader(large, batch_size=None, num_workers=2, memory="6MB"))
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
