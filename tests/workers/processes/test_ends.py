"""Workers that hold the GIL end with a program that was killed; `loader/test_programs.py` has the other ends."""

import os
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.processes.helping import program
from tests.promptness import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's"),
    pytest.mark.usefixtures("forked_programs"),
]


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
                # A worker has the server's name, too, until it has begun.
                servers = [each for each in children if each.name() == "penstock-forks"]
                (server,) = [each for each in servers if each.ppid() == running.pid]
                server.kill()
            running.kill()
            _, alive = psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
            assert alive == []
        finally:
            for process in [running, *children]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
