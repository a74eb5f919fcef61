"""Reports of pipelines that did not run: each stage's probe is given shares of ten seconds."""

from penstock._durations import LONGEST_SECONDS as LONGEST_SECONDS
from penstock._durations import RELATIVE_ERROR as RELATIVE_ERROR
from penstock._durations import SHORTEST_SECONDS as SHORTEST_SECONDS
from penstock._durations import DurationRecorder as DurationRecorder
from penstock._durations import Durations as Durations
from penstock.pipeline import PipelineReport
from penstock.pipeline._statistics import StageProbe as StageProbe

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
