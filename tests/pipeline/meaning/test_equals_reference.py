"""Random pipelines put out the items of the sequential reference, with any concurrency and any way of reading."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PipelineFailure
from penstock.pipeline import DroppedItem, Pipeline, build_pipeline
from tests.pipeline.meaning.drawing import graphs
from tests.pipeline.meaning.graphs import BrokenError, Graph, Step, configured, flattened
from tests.pipeline.meaning.reference import Failure, evaluate
from tests.pipeline.running.reading import READINGS, Pass, read_by_for
from tests.profiles import in_short

THREADS = st.integers(1, 4)
READING = st.sampled_from(READINGS)
ReadPass = Callable[[Pipeline], Pass]


def leaves(items: list[Any]) -> Counter[Any]:
    """Count the leaves of items in nested lists."""
    return Counter(flattened(items))


def run(
    graph: Graph, threads: int, readings: Sequence[ReadPass], max_failures: int | Fraction = 0
) -> tuple[list[Pass], list[DroppedItem]]:
    """Return the passes of one pipeline, and the items that it dropped."""
    pipeline = build_pipeline(configured(graph), num_threads=threads, max_failures=max_failures)
    try:
        return [read(pipeline) for read in readings], [*pipeline.dropped()]
    finally:
        pipeline.stop()


def check_whole(graph: Graph, found: Pass) -> None:
    """Compare one pass of a pipeline in which nothing fails with the reference."""
    assert found.failure is None
    expected, _ = evaluate(graph)
    if graph.is_ordered():
        assert found.items == expected
    elif not graph.drops_last():
        assert leaves(found.items) == leaves(expected)
        if not any(isinstance(item, list) for item in expected):
            assert Counter(found.items) == Counter(expected)
    else:
        whole, _ = evaluate(graph.intact())
        assert leaves(found.items) <= leaves(whole)


@in_short(10)
@given(
    graph=graphs(failing=False),
    threads=THREADS,
    readings=st.lists(READING, min_size=1, max_size=3),
    continuous=st.booleans(),
)
def test_equals_the_reference(graph: Graph, threads: int, readings: list[ReadPass], *, continuous: bool) -> None:
    """Each pass has the reference's items: in its order if every stage keeps it, else the same number of each.

    The passes of a continuous source are equal, and no item moves from one to the next.
    """
    graph = replace(graph, continuous=continuous)
    for found in run(graph, threads, readings)[0]:
        check_whole(graph, found)


@in_short(10)
@given(
    graph=graphs(failing=True, ordered=True),
    threads=THREADS,
    readings=st.lists(READING, min_size=1, max_size=2),
    allowed=st.sampled_from([0, 0, 1, 3]),
)
def test_in_order_up_to_the_failure(graph: Graph, threads: int, readings: list[ReadPass], allowed: int) -> None:
    """If the order is kept, exactly the items before the first failure are read, then the failure; in each pass.

    If some failures of a stage are allowed, and others don't fail, that is the first one beyond the limit.
    """
    if allowed:
        graph = with_one_failing_step(graph)
    expected, failure = evaluate(graph, allowed)
    for found in run(graph, threads, readings, allowed)[0]:
        assert found.items == expected
        assert (found.failure is None) == (failure is None)
        if found.failure is not None and failure is not None:
            check_failure(found.failure, failure)


def with_one_failing_step(graph: Graph) -> Graph:
    """Return a graph of the same steps, of which only the first that fails does so."""
    steps = [stage for stage in graph.stages if isinstance(stage, Step)]
    first = next((step for step in steps if step.fails_at), None)
    return replace(
        graph, stages=tuple(step if step is first else replace(step, fails_at=frozenset()) for step in steps)
    )


def check_failure(found: PipelineFailure, expected: Failure) -> None:
    """Compare the stage, the item and the exception of a failure with the reference."""
    assert isinstance(found.__cause__, type(expected.error))
    assert found.__cause__.args == expected.error.args
    if expected.stage is not None:
        assert found.stage == expected.stage
        assert found.item[:20] == repr(expected.item)[:20]


@in_short(10)
@given(graph=graphs(failing=True, ordered=False), threads=THREADS, read=READING)
def test_out_of_order_up_to_a_failure(graph: Graph, threads: int, read: ReadPass) -> None:
    """If the order is free, all items are the reference's, and one of the failures ends the pass."""
    (found,), _ = run(graph, threads, [read])
    whole, _ = evaluate(graph.intact())
    assert leaves(found.items) <= leaves(whole)
    _, failure = evaluate(graph)
    if not graph.drops_last():
        assert (found.failure is None) == (failure is None)
    if found.failure is not None:
        assert isinstance(found.failure.__cause__, BrokenError)


@in_short(10)
@given(graph=graphs(failing=True), threads=THREADS, read=READING)
def test_any_number_of_dropped_items(graph: Graph, threads: int, read: ReadPass) -> None:
    """If any number of items may be dropped, all others are read; only a failing source ends the pass."""
    (found,), dropped = run(graph, threads, [read], -1)
    expected_drops: list[Failure] = []
    expected, failure = evaluate(graph, -1, expected_drops)
    if graph.is_ordered():
        assert found.items == expected
        if failure is None:
            assert Counter((item.stage, str(item.error)) for item in dropped) == Counter(
                (drop.stage, str(drop.error)) for drop in expected_drops
            )
    else:
        whole, _ = evaluate(graph.intact())
        assert leaves(found.items) <= leaves(whole)
    if failure is None or not graph.drops_last():
        assert (found.failure is None) == (failure is None)


@in_short(10)
@given(graph=graphs(failing=True, ordered=True), threads=THREADS, share=st.fractions(0, 1, max_denominator=20))
def test_a_share_of_failures_at_the_end(graph: Graph, threads: int, share: Fraction) -> None:
    """If fewer than a hundred items are tried, the share of failures is checked at the end, in any graph."""
    tried: list[int] = []
    expected, failure = evaluate(graph, share, tried=tried)
    if tried[0] >= 100:
        return
    (found,), _ = run(graph, threads, [read_by_for], share)
    assert (found.failure is None) == (failure is None)
    assert failure is not None or found.items == expected
