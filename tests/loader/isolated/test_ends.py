"""However a program with an isolated loader ends, it prints what is its own, and leaves nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import penstock

CHECKOUT = str(Path(__file__).parents[3])
SOURCES = str(Path(penstock.__file__).parents[1])
PATIENCE_SECONDS = 60.0
pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="a helper's shared memory is Linux's")

PROGRAM = """
import os, signal, sys
import penstock as ps
from penstock.errors import ClosedError
from tests.loader.isolated import parts

def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    dataset = ps.range(1_000_000).map(parts.slow).batch(4)
    loader = ps.Loader(dataset, isolated=True, num_workers={workers}, workers="processes")
    batches = iter(loader)
    kept = [next(batches), next(batches)]
    print("ready", flush=True)
    {ends}

if __name__ == "__main__":
    main()
"""


def start(folder: Path, ends: str, workers: int = 0) -> "subprocess.Popen[str]":
    """Start a program that ends in some way after its first batches."""
    script = folder / "program.py"
    script.write_text(PROGRAM.format(ends=ends, workers=workers))
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
    """Whether the loader was closed, dropped or left as it is."""
    with start(tmp_path, ends) as program:
        output, errors = program.communicate(timeout=PATIENCE_SECONDS)
    assert (program.returncode, output, errors) == (0, "ready\n", "")


def test_ctrl_c_ends_a_program(tmp_path: Path) -> None:
    """SIGINT, to all processes of the terminal, is one KeyboardInterrupt in one traceback: the program's."""
    with start(tmp_path, "for batch in batches: pass", workers=1) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        os.killpg(program.pid, signal.SIGINT)
        _, errors = program.communicate(timeout=PATIENCE_SECONDS)
    assert errors.count("Traceback (most recent call last)") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert program.returncode in {-signal.SIGINT, 130}


def test_a_killed_program_takes_its_processes_along(tmp_path: Path) -> None:
    """The helper of a program that was killed ends by itself, and so do the helper's workers."""
    with start(tmp_path, "for batch in batches: pass", workers=1) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        children = psutil.Process(program.pid).children(recursive=True)
        assert len(children) >= 2
        program.kill()
        program.communicate(timeout=PATIENCE_SECONDS)
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
    assert alive == []


def test_a_fork_can_not_use_it(tmp_path: Path) -> None:
    """A fork of the program is told so, and its end does the parent's helper no harm."""
    ends = """
    child = os.fork()
    if child == 0:
        try:
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
