"""Loaders that share workers are abandoned, closed and dropped in any order without an effect on each other."""

import asyncio
import gc
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import psutil
import pytest

import penstock as ps
from penstock._decisions import random_decisions
from penstock._os import DaemonThread
from penstock.errors import ClosedError
from tests.dataset.functions import is_even
from tests.loader.gates import PATIENCE_SECONDS, Gate
from tests.loader.sharing.parts import IN_ORDER, KINDS, TRAINING, VALIDATION, listed, pair, plain
from tests.workers.processes import functions

pytestmark = pytest.mark.each_value

current_frames: Callable[[], dict[int, FrameType]] = vars(sys)["_current_frames"]

LONG: ps.Dataset = ps.range(160).map(abs).batch(4)
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
def test_a_loader_that_is_closed_at_once_leaves_the_workers_to_the_owner(kind: str) -> None:
    """Also where a worker has claimed a block of the closed loader, but hasn't requested its memory yet."""
    with random_decisions(5), pair(kind, LONG, VALIDATION) as (owner, _):
        found: list[Any] = []
        for batch in owner:
            found.append(plain(batch))
            with ps.Loader(VALIDATION, workers=owner) as other:
                iter(other)
        assert found == listed(ps.Loader(LONG))


def refuse(loader: ps.Loader, batches: ps.LoaderIterator[Any], reason: str) -> None:
    """Check that every use of a loader fails for this reason."""
    uses: list[Callable[[], object]] = [
        *(lambda: next(batches), lambda: next(batches), lambda: iter(loader), lambda: loader.seek(0)),
        lambda: ps.Loader(TRAINING, workers=loader),
    ]
    for use in uses:
        with pytest.raises(ClosedError, match=reason):
            use()


@KINDS
def test_loaders_close_in_any_order(kind: str) -> None:
    """Those that are open continue, unless the owner was closed, as the error says; delivered batches stay valid."""
    workers: Any = kind
    expected = [listed(ps.Loader(dataset)) for dataset in (TRAINING, VALIDATION, IN_ORDER)]
    orders = [*itertools.permutations(range(3))]
    for order in orders if kind == "threads" else orders[2:4]:
        owner = ps.Loader(TRAINING, num_workers=2, workers=workers)
        loaders = [owner, ps.Loader(VALIDATION, workers=owner), ps.Loader(IN_ORDER, workers=owner)]
        iterators = [iter(loader) for loader in loaders]
        kept = [next(batches) for batches in iterators]
        found = [[plain(batch)] for batch in kept]
        for count, number in enumerate(order):
            loaders[number].close()
            for each, (loader, batches) in enumerate(zip(loaders, iterators, strict=True)):
                if each in order[: count + 1]:
                    refuse(loader, batches, "the loader was closed")
                elif 0 in order[: count + 1]:
                    refuse(loader, batches, "owns the workers")
                else:
                    found[each] += listed(batches) if count else [plain(next(batches))]
        assert all(some == whole[: len(some)] for some, whole in zip(found, expected, strict=True))
        assert order[2] != 0 or found[0] == expected[0]
        assert listed(kept) == [whole[0] for whole in expected]
    with pair(kind, TRAINING, VALIDATION) as (owner, other):
        owner.close()
        with pytest.raises(ClosedError, match="owns the workers"):
            iter(other)  # no workers were started for it


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
        for number in range(16):
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


def large(number: int) -> Any:
    """Return a row of 400 kB."""
    return np.full(50_000, number)


def awaits_memory(gate: Gate) -> ps.Dataset:
    """Return batches of 800 kB; an element waits at a gate."""
    return ps.range(12).map(gate).map(large).batch(2)


def given_up_at(gate: Gate, loader: ps.Loader) -> None:
    """Give up an iterator while a worker is at its last batch, which has all memory that the loader may use."""
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    gate.wait_entered()
    loader.seek(0)


class Waiter(DaemonThread):
    """A thread that gets a loader's next batch."""

    def __init__(self, loader: ps.Loader) -> None:
        self.found: list[Any] = []
        self._number = 0
        self._batches = iter(loader)
        super().__init__(self._get, "waiter")

    def _get(self) -> None:
        self._number = threading.get_ident()
        try:
            self.found.append(plain(next(self._batches)))
        except ClosedError as error:
            self.found.append(error)

    @property
    def is_at_the_wait(self) -> bool:
        """Whether the loader waits for the memory of an earlier iterator."""
        frame = current_frames().get(self._number)
        while frame is not None and frame.f_code.co_name != "wait_drained":
            frame = frame.f_back
        return frame is not None


MEMORY_OF_ONE = 1_200_000


def test_a_wait_for_memory_leaves_the_other_unchanged() -> None:
    """While one loader waits until a worker leaves a job of its earlier iterator, the other's batches continue."""
    gate = Gate(10)
    numbers = ps.range(10**9).map(abs).batch(2)
    with pair("threads", numbers, awaits_memory(gate), memory=MEMORY_OF_ONE) as (owner, other):
        given_up_at(gate, other)
        waiter = Waiter(other)
        done = threading.Event()

        def take() -> None:
            batches = iter(owner)
            while not waiter.is_at_the_wait:
                next(batches)
            for _ in range(20):
                next(batches)
            done.set()

        taker = DaemonThread(take, "taker")
        assert done.wait(PATIENCE_SECONDS)
        gate.open()
        for thread in (waiter, taker):
            thread.wait(PATIENCE_SECONDS)
        assert waiter.found == [plain(awaits_memory(Gate(-1))[0])]


def test_a_loader_that_waits_for_memory_is_closed() -> None:
    """The iterator that waits gets a ClosedError, while the worker is still inside the earlier job."""
    gate = Gate(10)
    loader = ps.Loader(awaits_memory(gate), num_workers=2, memory=MEMORY_OF_ONE)
    try:
        given_up_at(gate, loader)
        waiter = Waiter(loader)
        while not waiter.is_at_the_wait and not waiter.found:
            waiter.wait(0.001)
        closer = DaemonThread(loader.close, "closer")
        waiter.wait(PATIENCE_SECONDS)
        assert isinstance(waiter.found[0], ClosedError)
    finally:
        gate.open()
    closer.wait(PATIENCE_SECONDS)


def test_a_wait_for_memory_does_not_block_an_event_loop() -> None:
    """Other tasks run while the next batch waits until a worker leaves a job of an earlier iterator."""
    gate = Gate(10)

    async def first() -> Any:
        task = asyncio.ensure_future(anext(aiter(loader)))
        for _ in range(50):
            await asyncio.sleep(0)
        gate.open()
        return plain(await task)

    with ps.Loader(awaits_memory(gate), num_workers=2, memory=MEMORY_OF_ONE) as loader:
        given_up_at(gate, loader)
        assert asyncio.run(first()) == plain(awaits_memory(Gate(-1))[0])
