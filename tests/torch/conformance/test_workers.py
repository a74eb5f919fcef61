"""Programs with workers: what can be seen of torch's loader holds for ours."""

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Subset

from penstock.torch import DataLoader
from tests.equivalence.decisions import random_decisions
from tests.torch.conformance.datasets import AtOnce, Counting, Failing, LeavesOut, Made, Numbers, WorkerInfo
from tests.torch.conformance.outcome import Loader, Raised, described, going_on
from tests.torch.conformance.untyped import torch


def failing(number: object) -> None:
    """Fail at the start of a worker."""
    raise ValueError(f"worker {number} can't begin")


def late(index: int) -> int:
    """Raise after many indices."""
    if index in {1201, 1202, 1400}:
        raise ValueError(f"no item {index}")
    return index


class Waiting(Counting):
    """Lets worker 0 wait until a pipe with a name is closed."""

    def __init__(self, pipe: Path) -> None:
        super().__init__(10)
        self.pipe = pipe

    def __iter__(self) -> Iterator[int]:
        numbers = super().__iter__()
        if next(numbers) == 0:
            self.pipe.read_bytes()
        yield from numbers


class DrawingLate:
    """A sampler that draws from torch's global generator for each index."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(20):
            yield int(torch.randint(400, ()))


def first_of_two(loader: Loader, **given: Any) -> object:
    """Leave an epoch early, then go through one."""
    made, first = loader(Numbers(20), num_workers=2, **given), None
    for batch in made:
        first = batch
        break
    return first, list(made), torch.rand(1)


def epochs(loader: Loader, **given: Any) -> object:
    """Go through two epochs."""
    torch.manual_seed(4)
    made = loader(Numbers(17), num_workers=2, batch_size=3, shuffle=True, **given)
    return len(made), [list(made) for _ in range(2)], torch.rand(1)


def encoded(index: int) -> Any:
    """Return the result of a module's weight, which can't be sent while gradients are recorded."""
    return index * torch.nn.Parameter(torch.ones(2))


def without_gradients(loader: Loader) -> object:
    """Load while no gradients are recorded, in both ways."""
    found: list[object] = []
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found.extend(loader(Made(6, encoded), num_workers=1, batch_size=3))
    return found


def whole(dataset: object, num_workers: int = 1, **given: Any) -> Callable[[Loader], object]:
    """Return the program that goes through a dataset, and past errors."""
    return lambda loader: going_on(iter(loader(dataset, num_workers=num_workers, **given)))


def drawing(dataset: object, num_workers: int, **given: Any) -> Callable[[Loader], object]:
    """Return the program that draws from the generator between batches, as a training does; its sampler draws, too."""

    def run(loader: Loader) -> object:
        batches = loader(dataset, num_workers=num_workers, sampler=DrawingLate(), **given)
        return [(batch, torch.rand(1)) for batch in batches]

    return run


PROGRAMS: dict[str, Callable[[Loader], object]] = {
    "epochs": epochs,
    "persistent": lambda loader: epochs(loader, persistent_workers=True),
    "left early": first_of_two,
    "left early, persistent": lambda loader: first_of_two(loader, persistent_workers=True),
    "batches of tuples at once": whole(AtOnce(), batch_sampler=[(1, 2), (3,)]),
    "not as many at once": whole(LeavesOut(400), 2, batch_size=2),
    "a subset that is not as many": whole(Subset(LeavesOut(400), range(300)), batch_size=4),
    "no more at once": whole(LeavesOut(), sampler=[1, 2, 3, 4]),
    "an empty batch": whole(Numbers(), batch_sampler=[[1], [], [2]]),
    "an empty batch, collated": whole(Numbers(), batch_sampler=[[1], []], collate_fn=tuple),
    "no lists": whole(Numbers(), batch_sampler=[1, [2], 3]),
    "iterators as batches": lambda loader: list(loader(Numbers(), num_workers=1, batch_sampler=[range(2), range(3)])),
    "nothing": whole(Numbers(), 2, sampler=[]),
    "without gradients": without_gradients,
    "drawing": drawing(Numbers(400), 2, batch_size=3),
    "drawing, single": drawing(Numbers(400), 1, batch_size=None),
    "drawing less": drawing(AtOnce(), 2, batch_size=3, prefetch_factor=1),
    "drawing more": drawing(Numbers(400), 2, batch_size=2, prefetch_factor=3),
    "worker info": whole(WorkerInfo(), 2, batch_size=3),
    "errors": whole(Failing(), sampler=[0, 1, 2, 3, 4, 5, 7, 6, 8]),
    "errors in batches": whole(Failing(), 2, batch_size=2),
    "errors among small batches": whole(Made(1700, late), 2, batch_size=4),
    "two iterators": lambda loader: [
        list(zip(iter(made), iter(made), strict=True)) for made in [loader(Numbers(4), num_workers=1, batch_size=2)]
    ],
}


# Others have the same persistent workers, fewer rows, empty batches, errors, and draws at other times.
LONG = {
    "left early, persistent",
    "a subset that is not as many",
    "no more at once",
    "an empty batch, collated",
    "drawing, single",
    "drawing less",
    "drawing more",
    "errors",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in PROGRAMS]
)
def test_programs(name: str) -> None:
    """The program comes to what it comes to with torch's loader, the order and torch's generator included."""
    results: list[object] = []
    for loader in (DataLoader, TorchLoader):
        torch.manual_seed(3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results.append((described(PROGRAMS[name](loader)), torch.get_rng_state().tolist()))
    assert results[0] == results[1]


def test_tensors_as_indices() -> None:
    """A sampler may give any objects; of tensors torch's loader leaves a thread behind."""
    found = DataLoader(Numbers(), num_workers=1, sampler=torch.arange(5), batch_size=2)
    assert [batch.tolist() for batch in found] == [[0, 1], [2, 3], [4]]


def test_an_error_of_worker_init_fn() -> None:
    """An exception of worker_init_fn is raised once, as by torch; `timeout` begins after the start of the workers."""
    for timeout in (0, 0.001):
        batches = iter(DataLoader(Numbers(), num_workers=1, worker_init_fn=failing, timeout=timeout))
        with pytest.raises(ValueError, match=r"Caught ValueError in DataLoader worker process 0\.(.|\n)*can't begin"):
            next(batches)
        assert list(batches) == []


class Rebuilt(list[int]):
    """A batch that can't be unpickled if it holds 40."""

    def __reduce__(self) -> Any:
        return rebuilt, (list(self),)


def rebuilt(numbers: list[int]) -> Rebuilt:
    """Return a batch as it is unpickled."""
    if 40 in numbers:
        raise ValueError("can't be unpickled")
    return Rebuilt(numbers)


def test_a_batch_that_can_not_be_unpickled_loses_no_other() -> None:
    """Its error comes in its place, also if its job has several batches, and a state counts it as delivered."""
    with random_decisions(3):
        loader = DataLoader(Numbers(80), 2, num_workers=1, collate_fn=Rebuilt)
        batches: Iterator[Any] = iter(loader)
        assert [next(batches)[0] for _ in range(20)] == list(range(0, 40, 2))
        with pytest.raises(ValueError, match="can't be unpickled"):
            next(batches)
        assert loader.state_dict()["reached"] == 21
        assert [batch[0] for batch in batches] == list(range(42, 80, 2))


def test_an_error_shows_the_functions_of_the_user() -> None:
    """The text of a worker's exception has one frame of Penstock's and then the user's, as its traceback here."""
    with pytest.raises(ValueError, match="can't begin") as caught:
        next(iter(DataLoader(Numbers(), num_workers=1, batch_size=2, collate_fn=failing)))
    assert len(caught.traceback) <= 3  # this function, and the two of `next`
    assert str(caught.value).count("/penstock/") == 1


def test_a_sampler_that_raises() -> None:
    """A sampler's exception comes in its place, after the batches before it, which torch drops."""
    indices = map([0, 1, 2, 3, 4, 5].__getitem__, range(1, 9))
    batches = iter(DataLoader(Numbers(), num_workers=1, sampler=indices, batch_size=2))
    assert [batch.tolist() for batch in (next(batches), next(batches))] == [[1, 2], [3, 4]]
    with pytest.raises(LookupError):
        next(batches)
    assert list(batches) == []


def test_no_prefetch() -> None:
    """Torch's loader makes nothing of a prefetch_factor of 0, or of a fraction; neither does ours."""
    with pytest.raises(AssertionError, match="prefetch_factor must be greater than 0"):
        iter(DataLoader(Numbers(), num_workers=1, prefetch_factor=0))
    fraction: Any = 1.5
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        iter(DataLoader(Numbers(), num_workers=1, prefetch_factor=fraction))


def test_in_no_order_a_slow_stream_delays_no_other(tmp_path: Path) -> None:
    """With in_order=False the batches of one worker come while another computes its first."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    loader = DataLoader(Waiting(pipe), batch_size=None, num_workers=2, in_order=False, timeout=60)
    numbers = iter(loader)
    assert [next(numbers) for _ in range(4)] == [3, 5, 7, 9]
    pipe.write_bytes(b"")
    assert list(numbers) == [2, 4, 6, 8]


def test_a_time_out_takes_no_turn(tmp_path: Path) -> None:
    """After a time-out the same stream is the next one, so the order stays."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    numbers = iter(DataLoader(Waiting(pipe), batch_size=None, num_workers=2, timeout=0.125))
    with pytest.raises(RuntimeError, match="timed out"):
        next(numbers)
    pipe.write_bytes(b"")
    assert [each for each in going_on(numbers) if not isinstance(each, Raised)] == [2, 3, 4, 5, 6, 7, 8, 9]


def test_tracebacks_have_the_lines_of_functions_that_are_sent_by_value() -> None:
    """They show the file and the text of the user's function, also of one that leaves the program."""

    def fail(rows: object) -> object:
        raise ValueError(f"no {rows}")

    def leave(rows: object) -> object:
        sys.exit(f"no {rows}")

    place = rf'  File "{re.escape(__file__)}", line \d+, in'
    with pytest.raises(ValueError, match=place + r" fail\n    raise ValueError"):
        next(iter(DataLoader(Numbers(), num_workers=1, collate_fn=fail)))
    with pytest.raises(RuntimeError, match=place + r" leave\n    sys\.exit(.*\n)*SystemExit: no \[0\]") as left:
        next(iter(DataLoader(Numbers(), num_workers=1, collate_fn=leave)))
    head, _, _ = str(left.value).partition("\nOriginal Traceback (most recent call last):\n")
    assert re.fullmatch(r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly: SystemExit was raised in it\.", head)
