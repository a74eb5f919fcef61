"""Ctrl-C while the process of a worker is starting: real signals, at moments that the program prolongs."""

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes.helping import program, watched
from tests.programs.forked import Program
from tests.promptness import PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("forked_programs")

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


def test_ctrl_c_while_a_process_imports(tmp_path: Path) -> None:
    """SIGINT has no effect on a spawned process that still imports the program."""
    with started_in_steps(tmp_path, "spawn", "importing") as (running, arrived, release):
        os.kill(int(arrived.read_text()), signal.SIGINT)
        with release.open("r+b", buffering=0) as going_on:  # so that it doesn't block if the process has died
            going_on.write(b"go on\n")
            assert running.communicate(timeout=PATIENCE_SECONDS) == ("3\n", "")
        assert running.returncode == 0


def test_ctrl_c_between_import_and_worker(tmp_path: Path) -> None:
    """SIGINT has no effect on a process between its last import and the start of its worker."""
    with started_in_steps(tmp_path, "forkserver", "imported") as (running, _, _):
        assert running.communicate(timeout=PATIENCE_SECONDS) == ("3\n", "")
        assert running.returncode == 0


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_ctrl_c_ends_a_program_whose_processes_start(tmp_path: Path, start_method: str) -> None:
    """SIGINT to the group while a process imports ends all; only the parent prints a KeyboardInterrupt."""
    with (
        started_in_steps(tmp_path, start_method, "importing") as (running, arrived, _),
        watched(int(arrived.read_text())) as has_ended,
    ):
        os.killpg(running.pid, signal.SIGINT)
        _, errors = running.communicate(timeout=PATIENCE_SECONDS)
        assert errors.count("Traceback") <= 2, errors  # the interrupt, and the cancellation that it came as
        assert "spawn_main" not in errors
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert running.returncode == -signal.SIGINT
        assert has_ended(20)
