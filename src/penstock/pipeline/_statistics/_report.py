"""Where a whole pipeline's time goes, which stage holds it up, and the one thing to change."""

from penstock._frozen import frozen
from penstock.pipeline._statistics._advice import advice_on
from penstock.pipeline._statistics._bottleneck import bottleneck_of
from penstock.pipeline._statistics._stage_report import StageReport
from penstock.pipeline._statistics._table import LEGEND, table_lines


@frozen
class PipelineReport:
    """What the stages of a pipeline did with their time, up to some moment; `print` it.

    Attributes:
        stages: one report a stage, in the order items pass them: the source first, the sink last.
        elapsed_seconds: how long the pipeline had been running.
        cores: how many cores the process may use; None, the default, where that is not known.
        num_threads: how many threads the pipeline has for its stages; None, the default, where that is not known.

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
        to change: raise the concurrency of 'decode' (now 2, busy 98%); up to 3.3 times the items a second, then the ...
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
        """The name of the stage that holds the others up; the sink's name where the consumer does; else None.

        The consumer is what is slowest if it waits less than a tenth of the time while the sink is at least half full.
        If it does wait, it is the stage whose calls run for most of the time, the busiest of these; among some that are
        busy alike, the one with items waiting before it while the stage below waits. If every stage waits for items, it
        is the source. None: nothing came out yet, or no stage stands out.
        """
        found = bottleneck_of(self.stages)
        return None if found is None else found.name

    @property
    def advice(self) -> str:
        """The one thing to change, and what it could give at most; "nothing", and why, where there is none."""
        return advice_on(self.stages, self.cores, self.num_threads)

    def numbers(self) -> dict[str, float]:
        """Return the figures as one flat dict, for whatever logs numbers by name.

        Returns:
            "elapsed_seconds", "items" and "items_per_second" of the pipeline, and for each stage, after its name and a
            slash: "items", "failures", "items_per_second", "busy_share", "wait_input_share", "wait_output_share", and
            where they are known "queue_fill", "p50_seconds" and "p99_seconds".

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
                *table_lines(self.stages),
                LEGEND,
                f"bottleneck: {self.bottleneck or 'none'}",
                f"to change: {self.advice}",
            ]
        )


_NUMBERS = (
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
