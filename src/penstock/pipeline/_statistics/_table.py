"""A pipeline's stages as a table that people read: a line each, with a bar of where its time goes."""

from collections.abc import Sequence
from typing import Final

from penstock.pipeline._statistics._stage_report import StageReport

_BAR_WIDTH: Final = 24
_UNITS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_HEADINGS: Final = ("stage", "kind", "at once", "items", "failed", "items/s", "p50", "p99", "queue", "time")
_LEFT: Final = {"stage", "kind", "time"}
LEGEND: Final = "# busy   < waits for items   > waits for room   . neither        queue: how full, on average"


def table_lines(stages: Sequence[StageReport]) -> list[str]:
    """Return the headings and a line for each stage, aligned in columns."""
    rows = [_HEADINGS, *(_cells(stage) for stage in stages)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(_aligned, row, widths, _HEADINGS)).rstrip() for row in rows]


def seconds_text(seconds: float | None) -> str:
    """Return a duration with its unit in three digits, or a dash for none."""
    if seconds is None:
        return "-"
    unit_seconds, unit = next((each for each in _UNITS if seconds >= each[0]), _UNITS[-1])
    return f"{_three_digits(seconds / unit_seconds)} {unit}"


def bar(stage: StageReport) -> str:
    """Return where the stage's time goes: busy, then waiting for items, then for room, then neither.

    With several calls at once a stage can be busy and wait at the same time; what is more than all is scaled down.
    """
    shares = (stage.busy_share, stage.wait_input_share, stage.wait_output_share)
    whole = max(sum(shares), 1.0)
    drawn, reached = "", 0.0
    for mark, share in zip("#<>", shares, strict=True):
        reached += share / whole
        drawn += mark * (round(reached * _BAR_WIDTH) - len(drawn))
    return drawn.ljust(_BAR_WIDTH, ".")


def _cells(stage: StageReport) -> tuple[str, ...]:
    return (
        stage.name,
        stage.kind,
        str(stage.concurrency),
        f"{stage.items:,}",
        f"{stage.failures:,}",
        _three_digits(stage.items_per_second),
        seconds_text(stage.p50_seconds),
        seconds_text(stage.p99_seconds),
        "-" if stage.queue_fill is None else f"{stage.queue_fill:.0%}",
        bar(stage),
    )


def _three_digits(number: float) -> str:
    digits = 0 if number >= 99.95 else 1 if number >= 9.995 else 2
    return f"{number:,.{digits}f}"


def _aligned(text: str, width: int, heading: str) -> str:
    return text.ljust(width) if heading in _LEFT else text.rjust(width)
