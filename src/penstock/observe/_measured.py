"""From readings to a report: the sums of all threads and processes, as times of a batch."""

from collections.abc import Callable, Collection
from itertools import count
from typing import Final, NamedTuple

from penstock._durations import Durations
from penstock._graph import Filter, Map, Node, verb_text, walk
from penstock._plan import Plan
from penstock._readings import NOTED_SECONDS, Readings, StepTime
from penstock.observe._report import Report, StepReport, by_length

_MANY_MEDIANS: Final = 10
_NEARLY_ALL: Final = 0.95  # of the time between requests
_SEVERAL: Final = 4
LEAST_BATCHES: Final = 8
"""With fewer, there is no usual time of a batch, nor between two requests."""


class Measured(NamedTuple):
    """The consumer's side of a report: what the clock of its iterators has counted."""

    batches: int
    elapsed_seconds: float
    wait_seconds: float


def measured(plan: Plan, readings: Readings, clock: Measured, processors: int) -> Report:
    """Return the report of a loader.

    Args:
        plan: of the loader.
        readings: what its threads and processes have written.
        clock: what its iterators have counted.
        processors: the number of processors that the program may use.
    """
    waits = readings.waits
    between = _with_short(waits.between, clock.batches - 1)
    usual = _usual_seconds(between)
    pauses = between.above(_MANY_MEDIANS * usual) if clock.batches >= LEAST_BATCHES else Durations()
    pause_seconds = min(pauses.total_seconds, max(clock.elapsed_seconds - clock.wait_seconds, 0.0))
    elapsed = clock.elapsed_seconds - pause_seconds
    made = batches_made(plan, readings, clock.batches)
    steps = _steps(plan, readings, made)
    in_order = sum(step.seconds for step in steps if step.is_in_order)
    at_workers = sum(step.seconds for step in steps if not step.is_in_order)
    noted = waits.waits
    asked = _with_short(noted, clock.batches)
    return Report(
        steps,
        clock.batches,
        elapsed,
        clock.wait_seconds,
        by_length(tuple(waits.seconds.copy().items())),
        _quantile(asked, 0.5),
        _quantile(asked, 0.99),
        pauses.count,
        pause_seconds,
        max(elapsed - clock.wait_seconds, 0.0) / max(clock.batches - 1 - pauses.count, 1),
        plan.worker_count,
        plan.workers_text,
        processors,
        in_order + max(readings.busy_seconds / made if made else 0.0, at_workers),
        in_order,
        0.0 if _are_groups(between) else _quantile(between, 0.05),
        readings.lock_wait_seconds if plan.place == "threads" else 0.0,
    )


def _with_short(noted: Durations, count: int) -> Durations:
    """Return noted times and, as the shortest, those that were too short to be noted."""
    return noted.merged(Durations(((0, max(count - noted.count, 0)),)))


def _quantile(durations: Durations, share: float) -> float:
    found = durations.quantile(share) or 0.0
    return found if found > NOTED_SECONDS else 0.0


def _usual_seconds(between: Durations) -> float:
    """Return the usual time between two requests, of those in which the training does its work."""
    return _median(_long(between) if _are_groups(between) else between)


def _are_groups(between: Durations) -> bool:
    """Return whether the training requests several batches, one right after the other, and then works on all of them.

    So it does to add up gradients. Then few of the times between two requests have nearly all of its time. Fewer than
    four such times may also be evaluations, early in a run.
    """
    long = _long(between)
    return long.count >= _SEVERAL and long.total_seconds >= _NEARLY_ALL * between.total_seconds


def _long(between: Durations) -> Durations:
    return between.above(_MANY_MEDIANS * _median(between))


def _median(durations: Durations) -> float:
    return max(durations.quantile(0.5) or 0.0, NOTED_SECONDS)


def batches_made(plan: Plan, readings: Readings, delivered: int) -> float:
    """Return the number of batches computed, also those that were not delivered yet."""
    rows = max(plan.batch_size // plan.shard.count, 1)
    return readings.rows / rows if plan.is_indexed else float(delivered)


def _steps(plan: Plan, readings: Readings, made: float) -> tuple[StepReport, ...]:
    """Return the steps that took time."""
    if not made:
        return ()
    timed = timed_steps(plan, readings)
    total = sum(time.seconds for _, time in timed.values())
    in_order = set(map(id, plan.program.in_order))
    return tuple(
        StepReport(
            name,
            step_text(node),
            time.seconds / made,
            time.seconds / total,
            time.cpu_share,
            _p99_seconds(time, made),
            is_in_order=id(node) in in_order,
        )
        for name, (node, time) in timed.items()
    )


def step_text(node: Node) -> str:
    """Return the text of a step, which may take the time of a source's own `__repr__`."""
    return verb_text(node) or type(node).__name__.lower()


def timed_steps(
    plan: Plan, readings: Readings, *, each: bool = True, text_of: Callable[[Node], str] = step_text
) -> dict[str, tuple[Node, StepTime]]:
    """Return the steps that took time, and their times, by the names that they have in a report.

    Args:
        plan: of the loader.
        readings: of the loader.
        each: as in `Readings.step_times`.
        text_of: returns the text of a step.
    """
    times = readings.step_times(each=each)
    nodes: dict[int, Node] = {}
    for node in walk(plan.node):
        nodes.setdefault(readings.numbers[id(node)], node)
    timed: dict[str, tuple[Node, StepTime]] = {}
    for number, node in nodes.items():
        if number < len(times) - 1 and times[number].seconds > 0:
            timed[_free_name(node, text_of, timed)] = node, _for_rows(plan, readings, node, times[number])
    return timed


def _for_rows(plan: Plan, readings: Readings, node: Node, time: StepTime) -> StepTime:
    """Return the time of a step above the batch for as many batches as `batches_made` counts.

    Where reads are cheap, only some are timed and counted, for others as well, and functions of batches are timed apart
    from them. In a short run the two numbers of batches may differ by half.
    """
    above = plan.batches.above if plan.is_indexed else ()
    if not any(node is each for each in above) or not time.elements:
        return time
    made = batches_made(plan, readings, 0)
    return time._replace(seconds=time.seconds * made / time.elements, elements=made)


def _free_name(node: Node, text_of: Callable[[Node], str], taken: Collection[str]) -> str:
    """Return the name of a step: that of its function, or the verb, with a number if an earlier step has it."""
    name = node.name if isinstance(node, Map | Filter) else text_of(node).partition("(")[0]
    names = (name if number == 1 else f"{name} {number}" for number in count(1))
    return next(each for each in names if each not in taken)


def _p99_seconds(time: StepTime, made: float) -> float | None:
    p99 = time.each.quantile(0.99)
    return None if p99 is None else p99 * time.elements / made
