"""A long stream of elements of all sizes: neither process takes more and more of anything.

100,000 elements in the long profile.
"""

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import EndOfPipeError
from penstock.transport import ArenaCounters, TensorPipeReader, TensorPipeWriter
from tests.profiles import IS_LONG
from tests.promptness import PATIENCE_SECONDS
from tests.transport.pipe.children import free_path, running, sanitized
from tests.transport.pipe.consumer import KEPT, LOOK, SIZES, Taken, array_of, consume, taken

MESSAGES = 100_000 if IS_LONG else 900
CAPACITY = 2
SHARED_EVERY = 4  # elements: one in so many is an element of `empty`
ALLOWED_BYTES = 4 << 20  # what a process may take more by chance
MAX_HELD = sum(keep > 0 for keep in KEPT) + CAPACITY + 2  # kept; on their way; being written, and being looked at
MOST_SLOTS = MAX_HELD * len(set(SIZES))  # each size may have been held so often
MAX_BYTES = MAX_HELD * 2 * sum(set(SIZES))  # slots are somewhat larger than their contents


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


@pytest.mark.longer
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
