"""Handlers of the log that belong to the program: they may read the loader, or raise, and no batch is lost."""

import logging
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.places import in_places

ON_ERROR: dict[str, Any] = {"skip": "skip", "substitute": ps.Substitute()}


def seldom(number: int) -> int:
    """Return the number, but for every seventh."""
    if number % 7 == 3:
        raise ValueError(number)
    return number


class Calling(logging.Handler):
    """A handler that calls a function, and counts the calls."""

    def __init__(self, function: Callable[[], object]) -> None:
        super().__init__()
        self.calls = 0
        self._function = function

    def emit(self, record: logging.LogRecord) -> None:
        """Call the function."""
        del record
        self.calls += 1
        self._function()


@contextmanager
def logging_to(handler: logging.Handler) -> Generator[None]:
    """Add a handler to the logger of Penstock."""
    logger = logging.getLogger("penstock")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def fail() -> None:
    """Raise."""
    raise RuntimeError("the log is full")


@in_places("inline", "threads", "processes", "isolated")
@pytest.mark.parametrize("on_error", ["skip", "substitute"])
def test_a_handler_may_use_the_loader(place: dict[str, Any], on_error: str) -> None:
    """A handler that reads the loader's counters gets them, while elements are left out or replaced."""
    dataset = ps.range(80).map(seldom, on_error=ON_ERROR[on_error]).batch(4)
    with ps.Loader(dataset, **place) as loader:
        handler = Calling(loader.stats)
        with logging_to(handler):
            found = [batch.tolist() for batch in loader]
    assert handler.calls > 0
    assert found == [batch.tolist() for batch in dataset]


@in_places("inline", "threads", "processes", "isolated")
@pytest.mark.parametrize("on_error", ["skip", "substitute"])
def test_an_error_of_a_handler_loses_no_batch(place: dict[str, Any], on_error: str) -> None:
    """A handler that fails on the line about an element doesn't touch the batches."""
    dataset = ps.range(80).map(seldom, on_error=ON_ERROR[on_error]).batch(4)
    with ps.Loader(dataset, **place) as loader:
        handler = Calling(fail)
        with logging_to(handler):
            found = [batch.tolist() for batch in loader]
    assert handler.calls > 0
    assert found == [batch.tolist() for batch in dataset]


def test_a_hook_for_warnings_may_use_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook that reads the loader's counters gets them, when the loader warns of batches that are kept."""
    found: list[float] = []
    dataset = ps.range(240).map(lambda number: np.full(100_000, number)).batch(2)
    with ps.Loader(dataset, num_workers=3, workers="threads") as loader, warnings.catch_warnings():

        def show(*_: object) -> None:
            found.append(loader.stats()["bytes_in_flight"])

        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        kept = list(loader)
    assert len(kept) == 120
    assert len(found) == 1
