"""A run that can't be opened raises a failure with the reason, and the next run works once the reason is gone."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PipelineFailure, UsageError
from penstock.pipeline import Merge, Pipe, Pipeline, PipelineBuilder, ProcessExecutor
from tests.pipeline.running.reading import READINGS, Pass, read_by_for
from tests.profiles import IS_LONG
from tests.programs import forked


def _source() -> PipelineBuilder:
    return PipelineBuilder().add_source(range(9))


SHAPES: list[Callable[[Pipe], PipelineBuilder]] = [
    lambda pipe: _source().pipe(pipe.op, executor=pipe.executor),
    lambda pipe: _source().pipe(str).pipe(pipe.op, executor=pipe.executor),
    lambda pipe: _source().path_variants(lambda item: item % 2, [[], [pipe]]),
    lambda pipe: PipelineBuilder().add_source(Merge((SHAPES[0](pipe).add_sink().get_config(),))),
]


def _wait_for_end(pipeline: Pipeline) -> None:
    while pipeline.state == "running":
        pass


@pytest.mark.parametrize(("read", "shape"), [*zip(READINGS, SHAPES, strict=True)])
def test_an_executor_that_cannot_be_pickled(
    read: Callable[[Pipeline], Pass], shape: Callable[[Pipe], PipelineBuilder]
) -> None:
    """Each pass raises a failure with the stage and the reason; the end of an `auto_stop` raises one that is unread."""
    before = threading.active_count()
    lock = threading.Lock()
    for executor in (
        ProcessExecutor(2, initializer=lambda: None),
        ProcessExecutor(2, initializer=print, initargs=(lock,)),
    ):
        pipeline = shape(Pipe(abs, executor=executor)).add_sink().build(num_threads=2)
        for _ in range(2):
            found = read(pipeline)
            assert found.items == []
            assert found.failure is not None
            assert found.failure.stage.endswith("abs")
            assert isinstance(found.failure.__cause__, UsageError)
            assert "must be picklable" in str(found.failure)
        pipeline.stop()
        with pytest.raises(PipelineFailure, match="must be picklable"), pipeline.auto_stop():
            _wait_for_end(pipeline)
    assert threading.active_count() == before


def test_an_initializer_that_fails_once(tmp_path: Path) -> None:
    """An initializer's exception ends the pass; the next pass starts processes again."""
    path = tmp_path / "made later"
    executor = ProcessExecutor(1, initializer=path.rmdir)
    pipeline = PipelineBuilder().add_source([-1, -2]).pipe(abs, executor=executor).add_sink().build(num_threads=1)
    failed = read_by_for(pipeline)
    assert failed.failure is not None
    assert isinstance(failed.failure.__cause__, FileNotFoundError)
    path.mkdir()
    assert read_by_for(pipeline) == Pass([1, 2])
    pipeline.stop()


class _NoTextError(BaseException):
    def __str__(self) -> str:
        raise self


@pytest.mark.parametrize("error", [KeyboardInterrupt(), _NoTextError()], ids=["an interrupt", "without a text"])
def test_an_observer_that_raises_a_base_exception(error: BaseException) -> None:
    """A BaseException that an observer raises while a run is opened becomes a failure of the pass."""
    received: list[Any] = []

    def observe(event: Any) -> None:
        if getattr(event, "kind", "") == "source" and not received:
            received.append(event)
            raise error

    pipeline = PipelineBuilder().add_source(range(3)).add_sink().build(num_threads=1, observer=observe)
    found = read_by_for(pipeline)
    assert found.failure is not None
    assert found.failure.__cause__ is error
    assert read_by_for(pipeline) == Pass([0, 1, 2])
    pipeline.stop()


# Each number of spare descriptors is tried in a fork, which begins without the process that starts others.
PROGRAM = """
import os, resource, sys
from penstock.errors import PipelineFailure
from penstock.pipeline import PipelineBuilder, ProcessExecutor

def try_with(spare, in_processes):
    builder = PipelineBuilder().add_source(range(9))
    if in_processes:
        builder.pipe(abs, executor=ProcessExecutor(2))
    pipeline = builder.pipe(abs, concurrency=2).add_sink().build(num_threads=2)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(each) for each in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, limits[1]))
    try:
        outcome = sorted(pipeline.get_iterator(timeout=20))
    except (PipelineFailure, OSError) as error:  # an OSError of the read itself takes no item; the next read does
        outcome = "failed"
        assert "Too many open files" in str(error) + str(error.__cause__), error
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert outcome in ("failed", [*range(9)]), outcome
    assert sorted(pipeline.get_iterator(timeout=20)) == [*range(9)]
    pipeline.stop()
    print("failed" if outcome == "failed" else "worked", flush=True)

for in_processes, spares in ((False, (1, 4, 7, 11)), (True, {spares})):
    for spare in spares:
        child = os.fork()
        if child == 0:
            sys.exit(try_with(spare, in_processes))
        assert os.waitpid(child, 0)[1] == 0, (in_processes, spare)
    print("next")
"""


@pytest.mark.longer
@pytest.mark.usefixtures("forked_programs")
def test_descriptors_run_out() -> None:
    """If file descriptors run out while a run is opened, its pass is complete or fails; the next pass is complete."""
    code, printed, errors = forked.outcome(PROGRAM.replace("{spares}", "(1, 17, 35)" if IS_LONG else "(17, 35)"))
    assert code == 0, errors
    threads, processes, _ = printed.split("next\n")
    assert {*threads.split()} == {*processes.split()} == {"worked", "failed"}
