"""The bottleneck and the advice are what anyone would say who knows how the pipeline's time was spent."""

import pytest

from penstock.pipeline._statistics._report import PipelineReport
from tests.pipeline.statistics.pipelines import Stage, report_of, sink, source

IDLE = Stage("resize").told(busy=0.1, above=0.85).queued(0.05)
HUNGRY = sink(fill=0.0, consumer_waits=0.8)


def decode(*, busy: float, concurrency: int = 4, cores: float | None = None) -> Stage:
    """Return a stage on threads that always has items before it."""
    return Stage("decode", concurrency=concurrency).told(busy=busy, cores=cores).queued(1.0)


def test_a_slow_source() -> None:
    """Where all else waits for the source, it is the bottleneck."""
    report = report_of(source(busy=0.98), Stage("decode").told(busy=0.2, above=0.8).queued(0.1), IDLE, HUNGRY)
    assert report.bottleneck == "files"
    assert report.advice.startswith("make the source 'files' quicker")
    assert report.advice.endswith("up to 4.9 times the items a second, then 'decode' is the slowest")


def test_a_slow_source_that_tells_no_time() -> None:
    """A source is found even if what it takes was not measured, from those that wait for it."""
    waiting = Stage("decode").told(busy=0.2, above=0.8).queued(0.1)
    assert report_of(source(), waiting, IDLE, HUNGRY).bottleneck == "files"
    assert report_of(source(), HUNGRY).bottleneck == "files"


def test_a_slow_stage() -> None:
    """A stage that is always busy, with items waiting before it and nothing below it, is the bottleneck."""
    report = report_of(source(busy=0.02, below=0.95), decode(busy=0.97), IDLE, HUNGRY)
    assert report.bottleneck == "decode"
    assert report.advice.startswith("raise the concurrency of 'decode' (now 4, busy 97%)")
    assert report.advice.endswith("up to 4.9 times the items a second, then the consumer is the slowest")


def test_a_slow_stage_behind_another_that_waits_for_room() -> None:
    """A stage that is held up by the one below it is not the bottleneck, though it works more than others."""
    held_up = Stage("decode").told(busy=0.6, below=0.4).queued(1.0)
    slow = Stage("augment").told(busy=0.95, above=0.02).queued(0.9)
    report = report_of(source(below=0.9), held_up, slow, HUNGRY)
    assert report.bottleneck == "augment"
    assert report.advice.endswith("up to 1.6 times the items a second, then 'decode' is the slowest")


def test_among_stages_as_busy_the_one_between_full_and_empty() -> None:
    """Of two that are busy alike, the one whose queue is full while the stage below waits is the bottleneck."""
    first = Stage("decode").told(busy=0.96, below=0.04).queued(0.9)
    second = Stage("augment").told(busy=0.94, above=0.03).queued(0.9)
    report = report_of(source(below=0.9), first, second, HUNGRY)
    assert report.bottleneck == "augment"
    assert report.advice.endswith("'decode' is nearly as slow")


def test_a_slow_consumer() -> None:
    """Where the sink is full and the consumer doesn't wait, there is nothing to change, whoever else is busy."""
    busy = Stage("decode").told(busy=0.7, below=0.3).queued(0.9)
    report = report_of(source(below=0.9), busy, sink(fill=0.95, consumer_waits=0.01))
    assert report.bottleneck == "sink"
    assert report.advice == "nothing: the consumer is slower than the pipeline, and waits for it 1% of the time"


def test_a_pipeline_that_keeps_pace() -> None:
    """Where the consumer hardly waits and little is ready, nobody is the bottleneck."""
    report = report_of(source(below=0.5), decode(busy=0.8), sink(fill=0.3, consumer_waits=0.05))
    assert report.bottleneck is None
    assert report.advice == "nothing: the pipeline and the consumer keep pace"


@pytest.mark.parametrize(
    "report",
    [
        PipelineReport((), elapsed_seconds=0.0),
        PipelineReport((HUNGRY.probe.snapshot(),), elapsed_seconds=10.0),
        report_of(source(items=0), sink(fill=0, consumer_waits=1, items=0)),
        report_of(source(items=0), Stage("decode"), sink(fill=1, consumer_waits=0, items=0)),
    ],
)
def test_nothing_yet(report: PipelineReport) -> None:
    """Before anything came out of a stage, nothing is the bottleneck."""
    assert report.bottleneck is None
    assert report.advice.startswith("nothing")
    assert "bottleneck: none" in str(report)


def test_a_stage_that_holds_the_gil() -> None:
    """Calls at once that together compute on one core, of many, are sent to processes."""
    report = report_of(source(below=0.9), decode(busy=0.99, cores=0.97), IDLE, HUNGRY)
    assert report.bottleneck == "decode"
    assert report.advice.startswith(
        "run 'decode' in processes (executor=ProcessExecutor(...)): it seems to hold the GIL"
    )


def test_a_stage_that_waits_or_releases_the_gil_gets_more_concurrency() -> None:
    """Calls at once that compute on much less or more than one core don't hold the GIL."""
    for cores in (0.1, 3.9):
        report = report_of(source(below=0.9), decode(busy=0.99, cores=cores), IDLE, HUNGRY)
        assert report.advice.startswith("raise the concurrency of 'decode'")
        assert "GIL" not in report.advice


def test_the_gil_is_named_as_a_question_where_nothing_was_measured() -> None:
    """Without computing times, the advice for a stage on threads says how to know the GIL; elsewhere it can't be."""
    assert "holds the GIL" in report_of(source(), decode(busy=0.99), IDLE, HUNGRY).advice
    fetch = Stage("fetch", "async", concurrency=8, on_threads=False).told(busy=0.99).queued(1.0)
    assert "GIL" not in report_of(source(), fetch, IDLE, HUNGRY).advice


@pytest.mark.parametrize(("cores", "computing"), [(4, 3.8), (1, 1.0)])
def test_where_all_cores_compute_more_concurrency_gives_nothing(cores: int, computing: float) -> None:
    """A stage that takes all cores is to be made cheaper."""
    report = report_of(source(), decode(busy=0.99, cores=computing), IDLE, HUNGRY, cores=cores)
    assert report.advice.startswith(f"make 'decode' cheaper: all {cores} cores are busy")


def test_too_few_threads() -> None:
    """Where all threads are busy, with one stage or with many, more of them are wanted first."""
    alone = report_of(source(), decode(busy=0.9), IDLE, HUNGRY, num_threads=4)
    assert alone.advice.startswith("raise num_threads (now 4)")
    thirds = [Stage(name).told(busy=0.33).queued(0.8) for name in ("decode", "resize", "augment")]
    shared = report_of(source(below=0.9), *thirds, HUNGRY, num_threads=1)
    assert shared.bottleneck is None
    assert shared.advice.startswith("raise num_threads (now 1)")
    assert report_of(source(below=0.9), *thirds, HUNGRY, num_threads=3).advice.startswith("nothing")


def test_a_stage_that_can_have_no_concurrency_is_made_cheaper() -> None:
    """An aggregate runs one call at a time, so more at once is no advice."""
    batches = Stage("batches", "aggregate", on_threads=False).told(busy=0.99).queued(1.0)
    assert report_of(source(), batches, HUNGRY).advice.startswith("make 'batches' cheaper: it runs one call at a time")


def test_stages_without_queues_count_with_the_one_above() -> None:
    """Of stages that run together, the busiest is the bottleneck, and the others bound the gain."""
    head = Stage("read").told(busy=0.25).queued(1.0)
    fused = [Stage("decode").told(busy=0.5), Stage("resize").told(busy=0.2)]
    report = report_of(source(below=0.9), head, *fused, HUNGRY)
    assert report.bottleneck == "decode"
    assert report.advice.endswith("up to 2.1 times the items a second, then 'read' is the slowest")
