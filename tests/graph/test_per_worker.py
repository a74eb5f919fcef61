"""`PerWorker`: each worker makes its function once, keeps it, and closes it when the worker ends."""

import logging
import pickle
import threading
from typing import Any, Self

import numpy as np
import pytest

import penstock as ps
from penstock import PerWorker
from penstock.errors import UsageError
from tests.dataset.functions import noisy
from tests.programs.forked import outcome


class Log:
    """A log of events, written by objects that several threads make."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.closed: list[str] = []
        self.called_by: set[tuple[str, str]] = set()

    def decoder(self) -> "Decoder":
        """Return a decoder that adds to this log."""
        return Decoder(self)


class Decoder:
    """A function that doubles numbers, belongs to its thread, and can't be pickled."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.owner = threading.current_thread().name
        log.made.append(self.owner)

    def __call__(self, number: int) -> int:
        """Return twice the number."""
        self.log.called_by.add((self.owner, threading.current_thread().name))
        return number * 2

    def close(self) -> None:
        """Add to the log."""
        self.log.closed.append(self.owner)

    def __reduce__(self) -> str:
        raise AssertionError("it was pickled")


def test_each_worker_makes_its_own_once() -> None:
    """Over several epochs each thread makes one, calls no other's, and closes it with the loader."""
    log = Log()
    dataset = ps.range(64).map(PerWorker(log.decoder)).batch(4)
    with ps.Loader(dataset, num_workers=2) as loader:
        for _ in range(3):
            assert np.concatenate(list(loader)).tolist() == [2 * number for number in range(64)]
    assert len(log.made) == len(set(log.made)) <= 3  # the consumer may compute elements too
    assert {owner for owner, _ in log.called_by} == set(log.made)
    assert all(owner == caller for owner, caller in log.called_by)
    workers = {name for name in log.made if name.startswith("penstock-")}
    assert workers <= set(log.closed)
    del dataset, loader
    assert sorted(log.closed) == sorted(log.made)


def test_only_make_is_described_and_pickled() -> None:
    """Describing a dataset makes nothing. A copy makes an object of its own; the object itself is never pickled.

    It takes the step's arguments, and has the name of `make`.
    """
    log = Log()
    dataset = ps.range(4).map(PerWorker(log.decoder)).batch(2)
    assert repr(dataset)
    assert dataset.fingerprint
    assert log.made == []
    numbers = PerWorker(Counter)
    assert [numbers(1), numbers(1)] == [1, 2]
    copy = pickle.loads(pickle.dumps(numbers))
    assert copy(1) == 1
    assert copy == numbers
    assert hash(copy) == hash(numbers)
    assert numbers != PerWorker(noisy_maker)
    made = ps.range(8).random_map(PerWorker(noisy_maker), name="noisy")
    assert list(made) == list(ps.range(8).random_map(noisy, name="noisy"))
    assert "map(Counter)" in repr(ps.range(3).map(numbers))


class Counter:
    """Counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, element: object) -> int:
        """Return how often it was called."""
        del element
        self.count += 1
        return self.count


def noisy_maker() -> Any:
    """Return a function for `random_map`."""
    return noisy


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_making_is_raised_unchanged(workers: int) -> None:
    """The user's exception has its type, and a note of step and position; values that can't be called are refused."""

    def make() -> Any:
        raise LookupError("no such model")

    with (
        ps.Loader(ps.range(8).map(PerWorker(make)).batch(2), num_workers=workers) as loader,
        pytest.raises(LookupError, match="no such model") as raised,
    ):
        list(loader)
    assert any("in step" in note for note in raised.value.__notes__)
    wrong: Any = 3
    with pytest.raises(UsageError, match=r"make must be a function without arguments .* got 3"):
        PerWorker(wrong)
    wrong = dict
    with pytest.raises(UsageError, match="returned dict"):
        PerWorker(wrong)(1)


class Connection:
    """A context manager that must be entered."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def __enter__(self) -> Self:
        self.log.append("entered")
        return self

    def __exit__(self, *error: object) -> None:
        self.log.append(f"left {error}")

    def __call__(self, element: int) -> int:
        """Return the element."""
        self.log.append(f"called {element}")
        return element


def test_a_context_manager_is_entered_and_left() -> None:
    """It is entered before its first call, and left without an error."""
    log: list[str] = []
    connect = PerWorker(lambda: Connection(log))
    connect(1)
    del connect
    assert log == ["entered", "called 1", "left (None, None, None)"]


def test_an_error_of_closing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """An error of closing is logged with its traceback, and not raised."""

    class Broken(Counter):
        """A function whose closing fails."""

        def close(self) -> None:
            """Fail."""
            raise OSError("gone")

    count = PerWorker(Broken)
    assert count(1) == 1
    with caplog.at_level(logging.ERROR, logger="penstock"):
        del count
    assert [record.message for record in caplog.records] == ["closing the function that PerWorker made failed"]
    caplog.clear()


PROGRAM = """
import os, sys
from penstock import PerWorker
class Named:
    def __init__(self):
        self.pid = os.getpid()
    def __call__(self, element):
        return os.getpid() == self.pid
    def close(self):
        print("closed", os.getpid() == self.pid, flush=True)
named = PerWorker(Named)
print(named(1), flush=True)
child = os.fork()
print("child" if child == 0 else "parent", named(1), flush=True) if child == 0 else os.waitpid(child, 0)
"""


@pytest.mark.usefixtures("forked_programs")
def test_program_ends_and_forks() -> None:
    """A program closes its own objects at its end; a forked child makes its own, and leaves its parent's open."""
    assert outcome(PROGRAM) == (0, "True\nchild True\nclosed True\nclosed True\n", "")
