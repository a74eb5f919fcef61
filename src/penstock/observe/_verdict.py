"""The verdict on a loader: its bottleneck, the rate after one change, and the change that would help most.

The rate follows from operational laws, as in Plumber (arXiv 2111.04131). With T the consumer's own time for a batch, D
the time that a batch takes at the workers, C the processor time in it, F the time of the steps that run in one thread
in order, w workers and p processors, it is

    min(1 / T, w / D, p / C, 1 / F)        and, without workers,        1 / (T + D).

Where threads hold the interpreter's lock, p is 1. That they do is seen from their processor time: it adds up to that of
one processor, although more of them are busy. A change is predicted by the same formula, as a factor of the measured
rate: a step that costs nothing is taken out of D, C or F, one worker more is added to w.
"""

from dataclasses import replace
from math import ceil
from typing import Final

from penstock._frozen import frozen
from penstock._readings import Cause

HARDLY: Final = 0.1
"""The share of the time below which waiting is negligible."""
_MOSTLY: Final = 0.5
_WORTH: Final = 1.05  # times: a smaller gain is not worth a change
_FULL: Final = 0.85  # of the processors
_ONE_CORE: Final = (0.7, 1.25)
_BUSY_THREADS: Final = 1.5
_MOST_WORKERS: Final = 64
_UNHURRIED: Final = 1e-9
_PASSED_SECONDS: Final = 50e-6  # at least, for a batch that a worker made; threads take turns, processes send it
_NAMES: Final[dict[Cause, str]] = {
    "memory": "memory",
    "stragglers": "stragglers",
    "placing": "placing",
    "helper": "the other processes",
}
_REMEDIES: Final = {
    "memory": "raise memory=, keep fewer batches, or pass copy=True: workers are idle for want of memory",
    "stragglers": "raise prefetch, so that workers have other batches to do while one is late, or pass ordered=False",
    "placing": "raise ahead, so that more batches are copied before they are requested",
    "helper": "raise num_workers, or that of the pool: other processes compute more slowly than the training",
}


@frozen
class WhatIf:
    """The prediction of one change.

    Attributes:
        change: the change, in words.
        batches_per_second: the rate after it.
        times: that rate, as a multiple of the measured one.
        then: the bottleneck after it: "the consumer", "the workers", "the processors" or "the steps in order".
        step: the name of the step that costs nothing; None for a change of the workers.
        measured: the rate that `Loader.verify` has measured after the change, as a multiple of the one without it; None
            where it has measured none.

    Example:
        >>> import penstock as ps
        >>> loader = ps.Loader(ps.range(64).map(lambda number: number + 1, name="add").batch(8))
        >>> batches = list(loader)
        >>> predictions = loader.report().what_if
        >>> sorted(each.change for each in predictions)[:2]
        ['1 worker', 'add costs nothing']
    """

    change: str
    batches_per_second: float
    times: float
    then: str
    step: str | None = None
    measured: float | None = None

    @property
    def times_text(self) -> str:
        """The multiple as text, with the next bottleneck where the change helps."""
        if self.times < _WORTH:
            return f"{self.times:.2f}x"
        return f"{self.times:.{0 if self.times >= 9.95 else 1}f}x, then {self.then}"


@frozen
class Model:
    """The figures that decide a loader's rate. Times are seconds for a batch.

    Attributes:
        names: of the steps.
        seconds: of each step.
        cpu_seconds: the processor time of each step.
        work_seconds: of a batch at the workers, or at the consumer if there are none.
        order_seconds: of the steps that run in one thread, which are the last ones.
        consumer_seconds: of the consumer.
        rate: the measured number of batches per second, after the start.
        wait_share: the share of that time in which the consumer waits.
        workers: their number.
        has_threads: whether the workers are threads.
        processors: their number.
    """

    names: tuple[str, ...]
    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
    work_seconds: float
    order_seconds: float
    consumer_seconds: float
    rate: float
    wait_share: float
    workers: int
    has_threads: bool
    processors: int

    @property
    def computing(self) -> float:
        """The number of processors that the steps keep busy, on average."""
        return self.rate * sum(self.cpu_seconds)

    @property
    def holds_interpreter(self) -> bool:
        """Whether threads wait for the interpreter's lock."""
        busy = self.rate * self.work_seconds
        is_one_core = _ONE_CORE[0] <= self.computing <= _ONE_CORE[1]
        return self.has_threads and self.workers > 1 and is_one_core and busy >= _BUSY_THREADS and self.processors > 1

    @property
    def is_full(self) -> bool:
        """Whether the steps keep all processors busy."""
        return self.computing >= _FULL * self.processors

    def limits(self) -> dict[str, float]:
        """Return the rate that each resource allows."""
        if not self.workers:
            return {"the consumer": 1 / max(self.consumer_seconds + self.work_seconds, _UNHURRIED)}
        processors = 1 if self.holds_interpreter else self.processors
        return {
            "the consumer": 1 / max(self.consumer_seconds, _UNHURRIED),
            "the workers": self.workers / max(self.work_seconds - self.order_seconds, _UNHURRIED),
            "the interpreter's lock" if self.holds_interpreter else "the processors": processors
            / max(sum(self.cpu_seconds), _UNHURRIED),
            "the steps in order": 1 / max(self.order_seconds, _UNHURRIED),
        }

    def without(self, index: int) -> dict[str, float]:
        """Return `limits` if a step cost nothing; the interpreter's lock stays with threads that hold it."""
        limits, seconds = self.limits(), self.seconds[index]
        if not self.workers:
            return {"the consumer": 1 / max(self.consumer_seconds + self.work_seconds - seconds, _UNHURRIED)}
        is_in_order = bool(self.order_seconds) and index == len(self.seconds) - 1
        if is_in_order:
            limits["the steps in order"] = 1 / _UNHURRIED
        else:
            own = self.work_seconds - self.order_seconds - seconds
            limits["the workers"] = self.workers / max(own, _UNHURRIED)
        computing = next(name for name in limits if name in {"the interpreter's lock", "the processors"})
        left = max(sum(self.cpu_seconds) - self.cpu_seconds[index], _UNHURRIED)
        limits[computing] = (1 if self.holds_interpreter else self.processors) / left
        return limits

    def if_free(self) -> dict[str, WhatIf]:
        """Return the prediction for each step, by name, if it cost nothing."""
        return {
            name: self._predicted(f"{name} costs nothing", self.without(index), name)
            for index, name in enumerate(self.names)
        }

    def with_workers(self, count: int) -> WhatIf:
        """Return the prediction for another number of workers, at least 1."""
        more = f"{count - self.workers} worker{'s' if count - self.workers > 1 else ''} more"
        # More threads only wait longer for the interpreter's lock.
        changed = self if self.holds_interpreter else replace(self, workers=count)
        if not self.workers:
            changed = replace(changed, consumer_seconds=max(self.consumer_seconds, _PASSED_SECONDS))
        limits = changed.limits()
        return self._predicted(more if self.workers else f"{count} worker{'s' if count > 1 else ''}", limits)

    def _predicted(self, change: str, limits: dict[str, float], step: str | None = None) -> WhatIf:
        then = min(limits, key=lambda name: limits[name])
        times = max(limits[then] / min(self.limits().values()), 1.0)
        return WhatIf(change, self.rate * times, times, then, step)


def bottleneck_of(model: Model, waits: tuple[tuple[Cause, float], ...]) -> str | None:
    """Return the bottleneck, as `Report.bottleneck` does."""
    if model.rate <= 0:
        return None
    cause = main_cause(waits)
    if model.wait_share < HARDLY:
        return "the consumer"
    if cause in _NAMES:
        return _NAMES[cause]
    if not any(model.seconds):
        return None
    if cause == "fold":
        return model.names[-1]
    if cause == "storage":
        return model.names[0]
    # A thread may wait for the interpreter's lock in any step, so only processor time shows which step holds it.
    times = model.cpu_seconds if model.holds_interpreter else model.seconds
    return model.names[max(range(len(times)), key=lambda index: times[index])]


def main_cause(waits: tuple[tuple[Cause, float], ...]) -> Cause | None:
    """Return the cause of at least half of the waiting after the start; None if there is none."""
    later = [each for each in waits if each[0] != "start"]
    noted = sum(seconds for _, seconds in later)
    return next((cause for cause, seconds in later if seconds >= _MOSTLY * noted), None)


def what_if(model: Model) -> tuple[WhatIf, ...]:
    """Return the predictions, the best first."""
    if model.rate <= 0:
        return ()
    found = [*model.if_free().values(), model.with_workers(model.workers + 1)]
    return tuple(sorted(found, key=lambda each: -each.times))


def advice_on(model: Model, waits: tuple[tuple[Cause, float], ...]) -> str:
    """Return the change that would help most."""
    name, cause = bottleneck_of(model, waits), main_cause(waits)
    if name is None:
        return "nothing yet: too few batches were delivered"
    if name == "the consumer":
        return f"nothing: the training takes longer than the loader, and waits {model.wait_share:.0%} of the time"
    if cause in _REMEDIES:
        return _REMEDIES[cause]
    if cause == "storage":
        return f"request more ahead, with limits=Limits(read_ahead=...): workers wait for records of {name!r}"
    return _for_step(model, name, is_in_order=cause == "fold")


def _for_step(model: Model, name: str, *, is_in_order: bool) -> str:
    cheaper = f"make {name!r} cheaper, or keep its results with cache(): up to {model.if_free()[name].times_text}"
    if is_in_order:
        return f"move work out of the steps in order, which one thread runs, into maps below them: {cheaper}"
    if not model.workers:
        return _first_workers(model, cheaper)
    if max(each.times for each in what_if(model)) < _WORTH:
        return "nothing: the workers and the training take about as long"
    if model.holds_interpreter:
        processes = f"{min(model.processors, model.workers)} processors"
        return f'pass workers="processes": {name!r} holds the interpreter\'s lock, and processes use {processes}'
    if model.is_full:
        return f"{cheaper}; more workers don't help, since the processors are full"
    return _more_workers(model, cheaper)


def _first_workers(model: Model, cheaper: str) -> str:
    if model.processors == 1 and sum(model.cpu_seconds) > _MOSTLY * model.work_seconds:
        return cheaper
    gain = model.with_workers(_enough(model))
    if gain.times < _WORTH:
        return cheaper
    return f"compute ahead, with num_workers={_enough(model)}: up to {gain.times_text}"


def _more_workers(model: Model, cheaper: str) -> str:
    count = max(_enough(model), model.workers + 1)
    gain = model.with_workers(count)
    return cheaper if gain.times < _WORTH else f"raise num_workers to {count}: up to {gain.times_text}"


def _enough(model: Model) -> int:
    """Return the number of workers that keep up with the consumer, or with the processors."""
    rate = 1 / max(model.consumer_seconds, _UNHURRIED)
    if sum(model.cpu_seconds) > 0:
        rate = min(rate, model.processors / sum(model.cpu_seconds))
    return min(max(ceil(rate * (model.work_seconds - model.order_seconds)), 1), _MOST_WORKERS)
