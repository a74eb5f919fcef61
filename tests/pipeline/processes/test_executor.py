"""Processes of a stage: outcomes, deaths and retries, random numbers, ends."""

import gc
import os
import signal
import time
import weakref
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import pytest

from penstock.errors import ClosedError, PipelineFailure, UsageError, WorkerError
from penstock.pipeline import PipelineBuilder
from penstock.pipeline._processes import Executors, ProcessExecutor, RemoteStage, open_processes
from tests.pipeline.processes import ops
from tests.pipeline.running.reading import Again
from tests.processes.helping import watched
from tests.promptness import is_prompt


def outcomes_of(stage: RemoteStage, op: Any, items: list[Any]) -> list[tuple[bool, Any]]:
    """Return the outcome of each item; the stage is given again those that a slow or lost call left."""
    outcomes: list[tuple[bool, Any]] = []
    while len(outcomes) < len(items):
        outcomes += stage.send(op, items[len(outcomes) :], flatten=False).result()
    return outcomes


@pytest.fixture
def executors() -> Generator[Executors]:
    """Yield the executors of a pipeline, which are closed at the end."""
    opened = Executors()
    yield opened
    opened.close()


@pytest.mark.parametrize("whose", ["ours", "forked by a pool"])
def test_each_item_has_its_outcome(executors: Executors, whose: str) -> None:
    """Values, generators' values and exceptions come back in place; what can't be sent is an error of its item."""
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
        executor: Any = ProcessExecutor(2) if whose == "ours" else pool
        double = executors.remote(executor, "double")
        assert outcomes_of(double, ops.double, [1, 2, 3]) == [(True, 2), (True, 4), (True, 6)]
        generators = executors.remote(executor, "up_to")
        (_, none), (_, values) = (
            cast("Any", generators.send(ops.up_to, [end], flatten=True).result()[0]) for end in (0, 2)
        )
        yielded = [*values.outcomes]
        while values.token is not None:  # a step ends early on a busy machine
            ((_, values),) = cast("Any", generators.step(values).result())
            yielded += values.outcomes
        assert (none.outcomes, yielded) == ([], [(True, 0), (True, 1)])
        outcomes = outcomes_of(executors.remote(executor, "refuse"), ops.refuse_odd, [2, 3, 4])
        assert [good for good, _ in outcomes] == [True, False, True]
        error = outcomes[1][1]
        assert isinstance(error, ops.OddError)
        assert error.number == 3
        assert any("in refuse_odd" in note for note in error.__notes__)

        for op, words in ((ops.refuse_stubbornly, "StubbornError: stubborn 1"), (ops.lock_of, "got lock, which")):
            (outcome,) = executors.remote(executor, op.__name__).send(op, [1], flatten=False).result()
            with pytest.raises(WorkerError, match=words):
                raise ops.error_of(outcome)
        outcomes = outcomes_of(executors.remote(executor, "locks"), ops.lock_of, [2, 1, 4])
        assert [good for good, _ in outcomes] == [True, False, True]

        with pytest.raises(UsageError, match="stage 'first' must be picklable"):
            executors.remote(executor, "first").send(lambda item: item, [1], flatten=False).result()
        with pytest.raises(UsageError, match=r"(given|items of stage 'double') must be picklable"):
            double.send(ops.double, [lambda: 1], flatten=False).result()
        assert double.send(ops.double, [1], flatten=False).result() == [(True, 2)]


def test_a_function_keeps_its_state_in_a_process(executors: Executors) -> None:
    """A function is sent to a process once, and keeps there the attributes that it changes.

    Stages with one executor run in the same processes; another one, though equal, has its own.
    """
    one, counter = ProcessExecutor(1), ops.Counter()
    stage = executors.remote(one, "counter")
    counts = [outcomes_of(stage, counter, [None, None]) for _ in range(2)]
    assert counts == [[(True, 1), (True, 2)], [(True, 3), (True, 4)]]
    pids = [
        executors.remote(each, "pid").send(ops.pid_of, [0], flatten=False).result()[0][1]
        for each in (one, one, ProcessExecutor(1))
    ]
    assert pids[0] == pids[1] != pids[2]


def test_a_function_keeps_its_state_from_pass_to_pass() -> None:
    """A function is sent once, and again after a stop or where the program has changed it before a pass."""
    counter = ops.Counter()
    builder = PipelineBuilder().add_source(range(2)).pipe(counter, executor=ProcessExecutor(1)).add_sink()
    pipeline = builder.build(num_threads=1)
    for start in (0, 10):
        with pipeline.auto_stop():
            assert [list(pipeline) for _ in range(3)] == [
                [start + 1, start + 2],
                [start + 3, start + 4],
                [start + 5, start + 6],
            ]
            counter.count += 10  # of the program, so that it is sent with the next pass
            assert [list(pipeline) for _ in range(2)] == [[start + 11, start + 12], [start + 13, start + 14]]


def test_killed_in_a_call(tmp_path: Path) -> None:
    """A process killed in a call is a WorkerError with pid and signal, within a second; other calls continue."""
    with open_processes(ProcessExecutor(2)) as running:
        stuck = running.submit(ops.wait_for_ever, ops.pipe_in(tmp_path))
        pid = ops.pid_from(tmp_path)
        others = [running.submit(ops.double, number) for number in range(20)]
        assert [other.result() for other in others] == [2 * number for number in range(20)]
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        error = stuck.exception()
        assert is_prompt(time.monotonic() - began, 1.0)
        assert isinstance(error, WorkerError)
        assert error.exit_code == -signal.SIGKILL
        assert str(pid) in str(error)
        assert "SIGKILL" in str(error)
        assert pid not in {running.submit(os.getpid).result() for _ in range(20)}


def test_killed_while_idle() -> None:
    """A process killed while it is idle is replaced, and no call fails; one that is dropped with the others ends."""
    running = open_processes(ProcessExecutor(1))
    pid: Any = running.submit(os.getpid).result()
    with watched(pid) as has_ended:
        os.kill(pid, signal.SIGKILL)
        assert has_ended(10)
    other: Any = running.submit(os.getpid).result()
    assert other != pid
    with watched(other) as has_ended:
        del running
        assert has_ended(10)


def test_only_begun_items_fail_in_a_crash(executors: Executors, tmp_path: Path) -> None:
    """If a process dies in a chunk, the items that it began fail, and others compute the rest once.

    On a busy machine the first items may be slow; then their results are sent before the process dies.
    """
    stage = executors.remote(ProcessExecutor(1), "noted")
    outcomes = outcomes_of(stage, partial(ops.note, tmp_path, 3), list(range(6)))
    sent = [good for good, _ in outcomes].index(False)
    assert [good for good, _ in outcomes[sent:]] == [False] * (4 - sent) + [True, True]
    assert all("its result lost" in str(error) for _, error in outcomes[sent:3])
    assert "its result lost" not in str(outcomes[3][1])
    assert sorted(path.name.split("-")[0] for path in tmp_path.iterdir()) == ["0", "1", "2", "3", "4", "5"]


def test_repeatable_items_are_computed_again(executors: Executors, tmp_path: Path) -> None:
    """A crash that doesn't happen again loses no repeatable item; one that crashes three processes fails alone."""
    executor = ProcessExecutor(2)
    stage = executors.remote(executor, "once", repeatable=True)
    outcomes = outcomes_of(stage, partial(ops.kill_once, tmp_path, 3), list(range(6)))
    assert outcomes == [(True, number) for number in range(6)]
    outcomes = outcomes_of(executors.remote(executor, "kills", repeatable=True), ops.kill_at, list(range(5)))
    assert [good for good, _ in outcomes] == [True, True, True, False, True]
    with pytest.raises(WorkerError, match="this item kills processes: 3 of them died"):
        raise ops.error_of(outcomes[3])


def test_processes_draw_differently() -> None:
    """Global generators differ between processes; an initializer may seed them in its own way."""

    def drawn_by(executor: ProcessExecutor) -> list[tuple[int, int, int]]:
        drawn: list[Any] = []
        with open_processes(executor) as running:
            while len({pid for pid, *_ in drawn}) < 2:
                drawn.append(running.submit(ops.draws, None).result())
        return drawn

    drawn = drawn_by(ProcessExecutor(2))
    assert len({number for _, number, _ in drawn}) == len({number for *_, number in drawn}) == len(drawn)
    seeded = drawn_by(ProcessExecutor(2, initializer=ops.seed_all, initargs=(7,)))
    assert seeded[-1][1:] == seeded[0][1:]  # the first draws of both


@pytest.mark.parametrize(
    ("initializer", "error", "words"),
    [(ops.fail_to_start, ops.OddError, "start"), (ops.die_at_start, WorkerError, "exit code 7 before it had started")],
)
def test_a_start_that_fails(initializer: Any, error: type[Exception], words: str) -> None:
    """An initializer that raises, or ends the process, is the error of all calls."""
    with open_processes(ProcessExecutor(2, initializer=initializer)) as running:
        calls = [running.submit(os.getpid) for _ in range(3)]
        for call in calls:
            with pytest.raises(error, match=words):
                call.result()


def test_kill_ends_calls(tmp_path: Path) -> None:
    """`kill` ends running calls, cancels waiting ones, and leaves no process; afterwards no call is accepted."""
    running = open_processes(ProcessExecutor(1))
    stuck = running.submit(ops.wait_for_ever, ops.pipe_in(tmp_path))
    waiting = running.submit(os.getpid)
    pid = ops.pid_from(tmp_path)
    running.kill()
    assert not psutil.pid_exists(pid)
    assert isinstance(stuck.exception(), ClosedError)
    assert waiting.cancelled()
    with pytest.raises(ClosedError, match="closed"):
        running.submit(os.getpid)


def test_close_waits_for_calls() -> None:
    """Leaving the scope waits for submitted calls."""
    calls: list[Future[object]] = []
    with open_processes(ProcessExecutor(2)) as running:
        calls += [running.submit(ops.double, number) for number in range(50)]
    assert not wait(calls, timeout=0).not_done
    assert [call.result() for call in calls] == [2 * number for number in range(50)]


def test_arguments_are_checked() -> None:
    """Wrong arguments are refused when the value is made."""
    with pytest.raises(UsageError, match="max_workers"):
        ProcessExecutor(0)
    with pytest.raises(UsageError, match="start_method"):
        ProcessExecutor(1, start_method="fork")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] # the refused argument


def test_in_a_pipeline() -> None:
    """A stage with processes has the results of plain calls, from the same processes in all passes.

    Nothing keeps a result that was read until Python's collector runs.
    """
    builder = PipelineBuilder().add_source(range(40))
    builder.pipe(ops.pid_and_double, executor=ProcessExecutor(2), concurrency=4, output_order="input")
    gc.disable()
    try:
        with builder.add_sink().build(num_threads=1).auto_stop() as pipeline:
            passes = [list(pipeline) for _ in range(2)]
            kept = [weakref.ref(result) for result in passes[1]]
            numbers = [[each.number for each in read] for read in passes]
            pids = {each.pid for read in passes for each in read}
            passes.clear()
        assert not any(each() for each in kept)
    finally:
        gc.enable()
    assert numbers == [[2 * number for number in range(40)]] * 2
    assert len(pids) <= 2
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_a_result_that_can_not_be_rebuilt() -> None:
    """A result that is pickled and can't be rebuilt ends the pipeline, for any allowed failures."""
    builder = PipelineBuilder().add_source(range(9)).pipe(ops.unbuildable, executor=ProcessExecutor(1)).add_sink()
    with builder.build(num_threads=1, max_failures=-1).auto_stop() as pipeline:
        with pytest.raises(PipelineFailure, match="a result can't be rebuilt in process") as failed:
            list(pipeline)
        assert failed.value.stage == "unbuildable"
    assert isinstance(failed.value.__cause__, WorkerError)


def test_a_death_in_a_pipeline() -> None:
    """An item that crashed its process is the failure, or dropped if that is allowed; no other item is lost."""
    builder = PipelineBuilder().add_source(range(6)).pipe(ops.kill_at, executor=ProcessExecutor(1), max_items=1)
    pipeline = builder.add_sink().build(num_threads=1)
    with pytest.raises(PipelineFailure, match=r"kill_at.* failed on 3.*SIGKILL"):
        list(pipeline)
    pipeline.stop()
    with builder.build(num_threads=1, max_failures=-1).auto_stop() as pipeline:
        received = list(pipeline)
        assert [item for item in range(6) if item not in received] == [int(each.item) for each in pipeline.dropped()]
        assert received[-1] == 5


def test_a_death_that_is_forgotten_keeps_no_items() -> None:
    """The item that crashed its process is gone with the failure, without Python's collector."""
    made: list[weakref.ref[Any]] = []

    def numbers() -> Iterator[Any]:
        for number in range(4):
            array = np.full(1, number)
            made.append(weakref.ref(array))
            yield array

    builder = PipelineBuilder().add_source(Again(numbers)).pipe(ops.kill_at, executor=ProcessExecutor(1))
    pipeline = builder.add_sink().build(num_threads=1)
    gc.disable()
    try:
        with suppress(PipelineFailure):
            list(pipeline)
        pipeline.stop()
        assert [each() for each in made] == [None] * 4
    finally:
        gc.enable()
