"""`async for` over a loader delivers the same batches, and the event loop runs while a batch is computed."""

import asyncio
import gc
import os
import select
import signal
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock._os import Listener
from penstock._runtime._queue import GivenQueue, JobQueue
from tests.concurrency.loops import on_loop
from tests.constants import SetConstant
from tests.dataset.functions import keep
from tests.loader.gates import PATIENCE_SECONDS, Gate
from tests.places import LINUX, in_places

EXPECTED = [[i, i + 1, i + 2, i + 3] for i in range(0, 40, 4)]


@pytest.mark.each_value
@in_places("inline", "threads", "isolated")
@pytest.mark.parametrize("dataset", [ps.range(40).batch(4), ps.range(40).filter(keep).batch(4)])
def test_async_for_delivers_the_same_batches(dataset: ps.Dataset, place: dict[str, Any]) -> None:
    """Epochs read with `async for` and with `for` are equal, and may alternate."""

    async def read(loader: ps.Loader) -> list[Any]:
        return [batch.tolist() async for batch in loader]

    with ps.Loader(dataset, **place) as loader:
        assert asyncio.run(read(loader)) == EXPECTED
        assert [batch.tolist() for batch in loader] == EXPECTED
        assert asyncio.run(read(loader)) == EXPECTED
        assert loader.epoch == 2


async def collect(batches: Any, found: list[Any]) -> None:
    """Append batches as lists."""
    async for batch in batches:
        found.append(batch.tolist())  # noqa: PERF401 - those before an error count too


async def read_through(loader: ps.Loader, gate: Gate) -> list[Any]:
    """Return an epoch's batches; the gate is opened once a worker waits at it, while another task reads."""
    found: list[Any] = []
    reading = asyncio.ensure_future(collect(aiter(loader), found))
    await asyncio.to_thread(gate.wait_entered)
    gate.open()
    await reading
    return found


@pytest.mark.parametrize("kind", ["indexed", "in order"])
def test_other_tasks_run_during_a_wait(kind: str) -> None:
    """While one task waits for a batch, another runs and lets the batch be computed."""
    gate = Gate(0)
    rows = ps.range(40).map(gate)
    with ps.Loader((rows if kind == "indexed" else rows.filter(keep)).batch(4), num_workers=1) as loader:
        assert asyncio.run(read_through(loader, gate)) == EXPECTED


def row(number: int) -> Any:
    """Return a row."""
    return np.array([number])


@pytest.fixture
def single_batches(set_constant: SetConstant) -> None:
    """Give each batch above a fold a job of its own, however little time the batches take."""
    set_constant("COLLATE_JOB_SECONDS", 0.0)


@pytest.mark.usefixtures("single_batches")
def test_other_tasks_run_while_the_batch_after_a_skipped_one_is_made() -> None:
    """The loop also runs while the batch after a skipped one is computed."""
    gate = Gate(8)

    def second_fails(batch: Any) -> Any:
        if batch[0, 0] == 4:
            raise ValueError("the second batch")
        gate(int(batch[0, 0]))
        return batch[:, 0]

    dataset = ps.range(40).filter(keep).map(row).batch(4).map(second_fails, on_error="skip")
    with ps.Loader(dataset, num_workers=1) as loader:
        assert asyncio.run(read_through(loader, gate)) == [EXPECTED[0], *EXPECTED[2:]]


@pytest.mark.usefixtures("single_batches")
def test_other_tasks_run_after_a_skipped_batch_that_waited_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop also runs where the skipped batch is complete as soon as its job gets memory."""
    gate, has_skipped, has_memory = Gate(8), threading.Event(), threading.Event()
    is_ready, fits = vars(JobQueue)["is_ready"], vars(JobQueue)["_fits"]

    def is_ready_later(queue: Any) -> bool:
        has_memory.set()
        is_ready(queue)
        if not has_skipped.is_set():
            has_memory.clear()
            if queue.has_armed:
                queue.wait(lambda: False, lambda: None)  # until the job is complete
        return bool(is_ready(queue))

    def fits_if_there_is_memory(queue: Any, job: Any) -> bool:
        in_consumer = threading.current_thread() is threading.main_thread()
        return in_consumer and has_memory.is_set() and bool(fits(queue, job))

    def second_fails(batch: Any) -> Any:
        if batch[0, 0] == 4:
            has_skipped.set()
            has_memory.set()
            raise ValueError("the second batch")
        return np.array(gate(int(batch[0, 0])) // 4)

    monkeypatch.setattr(GivenQueue, "is_ready", is_ready_later)
    monkeypatch.setattr(GivenQueue, "_fits", fits_if_there_is_memory)
    dataset = ps.range(40).filter(keep).map(row).batch(4).map(second_fails, on_error="skip")
    with ps.Loader(dataset, num_workers=1) as loader:
        assert asyncio.run(read_through(loader, gate)) == [0, *range(2, 10)]


@pytest.mark.usefixtures("single_batches")
@on_loop
async def test_other_tasks_run_while_the_consumer_computes_a_batch_that_workers_failed_at() -> None:
    """The loop runs while that batch is read again, and, since it is left out, while the next one is computed."""
    first, again = Gate(8), Gate(8)

    def second_fails(batch: Any) -> Any:
        if batch[0, 0] == 4 and threading.current_thread() is not threading.main_thread():
            raise OSError("a worker can't compute the second batch")
        return batch

    def leaves_out_second(batch: Any) -> Any:
        number = int(batch[0, 0])
        if number == 4:
            raise ValueError("the second batch")
        (again if first.opened.is_set() else first)(number)
        return batch[:, 0]

    found: list[Any] = []
    dataset = ps.range(40).filter(keep).map(row).batch(4).map(second_fails).map(leaves_out_second, on_error="skip")
    with ps.Loader(dataset, num_workers=1) as loader:
        batches = aiter(loader)
        found.append((await anext(batches)).tolist())
        await asyncio.to_thread(first.wait_entered)  # the worker has failed at the second batch, and is at the third
        reading = asyncio.ensure_future(collect(batches, found))
        await asyncio.sleep(0)
        first.open()
        await asyncio.to_thread(again.wait_entered)
        again.open()
        await reading
    assert found == [EXPECTED[0], *EXPECTED[2:]]


def of_two_layouts(number: int) -> tuple[Any, int]:
    """Return a row and the pid of its worker; from 20 on the row's layout is another one."""
    return np.int32(number) if number < 20 else np.int64(number), os.getpid()


@LINUX
def test_next_waits_for_no_worker_where_may_wait_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """This also holds where a worker computes a batch again, since its rows have another layout."""
    waits = vars(Listener)["wait"]
    stopped: list[int] = []

    def wait(listener: Any, timeout_seconds: float | None = None) -> bool:
        assert not stopped
        return bool(waits(listener, timeout_seconds))

    monkeypatch.setattr(Listener, "wait", wait)
    found: list[Any] = []
    with ps.Loader(ps.range(40).map(of_two_layouts).batch(4), num_workers=1, workers="processes") as loader:
        batches = iter(loader)
        for _ in EXPECTED:
            while (descriptor := batches.may_wait) is not None:
                assert select.select([descriptor], [], [], PATIENCE_SECONDS)[0]
            stopped += [int(pids[0]) for _, pids in found[:1]]
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            try:
                found.append(next(batches))
            finally:
                while stopped:
                    os.kill(stopped.pop(), signal.SIGCONT)
    assert [numbers.tolist() for numbers, _ in found] == EXPECTED


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts its waits for descriptors."""

    waits = 0

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override] # wider
        """Count a wait, and begin it."""
        self.waits += 1
        super().add_reader(fd, callback, *args)


def test_waiting_does_not_spin() -> None:
    """While a batch is late and later ones are ready, the loop isn't woken again and again."""
    gate = Gate(8)
    passed = threading.Event()

    def passes(number: int) -> int:
        if number == 39:
            passed.set()
        return number

    async def main() -> int:
        with ps.Loader(ps.range(40).map(gate).map(passes).batch(4), num_workers=2, prefetch=10) as loader:
            batches = aiter(loader)
            await anext(batches)
            await anext(batches)
            await asyncio.to_thread(passed.wait)
            before = loop.waits
            late = asyncio.ensure_future(anext(batches))
            for _ in range(1000):  # turns of the loop
                await asyncio.sleep(0)
            waits = loop.waits - before
            gate.open()
            await late
        return waits

    loop = CountingLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert 1 <= runner.run(main()) < 10


@on_loop
async def test_a_cancelled_wait_loses_no_batch() -> None:
    """A cancelled wait leaves the loader as if the batch had not been requested."""
    gate = Gate(4)
    with ps.Loader(ps.range(40).map(gate).batch(4), num_workers=2) as loader:
        batches = aiter(loader)
        found = [(await anext(batches)).tolist()]
        for _ in range(3):
            waiting = asyncio.ensure_future(anext(batches))
            await asyncio.to_thread(gate.wait_entered)
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert loader.state_dict()["step"] == 1
        gate.open()
        assert (found + [batch.tolist() async for batch in batches]) == EXPECTED


@in_places("inline", "threads")
@on_loop
async def test_errors_are_raised_in_the_task(place: dict[str, Any]) -> None:
    """`async for` raises a function's exception after the batches before it, and continues after a seek."""

    def fails(number: int) -> int:
        if number == 9:
            raise KeyError(number)
        return number

    found: list[Any] = []
    with ps.Loader(ps.range(40).map(fails).batch(4), **place) as loader:
        with pytest.raises(KeyError):
            await collect(aiter(loader), found)
        loader.seek(3)
        await collect(aiter(loader), found)
    assert found == EXPECTED[:2] + EXPECTED[3:]


@on_loop
async def test_one_task_reads_at_a_time() -> None:
    """A second task that requests a batch gets an error, and the first one its batch."""
    gate = Gate(0)
    with ps.Loader(ps.range(40).map(gate).batch(4), num_workers=1) as loader:
        batches = aiter(loader)
        waiting = asyncio.ensure_future(anext(batches))
        await asyncio.to_thread(gate.wait_entered)
        with pytest.raises(ps.errors.UsageError, match="one task at a time"):
            await anext(batches)
        gate.open()
        assert (await waiting).tolist() == EXPECTED[0]
        assert (await anext(batches)).tolist() == EXPECTED[1]


@on_loop
async def test_a_newer_iterator_ends_the_wait_of_an_older_one() -> None:
    """A task that waits gets a ClosedError when another one makes an iterator, which then gets the batches."""
    gate = Gate(0)
    with ps.Loader(ps.range(40).map(gate).batch(4), num_workers=1) as loader:
        older = asyncio.ensure_future(anext(aiter(loader)))
        await asyncio.to_thread(gate.wait_entered)
        batches = aiter(loader)
        newer = asyncio.ensure_future(anext(batches))
        with pytest.raises(ps.errors.ClosedError, match="a newer iter"):
            await asyncio.wait_for(older, PATIENCE_SECONDS)
        gate.open()
        assert [(await newer).tolist()] + [batch.tolist() async for batch in batches] == EXPECTED


def test_a_loop_that_was_closed_during_a_wait_leaves_the_iterator() -> None:
    """The next loop goes on with the batch that the closed one waited for."""

    async def following(batches: AsyncIterator[Any]) -> list[int]:
        return list(await anext(batches))

    gate = Gate(0)
    with ps.Loader(ps.range(40).map(gate).batch(4), num_workers=1) as loader:
        batches = aiter(loader)
        closed = asyncio.new_event_loop()
        waiting = closed.create_task(following(batches))
        closed.run_until_complete(asyncio.sleep(0))
        gate.wait_entered()
        closed.close()
        del waiting, closed
        gc.collect()
        gate.open()
        assert asyncio.run(following(batches)) == EXPECTED[0]


def after_end(path: Path, number: int) -> int:
    """Return a number, the first one after the end of a file."""
    if number == 0:
        path.read_bytes()
    return number


@in_places("thread", "isolated")
@on_loop
async def test_closing_ends_a_wait(place: dict[str, Any], tmp_path: Path) -> None:
    """A task that waits for a batch gets a ClosedError at once, while a worker or the helper is inside a function."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    loader = ps.Loader(ps.range(40).map(partial(after_end, path)).batch(4), **place)
    waiting = asyncio.ensure_future(anext(aiter(loader)))
    with await asyncio.to_thread(path.open, "wb"):  # once the function reads
        closing = asyncio.ensure_future(asyncio.to_thread(loader.close))
        with pytest.raises(ps.errors.ClosedError, match="the loader was closed"):
            await waiting
    await closing
