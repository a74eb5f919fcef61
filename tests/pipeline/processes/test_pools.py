"""Stages in process pools and thread pools that the user made."""

import asyncio
import itertools
import os
import random  # noqa: TID251 - it must not be seeded here
import threading
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


def ends() -> list[BaseException]:
    """Return exceptions that are no Exceptions, or that asyncio takes for something else."""
    return [
        *(SystemExit(3), ops.EndOfTheWorldError("mine"), KeyboardInterrupt("mine")),
        *(asyncio.CancelledError("mine"), GeneratorExit("mine")),
    ]


@pytest.mark.parametrize("where", ["own threads", "threads", "processes", "processes of ours", "subprocess"])
def test_exceptions_that_end_programs_are_never_dropped(where: str) -> None:
    """A BaseException that is no Exception ends the pass, in every place and whatever the limit of failures is."""
    errors = ends() if "thread" in where else ends()[:2]
    make: Any = run_in_subprocess if where == "subprocess" else build_pipeline
    with ThreadPoolExecutor(2) as threads, ProcessPoolExecutor(1, mp_context=get_context("fork")) as processes:
        of_places: dict[str, Any] = {
            "threads": threads,
            "processes": processes,
            "processes of ours": ProcessExecutor(1),
        }
        for error, op in [*((error, ops.raise_at_five) for error in errors), (errors[0], ops.yield_or_raise_at_five)]:
            builder = PipelineBuilder().add_source([1, 2, 5, 3])
            builder.pipe(partial(op, error), executor=of_places.get(where), name="end")
            pipeline = make(builder.add_sink().get_config(), num_threads=2, max_failures=-1)
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


def test_forked_processes_draw_differently() -> None:
    """Forked processes begin with the global generators of their parent, but draw different numbers."""
    drawn: set[Any] = set()
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
        stage = Executors().remote(pool, "draws")
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
    """A call that has not begun can be cancelled; one that has is waited for."""
    with ThreadPoolExecutor(1) as pool:
        gate, begun = threading.Event(), threading.Event()

        def wait(_: object) -> bool:
            begun.set()
            return gate.wait(PATIENCE_SECONDS)

        first = Executors().remote(pool, "here").send(wait, [None], flatten=False)
        second = Executors().remote(pool, "there").send(lambda _: 1, [None], flatten=False)
        assert second.cancel()
        assert begun.wait(PATIENCE_SECONDS)
        assert not first.cancel()
        gate.set()
        assert first.result() == [(True, True)]
        assert second.cancelled()


class _FailingExecutor(Executor):
    """An executor that fails each call itself, by an exception of `submit` or of the future."""

    def __init__(self, error: BaseException, *, at_once: bool) -> None:
        self._error = error
        self._at_once = at_once

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        del fn, args, kwargs
        if self._at_once:
            raise self._error
        failed: Future[Any] = Future()
        failed.set_exception(self._error)
        return failed


@pytest.mark.parametrize("op", [ops.double, ops.up_to])
@pytest.mark.parametrize("order", ["input", "completion"])
def test_an_executor_fails_itself(op: Any, order: Any) -> None:
    """An exception of the executor ends the pass, also one that asyncio would take for a cancellation or an end."""
    errors = [CancelledError("mine"), StopIteration(3), KeyError("mine"), *ends()]
    for error, at_once in itertools.product(errors, (False, True)):
        executor = _FailingExecutor(error, at_once=at_once)
        builder = PipelineBuilder().add_source(range(9))
        builder.pipe(op, executor=executor, concurrency=2, output_order=order, name="op")
        pipeline = builder.add_sink().build(num_threads=1, max_failures=-1)
        with pytest.raises(PipelineFailure) as failed:
            list(pipeline.get_iterator(timeout=PATIENCE_SECONDS))
        pipeline.stop(timeout=PATIENCE_SECONDS)
        assert failed.value.stage == "op"
        cause = failed.value.__cause__
        assert cause is not None
        assert error in {cause, cause.__cause__}
