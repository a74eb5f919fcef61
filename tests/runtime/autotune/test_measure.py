"""Measuring finds the cost of rows, and doesn't change the loaded batches."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock._runtime import _autotune
from tests.equivalence.definition import epoch_of, outcomes
from tests.equivalence.graphs import batched, indexable
from tests.loader.isolated.parts import Connected
from tests.runtime.autotune.choices import Cost, clock, measure
from tests.runtime.plans import plan_of

NO_ARGUMENTS: dict[str, Any] = {}
EXAMPLES = settings().max_examples // 3


def loader_of(dataset: Any, **arguments: Any) -> "ps.Loader[Any]":
    """Return a loader."""
    return ps.Loader(dataset, **arguments)


def cost_of(dataset: Any, *, threads: bool = False) -> Cost | None:
    """Return the cost of its rows."""
    return measure(plan_of(dataset), enough_seconds=0.0, stacking=True, threads=threads)


def waits(number: Any) -> Any:
    """Return the number a moment later."""
    threading.Event().wait(0.02)
    return number


def adds(number: int) -> int:
    """Compute a while."""
    return number + 0 * len(list(range(20_000)))


def test_waiting_is_distinguished_from_computing() -> None:
    """A row that waits takes time, and no processor time; a step above the batch is part of the cost of rows."""
    waiting, adding = cost_of(ps.range(1000).map(waits).batch(4)), cost_of(ps.range(1000).map(adds).batch(4))
    above = cost_of(ps.range(1000).batch(4).map(waits))
    assert waiting is not None
    assert adding is not None
    assert above is not None
    assert waiting.row_seconds > 0.015
    assert waiting.waits
    assert adding.row_cpu_seconds > 0
    assert above.row_seconds > 0.004


@pytest.mark.parametrize("threads", [False, True])
def test_two_threads_compute_only_on_request(threads: bool) -> None:  # noqa: FBT001 - a case
    """Functions that must not run in several threads don't."""
    seen: set[int] = set()

    def noted(number: int) -> int:
        seen.add(threading.get_ident())
        return adds(number)

    cost = cost_of(ps.range(100_000).map(noted).batch(4), threads=threads)
    assert cost is not None
    assert (cost.speedup is not None) == threads
    assert (seen != {threading.get_ident()}) == threads


@pytest.mark.parametrize("main", [True, False], ids=["main", "other"])
def test_measuring_raises_no_errors(*, main: bool) -> None:
    """Functions may fail in the main thread or in others: loading the element raises it; the cost is unknown."""

    def fails(number: int) -> int:
        if (threading.current_thread() is threading.main_thread()) == main:
            raise OSError("no such file") if number % 2 else ValueError("damaged")
        return adds(number)

    assert cost_of(ps.range(1000).map(fails).batch(4), threads=True) is None


def test_a_wait_for_a_processor_is_no_time_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits between the readings of the two clocks reads both again, so no time is below 0."""
    waited, now = iter([1.0, 3.0, 3.0, 3.0]), iter([10.0, 12.0])
    monkeypatch.setattr("penstock._runtime._autotune._queued", lambda: int(next(waited) * 1e9))
    monkeypatch.setattr("penstock._runtime._autotune.time.perf_counter", lambda: next(now))
    assert clock() == 9.0


def test_an_empty_dataset_has_no_cost() -> None:
    """An empty dataset has no rows: there is nothing to measure or to load."""
    assert cost_of(ps.range(0).batch(4)) is None
    for number in ("auto", 2):
        with loader_of(ps.range(8).batch(2)[:0], num_workers=number) as loader:
            assert list(loader) == []


def test_an_interrupt_is_raised_while_measuring() -> None:
    """Ctrl-C is raised in the code that makes the loader."""

    def interrupted(number: int) -> int:
        raise KeyboardInterrupt(number)

    with pytest.raises(KeyboardInterrupt):
        cost_of(ps.range(10).map(interrupted).batch(2))


def test_long_elements_are_computed_once() -> None:
    """An element that takes seconds is not computed again for a better measurement."""
    calls: list[int] = []

    def long(number: int) -> int:
        calls.append(number)
        threading.Event().wait(0.6)
        return number

    assert cost_of(ps.range(1000).map(long).batch(4), threads=True) is not None
    assert len(calls) == 1


# ------------------------------------------------------------------ loaders that choose


def test_substitutions_while_measuring_are_not_counted() -> None:
    """Counters begin where loading does."""

    def breaks(number: int) -> int:
        if number % 2:
            raise ValueError(number)
        return number

    dataset = ps.range(100).map(breaks, on_error=ps.Substitute(attempts=20)).batch(4)
    with loader_of(dataset, num_workers="auto") as loader:
        assert loader.stats()["substituted"] == 0
        assert loader.replaced() == ()


class Ends:
    """A function that ends the program where it is called, or pickled."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __call__(self, number: Any) -> Any:
        """Raise, or return the number a moment later."""
        if self._where == "call":
            raise SystemExit("no number")
        return waits(number)

    def __reduce__(self) -> Any:
        if self._where == "pickle":
            raise SystemExit("no pickle")
        return Ends, (self._where,)


@pytest.mark.parametrize("workers", ["auto", "threads"])
@pytest.mark.parametrize("where", ["call", "pickle"])
def test_a_function_that_ends_the_program_does_not_while_it_is_measured(where: str, workers: str) -> None:
    """Its exception is raised where a batch is requested, if at all, and not by the loader's constructor."""
    with loader_of(ps.range(100).map(Ends(where)).batch(4), num_workers="auto", workers=workers) as loader:
        batches = iter(loader)
        if where == "call":
            with pytest.raises(SystemExit, match="no number"):
                next(batches)
        else:
            assert next(batches).tolist() == [0, 1, 2, 3]


def test_streams_are_not_measured() -> None:
    """Their elements come once, and one thread reads them in any case."""
    taken: list[int] = []

    def numbers() -> Any:
        for number in range(6):
            taken.append(number)
            yield number

    with loader_of(ps.stream(numbers).batch(2), num_workers="auto") as loader:
        assert taken == []
        assert "inline (everything is computed in one thread" in repr(loader)
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]


def test_objects_per_worker_are_not_made_for_measuring() -> None:
    """The object may be large, or a connection."""
    made: list[int] = []

    def make() -> Callable[[int], int]:
        made.append(1)
        return adds

    for number in ("auto", 2):
        with loader_of(ps.range(8).map(ps.PerWorker(make)).batch(2), num_workers=number) as loader:
            assert not made
            assert "thread" in repr(loader)


def test_steps_that_seed_globals_stay_in_one_thread() -> None:
    """Threads would share the generators, so "auto" takes none."""
    dataset = ps.range(100_000).random_map(lambda number: waits(number), globals=True).batch(4)
    with loader_of(dataset, num_workers="auto") as loader:
        assert "thread" not in repr(loader).splitlines()[-1].split("(")[0]


def test_the_choice_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """It is one line in the log, and in the text of the loader; explicit arguments are not logged."""
    with caplog.at_level("INFO", "penstock"):
        for arguments in (NO_ARGUMENTS, {"num_workers": 2, "workers": "threads"}):
            loader_of(ps.range(8).batch(2), **arguments).close()
        assert caplog.messages == []
        with loader_of(ps.range(8).batch(2), num_workers=2) as loader:
            (line,) = caplog.messages
            workers, why = line.split(": ", 1)
            assert workers == "2 threads"
            assert f"{workers} ({why})" in repr(loader)


@settings(max_examples=EXAMPLES)
@given(batched() | indexable(), st.sampled_from(["auto", "threads"]))
def test_every_choice_loads_the_same_batches(dataset: ps.Dataset, workers: str) -> None:
    """For any choice of workers, every epoch has the bytes and the error of the definition."""
    expected = outcomes(epoch_of(dataset, 0))
    with loader_of(dataset, num_workers="auto", workers=workers) as loader:
        assert outcomes(loader) == expected


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")
def test_the_number_of_processes_is_chosen() -> None:
    """Their number is chosen if their kind is given, and they load the same batches."""
    with loader_of(ps.range(64).map(waits).batch(4), num_workers="auto", workers="processes") as loader:
        assert "process" in repr(loader)
        assert [batch.tolist() for batch in loader] == [list(range(first, first + 4)) for first in range(0, 64, 4)]


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize(
    "options", [{"num_workers": 2}, {"workers": "processes"}, {"isolated": True, "num_workers": "auto"}]
)
def test_measuring_leaves_nothing_open(options: dict[str, Any], *, is_local: bool) -> None:
    """Objects that open files when they are first used stay closed, so that the dataset can be sent to processes."""
    connected = Connected()
    dataset = ps.range(64).map(connected)
    if is_local:
        pytest.importorskip("cloudpickle")
        dataset = dataset.map(lambda number: number)
    with ps.Loader(dataset.batch(8), **options):
        assert connected.connection is None


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="there are no POSIX signals here")
def test_the_clock_passes_on_an_error_of_a_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal's TimeoutError isn't taken for a system that counts no waits, though both are an OSError."""

    def expire(*_: object) -> None:
        raise TimeoutError("the program's own")

    def interrupted(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGUSR1)

    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError

    before = signal.signal(signal.SIGUSR1, expire)
    try:
        monkeypatch.setattr(_autotune, "open", interrupted, raising=False)
        with pytest.raises(TimeoutError, match="the program's own"):
            clock()
        monkeypatch.setattr(_autotune, "open", missing, raising=False)
        assert clock() > 0
    finally:
        signal.signal(signal.SIGUSR1, before)
