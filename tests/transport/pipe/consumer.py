"""The consumer of a long stream, which looks at each element; a process that runs it imports no test."""

import gc
import itertools
import os
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from penstock.transport import TensorPipeReader, TensorPipeWriter

SIZES = (16, 1_000_000, 100_000, 300, 100_000, 16, 1_000_000, 20_000, 100_000)  # bytes: inline ones among large ones
KEPT = (0, 0, 3, 0, 1, 0, 5, 0, 2)  # for so many later elements each of these is kept
LOOK = "look"  # a request to drop all kept elements, and to report what is taken
Taken = dict[str, int]


def taken() -> Taken:
    """Return the memory, descriptors and threads that this process takes, without its garbage."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    descriptors = len(os.listdir("/proc/self/fd"))
    return {"bytes": pages * os.sysconf("SC_PAGESIZE"), "descriptors": descriptors, "threads": threading.active_count()}


def array_of(step: int) -> Any:
    """Return the array of one element."""
    return np.full(SIZES[step % len(SIZES)], step % 251, np.uint8)


def is_array(received: Any, step: int) -> bool:
    """Return whether an object is the whole array of a step."""
    array = received["x"]
    return received["step"] == step and array.shape == (SIZES[step % len(SIZES)],) and bool((array == step % 251).all())


def consume(address: str, answers: str) -> None:
    """Announce that it listens; receive to the end, whole and in order; keep some for a while; report resources."""
    warnings.filterwarnings("ignore", ".*received elements are still referenced")
    kept: list[tuple[int, int, Any]] = []  # until which step, its own step, the element
    steps = itertools.count()
    with TensorPipeReader(address) as reader, TensorPipeWriter(answers) as writer:
        writer.send("listening")
        for received in reader:
            if isinstance(received, str):
                if not all(is_array(element, own) for _, own, element in kept):
                    raise AssertionError("an element has changed")
                kept.clear()
                writer.send(taken())
                continue
            step = next(steps)
            kept.append((step + KEPT[step % len(KEPT)], step, received))
            del received
            dropped = [each for each in kept if each[0] <= step]
            kept = [each for each in kept if each[0] > step]
            if not all(is_array(element, own) for _, own, element in [*dropped, *kept[-1:]]):
                raise AssertionError(f"an element has changed, or is not element {step}")
            dropped.clear()
