"""An element that crashes every process is found and named by its position, after the elements before it."""

import os
import signal
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock as ps
from penstock.errors import WorkerError
from penstock.events import Substituted
from tests.loader.isolated.parts import Connected
from tests.places import place_of
from tests.workers.processes import functions

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")
DEADLY = functions.DEADLY


def processes(dataset: ps.Dataset, num_workers: int = 2, **options: Any) -> ps.Loader:
    """Return a loader with worker processes."""
    return ps.Loader(dataset, num_workers=num_workers, workers="processes", **options)


NUMBERS = ps.range(700).map(functions.kills_itself)
ROWS: dict[str, Callable[[int], ps.Dataset]] = {
    "arrays": NUMBERS.batch,
    "a custom merge": lambda batch_size: NUMBERS.batch(batch_size, merge=list),
    "a step above": lambda batch_size: NUMBERS.batch(batch_size).map(functions.halved),
}
CASES = [("arrays", 8), ("arrays", 350), ("a custom merge", 8), ("a step above", 1)]


@pytest.mark.parametrize(
    ("name", "batch_size", "place"),
    [*(place_of("processes", *case) for case in CASES), place_of("isolated", "arrays", 8)],
)
def test_the_crashing_row_is_named(name: str, batch_size: int, place: dict[str, Any]) -> None:
    """The error names step, row, epoch, position and key, for any size of batches."""
    step, row = divmod(DEADLY, batch_size)
    with ps.Loader(ROWS[name](batch_size), **place) as loader:
        batches = iter(loader)
        firsts = [np.asarray(next(batches)).tolist()[0] for _ in range(step)]
        assert len(firsts) == step
        named = rf"row {row} of step {step}, at epoch 0, position {DEADLY}, key {DEADLY}, .*seek\({step + 1}\).*SIGKILL"
        for _ in range(2):
            with pytest.raises(WorkerError, match=named) as raised:
                next(batches)
            assert raised.value.exit_code == -signal.SIGKILL
        loader.seek(step + 1)
        assert len(list(loader)) == -(-700 // batch_size) - step - 1


class Deadly:
    """An async source of numbers, of which one crashes the process that reads it, but not the test's."""

    def __len__(self) -> int:
        return 700

    async def read(self, keys: NDArray[np.int64]) -> list[int]:
        """Return the keys, or crash."""
        return [functions.kills_itself(key) for key in keys.tolist()]


@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.long), 8])  # of 8, the row is found, too
def test_a_record_that_crashes_while_others_are_computed_is_named(batch_size: int) -> None:
    """Processes request records of blocks ahead; a crash there is not taken for one of the block before."""
    step, row = divmod(DEADLY, batch_size)
    with processes(ps.read(Deadly()).batch(batch_size)) as loader:
        batches = iter(loader)
        for number in range(step):
            assert np.atleast_1d(next(batches))[0] == number * batch_size
        with pytest.raises(WorkerError, match=rf"row {row} of step {step}, .* key {DEADLY}, .*SIGKILL"):
            next(batches)


def test_of_two_crashing_rows_the_first_is_named() -> None:
    """In any order of the crashes, the batch fails at the row at which it fails without workers."""
    dataset = ps.range(60).map(partial(functions.kills_at, (12, DEADLY))).batch(60)
    with processes(dataset, 1) as loader, pytest.raises(WorkerError, match="row 12 of step 0"):
        list(loader)


def test_a_shuffled_record_is_named() -> None:
    """The position is that in the epoch; the key is described by the source."""
    numbers = {"number": np.arange(100)}
    dataset = ps.read(numbers, seed=4).shuffle().map(functions.number_kills).batch(10)
    order = [int(number) for batch in ps.Loader(dataset) for number in batch]
    position = order.index(DEADLY)
    with processes(dataset) as loader:
        with pytest.raises(WorkerError, match=rf"position {position}, key {DEADLY}"):
            list(loader)
        assert loader.step == position // 10 - 1


@pytest.mark.parametrize("merge", [None, list], ids=["stacked", "merged"])
def test_batches_before_a_crashing_one_of_the_same_job_are_delivered(merge: Any) -> None:
    """Several small batches share a job; those before the crashing one are delivered, and no process crashes again."""
    dataset = ps.range(4_000).map(partial(functions.kills_at, (functions.LATE,))).batch(2, merge=merge)
    with processes(dataset) as loader:
        batches = iter(loader)
        found = [list(next(batches)) for _ in range(functions.LATE // 2)]
        assert found == [[number, number + 1] for number in range(0, functions.LATE, 2)]
        with pytest.raises(WorkerError, match=f"position {functions.LATE}, "):
            next(batches)
        assert merge is list or loader.stats()["worker_restarts"] == 3.0


@pytest.mark.parametrize(
    "dataset",
    [
        ps.range(80).batch(8, merge=functions.batch_kills),
        ps.range(80).batch(8).map(functions.batch_kills),
        ps.range(80).filter(functions.is_any).batch(8).map(functions.batch_kills),
    ],
    ids=["a merge", "a step above", "a step above a fold"],
)
def test_a_crashing_merge_is_named_by_its_step(dataset: ps.Dataset) -> None:
    """A crash after the rows were computed is one of the batch as a whole."""
    with processes(dataset) as loader:
        batches = iter(loader)
        for _ in range(DEADLY // 8):
            next(batches)
        with pytest.raises(WorkerError, match=f"function or batch-level map of step {DEADLY // 8} repeatedly crashes"):
            next(batches)


def test_the_consumer_never_computes_the_crashing_row() -> None:
    """If a row before it raises in a later step, that error is raised; the consumer computes no row after it."""
    functions.computed_here.clear()
    dataset = ps.range(80).map(functions.kills_or_tells).map(functions.broken_before).batch(40)
    with processes(dataset) as loader:
        for _ in range(2):
            with pytest.raises(LookupError, match="no such record"):
                list(loader)
    assert functions.computed_here == []


def test_a_crashing_batch_is_not_replaced() -> None:
    """A batch that crashes processes as a whole is an error also where a failing one is replaced; `seek` skips it."""
    step = DEADLY // 8
    batches = ps.range(80).batch(8).map(functions.batch_kills, on_error=ps.Substitute())
    with processes(batches.map(functions.halved)) as loader:
        iterator = iter(loader)
        found = [next(iterator) * 2 for _ in range(step)]
        with pytest.raises(WorkerError, match=f"collate function or batch-level map of step {step} repeatedly crashes"):
            next(iterator)
        loader.seek(step + 1)
        found += [batch * 2 for batch in loader]
        assert not loader.replaced()
    firsts = [first for first in range(0, 80, 8) if first != 8 * step]
    assert [batch.tolist() for batch in found] == [[*range(first, first + 8)] for first in firsts]


TWO = {DEADLY, DEADLY + 1}
LOAD: Any = {"name": "load", "on_error": ps.Substitute()}
REPLACED: dict[str, tuple[Callable[[], ps.Dataset], set[int]]] = {
    "arrays": (
        lambda: ps.range(80).map(Connected()).map(partial(functions.kills_or_tells, deadly=TWO), **LOAD).batch(8),
        TWO,
    ),
    "one of the arrays": (
        lambda: ps.range(80).map(Connected()).map(functions.kills_or_tells, **LOAD).batch(8),
        {DEADLY},
    ),
    "a custom merge": (lambda: ps.range(80).map(functions.kills_or_tells, **LOAD).batch(8, merge=list), {DEADLY}),
    "a step below it": (
        lambda: ps.range(80).map(functions.kills_or_tells).map(functions.same, **LOAD).batch(8),
        {DEADLY},
    ),
}


@pytest.mark.parametrize(
    ("name", "place"),
    [
        *(place_of("processes", name) for name in ("arrays", "a custom merge", "a step below it")),
        place_of("isolated threads", "one of the arrays"),
    ],
)
def test_a_crashing_row_follows_on_error(name: str, place: dict[str, Any]) -> None:
    """A row that crashes processes is replaced like one whose function raises, if a step allows it."""
    functions.computed_here.clear()
    make, deadly = REPLACED[name]
    with ps.Loader(make(), **place) as loader:
        batches = list(loader)
        replaced = loader.replaced()
        assert np.array_equal(loader.batch_at(DEADLY // 8), batches[DEADLY // 8])
    found = [int(number) for batch in batches for number in batch]
    taken = {event.position: event.taken_from for event in replaced if isinstance(event, Substituted)}
    assert taken.keys() == deadly
    assert found == [taken.get(number, number) for number in range(80)]
    assert all(event.step == "load" and "WorkerError: row" in event.error for event in replaced)
    assert functions.computed_here == []


SKIP: Any = {"name": "load", "on_error": "skip"}
REPLACING = ps.range(80).map(functions.kills_or_tells, **LOAD)
SKIPPING = ps.range(80).map(functions.kills_or_tells, **SKIP)
IN_ORDER: dict[str, ps.Dataset] = {
    "left out": SKIPPING,
    "left out below a step": ps.range(80).map(functions.kills_or_tells).map(functions.same, **SKIP),
    "left out of a mixture": ps.mix({"kills": SKIPPING, "others": ps.range(1000, 1080)}).map(functions.same),
    "replaced before a window": REPLACING.window_shuffle(8),
    "replaced in a part": ps.zip((ps.range(80), REPLACING)).map(itemgetter(1)).filter(functions.is_any),
}


@pytest.mark.parametrize(
    ("name", "place"),
    [*(place_of("processes", name) for name in [*IN_ORDER][1:]), place_of("isolated", "left out")],
)
def test_streams_follow_on_error(name: str, place: dict[str, Any]) -> None:
    """An element that crashes processes is left out or replaced, like one whose function raises."""
    functions.computed_here.clear()
    with ps.Loader(IN_ORDER[name].batch(8), **place) as loader:
        batches = list(loader)
        found = sorted(int(number) for batch in batches for number in batch if number < 1000)
        replaced = loader.replaced()
        for step in range(max(loader.step - 3, 0), loader.step):
            assert np.array_equal(loader.batch_at(step), batches[step])
        assert loader.stats()["worker_restarts"] == 3.0 or "isolated" in place
    (event,) = replaced
    assert (event.step, event.position, isinstance(event, Substituted)) == ("load", DEADLY, "replaced" in name)
    assert f"WorkerError: position {DEADLY} of epoch 0" in event.error
    taken = [event.taken_from] if isinstance(event, Substituted) else []
    assert found == sorted([number for number in range(80) if number != DEADLY] + taken)
    assert functions.computed_here == []


def test_a_crashing_element_with_crashing_substitutes_is_named() -> None:
    """If its substitutes crash, too, a WorkerError is raised."""
    kills = partial(functions.kills_at, range(DEADLY, 80))
    dataset = ps.range(DEADLY, 80).map(kills, on_error=ps.Substitute()).batch(1)
    with processes(dataset, 1) as loader, pytest.raises(WorkerError, match=r"position 0, key 0.*SIGKILL"):
        list(loader)


def test_a_crashing_position_is_named() -> None:
    """The elements before it are delivered; then the error names its position and key."""
    dataset = ps.range(2 * DEADLY).map(functions.kills_itself).filter(functions.is_odd).batch(2)
    with processes(dataset) as loader:
        batches = iter(loader)
        for first in range(1, DEADLY - 2, 4):
            assert next(batches).tolist() == [first, first + 2]
        named = rf"position {DEADLY} of epoch 0, key {DEADLY}, repeatedly crashes workers.*SIGKILL"
        with pytest.raises(WorkerError, match=named):
            next(batches)
