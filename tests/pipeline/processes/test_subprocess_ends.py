"""The ends of a pipeline in a process of its own: stops, crashes and forks."""

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ClosedError, UsageError, WorkerError
from penstock.pipeline import PipelineBuilder, PipelineConfig, SubprocessPipeline, run_in_subprocess
from tests.pipeline.processes import ops
from tests.processes.helping import watched
from tests.promptness import is_prompt


def config_of(source: Any, op: Callable[[Any], object] = ops.pid_of) -> PipelineConfig:
    """Return a pipeline of a function."""
    return PipelineBuilder().add_source(source).pipe(op).add_sink().get_config()


def started(source: Any, op: Callable[[Any], object] = ops.pid_of) -> SubprocessPipeline[Any]:
    """Return such a pipeline in a process."""
    return run_in_subprocess(config_of(source, op), num_threads=1)


def reading(items: Any) -> tuple[threading.Thread, list[Exception | float]]:
    """Have a thread that reads a pass; return it, and a list for the error that it gets, and the time."""
    seen: list[Exception | float] = []

    def read() -> None:
        try:
            list(items)
        except (ClosedError, WorkerError) as error:
            seen.extend((error, time.monotonic()))

    thread = threading.Thread(target=read)
    thread.start()
    return thread, seen


def test_killed_while_it_is_read() -> None:
    """A process that is killed is a WorkerError with pid and signal; the next `for` starts another process."""
    pipeline = started(range(1000))
    items = iter(pipeline)
    pid = next(items)
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(WorkerError, match=rf"pid {pid}.*SIGKILL") as died:
        list(items)
    assert is_prompt(time.monotonic() - began, 1.0)
    assert died.value.exit_code == -signal.SIGKILL
    assert list(items) == []
    others = set(pipeline)
    assert len(others) == 1
    assert pid not in others
    pipeline.stop()


def test_killed_while_a_reader_waits(tmp_path: Path) -> None:
    """A reader that waits for an item gets the error within a second."""
    pipeline = started([ops.pipe_in(tmp_path)], ops.wait_for_ever)
    reader, seen = reading(pipeline)
    pid = ops.pid_from(tmp_path)
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    reader.join()
    assert isinstance(seen[0], WorkerError)
    assert str(pid) in str(seen[0])
    assert isinstance(seen[1], float)
    assert is_prompt(seen[1] - killed, 1.0)
    pipeline.stop()


def test_killed_while_it_is_not_read() -> None:
    """A crash that was not noticed is an error of the current pass, and of no later one."""
    with started(range(1000)).auto_stop() as pipeline:
        items = iter(pipeline)
        pid = next(items)
        with watched(pid) as has_ended:
            os.kill(pid, signal.SIGKILL)
            assert has_ended(10)
        with pytest.raises(WorkerError, match=str(pid)):
            list(items)


def test_killed_again_and_again() -> None:
    """A process that is killed at random moments leaves nothing behind, and all items received before are complete."""
    pipeline = started(range(10**9), ops.double)
    received: list[int] = []

    def read_and_kill(after: int) -> None:
        for item in pipeline:
            received.append(item)
            if len(received) == after:
                os.kill(int(repr(pipeline).split()[-1].rstrip(">")), signal.SIGKILL)

    for after in (1, 7, 16, 22):
        received.clear()
        with pytest.raises(WorkerError, match="SIGKILL"):
            read_and_kill(after)
        assert received == [2 * number for number in range(len(received))]
    pipeline.stop()


def test_a_start_that_fails(tmp_path: Path) -> None:
    """The start raises the initializer's exception, or the process's exit; the next start tries again."""

    def initialized_by(function: Callable[[], None]) -> SubprocessPipeline[Any]:
        return run_in_subprocess(config_of("ab"), num_threads=1, initializer=function)

    failing = initialized_by(ops.fail_to_start)
    for _ in range(2):
        with pytest.raises(ops.OddError):
            failing.start()
    with pytest.raises(WorkerError, match=r"exit code 7 before it had started.*__main__"):
        initialized_by(ops.die_at_start).get_item()
    with pytest.raises(TimeoutError, match="did not start within"):
        initialized_by(partial(ops.wait_for_ever, ops.pipe_in(tmp_path))).start(timeout=0.01)


@pytest.mark.parametrize("wait", [True, False])
def test_stop_ends_a_function_that_never_returns(tmp_path: Path, *, wait: bool) -> None:
    """A function that never returns ends with its process at the timeout; a reader gets a ClosedError."""
    pipeline = started([ops.pipe_in(tmp_path)], ops.wait_for_ever)
    reader, seen = reading(pipeline)
    with watched(ops.pid_from(tmp_path)) as has_ended:
        pipeline.stop(timeout=0.1, wait=wait)
        reader.join()
        assert isinstance(seen[0], ClosedError)
        assert str(seen[0]).startswith("the pipeline was stopped")
        assert pipeline.state == "stopped"
        assert has_ended(0 if wait else 10)
    pipeline.stop()


def test_another_reader_takes_over() -> None:
    """A reader that waits while another pass begins gets a ClosedError, and no item of that pass."""
    config = PipelineBuilder().add_source(ops.LetterAndWait()).add_sink().get_config()
    pipeline = run_in_subprocess(config, num_threads=1)
    for _ in range(3):
        items = iter(pipeline)
        assert next(items) == "a"
        reader, seen = reading(items)
        others = iter(pipeline)
        assert next(others) == "a"
        reader.join()
        assert isinstance(seen[0], ClosedError)
        assert str(seen[0]).startswith("this pass has ended for this reader")
    pipeline.stop(timeout=0.1)


def test_stop_lets_the_process_end_by_itself(tmp_path: Path) -> None:
    """A process that is stopped runs its `atexit` functions."""
    mark = tmp_path / "mark"
    pipeline = run_in_subprocess(config_of("ab"), num_threads=1, initializer=partial(ops.touch_at_exit, mark))
    with pipeline.auto_stop():
        assert len(list(pipeline)) == 2
    assert mark.exists()


def test_dropped() -> None:
    """A pipeline that is dropped while it runs ends its process."""
    pipeline = started(range(10**9))
    with watched(pipeline.get_item()) as has_ended:
        del pipeline
        assert has_ended(10)


def test_prefetch_is_bounded(tmp_path: Path) -> None:
    """The pipeline computes no more items ahead than fit into the pipe, the sink and the stages."""
    builder = PipelineBuilder().add_source(range(100)).pipe(partial(ops.note, tmp_path, -1), max_items=1)
    pipeline = run_in_subprocess(builder.add_sink(2).get_config(), num_threads=1)
    assert pipeline.get_item() == 0
    noted = len(list(tmp_path.iterdir()))
    assert noted <= 3 + 2 + 6
    pipeline.stop()


def test_a_fork_of_the_parent() -> None:
    """A call in a forked child is refused, and the child's end doesn't affect the pipeline."""
    with started(range(10)).auto_stop() as pipeline:
        first = pipeline.get_item()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                pipeline.get_item()
            except UsageError:
                code = 0
            del pipeline
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert pipeline.get_item() == first
