"""The probes of a pipeline's stages, kept over all its passes: counters for the report, events for the observer."""

import os
from collections.abc import Sequence
from time import perf_counter

from penstock.errors import PipelineFailure
from penstock.pipeline._events import ItemDropped, ItemsDone, Observer, StageEnded, StageStarted, guarded
from penstock.pipeline._items import DroppedItem
from penstock.pipeline._statistics import PipelineReport, Probe, StageProbe


class Probes:
    """Owns a probe for each stage, by name; the stage of the next run continues to count in the same one."""

    def __init__(self, *, statistics: bool, observer: Observer | None) -> None:
        self._statistics = statistics
        self._observer = None if observer is None else guarded(observer)
        self._stages: dict[str, StageProbe] = {}
        self._seconds = 0.0
        self._started: float | None = None

    @property
    def counts(self) -> bool:
        """Whether statistics are kept, for `report`."""
        return self._statistics

    def probe(self, name: str, kind: str, concurrency: int, *, on_threads: bool = False) -> Probe | None:
        """Return the probe of a stage; None if there are neither statistics nor an observer."""
        probe: Probe | None = None
        if self._statistics:
            probe = self._stages.get(name)
            if probe is None:
                probe = self._stages[name] = StageProbe(name, kind, concurrency=concurrency, on_threads=on_threads)
        if self._observer is not None:
            self._observer(StageStarted(name, kind, concurrency))
            probe = _Observed(name, probe, self._observer)
        return probe

    def begin(self) -> None:
        """Start the clocks: a run begins."""
        self._started = perf_counter()
        for probe in self._stages.values():
            probe.started()

    def end(self, failure: PipelineFailure | None, names: Sequence[str]) -> None:
        """Stop the clocks: a run has ended."""
        if self._started is not None:
            self._seconds += perf_counter() - self._started
            self._started = None
        for probe in self._stages.values():
            probe.ended()
        if self._observer is not None:
            for name in names:
                self._observer(StageEnded(name, failure))

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
