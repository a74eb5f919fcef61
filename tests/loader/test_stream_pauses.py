"""A stream that pauses holds nothing back that is complete."""

import logging
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest

import penstock as ps
from tests.constants import SetConstant
from tests.places import in_places
from tests.promptness import PATIENCE_SECONDS
from tests.workers.processes.functions import same

BEFORE: Final = 20  # elements before the pause: no power of two, and less than a loader reads ahead


class Pausing:
    """Yields some numbers at once, and the others after a signal."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()

    def __iter__(self) -> Iterator[int]:
        yield from range(BEFORE)
        assert self.goes_on.wait(PATIENCE_SECONDS)
        yield from range(BEFORE, 2 * BEFORE)


def twice(number: int) -> list[int]:
    """Return a number two times."""
    return [number, number]


def unchanged(batch: object) -> object:
    """Return a batch."""
    return batch


def is_even(number: int) -> bool:
    """Return whether a number is even."""
    return number % 2 == 0


STEPS: Final[dict[str, tuple[Callable[[ps.Dataset[Any]], ps.Dataset[Any]], int]]] = {
    "elements": (lambda stream: stream, BEFORE),
    "elements of a function": (lambda stream: stream.map(same), BEFORE),
    "elements of a filter": (lambda stream: stream.filter(is_even), BEFORE // 2),
    "batches of one": (lambda stream: stream.batch(1), BEFORE),
    "batches": (lambda stream: stream.batch(5), BEFORE // 5),
    "a function above batches": (lambda stream: stream.map(same).batch(4).map(unchanged), BEFORE // 4),
    "rows of batches": (lambda stream: stream.batch(5).unbatch().batch(10), BEFORE // 10),
    "several of one": (lambda stream: stream.flat_map(twice).batch(8), 2 * BEFORE // 8),
}


@in_places("inline", "threads", "processes")
@pytest.mark.parametrize("steps", STEPS)
def test_what_is_complete_comes_before_the_stream_goes_on(steps: str, place: dict[str, Any]) -> None:
    """All batches of the elements before the pause come during it."""
    stream = Pausing()
    build, count = STEPS[steps]
    with ps.Loader(build(ps.stream(stream)), **place) as loader:
        batches = iter(loader)
        found = [next(batches) for _ in range(count)]
        stream.goes_on.set()
        found += batches
    assert [np.ravel(each).tolist() for each in found] == [
        np.ravel(each).tolist() for each in build(ps.stream(range(2 * BEFORE)))
    ]


class GoesOn(logging.Handler):
    """Lets a stream go on once anything is logged, and keeps the first text."""

    def __init__(self, stream: Pausing) -> None:
        super().__init__()
        self.stream = stream
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record."""
        self.text = self.text or record.getMessage()
        self.stream.goes_on.set()


def test_a_long_pause_is_logged_with_its_time(set_constant: SetConstant) -> None:
    """It counts from the begin of the reading, if workers had nothing to compute before."""
    set_constant("STALL_SECONDS", 0.1)
    stream, logger = Pausing(), logging.getLogger("penstock")
    handler = GoesOn(stream)
    logger.addHandler(handler)
    try:
        with ps.Loader(ps.stream(stream).batch(2 * BEFORE).map(unchanged), num_workers=1, workers="threads") as loader:
            assert len(list(loader)) == 1
    finally:
        logger.removeHandler(handler)
    found = re.search(r"the thread that reads in order has been at the same work for (\d+) s", handler.text)
    assert found is not None
    assert int(found[1]) <= PATIENCE_SECONDS
