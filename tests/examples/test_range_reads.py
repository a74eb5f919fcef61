"""`examples/range_reads.py`: the images read by ranges over HTTP and decoded in a pipeline are the original ones."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock.transport import Bytes
from tests.extensions import load

EXAMPLE = Path(__file__).parents[2] / "examples" / "range_reads.py"
pytest.importorskip("aiohttp")


def test_images_arrive_in_order() -> None:
    """The script reads every range of both archives, and its batches are the images in order."""
    command = [sys.executable, "-W", "error", str(EXAMPLE)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[0].startswith("ranges:  64 of 16 images, ")
    assert lines[1:] == ["batches: 8 of uint8 (128, 32, 32, 3)", "equal:   True"]


def test_images_are_divided_without_a_copy() -> None:
    """The handles of a range's images are parts of the range's own memory."""
    example, body = load(EXAMPLE), bytearray(b"onetwothree")
    parts = list(example.cut((example.Range("numbers", 100, (103, 106, 111)), Bytes(body))))
    assert [part.tobytes() for part in parts] == [b"one", b"two", b"three"]
    assert all(np.shares_memory(np.frombuffer(part, np.uint8), np.frombuffer(body, np.uint8)) for part in parts)
