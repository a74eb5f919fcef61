"""The start and the end of a program that uses our DataLoader: it prints only its own output, and leaves nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

PATIENCE_SECONDS = 120.0
# A worker process of Penstock's shows whether it has torch, torch's operators, and callbacks for those at its end.
PROGRAM = """
import signal, sys, weakref
import penstock as ps

def found(number):
    finalizers = [each for each in weakref.finalize._registry if each.peek()[1].__name__ == "_del_library"]
    return "torch" in sys.modules, len(finalizers) > 10, sum(each.atexit for each in finalizers)

def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from penstock.torch import DataLoader
    for num_workers in (0, 1):
        DataLoader(range(4), num_workers=num_workers)
        with ps.Loader(ps.range(4).map(found).batch(4), num_workers=1, workers="processes") as loader:
            print(*[column.tolist() for batch in loader for column in batch])

    from torch.utils.data import IterableDataset

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(1_000_000))

    loader = DataLoader({dataset}, batch_size=4, num_workers=2, persistent_workers={persistent})
    batches = iter(loader)
    next(batches)
    print("ready", flush=True)
    {ends}

if __name__ == "__main__":
    main()
"""
# To make a loader with workers has their server import torch, so that the program's own set-up hides the import. A
# worker that needs no torch doesn't take its operators back at its end, as the program does.
OUTPUT = [f"{[known] * 4} {[known] * 4} {[0] * 4}\n" for known in (False, True)] + ["ready\n"]
ROWS, STREAM = "range(1_000_000)", "Stream()"


def start(folder: Path, ends: str, dataset: str = ROWS, persistent: str = "False") -> "subprocess.Popen[str]":
    """Start a program that ends in some way after its first batch."""
    script = folder / "program.py"
    script.write_text(PROGRAM.format(ends=ends, dataset=dataset, persistent=persistent))
    return subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONFAULTHANDLER": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def children_when_ready(program: "subprocess.Popen[str]") -> list[psutil.Process]:
    """Wait for a program's first batch, and return its processes."""
    assert program.stdout is not None
    assert [program.stdout.readline() for _ in OUTPUT] == OUTPUT
    children: list[psutil.Process] = psutil.Process(program.pid).children(recursive=True)
    assert len(children) >= 2
    return children


@pytest.mark.parametrize("dataset", [ROWS, pytest.param(STREAM, marks=pytest.mark.long)])
def test_ctrl_c_ends_a_program(tmp_path: Path, dataset: str) -> None:
    """SIGINT, to all processes of the terminal, is one KeyboardInterrupt in one traceback, and nothing is left."""
    with start(tmp_path, "for batch in batches: pass", dataset) as program:
        children = children_when_ready(program)
        os.killpg(program.pid, signal.SIGINT)
        _, errors = program.communicate(timeout=PATIENCE_SECONDS)
    assert errors.count("Traceback (most recent call last)") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert program.returncode in {-signal.SIGINT, 130}
    assert psutil.wait_procs(children, timeout=PATIENCE_SECONDS)[1] == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("ends", "dataset", "persistent"),
    [
        pytest.param("sys.exit()", ROWS, "True", id="exit"),
        pytest.param("del batches; loader._iterator._shutdown_workers()", ROWS, "True", id="shut down"),
        pytest.param("pass", ROWS, "False", id="left"),
        pytest.param("pass", STREAM, "True", id="stream"),
    ],
)
def test_a_program_ends_in_silence(tmp_path: Path, ends: str, dataset: str, persistent: str) -> None:
    """A loader may keep its workers, as that of `test_training.py` does, have ended them, or be left as it is."""
    with start(tmp_path, ends, dataset, persistent) as program:
        output, errors = program.communicate(timeout=PATIENCE_SECONDS)
    assert (program.returncode, output, errors) == (0, "".join(OUTPUT), "")


@pytest.mark.long
def test_the_workers_of_a_killed_program_end(tmp_path: Path) -> None:
    """Workers end by themselves after the system has killed their program."""
    with start(tmp_path, "for batch in batches: pass") as program:
        children = children_when_ready(program)
        program.kill()
        program.communicate(timeout=PATIENCE_SECONDS)
    assert psutil.wait_procs(children, timeout=PATIENCE_SECONDS)[1] == []
