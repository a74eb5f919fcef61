"""The advice of a report: the one change that would help most, and its largest possible gain, in words.

A function that holds the GIL shows in its threads: their CPU time adds up to one core, however many calls run at once,
so that a call takes longer the more of them run. CPU time is measured only for stages on the pipeline's own threads;
if it wasn't, the advice says how to find out.
"""

from collections.abc import Sequence
from math import isinf
from typing import Final

from penstock.pipeline._statistics._bottleneck import HARDLY, MOSTLY, bottleneck_of, gain_of
from penstock.pipeline._statistics._stage_report import StageReport

_ONE_AT_A_TIME: Final = frozenset({"aggregate", "disaggregate", "router"})
_NEARLY: Final = 0.85
_ONE_CORE: Final = (0.75, 1.25)
_WORTH_NAMING: Final = 1.1


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
    if stages[-1].wait_input_share < HARDLY:
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
    is_one_core = least <= computing <= most and (stage.cores or 0.0) >= computing * MOSTLY
    return is_one_core and stage.on_threads and stage.calls_at_once > most + MOSTLY


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
