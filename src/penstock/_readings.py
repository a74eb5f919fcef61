"""The readings of a loader: numbers that the threads and processes that compute and wait write, and a report reads.

Readings are always on, so a report can be made of any run, also afterwards. They must cost nothing that a user would
notice. Three rules keep them cheap. Time is taken for a step and a block of elements, never for an element. Each thread
or process writes numbers of its own, so nothing is locked, and a report adds them up when it is requested. The
consumer's waits and pauses are recorded only above `NOTED_SECONDS`, by native code, since the training has used the
processor's caches for itself meanwhile; a batch of some microseconds costs a comparison.

`StepTimes` are the times of one thread or process. They are words of memory, so a worker process writes them into
shared memory, where the report finds them, also after a crash. The processor time of a step is measured in one block
every 50 ms, since reading that clock takes some microseconds on virtual machines. A helper process writes the times of
its threads and workers into memory of the trainer's (`Readings.use_shared`), and the cause of its latest wait, which is
that of the trainer's. Native code also adds up how long threads that wake up wait for the interpreter's lock
(`native/bindings/lock_waits.hpp`): workers in `claim_wait`, and the consumer where it waits for a batch. These waits
show threads that compute with the lock, and what that costs the training's own code, which isn't measured.

A step's time is *exclusive*. Steps of one block run one after the other, so one reading of the clock ends a step and
begins the next one (`StepTimes.lap`). Where a step evaluates a block of its parent's, `enter` and `leave` take the
parent's steps out of its time. Of the steps that are read in order, streams and functions have laps that `begin`
begins, and a fold or a batch has what the others leave of the time around a chunk (`begin_around`). The last laps above
`NOTED_SECONDS` are kept in a ring, for a trace.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast, get_args

import numpy as np

from penstock import _native as native
from penstock._durations import BUCKETS, Durations

NOTED_SECONDS: Final = 50e-6
"""Shorter waits of the consumer, times between two requests, and steps of a block are only added up."""
LONG_WAIT_SECONDS: Final = 0.1
"""A wait of the consumer in which the live page is written, if there was none."""

Cause: TypeAlias = Literal[
    "inline", "workers", "stragglers", "memory", "storage", "fold", "placing", "start", "helper", "delivery"
]
"""The cause of a wait of the consumer.

"inline": the consumer's thread computed the batch. "workers": all workers that could help were busy. "stragglers":
workers were idle, since the next batch wasn't complete, and no other may be ahead of it. "memory": a worker was idle,
since the consumer kept the memory of batches. "storage": the workers waited for requested records for longer than they
computed. "fold": the thread that runs the steps in order was at work. "placing": the batch was copied to a device.
"start": the first batch of an iterator, while workers start, or a later one, while a worker process was at its first
block. "helper": the helper process of `isolated=True` sent the batch, or the processes of a pool were at work.
"delivery": the batch was complete, and was copied, or computed again after an error.
"""
CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)
_CAUSE_NUMBERS: Final[dict[Cause, int]] = {cause: number for number, cause in enumerate(CAUSES)}

MAX_STEPS: Final = 256
"""The number of steps of a dataset that have times of their own; the others share those of one more."""
# The layout of the words, as the native core writes them.
_SECONDS, _ELEMENTS, _CPU_SECONDS, _CPU_OF_SECONDS, _HEAD = range(5)
_WORDS: Final = _HEAD + BUCKETS
# Of the whole: the number of rows, the busy time, the number of laps; waits for the interpreter's lock.
_ROWS, _BUSY, _LAPS, _LOCK_SECONDS, _LOCK_WAITS, _LONG_LOCK_WAITS = range(6)
_TOTAL: Final = 8  # words before those of the first step
_LAP_WORDS: Final = 3  # the place of the step's words, or the number of the cause; the end, the seconds
# Of waits: the seconds by cause, the number of waits, the histograms of waits and of times between two requests.
_MOST_CAUSES: Final = 15
_WAITS: Final = _MOST_CAUSES
_WAIT_COUNTS: Final = _WAITS + 1
_BETWEEN_COUNTS: Final = _WAIT_COUNTS + BUCKETS
_FIRST_WAIT: Final = _BETWEEN_COUNTS + BUCKETS
KEPT_LAPS: Final = 1 << 12
"""The number of last laps of a thread or process that are kept, and of last waits: some seconds."""
_HELPER_ROLES: Final = ("consumer", "fold")  # of threads of a helper process that have times, beside its workers
_LEAST_LOCK_WAITS: Final = 4
_MANY_LONG: Final = 0.3
_UNSAFE_LAPS: Final = 64  # the oldest kept ones, which may be overwritten while they are copied


class StepTime(NamedTuple):
    """The time of a step, summed over blocks and workers."""

    seconds: float = 0.0
    elements: float = 0.0
    """The number of elements, or of batches, that the step made."""
    cpu_share: float | None = None
    """The share of the time in which a processor computed; None if it was not measured."""
    each: Durations = Durations()
    """The time of an element, counted for each element of the blocks that took more than `NOTED_SECONDS`."""


class StepTimes(native.StepTimes):
    """The times that one thread or process has spent in each step of a dataset.

    Args:
        numbers: the number of each step, by the identity of its node.
        words: the memory for the times, `words_for` as many; None for new memory.
    """

    def __init__(self, numbers: Mapping[int, int] | None = None, words: "np.ndarray[Any, Any] | None" = None) -> None:
        known = {} if numbers is None else dict(numbers)
        super().__init__(_new_words(known) if words is None else words, known, _count(known), _WORDS)

    def end_wait(self, step: object, mark: float) -> float:
        """End a time that `begin_around` began, in which the thread waited for a step's work; return its seconds."""
        seconds = self.end_around(step, mark, 0)
        self.count(step, _CPU_OF_SECONDS, seconds)  # without processor time
        return seconds


def words_for(numbers: Mapping[int, int]) -> int:
    """Return the number of float64 words that the times of numbered steps need."""
    return _first_lap(numbers) + _LAP_WORDS * KEPT_LAPS


def _first_lap(numbers: Mapping[int, int]) -> int:
    return _TOTAL + _WORDS * (_count(numbers) + 1)


def _new_words(numbers: Mapping[int, int]) -> "np.ndarray[Any, Any]":
    words: np.ndarray[Any, Any] = np.empty(words_for(numbers))
    words[: _first_lap(numbers)] = 0.0  # not the laps: they are counted, and zeros for them take 50 us of a first batch
    return words


def words_for_helper(numbers: Mapping[int, int], workers: int) -> int:
    """Return the number of float64 words that a helper process needs: a part for each thread or worker, and a word."""
    return (workers + len(_HELPER_ROLES)) * words_for(numbers) + 1


def _count(numbers: Mapping[int, int]) -> int:
    return min(max(numbers.values(), default=-1) + 1, MAX_STEPS)


def numbered(steps: Iterable[object]) -> dict[int, int]:
    """Return the number of each step of a dataset, by its identity; equal in each process that has the dataset."""
    numbers: dict[int, int] = {}
    for number, step in enumerate(steps):
        numbers.setdefault(id(step), number)
    return numbers


UNREAD: Final = StepTimes()
"""Times that no one reads, for evaluations that belong to no loader; all threads may write them."""


class Waits:
    """The waits of one consumer, by their causes, and the times between two of its requests. One thread records.

    Attributes:
        cause: the cause of the wait that has just ended, if a stream has found one.
        default: the cause if no stream has.
        waiting: one word: when the consumer began to wait, by the monotonic clock; 0 while it doesn't. It is in the
            loader's live page, if it has one. Streams write it where a wait may be long.
        helper_cause: one word: the place in `CAUSES`, from 1, of the cause of the helper process's latest wait; 0 for
            none. A wait for that process has this cause. The helper process writes it, in memory of the trainer's.
        long: called once in a wait of `LONG_WAIT_SECONDS`, if it still lives; None for nothing.
        is_first: whether the next wait is for the first batch of an iterator.
        placing: the part of the wait in which the consumer itself placed a batch on a device, or waited for that.
    """

    def __init__(self) -> None:
        self.cause: Cause | None = None
        self.default: Cause = "inline"
        self.is_first: bool = False
        self.placing: float = 0.0
        self.waiting: memoryview[float] = unseen_word()
        self.helper_cause: memoryview[float] = unseen_word()
        self.long: Callable[[], None] | None = None
        self._begin_words(np.zeros(_FIRST_WAIT))

    def _begin_words(self, words: "np.ndarray[Any, Any]") -> None:
        self._words: np.ndarray[Any, Any] = np.empty(_FIRST_WAIT + _LAP_WORDS * KEPT_LAPS)
        self._words[: len(words)] = words
        self._times: native.WaitTimes = native.WaitTimes(self._words)

    def __getstate__(self) -> dict[str, object]:
        used = self._words[: _FIRST_WAIT + _LAP_WORDS * min(int(self._words[_WAITS]), KEPT_LAPS)]
        return {**vars(self), "waiting": None, "helper_cause": None, "long": None, "_words": used, "_times": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, waiting=unseen_word(), helper_cause=unseen_word())  # of this process
        self._begin_words(state["_words"])

    def begin(self, default: Cause) -> None:
        """Note that a stream was opened."""
        self.cause, self.default, self.is_first = None, default, default != "inline"

    def note_long(self) -> None:
        """Call `long`, once; from the thread that waits."""
        call, self.long = self.long, None
        if call is not None:
            call()

    def places(self) -> None:
        """Note that the batches of the stream are placed on a device."""
        if self.default == "delivery":
            self.default = "placing"

    def note(self, requested: float, received: float, last: float) -> None:
        """Record a wait and the time since the delivery before, each if it is above `NOTED_SECONDS`.

        Args:
            requested: the moment of the request.
            received: the moment of the delivery.
            last: the moment of the delivery before.
        """
        cause: Cause = self.default
        if received - requested > NOTED_SECONDS:
            cause, self.cause = self.cause or cause, None
            if cause == "helper" and (number := int(self.helper_cause[0])):
                cause = CAUSES[number - 1]
            if self.placing > (received - requested) / 2:
                cause = "placing"
            if self.is_first:
                cause, self.is_first = "start", False
        self._times.note(_CAUSE_NUMBERS[cause], requested, received, last)

    @property
    def seconds(self) -> dict[Cause, float]:
        """The noted waits of each cause that there was."""
        found = cast("list[float]", self._words[: len(CAUSES)].tolist())
        return {cause: seconds for cause, seconds in zip(CAUSES, found, strict=True) if seconds}

    def latest(self) -> list[tuple[float, float, Cause]]:
        """Return the end, the seconds and the cause of the last waits."""
        rows = _kept(self._words.copy(), _FIRST_WAIT, _WAITS)
        return [(end, seconds, CAUSES[int(number)]) for number, end, seconds in rows]

    def note_in_helper(self, seconds: float) -> None:
        """Write the cause of a wait of this process, a helper, for the trainer's process."""
        cause, self.cause = self.cause or self.default, None
        if seconds > NOTED_SECONDS and cause != "delivery":
            # A helper that computes inline is the trainer's worker.
            self.helper_cause[0] = 1 + CAUSES.index("workers" if cause == "inline" else cause)

    @property
    def waits(self) -> Durations:
        """The noted waits."""
        return _durations(self._words[_WAIT_COUNTS:_BETWEEN_COUNTS])

    @property
    def between(self) -> Durations:
        """The noted times between two requests."""
        return _durations(self._words[_BETWEEN_COUNTS:_FIRST_WAIT])


def unseen_word() -> "memoryview[float]":
    """Return a word that nothing reads."""
    return memoryview(bytearray(8)).cast("d")


class Added(NamedTuple):
    """Amounts that were added to words: the places of these, which are few, and the amounts."""

    places: "np.ndarray[Any, Any]"
    values: "np.ndarray[Any, Any]"


class Answer(NamedTuple):
    """Work that a process of a pool has computed."""

    end: float
    """The time at which the result was here, by this host's clock."""
    seconds: float
    """The time that it took, by the other host's clock."""
    text: str
    """The steps or positions."""


class Readings:
    """All readings of one loader.

    Args:
        steps: the nodes of the dataset, in an order that is the same in each process.

    Attributes:
        waits: those of the consumer.
        numbers: the number of each step, by the identity of its node.
    """

    def __init__(self, steps: Iterable[object]) -> None:
        self.waits: Waits = Waits()
        self.numbers: dict[int, int] = numbered(steps)
        self._times: dict[str, StepTimes] = {}
        self._shared: dict[str, np.ndarray[Any, Any]] = {}  # words in memory of the trainer's process, by their role
        self._words: list[np.ndarray[Any, Any]] = []
        self._roles: list[str] = []  # of the words
        self._taken: np.ndarray[Any, Any] | None = None  # the sums at the last call
        self._included: np.ndarray[Any, Any] | None = None  # of another host
        self._answers: dict[str, deque[Answer]] = {}  # of processes of a pool, by what names them

    def times(self, role: str) -> StepTimes:
        """Return the times of a thread, by its role; a later thread of that role continues them."""
        found = self._times.get(role)
        if found is None:
            words = self._shared.get(role)
            words = _new_words(self.numbers) if words is None else words
            self.add(words, role)
            found = self._times[role] = StepTimes(self.numbers, words)
        return found

    def add(self, words: "np.ndarray[Any, Any]", role: str) -> None:
        """Include the times that a thread or a process writes."""
        self._roles.append(role)
        self._words.append(words)

    def taken(self) -> Added:
        """Return what was added to the sums of all words, without laps, since the last call."""
        sums = np.zeros(_first_lap(self.numbers))
        for words in self._words.copy():
            sums += words[: len(sums)]
        sums[_LAPS] = 0
        added = sums if self._taken is None else sums - self._taken
        self._taken = sums
        places = np.flatnonzero(added)
        return Added(places, added[places])

    def include(self, added: Added, role: str) -> None:
        """Add what the same method of another host's readings has returned."""
        if self._included is None:
            self._included = _new_words(self.numbers)
            self.add(self._included, role)
        self._included[added.places] += added.values

    def note_answer(self, process: str, answer: Answer) -> None:
        """Keep what a process of a pool has computed, for a trace."""
        self._answers.setdefault(process, deque(maxlen=KEPT_LAPS)).append(answer)

    def answers(self) -> list[tuple[str, list[Answer]]]:
        """Return the name of each process of a pool, and what it has last computed, oldest first."""
        return [(process, sorted(answers.copy())) for process, answers in sorted(self._answers.copy().items())]

    def read_helper(self, memory: "memoryview[Any]", workers: int) -> None:
        """Include what a helper process with so many workers writes into memory of `words_for_helper`."""
        for role, words in self._parts(memory, workers).items():
            self.add(words, f"helper process, {role}")

    def use_shared(self, memory: "memoryview[Any]", workers: int) -> None:
        """Write into that memory, in the helper process. Its worker processes write into the first parts themselves."""
        self._shared = self._parts(memory, workers)

    def _parts(self, memory: "memoryview[Any]", workers: int) -> "dict[str, np.ndarray[Any, Any]]":
        roles = (*(f"worker {number}" for number in range(workers)), *_HELPER_ROLES)
        count = words_for_helper(self.numbers, workers)
        words = np.frombuffer(memory, np.float64, count)
        self.waits.helper_cause = memoryview(memory).cast("B")[8 * (count - 1) : 8 * count].cast("d")
        return dict(zip(roles, words[:-1].reshape(len(roles), -1), strict=True))

    @property
    def rows(self) -> float:
        """The number of rows computed."""
        return float(sum(words[_ROWS] for words in self._words.copy()))

    @property
    def busy_seconds(self) -> float:
        """The time that the workers have worked, summed over workers."""
        return float(sum(words[_BUSY] for words in self._words.copy()))

    @property
    def lock_wait_seconds(self) -> float:
        """The time for which a thread that wakes up waits for the interpreter's lock; 0 where that is rarely long.

        It is the mean of the thread that waits longest. A few long waits are those of a busy machine.
        """
        found = [cast("list[float]", words[_LOCK_SECONDS : _LONG_LOCK_WAITS + 1].tolist()) for words in self._words]
        means = [
            seconds / count
            for seconds, count, long in found
            if count >= _LEAST_LOCK_WAITS and long >= _MANY_LONG * count
        ]
        return max(means, default=0.0)

    def step_times(self, *, each: bool = True) -> list[StepTime]:
        """Return the time of each step, by its number; the last one is that of all steps without a number.

        Args:
            each: whether to return the times of single elements, too, which takes some microseconds for each step.
        """
        count = _count(self.numbers) + 1
        words_each = _WORDS if each else _HEAD
        summed = np.zeros((count, words_each))
        for words in self._words.copy():
            summed += words[_TOTAL : _TOTAL + count * _WORDS].reshape(count, _WORDS)[:, :words_each]
        return [_step_time(step) for step in summed]

    def spans(self) -> list[tuple[str, list[tuple[int, float, float]]]]:
        """Return the role of each thread and process, and its last laps: the step's number, the end, the seconds."""
        first = _first_lap(self.numbers)
        return [(role, _laps(words.copy(), first)) for role, words in zip(self._roles, self._words, strict=False)]


def _laps(words: "np.ndarray[Any, Any]", first: int) -> list[tuple[int, float, float]]:
    return [((int(at) - _TOTAL) // _WORDS, end, seconds) for at, end, seconds in _kept(words, first, _LAPS)]


def _kept(words: "np.ndarray[Any, Any]", first: int, counted: int) -> list[list[float]]:
    """Return the last laps or waits in a ring that begins at a word, given the word of their number."""
    count = int(words[counted])
    kept = words[first:].reshape(KEPT_LAPS, _LAP_WORDS)
    if count > KEPT_LAPS:
        kept = np.roll(kept, -(count % KEPT_LAPS), axis=0)[_UNSAFE_LAPS:]
    return cast("list[list[float]]", kept[:count].tolist())


def _step_time(words: "np.ndarray[Any, Any]") -> StepTime:
    seconds, elements, cpu_seconds, of_seconds = cast("list[float]", words[:_HEAD].tolist())
    share = min(max(cpu_seconds / of_seconds, 0.0), 1.0) if of_seconds > 0 else None
    return StepTime(max(seconds, 0.0), elements, share, _durations(words[_HEAD:]))


def _durations(counts: "np.ndarray[Any, Any]") -> Durations:
    """Return the histogram whose numbers are in words, which another thread may change meanwhile."""
    counts = counts.copy()
    return Durations(tuple((int(bucket), int(counts[bucket])) for bucket in np.flatnonzero(counts)))
