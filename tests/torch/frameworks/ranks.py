"""Runs a program as the two ranks of a job, and reads what each of them wrote down."""

import faulthandler
import json
import os
from pathlib import Path
from typing import Any

from tests.programs.together import free_port, run_together

CHECKOUT = Path(__file__).parents[3]
PATIENCE_SECONDS = 500.0
RANKS = 2

Report = dict[str, Any]
"""The file of a rank: the elements that each run saw."""


def run_ranks(framework: str, folder: Path) -> list[Report]:
    """Run the job of a framework as two processes that talk by gloo, and return the report of each.

    Each gets its place from the variables that `torchrun` sets, and writes to FOLDER/RANK.json.
    """
    faulthandler.cancel_dump_traceback_later()  # frameworks alone take long to import; the patience here is its own
    shared = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "CUDA_VISIBLE_DEVICES": "",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(RANKS),
        "LOCAL_WORLD_SIZE": str(RANKS),
        "OMP_NUM_THREADS": "1",
    }
    job = ["-m", "tests.torch.frameworks.job", framework, str(folder)]
    ranks = [(job, {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(RANKS)]
    run_together(ranks, PATIENCE_SECONDS, folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def indices(seen: list[Any]) -> list[int]:
    """Return the indices of all rows that were seen, in order."""
    return [index for batch in seen for index in batch["index"]]


def counted(reports: list[Report], run: str, part: str, epoch: int) -> list[int]:
    """Return the indices that all ranks saw in an epoch of some run, in ascending order."""
    return sorted(indices([batch for rank in reports for batch in rank[run][part] if batch["epoch"] == epoch]))
