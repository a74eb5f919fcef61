"""What the processes of these tests do; importable, so that every start method can run it."""

import asyncio
import atexit  # noqa: TID251 - what a user may do
import itertools
import os
import random  # noqa: TID251 - what is seeded
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np


class StubbornError(Exception):
    """Pickles, and can't be built again."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(f"{name} {number}")


class OddError(Exception):
    """Takes two arguments, has an attribute, and can be pickled."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(name, number)
        self.number = number


def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


def refuse_odd(number: int) -> int:
    """Raise for odd numbers."""
    if number % 2:
        raise OddError("odd", number)
    return number


def refuse_stubbornly(number: int) -> int:
    """Raise what can't be brought over."""
    raise StubbornError("stubborn", number)


class LetterAndWait:
    """A source of one letter, and then of nothing for ever, until it is cancelled."""

    async def __aiter__(self) -> AsyncIterator[str]:
        """Iterate."""
        yield "a"
        await asyncio.Event().wait()


class NotedLetters:
    """A source of one letter that notes in a folder each time that it is begun."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __iter__(self) -> Iterator[str]:
        """Begin."""
        (self._folder / str(time.monotonic_ns())).touch()
        return iter("a")


class EndOfTheWorldError(BaseException):
    """No Exception."""


def raise_at_five(error: BaseException, number: int) -> int:
    """Return the number, but raise for 5."""
    if number == 5:
        raise error
    return number


def yield_or_raise_at_five(error: BaseException, number: int) -> Iterator[int]:
    """Yield the number, but raise for 5."""
    yield raise_at_five(error, number)


def up_to(number: int) -> Iterator[int]:
    """Yield the numbers below."""
    yield from range(number)


def lambda_of(number: int) -> Any:
    """Return what can't be pickled, for odd numbers."""
    return (lambda: number) if number % 2 else number


def pid_of(_: object) -> int:
    """Return the process."""
    return os.getpid()


def kill_at(number: int, deadly: int = 3) -> int:
    """Kill the process at one number."""
    if number == deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


class KillsOnce:
    """Kills the process at one number, the first time; keeps count in files of a folder."""

    def __init__(self, folder: Path, deadly: int) -> None:
        self.folder = folder
        self.deadly = deadly

    def __call__(self, number: int) -> int:
        """Return the number."""
        if number == self.deadly and not (self.folder / "killed").exists():
            (self.folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number


class Noted:
    """Notes each call in a folder, and kills the process at one number."""

    def __init__(self, folder: Path, deadly: int) -> None:
        self.folder = folder
        self.deadly = deadly

    def __call__(self, number: int) -> int:
        """Return the number."""
        (self.folder / f"{number}-{os.getpid()}").touch()
        return kill_at(number, self.deadly)


def wait_for_ever(ready: str) -> None:
    """Say that it has begun, by a pipe in the file system, and never return."""
    tell(ready)
    threading.Event().wait()


def tell(path: str) -> None:
    """Tell the process's number to who reads the pipe."""
    with open(path, "w") as pipe:
        pipe.write(f"{os.getpid()}\n")


def tell_and_double(path: str, number: int) -> int:
    """Tell that it was called, and return twice the number."""
    tell(path)
    return 2 * number


def draws(_: object) -> tuple[int, int, int]:
    """Return the process, and a draw from each global generator."""
    return os.getpid(), random.getrandbits(60), int(np.random.randint(0, 2**60))  # noqa: NPY002 - what is seeded


def seed_all(seed: int) -> None:
    """Seed the global generators as a user may."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - what is seeded


def fail_to_start() -> None:
    """Raise an error."""
    raise OddError("start", 7)


def die_at_start() -> None:
    """End the process."""
    os._exit(7)


def image(number: int) -> dict[str, Any]:
    """Return an element with a large array."""
    return {"image": np.full((3, 100, 100), number, np.float32), "number": number}


class Counter:
    """Counts its calls in itself."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, _: object) -> int:
        """Return how often it was called."""
        self.count += 1
        return self.count


def touch_at_exit(path: Path) -> None:
    """Make a file when the process ends by itself."""
    atexit.register(path.touch)


def note(folder: Path, number: int) -> int:
    """Make a file for each number."""
    (folder / str(number)).touch()
    return number


def error_of(outcome: tuple[bool, object]) -> Exception:
    """Return the exception of an item that failed."""
    good, error = outcome
    assert not good
    assert isinstance(error, Exception)
    return error


def into(received: list[Any], items: Iterable[Any]) -> None:
    """Append the items, as far as they come."""
    for item in items:
        received.append(item)  # noqa: PERF402 - they may end by a failure


def pid_and_double(number: int) -> tuple[int, int]:
    """Return the process, and twice the number."""
    return os.getpid(), 2 * number


class Endless:
    """Yields numbers without an end; writes into a file when it is closed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, _: object) -> Iterator[int]:
        """Count."""
        try:
            yield from itertools.count()
        finally:
            (self._folder / "closed").touch()


class DiesOnce:
    """Yields so many numbers, in steps of their own, and kills its process at one of them, the first time."""

    def __init__(self, folder: Path, count: int, at: int) -> None:
        self._folder = folder
        self._count = count
        self._at = at

    def __call__(self, item: int) -> Iterator[tuple[int, int]]:
        """Count."""
        for number in range(self._count):
            if number == self._at and not (marker := self._folder / f"died {item}").exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield item, number
            ended = time.monotonic() + 0.003  # longer than a step
            while time.monotonic() < ended:
                pass


def raise_late(number: int) -> Iterator[object]:
    """Yield twice, once what can't be pickled, and raise."""
    yield number
    yield lambda: number
    raise OddError("late", number)
