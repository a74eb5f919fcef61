"""Loaders that share workers are abandoned, closed and dropped in any order without an effect on each other."""

import asyncio
import gc
import itertools
import os
import threading
import weakref
from typing import Any

import psutil
import pytest

import penstock as ps
from penstock.errors import ClosedError
from tests.dataset.functions import is_even
from tests.loader.gates import PATIENCE_SECONDS, Gate
from tests.loader.sharing.parts import IN_ORDER, KINDS, TRAINING, VALIDATION, listed, pair, plain
from tests.workers.processes import functions

pytestmark = pytest.mark.each_value

SECONDS = pytest.mark.parametrize("second", [VALIDATION, IN_ORDER])


@KINDS
@SECONDS
def test_a_break_leaves_the_other_unchanged(kind: str, second: ps.Dataset) -> None:
    """A repeated break out of one loader leaves the other's iterator unchanged, and its next epoch is whole."""
    with pair(kind, TRAINING, second) as (owner, other):
        found: list[Any] = []
        for batch in owner:
            found.append(plain(batch))
            assert plain(next(iter(other))) == plain(other.batch_at(other.step))
        assert found == listed(ps.Loader(TRAINING))
        assert listed(other) == listed(ps.Loader(second))


@KINDS
@SECONDS
def test_closing_the_other_leaves_the_owner_unchanged(kind: str, second: ps.Dataset) -> None:
    """The owner continues where it was, and the closed loader says that it was closed."""
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
def test_closing_the_owner_closes_the_other(kind: str, second: ps.Dataset) -> None:
    """Every later use of the other loader names the owner; delivered batches stay valid."""
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
def test_a_closed_owner_starts_no_workers(kind: str) -> None:
    """Workers that never started are not started for the other loader after the owner is closed."""
    with pair(kind, TRAINING, VALIDATION) as (owner, other):
        owner.close()
        with pytest.raises(ClosedError, match="owns the workers"):
            iter(other)


@KINDS
@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_loaders_close_in_any_order(kind: str, order: tuple[int, ...]) -> None:
    """Three loaders that are closed within their epochs, in any order, leave nothing behind."""
    owner = ps.Loader(TRAINING, num_workers=1, workers="threads" if kind == "threads" else "processes")
    loaders = [owner, ps.Loader(VALIDATION, workers=owner), ps.Loader(IN_ORDER, workers=owner)]
    iterators = [iter(loader) for loader in loaders]
    kept = [next(batches) for batches in iterators]
    expected = [plain(batch) for batch in kept]
    for number in order:
        loaders[number].close()
    assert [plain(batch) for batch in kept] == expected


@KINDS
def test_a_dropped_owner_keeps_its_workers_running(kind: str) -> None:
    """The workers run as long as one loader uses them, also if the owner is dropped."""
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
def test_a_dropped_loader_frees_its_resources(kind: str) -> None:
    """A loader that is dropped within an epoch is closed and frees its resources; the owner continues."""
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
        never_set = threading.Event()
        for _ in range(round(PATIENCE_SECONDS / 0.02)):  # their jobs still run; nothing tells when they end
            if psutil.Process().num_fds() <= descriptors + 10:
                break
            never_set.wait(0.02)
        assert psutil.Process().num_fds() <= descriptors + 10
        assert found + listed(batches) == listed(ps.Loader(TRAINING))


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")
def test_workers_release_the_memory_of_closed_loaders() -> None:
    """Each of many successive loaders has its own data, and the worker unmaps the memory of closed ones."""
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
def test_closing_the_owner_ends_a_wait_for_the_other(kind: str) -> None:
    """A task that waits for the other's batch gets a ClosedError at once when the owner is closed."""
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
