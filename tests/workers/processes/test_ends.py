"""A program with worker processes ends cleanly in every way: without extra output, and without processes left."""

import os
import signal
import subprocess
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import psutil
import pytest

from tests.processes.helping import program
from tests.promptness import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")

PROGRAM = """
import os, signal, sys
import penstock as ps
from penstock.errors import ClosedError
from tests.workers.processes import functions

def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    dataset = ps.range(100_000).map(functions.slow).batch(4)
    loader = ps.Loader(dataset, num_workers=2, workers="processes")
    batches = iter(loader)
    kept = [next(batches), next(batches)]
    print("ready", flush=True)
    {ends}

if __name__ == "__main__":
    main()
"""


HOLDING = """
import ctypes
import penstock as ps

def hold(number):
    with open("{holders}", "a") as file:
        file.write("holding\\n")
    ctypes.PyDLL(None).sleep(600)
    return number

if __name__ == "__main__":
    limits = ps.Limits(start_method="{method}")
    for batch in ps.Loader(ps.range(100).map(hold).batch(4), num_workers=2, workers="processes", limits=limits):
        pass
"""


def start(folder: Path, ends: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Start a program that ends in some way after its first batches."""
    return program(PROGRAM.format(ends=ends), folder)


@pytest.mark.parametrize("ends", ["pass", "sys.exit()", "del loader, batches", "loader.close()"])
def test_a_program_ends_in_silence(tmp_path: Path, ends: str) -> None:
    """The loader is closed, dropped, or still open."""
    with start(tmp_path, ends) as running:
        output, errors = running.communicate(timeout=PATIENCE_SECONDS)
    assert (running.returncode, output, errors) == (0, "ready\n", "")


def test_ctrl_c_ends_a_program(tmp_path: Path) -> None:
    """SIGINT to all processes of the terminal is one KeyboardInterrupt with one traceback, of the program."""
    with start(tmp_path, "for batch in batches: pass") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        os.killpg(running.pid, signal.SIGINT)
        _, errors = running.communicate(timeout=PATIENCE_SECONDS)
    assert errors.count("Traceback (most recent call last)") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert running.returncode in {-signal.SIGINT, 130}


def test_workers_end_with_a_killed_program(tmp_path: Path) -> None:
    """Workers whose parent was killed end by themselves."""
    with start(tmp_path, "for batch in batches: pass") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        children = psutil.Process(running.pid).children(recursive=True)
        assert len(children) >= 2
        running.kill()
        running.communicate(timeout=PATIENCE_SECONDS)
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
    assert alive == []


@pytest.mark.parametrize("method", ["forkserver", "spawn", "orphaned"])
def test_workers_that_hold_the_gil_end_with_a_killed_program(tmp_path: Path, method: str) -> None:
    """Also in a call into C that never releases the GIL, with every start method."""
    holders = tmp_path / "holders"
    os.mkfifo(holders)
    text = HOLDING.format(holders=str(holders), method=method.replace("orphaned", "forkserver"))
    with program(text, tmp_path) as running:
        children: list[psutil.Process] = []
        try:
            with open(os.open(holders, os.O_RDWR), encoding="ascii") as holding:  # which never ends
                assert [holding.readline(), holding.readline()] == ["holding\n"] * 2
            children = psutil.Process(running.pid).children(recursive=True)
            if method == "orphaned":
                (server,) = [each for each in children if each.name() == "penstock-forks"]
                server.kill()
            running.kill()
            _, alive = psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
            assert alive == []
        finally:
            for process in [running, *children]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()


def test_a_fork_can_not_use_them(tmp_path: Path) -> None:
    """A fork of the program gets an error, and its end doesn't affect the parent's processes."""
    ends = """
    child = os.fork()
    if child == 0:
        try:
            for _ in range(100):  # some are at hand already
                next(batches)
        except ClosedError:
            loader.close()
            sys.exit(7)
        sys.exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), next(batches).tolist())
    """
    with start(tmp_path, ends.strip()) as running:
        output, errors = running.communicate(timeout=PATIENCE_SECONDS)
    assert (running.returncode, output, errors) == (0, "ready\n7 [8, 9, 10, 11]\n", "")
