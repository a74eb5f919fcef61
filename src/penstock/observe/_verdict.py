"""The verdict on a loader: its bottleneck, the rate after one change, and the change that would help most.

The rate follows from operational laws, as in Plumber (arXiv 2111.04131). With T the consumer's own time for a batch, D
the time that a batch takes at the workers, C the processor time in it, F the time of the steps that run in one thread
in order, w workers and p processors, it is

    min(1 / T, w / D, p / C, 1 / F)        and, without workers,        1 / (T + D).

Where threads hold the interpreter's lock, p is 1. That they do is seen from the time for which threads that wake up
wait for it: those that sleep until there is work, and the training, until there is a batch. Processor time doesn't show
it: that of threads without the lock may add up to one processor, too, and on a busy machine that of threads with it
adds up to less. But steps that hardly compute are not why others wait: then it is the training's own Python code. The
training waits for the lock in its own code as well, after each call that has given it up, usually for Python's switch
interval. So its own time is the mean less one such wait, or the fifth percentile if that is less. A change is predicted
by the same formula, as a factor of the measured rate: a step that costs nothing is taken out of D, C or F, one worker
more is added to w.

The formula knows nothing of memory, stragglers, storage and placing. Where one of them causes most of the waiting, it
limits the rate to the measured one, and the formula is the rate without it. A wait has one cause, and ends while most
workers are busy also where they were idle before. So where workers were idle for much of the whole time, waits for them
don't decide which cause this is.
"""

from dataclasses import replace
from math import ceil
from typing import Final, Literal

from penstock._frozen import frozen
from penstock._readings import Cause
from penstock._runtime import HELD_SECONDS, NOTHING_SECONDS

MORE_MEMORY: Final = "more memory"
MORE_AHEAD: Final = "more batches ahead"
HARDLY: Final = 0.1
"""The share of the time below which waiting is negligible."""
_MOSTLY: Final = 0.5
_IDLE: Final = 0.7  # of the time of workers: they limit no rate if they are busy for less of it
_ALSO: Final = 0.25  # of the waiting: the causes for which workers are idle must have as much
_WORTH: Final = 1.05  # times: a smaller gain is not worth a change
_FULL: Final = 0.85  # of the processors
_BUSY_ENOUGH: Final = 0.8  # of the time of workers that keep up with the training
_HOLDING: Final = 0.3  # processors that the steps keep busy at least, where they are why threads wait for the lock
_OWN: Final = 0.75  # of the consumer's time, below which the rest are waits for the interpreter's lock
_SWITCH_SECONDS: Final = 0.005  # after which a thread that computes gives the interpreter's lock to another one
_MOST_WORKERS: Final = 64
_UNHURRIED: Final = 1e-9
_PASSED_SECONDS: Final = 50e-6  # at least, for a batch that a worker made; threads take turns, processes send it
_NAMES: Final[dict[Cause, str]] = {
    "memory": "memory",
    "stragglers": "stragglers",
    "placing": "placing",
    "helper": "the other processes",
}
_BOUNDS: Final[dict[Cause, str]] = {**_NAMES, "storage": "storage"}
"""Limits beside those of the formula."""
_IDLING: Final[frozenset[Cause]] = frozenset({"memory", "stragglers"})  # workers have nothing to do meanwhile
_REMOVED: Final[dict[Cause, str]] = {
    "memory": MORE_MEMORY,
    "stragglers": MORE_AHEAD,
    "placing": "placing costs nothing",
}
_REMEDIES: Final = {
    "memory": "raise memory=, keep fewer batches, or pass copy=True: workers are idle for want of memory",
    "stragglers": "raise prefetch, so that workers have other batches to do while one is late, or pass ordered=False",
    "placing": "raise ahead, so that more batches are copied before they are requested, or deliver fewer bytes, such "
    "as images of uint8 that the device converts",
    "helper": "raise num_workers, or that of the pool: other processes compute more slowly than the training",
}


@frozen
class WhatIf:
    """The prediction of one change.

    Attributes:
        change: the change, in words: "decode costs nothing", "1 worker more"; for threads that hold the interpreter's
            lock "processes", and "2 processes" where these gain more than as many as the threads; and where they limit
            the rate, "more memory", "more batches ahead" or "placing costs nothing".
        batches_per_second: the rate after it.
        times: that rate, as a multiple of the measured one.
        then: the bottleneck after it: "the consumer", "the workers", "the processors", "the interpreter's lock", "the
            steps in order", or what limits the rate in spite of it: "memory", "stragglers", "storage", "placing".
        step: the name of the step that costs nothing; None for another change.
        workers: the number of workers after a change of it; None for another change.
        kind: the kind of the workers after a change of it, "processes"; None for another change.
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
    workers: int | None = None
    measured: float | None = None
    kind: Literal["processes"] | None = None

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
        are_in_order: of each step, whether one thread runs it in order.
        are_own: of each step, whether it is Penstock's own work, and runs no function of the user's; () for none.
        start_share: the share of the whole time that the first batches of iterators take; no other figure has it.
        order_seconds: of the steps that one thread runs in order.
        consumer_seconds: of the consumer.
        consumer_p5_seconds: the 5th percentile of that; 0 if it isn't known.
        lock_wait_seconds: the time for which a thread that wakes up waits for the interpreter's lock; 0 for none.
        is_isolated: whether the workers are another process's, so that the consumer doesn't share a lock with them.
        rate: the measured number of batches per second, after the start.
        wait_share: the share of that time in which the consumer waits.
        workers: their number.
        has_threads: whether the workers are threads.
        processors: their number.
        cause: of most of the waiting, as `main_cause` returns it.
    """

    names: tuple[str, ...]
    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
    are_in_order: tuple[bool, ...]
    work_seconds: float
    order_seconds: float
    consumer_seconds: float
    rate: float
    wait_share: float
    workers: int
    has_threads: bool
    processors: int
    cause: Cause | None = None
    consumer_p5_seconds: float = 0.0
    lock_wait_seconds: float = 0.0
    is_isolated: bool = False
    are_own: tuple[bool, ...] = ()
    start_share: float = 0.0

    @property
    def bound(self) -> Cause | None:
        """The cause of most of the waiting, if there is much, and the formula knows nothing of the cause."""
        return self.cause if self.wait_share >= HARDLY and self.cause in _BOUNDS else None

    @property
    def computing(self) -> float:
        """The number of processors that the steps keep busy, on average."""
        return self.rate * sum(self.cpu_seconds)

    @property
    def holds_interpreter(self) -> bool:
        """Whether threads hold the interpreter's lock for so long that others wait; those that hardly compute don't."""
        is_waited_for = self.lock_wait_seconds > 0 and self.computing >= _HOLDING
        return self.has_threads and is_waited_for and self.processors > 1

    @property
    def own_seconds(self) -> float:
        """The time of the consumer for a batch, without its waits for the interpreter's lock, as far as is known."""
        if self.is_isolated or not self.holds_interpreter:
            return self.consumer_seconds
        once = max(self.consumer_seconds - min(self.lock_wait_seconds, _SWITCH_SECONDS), 0.0)
        return min(self.consumer_p5_seconds or once, once)

    @property
    def slows_consumer(self) -> bool:
        """Whether threads hold the interpreter's lock for so long that the consumer itself takes longer."""
        return self.own_seconds < _OWN * self.consumer_seconds

    @property
    def is_full(self) -> bool:
        """Whether the steps keep all processors busy."""
        return self.computing >= _FULL * self.processors

    def limits(self) -> dict[str, float]:
        """Return the rate that each resource allows."""
        limits = {} if self.bound is None else {_BOUNDS[self.bound]: self.rate}
        if not self.workers:
            return {**limits, "the consumer": 1 / max(self.consumer_seconds + self.work_seconds, _UNHURRIED)}
        processors = 1 if self.holds_interpreter else self.processors
        return {
            **limits,
            "the consumer": 1 / max(self.consumer_seconds, _UNHURRIED),
            "the workers": self.workers / max(self.work_seconds - self.order_seconds, _UNHURRIED),
            "the interpreter's lock" if self.holds_interpreter else "the processors": processors
            / max(sum(self.cpu_seconds), _UNHURRIED),
            "the steps in order": 1 / max(self.order_seconds, _UNHURRIED),
        }

    def without(self, index: int) -> dict[str, float]:
        """Return `limits` if a step cost nothing; the interpreter's lock stays with threads that hold it."""
        limits, seconds = self.limits(), self.seconds[index]
        if self.bound is not None and index == self._bound_step:
            del limits[_BOUNDS[self.bound]]
        if not self.workers:
            free = 1 / max(self.consumer_seconds + self.work_seconds - seconds, _UNHURRIED)
            return {**limits, "the consumer": free}
        if self.are_in_order[index]:
            limits["the steps in order"] = 1 / max(self.order_seconds - seconds, _UNHURRIED)
        else:
            own = self.work_seconds - self.order_seconds - seconds
            limits["the workers"] = self.workers / max(own, _UNHURRIED)
        computing = next(name for name in limits if name in {"the interpreter's lock", "the processors"})
        left = max(sum(self.cpu_seconds) - self.cpu_seconds[index], _UNHURRIED)
        limits[computing] = (1 if self.holds_interpreter else self.processors) / left
        held = left / max(sum(self.cpu_seconds), left)  # the part of the waits for the lock that is left
        consumer = self.own_seconds + (self.consumer_seconds - self.own_seconds) * held
        limits["the consumer"] = 1 / max(consumer, _UNHURRIED)
        return limits

    @property
    def _bound_step(self) -> int | None:
        """The number of the step without which the bound would be none: the read, or the one that is late."""
        if self.bound == "stragglers":
            return max(range(len(self.seconds)), key=self.seconds.__getitem__, default=None)
        return 0 if self.bound == "storage" else None

    def unbound(self) -> tuple[WhatIf, ...]:
        """Return the prediction without the bound, if that can be removed and there is one."""
        if self.bound not in _REMOVED:
            return ()
        return (self._predicted(_REMOVED[self.bound], replace(self, cause=None).limits()),)

    def in_processes(self) -> tuple[WhatIf, ...]:
        """Return predictions for processes in place of threads, if the threads hold the interpreter's lock.

        These are as many processes as there are threads; and if more gain more, also as many as would do.
        """
        if not self.holds_interpreter:
            return ()
        own = sum(self.cpu_seconds)  # a thread's time in a step includes waits for the lock
        freed = replace(
            self,
            has_threads=False,
            work_seconds=own,
            order_seconds=min(self.order_seconds, own),
            consumer_seconds=self.own_seconds,
        )
        as_many = replace(self._predicted("processes", freed.limits()), kind="processes")
        enough = min(_enough(freed), self.processors)
        if enough <= self.workers:
            return (as_many,)
        limits = replace(freed, workers=enough).limits()
        more = replace(self._predicted(f"{enough} processes", limits, workers=enough), kind="processes")
        return (as_many, more) if more.times >= _WORTH * as_many.times else (as_many,)

    @property
    def limit(self) -> str:
        """The resource that limits the rate, by the formula, of those that compute; without workers, the consumer."""
        limits = replace(self, cause=None).limits()
        computing = [name for name in limits if name != "the consumer"]
        return min(computing, key=lambda name: limits[name], default="the consumer")

    @property
    def longest(self) -> str:
        """The name of the step that takes most of the resource that limits the rate."""
        limit = self.limit
        if limit == "the steps in order":
            return self.longest_in_order
        # A thread may wait for the lock or a processor in any step, so only processor time shows which step takes them.
        if self.holds_interpreter or limit == "the processors":
            return self.most_computing
        return self._longest_of(self.seconds, in_order=(False,) if limit == "the workers" else (False, True))

    @property
    def most_computing(self) -> str:
        """The name of the step that takes most processor time."""
        return self._longest_of(self.cpu_seconds)

    @property
    def longest_in_order(self) -> str:
        """The name of the step that takes most of the time of those that one thread runs in order."""
        return self._longest_of(self.seconds, in_order=(True,))

    def _longest_of(self, times: tuple[float, ...], *, in_order: tuple[bool, ...] = (False, True)) -> str:
        """Return the name of the longest step; of all steps, if none of those named has time."""
        each = [
            (time, name)
            for time, name, is_in_order in zip(times, self.names, self.are_in_order, strict=True)
            if time and is_in_order in in_order
        ]
        return max(each or list(zip(self.seconds, self.names, strict=True)), key=lambda pair: pair[0])[1]

    def if_free(self) -> dict[str, WhatIf]:
        """Return the prediction for each step, by name, if it cost nothing."""
        return {
            name: self._predicted(f"{name} costs nothing", self.without(index), name)
            for index, name in enumerate(self.names)
        }

    def with_workers(self, count: int) -> WhatIf:
        """Return the prediction for another number of workers, at least 1."""
        more = f"{count - self.workers} worker{'s' if count - self.workers > 1 else ''} more"
        # More threads only wait longer for the interpreter's lock, and to pass on what costs nothing is no gain.
        is_nothing = not self.workers and self.work_seconds - self.order_seconds < NOTHING_SECONDS
        changed = self if self.holds_interpreter or is_nothing else replace(self, workers=count)
        if not self.workers and not is_nothing:
            changed = replace(changed, consumer_seconds=max(self.consumer_seconds, _PASSED_SECONDS))
        limits = changed.limits()
        change = more if self.workers else f"{count} worker{'s' if count > 1 else ''}"
        return self._predicted(change, limits, workers=count)

    def _predicted(
        self, change: str, limits: dict[str, float], step: str | None = None, workers: int | None = None
    ) -> WhatIf:
        then = min(limits, key=lambda name: limits[name])
        times = max(limits[then] / min(self.limits().values()), 1.0)
        return WhatIf(change, self.rate * times, times, then, step, workers)


def bottleneck_of(model: Model) -> str | None:
    """Return the bottleneck, as `Report.bottleneck` does."""
    if model.rate <= 0:
        return None
    cause = model.cause
    if model.wait_share < HARDLY:
        return model.most_computing if model.slows_consumer else "the consumer"
    if cause in _NAMES:
        return _NAMES[cause]
    if not any(model.seconds):
        return None
    if cause == "fold":
        return model.longest_in_order
    if cause == "storage":
        return model.names[0]
    return model.longest


def main_cause(waits: tuple[tuple[Cause, float], ...], busy_share: float) -> Cause | None:
    """Return the cause of at least half of the waiting after the start; None if there is none.

    Where workers were idle for much of the time, only causes for which they are idle count, if there are such.

    Args:
        waits: the causes and their seconds.
        busy_share: the share of the time in which the workers worked; 1 without workers.
    """
    later = [each for each in waits if each[0] != "start"]
    idling = [each for each in later if each[0] in _IDLING]
    if busy_share < _IDLE and _sum(idling) >= _ALSO * _sum(later):
        later = idling
    return next((cause for cause, seconds in later if seconds >= _MOSTLY * _sum(later)), None)


def _sum(waits: list[tuple[Cause, float]]) -> float:
    return sum(seconds for _, seconds in waits)


def what_if(model: Model) -> tuple[WhatIf, ...]:
    """Return the predictions, the best first."""
    if model.rate <= 0:
        return ()
    more = model.with_workers(model.workers + 1)
    found = [*model.if_free().values(), more, *model.unbound(), *model.in_processes()]
    return tuple(sorted(found, key=lambda each: -each.times))


def advice_on(model: Model) -> str:
    """Return the change that would help most."""
    name, cause = bottleneck_of(model), model.cause
    if name is None:
        return "nothing yet: too few batches were delivered"
    if name == "the consumer":
        why = f"the training takes longer than the loader, and waits {model.wait_share:.0%} of the time"
        return f"nothing: {why}{_starts(model) or _fewer_workers(model)}"
    if cause in _REMEDIES and not model.slows_consumer:
        gain = "".join(f": up to {each.times_text}" for each in model.unbound() if each.times >= _WORTH)
        return _REMEDIES[cause] + gain
    if cause == "storage":
        return f"request more ahead, with limits=Limits(read_ahead=...): workers wait for records of {name!r}"
    return _for_step(model, name)


def _starts(model: Model) -> str:
    """Return what first batches take beside the waits, if that is much; otherwise nothing."""
    if model.start_share < HARDLY:
        return ""
    share = f"{model.start_share:.0%}"
    return f" after the first batch of an epoch; first batches take {share}: longer epochs, as of repeat(n), have fewer"


def _fewer_workers(model: Model) -> str:
    """Return how many workers keep up with the training, if half of them do; otherwise nothing."""
    enough = max(ceil(model.rate * (model.work_seconds - model.order_seconds) / _BUSY_ENOUGH), 1)
    if 2 * enough > model.workers:
        return ""
    return f"; {enough} worker{'s' if enough > 1 else ''} would do"


def _for_step(model: Model, name: str) -> str:
    index = model.names.index(name)
    free, is_in_order = model.if_free()[name], model.are_in_order[index]
    cheaper = f"{_remedy(model, index)}: up to {free.times_text}"
    if not model.workers:
        return _first_workers(model, cheaper, free.times if is_in_order else _WORTH)
    if max(each.times for each in what_if(model)) < _WORTH:
        first, second = sorted(model.limits().items(), key=lambda each: each[1])[:2]
        return f"nothing: {_texts(first[0])} and {_texts(second[0])} take about as long"
    if is_in_order:
        return cheaper
    if model.holds_interpreter:
        return _for_lock(model, name)
    if model.is_full:
        return f"{cheaper}; more workers don't help, since the processors are full"
    return _more_workers(model, cheaper)


def _texts(limit: str) -> str:
    return "the training" if limit == "the consumer" else limit


def _remedy(model: Model, index: int) -> str:
    """Return what makes a step cheaper."""
    name = model.names[index]
    if not model.are_in_order[index]:
        return f"make {name!r} cheaper, or keep its results with cache()"
    if any(model.are_own[index : index + 1]):
        return (
            f"one thread runs {name!r} in order, and calls no function of yours there: give it fewer or smaller "
            "elements, or keep random access, as shuffle() and filter(index=...) do, so that workers compute all of it"
        )
    return (
        f"one thread runs {name!r} in order: move its work into maps directly below the batch, or below all steps in "
        "order, or make it cheaper"
    )


def _for_lock(model: Model, name: str) -> str:
    best = model.in_processes()[-1]
    count = best.workers or model.workers
    more = "" if best.workers is None else f" and num_workers={count}"
    slowed = ", for which the training waits as well" if model.slows_consumer else ""
    own = "a process has its own" if count == 1 else f"processes use {min(model.processors, count)} processors"
    why = f"{name!r} holds the interpreter's lock (GIL){slowed}, and {own}"
    gain = f": up to {best.times_text}" if best.times >= _WORTH else ""
    return f'pass workers="processes"{more}: {why}{gain}'


def _first_workers(model: Model, cheaper: str, least: float) -> str:
    """Return the advice to have workers, if they gain at least so much; else `cheaper`."""
    computes = sum(model.cpu_seconds) > _MOSTLY * model.work_seconds
    if model.processors == 1 and computes:
        return cheaper
    gain = model.with_workers(_enough(model))
    if gain.times < least:
        return cheaper
    # Functions that hold the interpreter's lock slow the training, too, and without workers it isn't known which do.
    is_short = computes and model.work_seconds - model.order_seconds < HELD_SECONDS
    count = '"auto", which measures whether workers gain anything' if is_short else str(_enough(model))
    return f"compute ahead, with num_workers={count}: up to {gain.times_text}"


def _more_workers(model: Model, cheaper: str) -> str:
    count = max(_enough(model), model.workers + 1)
    gain = model.with_workers(count)
    return cheaper if gain.times < _WORTH else f"raise num_workers to {count}: up to {gain.times_text}"


def _enough(model: Model) -> int:
    """Return the number of workers that keep up with the consumer, with the steps in order, or with the processors."""
    rate = 1 / max(model.consumer_seconds, model.order_seconds, _UNHURRIED)
    if sum(model.cpu_seconds) > 0:
        rate = min(rate, model.processors / sum(model.cpu_seconds))
    return min(max(ceil(rate * (model.work_seconds - model.order_seconds)), 1), _MOST_WORKERS)
