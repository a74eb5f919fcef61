"""Stages in process pools and thread pools that the user made."""

import asyncio
import os
import random  # noqa: TID251 - it must not be seeded here
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import pytest

from penstock.errors import PipelineFailure, WorkerError
from penstock.pipeline import PipelineBuilder, ProcessExecutor, build_pipeline, run_in_subprocess
from penstock.pipeline._processes import Executors
from tests.pipeline.processes import ops
from tests.promptness import PATIENCE_SECONDS


@pytest.fixture
def pool() -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of two forked processes, which begin with this process's generators."""
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as made:
        yield made


ENDS: list[BaseException] = [
    SystemExit(3),
    KeyboardInterrupt("mine"),
    asyncio.CancelledError("mine"),
    GeneratorExit("mine"),
    ops.EndOfTheWorldError("mine"),
]


@pytest.mark.parametrize("error", ENDS, ids=repr)
@pytest.mark.parametrize("where", ["own threads", "threads", "processes", "processes of ours", "subprocess"])
@pytest.mark.parametrize("op", [ops.raise_at_five, ops.yield_or_raise_at_five])
def test_exceptions_that_end_programs_are_never_dropped(error: BaseException, where: str, op: Any) -> None:
    """A BaseException that is no Exception ends the pass, in every place and whatever the limit of failures is."""
    if where != "own threads" and op is ops.yield_or_raise_at_five and not isinstance(error, SystemExit):
        return
    with ThreadPoolExecutor(2) as threads, ProcessPoolExecutor(1, mp_context=get_context("fork")) as processes:
        executors: dict[str, Any] = {
            "threads": threads,
            "processes": processes,
            "processes of ours": ProcessExecutor(1),
        }
        executor = executors.get(where)
        builder = PipelineBuilder().add_source([1, 2, 5, 3]).pipe(partial(op, error), executor=executor, name="end")
        config = builder.add_sink().get_config()
        make: Any = run_in_subprocess if where == "subprocess" else build_pipeline
        pipeline = make(config, num_threads=2, max_failures=-1)
        found: list[int] = []
        with pytest.raises(PipelineFailure) as failed:
            ops.into(found, pipeline)
        pipeline.stop()
    assert found == [1, 2]
    assert (failed.value.stage, failed.value.item) == ("end", "5")
    cause = failed.value.__cause__
    assert cause is not None
    assert (type(cause), cause.args) == (type(error), error.args)


def test_a_death_names_the_stage() -> None:
    """A broken pool is a WorkerError with the name of the stage and the remedy."""
    with ProcessPoolExecutor(1) as pool:
        stage = Executors().remote(pool, "decode")
        error = stage.send(ops.kill_at, [3], flatten=False).exception()
        assert error is not None
        explained = stage.explain(error)
        assert isinstance(explained, WorkerError)
        assert "stage 'decode'" in str(explained)
        assert "ProcessExecutor" in str(explained)
        error = stage.send(ops.double, [1], flatten=False).exception()
        assert error is not None
        assert isinstance(stage.explain(error), WorkerError)


def test_forked_processes_draw_differently(pool: ProcessPoolExecutor) -> None:
    """Forked processes begin with the global generators of their parent, but draw different numbers."""
    stage = Executors().remote(pool, "draws")
    drawn: set[Any] = set()
    while len({pid for pid, *_ in drawn}) < 2:
        sent = [stage.send(ops.draws, [None], flatten=False) for _ in range(2)]
        drawn |= {each.result()[0][1] for each in sent}
    assert len({number for _, number, _ in drawn}) == len({number for *_, number in drawn}) == len(drawn)


def test_threads_pickle_nothing() -> None:
    """In a pool of threads no object is pickled, and this process's generators are not seeded."""
    with ThreadPoolExecutor(1) as pool:
        before = random.getstate()
        stage = Executors().remote(pool, "here")
        assert stage.send(lambda _: os.getpid(), [None], flatten=False).result() == [(True, os.getpid())]
        assert random.getstate() == before


def test_cancelling() -> None:
    """A call that has not begun can be cancelled."""
    with ThreadPoolExecutor(1) as pool:
        gate = threading.Event()
        stage = Executors().remote(pool, "here")
        first = stage.send(lambda _: gate.wait(), [None], flatten=False)
        second = Executors().remote(pool, "there").send(lambda _: 1, [None], flatten=False)
        assert second.cancel()
        gate.set()
        assert first.result() == [(True, True)]
        assert second.cancelled()


class FailingExecutor(Executor):
    """An executor that fails each call itself, by an exception of `submit` or of the future."""

    def __init__(self, error: BaseException, *, at_once: bool) -> None:
        self._error = error
        self._at_once = at_once

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Fail."""
        del fn, args, kwargs
        if self._at_once:
            raise self._error
        failed: Future[Any] = Future()
        failed.set_exception(self._error)
        return failed


@pytest.mark.parametrize("error", [CancelledError("mine"), StopIteration(3), KeyError("mine"), *ENDS], ids=repr)
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("op", [ops.double, ops.up_to])
@pytest.mark.parametrize("order", ["input", "completion"])
def test_an_executor_fails_itself(error: BaseException, op: Any, order: Any, *, at_once: bool) -> None:
    """An exception of the executor ends the pass, also one that asyncio would take for a cancellation or an end."""
    builder = PipelineBuilder().add_source(range(9))
    builder.pipe(op, executor=FailingExecutor(error, at_once=at_once), concurrency=2, output_order=order, name="op")
    pipeline = builder.add_sink().build(num_threads=1, max_failures=-1)
    with pytest.raises(PipelineFailure) as failed:
        list(pipeline.get_iterator(timeout=PATIENCE_SECONDS))
    pipeline.stop(timeout=PATIENCE_SECONDS)
    assert failed.value.stage == "op"
    cause = failed.value.__cause__
    assert cause is not None
    assert error in {cause, cause.__cause__}
