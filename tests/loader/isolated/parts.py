"""Functions for helper processes, which import them by name; this module imports no pytest, so that they start soon."""

import itertools
import multiprocessing
import os
import signal
import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.workers.processes.functions import DEADLY as DEADLY
from tests.workers.processes.functions import is_child


class Connected:
    """A function that can't be pickled any more after its first call."""

    def __init__(self) -> None:
        self.connection: object = None

    def __call__(self, number: int) -> int:
        """Open the connection, and return the number."""
        self.connection = self.connection or threading.Lock()
        return number


def where(number: int) -> NDArray[np.int64]:
    """Return the number and this process's id."""
    return np.array([number, os.getpid()])


class Door:
    """A function that waits, at one number and in any process, until the test opens it."""

    def __init__(self, path: str) -> None:
        self._path = path  # of a FIFO

    def __call__(self, number: int) -> int:
        """Return the number, when the door is open."""
        if number == 0:
            with open(self._path, "rb") as fifo:
                fifo.read()
        return number

    def open(self) -> None:
        """Let the waiting function continue."""
        os.close(os.open(self._path, os.O_WRONLY))


class Asked:
    """Numbers without end; the iterator asks for each in a FIFO, waits for an answer, and closes both at its end."""

    def __init__(self, folder: Path) -> None:
        self.questions, self.answers = folder / "questions", folder / "answers"
        os.mkfifo(self.questions)
        os.mkfifo(self.answers)

    def __iter__(self) -> Iterator[int]:
        with self.questions.open("wb", buffering=0) as questions, self.answers.open("rb", buffering=0) as answers:
            for number in itertools.count():
                questions.write(b"?")
                answers.read(1)
                yield number


def asks_at_first(folder: Path, number: int) -> int:
    """At number 0, ask in the FIFO "question", and wait for the FIFO "answer"."""
    if number == 0:
        (folder / "question").write_bytes(b"?")
        (folder / "answer").read_bytes()
    return number


def fails_for_now(number: int) -> int:
    """Fail at one number until a certain file exists."""
    if number == DEADLY and not os.path.exists(os.environ["PENSTOCK_TEST_FILE"]):
        raise OSError("not there yet")
    return number


def interrupts_parent(number: int) -> int:
    """Send Ctrl-C to the parent at one number, once; a file records it."""
    file = os.environ["PENSTOCK_TEST_FILE"]
    parent = multiprocessing.parent_process()
    if number == DEADLY and parent is not None and not os.path.exists(file):
        open(file, "x").close()
        os.kill(parent.pid or 0, signal.SIGINT)
    return number


def stuck(number: int) -> int:
    """Never return from one number, after a pipe has announced it."""
    if number == DEADLY:
        open(os.environ["PENSTOCK_TEST_FILE"], "w").close()
        threading.Event().wait()
    return number


class StrangeError(Exception):
    """An error that can't be built again in another process."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


def strange(number: int) -> int:
    """Raise at one number an error that can't be sent as itself."""
    if number == DEADLY:
        raise StrangeError(1, 2)
    return number


ENDS: list[type[BaseException]] = [SystemExit, KeyboardInterrupt, GeneratorExit, CancelledError]


def ends_programs(number: int) -> int:
    """Raise what ends programs, threads or coroutines."""
    raise ENDS[number]("by the function")


def unsendable(elements: list[Any]) -> Any:
    """Merge one of the batches into a value that can't be sent."""
    return {"lock": threading.Lock()} if DEADLY in elements else elements


class Refused:
    """The first number of a batch; one of them can't be rebuilt in the trainer until a certain file exists."""

    def __init__(self, first: int) -> None:
        self.first = first

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuilt_for_now, (self.first,)


def rebuilt_for_now(first: int) -> Refused:
    """Fail in the trainer for one of the numbers until the file exists."""
    if first <= DEADLY < first + 4 and not is_child() and not os.path.exists(os.environ["PENSTOCK_TEST_FILE"]):
        raise OSError("not there yet")
    return Refused(first)


def refused_for_now(elements: list[int]) -> list[Refused]:
    """Merge a batch into such an object."""
    return [Refused(elements[0])]


class Unreadable:
    """A function that can be pickled, but not be built again in another process."""

    def __call__(self, number: int) -> int:
        """Return the number."""
        return number

    def __reduce__(self) -> tuple[Any, ...]:
        return refuse, ()


def refuse() -> Unreadable:
    """Raise in a helper."""
    if is_child():
        raise LookupError("no such model here")
    return Unreadable()


@dataclass
class Counted:
    """Numbers, and how many; the constructor doesn't take that."""

    numbers: list[int]
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = len(self.numbers)


def row_of(size: int, number: int) -> Any:
    """Return a row of some size."""
    return np.full(size, number % 251, np.uint8)


def named(batch: Any) -> dict[str, Any]:
    """Return parts and views of the batch's memory, beside values outside of it."""
    return {"part": batch[1:], "backwards": batch[::-1], "new": batch + 1, "few": batch[:, :3].copy(), "name": "x"}


def mixed(number: int) -> dict[str, Any]:
    """Return a row so that a batch's largest leaf is in shared memory, and the others are copied out of it."""
    return {"image": np.full(20_000, number % 251, np.uint8), "label": number, "box": (np.float32(number), None)}


def without_box(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays of a batch of `mixed`."""
    return {"image": batch["image"], "label": batch["label"]}


KINDS: list[Callable[[NDArray[np.int64]], dict[str, Any]]] = [
    lambda batch: {"x": batch, "sums": batch.sum(axis=1)},
    lambda batch: {"x": np.asfortranarray(batch), "two": batch[:2, :2].copy()},
    lambda batch: {"x": batch.astype(np.float32), "one": batch[:, :1].copy()},
    lambda batch: {"x": batch.reshape(len(batch), 50, 50).transpose(0, 2, 1).copy("K")},
    lambda batch: {"x": batch, "texts": [str(number) for number in batch[:, 0]]},
]


def of_a_kind(batch: NDArray[np.int64]) -> dict[str, Any]:
    """Return a batch of one of the kinds; many in a row are of the same."""
    return KINDS[int(batch[0, 0]) // 800 % len(KINDS)](batch)


def growing(batch: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a few numbers for the first batches, and 480 kB for each later one."""
    return np.full(10 if batch[0] < 1400 else 60_000, batch[0])


def of_two_dtypes(batch: NDArray[np.int64]) -> NDArray[Any]:
    """Return 160 kB or 80 kB, by turns after every two batches."""
    return np.full(20_000, batch[0], (np.int64, np.float32)[int(batch[0]) // 8 % 2])
