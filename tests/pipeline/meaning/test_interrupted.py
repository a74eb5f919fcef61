"""Random pipelines whose readers leave early, or are stopped or interrupted, lose no item and end no pass early.

The items that a reader has when it leaves, or when its read fails, are a prefix of those of the sequential reference;
and a read that ends without an exception has read the whole pass.
"""

import itertools
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ClosedError, PipelineFailure
from penstock.pipeline import Pipeline, build_pipeline
from tests.pipeline.meaning.drawing import graphs
from tests.pipeline.meaning.graphs import BrokenError, Graph, configured, flattened
from tests.pipeline.meaning.reference import evaluate
from tests.pipeline.running.reading import PATIENCE_SECONDS
from tests.pipeline.running.test_signal_handlers import InterruptedError_, Timer, interrupting
from tests.profiles import in_short

THREADS = st.integers(1, 3)


def is_prefix(found: list[Any], whole: list[Any], graph: Graph) -> bool:
    """Return whether items are a prefix of a pass, or, if its order is free, a part of it."""
    if graph.is_ordered():
        return found == whole[: len(found)]
    return Counter(flattened(found)) <= Counter(flattened(evaluate(graph.intact())[0]))


@in_short(10)
@given(
    graph=graphs(failing=False, ordered=True),
    threads=THREADS,
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    continuous=st.booleans(),
    by_get_item=st.booleans(),
)
def test_left_early(graph: Graph, threads: int, counts: list[int], *, continuous: bool, by_get_item: bool) -> None:
    """`for`s that are left after some items each read from the start of the source, or continue a continuous one.

    Of a continuous source they read pass after pass, each complete, and no item twice.
    """
    whole = evaluate(graph)[0]
    with build_pipeline(configured(replace(graph, continuous=continuous)), num_threads=threads).auto_stop() as pipeline:
        at = 0
        for number, count in enumerate(counts):
            if continuous and by_get_item and number % 2 and at < len(whole):
                assert pipeline.get_item(timeout=PATIENCE_SECONDS) == whole[at]
                at += 1
                continue
            at = at if continuous and (at < len(whole) or number == 0) else 0  # an empty rest is skipped
            found = list(itertools.islice(pipeline.get_iterator(timeout=PATIENCE_SECONDS), count))
            assert found == whole[at : at + count]
            at = at + count if len(found) == count else 0
        if not continuous:
            assert [*pipeline] == whole


@in_short(10)
@given(
    graph=graphs(failing=True),
    threads=THREADS,
    after=st.integers(0, 60),
    continuous=st.booleans(),
    wait=st.booleans(),
    by_get_item=st.booleans(),
)
def test_stopped_from_another_thread(
    graph: Graph, threads: int, after: int, *, continuous: bool, wait: bool, by_get_item: bool
) -> None:
    """After a stop at any moment, the reader has read the whole pass, or gets a ClosedError or the failure."""
    graph = replace(graph, continuous=continuous)
    whole, failure = evaluate(graph)
    pipeline = build_pipeline(configured(graph), num_threads=threads)
    read_some, done = threading.Semaphore(0), threading.Event()

    def stop() -> None:
        for _ in range(after):
            read_some.acquire()
            if done.is_set():
                break
        pipeline.stop(wait=wait)

    stopper = threading.Thread(target=stop)
    found: list[Any] = []
    error: Exception | None = None
    pipeline.start()
    items = _one_by_one(pipeline) if by_get_item else pipeline.get_iterator(timeout=PATIENCE_SECONDS)
    stopper.start()
    try:
        for item in items:
            found.append(item)
            read_some.release()
    except (ClosedError, PipelineFailure) as raised:
        error = raised
    finally:
        done.set()
        read_some.release()
        stopper.join()
        pipeline.stop()
    assert pipeline.state == "stopped"
    assert is_prefix(found, whole, graph)
    match error:
        case None:
            assert failure is None or graph.drops_last()
            assert found == whole or not graph.is_ordered()
        case ClosedError():
            assert str(error).startswith("the pipeline was stopped")
        case _:
            assert isinstance(error.__cause__, BrokenError)


def _one_by_one(pipeline: Pipeline[Any]) -> Iterator[Any]:
    with suppress(EOFError):
        while True:
            yield pipeline.get_item(timeout=PATIENCE_SECONDS)


# The handler may be called in a finalizer or a collector's callback, where Python prints its exception and discards it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@in_short(10)
@given(
    graph=graphs(failing=True, ordered=True),
    threads=THREADS,
    delays=st.lists(st.floats(0.00001, 0.002), min_size=1, max_size=20),
    continuous=st.booleans(),
)
def test_interrupted_by_a_signal_handler(graph: Graph, threads: int, delays: list[float], *, continuous: bool) -> None:
    """A handler that raises at random moments of two passes doesn't change the items that are read."""
    graph = replace(graph, continuous=continuous)
    whole, failure = evaluate(graph)
    with build_pipeline(configured(graph), num_threads=threads).auto_stop() as pipeline, interrupting() as timer:
        for number in range(2):
            pipeline.start() if number and pipeline.state != "running" else None
            found, failed = read_interrupted(pipeline, timer, delays)
            assert found == whole
            assert (failed is None) == (failure is None)


def read_interrupted(
    pipeline: Pipeline[Any], timer: Timer, delays: list[float]
) -> tuple[list[Any], PipelineFailure | None]:
    """Return the items of a pass, and its failure, read while a handler raises after each delay."""
    found: list[Any] = []
    items, ended, left = pipeline.get_iterator(timeout=PATIENCE_SECONDS), False, [*delays]
    while not ended:
        if left:
            signal.setitimer(signal.ITIMER_REAL, left.pop())
        try:
            timer.armed = True
            for item in items:
                found.append(item)  # noqa: PERF402 - keeps the items before an exception
            ended = True
            timer.armed = False
        except InterruptedError_:
            continue
        except PipelineFailure as failure:
            timer.armed = False
            return found, failure
    return found, None
