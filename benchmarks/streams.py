"""Contestants that yield batches: timed over whole passes, and checked by the digests of their batches."""

import itertools
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.scenario import Batch, Measurement, Scenario


def passes(batches: Callable[[], Iterable[Batch]]) -> Callable[[int], Measurement]:
    """Return a run that reads `batches()` once for each repeat; an item is a row of a batch."""

    def run(repeats: int) -> Measurement:
        amount = 0
        started = time.perf_counter()
        for _ in range(repeats):
            for batch in batches():
                amount += len(batch)
        return Measurement(amount, time.perf_counter() - started)

    return run


class OutputDiffersError(AssertionError):
    """Two contestants that claim the same output gave different rows, so their times cannot be compared."""


def check_outputs(scenario: Scenario, progress: Callable[[str], None] = lambda _: None) -> dict[str, str]:
    """Read every contestant's output once, and return the digests by name.

    Args:
        scenario: the contestants.
        progress: called with a short line at the start of each action.

    Raises:
        OutputDiffersError: if contestants with the same claim differ.
    """
    digests: dict[str, str] = {}
    ordered: dict[str, tuple[str, list[int]]] = {}
    sets: dict[str, tuple[str, int]] = {}
    for contestant in scenario.contestants:
        if contestant.output is None:
            continue
        progress(f"checking that contestants give the same output: {contestant.name}")
        claim = contestant.output.claim
        running, row_set = _digests(contestant.output.batches())
        if contestant.output.ordered:
            first, expected = ordered.setdefault(claim, (contestant.name, running))
            if any(ours != theirs for ours, theirs in zip(running, expected, strict=False)):
                raise OutputDiffersError(
                    f"{contestant.name} and {first} claim the same rows in the same order; they differ"
                )
            if len(running) > len(expected):
                ordered[claim] = (contestant.name, running)
        if not contestant.output.ordered or claim not in sets:
            first, expected_set = sets.setdefault(claim, (contestant.name, row_set))
            if row_set != expected_set:
                raise OutputDiffersError(f"{contestant.name} and {first} claim the same set of rows; they differ")
        digests[contestant.name] = f"{running[-1] if contestant.output.ordered else row_set:x}"
    return digests


def _digests(batches: Iterable[Batch]) -> tuple[list[int], int]:
    """Return the running digest after every batch, and the digest of the set of rows."""
    running: list[int] = [0]
    row_set = 0
    for batch in batches:
        array = np.ascontiguousarray(batch)
        running.append(zlib.crc32(array.data.cast("B"), running[-1]))
        row_set = (row_set + _row_sum(array)) % 2**64
    return running, row_set


def _row_sum(array: NDArray[np.generic]) -> int:
    """Return the sum of the digests of an array's rows, which doesn't depend on their order."""
    rows = array.reshape(len(array), -1)
    if rows.nbytes == 8 * len(rows):
        mixed = rows.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        return int((mixed ^ (mixed >> np.uint64(32))).sum(dtype=np.uint64))
    return sum(zlib.crc32(row.tobytes()) for row in rows)


def take_batches(batches: Iterable[Batch], count: int) -> Iterator[Batch]:
    """Return the first `count` batches, for contestants too slow for a whole pass."""
    return itertools.islice(batches, count)


def grouped(elements: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield lists of `size` elements; the last one may have fewer."""
    remaining = iter(elements)
    while group := list(itertools.islice(remaining, size)):
        yield group
