"""The measurement of a report's predictions: a step "costs nothing" where its results come from memory.

A prediction is a formula over times that were measured in one run. To verify it, the change is made. Where a step
"costs nothing", it returns, in a copy of the dataset, results that were recorded before, one after the other, and
everything below and above it still runs; a throwaway loader with the same workers and limits delivers this copy. For
another change the throwaway loader has other arguments: more workers or processes, no limit of its memory, or more
batches ahead. Another throwaway loader delivers the dataset as it is, and a thread that takes as long for each batch as
the training takes the batches. The quotient of the two rates is the gain, as by the differences of DS-Analyzer (arXiv
2007.06775).

Only reads and functions can be replayed. What a batch or a fold does with its elements can't be separated from the
elements, so those predictions are not measured. Nor are those of steps below a cache: all loaders of a dataset share
what the cache keeps, and it must never keep what was made of replayed results.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import islice
from math import inf
from threading import Event
from time import perf_counter
from typing import Any, Final, Protocol

from penstock._caught import Caught
from penstock._dataset import Dataset
from penstock._graph import Cache, Element, Map, Node, Read, outermost_batch, parents_of, walk, with_parents
from penstock._independent import copied
from penstock._tree import element_bytes, map_leaves
from penstock.errors import UsageError
from penstock.observe import Report, WhatIf
from penstock.observe._verdict import MORE_AHEAD, MORE_MEMORY
from penstock.sources import can_read_spans

_MOST_RESULTS: Final = 16
_MOST_BYTES: Final = 1 << 27  # of recorded results
_MOST_CHANGES: Final = 3
_TURNS: Final = 3
_TIMES_AHEAD: Final = 8  # as many batches, for more ahead
_WORTH: Final = 1.05  # times: smaller gains drown in the noise of a measurement
_LEAST_BATCHES: Final = 2
_TIMES_FIRST: Final = 4  # waits for a first batch; if another is due just afterwards, the rate is a quarter too high
_SPUN_SECONDS: Final = 0.0005  # a wait takes longer than it should by about a tenth of this


class Delivering(Protocol):
    """The part of a loader that is used here."""

    def __iter__(self) -> Iterator[Element]:
        """Return an iterator over the next epoch."""
        ...

    def close(self) -> None:
        """Stop the workers."""
        ...


Make = Callable[[Node, Mapping[str, Any]], Delivering]
"""Makes a throwaway loader of a dataset, with some arguments that differ from those of the report's loader."""


class Replay:
    """A function that returns recorded results, one after the other, and ignores its arguments."""

    def __init__(self, results: list[Element]) -> None:
        self._results = results
        self._next = 0

    def __call__(self, *_: object) -> Element:
        index = self._next
        self._next = (index + 1) % len(self._results)
        return map_leaves(_same, self._results[index])  # new containers, which the next function may change


class ReplayedSource:
    """A source with the recorded records of another one, which repeat."""

    def __init__(self, records: list[Element], length: int) -> None:
        self._records = records
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, key: int) -> Element:
        return map_leaves(_same, self._records[key % len(self._records)])


def _same(leaf: object) -> object:
    return leaf


def verified(
    make: Make, dataset: Node, report: Report, steps: Mapping[str, Node], ahead: int, seconds: object
) -> list[WhatIf]:
    """Return the predictions of a report, the best of them with what was measured.

    Args:
        make: makes the throwaway loaders.
        dataset: of the report's loader.
        report: the report.
        steps: the steps by their names in the report.
        ahead: the number of batches that the report's loader computes ahead.
        seconds: the time of each measurement.

    Raises:
        UsageError: `seconds` isn't above 0, or the report has no predictions.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < inf:
        raise UsageError(f"seconds must be a number above 0; got seconds={seconds!r}")
    predictions = list(report.what_if)
    if not predictions:
        raise UsageError(
            "verify measures the predictions of report(), which has none yet: iterate over the loader first"
        )
    changes = 0
    for number, prediction in enumerate(predictions):
        if prediction.times < _WORTH or changes >= _MOST_CHANGES:
            break
        is_of_step = prediction.step is not None
        changed = _without(make, dataset, steps.get(prediction.step or ""), seconds) if is_of_step else dataset
        arguments = _arguments(prediction, ahead)
        if changed is None or not (is_of_step or arguments):
            continue
        changes += 1
        own_seconds = report.consumer_own_seconds if prediction.kind else report.consumer_seconds
        with Caught(UsageError), closing(make(dataset, {})) as before, closing(make(changed, arguments)) as after:
            turns = _turns(before, after, own_seconds, seconds)
            # Other programs only make a loader slower, so its best turn counts; but each turn has some stragglers.
            sum_up: Callable[[tuple[float, ...]], float] = _mean if prediction.change == MORE_AHEAD else max
            slow, fast = map(sum_up, turns)
            predictions[number] = replace(prediction, measured=fast / slow if slow else None)
    return predictions


def _arguments(prediction: WhatIf, ahead: int) -> dict[str, Any]:
    """Return the arguments of a loader that make a change; none if no argument does."""
    found: dict[str, Any] = {}
    if prediction.workers is not None:
        found["num_workers"] = prediction.workers
    if prediction.kind is not None:
        found["workers"] = prediction.kind
    if prediction.change == MORE_MEMORY:
        found["memory"] = None
    if prediction.change == MORE_AHEAD:
        found["prefetch"] = _TIMES_AHEAD * ahead
    return found


def _mean(rates: tuple[float, ...]) -> float:
    """Return the mean; the module `statistics` would take the first loader of a program 2 ms."""
    return sum(rates) / len(rates)


def _turns(before: Delivering, after: Delivering, consumer_seconds: float, seconds: float) -> list[tuple[float, ...]]:
    """Return the rates of two loaders that take turns: those of the one, and of the other."""
    _start(before)
    _start(after)
    turns = [[_rate(each, consumer_seconds, seconds / _TURNS) for each in (before, after)] for _ in range(_TURNS)]
    return list(zip(*turns, strict=True))


def _without(make: Make, dataset: Node, step: Node | None, seconds: float) -> Node | None:
    """Return a dataset in which a step's results come from memory; None if it can't be replayed."""
    if step is None or _is_below_cache(dataset, step):
        return None
    replayed = _replayed(make, step, seconds)
    return None if replayed is None else _replaced(dataset, step, replayed)


def _is_below_cache(dataset: Node, step: Node) -> bool:
    """Return whether a cache would keep what is made of a step's results, for all loaders of the dataset."""
    caches = (each for each in walk(dataset) if isinstance(each, Cache))
    return any(below is step for cache in caches for below in walk(cache.parent))


def _replayed(make: Make, step: Node, seconds: float) -> Node | None:
    """Return a step that returns results from memory; None if it can't be replayed."""
    if not isinstance(step, Map | Read) or (isinstance(step, Read) and can_read_spans(step.source)):
        return None
    try:
        results = _recorded(make, step, seconds)
    except UsageError:  # an element that can't be copied
        return None
    if not results:
        return None
    if isinstance(step, Read):
        return replace(step, source=ReplayedSource(results, step.length))
    return replace(step, function=Replay(results), form="none")


def _recorded(make: Make, step: Node, seconds: float) -> list[Element]:
    """Return some results of a step; above a batch these are the parts of one rank."""
    ends = perf_counter() + seconds
    if outermost_batch(step) is None:
        return _some(iter(Dataset(step)), ends)
    with closing(make(step, {"num_workers": 0, "workers": "auto"})) as loader:
        return _some(iter(loader), ends)


def _some(elements: Iterator[Element], ends: float) -> list[Element]:
    results: list[Element] = []
    size = 0
    for element in islice(elements, _MOST_RESULTS):
        results.append(copied(element))
        size += element_bytes(element)
        if perf_counter() > ends or size > _MOST_BYTES:
            break
    return results


def _replaced(node: Node, old: Node, new: Node) -> Node:
    """Return a dataset with another step in place of one."""
    if node is old:
        return new
    parents = parents_of(node)
    changed = tuple(_replaced(parent, old, new) for parent in parents)
    same = all(one is other for one, other in zip(parents, changed, strict=True))
    return node if same else with_parents(node, changed)


def _start(loader: Delivering) -> None:
    """Have a loader deliver a batch, so that its workers are started."""
    for _ in loader:
        break


def _rate(loader: Delivering, consumer_seconds: float, seconds: float) -> float:
    """Return how many batches a second a loader that is started delivers to a consumer.

    The time begins with the first batch. A fold may compute many batches, or all of a short epoch, before it delivers
    the first one. So the time ends with the first batch of a later epoch; or, in a long epoch, once that has lasted a
    few times as long as the wait for its first batch.
    """
    pause, batches, first, last = Event(), 0, 0.0, 0.0
    while True:
        began, count, least = perf_counter(), 0, 0.0
        for _ in loader:
            last = perf_counter()
            first = first if batches else last
            least = least if count else last + _TIMES_FIRST * (last - began)
            batches, count = batches + 1, count + 1
            is_enough = last - first > seconds and batches > _LEAST_BATCHES
            if is_enough and (count == 1 or last > least):
                return (batches - 1) / (last - first)
            _consume(pause, consumer_seconds)
        if not count:
            return 0.0


def _consume(pause: Event, seconds: float) -> None:
    if seconds > _SPUN_SECONDS:
        pause.wait(seconds)
        return
    ends = perf_counter() + seconds
    while perf_counter() < ends:
        pass
