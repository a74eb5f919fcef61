"""Loaders that share workers are left, closed and dropped in any order, and none disturbs another."""

import asyncio
import gc
import itertools
import os
import weakref
from typing import Any

import psutil
import pytest

import penstock as ps
from penstock.errors import ClosedError
from tests.loader.gates import PATIENCE_SECONDS, Gate
from tests.loader.sharing.parts import IN_ORDER, KINDS, TRAINING, VALIDATION, is_even, listed, pair, plain
from tests.workers.processes import functions

pytestmark = pytest.mark.each_value

SECONDS = pytest.mark.parametrize("second", [VALIDATION, IN_ORDER])


@KINDS
@SECONDS
def test_leaving_one(kind: str, second: ps.Dataset) -> None:
    """A `break` out of one, again and again, leaves the other's iterator as it is; the next pass is whole."""
    with pair(kind, TRAINING, second) as (owner, other):
        found: list[Any] = []
        for batch in owner:
            found.append(plain(batch))
            assert plain(next(iter(other))) == plain(other.batch_at(other.step))
        assert found == listed(ps.Loader(TRAINING))
        assert listed(other) == listed(ps.Loader(second))


@KINDS
@SECONDS
def test_closing_the_other(kind: str, second: ps.Dataset) -> None:
    """The owner goes on where it was; the closed one says that it was closed."""
    with pair(kind, TRAINING, second) as (owner, other):
        batches, others = iter(owner), iter(other)
        found = [plain(next(batches))]
        kept = next(others)
        expected = plain(kept)
        other.close()
        assert found + listed(batches) == listed(ps.Loader(TRAINING))
        assert plain(kept) == expected
        with pytest.raises(ClosedError, match="the loader was closed"):
            next(others)
        with pytest.raises(ClosedError, match="the loader was closed"):
            ps.Loader(TRAINING, workers=other)


@KINDS
@SECONDS
def test_closing_the_owner(kind: str, second: ps.Dataset) -> None:
    """Who had its workers says so from then on, whatever it is asked for; batches handed out stay valid."""
    with pair(kind, TRAINING, second) as (owner, other):
        batches = iter(other)
        kept = next(batches)
        expected = plain(kept)
        owner.close()
        for _ in range(2):
            with pytest.raises(ClosedError, match="owns the workers"):
                next(batches)
        for use in (lambda: iter(other), lambda: other.seek(0), lambda: ps.Loader(TRAINING, workers=other)):
            with pytest.raises(ClosedError, match="owns the workers"):
                use()
        assert plain(kept) == expected


@KINDS
def test_closing_the_owner_before_anything_ran(kind: str) -> None:
    """Workers that were never started are not started for the other after that."""
    with pair(kind, TRAINING, VALIDATION) as (owner, other):
        owner.close()
        with pytest.raises(ClosedError, match="owns the workers"):
            iter(other)


@KINDS
@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_any_order(kind: str, order: tuple[int, ...]) -> None:
    """Three loaders are closed in any order, in the middle of their epochs; nothing is left behind."""
    owner = ps.Loader(TRAINING, num_workers=1, workers="threads" if kind == "threads" else "processes")
    loaders = [owner, ps.Loader(VALIDATION, workers=owner), ps.Loader(IN_ORDER, workers=owner)]
    iterators = [iter(loader) for loader in loaders]
    kept = [next(batches) for batches in iterators]
    expected = [plain(batch) for batch in kept]
    for number in order:
        loaders[number].close()
    assert [plain(batch) for batch in kept] == expected


@KINDS
def test_dropping_the_owner(kind: str) -> None:
    """The workers go on as long as a loader has them, though the program keeps no other than that."""
    workers: Any = kind
    owner = ps.Loader(TRAINING, num_workers=2, workers=workers)
    next(iter(owner))
    other = ps.Loader(VALIDATION, workers=owner)
    is_gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert is_gone() is None
    assert listed(other) == listed(ps.Loader(VALIDATION))


@KINDS
def test_dropping_the_other(kind: str) -> None:
    """One that is dropped in the middle of an epoch is closed, and what belonged to it goes; the owner goes on."""
    with pair(kind, TRAINING, VALIDATION) as (owner, _):
        batches = iter(owner)
        found = [plain(next(batches))]
        descriptors = 0
        for turn in range(12):
            other = ps.Loader(TRAINING, workers=owner)
            others = iter(other)
            next(others)
            del other, others
            gc.collect()
            if turn == 0:
                found.append(plain(next(batches)))
                descriptors = psutil.Process().num_fds()
        found.append(plain(next(batches)))
        assert psutil.Process().num_fds() <= descriptors + 10  # of the last ones, whose jobs are being drained
        assert found + listed(batches) == listed(ps.Loader(TRAINING))


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")
def test_many_come_and_go() -> None:
    """Loaders come and go, each with the data of its dataset, and processes let go of what is no longer used."""
    with ps.Loader(ps.range(2_000).map(functions.slow).batch(4), num_workers=1, workers="processes") as owner:
        batches = iter(owner)
        next(batches)
        (worker,) = (child for child in psutil.Process().children(recursive=True) if child.name() == "penstock-worker")
        mapped: list[int] = []
        for number in range(8):
            data = ps.read([{"x": ps.range(4)[row] + number} for row in range(4)]).batch(2)
            with ps.Loader(data, workers=owner) as other:
                assert [batch["x"].tolist() for batch in other] == [[number, number + 1], [number + 2, number + 3]]
            next(batches)
            mapped.append(len([each for each in worker.memory_maps(grouped=False) if "memfd" in each.path]))
        assert max(mapped[3:]) <= max(mapped[:3]) + 4


@pytest.mark.parametrize("kind", ["indexed", "in order"])
def test_a_task_that_waits_is_told(kind: str) -> None:
    """Who waits for the other's batch when the owner is closed gets a ClosedError at once."""
    gate = Gate(0)

    def held(number: int) -> int:
        gate(0)
        return number

    async def first(loader: ps.Loader) -> Any:
        return await anext(aiter(loader))

    async def main(owner: ps.Loader, other: ps.Loader) -> None:
        waiting = asyncio.ensure_future(first(other))
        await asyncio.to_thread(gate.wait_entered)
        asyncio.get_running_loop().call_later(0.1, gate.open)
        await asyncio.to_thread(owner.close)
        with pytest.raises(ClosedError, match="owns the workers"):
            await asyncio.wait_for(waiting, PATIENCE_SECONDS)

    rows = ps.range(20).map(held)
    with pair("threads", TRAINING, rows.batch(2) if kind == "indexed" else rows.filter(is_even).batch(2)) as (
        owner,
        other,
    ):
        asyncio.run(main(owner, other))
