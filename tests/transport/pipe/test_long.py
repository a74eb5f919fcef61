"""A long stream of elements of all sizes: neither process takes more and more of anything.

100,000 elements in the long profile.
"""

import gc
import itertools
import os
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from penstock.errors import EndOfPipeError
from penstock.transport import ArenaCounters, TensorPipeReader, TensorPipeWriter
from tests.promptness import PATIENCE_SECONDS
from tests.transport.pipe.children import free_path, running, sanitized

MESSAGES = max(1_500, settings().max_examples * 50)  # 100,000 in the long profile
CAPACITY = 2
SIZES = (16, 1_000_000, 100_000, 300, 100_000, 16, 1_000_000, 20_000, 100_000)  # bytes: inline ones among large ones
KEPT = (0, 0, 3, 0, 1, 0, 5, 0, 2)  # for so many later elements each of these is kept
SHARED_EVERY = 4  # elements: one in so many is an element of `empty`
ALLOWED_BYTES = 4 << 20  # what a process may take more by chance
MAX_HELD = sum(keep > 0 for keep in KEPT) + CAPACITY + 2  # kept; on their way; being written, and being looked at
MOST_SLOTS = MAX_HELD * len(set(SIZES))  # each size may have been held so often
MAX_BYTES = MAX_HELD * 2 * sum(set(SIZES))  # slots are somewhat larger than their contents


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


def send(writer: TensorPipeWriter, step: int) -> None:
    """Send one element: its array is copied, or, now and then, is one of `empty`."""
    array = array_of(step)
    if step % SHARED_EVERY == 0:
        memory: Any = writer.empty(array, timeout_seconds=PATIENCE_SECONDS)
        memory[...] = array
        array = memory
        del memory
    writer.send({"x": array, "step": step}, timeout_seconds=PATIENCE_SECONDS)


def is_flat(first: Taken, last: Taken, *, shared_bytes: int, regions: int) -> bool:
    """Return whether a process takes no more than before, but for shared memory that came, with a descriptor a region.

    A sanitizer keeps memory that was freed; under it, memory isn't looked at.
    """
    grown = {name: last[name] - first[name] for name in last}
    is_small = sanitized() or grown["bytes"] <= shared_bytes + ALLOWED_BYTES
    return is_small and grown["descriptors"] <= regions and grown["threads"] == 0


def test_a_long_stream_takes_no_more_than_its_beginning(tmp_path: Path) -> None:
    """From a tenth of it on, both processes take the same memory and descriptors; the arena has what is held at once.

    Whenever the consumer has dropped everything, what was leased was returned.
    """
    address = free_path(tmp_path)
    looks: list[tuple[Taken, Taken, ArenaCounters]] = []
    with TensorPipeReader() as answers, running("forkserver", consume, address, answers.address):
        assert answers.receive(timeout_seconds=PATIENCE_SECONDS) == "listening"
        with TensorPipeWriter(address, capacity=CAPACITY) as writer:
            for step in range(MESSAGES):
                send(writer, step)
                if (step + 1) % (MESSAGES // 10) == 0:
                    writer.send(LOOK)
                    there: Any = answers.receive(timeout_seconds=PATIENCE_SECONDS)
                    looks.append((taken(), there, writer.arena.counters))
        with pytest.raises(EndOfPipeError):  # it has read all, dropped all and found nothing wrong
            answers.receive(timeout_seconds=PATIENCE_SECONDS)
    assert all(memory.leased == memory.returned for _, _, memory in looks), looks
    assert all(memory.slots <= MOST_SLOTS and memory.bytes <= MAX_BYTES for _, _, memory in looks), looks
    (here, there, memory), *later = looks
    for now_here, now_there, now in later:
        came = {"shared_bytes": now.bytes - memory.bytes, "regions": now.regions - memory.regions}
        assert is_flat(here, now_here, **came), looks
        assert is_flat(there, now_there, **came), looks
