"""Workers in processes: crashes, signals, objects that can't be pickled, and parents that end."""

import asyncio
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Literal

import psutil
import pytest

from penstock.concurrency import Worker, WorkerPool
from penstock.errors import UsageError, WorkerError
from tests.concurrency import workers
from tests.concurrency.loops import LOOPS, on_loop, on_loops, run_on
from tests.processes.helping import ends_promptly, watched
from tests.programs.forked import outcome, script_outcome, started
from tests.promptness import PATIENCE_SECONDS, is_prompt

pytestmark = [pytest.mark.each_value, pytest.mark.usefixtures("forked_programs")]

ON_LOOPS = pytest.mark.parametrize("loop", LOOPS)
SECONDS = 1.0  # in which a death must be reported


@pytest.mark.parametrize(
    ("job", "exit_code", "words"),
    [(workers.exit_now, 7, "ended with exit code 7"), (workers.kill_self, -9, "was killed by SIGKILL")],
)
@on_loops
async def test_dying_in_a_job(job: Callable[[], None], exit_code: int, words: str) -> None:
    """A process that ends or is killed in a job is a WorkerError with its exit code, for the future and the scope."""
    seen: list[BaseException | None] = []

    async def scope() -> None:
        async with WorkerPool(workers.Plain, 2, place="process") as pool:
            future = await pool.assign(job)
            await asyncio.wait([future])
            seen.append(future.exception())
            await pool.assign(1)

    with pytest.raises(WorkerError, match=words) as left:
        await scope()
    assert seen == [left.value]
    assert left.value.exit_code == exit_code
    assert re.fullmatch(r"In worker \d, job 0 of the pool", left.value.__notes__[0])


@pytest.mark.parametrize("busy", [False, True])
@on_loops
async def test_killed_from_outside(*, busy: bool) -> None:
    """SIGKILL from another process is reported within a second, to a running job and to a waiting caller."""

    async def while_idle() -> float:
        async with WorkerPool(workers.Plain, 1, place="process") as pool:
            pid = await (await pool.assign(os.getpid))
            os.kill(pid, signal.SIGKILL)
            killed_at = time.monotonic()
            # Nothing runs: the pool notices by itself, without a call.
            await asyncio.to_thread(wait_until_gone, pid)
            await expect_death(pool)
            return time.monotonic() - killed_at

    async def while_busy() -> float:
        async with WorkerPool(workers.Plain, 1, place="process") as pool, asyncio.TaskGroup() as tasks:
            pid = await (await pool.assign(os.getpid))
            job = await pool.assign(workers.wait_for_ever)
            waiting = tasks.create_task(expect_death(pool))
            await asyncio.sleep(0)
            os.kill(pid, signal.SIGKILL)
            killed_at = time.monotonic()
            await asyncio.wait([job, waiting])
            assert job.exception() is waiting.result()
            return time.monotonic() - killed_at

    began = time.monotonic()
    with pytest.raises(WorkerError, match="was killed by SIGKILL") as left:
        assert is_prompt(await (while_busy() if busy else while_idle()), SECONDS)
    assert left.value.exit_code == -signal.SIGKILL
    assert is_prompt(time.monotonic() - began, 20.0)


async def expect_death(pool: WorkerPool[..., Any]) -> BaseException:
    """Return the exception of `assign`, which must fail."""
    try:
        while True:
            await (await pool.assign(1))
    except WorkerError as error:
        return error


def wait_until_gone(pid: int) -> None:
    """Wait until a child of this process has ended, and leave its exit code to other callers."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


REAPED = """
import asyncio, os, signal
from penstock.concurrency import WorkerPool
from penstock.errors import WorkerError
from tests.concurrency import workers

async def main():
    async with WorkerPool(workers.Plain, 1, place="process") as pool:
        pid = await (await pool.assign(os.getpid))
        if doing == "busy":
            await pool.assign(workers.wait_for_ever)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while True:
            await (await pool.assign(1))
try:
    asyncio.run(main())
except WorkerError as error:
    print(error.exit_code)
"""


@pytest.mark.parametrize("doing", ["busy", "idle"])
def test_another_waitpid_takes_the_exit_code(doing: str) -> None:
    """A process whose exit code was taken by another `waitpid` is still reported as dead."""
    # In a program of its own, since Python keeps such a process among its children for ever.
    assert outcome(f"doing = {doing!r}\n{REAPED}") == (0, "None\n", "")


def test_a_death_is_noticed_beside_living_children() -> None:
    """A worker whose own child holds its pipe open is still reported as dead."""

    async def main() -> float:
        began: list[float] = []

        async def scope() -> None:
            async with WorkerPool(workers.Plain, 1, place="process") as pool:
                await (await pool.assign(1))
                began.append(time.monotonic())
                await (await pool.assign(workers.die_beside_a_child))

        with pytest.raises(WorkerError, match="SIGKILL"):
            await scope()
        return time.monotonic() - began[0]

    assert is_prompt(run_on("asyncio", main), SECONDS)


@on_loop
async def test_dying_in_the_start() -> None:
    """A process that ends before its worker has started is an error that says so, with a remedy."""
    with pytest.raises(WorkerError, match=r"exit code 7 before it had started.*__main__"):
        async with WorkerPool(workers.DiesAtStart, 2, place="process") as pool:
            await pool.assign(1)


@on_loops
async def test_cancelling_kills_plain_jobs() -> None:
    """Cancelling the scope ends a process in the middle of a job that can't be cancelled."""

    async def scope(running: asyncio.Future[int]) -> None:
        async with WorkerPool(workers.Plain, 1, place="process") as pool:
            running.set_result(await (await pool.assign(os.getpid)))
            await (await pool.assign(workers.wait_for_ever))

    running: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(scope(running))
        pid = await running
        await asyncio.sleep(0)
        task.cancel()
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize(
    ("job", "error", "words"),
    [
        (lambda: 1, UsageError, "a job must be picklable"),
        (workers.lambda_of_one, Exception, "results of workers in processes are pickled; got function"),
        (workers.stubborn, WorkerError, "StubbornError: stubborn 7"),
    ],
    ids=["job", "result", "exception"],
)
@on_loop
async def test_unpicklable_objects_are_errors(job: Callable[[], Any], error: type[Exception], words: str) -> None:
    """The error of a job, result or exception that can't be pickled describes it."""
    with pytest.raises(error, match=words):
        async with WorkerPool(workers.Plain, 1, place="process") as pool:
            await pool.assign(job)


@on_loop
async def test_exceptions_bring_their_traceback() -> None:
    """A user's exception arrives unchanged, with the traceback in its process as a note."""
    with pytest.raises(workers.OddError) as left:
        async with WorkerPool(workers.Plain, 1, place="process") as pool:
            await pool.assign(workers.odd)
    assert any(re.search(r"In process \d+:(?s:.)*in odd", note) for note in left.value.__notes__)


@on_loop
async def test_large_jobs_leave_the_loop_alone() -> None:
    """While megabytes are sent to a process and received from it, other tasks run."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    async with asyncio.TaskGroup() as tasks:
        counting = tasks.create_task(count())
        async with WorkerPool(Echo, 1, place="process") as pool:
            await (await pool.assign(b""))
            turns = 0
            assert len(await (await pool.assign(bytes(30_000_000)))) == 30_000_000
        counting.cancel()
    assert turns > 3


class Echo:
    """A worker that returns its jobs."""

    def start(self) -> None:
        """Do nothing."""

    def run(self, job: bytes) -> bytes:
        """Return the job."""
        return job

    def stop(self) -> None:
        """Do nothing."""


PARENT = """
import asyncio, os, sys
from penstock.concurrency import WorkerPool
from tests.concurrency import workers

START_METHOD, DOING, END = "{}", "{}", "{}"

async def main():
    async with WorkerPool(workers.Plain, 2, place="process", start_method=START_METHOD) as pool:
        first, second = await pool.assign(os.getpid), await pool.assign(os.getpid)
        print(await first, await second, flush=True)
        if DOING == "busy":
            await pool.assign(workers.wait_for_ever)
        if DOING == "forked" and os.fork() == 0:
            sys.stdin.read()  # until the test ends
            os._exit(0)
        if END == "waits":
            await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
@pytest.mark.parametrize("doing", ["busy", "idle", "forked"])
def test_nothing_outlives_a_killed_parent(start_method: Literal["spawn", "forkserver"], doing: str) -> None:
    """Workers of a killed parent end at once, in the middle of a job, even if a fork of the parent lives."""
    with started(PARENT.format(start_method, doing, "waits")) as parent, ExitStack() as stack:
        ends = [stack.enter_context(watched(int(pid))) for pid in set(parent.stdout.readline().split())]
        assert ends
        parent.kill()
        assert all(map(ends_promptly, ends))


def test_forkserver() -> None:
    """`start_method="forkserver"` has the same results, and the program prints nothing at its end."""
    run = outcome(PARENT.format("forkserver", "idle", "ends"))
    assert len(set(run.stdout.split())) >= 1
    assert (run.returncode, run.stderr) == (0, "")


def test_ctrl_c_ends_everything() -> None:
    """SIGINT to the whole group, as from a terminal, ends the program with one KeyboardInterrupt, the parent's."""
    with started(PARENT.format("spawn", "busy", "waits")) as parent:
        children = [psutil.Process(int(pid)) for pid in set(parent.stdout.readline().split())]
        os.killpg(parent.pid, signal.SIGINT)
        _, errors = parent.communicate(timeout=PATIENCE_SECONDS)
        assert errors.count("Traceback") <= 2, errors  # the interrupt, and the cancellation that it came as
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert parent.returncode == -signal.SIGINT
        assert not [child for child in children if child.is_running()]


def test_a_missing_main_guard_is_named(tmp_path: Any) -> None:
    """A script without `if __name__ == "__main__"` doesn't hang, and the error says that it is missing."""
    script = tmp_path / "unguarded.py"
    script.write_text(PARENT.format("spawn", "idle", "ends"))
    run = script_outcome(script)
    assert run.returncode == 1
    assert "__name__ == '__main__'" in run.stderr.splitlines()[-2] + run.stderr.splitlines()[-1]


def test_a_pool_in_another_thread() -> None:
    """A pool can be used in a loop of another thread than the main one."""

    async def main(make: Callable[[], Worker[..., Any]]) -> int:
        async with WorkerPool(make, 1, place="process") as pool:
            return int(await (await pool.assign(3)))

    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(asyncio.run(main(workers.Async))))
    thread.start()
    thread.join()
    assert results == [3]
