"""The ends of a pipeline in a process of its own: stops, crashes, forks, and programs that end."""

import os
import select
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
from tests.pipeline.processes.programs import SECONDS, check_end
from tests.promptness import is_prompt

pytestmark = [pytest.mark.each_value, pytest.mark.usefixtures("forked_programs")]


def config_of(source: Any, op: Callable[[Any], object] = ops.pid_of) -> PipelineConfig:
    """Return a pipeline of a function."""
    return PipelineBuilder().add_source(source).pipe(op).add_sink().get_config()


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """Return a named pipe."""
    os.mkfifo(tmp_path / "ready")
    return tmp_path / "ready"


def test_killed_while_it_is_read() -> None:
    """A process that is killed is a WorkerError with pid and signal; the next `for` starts another process."""
    pipeline = run_in_subprocess(config_of(range(1000)), num_threads=1)
    items = iter(pipeline)
    pid = next(items)
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(WorkerError, match=rf"pid {pid}.*SIGKILL") as died:
        list(items)
    assert is_prompt(time.monotonic() - began, SECONDS)
    assert died.value.exit_code == -signal.SIGKILL
    assert list(items) == []
    others = set(pipeline)
    assert len(others) == 1
    assert pid not in others
    pipeline.stop()


def test_killed_while_a_reader_waits(ready: Path) -> None:
    """A reader that waits for an item gets the error within a second."""
    config = PipelineBuilder().add_source([str(ready)]).pipe(ops.wait_for_ever).add_sink().get_config()
    pipeline = run_in_subprocess(config, num_threads=1)
    seen: list[BaseException | float] = []

    def read() -> None:
        try:
            pipeline.get_item()
        except WorkerError as error:
            seen.extend((error, time.monotonic()))

    reader = threading.Thread(target=read)
    reader.start()
    with ready.open() as pipe:
        pid = int(pipe.readline())
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    reader.join()
    assert isinstance(seen[0], WorkerError)
    assert str(pid) in str(seen[0])
    assert isinstance(seen[1], float)
    assert is_prompt(seen[1] - killed, SECONDS)
    pipeline.stop()


def test_killed_while_it_is_not_read() -> None:
    """A crash that was not noticed is an error of the current pass, and of no later one."""
    with run_in_subprocess(config_of(range(1000)), num_threads=1).auto_stop() as pipeline:
        items = iter(pipeline)
        pid = next(items)
        ended = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        assert select.select([ended], [], [], 10)[0]
        os.close(ended)
        with pytest.raises(WorkerError, match=str(pid)):
            list(items)


def test_a_start_that_fails() -> None:
    """The start raises the initializer's exception, or the process's exit; the next start tries again."""
    failing = run_in_subprocess(config_of("ab"), num_threads=1, initializer=ops.fail_to_start)
    for _ in range(2):
        with pytest.raises(ops.OddError):
            failing.start()
    dying = run_in_subprocess(config_of("ab"), num_threads=1, initializer=ops.die_at_start)
    with pytest.raises(WorkerError, match=r"exit code 7 before it had started.*__main__"):
        dying.get_item()


def test_a_start_that_takes_too_long(ready: Path) -> None:
    """A start that takes longer than its timeout raises TimeoutError, and the process has ended."""
    slow = run_in_subprocess(config_of("ab"), num_threads=1, initializer=partial(ops.wait_for_ever, str(ready)))
    with pytest.raises(TimeoutError, match="did not start within"):
        slow.start(timeout=0.01)


def read_all(pipeline: SubprocessPipeline[Any], seen: list[BaseException | None]) -> None:
    """Read a pass, and append its exception, or None."""
    try:
        list(pipeline)
        seen.append(None)
    except ClosedError as error:
        seen.append(error)


@pytest.mark.parametrize("wait", [True, False])
def test_stop_ends_a_function_that_never_returns(ready: Path, *, wait: bool) -> None:
    """A function that never returns ends with its process at the timeout; a reader gets a ClosedError."""
    config = PipelineBuilder().add_source([str(ready)]).pipe(ops.wait_for_ever).add_sink().get_config()
    pipeline = run_in_subprocess(config, num_threads=1)
    seen: list[BaseException | None] = []
    reader = threading.Thread(target=read_all, args=(pipeline, seen))
    reader.start()
    with ready.open() as pipe:
        process = os.pidfd_open(int(pipe.readline()))
    pipeline.stop(timeout=0.1, wait=wait)
    reader.join()
    assert isinstance(seen[0], ClosedError)
    assert str(seen[0]).startswith("the pipeline was stopped")
    assert pipeline.state == "stopped"
    assert select.select([process], [], [], 0 if wait else 10)[0]
    os.close(process)
    pipeline.stop()


def test_another_reader_takes_over() -> None:
    """A reader that waits while another pass begins gets a ClosedError, and no item of that pass."""
    config = PipelineBuilder().add_source(ops.LetterAndWait()).add_sink().get_config()
    pipeline = run_in_subprocess(config, num_threads=1)
    for _ in range(5):
        items = iter(pipeline)
        assert next(items) == "a"
        seen: list[BaseException | None] = []

        def read(items: Any = items, seen: list[BaseException | None] = seen) -> None:
            read_all(items, seen)

        reader = threading.Thread(target=read)
        reader.start()
        others = iter(pipeline)
        assert next(others) == "a"
        reader.join()
        assert isinstance(seen[0], ClosedError)
        assert str(seen[0]).startswith("this pass has ended for this reader")
    pipeline.stop(timeout=0.1)


def test_stop_lets_the_process_end_by_itself(tmp_path: Path) -> None:
    """A process that is stopped runs its `atexit` functions."""
    config = config_of("ab", ops.double)
    mark = tmp_path / "mark"
    with run_in_subprocess(config, num_threads=1, initializer=partial(ops.touch_at_exit, mark)).auto_stop() as pipeline:
        assert list(pipeline) == ["aa", "bb"]
    assert mark.exists()


def test_dropped() -> None:
    """A pipeline that is dropped while it runs ends its process."""
    pipeline = run_in_subprocess(config_of(range(10**9)), num_threads=1)
    process = os.pidfd_open(pipeline.get_item())
    del pipeline
    assert select.select([process], [], [], 10)[0]
    os.close(process)


def test_iterators_keep_it() -> None:
    """An iterator keeps the pipeline that it reads alive."""
    assert len(list(run_in_subprocess(config_of(range(10)), num_threads=1))) == 10


def test_prefetch_is_bounded(tmp_path: Path) -> None:
    """The pipeline computes no more items ahead than fit into the pipe, the sink and the stages."""
    builder = PipelineBuilder().add_source(range(100)).pipe(partial(ops.note, tmp_path), max_items=1)
    pipeline = run_in_subprocess(builder.add_sink(2).get_config(), num_threads=1)
    assert pipeline.get_item() == 0
    noted = len(list(tmp_path.iterdir()))
    assert noted <= 3 + 2 + 6
    pipeline.stop()


def test_a_fork_of_the_parent() -> None:
    """A call in a forked child is refused, and the child's end doesn't affect the pipeline."""
    with run_in_subprocess(config_of(range(10)), num_threads=1).auto_stop() as pipeline:
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


PARENT = """
import sys, threading
from penstock.pipeline import PipelineBuilder, run_in_subprocess
from tests.pipeline.processes import ops

if __name__ == "__main__":
    config = PipelineBuilder().add_source(range(10**9)).pipe(ops.pid_of).add_sink().get_config()
    pipeline = run_in_subprocess(config, num_threads=1, start_method=sys.argv[1])
    print(pipeline.get_item(), flush=True)
    if sys.argv[2] == "reads":
        for item in pipeline:
            pass
    if sys.argv[2] == "waits":
        threading.Event().wait()
    sys.stdin.readline()  # the test watches the process by now
"""


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
@pytest.mark.parametrize(
    ("end", "doing"), [(signal.SIGKILL, "waits"), (signal.SIGKILL, "reads"), (signal.SIGINT, "reads"), (None, "ends")]
)
def test_nothing_outlives_the_parent(start_method: str, end: signal.Signals | None, doing: str, tmp_path: Path) -> None:
    """However the program ends, the process ends within a second, and prints nothing."""
    check_end(tmp_path, PARENT, end, start_method, doing)


def test_killed_again_and_again() -> None:
    """A process that is killed at random moments leaves nothing behind, and all items received before are complete."""
    pipeline: SubprocessPipeline = run_in_subprocess(config_of(range(10**9), ops.double), num_threads=1)
    received: list[int] = []

    def read_and_kill(after: int) -> None:
        for item in pipeline:
            received.append(item)
            if len(received) == after:
                os.kill(int(repr(pipeline).split()[-1].rstrip(">")), signal.SIGKILL)

    for attempt in range(8):
        received.clear()
        with pytest.raises(WorkerError, match="SIGKILL"):
            read_and_kill(3 * attempt + 1)
        assert received == [2 * number for number in range(len(received))]
    pipeline.stop()
