"""Random pipelines put out the items of the sequential reference, with any concurrency and any way of reading."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PipelineFailure
from penstock.pipeline import Pipeline, build_pipeline
from tests.pipeline.meaning.drawing import graphs
from tests.pipeline.meaning.graphs import BrokenError, Graph, Step, all_stages, configured, flattened
from tests.pipeline.meaning.reference import Failure, evaluate
from tests.pipeline.running.reading import READINGS, Pass, read_by_for, read_by_iterator

THREADS = st.integers(1, 4)
READING = st.sampled_from(READINGS)
ReadPass = Callable[[Pipeline], Pass]


def leaves(items: list[Any]) -> Counter[Any]:
    """Count the leaves of items in nested lists."""
    return Counter(flattened(items))


def run(graph: Graph, threads: int, readings: Sequence[ReadPass], max_failures: int = 0) -> list[Pass]:
    """Return the passes of one pipeline."""
    pipeline = build_pipeline(configured(graph), num_threads=threads, max_failures=max_failures)
    try:
        return [read(pipeline) for read in readings]
    finally:
        pipeline.stop()


def check_whole(graph: Graph, found: Pass) -> None:
    """Compare one pass of a pipeline in which nothing fails with the reference."""
    assert found.failure is None
    expected, _ = evaluate(configured(graph))
    if graph.is_ordered():
        assert found.items == expected
    elif not graph.drops_last():
        assert leaves(found.items) == leaves(expected)
        if not any(isinstance(item, list) for item in expected):
            assert Counter(found.items) == Counter(expected)
    else:
        whole, _ = evaluate(configured(graph.intact()))
        assert leaves(found.items) <= leaves(whole)


@given(graph=graphs(failing=False), threads=THREADS, readings=st.lists(READING, min_size=1, max_size=3))
def test_equals_the_reference(graph: Graph, threads: int, readings: list[ReadPass]) -> None:
    """Each pass has the reference's items: in its order if every stage keeps it, else the same number of each."""
    for found in run(graph, threads, readings):
        check_whole(graph, found)


@given(graph=graphs(failing=False), threads=THREADS, count=st.integers(2, 3))
def test_continuous_sources(graph: Graph, threads: int, count: int) -> None:
    """The passes of a continuous source are equal, and no item moves from one to the next."""
    graph = replace(graph, continuous=True)
    for found in run(graph, threads, [read_by_for, read_by_iterator, read_by_for][:count]):
        check_whole(graph, found)


@given(graph=graphs(failing=True, ordered=True), threads=THREADS, readings=st.lists(READING, min_size=1, max_size=2))
def test_in_order_up_to_the_failure(graph: Graph, threads: int, readings: list[ReadPass]) -> None:
    """If the order is kept, exactly the items before the first failure are read, then the failure; in each pass."""
    expected, failure = evaluate(configured(graph))
    for found in run(graph, threads, readings):
        assert found.items == expected
        assert (found.failure is None) == (failure is None)
        if found.failure is not None and failure is not None:
            check_failure(found.failure, failure)


def check_failure(found: PipelineFailure, expected: Failure) -> None:
    """Compare the stage, the item and the exception of a failure with the reference."""
    assert isinstance(found.__cause__, type(expected.error))
    assert found.__cause__.args == expected.error.args
    if expected.stage is not None:
        assert found.stage == expected.stage
        assert found.item[:20] == repr(expected.item)[:20]


@given(graph=graphs(failing=True, ordered=False), threads=THREADS, read=READING)
def test_out_of_order_up_to_a_failure(graph: Graph, threads: int, read: ReadPass) -> None:
    """If the order is free, all items are the reference's, and one of the failures ends the pass."""
    found = run(graph, threads, [read])[0]
    whole, _ = evaluate(configured(graph.intact()))
    assert leaves(found.items) <= leaves(whole)
    _, failure = evaluate(configured(graph))
    if not graph.drops_last():
        assert (found.failure is None) == (failure is None)
    if found.failure is not None:
        assert isinstance(found.failure.__cause__, BrokenError)


@given(graph=graphs(failing=True), threads=THREADS, read=READING)
def test_any_number_of_dropped_items(graph: Graph, threads: int, read: ReadPass) -> None:
    """If any number of items may be dropped, all others are read; only a failing source ends the pass."""
    pipeline = build_pipeline(configured(graph), num_threads=threads, max_failures=-1)
    try:
        found = read(pipeline)
        dropped = pipeline.dropped()
    finally:
        pipeline.stop()
    expected_drops: list[Failure] = []
    expected, failure = evaluate(configured(graph), -1, expected_drops)
    if graph.is_ordered():
        assert found.items == expected
        if failure is None:
            assert Counter((item.stage, str(item.error)) for item in dropped) == Counter(
                (drop.stage, str(drop.error)) for drop in expected_drops
            )
    else:
        whole, _ = evaluate(configured(graph.intact()))
        assert leaves(found.items) <= leaves(whole)
    if failure is None or not graph.drops_last():
        assert (found.failure is None) == (failure is None)


@given(data=st.data(), threads=THREADS, allowed=st.integers(0, 3))
def test_as_many_failures_as_allowed(data: Any, threads: int, allowed: int) -> None:
    """If one stage fails and the order is kept, exactly the first failure beyond the limit ends the pass."""
    graph: Graph = data.draw(graphs(failing=True, ordered=True))
    failing = [stage.name for stage in all_stages(graph.stages) if isinstance(stage, Step) and stage.fails_at]
    made_intact = set(failing[1:])
    graph = replace(
        graph,
        stages=tuple(
            replace(stage, fails_at=frozenset()) if isinstance(stage, Step) and stage.name in made_intact else stage
            for stage in graph.stages
        ),
    )
    if any(not isinstance(stage, Step) for stage in all_stages(graph.stages)):
        graph = replace(graph, stages=tuple(stage for stage in graph.stages if isinstance(stage, Step)))
    expected, failure = evaluate(configured(graph), allowed)
    found = run(graph, threads, [read_by_for], max_failures=allowed)[0]
    assert found.items == expected
    assert (found.failure is None) == (failure is None)
