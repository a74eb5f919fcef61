"""From readings to a report: the sums of all threads and processes, as times of a batch."""

from collections.abc import Callable, Collection
from itertools import count
from typing import Final, NamedTuple

from penstock._durations import Durations
from penstock._graph import Combine, Filter, Fold, Map, Node, Reindex, parents_of, verb_text, walk
from penstock._plan import Plan
from penstock._readings import NOTED_SECONDS, Readings, StepTime
from penstock.observe._report import Report, StepReport, by_length

_MANY_MEDIANS: Final = 10
_NEARLY_ALL: Final = 0.95  # of the time between requests
_SEVERAL: Final = 4
OTHER_STEPS: Final = "other steps"
"""The name of all steps without times of their own."""
LEAST_BATCHES: Final = 8
"""With fewer, there is no usual time of a batch, nor between two requests."""


class TimedStep(NamedTuple):
    """A step that took time."""

    text: str
    time: StepTime
    is_in_order: bool
    number: int
    """The number of the step in the dataset, or that of all steps that share a time."""
    node: Node | None = None
    """None for several steps that share a time."""


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
    steps = _steps(plan, readings, clock.batches, made)
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
        in_order + max(_busy_each(plan, readings, made, at_workers), at_workers),
        in_order,
        0.0 if _are_groups(between) else _quantile(between, 0.05),
        readings.lock_wait_seconds if plan.place == "threads" else 0.0,
        0.0 if plan.is_indexed else readings.busy_seconds,
    )


def _busy_each(plan: Plan, readings: Readings, made: float, at_workers: float) -> float:
    """Return the time of the workers for a batch, all else included; `at_workers` is that of their steps."""
    in_order = {readings.numbers[id(node)] for node in plan.program.in_order}
    times = readings.step_times(each=False)
    whole = sum(time.seconds for number, time in enumerate(times) if number not in in_order)
    if plan.is_indexed or not at_workers or not whole:  # the steps that share a time may be of both kinds
        return readings.busy_seconds / made if made else 0.0
    return readings.busy_seconds * at_workers / whole


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


def _steps(plan: Plan, readings: Readings, delivered: int, made: float) -> tuple[StepReport, ...]:
    """Return the steps that took time."""
    if not made:
        return ()
    timed = timed_steps(plan, readings, delivered)
    total = sum(step.time.seconds for step in timed.values())
    return tuple(
        StepReport(
            name,
            step.text,
            step.time.seconds / made,
            step.time.seconds / total,
            step.time.cpu_share,
            _p99_seconds(step.time, made),
            is_in_order=step.is_in_order,
        )
        for name, step in timed.items()
    )


def step_text(node: Node) -> str:
    """Return the text of a step, which may take the time of a source's own `__repr__`."""
    return verb_text(node) or type(node).__name__.lower()


def timed_steps(
    plan: Plan, readings: Readings, delivered: int, *, each: bool = True, text_of: Callable[[Node], str] = step_text
) -> dict[str, TimedStep]:
    """Return the steps that took time, by the names that they have in a report; of many, the last ones as one.

    The times are for as many batches as `batches_made` counts.

    Args:
        plan: of the loader.
        readings: of the loader.
        delivered: the number of batches that were delivered.
        each: as in `Readings.step_times`.
        text_of: returns the text of a step.
    """
    times = readings.step_times(each=each)
    nodes: dict[int, Node] = {}
    for node in walk(plan.node):
        nodes.setdefault(readings.numbers[id(node)], node)
    known = {number: node for number, node in nodes.items() if number < len(times) - 1}
    counted = {id(node): times[number].elements for number, node in known.items()}
    elements = {} if plan.is_indexed else _elements_each(plan, counted)
    in_order = set(map(id, plan.program.in_order))
    timed: dict[str, TimedStep] = {}
    for number, node in known.items():
        if times[number].seconds > 0:
            time = _for_rows(plan, readings, node, times[number])
            time = _for_delivered(time, elements.get(id(node), 0) * delivered)
            text = text_of(node)
            named = node.name if isinstance(node, Map | Filter) else text.partition("(")[0]
            name = free_name(named, timed)
            text += name.removeprefix(named)  # the number, by which the bottleneck and the advice name the step
            timed[name] = TimedStep(text, time, id(node) in in_order, number, node)
    others = [node for number, node in nodes.items() if number not in known]
    if others and times[-1].seconds > 0:
        are_in_order = in_order.issuperset(map(id, others))
        text = f"{len(others)} {OTHER_STEPS}"
        timed[free_name(OTHER_STEPS, timed)] = TimedStep(text, times[-1], are_in_order, len(times) - 1)
    return timed


def _for_delivered(time: StepTime, elements: float) -> StepTime:
    """Return the time of a step for the elements that the delivered batches took; 0 if their number isn't known."""
    if not elements or not time.elements:
        return time
    return time._replace(seconds=time.seconds * elements / time.elements, elements=elements)


def _elements_each(plan: Plan, counted: dict[int, float]) -> dict[int, float]:
    """Return how many elements of each step a batch takes, by identity, where a dataset is read in order.

    A step below a window, or one that workers compute ahead, has made more elements than are in the delivered batches:
    at first thousands for one. So their number follows from step to step, beginning with the delivered batch. A step
    takes as many elements as it makes, or a known number for each; otherwise, such as for a filter or a cache, as it
    has so far.

    Args:
        plan: of the loader.
        counted: the number of elements that each step has made, by its identity.
    """
    made = dict(counted)
    steps = list({id(node): node for node in walk(plan.node)}.values())
    for node in steps:  # some steps, such as an order, are no work, and count nothing
        if not made.get(id(node)) and _takes_each(node) == 1:
            made[id(node)] = made.get(id(parents_of(node)[0]), 0.0)
    rows = max(plan.batch_size // plan.shard.count, 1)
    found = {id(plan.node): 1.0}
    for node in reversed(steps):
        for parent in parents_of(node):
            taken = float(rows) if node is plan.program.batch else _takes_each(node)
            if taken is None and made.get(id(node)):
                taken = made.get(id(parent), 0.0) / made[id(node)]
                taken = min(taken, 1.0) if isinstance(node, Combine) else taken
            found[id(parent)] = found.get(id(parent), 0.0) + found.get(id(node), 0.0) * (taken or 0.0)
    found.pop(id(plan.program.batch), None)  # its elements are counted in several places
    return found


def _takes_each(node: Node) -> float | None:
    """Return how many of its parent's elements a step takes for each of its own; None if that depends on these."""
    match node:
        case Map(on_error=on_error):
            return None if on_error == "skip" else 1.0
        case Reindex():
            return 1.0
        case Fold(value=value):
            return 1.0 if value.passes_all else None
        case Combine(value=value):
            return None if value.takes_one else 1.0
        case _:
            return None


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


def free_name(name: str, taken: Collection[str]) -> str:
    """Return a name, with a number if an earlier step has it."""
    names = (name if number == 1 else f"{name} {number}" for number in count(1))
    return next(each for each in names if each not in taken)


def _p99_seconds(time: StepTime, made: float) -> float | None:
    p99 = time.each.quantile(0.99)
    return None if p99 is None else p99 * time.elements / made
