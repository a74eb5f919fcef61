"""What one stage did with its time, as a value."""

from penstock._frozen import frozen
from penstock.pipeline._statistics._histogram import Durations


@frozen
class StageReport:
    """What one stage of a pipeline did with its time, up to some moment.

    Shares are of 1 and rates per second of `elapsed_seconds`. A wait or a call counts once it has ended, so one that
    still goes on is not in the numbers yet.

    Attributes:
        name: the stage's name, unique in its pipeline.
        kind: "source", "sync", "async", "generator", "async generator", "lookup", "aggregate", "disaggregate", "paths",
            "merge" or "sink".
        concurrency: how many calls the stage may run at once.
        on_threads: whether the calls run on the pipeline's own threads; else on the event loop, in the user's executor,
            or nowhere. Default False.
        elapsed_seconds: how long the stage had been running. Default 0.
        items: how many items came out of the stage; what it left out and what it failed on are not among them.
            For the sink: how many the consumer took. Default 0.
        failures: how many items the stage failed on. Default 0.
        busy_seconds: time inside the stage's function, summed over calls that ran at once. Default 0.
        cpu_seconds: the part of `busy_seconds` that the calling threads spent computing; None, the default, where that
            was not measured (a coroutine, or a call in another process).
        wait_input_seconds: how long the stage could have taken an item and none was there. For the sink: how long the
            consumer waited. Default 0.
        wait_output_seconds: how long the stage had an item and found no room for it below. Default 0.
        queue_fill: how full the queue before the stage was found when it looked for items, on average: 0 is empty and
            1 as full as it may be. None, the default, where it has no queue or never looked.
        queue_found_share: the share of these looks that found an item waiting; None as for `queue_fill`.
        durations: seconds an item that came out or failed; an item's are the mean of the call that it was in. Default
            none.

    Example:
        >>> from penstock.pipeline import StageReport
        >>> decode = StageReport("decode", "sync", 4, elapsed_seconds=10.0, items=500, busy_seconds=30.0)
        >>> decode.items_per_second, decode.busy_share
        (50.0, 0.75)
    """

    name: str
    kind: str
    concurrency: int
    on_threads: bool = False
    elapsed_seconds: float = 0.0
    items: int = 0
    failures: int = 0
    busy_seconds: float = 0.0
    cpu_seconds: float | None = None
    wait_input_seconds: float = 0.0
    wait_output_seconds: float = 0.0
    queue_fill: float | None = None
    queue_found_share: float | None = None
    durations: Durations = Durations()

    @property
    def items_per_second(self) -> float:
        """How many items came out in a second, on average."""
        return self.items / self.elapsed_seconds if self.elapsed_seconds else 0.0

    @property
    def calls_at_once(self) -> float:
        """How many calls of the stage's function ran at once, on average."""
        return self.busy_seconds / self.elapsed_seconds if self.elapsed_seconds else 0.0

    @property
    def cores(self) -> float | None:
        """How many cores these calls computed on, on average; None where `cpu_seconds` is."""
        if self.cpu_seconds is None:
            return None
        return self.cpu_seconds / self.elapsed_seconds if self.elapsed_seconds else 0.0

    @property
    def busy_share(self) -> float:
        """The share of its time that a call of the stage's function ran, on average over `concurrency` calls."""
        return self._share(self.busy_seconds / self.concurrency)

    @property
    def wait_input_share(self) -> float:
        """The share of its time that the stage waited for items from above."""
        return self._share(self.wait_input_seconds)

    @property
    def wait_output_share(self) -> float:
        """The share of its time that the stage waited for room below."""
        return self._share(self.wait_output_seconds)

    @property
    def p50_seconds(self) -> float | None:
        """The median of the seconds an item, within a thirty-second of itself; None where there were no items."""
        return self.durations.quantile(0.5)

    @property
    def p90_seconds(self) -> float | None:
        """The seconds an item that nine in ten items needed no more than, told like `p50_seconds`."""
        return self.durations.quantile(0.9)

    @property
    def p99_seconds(self) -> float | None:
        """The seconds an item that 99 in 100 items needed no more than, told like `p50_seconds`."""
        return self.durations.quantile(0.99)

    def _share(self, seconds: float) -> float:
        # What several tasks of a stage waited may sum to more than the time there was.
        return min(seconds / self.elapsed_seconds, 1.0) if self.elapsed_seconds else 0.0
