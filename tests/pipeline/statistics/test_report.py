"""The report of a pipeline: its table, its figures, the bottleneck that it names, and the advice that fits.

The pipelines did not run: each stage's probe is given shares of ten seconds.
"""

import pickle

from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline import PipelineReport, StageReport
from penstock.pipeline._statistics import StageProbe
from penstock.pipeline._statistics._report import seconds_text
from tests.profiles import in_short

SHARES = st.floats(0, 1)
ELAPSED_SECONDS = 10.0
_ROOM = 4
_LOOKS = 100


class Stage:
    """A probe over ten seconds, with methods that report which share of them the stage was busy or waited."""

    def __init__(self, name: str, kind: str = "sync", *, concurrency: int = 1, on_threads: bool = True) -> None:
        self._now = 0.0
        self._concurrency = concurrency
        self.probe = StageProbe(name, kind, concurrency=concurrency, on_threads=on_threads, clock=lambda: self._now)

    def spent(
        self, *, busy: float = 0.0, cores: float | None = None, above: float = 0.0, below: float = 0.0, items: int = 100
    ) -> "Stage":
        """Report the shares of the time that it was busy, waited for items (`above`), and for room (`below`)."""
        self._now = ELAPSED_SECONDS
        cpu_seconds = None if cores is None else cores * ELAPSED_SECONDS
        self.probe.done(items, 0, busy * ELAPSED_SECONDS * self._concurrency, cpu_seconds=cpu_seconds)
        self.probe.waited_for_input(above * ELAPSED_SECONDS)
        self.probe.waited_for_output(below * ELAPSED_SECONDS)
        return self

    def queued(self, fill: float) -> "Stage":
        """Report that this share of the looks found a full queue, and the others an empty one."""
        for look in range(_LOOKS):
            self.probe.looked(_ROOM if look < fill * _LOOKS else 0, _ROOM)
        return self


def report_of(*stages: Stage, cores: int | None = 8, num_threads: int | None = None) -> PipelineReport:
    """Return the report of a pipeline of these stages."""
    found = tuple(stage.probe.snapshot() for stage in stages)
    return PipelineReport(found, elapsed_seconds=ELAPSED_SECONDS, cores=cores, num_threads=num_threads)


def source(*, busy: float = 0.0, below: float = 0.0, items: int = 100) -> Stage:
    """Return a source named "files"."""
    return Stage("files", "source", on_threads=False).spent(busy=busy, below=below, items=items)


def sink(*, fill: float, consumer_waits: float, items: int = 100) -> Stage:
    """Return a sink named "sink"."""
    return Stage("sink", "sink", on_threads=False).spent(above=consumer_waits, items=items).queued(fill)


@in_short(10)
@given(busy=SHARES, above=SHARES, below=SHARES)
def test_a_bar_shows_the_shares(busy: float, above: float, below: float) -> None:
    """Each character fills its share of the bar, within one character; a sum above 1 is scaled down to 1."""
    stage = Stage("decode").spent(busy=busy, above=above, below=below)
    drawn = str(report_of(stage)).splitlines()[2][-24:]
    whole = max(busy + above + below, 1)
    assert len(drawn) == 24
    assert drawn == "".join(sorted(drawn, key="#<>.".index))
    for mark, share in [("#", busy), ("<", above), (">", below)]:
        assert abs(drawn.count(mark) - 24 * share / whole) <= 1 + 1e-9


def test_durations_have_three_digits_and_a_unit() -> None:
    """A duration is written in the unit that leaves at least one digit before the point."""
    texts = {None: "-", 0.0: "0.00 ns", 1.5e-7: "150 ns", 2.04e-6: "2.04 us", 0.0123: "12.3 ms", 1.0: "1.00 s"}
    for seconds, text in (*texts.items(), (7200.0, "7,200 s")):
        assert seconds_text(seconds) == text


def test_the_table_is_aligned() -> None:
    """Every stage has a line, numbers are aligned to the right, and bars start in the same column."""
    slow = Stage("a stage with a long name", concurrency=12).spent(busy=0.9, items=1_234_567).queued(1.0)
    report = report_of(source(below=0.9, items=7), slow, sink(fill=0.0, consumer_waits=0.5))
    lines = str(report).splitlines()
    assert lines[0] == "10.0 s, 100 items, 10.0 items/s"
    headings, *rows = lines[1:5]
    assert [row[:24].strip() for row in rows] == ["files", "a stage with a long name", "sink"]
    for row, items in zip(rows, ("7", "1,234,567", "100"), strict=True):
        assert row[: headings.index("items") + len("items")].endswith(f" {items}")
        assert len(row) == headings.index("time") + 24
    assert lines[-2] == "bottleneck: a stage with a long name"
    assert lines[-1].startswith("to change: raise the concurrency of 'a stage with a long name'")


def test_numbers_and_values() -> None:
    """Loggers get numbers by stage and name, without unknown ones; a report can be pickled, and equals its copy."""
    report = report_of(Stage("decode").spent(busy=0.5), sink(fill=1, consumer_waits=0))
    numbers = report.numbers()
    assert numbers["sink/queue_fill"] == 1
    assert (numbers["items"], numbers["items_per_second"], numbers["decode/busy_share"]) == (100, 10, 0.5)
    assert "decode/queue_fill" not in numbers
    assert all(isinstance(number, int | float) for number in numbers.values())
    again = pickle.loads(pickle.dumps(report))
    assert again == report
    assert hash(again) == hash(report)


def test_a_stage_that_has_not_run_uses_no_core() -> None:
    """`cores` is None if CPU time was not measured, and 0 before any time has passed."""
    assert StageReport("decode", "sync", 1).cores is None
    assert StageReport("decode", "sync", 1, cpu_seconds=0.0).cores == 0
    assert StageReport("decode", "sync", 1).calls_at_once == 0


# The bottleneck.

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
