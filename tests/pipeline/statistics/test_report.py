"""A report prints as an aligned table with a bar per stage, and returns its figures for loggers."""

import pickle

from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline import StageReport
from penstock.pipeline._statistics._report import seconds_text
from tests.pipeline.statistics.pipelines import Stage, report_of, sink, source

SHARES = st.floats(0, 1)


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
