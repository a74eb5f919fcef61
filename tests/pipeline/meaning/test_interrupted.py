"""Random pipelines whose readers leave early, or are stopped or interrupted, lose no item and end no pass early.

The items that a reader has when it leaves, or when its read fails, are a prefix of those of the sequential reference;
and a read that ends without an exception has read the whole pass.
"""

import itertools
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
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

THREADS = st.integers(1, 3)


def expected_of(graph: Graph) -> list[Any]:
    """Return the items of one pass of the reference."""
    return evaluate(graph)[0]


def is_prefix(found: list[Any], whole: list[Any], graph: Graph) -> bool:
    """Return whether items are a prefix of a pass, or, if its order is free, a part of it."""
    if graph.is_ordered():
        return found == whole[: len(found)]
    return Counter(flattened(found)) <= Counter(flattened(expected_of(graph.intact())))


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
    whole = expected_of(graph)
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


@given(
    graph=graphs(failing=True),
    threads=THREADS,
    after=st.integers(0, 60),
    continuous=st.booleans(),
    wait=st.booleans(),
    data=st.data(),
)
def test_stopped_from_another_thread(
    graph: Graph, threads: int, after: int, data: Any, *, continuous: bool, wait: bool
) -> None:
    """After a stop at any moment, the reader has read the whole pass, or gets a ClosedError or the failure."""
    graph = replace(graph, continuous=continuous)
    by_get_item: bool = data.draw(st.booleans())
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
    with ExitStack() as leaving:
        leaving.callback(pipeline.stop)
        leaving.callback(stopper.join)
        leaving.callback(read_some.release)
        leaving.callback(done.set)
        pipeline.start()
        items = items_of(pipeline, by_get_item=by_get_item)
        stopper.start()
        error: Exception | None = None
        try:
            for item in items:
                found.append(item)
                read_some.release()
        except (ClosedError, PipelineFailure) as raised:
            error = raised
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


def items_of(pipeline: Pipeline[Any], *, by_get_item: bool) -> Iterator[Any]:
    """Return an iterator over the items of the current pass."""
    return one_by_one(pipeline) if by_get_item else pipeline.get_iterator(timeout=PATIENCE_SECONDS)


def one_by_one(pipeline: Pipeline[Any]) -> Iterator[Any]:
    """Yield the items that `get_item` returns."""
    with suppress(EOFError):
        while True:
            yield pipeline.get_item(timeout=PATIENCE_SECONDS)


# The handler may be called in a finalizer or a collector's callback, where Python prints its exception and discards it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
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
    with ExitStack() as leaving:
        pipeline = build_pipeline(configured(graph), num_threads=threads)
        leaving.callback(pipeline.stop)
        timer = leaving.enter_context(interrupting())
        for _ in range(2):
            pipeline.start() if pipeline.state != "running" else None
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
