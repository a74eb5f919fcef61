"""The report names the bottleneck and gives advice that fits how the pipeline's time was spent."""

import pytest

from penstock.pipeline import PipelineReport
from tests.pipeline.statistics.pipelines import Stage, report_of, sink, source

IDLE = Stage("resize").spent(busy=0.1, above=0.85).queued(0.05)
HUNGRY = sink(fill=0.0, consumer_waits=0.8)


def decode(*, busy: float, concurrency: int = 4, cores: float | None = None) -> Stage:
    """Return a stage on threads whose queue is always full."""
    return Stage("decode", concurrency=concurrency).spent(busy=busy, cores=cores).queued(1.0)


def test_a_slow_source() -> None:
    """If every other stage waits for the source, it is the bottleneck."""
    report = report_of(source(busy=0.98), Stage("decode").spent(busy=0.2, above=0.8).queued(0.1), IDLE, HUNGRY)
    assert report.bottleneck == "files"
    assert report.advice.startswith("make the source 'files' faster")
    assert report.advice.endswith("up to 4.9 times the items per second, then 'decode' is the slowest")


def test_a_slow_source_that_was_not_timed() -> None:
    """A source that was not timed is found from the stages that wait for it."""
    waiting = Stage("decode").spent(busy=0.2, above=0.8).queued(0.1)
    assert report_of(source(), waiting, IDLE, HUNGRY).bottleneck == "files"
    assert report_of(source(), HUNGRY).bottleneck == "files"


def test_a_slow_stage() -> None:
    """A stage that is always busy, between a full queue and an empty one, is the bottleneck."""
    report = report_of(source(busy=0.02, below=0.95), decode(busy=0.97), IDLE, HUNGRY)
    assert report.bottleneck == "decode"
    assert report.advice.startswith("raise the concurrency of 'decode' (now 4, busy 97%)")
    assert report.advice.endswith("up to 4.9 times the items per second, then the consumer is the slowest")


def test_a_slow_stage_behind_another_that_waits_for_room() -> None:
    """A stage that waits for room in the next one is not the bottleneck, even if it is busier than others."""
    held_up = Stage("decode").spent(busy=0.6, below=0.4).queued(1.0)
    slow = Stage("augment").spent(busy=0.95, above=0.02).queued(0.9)
    report = report_of(source(below=0.9), held_up, slow, HUNGRY)
    assert report.bottleneck == "augment"
    assert report.advice.endswith("up to 1.6 times the items per second, then 'decode' is the slowest")


def test_of_equally_busy_stages_the_one_between_a_full_and_an_empty_queue() -> None:
    """Of two equally busy stages, the one whose queue is full while the next stage waits is the bottleneck."""
    first = Stage("decode").spent(busy=0.96, below=0.04).queued(0.9)
    second = Stage("augment").spent(busy=0.94, above=0.03).queued(0.9)
    report = report_of(source(below=0.9), first, second, HUNGRY)
    assert report.bottleneck == "augment"
    assert report.advice.endswith("'decode' is nearly as slow")


def test_a_slow_consumer() -> None:
    """If the sink is full and the consumer doesn't wait, there is nothing to change, however busy other stages are."""
    busy = Stage("decode").spent(busy=0.7, below=0.3).queued(0.9)
    report = report_of(source(below=0.9), busy, sink(fill=0.95, consumer_waits=0.01))
    assert report.bottleneck == "sink"
    assert report.advice == "nothing: the consumer is slower than the pipeline, and waits for it 1% of the time"


def test_a_pipeline_that_keeps_pace() -> None:
    """If the consumer hardly waits and the sink is not full, there is no bottleneck."""
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
    """Before a stage has put out an item, there is no bottleneck."""
    assert report.bottleneck is None
    assert report.advice.startswith("nothing")
    assert "bottleneck: none" in str(report)


def test_a_stage_that_holds_the_gil() -> None:
    """If concurrent calls together use one core of many, the advice is to run them in processes."""
    report = report_of(source(below=0.9), decode(busy=0.99, cores=0.97), IDLE, HUNGRY)
    assert report.bottleneck == "decode"
    assert report.advice.startswith(
        "run 'decode' in processes (executor=ProcessExecutor(...)): it seems to hold the GIL"
    )


def test_a_stage_that_waits_or_releases_the_gil_gets_more_concurrency() -> None:
    """Concurrent calls that use much less or more than one core don't hold the GIL."""
    for cores in (0.1, 3.9):
        report = report_of(source(below=0.9), decode(busy=0.99, cores=cores), IDLE, HUNGRY)
        assert report.advice.startswith("raise the concurrency of 'decode'")
        assert "GIL" not in report.advice


def test_without_cpu_times_the_advice_says_how_to_detect_the_gil() -> None:
    """Without CPU times, the advice for a stage on threads says how to detect the GIL; an async stage needs none."""
    assert "holds the GIL" in report_of(source(), decode(busy=0.99), IDLE, HUNGRY).advice
    fetch = Stage("fetch", "async", concurrency=8, on_threads=False).spent(busy=0.99).queued(1.0)
    assert "GIL" not in report_of(source(), fetch, IDLE, HUNGRY).advice


@pytest.mark.parametrize(("cores", "computing"), [(4, 3.8), (1, 1.0)])
def test_if_all_cores_are_busy_more_concurrency_does_not_help(cores: int, computing: float) -> None:
    """If a stage uses all cores, the advice is to make it cheaper."""
    report = report_of(source(), decode(busy=0.99, cores=computing), IDLE, HUNGRY, cores=cores)
    assert report.advice.startswith(f"make 'decode' cheaper: all {cores} cores are busy")


def test_too_few_threads() -> None:
    """If all threads are busy, with one stage or with several, the advice is to raise their number."""
    alone = report_of(source(), decode(busy=0.9), IDLE, HUNGRY, num_threads=4)
    assert alone.advice.startswith("raise num_threads (now 4)")
    thirds = [Stage(name).spent(busy=0.33).queued(0.8) for name in ("decode", "resize", "augment")]
    shared = report_of(source(below=0.9), *thirds, HUNGRY, num_threads=1)
    assert shared.bottleneck is None
    assert shared.advice.startswith("raise num_threads (now 1)")
    assert report_of(source(below=0.9), *thirds, HUNGRY, num_threads=3).advice.startswith("nothing")


@pytest.mark.parametrize("kind", ["aggregate", "disaggregate", "router"])
def test_a_stage_without_concurrency_has_to_become_cheaper(kind: str) -> None:
    """A stage that runs one call at a time has no concurrency to raise, so the advice is to make it cheaper."""
    stage = Stage("single", kind, on_threads=False).spent(busy=0.99).queued(1.0)
    assert report_of(source(), stage, HUNGRY).advice.startswith("make 'single' cheaper: it runs one call at a time")


def test_a_stage_without_a_queue_counts_with_the_one_before_it() -> None:
    """Of stages that run together, the busiest is the bottleneck, and the others bound the gain."""
    head = Stage("read").spent(busy=0.25).queued(1.0)
    fused = [Stage("decode").spent(busy=0.5), Stage("resize").spent(busy=0.2)]
    report = report_of(source(below=0.9), head, *fused, HUNGRY)
    assert report.bottleneck == "decode"
    assert report.advice.endswith("up to 2.1 times the items per second, then 'read' is the slowest")
