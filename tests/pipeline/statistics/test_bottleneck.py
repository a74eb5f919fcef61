"""The report names the bottleneck and gives advice that fits how the pipeline's time was spent."""

from penstock.pipeline import PipelineReport
from tests.pipeline.statistics.pipelines import Stage, report_of, sink, source

IDLE = Stage("resize").spent(busy=0.1, above=0.85).queued(0.05)
HUNGRY = sink(fill=0.0, consumer_waits=0.8)


def decode(*, busy: float, concurrency: int = 4, cores: float | None = None) -> Stage:
    """Return a stage on threads whose queue is always full."""
    return Stage("decode", concurrency=concurrency).spent(busy=busy, cores=cores).queued(1.0)


HELD_UP = Stage("decode").spent(busy=0.6, below=0.4).queued(1.0)
FIRST_OF_TWO = Stage("decode").spent(busy=0.96, below=0.04).queued(0.9)
NOT_TIMED = Stage("decode").spent(busy=0.2, above=0.8).queued(0.1)
KEEPS_PACE = Stage("decode").spent(busy=0.7, below=0.3).queued(0.9)
FUSED = [Stage("decode").spent(busy=0.5), Stage("resize").spent(busy=0.2)]
THIRDS = [Stage(name).spent(busy=0.33).queued(0.8) for name in ("decode", "resize", "augment")]
SLOW = source(below=0.9)
TIMES = "times the items per second, then"
CASES: dict[str, tuple[PipelineReport, str | None, str, str]] = {
    "a slow source": (
        *(report_of(source(busy=0.98), NOT_TIMED, IDLE, HUNGRY), "files"),
        *("make the source 'files' faster", f"up to 4.9 {TIMES} 'decode' is the slowest"),
    ),
    "a slow source that was not timed": (report_of(source(), NOT_TIMED, IDLE, HUNGRY), "files", "", ""),
    "a slow source that is not timed, alone": (report_of(source(), HUNGRY), "files", "", ""),
    "a stage that is always busy, between a full queue and an empty one": (
        *(report_of(source(busy=0.02, below=0.95), decode(busy=0.97), IDLE, HUNGRY), "decode"),
        *("raise the concurrency of 'decode' (now 4, busy 97%)", f"up to 4.9 {TIMES} the consumer is the slowest"),
    ),
    "behind another stage that waits for room, even if that is busier than others": (
        *(report_of(SLOW, HELD_UP, Stage("augment").spent(busy=0.95, above=0.02).queued(0.9), HUNGRY), "augment"),
        *("", f"up to 1.6 {TIMES} 'decode' is the slowest"),
    ),
    "of equally busy stages, the one whose queue is full while the next waits": (
        *(report_of(SLOW, FIRST_OF_TWO, Stage("augment").spent(busy=0.94, above=0.03).queued(0.9), HUNGRY), "augment"),
        *("", "'decode' is nearly as slow"),
    ),
    "a consumer that doesn't wait for a full sink, however busy other stages are": (
        *(report_of(SLOW, KEEPS_PACE, sink(fill=0.95, consumer_waits=0.01)), "sink"),
        *("nothing: the consumer is slower than the pipeline, and waits for it 1% of the time", ""),
    ),
    "a pipeline that keeps pace": (
        *(report_of(source(below=0.5), decode(busy=0.8), sink(fill=0.3, consumer_waits=0.05)), None),
        *("nothing: the pipeline and the consumer keep pace", ""),
    ),
    "concurrent calls that together use one core of many": (
        *(report_of(SLOW, decode(busy=0.99, cores=0.97), IDLE, HUNGRY), "decode"),
        *("run 'decode' in processes (executor=ProcessExecutor(...)): it seems to hold the GIL", ""),
    ),
    "a stage that uses all cores": (
        *(report_of(source(), decode(busy=0.99, cores=3.8), IDLE, HUNGRY, cores=4), "decode"),
        *("make 'decode' cheaper: all 4 cores are busy", ""),
    ),
    "a stage that uses the only core": (
        *(report_of(source(), decode(busy=0.99, cores=1.0), IDLE, HUNGRY, cores=1), "decode"),
        *("make 'decode' cheaper: all 1 cores are busy", ""),
    ),
    "too few threads for one stage": (
        *(report_of(source(), decode(busy=0.9), IDLE, HUNGRY, num_threads=4), "decode"),
        *("raise num_threads (now 4)", ""),
    ),
    "too few threads for several": (
        *(report_of(SLOW, *THIRDS, HUNGRY, num_threads=1), None),
        *("raise num_threads (now 1)", ""),
    ),
    "enough threads": (report_of(SLOW, *THIRDS, HUNGRY, num_threads=3), None, "nothing", ""),
    "the busiest of stages that run together; the others bound the gain": (
        *(report_of(SLOW, Stage("read").spent(busy=0.25).queued(1.0), *FUSED, HUNGRY), "decode"),
        *("", f"up to 2.1 {TIMES} 'read' is the slowest"),
    ),
    **{
        kind: (
            report_of(source(), Stage("one", kind, on_threads=False).spent(busy=0.99).queued(1.0), HUNGRY),
            *("one", "make 'one' cheaper: it runs one call at a time", ""),
        )
        for kind in ("aggregate", "disaggregate", "router")
    },
}


def test_the_bottleneck_and_the_advice() -> None:
    """The report names the bottleneck, the change that would help, and the gain."""
    for name, (report, bottleneck, begin, end) in CASES.items():
        assert report.bottleneck == bottleneck, name
        assert report.advice.startswith(begin), name
        assert report.advice.endswith(end), name


def test_nothing_yet() -> None:
    """Before a stage has put out an item, there is no bottleneck."""
    for report in (
        PipelineReport((), elapsed_seconds=0.0),
        PipelineReport((HUNGRY.probe.snapshot(),), elapsed_seconds=10.0),
        report_of(source(items=0), sink(fill=0, consumer_waits=1, items=0)),
        report_of(source(items=0), Stage("decode"), sink(fill=1, consumer_waits=0, items=0)),
    ):
        assert report.bottleneck is None
        assert report.advice.startswith("nothing")
        assert "bottleneck: none" in str(report)


def test_concurrent_calls_and_the_gil() -> None:
    """Calls that use much less or more than one core don't hold the GIL; the advice says how to measure that."""
    for cores in (0.1, 3.9):
        report = report_of(source(below=0.9), decode(busy=0.99, cores=cores), IDLE, HUNGRY)
        assert report.advice.startswith("raise the concurrency of 'decode'")
        assert "GIL" not in report.advice
    assert "holds the GIL" in report_of(source(), decode(busy=0.99), IDLE, HUNGRY).advice
    fetch = Stage("fetch", "async", concurrency=8, on_threads=False).spent(busy=0.99).queued(1.0)
    assert "GIL" not in report_of(source(), fetch, IDLE, HUNGRY).advice
