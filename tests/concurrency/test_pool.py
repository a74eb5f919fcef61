"""A pool of workers in every place: the order of jobs, and the effects of the first failure."""

import asyncio
import functools
import gc
import os
import threading
from collections.abc import Callable
from typing import Any, Literal, assert_type, cast

import pytest

from penstock.concurrency import CompletionStream, Worker, WorkerPool
from penstock.errors import ClosedError, UsageError, WorkerError
from tests.concurrency import workers
from tests.concurrency.loops import LOOPS, on_loop, on_loops, ready, run_on, settle

pytestmark = pytest.mark.each_value

Place = Literal["task", "thread", "process"]

IN_PLACES = pytest.mark.parametrize("place", workers.PLACES)
ON_LOOPS = pytest.mark.parametrize("loop", LOOPS)


@IN_PLACES
@pytest.mark.parametrize("worker", [workers.Plain, workers.Async])
@on_loops
async def test_one_worker_keeps_its_state(place: Place, worker: Callable[[], Worker[..., Any]]) -> None:
    """One worker does all jobs in turn, in the place where it was started; leaving the scope waits for all of them."""
    async with WorkerPool(worker, 1, place=place) as pool:
        futures = [await pool.assign(number) for number in (1, 2, 3)]
    assert [future.result() for future in futures] == [1, 3, 6]


@IN_PLACES
def test_each_worker_has_its_own_place(place: Place) -> None:
    """Workers in tasks are in this thread, those in threads in this process, those in processes in others."""

    async def main() -> tuple[set[int], set[int]]:
        async with WorkerPool(workers.Plain, 2, place=place) as pool:
            pids = [await pool.assign(os.getpid) for _ in range(8)]
            threads = [await pool.assign(threading.get_ident) for _ in range(8)]
        return {future.result() for future in pids}, {future.result() for future in threads}

    pids, threads = run_on("asyncio", main)
    assert (os.getpid() in pids) == (place != "process")
    assert (threading.get_ident() in threads) == (place == "task")


@IN_PLACES
def test_a_job_is_any_arguments(place: Place) -> None:
    """`run` gets the arguments of `assign`, positional and by name; wrong ones fail as in Python."""
    results: list[str] = []

    async def main() -> None:
        async with WorkerPool(workers.Formatter, 1, place=place) as pool:
            first = await pool.assign(1, 2)
            second = await pool.assign(1, 0, 3, 4, unit="kg")
            third = await pool.assign(2, digits=1)
            wrong = await cast("Any", pool.assign)(1, 2, units="kg")
            await asyncio.wait([wrong])
            results.extend([assert_type(first.result(), str), second.result(), third.result()])

    with pytest.raises(TypeError, match="unexpected keyword argument 'units'"):
        run_on("asyncio", main)
    assert results == ["1.00 m", "1 kg 3 kg 4 kg", "2.0 m"]


class Gated:
    """A worker whose job is a future, for which it waits."""

    def start(self) -> None:
        """Do nothing."""

    async def run(self, job: asyncio.Future[Any]) -> Any:
        """Wait for the job's future."""
        return await job

    def stop(self) -> None:
        """Do nothing."""


@on_loop
async def test_cancelled_assigns_take_nothing() -> None:
    """A job whose `assign` was cancelled never runs; a worker that it had got goes to another caller."""
    done: list[Any] = []
    gate = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as tasks, WorkerPool(Gated, 1) as pool:
        await pool.assign(gate)
        waiting = [tasks.create_task(pool.assign(ready(number))) for number in range(4)]
        await settle()
        waiting[0].cancel()
        gate.set_result(None)
        waiting[1].get_loop().call_soon(waiting[1].cancel)
        await asyncio.sleep(0)
        done += [await (await assigned) for assigned in waiting[2:]]
        done += [assigned.cancelled() for assigned in waiting]
    assert done in ([2, 3, True, True, False, False], [2, 3, True, False, False, False])


FAILING = {
    "make": workers.FailsAtMake,
    "start": workers.FailsAtStart,
    "run": workers.FailsAtRun,
    "stop": workers.FailsAtStop,
}


@IN_PLACES
@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("method", FAILING)
@on_loop
async def test_die_mode(place: Place, *, asynchronous: bool, method: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Every `assign` and the scope raise the first exception, the same object, with one note; it isn't printed."""
    failing = FAILING[method]
    make: Callable[[], Worker[..., Any]] = functools.partial(workers.AsyncFails, failing) if asynchronous else failing
    seen: list[BaseException] = []
    pool = WorkerPool(make, 2, place=place)

    async def assign() -> None:
        try:
            for job in range(5):
                await pool.assign(job)
        except workers.OddError as error:
            seen.append(error)

    async def scope() -> None:
        async with pool:
            if method != "stop":
                async with asyncio.TaskGroup() as tasks:
                    for _ in range(4):
                        tasks.create_task(assign())
                await assign()

    with pytest.raises(workers.OddError) as left:
        await scope()
    assert seen == [left.value] * (0 if method == "stop" else 5)
    assert left.value.number == 7
    where = {"make": "the start of worker", "run": "worker"}.get(method, f"the {method} of worker")
    notes = [note for note in left.value.__notes__ if note.startswith("In ") and "process" not in note]
    assert len(notes) == 1
    assert notes[0].startswith(f"In {where} ")
    with pytest.raises(ClosedError):
        await pool.assign(0)
    gc.collect()
    assert capfd.readouterr() == ("", "")


@IN_PLACES
@on_loops
async def test_futures_hold_their_own_error(place: Place) -> None:
    """The future of the failing job has the pool's exception; one raised from it leaves the scope instead."""
    causes: list[BaseException] = []

    async def scope() -> None:
        async with WorkerPool(workers.Plain, 1, place=place) as pool:
            future = await pool.assign(workers.odd)
            with pytest.raises(workers.OddError) as failed:
                await future
            with pytest.raises(workers.OddError) as refused:
                await pool.assign(1)
            assert failed.value is refused.value
            causes.append(failed.value)
            raise LookupError from failed.value

    with pytest.raises(LookupError) as left:
        await scope()
    assert causes == [left.value.__cause__]


@on_loop
async def test_tracebacks_do_not_grow() -> None:
    """However often the pool raises its exception, the traceback has the frames of one raise."""
    pool, depths = WorkerPool(workers.Plain, 1), list[int]()

    async def scope() -> None:
        async with pool:
            await pool.assign(workers.odd)
            for _ in range(5):
                with pytest.raises(workers.OddError) as failed:
                    await pool.assign(1)
                depths.append(len(failed.traceback))

    with pytest.raises(workers.OddError):
        await scope()
    assert depths == depths[:1] * 5


@IN_PLACES
@pytest.mark.parametrize("worker", [workers.Plain, workers.Async])
def test_awkward_exceptions(place: Place, worker: Callable[[], Worker[..., Any]]) -> None:
    """An exception that futures can't hold, or that looks like a cancellation, arrives as another error."""

    async def main(job: Callable[[], None]) -> BaseException:
        with pytest.raises((WorkerError, RuntimeError)) as left:
            async with WorkerPool(worker, 1, place=place) as pool:
                await pool.assign(job)
        return left.value

    assert "StopIteration" in str(run_on("asyncio", functools.partial(main, workers.stop_iteration)))
    assert "CancelledError" in str(run_on("asyncio", functools.partial(main, workers.cancelled)))
    assert "GeneratorExit" in str(run_on("asyncio", functools.partial(main, workers.generator_exit)))


@IN_PLACES
def test_a_group_of_interrupts_arrives_as_any_exception(place: Place) -> None:
    """It is no Exception, but the scope raises it as the worker has, with the note."""

    async def main() -> None:
        async with WorkerPool(workers.Plain, 1, place=place) as pool:
            await (await pool.assign(workers.grouped))

    with pytest.raises(BaseExceptionGroup) as left:
        run_on("asyncio", main)
    assert str(left.value).startswith("several")
    assert "In worker 0, job 0 of the pool" in left.value.__notes__


@pytest.mark.parametrize("place", ["thread", "process"])
@on_loop
async def test_exits_elsewhere_are_exceptions(place: Place) -> None:
    """SystemExit in another thread or process doesn't end this one; it is the pool's exception."""
    with pytest.raises(SystemExit) as left:
        async with WorkerPool(workers.Plain, 1, place=place) as pool:
            await pool.assign(workers.system_exit)
    assert left.value.code == 7


@IN_PLACES
@on_loop
async def test_outside_of_the_scope(place: Place) -> None:
    """A pool runs nothing outside of its scope, is entered once, and refuses callers that wait when it is left."""
    pool = WorkerPool(workers.Plain, 1, place=place)
    with pytest.raises(ClosedError, match="enter it first"):
        await pool.assign(1)
    async with pool:
        pass
    with pytest.raises(ClosedError, match="scope was left"):
        await pool.assign(1)
    with pytest.raises(UsageError, match="entered once"):
        await pool.__aenter__()

    async with asyncio.TaskGroup() as tasks:
        async with WorkerPool(workers.Plain, 1, place=place) as pool:
            running = await pool.assign(1)
            waiting = [tasks.create_task(refused(pool)) for _ in range(3)]
            await asyncio.sleep(0)
        assert running.result() == 1
    assert all(task.result() for task in waiting)


async def refused(pool: WorkerPool[..., Any]) -> bool:
    """Return whether `assign` raises a ClosedError, now or after waiting."""
    try:
        while True:
            await (await pool.assign(1))
    except ClosedError:
        return True


@on_loop
async def test_a_cancelled_future_drops_the_result() -> None:
    """Cancelling a job's future doesn't affect the job, the worker or the pool."""
    gate = asyncio.get_running_loop().create_future()
    async with WorkerPool(Gated, 1) as pool:
        dropped = await pool.assign(gate)
        dropped.cancel()
        await settle()
        gate.set_result(1)
        assert await (await pool.assign(ready(2))) == 2


def test_wrong_arguments() -> None:
    """Wrong arguments are refused before a worker starts."""
    with pytest.raises(UsageError, match="num_workers must be at least 1"):
        WorkerPool(workers.Plain, 0)
    with pytest.raises(UsageError, match="place must be"):
        WorkerPool(workers.Plain, 1, place=cast("Any", "moon"))
    with pytest.raises(UsageError, match="start_method must be"):
        WorkerPool(workers.Plain, 1, start_method=cast("Any", "fork"))
    with pytest.raises(UsageError, match="make_worker must be picklable"):
        WorkerPool(lambda: workers.Plain(), 1, place="process")


class Length:
    """A worker that returns the lengths of words."""

    def start(self) -> None:
        """Do nothing."""

    def run(self, job: str) -> int:
        """Return the word's length."""
        return len(job)

    def stop(self) -> None:
        """Do nothing."""


class AsyncLength(Length):
    """A worker that returns the lengths of words, with an async method."""

    async def run(self, job: str) -> int:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride] - shorter
        """Return the word's length."""
        return len(job)


@on_loop
async def test_types() -> None:
    """Type checkers infer the types of a pool's jobs and results from the worker's `run`, plain or async."""
    async with WorkerPool(Length, 1) as plain, WorkerPool(AsyncLength, 1) as asynchronous:
        assert assert_type(await (await plain.assign("four")), int) == 4
        assert assert_type(await (await asynchronous.assign("seven")), int) == 5


@on_loops
async def test_results_as_they_complete() -> None:
    """The futures of a pool can be put into a `CompletionStream`."""
    async with WorkerPool(Gated, 2) as pool:
        stream = CompletionStream[int]()
        late = asyncio.get_running_loop().create_future()
        for job in (late, ready(1), ready(2)):
            stream.put(await pool.assign(job))
        stream.stop()
        reader = aiter(stream)
        first = [await anext(reader), await anext(reader)]
        late.set_result(0)
        assert [*first, *[item async for item in reader]] == [1, 2, 0]
