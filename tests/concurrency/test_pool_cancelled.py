"""Pools that are cancelled at every await, and random schedules of assigns against a plain model."""

import asyncio
import functools
import itertools
import threading
from collections import deque
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.concurrency import WorkerPool
from penstock.errors import ClosedError
from tests.concurrency import workers
from tests.concurrency.loops import LOOPS, Steps, on_loop, on_loops, ready, run_on, settle
from tests.profiles import in_short

pytestmark = pytest.mark.each_value

ON_LOOPS = pytest.mark.parametrize("loop", LOOPS)

alive: list[object] = []  # workers between the beginning of their start and the end of their stop


class _Counted(workers.Async):
    """A worker that is in the list `alive` from its start to its stop."""

    async def start(self) -> None:
        await super().start()
        alive.append(self)

    async def stop(self) -> None:
        alive.remove(self)
        await super().stop()


async def short_run(place: Literal["task", "thread", "process"], num_jobs: int) -> list[Any]:
    """Use a pool with two workers, and await each of its calls."""
    results: list[Any] = []
    make = workers.Async if place == "process" else _Counted
    async with WorkerPool(make, 2, place=place, start_method="forkserver") as pool:
        futures = [await pool.assign(job) for job in range(num_jobs)]
        results += [await future for future in futures]
        await pool.assign(num_jobs)
    assert not alive
    return results


@ON_LOOPS
@pytest.mark.parametrize(
    ("place", "num_jobs", "turns"),
    [*(("task", 6, turns) for turns in range(3)), ("thread", 6, 0), ("thread", 6, 1), ("process", 2, 0)],
)
def test_cancelled_at_every_await(
    loop: str, place: Literal["task", "thread", "process"], num_jobs: int, turns: int
) -> None:
    """A run that is cancelled at its n-th await, or some turns later, stops every worker, and prints nothing."""

    async def was_reached(cancel_at: int) -> bool:
        steps = Steps(short_run(place, num_jobs), cancel_at, turns)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(_finish(steps))
            await asyncio.wait([running])
        assert running.cancelled() or steps.waits < cancel_at + max(turns, 1)
        return steps.waits >= cancel_at

    for cancel_at in itertools.count(1):
        reached = run_on(loop, functools.partial(was_reached, cancel_at))
        assert not alive
        if not reached:
            assert cancel_at > 3
            return


async def _finish(steps: Steps) -> None:
    await steps


@on_loops
async def test_cancelling_waits_for_plain_jobs_in_threads() -> None:
    """A plain method in a thread can't be cancelled: the scope waits for it, however often it is cancelled."""
    began, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def job() -> None:
        began.set()
        may_end.wait()
        ended.set()

    async def scope() -> None:
        async with WorkerPool(workers.Plain, 1, place="thread") as pool:
            await (await pool.assign(job))

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(scope())
        await asyncio.to_thread(began.wait)
        for _ in range(3):
            running.cancel()
            await settle()
        assert not running.done()
        may_end.set()
        await asyncio.wait([running])
        assert ended.is_set()
        assert running.cancelled()


@pytest.mark.parametrize("place", ["task", "thread"])
@on_loop
async def test_cancelling_cancels_async_jobs(place: Literal["task", "thread"]) -> None:
    """An async job gets a CancelledError where it waits, its worker is stopped, and its future is cancelled."""
    seen: list[str] = []
    futures: list[asyncio.Future[None]] = []
    began = threading.Event()

    class Waiting:
        def start(self) -> None:
            seen.append("start")

        async def run(self, job: int) -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                seen.append(f"cancelled {job}")

        def stop(self) -> None:
            seen.append("stop")

    async def scope() -> None:
        async with WorkerPool(Waiting, 1, place=place) as pool:
            futures.append(await pool.assign(7))
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(scope())
        await asyncio.to_thread(began.wait)
        running.cancel()
    assert futures[0].cancelled()
    assert seen == ["start", "cancelled 7", "stop"]


def test_every_task_is_cancelled_at_once() -> None:
    """If every task is cancelled at once, as at the end of `asyncio.run`, no caller waits for a worker any more."""

    async def main() -> None:
        async with WorkerPool(workers.Plain, 1, place="task") as pool:
            await (await pool.assign(1))
            for task in asyncio.all_tasks():
                task.cancel()
            await pool.assign(2)

    with pytest.raises(asyncio.CancelledError):
        run_on("asyncio", main)


async def expect_closed(pool: WorkerPool[..., Any]) -> None:
    """Check that `assign` raises a ClosedError."""
    with pytest.raises(ClosedError):
        await pool.assign(ready(2))


@on_loop
async def test_cancelled_workers_close_the_pool() -> None:
    """If other code cancels the pool's own tasks, `assign` raises a ClosedError and doesn't wait."""
    async with asyncio.TaskGroup() as tasks, WorkerPool(workers.Gated, 1) as pool:
        await settle()
        own = asyncio.all_tasks() - {asyncio.current_task()}
        await pool.assign(asyncio.get_running_loop().create_future())
        waiting = tasks.create_task(expect_closed(pool))
        await settle()
        for task in own:
            task.cancel()
        await asyncio.wait_for(waiting, 5)
        await expect_closed(pool)


@on_loop
async def test_a_job_that_was_not_begun_is_cancelled() -> None:
    """A scope that is cancelled just after a worker took a job cancels the job's future, too."""
    futures: list[asyncio.Future[Any]] = []

    async def scope() -> None:
        async with WorkerPool(workers.Plain, 1) as pool:
            await (await pool.assign(1))
            await settle()
            futures.append(await pool.assign(2))
            raise asyncio.CancelledError

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(scope())
    assert futures[0].cancelled()


@on_loop
async def test_cancelled_before_an_async_job_waits() -> None:
    """A job in a thread that is cancelled before its first await is cancelled at that await."""
    began, may_go, seen = threading.Event(), threading.Event(), list[str]()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cancelled")

    class Late(workers.Plain):
        def run(self, job: Any) -> Any:  # noqa: ARG002 - it doesn't wait for the job
            began.set()
            may_go.wait()
            return forever()

    async def scope() -> None:
        async with WorkerPool(Late, 1, place="thread") as pool:
            await pool.assign(1)
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(scope())
        await asyncio.to_thread(began.wait)
        running.cancel()
        await settle()
        may_go.set()
    assert seen == ["cancelled"]


class _Model:
    """A model of a pool whose calls end at once: the running, waiting and refused jobs."""

    def __init__(self, num_workers: int) -> None:
        self.free = num_workers
        self.waiting: deque[int] = deque()
        self.state: dict[int, str] = {}
        self.dead = False

    def assign(self, job: int) -> None:
        if self.dead:
            self.state[job] = "refused"
        elif self.free:
            self.free -= 1
            self.state[job] = "runs"
        else:
            self.waiting.append(job)
            self.state[job] = "waits"

    def finish(self, job: int, *, fails: bool) -> None:
        self.state[job] = "failed" if fails else "done"
        self.free += 1
        self.dead = self.dead or fails
        while self.waiting and (self.dead or self.free):
            self.assign(self.waiting.popleft())


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["assign", "assign", "finish", "finish", "fail", "cancel"]), st.integers(0, 100)),
    max_size=30,
)


class _Real:
    """The real pool, the tasks that call `assign`, and the outcome of each job."""

    def __init__(self, pool: WorkerPool[[asyncio.Future[int]], int], tasks: asyncio.TaskGroup) -> None:
        self.pool = pool
        self.tasks = tasks
        self.state: dict[int, str] = {}
        self.gates: list[asyncio.Future[int]] = []
        self.assigning: list[asyncio.Task[None]] = []
        self.errors: list[BaseException] = []

    async def assign(self, job: int) -> None:
        self.state[job] = "waits"
        try:
            result = await self.pool.assign(self.gates[job])
        except asyncio.CancelledError:
            self.state[job] = "cancelled"
            raise
        except KeyError as error:
            self.errors.append(error)
            self.state[job] = "refused"
            return
        self.state[job] = "runs"
        result.add_done_callback(lambda done: self.state.update({job: "failed" if done.exception() else "done"}))

    def act(self, model: _Model, action: str, choice: int) -> None:
        running = [job for job, state in model.state.items() if state == "runs"]
        if action == "assign":
            job = len(self.gates)
            self.gates.append(asyncio.get_running_loop().create_future())
            self.assigning.append(self.tasks.create_task(self.assign(job)))
            model.assign(job)
        elif action == "cancel" and model.waiting:
            job = model.waiting[choice % len(model.waiting)]
            model.waiting.remove(job)
            model.state[job] = "cancelled"
            self.assigning[job].cancel()
        elif action in ("finish", "fail") and running:
            job = running[choice % len(running)]
            model.finish(job, fails=action == "fail")
            if action == "fail":
                self.gates[job].set_exception(KeyError(job))
            else:
                self.gates[job].set_result(job)


@in_short(10)
@given(actions=ACTIONS, num_workers=st.integers(1, 3))
@on_loop
async def test_as_the_model(actions: list[tuple[str, int]], num_workers: int) -> None:
    """For any order of assigns, ends, failures and cancellations, each job is in the state of the model."""
    model, errors, left = _Model(num_workers), list[BaseException](), list[BaseException]()
    try:
        async with WorkerPool(workers.Gated, num_workers) as pool, asyncio.TaskGroup() as tasks:
            real = _Real(pool, tasks)
            errors = real.errors
            for action, choice in actions:
                real.act(model, action, choice)
                await settle()
                assert real.state == model.state, action
            for gate in real.gates:
                if not gate.done():
                    gate.set_result(0)
            await settle()
    except KeyError as error:
        left.append(error)
    assert bool(left) == model.dead
    assert all(error is left[0] for error in errors)
