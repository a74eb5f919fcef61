"""The system refuses memory at random moments: a program that asks again gets every batch, in order."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock._memory import Region
from penstock._runtime import ProcessScheduler, Scheduler
from tests.places import LINUX, PLACES, in_places, place_of
from tests.profiles import IS_LONG, fewer

MANY = 1_100  # refusals, more than a scheduler has slots
COUNT = 240
BATCH = 4


def large(number: int) -> Any:
    """Return an array whose batch isn't copied out of the loader's memory."""
    return np.full(3_000, number)


def batches_despite_errors(loader: ps.Loader[Any]) -> tuple[list[int], int]:
    """Return the numbers of an epoch, and how often a batch had to be requested again."""
    numbers: list[int] = []
    batches, errors = iter(loader), 0
    while True:
        try:
            batch = next(batches)
        except MemoryError:
            errors += 1
        except StopIteration:
            return numbers, errors
        else:
            numbers += batch[:, 0].tolist()
            del batch


def refuse(patch: pytest.MonkeyPatch, kind: type[Scheduler], refusals: Iterator[bool]) -> None:
    """Let a scheduler be refused new memory whenever the next refusal is true."""
    allocate = vars(kind)["_allocate"]  # where the system is asked

    def may_fail(self: Scheduler, size_bytes: int) -> Region:
        if next(refusals, False):
            raise MemoryError("refused")
        region: Region = allocate(self, size_bytes)
        return region

    patch.setattr(kind, "_allocate", may_fail)


@pytest.mark.parametrize(
    ("granted", "place"),
    [
        place_of("processes", 0),
        place_of("threads", 1),
        pytest.param(2, PLACES["processes"], marks=[LINUX, pytest.mark.long]),  # more are granted before the refusals
        pytest.param(3, PLACES["threads"], marks=pytest.mark.long),
    ],
)
def test_more_refusals_than_slots_end_no_epoch(
    granted: int, place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often memory is refused, the epoch has all of its batches, and only then it ends."""
    dataset = ps.range(COUNT).map(large).batch(BATCH)
    kind = ProcessScheduler if place["workers"] == "processes" else Scheduler
    with ps.Loader(dataset, **place) as loader:
        refuse(monkeypatch, kind, iter([*[False] * granted, *[True] * MANY]))
        numbers, errors = batches_despite_errors(loader)
        assert numbers == list(range(COUNT))
        assert errors <= MANY
        monkeypatch.undo()
        assert batches_despite_errors(loader) == (list(range(COUNT)), 0)


@in_places("threads", "processes")
@settings(fewer(), max_examples=fewer().max_examples if IS_LONG else 4)  # each one starts processes
@example([True, False] * 4)
@given(refusals=st.lists(st.booleans(), max_size=30))
def test_refused_memory_loses_no_batch(place: dict[str, Any], refusals: list[bool]) -> None:
    """An error in a batch's place leaves the batch to the next request, also where a fold gives the rows."""
    folded = ps.range(COUNT).filter(bool).map(large).batch(BATCH).map(np.negative)
    kind = ProcessScheduler if place["workers"] == "processes" else Scheduler
    with pytest.MonkeyPatch.context() as patch, ps.Loader(folded, **place) as loader:
        refuse(patch, kind, iter(refusals))
        numbers, _ = batches_despite_errors(loader)
    assert numbers == [-number for number in range(1, COUNT)]
