"""A program with worker processes ends cleanly in every way: without extra output, and without processes left."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import penstock

CHECKOUT = str(Path(__file__).parents[3])
SOURCES = str(Path(penstock.__file__).parents[1])
PATIENCE_SECONDS = 40.0
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


def start(folder: Path, ends: str) -> "subprocess.Popen[str]":
    """Start a program that ends in some way after its first batches."""
    script = folder / "program.py"
    script.write_text(PROGRAM.format(ends=ends))
    environment = {**os.environ, "PYTHONPATH": f"{SOURCES}{os.pathsep}{CHECKOUT}", "PYTHONFAULTHANDLER": ""}
    return subprocess.Popen(
        [sys.executable, str(script)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("ends", ["pass", "sys.exit()", "del loader, batches", "loader.close()"])
def test_a_program_ends_in_silence(tmp_path: Path, ends: str) -> None:
    """The loader is closed, dropped, or still open."""
    with start(tmp_path, ends) as program:
        output, errors = program.communicate(timeout=PATIENCE_SECONDS)
    assert (program.returncode, output, errors) == (0, "ready\n", "")


def test_ctrl_c_ends_a_program(tmp_path: Path) -> None:
    """SIGINT to all processes of the terminal is one KeyboardInterrupt with one traceback, of the program."""
    with start(tmp_path, "for batch in batches: pass") as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        os.killpg(program.pid, signal.SIGINT)
        _, errors = program.communicate(timeout=PATIENCE_SECONDS)
    assert errors.count("Traceback (most recent call last)") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert program.returncode in {-signal.SIGINT, 130}


def test_workers_end_with_a_killed_program(tmp_path: Path) -> None:
    """Workers whose parent was killed end by themselves."""
    with start(tmp_path, "for batch in batches: pass") as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        children = psutil.Process(program.pid).children(recursive=True)
        assert len(children) >= 2
        program.kill()
        program.communicate(timeout=PATIENCE_SECONDS)
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
    assert alive == []


@pytest.mark.parametrize("method", ["forkserver", "spawn", "orphaned"])
def test_workers_that_hold_the_gil_end_with_a_killed_program(tmp_path: Path, method: str) -> None:
    """Also in a call into C that never releases the GIL, with every start method."""
    holders = tmp_path / "holders"
    os.mkfifo(holders)
    (tmp_path / "program.py").write_text(
        HOLDING.format(holders=str(holders), method=method.replace("orphaned", "forkserver"))
    )
    environment = {**os.environ, "PYTHONPATH": f"{SOURCES}{os.pathsep}{CHECKOUT}"}
    with subprocess.Popen([sys.executable, str(tmp_path / "program.py")], env=environment) as program:
        children: list[psutil.Process] = []
        try:
            with open(os.open(holders, os.O_RDWR), encoding="ascii") as holding:  # which never ends
                assert [holding.readline(), holding.readline()] == ["holding\n"] * 2
            children = psutil.Process(program.pid).children(recursive=True)
            if method == "orphaned":
                (server,) = [each for each in children if each.name() == "penstock-forks"]
                server.kill()
            program.kill()
            _, alive = psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
            assert alive == []
        finally:
            for process in [program, *children]:
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
    with start(tmp_path, ends.strip()) as program:
        output, errors = program.communicate(timeout=PATIENCE_SECONDS)
    assert (program.returncode, output, errors) == (0, "ready\n7 [8, 9, 10, 11]\n", "")
