"""Runs a program as the two ranks of a job, and reads what each of them wrote down."""

import faulthandler
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[3]
PATIENCE_SECONDS = 500.0
RANKS = 2

Told = dict[str, Any]
"""What a rank wrote: of each run, what it saw."""


def run_ranks(framework: str, folder: Path) -> list[Told]:
    """Run the job of a framework as two processes that talk by gloo, and return what each has told.

    Each is told its place by the variables that `torchrun` sets, and writes to FOLDER/RANK.json.
    """
    faulthandler.cancel_dump_traceback_later()  # frameworks alone take long to import; the patience here is its own
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "CUDA_VISIBLE_DEVICES": "",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(RANKS),
        "LOCAL_WORLD_SIZE": str(RANKS),
        "OMP_NUM_THREADS": "1",
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.torch.frameworks.job", framework, str(folder)],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        printed = [process.communicate(timeout=PATIENCE_SECONDS)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [process.returncode for process in started] == [0] * RANKS, "\n".join(printed)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def indices(seen: list[Any]) -> list[int]:
    """Return the indices of all rows of what was seen, in order."""
    return [index for batch in seen for index in batch["index"]]


def counted(told: list[Told], run: str, part: str, epoch: int) -> list[int]:
    """Return the indices that all ranks saw in an epoch of some run, in ascending order."""
    return sorted(indices([batch for rank in told for batch in rank[run][part] if batch["epoch"] == epoch]))
