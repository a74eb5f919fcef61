"""Writers and readers are killed at random points, again and again: nothing hangs and nothing is left."""

import itertools
import os
import random  # noqa: TID251 - when a test kills is no randomness of a dataset
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from penstock.errors import PeerError
from penstock.transport import TensorPipeReader, TensorPipeWriter, leased_slots
from tests.promptness import PATIENCE_SECONDS
from tests.transport.pipe.children import element_of, free_path, is_element, receive_for_ever, running, send_for_ever

KILLS = max(6, settings().max_examples // 10)  # of each kind: 200 in the long profile
LATEST_SECONDS = 0.03  # after the start


def shared_bytes() -> int:
    """Return the machine's shared memory in use."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024
    raise LookupError("Shmem")


def comes_back(before: int) -> bool:
    """Return whether the machine's shared memory is what it was, within some seconds."""
    pause, deadline = threading.Event(), time.monotonic() + 10
    while shared_bytes() > before + (1 << 20):
        if time.monotonic() > deadline:
            return False
        pause.wait(0.01)
    return True


def repeatedly(kill: Callable[[random.Random], None]) -> None:
    """Kill many times, and see all memory come back; again if it doesn't, since others on the machine take some too."""
    before = 0
    for attempt in range(3):
        before, leased = shared_bytes(), leased_slots()
        for seed in range(KILLS):
            kill(random.Random(f"{attempt}, {seed}"))
            assert leased_slots() == leased
        if comes_back(before):
            return
    raise AssertionError(f"shared memory was {before} bytes and is {shared_bytes()}, ten seconds after the last death")


def receive_all(reader: TensorPipeReader, kept: list[Any], chance: random.Random) -> None:
    """Receive until killed, whole and in order, and keep some."""
    for step in itertools.count():
        element = reader.receive(timeout_seconds=PATIENCE_SECONDS)
        assert is_element(element, step)
        if chance.random() < 0.05:
            kept.append(element)
        del element


def send_all(writer: TensorPipeWriter) -> None:
    """Send for ever."""
    for step in itertools.count():
        writer.send(element_of(step), timeout_seconds=PATIENCE_SECONDS)


@pytest.mark.filterwarnings("ignore:.*received elements are still referenced")
def test_killed_writers() -> None:
    """Elements are whole and in order until the death, which raises an error."""

    def kill(chance: random.Random) -> None:
        ready: Any = get_context("fork").Event()
        with TensorPipeReader() as reader, running("fork", send_for_ever, reader.address, ready) as process:
            assert ready.wait(PATIENCE_SECONDS)
            killed = threading.Timer(chance.random() * LATEST_SECONDS, os.kill, (process.pid, signal.SIGKILL))
            killed.start()
            kept: list[Any] = []
            with pytest.raises(PeerError):
                receive_all(reader, kept, chance)
            killed.join()
            assert all(is_element(element, element["step"]) for element in kept)

    repeatedly(kill)


def test_killed_readers(tmp_path: Path) -> None:
    """The writer gets an error, and every lease of the dead comes back; the counters are exact."""
    address = free_path(tmp_path)

    def kill(chance: random.Random) -> None:
        ready: Any = get_context("fork").Event()
        with running("fork", receive_for_ever, address, ready) as process:
            assert ready.wait(PATIENCE_SECONDS)
            writer = TensorPipeWriter(address)
            killed = threading.Timer(chance.random() * LATEST_SECONDS, os.kill, (process.pid, signal.SIGKILL))
            killed.start()
            with pytest.raises(PeerError):
                send_all(writer)
            killed.join()
            process.join()
            writer.arena.reclaim()
            counters = writer.arena.counters
            assert counters.leased == counters.returned
            with pytest.raises(PeerError):
                writer.close()

    repeatedly(kill)


def test_both_killed(tmp_path: Path) -> None:
    """No memory is left, without anybody to clean up."""
    address = free_path(tmp_path)

    def kill(chance: random.Random) -> None:
        reading: Any = get_context("fork").Event()
        writing: Any = get_context("fork").Event()
        with running("fork", receive_for_ever, address, reading) as reader:
            assert reading.wait(PATIENCE_SECONDS)
            with running("fork", send_for_ever, address, writing) as writer:
                assert writing.wait(PATIENCE_SECONDS)
                threading.Event().wait(chance.random() * LATEST_SECONDS)
                victims = [reader, writer]
                chance.shuffle(victims)
                for victim in victims:
                    victim.kill()

    repeatedly(kill)
