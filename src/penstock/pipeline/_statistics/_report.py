"""The report of a whole pipeline: its stages as a table, the bottleneck, and the one change that would help most.

The bottleneck follows from how the stages spent their time, by these rules, in this order:

1. No stage has put out an item yet: no bottleneck.
2. The consumer waits less than a tenth of the time: the sink is the bottleneck if its queue is at least half full,
   since no other stage then matters to the consumer; else there is none, since the pipeline just keeps pace.
3. The consumer waits: the stage that is busy for most of its time. Of several, the busiest; if others come within a
   tenth of it, the one whose queue holds items while the next stage waits for some.
4. No stage is busy for most of its time, and every stage after the source waits for items: the source.
5. Otherwise none: the time goes into something that belongs to no stage, such as too few threads for all of them.

A stage without a queue of its own runs together with the stage before it, call by call. The rules treat the two as one
stage, and then name the busier of them.

The advice recognizes a function that holds the GIL by its threads: their CPU time adds up to one core, however many
calls run at once. If a stage didn't report CPU time, the advice says how to find out.
"""

from collections.abc import Sequence
from math import inf, isinf
from typing import Final

from penstock._frozen import frozen
from penstock._printable import printable
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

_ONE_AT_A_TIME: Final = frozenset({"aggregate", "disaggregate", "router"})
_NEARLY: Final = 0.85
_ONE_CORE: Final = (0.75, 1.25)
_WORTH_NAMING: Final = 1.1
_HARDLY: Final = 0.1  # a share of the time that is negligible
_MOSTLY: Final = 0.5  # a share that is most of the time, or of the room in a queue


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
        """The number of items that the consumer took."""
        return self.stages[-1].items if self.stages else 0

    @property
    def items_per_second(self) -> float:
        """The items that the consumer took per second, on average."""
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
        lines = [
            f"{self.elapsed_seconds:.1f} s, {self.items:,} items, {rate}",
            *_table_lines(self.stages),
            _LEGEND,
            f"bottleneck: {self.bottleneck or 'none'}",
            f"to change: {self.advice}",
        ]
        return "\n".join(map(printable, lines))


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


# -- bottleneck


def bottleneck_of(stages: Sequence[StageReport]) -> StageReport | None:
    """Return the stage that limits the pipeline, or None.

    Args:
        stages: in the order in which items pass them, the sink last.
    """
    if not any(stage.items for stage in stages):
        return None
    sink = stages[-1]
    if _is_seen(sink) and sink.wait_input_share < _HARDLY:
        return sink if _is_full(stages) else None
    groups = _groups(stages)
    limiting = _limiting(groups)
    if limiting is not None:
        return max(limiting.stages, key=lambda stage: stage.busy_share)
    below = [group.stages[0] for group in groups[1:]]
    is_starved = (below or _is_seen(sink)) and all(stage.wait_input_share >= _MOSTLY for stage in below)
    return groups[0].stages[0] if groups and is_starved else None


def gain_of(stages: Sequence[StageReport], bottleneck: StageReport) -> tuple[float, str]:
    """Return by how many times the pipeline could be faster without the bottleneck, at most, and the next bottleneck.

    The next bottleneck is the next busiest stage, as its name in quotes, or the consumer, which counts as busy while it
    doesn't wait.
    """
    sink, busy_share = stages[-1], bottleneck.busy_share
    bounds = [(1 - sink.wait_input_share if _is_seen(sink) else 0.0, "the consumer")]
    for group in _groups(stages):
        others = [stage for stage in group.stages if stage is not bottleneck]
        if others:
            share = min(sum(stage.busy_share for stage in others), 1.0)
            bounds.append((share, f"'{max(others, key=lambda stage: stage.busy_share).name}'"))
        if len(others) < len(group.stages):
            busy_share = group.busy_share
    if not busy_share:  # a source that was not timed
        busy_share = 1 - bottleneck.wait_output_share
    share, name = max(bounds)
    return (busy_share / share if share else inf), name


@frozen
class _Group:
    """Stages that run together, the first of them with a queue of its own."""

    stages: tuple[StageReport, ...]
    is_fed: bool
    starves_next: bool

    @property
    def busy_share(self) -> float:
        return min(sum(stage.busy_share for stage in self.stages), 1.0)


def _groups(stages: Sequence[StageReport]) -> list[_Group]:
    """Return the stages before the sink as groups that run together."""
    parts: list[list[StageReport]] = []
    for stage in stages[:-1]:
        if parts and not _is_seen(stage):
            parts[-1].append(stage)
        else:
            parts.append([stage])
    takers = [part[0] for part in parts[1:]] + [stages[-1]]
    return [
        _Group(tuple(part), _is_fed(part[0]), taker.wait_input_share >= _HARDLY)
        for part, taker in zip(parts, takers, strict=False)  # a sink alone has no group before it
    ]


def _limiting(groups: Sequence[_Group]) -> _Group | None:
    busiest = max((group.busy_share for group in groups), default=0.0)
    if busiest < _MOSTLY:
        return None
    near = [group for group in groups if group.busy_share > busiest - _HARDLY]
    return max(near, key=lambda group: (group.is_fed and group.starves_next, group.busy_share))


def _is_seen(stage: StageReport) -> bool:
    """Return whether the stage has a queue of its own, into which it looked or at which it waited."""
    return stage.queue_fill is not None or stage.wait_input_seconds > 0 or stage.wait_output_seconds > 0


def _is_fed(stage: StageReport) -> bool:
    """Return whether the stage mostly finds items in its queue; a source, without a queue, counts as fed."""
    return stage.queue_found_share is None or stage.queue_found_share >= _MOSTLY


def _is_full(stages: Sequence[StageReport]) -> bool:
    return stages[-1].queue_fill is not None and stages[-1].queue_fill >= _MOSTLY


# -- advice


def advice_on(stages: Sequence[StageReport], cores: int | None, num_threads: int | None) -> str:
    """Return the change that would help a pipeline of these stages most.

    Args:
        stages: their reports, in the order in which items pass them, the sink last.
        cores: how many cores this process may use, or None if unknown.
        num_threads: how many threads the pipeline has, or None if unknown.
    """
    if not any(stage.items for stage in stages):
        return "nothing yet: no stage has put out an item"
    bottleneck = bottleneck_of(stages)
    if bottleneck is None:
        return _without_bottleneck(stages, num_threads)
    if bottleneck is stages[-1]:
        waits = _percent(bottleneck.wait_input_share)
        return f"nothing: the consumer is slower than the pipeline, and waits for it {waits} of the time"
    if bottleneck is stages[0]:
        change = f"make the source '{bottleneck.name}' faster: read more at once or ahead, or merge several sources"
    else:
        change = _for_stage(bottleneck, stages, cores, num_threads)
    return change + _gain(stages, bottleneck)


def _without_bottleneck(stages: Sequence[StageReport], num_threads: int | None) -> str:
    if stages[-1].wait_input_share < _HARDLY:
        return "nothing: the pipeline and the consumer keep pace"
    if _all_threads_busy(stages, num_threads):
        return f"raise num_threads (now {num_threads}): all threads are busy, but no single stage is"
    return "nothing: no stage limits the pipeline; measure for longer"


def _for_stage(stage: StageReport, stages: Sequence[StageReport], cores: int | None, num_threads: int | None) -> str:
    computing = sum(each.cores or 0.0 for each in stages)
    if cores != 1 and _holds_the_gil(stage, computing):
        return (
            f"run '{stage.name}' in processes (executor=ProcessExecutor(...)): it seems to hold the GIL, since "
            f"{stage.calls_at_once:.1f} concurrent calls use {computing:.1f} cores in all"
        )
    if cores is not None and computing >= cores * _NEARLY:
        return f"make '{stage.name}' cheaper: all {cores} cores are busy, so more concurrency doesn't help"
    if stage.kind in _ONE_AT_A_TIME:
        return f"make '{stage.name}' cheaper: it runs one call at a time"
    if stage.on_threads and _all_threads_busy(stages, num_threads):
        return f"raise num_threads (now {num_threads}): all threads are busy, most of them with '{stage.name}'"
    change = f"raise the concurrency of '{stage.name}' (now {stage.concurrency}, busy {_percent(stage.busy_share)})"
    if stage.on_threads and stage.cpu_seconds is None:
        change += "; if its seconds per item grow as much, it holds the GIL: run it in processes"
    return change


def _holds_the_gil(stage: StageReport, computing: float) -> bool:
    """Return whether all threads together use one core, most of it for this stage, though it runs more calls."""
    least, most = _ONE_CORE
    is_one_core = least <= computing <= most and (stage.cores or 0.0) >= computing * _MOSTLY
    return is_one_core and stage.on_threads and stage.calls_at_once > most + _MOSTLY


def _all_threads_busy(stages: Sequence[StageReport], num_threads: int | None) -> bool:
    busy = sum(stage.calls_at_once for stage in stages if stage.on_threads)
    return num_threads is not None and busy >= num_threads * _NEARLY


def _gain(stages: Sequence[StageReport], bottleneck: StageReport) -> str:
    times, name = gain_of(stages, bottleneck)
    if times < _WORTH_NAMING:
        return f"; {name} is nearly as slow"
    return "" if isinf(times) else f"; up to {times:.1f} times the items per second, then {name} is the slowest"


def _percent(share: float) -> str:
    return f"{share:.0%}"
