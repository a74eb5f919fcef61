"""Steps that make several elements of one: their parent elements are evaluated once, or few times, in every place."""

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock as ps
from tests.dataset.functions import keep
from tests.places import PLACES, place_of
from tests.runtime.plans import Context, job_of

COUNT, EACH, MARGIN = 40, 25, 12


class Slow:
    """A function that takes a millisecond, and adds a byte to a file at each call, in any process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, element: Any) -> Any:
        """Return the element."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, b".")
        os.close(descriptor)
        sum(range(40_000))
        return element


def frames(number: int) -> NDArray[np.int64]:
    """Return an episode."""
    return np.arange(EACH + 3) + EACH * number


def parts(number: int) -> list[int]:
    """Return some elements."""
    return [EACH * number + part for part in range(EACH)]


MAKES: dict[str, Callable[[Slow], ps.Dataset[Any]]] = {
    "unbatch": lambda slow: ps.range(COUNT * EACH).batch(EACH).map(slow).unbatch(),
    "unbatch in batches": lambda slow: ps.range(COUNT * EACH).batch(EACH).map(slow).unbatch().map(abs).batch(16),
    "flat_map": lambda slow: ps.range(COUNT).map(slow).flat_map(parts, counts=[EACH] * COUNT).batch(16),
    "windows": lambda slow: ps.range(COUNT).map(slow).map(frames).windows(4, lengths=[EACH + 3] * COUNT).batch(16),
    "in order": lambda slow: ps.range(COUNT).map(slow).flat_map(parts, counts=[EACH] * COUNT).filter(keep).batch(16),
}


IN_PROCESSES = ("unbatch in batches", "windows")  # the short run has these there alone


@pytest.mark.parametrize(
    ("steps", "place"),
    [
        *(place_of("threads", steps) for steps in ("unbatch", "flat_map", "in order")),
        *(pytest.param(steps, PLACES["threads"], marks=pytest.mark.long) for steps in IN_PROCESSES),
        *(place_of("inline", steps) for steps in ("unbatch", "in order")),
        *(place_of("processes", steps) for steps in IN_PROCESSES),
        place_of("isolated threads", "flat_map"),
    ],
)
def test_parents_are_evaluated_few_times(steps: str, place: dict[str, Any], tmp_path: Path) -> None:
    """A parent element is evaluated once by a single thread, and about once at most by each worker."""
    dataset = MAKES[steps](Slow(tmp_path / "calls"))
    with ps.Loader(dataset, **place) as loader:
        elements = np.concatenate([np.atleast_1d(batch) for batch in loader])
    first = elements.reshape(len(elements), -1)[:, 0]
    assert first.tolist() == list(range(COUNT * EACH))
    calls = (tmp_path / "calls").stat().st_size
    assert calls <= place.get("num_workers", 1) * COUNT + (MARGIN if place else 0)


def test_workers_share_no_parent_that_takes_most_of_the_time() -> None:
    """Eight threads evaluate a parent about twice, not eight times; the first jobs don't know how long it takes."""
    calls: list[None] = []

    def slow(batch: NDArray[np.int64]) -> NDArray[np.int64]:
        calls.append(None)
        threading.Event().wait(0.004)
        return batch

    dataset = ps.range(COUNT * EACH).batch(EACH).map(slow).unbatch().map(abs).batch(5)
    with ps.Loader(dataset, num_workers=8, workers="threads") as loader:
        assert np.concatenate(list(loader)).tolist() == list(range(COUNT * EACH))
    assert len(calls) <= 3 * COUNT


class Awaited:
    """An async source of numbers that counts the records that it reads."""

    def __init__(self) -> None:
        self.records = 0

    def __len__(self) -> int:
        return COUNT * EACH

    async def read(self, keys: NDArray[np.int64]) -> list[int]:
        """Return the numbers."""
        await asyncio.sleep(0)
        self.records += len(keys)
        return list(map(int, keys))


def test_records_of_parents_are_requested_few_times() -> None:
    """Records that are read ahead of the workers are requested about once, however many blocks need their batch."""
    source = Awaited()
    with ps.Loader(ps.read(source).batch(EACH).unbatch().batch(5), num_workers=4, workers="threads") as loader:
        assert np.concatenate(list(loader)).tolist() == list(range(COUNT * EACH))
    assert source.records <= 2 * COUNT * EACH


@pytest.mark.parametrize("whole", [False, True])
def test_blocks_end_with_a_parents_rows(whole: bool) -> None:  # noqa: FBT001 - a parametrized test
    """Where blocks have whole parents, no parent's rows are in two of a job's blocks; no row is lost either way."""
    dataset = ps.range(40).batch(7).unbatch().map(abs).batch(10)
    job = job_of(dataset, steps=4, rows=10, block=4, whole=whole)
    spans = [job.bounds_of(block) for block in range(job.blocks)]
    assert [row for start, stop in spans for row in range(start, stop)] == list(range(40))
    seen = Counter(parent for start, stop in spans for parent in {row // 7 for row in range(start, stop)})
    assert (max(seen.values()) == 1) == whole
    assert sum(job.run_block(block, Context()) for block in range(job.blocks)) == 40


def test_a_parent_is_kept_only_while_its_evaluation_reports_nothing() -> None:
    """Each block reports the substitutes in its parents, so that a job that was discarded takes no event with it."""

    def decode(number: int) -> int:
        if number == 2:
            raise ValueError("corrupt")
        return number

    dataset = ps.range(8).map(decode, on_error=ps.Substitute()).batch(8).unbatch()
    events: list[object] = []
    context = Context(observe=events.append)
    job = job_of(dataset.batch(4), steps=2, rows=4, block=2)
    for block in range(job.blocks):
        job.run_block(block, context)
    assert len(events) == job.blocks == 4
