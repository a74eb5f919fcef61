"""The owner of a scheduler changes its slots; other threads leave their actions to the owner, and never wait."""

import contextlib
import functools
import select
import threading
from collections.abc import Generator, Iterator
from typing import Any

import pytest

import penstock as ps
from penstock._os._bell import Listener
from penstock._runtime._recorder import Recorder
from penstock._runtime._scheduler import Client, Scheduler
from penstock.errors import ClosedError
from tests.constants import SetConstant
from tests.loader.gates import PATIENCE_SECONDS, Gate
from tests.runtime.plans import plan_of


@contextlib.contextmanager
def made() -> Generator[Scheduler]:
    """Return an idle scheduler with one worker."""
    plan = plan_of(ps.range(1), "threads", 1)
    scheduler = Scheduler(Client(plan, Recorder()))
    try:
        yield scheduler
    finally:
        scheduler.close()


def test_actions_run_once_the_scheduler_is_free() -> None:
    """At once if no thread owns it; in the thread of the owner, as in a garbage collection there, when it lets go.

    An action may request another.
    """
    with made() as scheduler:
        done: list[str] = []
        scheduler.when_free(lambda: done.append("now"))
        assert done == ["now"]
        with scheduler.owned():
            scheduler.when_free(lambda: done.append("first"))
            scheduler.when_free(lambda: scheduler.when_free(lambda: done.append("third")))
            scheduler.when_free(lambda: done.append("second"))
            assert done == ["now"]
        assert done == ["now", "first", "second", "third"]


def test_another_thread_leaves_its_action_to_the_owner() -> None:
    """A thread that finds the scheduler owned continues at once, and the owner runs the action."""
    with made() as scheduler:
        done: list[str] = []
        with scheduler.owned():
            other = threading.Thread(
                target=scheduler.when_free, args=(lambda: done.append(threading.current_thread().name),)
            )
            other.start()
            other.join(PATIENCE_SECONDS)
            assert not other.is_alive()
            assert not done
        assert done == [threading.current_thread().name]


def test_no_action_is_lost() -> None:
    """All actions of many threads run, also while other threads own the scheduler."""
    with made() as scheduler:
        done: list[int] = []

        def asks(first: int) -> None:
            for number in range(first, first + 200):
                with scheduler.owned():
                    pass
                scheduler.when_free(functools.partial(done.append, number))

        threads = [threading.Thread(target=asks, args=(first,)) for first in range(0, 800, 200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(done) == list(range(800))


class Reader:
    """A thread that reads one batch of an iterator."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self.batch: Any = None
        self.error: BaseException | None = None
        self._iterator = iterator
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        try:
            self.batch = next(self._iterator)
        except ClosedError as error:
            self.error = error


def test_a_job_that_completes_before_the_bell_is_cleared_is_seen(
    monkeypatch: pytest.MonkeyPatch, set_constant: SetConstant
) -> None:
    """The consumer looks again after it has cleared its bell, since that may have been the last ring."""
    gate, clear = Gate(0), Listener.clear
    for looks_again in ("STALL_SECONDS", "LONG_WAIT_SECONDS"):
        set_constant(looks_again, 10 * PATIENCE_SECONDS)

    def clear_late(listener: Listener) -> None:
        if not gate.opened.is_set():
            gate.open()
            assert select.select([listener.fileno()], [], [], PATIENCE_SECONDS)[0]  # the job is complete
        clear(listener)

    with ps.Loader(ps.range(1).map(gate).batch(1), num_workers=1) as loader:
        batches = iter(loader)
        gate.wait_entered()
        monkeypatch.setattr(Listener, "clear", clear_late)
        reader = Reader(batches)
        reader.thread.join(PATIENCE_SECONDS)
        assert reader.batch is not None
        assert not reader.thread.is_alive()


def test_a_newer_iterator_ends_the_wait_for_the_older_one(
    monkeypatch: pytest.MonkeyPatch, set_constant: SetConstant
) -> None:
    """A waiting consumer is woken when another thread gives up its job, even if a worker still computes it."""
    gate, wait, waits = Gate(0), Listener.wait, threading.Event()
    for looks_again in ("STALL_SECONDS", "LONG_WAIT_SECONDS"):
        set_constant(looks_again, 10 * PATIENCE_SECONDS)

    def wait_and_tell(listener: Listener, timeout_seconds: float | None = None) -> bool:
        waits.set()
        return wait(listener, timeout_seconds)

    monkeypatch.setattr(Listener, "wait", wait_and_tell)
    with ps.Loader(ps.range(2).map(gate).batch(2), num_workers=1) as loader:  # one job, which a worker has begun
        reader = Reader(iter(loader))
        assert waits.wait(PATIENCE_SECONDS)
        newer = iter(loader)
        reader.thread.join(PATIENCE_SECONDS / 2)  # the worker gives up after all of it
        assert not reader.thread.is_alive()
        assert reader.error is not None
        gate.open()
        assert len(list(newer)) == 1
