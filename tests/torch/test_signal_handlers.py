"""A signal's handler that raises, at any moment of `next`: `next` raises its exception, and no batch is lost."""

import gc
import random
import signal
from collections.abc import Callable, Generator, Iterator
from types import CodeType, FrameType
from typing import Any

import pytest
from torch.utils.data import IterableDataset, RandomSampler

from penstock.torch import DataLoader
from tests.torch.conformance.datasets import Numbers
from tests.torch.conformance.untyped import torch
from tests.torch.test_state import own

SIGNALS = 60
MAX_SECONDS = 0.006
ROWS = 120
FAILING = 31


class Tick(Exception):
    """The program's own."""


KINDS = (Tick, TimeoutError, KeyboardInterrupt)


class Ticks:
    """A handler that raises inside of `next`, and has the next signal come at a random moment."""

    def __init__(self, kind: type[BaseException], seed: int) -> None:
        self.raised = 0
        self._kind = kind
        self._chance = random.Random(seed)
        self._inside: CodeType | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Raise, if the signal has interrupted `next`."""
        del number
        self._arm()
        discarding = {getattr(callback, "__code__", None) for callback in gc.callbacks}
        while frame is not None and frame.f_code is not self._inside:
            if frame.f_code in discarding:
                return  # Python discards what is raised in a callback of the collector
            frame = frame.f_back
        if frame is not None and self._inside is not None:
            self.raised += 1
            raise self._kind(self.raised)

    def start(self, inside: CodeType) -> None:
        """Begin."""
        self._inside = inside
        self._arm()

    def stop(self) -> None:
        """Raise nothing any more."""
        self._inside = None
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _arm(self) -> None:
        if self._inside is not None:
            signal.setitimer(signal.ITIMER_REAL, self._chance.uniform(1e-4, MAX_SECONDS))


@pytest.fixture
def ticking() -> Generator[Callable[[type[BaseException], int], Ticks]]:
    """Install handlers, and put back the one that was there."""
    before = signal.getsignal(signal.SIGALRM)
    made: list[Ticks] = []

    def install(kind: type[BaseException], seed: int) -> Ticks:
        ticks = Ticks(kind, seed)
        made.append(ticks)
        signal.signal(signal.SIGALRM, ticks)
        return ticks

    yield install
    for each in made:
        each.stop()
    signal.signal(signal.SIGALRM, before)


class Rows(Numbers):
    """Elements that take a moment."""

    def __getitem__(self, index: int) -> Any:
        return torch.arange(index, index + 2000).double().sin().round(decimals=3), index


class ManyRows(Rows):
    """Elements that are asked for by the batch."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return several."""
        return [self[index] for index in indices]


class FailingRows(Rows):
    """Elements of which one fails."""

    def __getitem__(self, index: int) -> Any:
        if index == FAILING:
            raise LookupError(f"no element {index}")
        return super().__getitem__(index)


class Stream(IterableDataset[Any]):
    """A stream in each worker."""

    def __iter__(self) -> Iterator[Any]:
        worker: Any = torch.utils.data.get_worker_info()
        yield from map(Rows(ROWS).__getitem__, range(worker.id, ROWS, worker.num_workers))


class FailingStream(Stream):
    """A stream whose batches fail at one element, which is not its last."""

    def __iter__(self) -> Iterator[Any]:
        return map(self._checked, super().__iter__())

    def _checked(self, element: Any) -> Any:
        if element[1] == FAILING:
            raise LookupError(f"no element {FAILING}")
        return element


def shuffled() -> Any:
    """Return a sampler that draws the same in each loader."""
    return RandomSampler(range(ROWS), generator=own())


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "rows": lambda: DataLoader(Rows(ROWS), 4, sampler=shuffled(), num_workers=2),
    "persistent": lambda: DataLoader(Rows(ROWS), 4, sampler=shuffled(), num_workers=2, persistent_workers=True),
    "at once": lambda: DataLoader(ManyRows(ROWS), 4, sampler=shuffled(), num_workers=2, persistent_workers=True),
    "single": lambda: DataLoader(Rows(ROWS), None, sampler=shuffled(), num_workers=2, persistent_workers=True),
    "timeout": lambda: DataLoader(
        Rows(ROWS), 4, sampler=shuffled(), num_workers=2, persistent_workers=True, timeout=60
    ),
    "out of order": lambda: DataLoader(
        Rows(ROWS), 4, sampler=shuffled(), num_workers=2, persistent_workers=True, in_order=False
    ),
    "failing": lambda: DataLoader(FailingRows(ROWS), 4, sampler=shuffled(), num_workers=2, persistent_workers=True),
    "streams": lambda: DataLoader(Stream(), 4, num_workers=2, persistent_workers=True),
    "failing streams": lambda: DataLoader(FailingStream(), 4, num_workers=2, persistent_workers=True),
}


def chained(error: BaseException | None) -> int:
    """Return how many exceptions of handlers one holds: a second one comes while the first is on its way."""
    return 0 if error is None else isinstance(error, KINDS) + chained(error.__context__)


def code_of_next(batches: object) -> CodeType:
    """Return the code that an iterator's `next` runs."""
    kind: Any = type(batches)
    code: CodeType = kind.__next__.__code__
    return code


def read(loader: DataLoader[Any], ticks: Ticks | None) -> tuple[list[Any], int]:
    """Return what an epoch gives, errors in their places, and how many exceptions of handlers were caught."""
    found: list[Any] = []
    caught = 0
    batches: Any = iter(loader)
    if ticks is not None:
        ticks.start(code_of_next(batches))
    while True:
        try:
            found.extend(torch.as_tensor(numbers).flatten().tolist() for _, numbers in batches)
            break
        except KINDS as error:
            caught += chained(error)
        except LookupError:
            found.append("an error")
    if ticks is not None:
        ticks.stop()
    return found, caught


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.each_value
def test_no_batch_is_lost(
    name: str, kind: type[BaseException], ticking: Callable[[type[BaseException], int], Ticks]
) -> None:
    """All batches and errors of all epochs come, each once, and what a handler raises comes once."""
    ticks = ticking(kind, 5)
    loader, reference = LOADERS[name](), LOADERS[name]()
    caught = 0
    while caught < SIGNALS:
        found, more = read(loader, ticks)
        caught += more
        wanted, _ = read(reference, None)
        if name == "out of order":
            found, wanted = sorted(found), sorted(wanted)
        assert found == wanted
    # Python forgets what is raised where it calls a destructor.
    assert 0.97 * ticks.raised <= caught <= ticks.raised


@pytest.mark.parametrize("name", ["persistent", "streams"])
def test_a_state_counts_what_was_delivered(name: str, ticking: Callable[[type[BaseException], int], Ticks]) -> None:
    """After a handler's exception the state is that after the batches before it."""
    ticks = ticking(Tick, 6)
    loader = LOADERS[name]()
    caught = 0
    while caught < SIGNALS // 2:
        batches: Any = iter(loader)
        states = [position(loader, batches)]
        ticks.start(code_of_next(batches))
        while True:
            try:
                states.extend(position(loader, batches) for _ in batches)
                break
            except Tick as error:
                caught += chained(error)
                assert position(loader, batches) == states[-1]
        ticks.stop()


def position(loader: DataLoader[Any], batches: Any) -> Any:
    """Return how many batches a loader's state counts; of streams without one, how many the iterator's places count."""
    if hasattr(batches, "places"):
        return sum(place.number - place.is_over for place in batches.places.streams)
    return loader.state_dict().get("reached")
