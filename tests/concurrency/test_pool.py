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
from tests.concurrency.loops import IN_PLACES, in_another_thread, on_loop, on_loops, ready, settle

pytestmark = pytest.mark.each_value

Place = Literal["task", "thread", "process"]


@IN_PLACES
@pytest.mark.parametrize("worker", [workers.Plain, workers.Async])
@on_loops
async def test_one_worker_does_all_jobs_in_its_place(place: Place, worker: Callable[[], Worker[..., Any]]) -> None:
    """It does them in turn, where it was started, and keeps its state; leaving the scope waits for all of them."""
    async with WorkerPool(worker, 1, place=place, start_method="forkserver") as pool:
        pid, thread = await pool.assign(os.getpid), await pool.assign(threading.get_ident)
        futures = [await pool.assign(number) for number in (1, 2, 3)]
    assert [future.result() for future in futures] == [1, 3, 6]
    assert (pid.result() == os.getpid()) == (place != "process")
    assert ((pid.result(), thread.result()) == (os.getpid(), threading.get_ident())) == (place == "task")


@IN_PLACES
@on_loop
async def test_a_job_is_any_arguments(place: Place) -> None:
    """`run` gets the arguments of `assign`, positional and by name; wrong ones fail as in Python."""
    results: list[str] = []

    async def scope() -> None:
        async with WorkerPool(workers.Formatter, 1, place=place, start_method="forkserver") as pool:
            first = await pool.assign(1, 2)
            second = await pool.assign(1, 0, 3, 4, unit="kg")
            third = await pool.assign(2, digits=1)
            wrong = await cast("Any", pool.assign)(1, 2, units="kg")
            await asyncio.wait([wrong])
            results.extend([assert_type(first.result(), str), second.result(), third.result()])

    with pytest.raises(TypeError, match="unexpected keyword argument 'units'"):
        await scope()
    assert results == ["1.00 m", "1 kg 3 kg 4 kg", "2.0 m"]


@on_loop
async def test_cancelled_assigns_take_nothing() -> None:
    """A job whose `assign` was cancelled never runs; a worker that it had got goes to another caller."""
    done: list[Any] = []
    gate = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as tasks, WorkerPool(workers.Gated, 1) as pool:
        await pool.assign(gate)
        waiting = [tasks.create_task(pool.assign(ready(number))) for number in range(4)]
        await settle()
        waiting[0].cancel()
        gate.set_result(0)
        waiting[1].get_loop().call_soon(waiting[1].cancel)
        await asyncio.sleep(0)
        done += [await (await assigned) for assigned in waiting[2:]]
        done += [assigned.cancelled() for assigned in waiting]
    assert done in ([2, 3, True, True, False, False], [2, 3, True, False, False, False])


@IN_PLACES
@pytest.mark.parametrize("make", [workers.Fails, workers.AsyncFails])
@pytest.mark.parametrize("method", ["make", "start", "run", "stop"])
@on_loop
async def test_die_mode(
    place: Place, make: Callable[[str], Worker[..., Any]], method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every `assign` and the scope raise the first exception, the same object, with one note; it isn't printed."""
    seen: list[BaseException] = []
    pool = WorkerPool(functools.partial(make, method), 2, place=place, start_method="forkserver")

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
    """The failing job's future has the pool's exception, each raise with the same traceback; one from it leaves."""
    causes: list[BaseException] = []

    async def scope() -> None:
        async with WorkerPool(workers.Plain, 1, place=place, start_method="forkserver") as pool:
            future = await pool.assign(workers.odd)
            with pytest.raises(workers.OddError) as failed:
                await future
            depths: set[int] = set()
            for _ in range(3):
                with pytest.raises(workers.OddError) as refused:
                    await pool.assign(1)
                assert failed.value is refused.value
                depths.add(len(refused.traceback))
            assert len(depths) == 1
            causes.append(failed.value)
            raise LookupError from failed.value

    with pytest.raises(LookupError) as left:
        await scope()
    assert causes == [left.value.__cause__]


AWKWARD: list[tuple[BaseException, type[BaseException], str]] = [
    (StopIteration(7), RuntimeError, "StopIteration"),
    (asyncio.CancelledError(), WorkerError, "CancelledError"),
    (GeneratorExit(), RuntimeError, "GeneratorExit"),
    (BaseExceptionGroup("several", [workers.OddError("odd", 7), KeyboardInterrupt()]), BaseExceptionGroup, "several"),
    (SystemExit(7), SystemExit, "7"),
]


@IN_PLACES
@pytest.mark.parametrize("worker", [workers.Plain, workers.Async])
@on_loop
async def test_awkward_exceptions(place: Place, worker: Callable[[], Worker[..., Any]]) -> None:
    """One that futures can't hold, or that looks like a cancellation, arrives as another error; a group as itself.

    A SystemExit in another thread or process doesn't end this one.
    """
    for raised, kind, text in AWKWARD[: -1 if place == "task" else None]:
        with pytest.raises(kind, match=text) as left:
            async with WorkerPool(worker, 1, place=place, start_method="forkserver") as pool:
                await pool.assign(functools.partial(workers.raise_it, raised))
        assert "In worker 0, job 0 of the pool" in left.value.__notes__


@IN_PLACES
@on_loop
async def test_an_exception_that_refuses_a_note(place: Place) -> None:
    """An exception whose class lets no attribute be set arrives as itself, without a note."""
    with pytest.raises(workers.FrozenError):
        async with WorkerPool(workers.Plain, 1, place=place, start_method="forkserver") as pool:
            await pool.assign(functools.partial(workers.raise_it, workers.FrozenError()))


@on_loop
async def test_outside_of_the_scope() -> None:
    """A pool runs nothing outside of its scope, is entered once, and refuses callers that wait when it is left."""
    pool = WorkerPool(workers.Plain, 1, place="thread")
    with pytest.raises(ClosedError, match="enter it first"):
        await pool.assign(1)

    async def assign_for_ever() -> None:
        while True:
            await (await pool.assign(1))

    async def refused() -> None:
        with pytest.raises(ClosedError, match="scope was left"):
            await assign_for_ever()

    async with asyncio.TaskGroup() as tasks:
        async with pool:
            running = await pool.assign(1)
            for _ in range(3):
                tasks.create_task(refused())
            await asyncio.sleep(0)
        assert running.result() == 1
    await refused()
    with pytest.raises(UsageError, match="entered once"):
        await pool.__aenter__()


@on_loops
async def test_an_assign_from_another_loop_is_refused() -> None:
    """It would wake no worker; the pool serves its own loop as before."""
    async with WorkerPool(workers.Plain, 1) as pool:
        with pytest.raises(UsageError, match="must be assigned by the event loop that entered the pool's scope"):
            await in_another_thread(_assigned(pool))
        assert await _assigned(pool) == 1


async def _assigned(pool: WorkerPool[..., Any]) -> object:
    return await (await pool.assign(1))


@on_loop
async def test_a_cancelled_future_drops_the_result() -> None:
    """Cancelling a job's future doesn't affect the job, the worker or the pool."""
    gate = asyncio.get_running_loop().create_future()
    async with WorkerPool(workers.Gated, 1) as pool:
        dropped = await pool.assign(gate)
        dropped.cancel()
        await settle()
        gate.set_result(1)
        result = await (await pool.assign(ready(2)))
        assert assert_type(result, int) == 2  # not the coroutine of the async `run`


@pytest.mark.parametrize(
    ("make", "num_workers", "options", "message"),
    [
        (workers.Plain, 0, {}, "num_workers must be at least 1"),
        (workers.Plain, 1, {"place": "moon"}, "place must be"),
        (workers.Plain, 1, {"start_method": "fork"}, "start_method must be"),
        (lambda: workers.Plain(), 1, {"place": "process"}, "make_worker must be picklable"),
    ],
)
def test_wrong_arguments(make: Any, num_workers: int, options: Any, message: str) -> None:
    """Wrong arguments are refused before a worker starts."""
    with pytest.raises(UsageError, match=message):
        WorkerPool(make, num_workers, **options)


@on_loops
async def test_results_as_they_complete() -> None:
    """The futures of a pool can be put into a `CompletionStream`."""
    async with WorkerPool(workers.Gated, 2) as pool:
        stream = CompletionStream[int]()
        late = asyncio.get_running_loop().create_future()
        for job in (late, ready(1), ready(2)):
            stream.put(await pool.assign(job))
        stream.stop()
        reader = aiter(stream)
        first = [await anext(reader), await anext(reader)]
        late.set_result(0)
        assert [*first, *[item async for item in reader]] == [1, 2, 0]
