"""Writers and readers are killed at random points, again and again: nothing hangs and nothing is left."""

import itertools
import os
import random  # noqa: TID251 - when a test kills is no randomness of a dataset
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from penstock.errors import PeerError
from penstock.transport import TensorPipeReader, TensorPipeWriter, leased_slots
from tests.promptness import PATIENCE_SECONDS
from tests.transport.pipe.children import element_of, free_path, is_element, receive_for_ever, running, send_for_ever

KILLS = max(4, settings().max_examples // 10)  # of each kind: 200 in the long profile
LATEST_SECONDS = 0.03  # after the start


@contextmanager
def killed_soon(function: Any, address: str, chance: random.Random) -> Generator[None]:
    """Run a function in a process that is killed at a random moment."""
    ready: Any = get_context("fork").Event()
    with running("fork", function, address, ready) as process:
        assert ready.wait(PATIENCE_SECONDS)
        killed = threading.Timer(chance.random() * LATEST_SECONDS, os.kill, (process.pid, signal.SIGKILL))
        killed.start()
        yield
        killed.join()
        process.join()


@pytest.mark.longer
@pytest.mark.filterwarnings("ignore:.*received elements are still referenced")
def test_killed_writers() -> None:
    """Elements are whole and in order until the death, which raises an error; kept ones stay whole."""
    for seed in range(KILLS):
        chance, kept, leased = random.Random(seed), list[Any](), leased_slots()
        with TensorPipeReader() as reader, killed_soon(send_for_ever, reader.address, chance):
            with pytest.raises(PeerError):
                receive_all(reader, kept, chance)
            assert all(is_element(element, element["step"]) for element in kept)
        kept.clear()
        assert leased_slots() == leased


@pytest.mark.longer
def test_killed_readers(tmp_path: Path) -> None:
    """The writer gets an error, and every lease of the dead comes back; the counters are exact."""
    address = free_path(tmp_path)
    for seed in range(KILLS):
        with killed_soon(receive_for_ever, address, random.Random(seed)):
            writer = TensorPipeWriter(address)
            with pytest.raises(PeerError):
                send_all(writer)
        writer.arena.reclaim()
        counters = writer.arena.counters
        assert counters.leased == counters.returned
        with pytest.raises(PeerError):
            writer.close()


def receive_all(reader: TensorPipeReader, kept: list[Any], chance: random.Random) -> None:
    """Receive for ever, whole and in order, and keep some."""
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
