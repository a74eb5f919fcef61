"""Processes of a stage: outcomes, deaths and retries, random numbers, ends."""

import gc
import os
import select
import signal
import time
import weakref
from concurrent.futures import Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from penstock.errors import ClosedError, PipelineFailure, UsageError, WorkerError
from penstock.pipeline import PipelineBuilder
from penstock.pipeline._processes import Executors, ProcessExecutor, RemoteStage, open_processes
from tests.pipeline.processes import ops
from tests.pipeline.processes.programs import SECONDS, check_end
from tests.promptness import is_prompt

pytestmark = [pytest.mark.each_value, pytest.mark.usefixtures("forked_programs")]


def pid_from(path: Path) -> int:
    """Return the number that is written into a named pipe."""
    with path.open() as pipe:
        return int(pipe.readline())


def outcomes_of(stage: RemoteStage, op: Any, items: list[Any]) -> list[tuple[bool, Any]]:
    """Return the outcome of each item; the stage is given again those that a slow or lost call left."""
    outcomes: list[tuple[bool, Any]] = []
    while len(outcomes) < len(items):
        outcomes += stage.send(op, items[len(outcomes) :], flatten=False).result()
    return outcomes


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """Return a named pipe."""
    os.mkfifo(tmp_path / "ready")
    return tmp_path / "ready"


@pytest.fixture
def executors() -> Any:
    """Yield the executors of a pipeline, which are closed at the end."""
    opened = Executors()
    yield opened
    opened.close()


@pytest.fixture(params=["ours", "forked by a pool"])
def executor(request: pytest.FixtureRequest) -> Any:
    """Yield two processes of ours, or of a pool that the user made."""
    if request.param == "ours":
        yield ProcessExecutor(2)
        return
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
        yield pool


def test_each_item_has_its_outcome(executors: Executors, executor: Any) -> None:
    """Values, lists of generators' values, and the user's own exceptions with their traceback come back in place."""
    assert outcomes_of(executors.remote(executor, "double"), ops.double, [1, 2, 3]) == [(True, 2), (True, 4), (True, 6)]
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
    assert [outcome for outcome, _ in outcomes] == [True, False, True]
    error = outcomes[1][1]
    assert isinstance(error, ops.OddError)
    assert error.number == 3
    assert any("in refuse_odd" in note for note in error.__notes__)


@pytest.mark.parametrize(
    ("op", "words"),
    [(ops.refuse_stubbornly, "StubbornError: stubborn 1"), (ops.lambda_of, "got function, which can't be")],
)
def test_results_that_can_not_be_received(executors: Executors, executor: Any, op: Any, words: str) -> None:
    """A result or exception that can't be pickled or unpickled is an error of its item alone."""
    stage = executors.remote(executor, "op")
    outcomes = stage.send(op, [1], flatten=False).result()
    assert len(outcomes) == 1
    with pytest.raises(WorkerError, match=words):
        raise ops.error_of(outcomes[0])
    if op is ops.lambda_of:
        assert [good for good, _ in outcomes_of(stage, op, [2, 1, 4])] == [True, False, True]


def test_calls_that_can_not_be_sent(executors: Executors, executor: Any) -> None:
    """A function or item that can't be pickled is a UsageError that names the stage, and the processes still work."""
    with pytest.raises(UsageError, match="stage 'first' must be picklable"):
        executors.remote(executor, "first").send(lambda item: item, [1], flatten=False).result()
    with pytest.raises(UsageError, match=r"(given|items of stage 'second') must be picklable"):
        executors.remote(executor, "second").send(ops.double, [lambda: 1], flatten=False).result()
    assert executors.remote(executor, "last").send(ops.double, [1], flatten=False).result() == [(True, 2)]


def test_a_function_keeps_its_state_in_a_process(executors: Executors) -> None:
    """A function is sent to a process once, and keeps there the attributes that it changes."""
    stage = executors.remote(ProcessExecutor(1), "counter")
    counter = ops.Counter()
    counts = [outcomes_of(stage, counter, [None, None]) for _ in range(3)]
    assert counts == [[(True, 1), (True, 2)], [(True, 3), (True, 4)], [(True, 5), (True, 6)]]


def test_stages_share_an_executor(executors: Executors) -> None:
    """Stages with one executor run in the same processes; another one, though equal, has its own."""
    one, other = ProcessExecutor(1), ProcessExecutor(1)
    pids = [
        executors.remote(each, "pid").send(ops.pid_of, [0], flatten=False).result()[0][1] for each in (one, one, other)
    ]
    assert pids[0] == pids[1] != pids[2]


def test_killed_in_a_call(ready: Path) -> None:
    """A process killed in a call is a WorkerError with pid and signal, within a second; other calls continue."""
    with open_processes(ProcessExecutor(2)) as running:
        stuck = running.submit(ops.wait_for_ever, str(ready))
        pid = pid_from(ready)
        others = [running.submit(ops.double, number) for number in range(20)]
        assert [other.result() for other in others] == [2 * number for number in range(20)]
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        error = stuck.exception()
        assert is_prompt(time.monotonic() - began, SECONDS)
        assert isinstance(error, WorkerError)
        assert error.exit_code == -signal.SIGKILL
        assert str(pid) in str(error)
        assert "SIGKILL" in str(error)
        pids = {running.submit(os.getpid).result() for _ in range(20)}
        assert pid not in pids


def test_killed_while_idle() -> None:
    """A process killed while it is idle is replaced, and no call fails."""
    with open_processes(ProcessExecutor(1)) as running:
        pid = running.submit(os.getpid).result()
        assert isinstance(pid, int)
        ended = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        assert select.select([ended], [], [], 10)[0]
        os.close(ended)
        assert running.submit(os.getpid).result() != pid


def test_only_begun_items_fail_in_a_crash(executors: Executors, tmp_path: Path) -> None:
    """If a process dies in a chunk, the items that it began fail, and others compute the rest once.

    On a busy machine the first items may be slow; then their results are sent before the process dies.
    """
    stage = executors.remote(ProcessExecutor(1), "noted")
    outcomes = outcomes_of(stage, ops.Noted(tmp_path, 3), list(range(6)))
    sent = [good for good, _ in outcomes].index(False)
    assert [good for good, _ in outcomes[sent:]] == [False] * (4 - sent) + [True, True]
    assert all("its result lost" in str(error) for _, error in outcomes[sent:3])
    assert "its result lost" not in str(outcomes[3][1])
    assert sorted(path.name.split("-")[0] for path in tmp_path.iterdir()) == ["0", "1", "2", "3", "4", "5"]


def test_repeatable_items_are_computed_again(executors: Executors, tmp_path: Path) -> None:
    """If items are repeatable, a crash that doesn't happen again loses no item."""
    stage = executors.remote(ProcessExecutor(2), "once", repeatable=True)
    outcomes = outcomes_of(stage, ops.KillsOnce(tmp_path, 3), list(range(6)))
    assert outcomes == [(True, number) for number in range(6)]


def test_an_item_that_crashes_every_process(executors: Executors) -> None:
    """A repeatable item that crashed three processes fails with an error that says so; the others have results."""
    stage = executors.remote(ProcessExecutor(2), "kills", repeatable=True)
    outcomes = outcomes_of(stage, ops.kill_at, list(range(5)))
    assert [good for good, _ in outcomes] == [True, True, True, False, True]
    with pytest.raises(WorkerError, match="this item kills processes: 3 of them died"):
        raise ops.error_of(outcomes[3])


def test_processes_draw_differently() -> None:
    """Global generators differ between processes; an initializer may seed them in its own way."""
    with open_processes(ProcessExecutor(2)) as running:
        drawn: set[Any] = set()
        while len({pid for pid, *_ in drawn}) < 2:
            drawn.add(running.submit(ops.draws, None).result())
        assert len({number for _, number, _ in drawn}) == len({number for *_, number in drawn}) == len(drawn)
    first: list[Any] = []
    for _ in range(2):
        with open_processes(ProcessExecutor(1, initializer=ops.seed_all, initargs=(7,))) as running:
            first.append(running.submit(ops.draws, None).result())
    assert first[0][1:] == first[1][1:]


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


def test_kill_ends_calls(ready: Path) -> None:
    """`kill` ends running calls, cancels waiting ones, and leaves no process; afterwards no call is accepted."""
    running = open_processes(ProcessExecutor(1))
    stuck = running.submit(ops.wait_for_ever, str(ready))
    waiting = running.submit(os.getpid)
    pid = pid_from(ready)
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


def test_dropped() -> None:
    """Processes that were not closed end when they are dropped."""
    running = open_processes(ProcessExecutor(1))
    pid = running.submit(os.getpid).result()
    assert isinstance(pid, int)
    watched = os.pidfd_open(pid)
    del running
    assert select.select([watched], [], [], 10)[0]
    os.close(watched)


def test_arguments_are_checked() -> None:
    """Wrong arguments are refused when the value is made."""
    with pytest.raises(UsageError, match="max_workers"):
        ProcessExecutor(0)
    with pytest.raises(UsageError, match="start_method"):
        ProcessExecutor(1, start_method="fork")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] # the refused argument


PARENT = """
import faulthandler, os, sys, threading
faulthandler.dump_traceback_later(25, exit=True)
from penstock.pipeline import ProcessExecutor
from penstock.pipeline._processes import open_processes
from tests.pipeline.processes import ops

if __name__ == "__main__":
    running = open_processes(ProcessExecutor(2, start_method=sys.argv[1]))
    running.submit(ops.wait_for_ever, sys.argv[2])
    for line in open(sys.argv[2]):
        print(line, end="", flush=True)
    if sys.argv[3] == "waits":
        while not threading.Event().wait(0.5):  # Python sleeps through a signal that comes just before it begins to
            pass
    sys.stdin.readline()  # the test watches the process by now
"""


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, None])
def test_nothing_outlives_the_parent(
    start_method: str, end: signal.Signals | None, ready: Path, tmp_path: Path
) -> None:
    """However the program ends, its processes end within a second, in the middle of a call; they print nothing."""
    doing = "ends" if end is None else "waits"
    check_end(tmp_path, PARENT, end, start_method, str(ready), doing)


def test_in_a_pipeline() -> None:
    """A stage with processes has the results of plain calls, from the same processes in all passes."""
    builder = PipelineBuilder().add_source(range(40))
    builder.pipe(ops.pid_and_double, executor=ProcessExecutor(2), concurrency=4, output_order="input")
    with builder.add_sink().build(num_threads=1).auto_stop() as pipeline:
        passes = [list(pipeline) for _ in range(2)]
        pids = {pid for each in passes for pid, _ in each}
    assert [[number for _, number in each] for each in passes] == [[2 * number for number in range(40)]] * 2
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


def test_results_are_freed_when_the_reader_drops_them() -> None:
    """Nothing keeps a result that was read until Python's collector runs."""
    builder = PipelineBuilder().add_source([[number] for number in range(9)])
    builder.pipe(frozenset, executor=ProcessExecutor(1)).add_sink()
    gc.disable()
    try:
        with builder.build(num_threads=1).auto_stop() as pipeline:
            read = [weakref.ref(result) for result in pipeline]
        assert [each() for each in read] == [None] * 9
    finally:
        gc.enable()


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
