"""The functions that run in the processes of these tests."""

import os
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.processes.beginning import begin

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

IMPORTED_BY = os.getpid()
ROUNDS, BLOCKS, BLOCK_BYTES = 20, 6, 1 << 20
VARIABLES = ("OMP_NUM_THREADS", "OPENCV_FOR_THREADS_NUM", "PENSTOCK_TEST", "PYTORCH_NVML_BASED_CUDA_CHECK")


def report(pipe: "Connection[Any, Any]", *_: object) -> None:
    """Send a description of this process, and end when the parent sends a message."""
    begin()
    pipe.send(
        {
            "pid": os.getpid(),
            "imported_by": IMPORTED_BY,
            "path": sys.path,
            "folder": os.getcwd(),
            "environment": {name: os.environ.get(name) for name in VARIABLES},
            "threads": threading.active_count(),
        }
    )
    pipe.poll(None)


def end_by(pipe: "Connection[Any, Any]", how: str) -> None:
    """End in one of several ways."""
    begin()
    if how == "raise":
        raise SystemExit(5)
    if how == "exit":
        os._exit(6)
    if how == "signal":
        os.kill(os.getpid(), signal.SIGTERM)
    pipe.close()


def say(pipe: "Connection[Any, Any]", text: str) -> None:
    """Print a text."""
    begin()
    sys.stdout.write(text)
    sys.stdout.flush()
    pipe.send(None)


def list_descriptors(pipe: "Connection[Any, Any]", given: object) -> None:
    """Send what the descriptors of this process are."""
    begin()
    folder = Path("/proc/self/fd")
    pipe.send([os.readlink(folder / entry) for entry in os.listdir(folder) if (folder / entry).exists()])
    del given


def count_faults(pipe: "Connection[Any, Any]") -> None:
    """Send how many pages this process is given while blocks of the size of images come and go."""
    begin()
    counts: list[int] = []
    for _ in range(2):
        for number in range(ROUNDS):
            blocks = [np.full(BLOCK_BYTES, number, np.uint8) for _ in range(BLOCKS)]
            del blocks
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    pipe.send(counts[1] - counts[0])
