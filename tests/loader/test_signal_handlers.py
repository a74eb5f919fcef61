"""`next` raises the exception of a signal handler at any moment, and no batch is lost."""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock._caught import raised_by_handler, waited
from penstock._loader import _iterator
from penstock._loader._progress import IndexedProgress
from tests.dataset.functions import keep
from tests.loader.sent_functions import counted, is_kept, row
from tests.places import place_of
from tests.profiles import IS_LONG
from tests.ticks import KINDS, Tick, Ticks, chained
from tests.ticks import ticking as ticking

SIGNALS = 1000 if IS_LONG else 50
NEXT = ps.LoaderIterator.__next__.__code__


DATASETS: dict[str, Callable[[], ps.Dataset[Any]]] = {
    "plain": lambda: ps.range(240, seed=1).shuffle().map(row).batch(4),
    "in order": lambda: ps.range(300, seed=1).map(row).filter(is_kept).window_shuffle(16).batch(4),
    "skipping": lambda: ps.range(240, seed=1).map(row, on_error="skip").batch(4),
    "replacing": lambda: ps.range(240, seed=1).map(row, on_error=ps.Substitute()).batch(4),
}


def read(loader: ps.Loader[Any], ticks: Ticks, *, out_of_order: bool) -> tuple[list[list[int]], int]:
    """Return an epoch's batches, and the number of caught exceptions."""
    found: list[list[int]] = []
    caught = 0
    iterator = iter(loader)
    before = loader.state_dict()["step"]
    ticks.start(NEXT)
    while True:
        try:
            found.extend(batch["number"].tolist() for batch in iterator)
            break
        except KINDS as error:
            caught += chained(error)
            assert out_of_order or loader.state_dict()["step"] == before + len(found)
    ticks.stop()
    return found, caught


# An exception between `open` and `with` leaves a control group's file to its destructor, which closes it. As an error,
# its warning would be handled by Python code, in which the next exception of a handler is discarded.
@pytest.mark.filterwarnings("ignore:unclosed file <_io.TextIOWrapper name='/(proc|sys)/:ResourceWarning")
@pytest.mark.longer
@pytest.mark.parametrize(
    ("dataset", "kind", "place"),
    [
        place_of("inline", "plain", KeyboardInterrupt),
        place_of("inline", "in order", Tick),
        place_of("threads", "replacing", TimeoutError),
        place_of("threads", "in order", KeyboardInterrupt),
        place_of("processes", "skipping", TimeoutError),
        place_of("isolated", "plain", Tick),
        place_of("isolated threads", "in order", TimeoutError),
        place_of("out of order", "replacing", KeyboardInterrupt),
    ],
)
def test_no_batch_is_lost(
    dataset: str,
    place: dict[str, Any],
    kind: type[BaseException],
    ticking: Callable[[type[BaseException], int], Ticks],
) -> None:
    """Every epoch has each batch once, and no exception of a handler counts as an element's error."""
    ticks = ticking(kind, 5)
    is_unordered = not place.get("ordered", True)
    with ps.Loader(DATASETS[dataset]()) as reference, ps.Loader(DATASETS[dataset](), **place) as loader:
        caught = 0
        while caught < SIGNALS:
            found, more = read(loader, ticks, out_of_order=is_unordered)
            caught += more
            wanted = [batch["number"].tolist() for batch in reference]
            assert (sorted(found), is_unordered) == (sorted(wanted), True) or found == wanted
            assert not loader.replaced()
        assert caught == ticks.raised


@pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes here")
@pytest.mark.parametrize(
    ("steps", "place"),
    [
        place_of("threads", "rows"),
        place_of("threads", "fold"),
        place_of("processes", "fold"),
        place_of("isolated", "rows"),
    ],
)
def test_work_goes_on_while_time_outs_end_waits(
    steps: str, place: dict[str, Any], tmp_path: Path, ticking: Callable[[type[BaseException], int], Ticks]
) -> None:
    """Exceptions of handlers in waits discard no work: each element is computed once, however long a batch takes."""
    gate, calls = tmp_path / "gate", tmp_path / "calls"
    os.mkfifo(gate)
    rows = ps.range(8).map(partial(counted, str(tmp_path)))
    ticks = ticking(Tick, 5)
    with ps.Loader((rows.filter(keep) if steps == "fold" else rows).batch(4), **place) as loader:
        batches = iter(loader)
        ticks.start(waited.__code__)
        ended = 0  # waits, since the first element was begun
        while ended < 10:
            with pytest.raises(Tick):
                next(batches)
            ended += calls.exists()
        ticks.stop()
        writer = os.open(gate, os.O_RDWR)
        try:
            found = np.concatenate(list(batches))
        finally:
            os.close(writer)
    assert found.tolist() == sorted(calls.read_bytes()) == [*range(8)]


def test_a_second_signal_before_the_first_exception_is_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call delivers a batch that the stream returned when two signals came in a row."""
    signals = iter([1])
    count, examine = _iterator.Clock.count, raised_by_handler

    def interrupted_count(clock: _iterator.Clock, *seconds: float) -> None:
        if clock.batches == 2 and next(signals, 0):
            raise Tick
        count(clock, *seconds)

    def interrupted_examination(error: BaseException) -> bool:
        monkeypatch.setattr(_iterator, "raised_by_handler", examine)
        raise Tick from error

    monkeypatch.setattr(_iterator.Clock, "count", interrupted_count)
    monkeypatch.setattr(_iterator, "raised_by_handler", interrupted_examination)
    found: list[list[int]] = []
    with ps.Loader(ps.range(24).batch(4)) as loader:
        batches = iter(loader)
        with pytest.raises(Tick):
            found.extend(batch.tolist() for batch in batches)
        found.extend(batch.tolist() for batch in batches)
    assert found == [list(range(start, start + 4)) for start in range(0, 24, 4)]


def test_a_batch_that_was_counted_when_a_signal_came_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt between a batch's count and the end of `next` takes the count back."""
    signals = iter([1])
    count = IndexedProgress.delivered

    def interrupted(progress: IndexedProgress, token: Any, of_pass: object) -> None:
        count(progress, token, of_pass)
        if progress.next_step == 3 and next(signals, 0):
            raise KeyboardInterrupt

    monkeypatch.setattr(IndexedProgress, "delivered", interrupted)
    found: list[list[int]] = []
    with ps.Loader(ps.range(24).batch(4)) as loader:
        batches = iter(loader)
        with pytest.raises(KeyboardInterrupt):
            found.extend(batch.tolist() for batch in batches)
        assert loader.state_dict()["step"] == 2
        found.extend(batch.tolist() for batch in batches)
    assert found == [list(range(start, start + 4)) for start in range(0, 24, 4)]
