"""`examples/jax_lm.py`: it learns, and resumes from its checkpoint, also on other processes."""

import argparse
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.extensions import load

pytest.importorskip("jax")
pytest.importorskip("orbax.checkpoint")

SCRIPT = Path(__file__).parents[2] / "examples" / "jax_lm.py"
SOAK = pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE") != "soak", reason="it takes a minute")
PATIENCE_SECONDS = 300.0


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """Return the script, imported."""
    return load(SCRIPT)


def losses(printed: str) -> dict[int, float]:
    """Return the loss of each step that was printed."""
    lines = [line.split() for line in printed.splitlines() if line.startswith("step ")]
    return {int(words[1].rstrip(":")): float(words[2]) for words in lines}


def test_it_resumes_where_it_stopped(script: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """After a stop it starts at the last checkpoint, with the same losses."""
    for steps in (7, 9):
        script.train(argparse.Namespace(steps=steps, modules=3, checkpoint=tmp_path / "lm"))
    printed = capfd.readouterr().out
    first, second = losses(printed.rpartition("step 5:")[0]), losses("step 5:" + printed.rpartition("step 5:")[2])
    assert list(first) == list(range(7))
    assert list(second) == [5, 6, 7, 8]
    assert [second[5], second[6]] == pytest.approx([first[5], first[6]], rel=1e-4)
    assert second[8] < first[0] - 1


def start(folder: Path, process: int, processes: int, port: int) -> "subprocess.Popen[str]":
    """Start one process of a job of twelve steps."""
    words = ["--checkpoint", folder, "--modules", 3, "--steps", 12, "--coordinator", f"127.0.0.1:{port}"]
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *map(str, [*words, "--processes", processes, "--process", process])],
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


@pytest.mark.longer
@SOAK
def test_killed_on_two_processes_it_resumes_on_one(tmp_path: Path) -> None:
    """Killed by SIGKILL between two checkpoints, it has the losses of an uninterrupted run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = [start(tmp_path / "killed", process, 2, port) for process in range(2)]
    try:
        assert job[0].stdout is not None
        seen = ""
        for line in job[0].stdout:
            seen += line
            if line.startswith("step 9:"):
                break
    finally:
        for process in job:
            process.send_signal(signal.SIGKILL)
            process.communicate()
    straight = losses(start(tmp_path / "straight", 0, 1, port).communicate(timeout=PATIENCE_SECONDS)[0])
    after = losses(start(tmp_path / "killed", 0, 1, port).communicate(timeout=PATIENCE_SECONDS)[0])
    assert list(straight) == list(range(12))
    assert min(after) in (5, 10)  # the second checkpoint may have been in progress
    for step, loss in {**losses(seen), **after}.items():
        assert loss == pytest.approx(straight[step], rel=1e-4)
