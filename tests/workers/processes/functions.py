"""Functions for worker processes, which find them by their names."""

import os
import signal
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

DEADLY = 37


def row(number: int) -> dict[str, Any]:
    """Return a row of arrays."""
    return {"number": number, "image": np.full((8, 8), number % 251, np.uint8)}


def large_row(number: int) -> NDArray[np.uint8]:
    """Return a row of which a batch stays in the loader's memory."""
    return np.full(100_000, number % 251, np.uint8)


def named_row(number: int) -> dict[str, Any]:
    """Return a row with a leaf that is no array."""
    return {"number": number, "name": f"record {number}"}


def ragged_row(number: int) -> NDArray[np.float32]:
    """Return rows of which one has another shape than the others."""
    return np.zeros(3 if number == DEADLY else 2, np.float32)


def noisy(number: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return a row with noise."""
    return np.asarray(rng.normal(size=5) + number)


def slow(number: int) -> int:
    """Return what was given, after a millisecond."""
    threading.Event().wait(0.001)
    return number


def halved(batch: NDArray[Any]) -> NDArray[Any]:
    """Return a batch that was changed after it was made."""
    return batch / 2


def kills_itself(number: int) -> int:
    """Die of one number, whatever process this is."""
    if number == DEADLY and "PENSTOCK_TEST_WORKER" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def mark_process(worker: int) -> None:
    """Have this process known as a worker's."""
    os.environ["PENSTOCK_TEST_WORKER"] = str(worker)


def refuses(worker: int) -> None:
    """Fail to prepare."""
    raise LookupError(f"no device {worker}")


def broken(number: int) -> int:
    """Raise at one number."""
    if number == DEADLY:
        raise LookupError(f"no record {number}")
    return number


class Unpicklable:
    """Refuses to be sent."""

    def __call__(self, number: int) -> int:
        """Return what was given."""
        return number

    def __reduce__(self) -> str:
        raise TypeError("it holds a connection")
