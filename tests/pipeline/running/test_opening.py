"""A run that can't be opened raises a failure with the reason, and the next run works once the reason is gone."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PipelineFailure, UsageError
from penstock.pipeline import Merge, Pipe, Pipeline, PipelineBuilder, ProcessExecutor
from tests.pipeline.running.reading import READINGS, Pass

ON_EACH_READ = pytest.mark.parametrize("read", READINGS)

UNPICKLABLE = {
    "an initializer": lambda: ProcessExecutor(2, initializer=lambda: None),
    "an initializer's argument": lambda: ProcessExecutor(2, initializer=print, initargs=(threading.Lock(),)),
}

SHAPES: dict[str, Callable[[Pipe], PipelineBuilder]] = {
    "a pipe": lambda pipe: PipelineBuilder().add_source(range(9)).pipe(pipe.op, executor=pipe.executor),
    "after another": lambda pipe: (
        PipelineBuilder().add_source(range(9)).pipe(str).pipe(pipe.op, executor=pipe.executor)
    ),
    "on a path": lambda pipe: PipelineBuilder().add_source(range(9)).path_variants(lambda item: item % 2, [[], [pipe]]),
    "merged": lambda pipe: PipelineBuilder().add_source(
        Merge((PipelineBuilder().add_source(range(9)).pipe(pipe.op, executor=pipe.executor).add_sink().get_config(),))
    ),
}


@ON_EACH_READ
@pytest.mark.parametrize("part", UNPICKLABLE)
@pytest.mark.parametrize("shape", SHAPES)
def test_an_executor_that_cannot_be_pickled(read: Callable[[Pipeline], Pass], part: str, shape: str) -> None:
    """Each pass raises a failure with the stage and the reason; none hangs or ends empty."""
    if shape != "a pipe" and (read is not READINGS[0] or part != "an initializer"):
        return
    pipeline = SHAPES[shape](Pipe(abs, executor=UNPICKLABLE[part]())).add_sink().build(num_threads=2)
    before = threading.active_count()
    for _ in range(2):
        found = read(pipeline)
        assert found.items == []
        assert found.failure is not None
        assert found.failure.stage.endswith("abs")
        assert isinstance(found.failure.__cause__, UsageError)
        assert "must be picklable" in str(found.failure)
    pipeline.stop()
    assert threading.active_count() == before


def test_an_unread_failure_to_open() -> None:
    """The end of the block of `auto_stop` raises a failure to open that was not read."""
    pipeline = SHAPES["a pipe"](Pipe(abs, executor=UNPICKLABLE["an initializer"]())).add_sink().build(num_threads=2)

    def leave() -> None:
        with pipeline.auto_stop():
            while pipeline.state == "running":
                pass

    with pytest.raises(PipelineFailure, match="must be picklable"):
        leave()


def test_an_initializer_that_fails_once(tmp_path: Path) -> None:
    """An initializer's exception ends the pass; the next pass starts processes again."""
    path = tmp_path / "made later"
    executor = ProcessExecutor(1, initializer=path.rmdir)
    pipeline = PipelineBuilder().add_source([-1, -2]).pipe(abs, executor=executor).add_sink().build(num_threads=1)
    failed = READINGS[0](pipeline)
    assert failed.failure is not None
    assert isinstance(failed.failure.__cause__, FileNotFoundError)
    path.mkdir()
    assert READINGS[0](pipeline) == Pass([1, 2])
    pipeline.stop()


class BrokenError(BaseException):
    """A BaseException that is no Exception."""


class _NoTextError(BaseException):
    """A BaseException whose text can't be had."""

    def __str__(self) -> str:
        raise BrokenError


@pytest.mark.parametrize("error", [BrokenError("mine"), KeyboardInterrupt(), SystemExit(1), _NoTextError()], ids=repr)
def test_an_observer_that_raises_a_base_exception(error: BaseException) -> None:
    """A BaseException that an observer raises while a run is opened becomes a failure of the pass."""
    received: list[Any] = []

    def observe(event: Any) -> None:
        if getattr(event, "kind", "") == "source" and not received:
            received.append(event)
            raise error

    pipeline = PipelineBuilder().add_source(range(3)).add_sink().build(num_threads=1, observer=observe)
    found = READINGS[0](pipeline)
    assert found.failure is not None
    assert found.failure.__cause__ is error
    assert READINGS[0](pipeline) == Pass([0, 1, 2])
    pipeline.stop()


PROGRAM = """
import os, resource, sys
from penstock.errors import PipelineFailure
from penstock.pipeline import PipelineBuilder, ProcessExecutor

if __name__ == "__main__":
    builder = PipelineBuilder().add_source(range(9))
    if sys.argv[1] == "processes":
        builder.pipe(abs, executor=ProcessExecutor(2))
    pipeline = builder.pipe(abs, concurrency=2).add_sink().build(num_threads=2)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if sys.argv[1] == "processes":
        os.close(os.open("/dev/null", os.O_RDONLY))
    used = max(int(each) for each in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + int(sys.argv[2]), limits[1]))
    failure = None
    try:
        found = sorted(pipeline.get_iterator(timeout=20))
    except PipelineFailure as error:
        found, failure = None, error
    except OSError as error:  # raised by the read itself, which takes no item; the next read does
        found, failure = None, error
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (found is None) != (failure is None)
    assert found is None or found == [*range(9)], found
    assert failure is None or "Too many open files" in str(failure) + str(failure.__cause__), failure
    again = sorted(pipeline.get_iterator(timeout=20))
    assert again == [*range(9)], again
    pipeline.stop()
    print("worked" if failure is None else "failed", flush=True)
"""


@pytest.mark.each_value
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_descriptors_run_out(kind: str) -> None:
    """If file descriptors run out while a run is opened, its pass is complete or fails; the next pass is complete."""
    outcomes: set[str] = set()
    for spare in range(1, 12, 2) if kind == "threads" else range(1, 40, 8):
        program = subprocess.run(
            [sys.executable, "-c", PROGRAM, kind, str(spare)], capture_output=True, text=True, timeout=60, check=False
        )
        assert program.returncode == 0, (spare, program.stderr)
        outcomes.add(program.stdout.split()[-1])
    assert outcomes == {"worked", "failed"}
