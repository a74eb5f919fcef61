"""The report of a whole pipeline: its stages as a table, the bottleneck, and the one change that would help most."""

from collections.abc import Sequence
from typing import Final

from penstock._frozen import frozen
from penstock.pipeline._statistics._advice import advice_on
from penstock.pipeline._statistics._bottleneck import bottleneck_of
from penstock.pipeline._statistics._stage_report import StageReport

_BAR_WIDTH: Final = 24
_UNITS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_HEADINGS: Final = ("stage", "kind", "at once", "items", "failed", "items/s", "p50", "p99", "queue", "time")
_LEFT: Final = {"stage", "kind", "time"}
_LEGEND: Final = "# busy   < waits for items   > waits for room   . neither        queue: how full, on average"
_NUMBERS: Final = (
    "items",
    "failures",
    "items_per_second",
    "busy_share",
    "wait_input_share",
    "wait_output_share",
    "queue_fill",
    "p50_seconds",
    "p99_seconds",
)


@frozen
class PipelineReport:
    """A snapshot of how the stages of a pipeline spent their time; `print` it.

    Attributes:
        stages: one report per stage, in the order in which items pass them: the source first, the sink last.
        elapsed_seconds: how long the pipeline had been running.
        cores: how many cores the process may use; None, the default, if unknown.
        num_threads: how many threads the pipeline has for its stages; None, the default, if unknown.

    Example:
        >>> from penstock.pipeline import PipelineReport, StageReport
        >>> report = PipelineReport(
        ...     (
        ...         StageReport("paths", "source", 1, elapsed_seconds=10.0, items=500, wait_output_seconds=9.0),
        ...         StageReport("decode", "async", 2, elapsed_seconds=10.0, items=490, busy_seconds=19.6, queue_fill=1),
        ...         StageReport("sink", "sink", 1, elapsed_seconds=10.0, items=490, wait_input_seconds=7.0),
        ...     ),
        ...     elapsed_seconds=10.0,
        ... )
        >>> report.bottleneck
        'decode'
        >>> print(report)
        10.0 s, 490 items, 49.0 items/s
        stage   kind    at once  items  failed  items/s  p50  p99  queue  time
        paths   source        1    500       0     50.0    -    -      -  >>>>>>>>>>>>>>>>>>>>>>..
        decode  async         2    490       0     49.0    -    -   100%  ########################
        sink    sink          1    490       0     49.0    -    -      -  <<<<<<<<<<<<<<<<<.......
        # busy   < waits for items   > waits for room   . neither        queue: how full, on average
        bottleneck: decode
        to change: raise the concurrency of 'decode' (now 2, busy 98%); up to 3.3 times the items per second, then t...
    """

    stages: tuple[StageReport, ...]
    elapsed_seconds: float
    cores: int | None = None
    num_threads: int | None = None

    @property
    def items(self) -> int:
        """How many items the consumer took."""
        return self.stages[-1].items if self.stages else 0

    @property
    def items_per_second(self) -> float:
        """How many items the consumer took in a second, on average."""
        return self.items / self.elapsed_seconds if self.elapsed_seconds else 0.0

    @property
    def bottleneck(self) -> str | None:
        """The name of the stage that limits the pipeline; the sink's name if the consumer does; None if unknown.

        The consumer is the bottleneck if it waits less than a tenth of the time while the sink is at least half full.
        If it waits more, the bottleneck is the stage whose calls run for most of the time; of several, the busiest; of
        several that are about equally busy, the one whose queue holds items while the next stage waits for some. If
        every stage waits for items, the bottleneck is the source. It is None before the first item, and if none of this
        applies.
        """
        found = bottleneck_of(self.stages)
        return None if found is None else found.name

    @property
    def advice(self) -> str:
        """The one change that would help most, and its largest possible gain; or "nothing" and the reason."""
        return advice_on(self.stages, self.cores, self.num_threads)

    def numbers(self) -> dict[str, float]:
        """Return the figures as one flat dict, for loggers that take numbers by name.

        Returns:
            "elapsed_seconds", "items" and "items_per_second" of the pipeline, and for each stage, after its name and a
            slash: "items", "failures", "items_per_second", "busy_share", "wait_input_share", "wait_output_share", and,
            if known, "queue_fill", "p50_seconds" and "p99_seconds".

        Example:
            >>> stage = StageReport("sink", "sink", 1, elapsed_seconds=4.0, items=8, queue_fill=0.5)
            >>> numbers = PipelineReport((stage,), elapsed_seconds=4.0).numbers()
            >>> numbers["items_per_second"], numbers["sink/queue_fill"]
            (2.0, 0.5)
        """
        found: dict[str, float | None] = {
            "elapsed_seconds": self.elapsed_seconds,
            "items": self.items,
            "items_per_second": self.items_per_second,
        }
        for stage in self.stages:
            for name in _NUMBERS:
                found[f"{stage.name}/{name}"] = getattr(stage, name)
        return {name: number for name, number in found.items() if number is not None}

    def __str__(self) -> str:
        rate = f"{self.items_per_second:,.1f} items/s"
        return "\n".join(
            [
                f"{self.elapsed_seconds:.1f} s, {self.items:,} items, {rate}",
                *_table_lines(self.stages),
                _LEGEND,
                f"bottleneck: {self.bottleneck or 'none'}",
                f"to change: {self.advice}",
            ]
        )


def _table_lines(stages: Sequence[StageReport]) -> list[str]:
    """Return the headings and one line per stage, aligned in columns."""
    rows = [_HEADINGS, *(_cells(stage) for stage in stages)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(_aligned, row, widths, _HEADINGS)).rstrip() for row in rows]


def seconds_text(seconds: float | None) -> str:
    """Return a duration in three digits with its unit, or a dash for None."""
    if seconds is None:
        return "-"
    unit_seconds, unit = next((each for each in _UNITS if seconds >= each[0]), _UNITS[-1])
    return f"{_three_digits(seconds / unit_seconds)} {unit}"


def bar(stage: StageReport) -> str:
    """Return a bar of the stage's time: busy, then waiting for items, then waiting for room, then neither.

    A stage with several concurrent calls can be busy and wait at the same time; a sum above 1 is scaled down to 1.
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
