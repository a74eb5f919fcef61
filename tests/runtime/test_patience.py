"""The patience of a consumer: it logs the work that it waits for, and raises at the timeout."""

import logging

import pytest

from penstock._runtime import _failing_work
from penstock._runtime._failing_work import Patience, Stall
from penstock._runtime._policy import STALL_SECONDS
from penstock.errors import WorkerError

BEGAN = 1000.0


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = BEGAN

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture(name="clock")
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the clock of all waits."""
    clock = Clock()
    monkeypatch.setattr(_failing_work, "monotonic", clock)
    return clock


def work_since(since: float) -> Stall:
    """Return the work of a worker that began at some time."""
    return Stall("worker 3", since, lambda: "some rows")


def test_work_that_began_before_the_wait_is_measured_from_the_wait(clock: Clock) -> None:
    """The time before the wait doesn't count."""
    patience = Patience(lambda: work_since(BEGAN - 500), timeout=5.0)
    clock.now = BEGAN + 4.5
    patience.look()
    assert patience.seconds_left() == pytest.approx(0.5)
    clock.now = BEGAN + 5
    with pytest.raises(WorkerError, match=r"worker 3 was at the same work for longer than timeout=5.0 seconds"):
        patience.look()


def test_work_that_began_within_the_wait_is_measured_from_its_own_begin(clock: Clock) -> None:
    """Each worker has the full time, however long the consumer waits for all of them."""
    patience = Patience(lambda: work_since(clock.now - 2), timeout=5.0)
    for seconds in range(5, 50, 5):
        clock.now = BEGAN + seconds
        patience.look()


def test_one_wait_logs_one_warning(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """The first threshold logs the work; the same wait doesn't log it again."""
    patience = Patience(lambda: work_since(BEGAN), timeout=None)
    for times in range(1, 5):
        clock.now = BEGAN + times * STALL_SECONDS
        patience.look()
        assert sum(record.levelno == logging.WARNING for record in caplog.records) == 1
    assert patience.seconds_left() is None
