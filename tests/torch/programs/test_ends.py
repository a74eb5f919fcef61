"""The end of a program that uses our DataLoader: it prints only its own output, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

PATIENCE_SECONDS = 120.0
PROGRAM = """
import signal, sys
import torch
from penstock.torch import DataLoader

class Numbers:
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return torch.tensor(index)

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(1_000_000))

def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    loader = DataLoader({dataset}(), batch_size=4, num_workers=2, persistent_workers={persistent})
    batches = iter(loader)
    next(batches)
    print("ready", flush=True)
    {ends}

if __name__ == "__main__":
    main()
"""


def start(folder: Path, ends: str, dataset: str = "Numbers", persistent: str = "False") -> "subprocess.Popen[str]":
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


SHUT_DOWN = "del batches; loader._iterator._shutdown_workers(); assert not list(loader._iterator)"
ENDS = [
    pytest.param("sys.exit()", "Numbers", "True", id="exit"),
    pytest.param(SHUT_DOWN, "Numbers", "True", id="shut down", marks=pytest.mark.long),
    pytest.param("pass", "Numbers", "False", id="left", marks=pytest.mark.long),
    pytest.param("pass", "Stream", "True", id="stream", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("ends", "dataset", "persistent"), ENDS)
def test_a_program_ends_in_silence(tmp_path: Path, ends: str, dataset: str, persistent: str) -> None:
    """A loader may keep its workers, have ended them, or be left as it is."""
    with start(tmp_path, ends, dataset, persistent) as program:
        output, errors = program.communicate(timeout=PATIENCE_SECONDS)
    assert (program.returncode, output, errors) == (0, "ready\n", "")


@pytest.mark.parametrize("dataset", ["Numbers", pytest.param("Stream", marks=pytest.mark.long)])
def test_ctrl_c_ends_a_program(tmp_path: Path, dataset: str) -> None:
    """SIGINT, to all processes of the terminal, is one KeyboardInterrupt in one traceback, and nothing is left."""
    with start(tmp_path, "for batch in batches: pass", dataset) as program:
        children = _children_when_ready(program)
        os.killpg(program.pid, signal.SIGINT)
        _, errors = program.communicate(timeout=PATIENCE_SECONDS)
    assert errors.count("Traceback (most recent call last)") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert program.returncode in {-signal.SIGINT, 130}
    assert psutil.wait_procs(children, timeout=PATIENCE_SECONDS)[1] == []


@pytest.mark.long
def test_the_workers_of_a_killed_program_end(tmp_path: Path) -> None:
    """Workers end by themselves after the system has killed their program."""
    with start(tmp_path, "for batch in batches: pass") as program:
        children = _children_when_ready(program)
        program.kill()
        program.communicate(timeout=PATIENCE_SECONDS)
    assert psutil.wait_procs(children, timeout=PATIENCE_SECONDS)[1] == []


def _children_when_ready(program: "subprocess.Popen[str]") -> list[psutil.Process]:
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    children: list[psutil.Process] = psutil.Process(program.pid).children(recursive=True)
    assert len(children) >= 2
    return children
