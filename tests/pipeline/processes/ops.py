"""Functions and sources for the processes of these tests; importable, so that every start method can run them."""

import asyncio
import atexit  # noqa: TID251 - as a user's code may
import itertools
import os
import random  # noqa: TID251 - it is seeded
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np


class StubbornError(Exception):
    """An exception that can be pickled, but not unpickled."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(f"{name} {number}")


class OddError(Exception):
    """An exception with two arguments and an attribute, which can be pickled and unpickled."""

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
    """Raise an exception that can't be unpickled."""
    raise StubbornError("stubborn", number)


class LetterAndWait:
    """A source of one letter, which then waits until it is cancelled."""

    async def __aiter__(self) -> AsyncIterator[str]:
        yield "a"
        await asyncio.Event().wait()


class NotedLetters:
    """A source of one letter that makes a file in a folder each time that a pass begins."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __iter__(self) -> Iterator[str]:
        (self._folder / str(time.monotonic_ns())).touch()
        return iter("a")


class EndOfTheWorldError(BaseException):
    """A BaseException that is no Exception."""


def raise_at_five(error: BaseException, number: int) -> int:
    """Return the number, but raise the error for 5."""
    if number == 5:
        raise error
    return number


def yield_or_raise_at_five(error: BaseException, number: int) -> Iterator[int]:
    """Yield the number, but raise the error for 5."""
    yield raise_at_five(error, number)


def up_to(number: int) -> Iterator[int]:
    """Yield the numbers below."""
    yield from range(number)


def pid_of(_: object) -> int:
    """Return the number of the process."""
    return os.getpid()


def kill_at(number: int, fatal: int = 3) -> int:
    """Return the number, but kill the process at one of them."""
    if number == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def kill_once(folder: Path, fatal: int, number: int) -> int:
    """Return the number, but kill the process at one of them, the first time only, which a file in a folder notes."""
    if number == fatal and not (folder / "killed").exists():
        (folder / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def note(folder: Path, fatal: int, number: int) -> int:
    """Make a file in a folder for each call, and kill the process at one number."""
    (folder / f"{number}-{os.getpid()}").touch()
    return kill_at(number, fatal)


def wait_for_ever(ready: str) -> None:
    """Write the number of the process into a named pipe, and never return."""
    write_pid(ready)
    threading.Event().wait()


def write_pid(path: str) -> None:
    """Write the number of the process into a named pipe."""
    with open(path, "w") as pipe:
        pipe.write(f"{os.getpid()}\n")


def pipe_in(folder: Path) -> str:
    """Make a named pipe in a folder, and return its path."""
    os.mkfifo(folder / "ready")
    return str(folder / "ready")


def pid_from(folder: Path) -> int:
    """Return the number that a process writes into the named pipe of a folder."""
    with (folder / "ready").open() as pipe:
        return int(pipe.readline())


def draws(_: object) -> tuple[int, int, int]:
    """Return the number of the process, and a draw from each global generator."""
    return os.getpid(), random.getrandbits(60), int(np.random.randint(0, 2**60))  # noqa: NPY002 - it is seeded


def seed_all(seed: int) -> None:
    """Seed the global generators as a user may."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - it is seeded


def fail_to_start() -> None:
    """Raise an error, as an initializer."""
    raise OddError("start", 7)


def die_at_start() -> None:
    """End the process, as an initializer."""
    os._exit(7)


def image(number: int) -> dict[str, Any]:
    """Return an element with a large array."""
    return {"image": np.full((3, 100, 100), number, np.float32), "number": number}


class Counter:
    """Counts its calls in an attribute."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, _: object) -> int:
        """Return how often it was called."""
        self.count += 1
        return self.count


def touch_at_exit(path: Path) -> None:
    """Make a file when the process ends normally."""
    atexit.register(path.touch)


def error_of(outcome: tuple[bool, object]) -> Exception:
    """Return the exception of an item that failed."""
    good, error = outcome
    assert not good
    assert isinstance(error, Exception)
    return error


def into(received: list[Any], items: Iterable[Any]) -> None:
    """Append the items until they end or fail."""
    for item in items:
        received.append(item)  # noqa: PERF402 - they may end by a failure


class PidAndNumber:
    """The pid of the process that made it, and a number."""

    def __init__(self, number: int) -> None:
        self.pid = os.getpid()
        self.number = number


def pid_and_double(number: int) -> PidAndNumber:
    """Return the pid, and twice the number."""
    return PidAndNumber(2 * number)


def endless(folder: Path, _: object) -> Iterator[int]:
    """Yield numbers without an end; make a file in a folder when the generator is closed."""
    try:
        yield from itertools.count()
    finally:
        (folder / "closed").touch()


def wait_at_seven(folder: Path, number: int) -> Iterator[int]:
    """Yield the number; the first time at 7, wait between two named pipes, and make a file at the end."""
    if number != 7 or (folder / "closed").exists():
        yield number
        return
    try:
        write_pid(str(folder / "ready"))
        (folder / "go").read_text()
        yield number
        yield number
    finally:
        (folder / "closed").touch()


def die_once(folder: Path, count: int, at: int, item: int) -> Iterator[tuple[int, int]]:
    """Yield pairs of the item and a number, each in a step of its own; kill the process at one, the first time only."""
    for number in range(count):
        if number == at and not (marker := folder / f"died {item}").exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield item, number
        ended = time.monotonic() + 0.003  # longer than a step
        while time.monotonic() < ended:
            pass


def raise_late(number: int) -> Iterator[object]:
    """Yield the number and a lambda, which can't be pickled, and raise."""
    yield number
    yield lambda: number
    raise OddError("late", number)


class NoNbytes:
    """An object whose `nbytes` raises."""

    @property
    def nbytes(self) -> int:
        """Raise."""
        raise OddError("nbytes", 1)


def without_sizes(number: int) -> Iterator[object]:
    """Yield objects whose sizes can't be computed."""
    for _ in range(number):
        yield NoNbytes()


class Unbuildable:
    """A value that is pickled, and can't be rebuilt."""

    def __reduce__(self) -> tuple[type[int], tuple[str]]:
        return int, ("x",)


def unbuildable(_: object) -> Unbuildable:
    """Return such a value."""
    return Unbuildable()


def lock_of(number: int) -> Any:
    """Return a lock, which nothing can pickle, for an odd number; otherwise the number."""
    return threading.Lock() if number % 2 else number


def nested_lock(number: int) -> Any:
    """Return a lock, which nothing can pickle, inside other objects."""
    return {"a": [number, threading.Lock()]}
