"""Workers in processes: crashes, signals, objects that can't be pickled, and parents that end."""

import asyncio
import functools
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.concurrency import WorkerPool
from penstock.errors import UsageError, WorkerError
from tests.concurrency import workers
from tests.concurrency.loops import on_loop, on_loops, run_on
from tests.processes.helping import ends_promptly, program, watched
from tests.programs.forked import Program, outcome, started
from tests.promptness import PATIENCE_SECONDS, is_prompt

pytestmark = [pytest.mark.each_value, pytest.mark.usefixtures("forked_programs")]

SECONDS = 1.0  # in which a death must be reported


def pool_of(make: Any, num_workers: int = 1) -> WorkerPool[..., Any]:
    """Return a pool whose processes start in no time."""
    return WorkerPool(make, num_workers, place="process", start_method="forkserver")


@pytest.mark.parametrize(
    ("job", "exit_code", "words"),
    [(workers.exit_now, 7, "ended with exit code 7"), (workers.kill_self, -9, "was killed by SIGKILL")],
)
@on_loops
async def test_dying_in_a_job(job: Callable[[], None], exit_code: int, words: str) -> None:
    """A process that ends or is killed in a job is a WorkerError with its exit code, for the future and the scope."""
    seen: list[BaseException | None] = []

    async def scope() -> None:
        async with pool_of(workers.Plain, 2) as pool:
            future = await pool.assign(job)
            await asyncio.wait([future])
            seen.append(future.exception())
            await pool.assign(1)

    with pytest.raises(WorkerError, match=words) as left:
        await scope()
    assert seen == [left.value]
    assert left.value.exit_code == exit_code
    assert re.fullmatch(r"In worker \d, job 0 of the pool", left.value.__notes__[0])


async def expect_death(pool: WorkerPool[..., Any]) -> BaseException:
    """Return the exception of `assign`, which must fail."""
    try:
        while True:
            await (await pool.assign(1))
    except WorkerError as error:
        return error


@pytest.mark.parametrize("busy", [False, True])
@on_loops
async def test_killed_from_outside(*, busy: bool) -> None:
    """SIGKILL from another process is reported within a second, to a running job and to a waiting caller."""
    took: list[float] = []

    async def scope() -> None:
        async with pool_of(workers.Plain) as pool, asyncio.TaskGroup() as tasks:
            pid = await (await pool.assign(os.getpid))
            job = await pool.assign(workers.wait_for_ever) if busy else None
            with watched(pid) as has_ended:
                waiting = tasks.create_task(expect_death(pool)) if busy else None
                await asyncio.sleep(0)
                os.kill(pid, signal.SIGKILL)
                killed_at = time.monotonic()
                if job is None or waiting is None:  # nothing runs: the pool notices by itself, without a call
                    await asyncio.to_thread(has_ended, PATIENCE_SECONDS)
                    await expect_death(pool)
                else:
                    await asyncio.wait([job, waiting])
                    assert job.exception() is waiting.result()
                took.append(time.monotonic() - killed_at)

    with pytest.raises(WorkerError, match="was killed by SIGKILL") as left:
        await scope()
    assert left.value.exit_code == -signal.SIGKILL
    assert is_prompt(took[0], SECONDS)


# Python keeps such a process among its children for ever.
REAPED = """
import asyncio, os, signal
from penstock.concurrency import WorkerPool
from penstock.errors import WorkerError
from tests.concurrency import workers

async def main(is_busy):
    async with WorkerPool(workers.Plain, 1, place="process") as pool:
        pid = await (await pool.assign(os.getpid))
        if is_busy:
            await pool.assign(workers.wait_for_ever)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while True:
            await (await pool.assign(1))
for is_busy in (False, True):
    try:
        asyncio.run(main(is_busy))
    except WorkerError as error:
        print(error.exit_code)
"""


def test_another_waitpid_takes_the_exit_code() -> None:
    """A process whose exit code was taken by another `waitpid` is still reported as dead, idle or busy."""
    assert outcome(REAPED) == (0, "None\nNone\n", "")


def test_a_death_is_noticed_beside_living_children() -> None:
    """A worker whose own child holds its pipe open is still reported as dead."""

    async def main() -> float:
        began: list[float] = []

        async def scope() -> None:
            async with pool_of(workers.Plain) as pool:
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
        async with pool_of(functools.partial(workers.Fails, "start", workers.exit_now), 2) as pool:
            await pool.assign(1)


@on_loops
async def test_cancelling_kills_plain_jobs() -> None:
    """Cancelling the scope ends a process in the middle of a job that can't be cancelled."""

    async def scope(running: asyncio.Future[int]) -> None:
        async with pool_of(workers.Plain) as pool:
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
    ("job", "error", "words", "note"),
    [
        (lambda: 1, UsageError, "a job must be picklable", "In worker 0, job 0"),
        (workers.lambda_of_one, Exception, "results of workers in processes are pickled; got function", ""),
        (workers.stubborn, WorkerError, "StubbornError: stubborn 7", ""),
        (workers.odd, workers.OddError, "odd", r"In process \d+:(?s:.)*in odd"),
    ],
    ids=["job", "result", "exception", "picklable"],
)
@on_loop
async def test_errors_come_from_processes(
    job: Callable[[], Any], error: type[Exception], words: str, note: str
) -> None:
    """A user's exception arrives with its traceback as a note; one for what can't be pickled describes that."""
    with pytest.raises(error, match=words) as left:
        async with pool_of(workers.Plain) as pool:
            await pool.assign(job)
    assert any(re.search(note, each) for each in left.value.__notes__)


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
        async with pool_of(workers.Plain) as pool:
            await (await pool.assign(1))
            turns = 0
            assert len(await (await pool.assign(bytes(30_000_000).upper))) == 30_000_000
        counting.cancel()
    assert turns > 3


PARENT = """
import asyncio, os, sys
from penstock.concurrency import WorkerPool
from tests.concurrency import workers

async def main():
    async with WorkerPool(workers.Plain, {}, place="process") as pool:
        pids = [await pool.assign(os.getpid) for _ in range(2)]
        print(*[await pid for pid in pids], flush=True)
        await pool.assign(workers.wait_for_ever)
        if os.fork() == 0:
            sys.stdin.read()  # until the test ends
            os._exit(0)
        await asyncio.Event().wait()
asyncio.run(main())
"""


def test_nothing_outlives_a_killed_parent() -> None:
    """Workers of a killed parent end at once, idle or in the middle of a job, even if a fork of the parent lives."""
    with started(PARENT.format(2)) as parent, ExitStack() as stack:
        ends = [stack.enter_context(watched(int(pid))) for pid in set(parent.stdout.readline().split())]
        assert ends
        parent.kill()
        assert all(map(ends_promptly, ends))


def test_ctrl_c_ends_everything() -> None:
    """SIGINT to the whole group, as from a terminal, ends the program with one KeyboardInterrupt, the parent's."""
    with started(PARENT.format(1)) as parent:
        children = [psutil.Process(int(pid)) for pid in set(parent.stdout.readline().split())]
        os.killpg(parent.pid, signal.SIGINT)
        _, errors = parent.communicate(timeout=PATIENCE_SECONDS)
        assert errors.count("Traceback") <= 2, errors  # the interrupt, and the cancellation that it came as
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert parent.returncode == -signal.SIGINT
        assert not [child for child in children if child.is_running()]


def test_a_pool_in_another_thread() -> None:
    """A pool can be used in a loop of another thread than the main one."""

    async def main() -> int:
        async with pool_of(workers.Async) as pool:
            return int(await (await pool.assign(3)))

    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(asyncio.run(main())))
    thread.start()
    thread.join()
    assert results == [3]


STARTING = """
import asyncio, multiprocessing.util, os, signal, sys
from penstock.concurrency import WorkerPool
from tests.concurrency import workers

async def main():
    async with WorkerPool(workers.Plain, 1, place="process", start_method=sys.argv[1]) as pool:
        print(await (await pool.assign(3)))

def interrupt(_):
    signal.raise_signal(signal.SIGINT)

if __name__ == "__main__":
    asyncio.run(main())
elif sys.argv[2] == "importing":
    with open(sys.argv[3], "w") as arrived:
        arrived.write(str(os.getpid()))
    with open(sys.argv[4]) as release:
        release.readline()
else:  # Python itself calls it, after it has unpickled the work of the process, and before that runs
    multiprocessing.util.register_after_fork(multiprocessing, interrupt)
"""


@contextmanager
def started_in_steps(tmp_path: Path, start_method: str, moment: str) -> Generator[tuple[Program, Path, Path]]:
    """Have STARTING run in a process group of its own, and the two pipes that delay its child's import."""
    arrived, release = tmp_path / "arrived", tmp_path / "release"
    os.mkfifo(arrived)
    os.mkfifo(release)
    with program(STARTING, tmp_path, start_method, moment, str(arrived), str(release)) as running:
        yield running, arrived, release


@pytest.mark.parametrize(("start_method", "moment"), [("spawn", "importing"), ("forkserver", "imported")])
def test_ctrl_c_has_no_effect_on_a_process_that_starts(tmp_path: Path, start_method: str, moment: str) -> None:
    """SIGINT while the process imports the program, or between its last import and the start of its worker.

    The program prints nothing else at its end, also if it has a fork server.
    """
    with started_in_steps(tmp_path, start_method, moment) as (running, arrived, release):
        if moment == "importing":
            os.kill(int(arrived.read_text()), signal.SIGINT)
            with release.open("r+b", buffering=0) as going_on:  # so that it doesn't block if the process has died
                going_on.write(b"go on\n")
                assert running.communicate(timeout=PATIENCE_SECONDS) == ("3\n", "")
        else:
            assert running.communicate(timeout=PATIENCE_SECONDS) == ("3\n", "")
        assert running.returncode == 0
