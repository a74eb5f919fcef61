"""Probes of a pipeline's stages, which count the reported calls and waits, and send events to the observer.

`Probes` owns them, and keeps them over all passes of the pipeline.

Guarantees:
  - The stage calls `done`, `waited_for_input`, `waited_for_output` and `looked` from one thread (the event loop's), at
    most once per chunk of items each, never once per item.
  - `snapshot` may be called from any thread at any time. Every number in it was true at some moment, but two of them
    may be one chunk apart.
  - A `StageProbe` never waits, locks, or raises.
"""

import os
import time
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Protocol

from penstock._durations import DurationRecorder
from penstock.errors import PipelineFailure
from penstock.pipeline._events import ItemDropped, ItemsDone, Observer, StageEnded, StageStarted, guarded
from penstock.pipeline._items import DroppedItem
from penstock.pipeline._statistics._report import PipelineReport
from penstock.pipeline._statistics._stage_report import StageReport


class Probe(Protocol):
    """The methods that a stage calls at its edges; `StageProbe` counts the calls."""

    def done(self, items: int, failures: int, seconds: float, *, cpu_seconds: float | None = None) -> None:
        """Report that a call of the stage's function ended.

        Args:
            items: how many items came out of it.
            failures: how many items it failed on.
            seconds: how long it took.
            cpu_seconds: the CPU time of its thread (`time.thread_time`), if measured.
        """

    def waited_for_input(self, seconds: float) -> None:
        """Report that the stage waited for an item."""

    def waited_for_output(self, seconds: float) -> None:
        """Report that the stage held an item and waited for room in the next stage."""

    def looked(self, held: int, limit: int) -> None:
        """Report that the stage looked into its queue before it took items: the queue held `held` of `limit` items."""


class StageProbe:
    """The counters of one stage; its clock runs from its creation.

    Args:
        name: the stage's name.
        kind: the kind of stage, as in `StageReport.kind`.
        concurrency: how many calls the stage may run at once, at least 1. Default 1.
        on_threads: whether the calls run on the pipeline's own threads, as in `StageReport.on_threads`. Default False.
        clock: returns the time in seconds, from any origin. Default `time.perf_counter`.

    Example:
        >>> probe = StageProbe("decode", "sync", concurrency=2)
        >>> probe.looked(held=3, limit=4)
        >>> probe.done(8, 0, 0.016)
        >>> report = probe.snapshot()
        >>> report.items, report.busy_seconds, report.queue_fill, f"{report.p50_seconds:.3f}"
        (8, 0.016, 0.75, '0.002')
    """

    __slots__ = (
        "_busy_seconds",
        "_clock",
        "_concurrency",
        "_cpu_seconds",
        "_durations",
        "_failures",
        "_fill",
        "_found",
        "_items",
        "_kind",
        "_looks",
        "_name",
        "_on_threads",
        "_ran",
        "_unrecorded_seconds",
        "_wait_input_seconds",
        "_wait_output_seconds",
    )

    def __init__(
        self,
        name: str,
        kind: str,
        *,
        concurrency: int = 1,
        on_threads: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._name = name
        self._kind = kind
        self._concurrency = concurrency
        self._on_threads = on_threads
        self._clock = clock
        self._items = self._failures = self._looks = self._found = 0
        self._busy_seconds = self._wait_input_seconds = self._wait_output_seconds = self._fill = 0.0
        self._cpu_seconds: float | None = None
        self._unrecorded_seconds = 0.0
        self._durations = DurationRecorder()
        # The seconds of earlier passes, and the start of this one if the stage runs. Both are one value, because
        # another thread may read them between two assignments.
        self._ran: tuple[float, float | None] = (0.0, clock())

    def done(self, items: int, failures: int, seconds: float, *, cpu_seconds: float | None = None) -> None:
        """Count a finished call of the stage's function.

        The time of a call without results (an incomplete batch, or only skipped items) is added to the next call that
        has some, since it is part of their cost. Seconds of 0 mean that the call was not timed, as at a sink: its items
        get no durations.
        """
        self._items += items
        self._failures += failures
        self._busy_seconds += seconds
        if cpu_seconds is not None:
            self._cpu_seconds = (self._cpu_seconds or 0.0) + cpu_seconds
        seconds += self._unrecorded_seconds
        count = items + failures
        if count and seconds > 0:
            self._durations.record(seconds / count, count)
            self._unrecorded_seconds = 0.0
        else:
            self._unrecorded_seconds = seconds

    def waited_for_input(self, seconds: float) -> None:
        """Count time in which the stage waited for an item."""
        self._wait_input_seconds += seconds

    def waited_for_output(self, seconds: float) -> None:
        """Count time in which the stage held an item and waited for room in the next stage."""
        self._wait_output_seconds += seconds

    def looked(self, held: int, limit: int) -> None:
        """Count a look into the queue before the stage; if its limit is 0, a queue with an item counts as full."""
        self._looks += 1
        if held:
            self._found += 1
            self._fill += min(held / limit, 1.0) if limit else 1.0

    def ended(self) -> None:
        """Stop the stage's clock: `elapsed_seconds` stays constant until `started`."""
        self._ran = (self._elapsed_seconds(), None)

    def started(self) -> None:
        """Resume the stage's clock for another pass over the source; all counts continue."""
        self._ran = (self._elapsed_seconds(), self._clock())

    def snapshot(self) -> StageReport:
        """Return the counts so far as a value."""
        looks = self._looks
        return StageReport(
            name=self._name,
            kind=self._kind,
            concurrency=self._concurrency,
            on_threads=self._on_threads,
            elapsed_seconds=self._elapsed_seconds(),
            items=self._items,
            failures=self._failures,
            busy_seconds=self._busy_seconds,
            cpu_seconds=self._cpu_seconds,
            wait_input_seconds=self._wait_input_seconds,
            wait_output_seconds=self._wait_output_seconds,
            queue_fill=min(self._fill / looks, 1.0) if looks else None,
            queue_found_share=min(self._found / looks, 1.0) if looks else None,
            durations=self._durations.snapshot(),
        )

    def _elapsed_seconds(self) -> float:
        earlier_seconds, started_at = self._ran
        return earlier_seconds if started_at is None else earlier_seconds + self._clock() - started_at


class Probes:
    """Owns a probe for each stage, by name; the stage of the next run continues to count in the same one."""

    def __init__(self, *, statistics: bool, observer: Observer | None) -> None:
        self._statistics = statistics
        self._observer = None if observer is None else guarded(observer)
        self._stages: dict[str, StageProbe] = {}
        self._observed: set[str] = set()  # the stages whose start was sent to the observer, and their end wasn't
        self._seconds = 0.0
        self._started: float | None = None

    @property
    def counts(self) -> bool:
        """Whether statistics are kept, for `report`."""
        return self._statistics

    def probe(self, name: str, kind: str, concurrency: int, *, on_threads: bool = False) -> Probe | None:
        """Return the probe of a stage, which starts now; None if there are neither statistics nor an observer."""
        self._observe_start(name, kind, concurrency)
        return self._probe(name, kind, concurrency, on_threads=on_threads)

    def sink(self) -> Probe | None:
        """Return the probe of the sink, which exists before its run, and starts when that begins."""
        return self._probe("sink", "sink", 1)

    def _probe(self, name: str, kind: str, concurrency: int, *, on_threads: bool = False) -> Probe | None:
        probe: Probe | None = None
        if self._statistics:
            probe = self._stages.get(name)
            if probe is None:
                probe = self._stages[name] = StageProbe(name, kind, concurrency=concurrency, on_threads=on_threads)
        return probe if self._observer is None else _Observed(name, probe, self._observer)

    def _observe_start(self, name: str, kind: str, concurrency: int) -> None:
        if self._observer is not None:
            self._observer(StageStarted(name, kind, concurrency))
            self._observed.add(name)

    def begin(self) -> None:
        """Start the clocks: a run begins, and with it the sink."""
        self._started = perf_counter()
        self._observe_start("sink", "sink", 1)
        for probe in self._stages.values():
            probe.started()

    def end(self, failure: PipelineFailure | None, names: Sequence[str]) -> None:
        """Stop the clocks: a run has ended; its stages that have started end in the order of `names`."""
        if self._started is not None:
            self._seconds += perf_counter() - self._started
            self._started = None
        for probe in self._stages.values():
            probe.ended()
        if self._observer is not None:
            for name in names:
                if name in self._observed:  # not a flow's end, nor a stage that could not be opened
                    self._observer(StageEnded(name, failure))
            self._observed.clear()

    def drop(self, dropped: DroppedItem) -> None:
        """Send the observer an event for a dropped item."""
        if self._observer is not None:
            self._observer(ItemDropped(dropped.stage, dropped.item, dropped.error))

    def report(self, names: Sequence[str], num_threads: int) -> PipelineReport:
        """Return the counts so far, the stages in the order of `names`."""
        running = 0.0 if self._started is None else perf_counter() - self._started
        return PipelineReport(
            tuple(self._stages[name].snapshot() for name in names if name in self._stages),
            elapsed_seconds=self._seconds + running,
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            num_threads=num_threads,
        )


class _Observed:
    """A probe that sends events to an observer, and passes its calls on to the probe that counts, if there is one."""

    def __init__(self, name: str, counting: Probe | None, observer: Observer) -> None:
        self._name = name
        self._counting = counting
        self._observer = observer

    def done(self, items: int, failures: int, seconds: float, *, cpu_seconds: float | None = None) -> None:
        if self._counting is not None:
            self._counting.done(items, failures, seconds, cpu_seconds=cpu_seconds)
        self._observer(ItemsDone(self._name, items, failures, seconds))

    def waited_for_input(self, seconds: float) -> None:
        if self._counting is not None:
            self._counting.waited_for_input(seconds)

    def waited_for_output(self, seconds: float) -> None:
        if self._counting is not None:
            self._counting.waited_for_output(seconds)

    def looked(self, held: int, limit: int) -> None:
        if self._counting is not None:
            self._counting.looked(held, limit)
