"""Functions and sources of observed datasets; a process that runs them imports no test."""

import asyncio
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

LONG = 0.006


def wait(element: Any) -> Any:
    """Return the element after a while, as a decoder that releases the GIL does."""
    threading.Event().wait(LONG)  # one of its own, since an event isn't sent to a process
    return element


def compute(element: Any) -> Any:
    """Return the element after much computing, as a decoder that holds the GIL does."""
    sum(range(200_000))
    return element


def hold(number: int) -> int:
    """Return the number after computing with the interpreter's lock, for some of its switch intervals."""
    ends = time.thread_time() + 0.012
    while time.thread_time() < ends:
        pass
    return number


def stack_slowly(rows: list[Any]) -> Any:
    """Return the stacked rows after a while."""
    return np.stack(wait(rows))


class SlowSource:
    """Numbers that take a while to read."""

    def __len__(self) -> int:
        return 72

    def __getitem__(self, key: int) -> int:
        return int(wait(key))


class SlowRecords:
    """Records that take a while to read."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, key: int) -> dict[str, int]:
        return {"number": int(wait(key))}


class AsyncSource(SlowSource):
    """Numbers that arrive after a while, however many are requested at once."""

    async def read(self, keys: Any) -> list[int]:
        """Return the numbers of some keys."""
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), LONG)
        return [int(key) for key in keys]


def element(number: int) -> dict[str, Any]:
    """Return an element that has the number of its record."""
    return {"number": number, "squares": np.arange(4) * number}


def turn(record: dict[str, Any], rng: Any) -> dict[str, Any]:
    """Return the record with its squares in an order that is drawn."""
    return record | {"squares": rng.permutation(record["squares"])}


def is_odd(number: int) -> bool:
    """Return whether a number is odd."""
    return number % 2 == 1


def die_once(marker: str, number: int) -> int:
    """Return the number; the first process that gets number 20 is killed."""
    if number == 20 and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number
