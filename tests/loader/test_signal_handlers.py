"""A signal's handler that raises, at any moment of `next`: `next` raises its exception, and no batch is lost."""

import gc
import random  # noqa: TID251 - the moments at which signals arrive
import signal
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any

import numpy as np
import pytest

import penstock as ps

PLACES: dict[str, dict[str, Any]] = {
    "inline": {},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
    "isolated": {"isolated": True},
    "isolated threads": {"isolated": True, "num_workers": 2, "workers": "threads"},
    "out of order": {"num_workers": 2, "workers": "threads", "ordered": False},
}
SIGNALS = 100
MAX_SECONDS = 0.006
NEXT = ps.LoaderIterator.__next__.__code__


class Tick(Exception):  # noqa: N818 - what a timer raises
    """The program's own."""


KINDS = (Tick, TimeoutError, KeyboardInterrupt)


class Ticks:
    """A handler that raises inside of `next`, and has the next signal come at a random moment."""

    def __init__(self, kind: type[BaseException], seed: int) -> None:
        self.raised = 0
        self._kind = kind
        self._chance = random.Random(seed)
        self._is_on = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Raise, if the signal has interrupted `next`."""
        del number
        self._arm()
        discarding = {getattr(callback, "__code__", None) for callback in gc.callbacks}
        while frame is not None and frame.f_code is not NEXT:
            if frame.f_code in discarding:
                return  # Python discards what is raised in a callback of the collector
            frame = frame.f_back
        if frame is not None and self._is_on:
            self.raised += 1
            raise self._kind(self.raised)

    def start(self) -> None:
        """Begin."""
        self._is_on = True
        self._arm()

    def stop(self) -> None:
        """Raise nothing any more."""
        self._is_on = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _arm(self) -> None:
        if self._is_on:
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


def row(number: int) -> dict[str, Any]:
    """Return an element that takes a moment."""
    return {"number": number, "squares": np.arange(number, number + 100) ** 2}


def is_kept(element: Any) -> bool:
    """Return whether a filter keeps an element."""
    return bool(element["number"] % 5 != 0)


def plain() -> ps.Dataset[Any]:
    """Return a dataset with positions."""
    return ps.range(240, seed=1).shuffle().map(row).batch(4)


def folded() -> ps.Dataset[Any]:
    """Return a dataset that is read in order."""
    return ps.range(300, seed=1).map(row).filter(is_kept).window_shuffle(16).batch(4)


def skipping() -> ps.Dataset[Any]:
    """Return a dataset of which a step leaves out what fails."""
    return ps.range(240, seed=1).map(row, on_error="skip").batch(4)


def replacing() -> ps.Dataset[Any]:
    """Return a dataset of which a step replaces what fails."""
    return ps.range(240, seed=1).map(row, on_error=ps.Substitute()).batch(4)


def chained(error: BaseException | None) -> int:
    """Return how many exceptions of handlers one holds: a second one comes while the first is on its way."""
    return 0 if error is None else isinstance(error, KINDS) + chained(error.__context__)


def read(loader: ps.Loader[Any], ticks: Ticks, *, out_of_order: bool) -> tuple[list[list[int]], int]:
    """Return an epoch's batches, and how many exceptions were caught on the way."""
    found: list[list[int]] = []
    caught = 0
    iterator = iter(loader)
    before = loader.state_dict()["step"]
    ticks.start()
    while True:
        try:
            found.extend(batch["number"].tolist() for batch in iterator)
            break
        except KINDS as error:
            caught += chained(error)
            assert out_of_order or loader.state_dict()["step"] == before + len(found)
    ticks.stop()
    return found, caught


@pytest.mark.parametrize("kind", [Tick, TimeoutError, KeyboardInterrupt])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dataset", [plain, folded, skipping, replacing])
@pytest.mark.each_value
def test_no_batch_is_lost(
    dataset: Callable[[], ps.Dataset[Any]],
    place: str,
    kind: type[BaseException],
    ticking: Callable[[type[BaseException], int], Ticks],
) -> None:
    """All batches of all epochs come, each once, and no exception of a handler counts as one of the dataset's."""
    ticks = ticking(kind, 5)
    is_unordered = not PLACES[place].get("ordered", True)
    with ps.Loader(dataset()) as reference, ps.Loader(dataset(), **PLACES[place]) as loader:
        caught = 0
        while caught < SIGNALS:
            found, more = read(loader, ticks, out_of_order=is_unordered)
            caught += more
            wanted = [batch["number"].tolist() for batch in reference]
            assert (sorted(found), is_unordered) == (sorted(wanted), True) or found == wanted
            assert not loader.replaced()
        # About one exception of a thousand does not come out of `next`; why isn't known yet. No batch is lost by it.
        assert 0.97 * ticks.raised <= caught <= ticks.raised
