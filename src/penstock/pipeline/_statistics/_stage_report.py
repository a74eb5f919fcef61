"""The report of one stage: how it spent its time, as a frozen value."""

from penstock._durations import Durations
from penstock._frozen import frozen


@frozen
class StageReport:
    """A snapshot of how one stage of a pipeline spent its time.

    Shares are fractions of 1, rates are per second of `elapsed_seconds`. A wait or a call counts when it has ended; one
    that is still under way is not included.

    Attributes:
        name: the stage's name, unique in its pipeline.
        kind: "source", "sync", "async", "generator", "async generator", "lookup", "aggregate", "disaggregate",
            "router" or "sink".
        concurrency: how many calls the stage may run at once.
        on_threads: whether the calls run on the pipeline's own threads. False, the default: they run on the event loop
            or in the user's executor, or the stage calls nothing.
        elapsed_seconds: how long the stage had been running. Default 0.
        items: how many items the stage put out, without those that it skipped or failed on. For the sink: how many the
            consumer took. Default 0.
        failures: how many items the stage failed on. Default 0.
        busy_seconds: time inside the stage's function, summed over concurrent calls. Default 0.
        cpu_seconds: the CPU time of the calling threads within `busy_seconds`; None, the default, if it was not
            measured.
        wait_input_seconds: how long the stage waited for an item. For the sink: how long the consumer waited.
            Default 0.
        wait_output_seconds: how long the stage held an item for which the next stage had no room. Default 0.
        queue_fill: the mean fill of the queue before the stage whenever the stage looked for items: 0 is empty, 1 is
            full. None, the default, if it has no queue or never looked.
        queue_found_share: the share of these looks that found an item waiting; None as for `queue_fill`.
        durations: the seconds per item, of items that came out or failed; an item counts with the mean of its call.
            Default none.

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
        """The items that came out per second, on average."""
        return self.items / self.elapsed_seconds if self.elapsed_seconds else 0.0

    @property
    def calls_at_once(self) -> float:
        """The number of calls of the stage's function that ran concurrently, on average."""
        return self.busy_seconds / self.elapsed_seconds if self.elapsed_seconds else 0.0

    @property
    def cores(self) -> float | None:
        """The number of cores that these calls used, on average; None if `cpu_seconds` is None."""
        if self.cpu_seconds is None:
            return None
        return self.cpu_seconds / self.elapsed_seconds if self.elapsed_seconds else 0.0

    @property
    def busy_share(self) -> float:
        """The share of its time that the stage spent in its function, on average over `concurrency` calls."""
        return self._share(self.busy_seconds / self.concurrency)

    @property
    def wait_input_share(self) -> float:
        """The share of its time that the stage waited for items."""
        return self._share(self.wait_input_seconds)

    @property
    def wait_output_share(self) -> float:
        """The share of its time that the stage waited for room in the next stage."""
        return self._share(self.wait_output_seconds)

    @property
    def p50_seconds(self) -> float | None:
        """The median of the seconds per item, with a relative error of at most 1/32; None if there were no items."""
        return self.durations.quantile(0.5)

    @property
    def p90_seconds(self) -> float | None:
        """The 90th percentile of the seconds per item, as precise as `p50_seconds`."""
        return self.durations.quantile(0.9)

    @property
    def p99_seconds(self) -> float | None:
        """The 99th percentile of the seconds per item, as precise as `p50_seconds`."""
        return self.durations.quantile(0.99)

    def _share(self, seconds: float) -> float:
        # Several lanes of a stage wait at the same time, so the sum may exceed the elapsed time.
        return min(seconds / self.elapsed_seconds, 1.0) if self.elapsed_seconds else 0.0
