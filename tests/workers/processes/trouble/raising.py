"""Functions that raise in every possible way, for worker processes, which import them by name."""

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from numpy.typing import NDArray

from tests.workers.processes.functions import is_child


class TwoArgumentsError(Exception):
    """Can be pickled, but not unpickled."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} in {where}")


class LockedError(Exception):
    """Can't be pickled."""

    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


class SilentError(Exception):
    """Has no text: `__str__` raises."""

    def __str__(self) -> str:
        raise TypeError("nothing to say")


class OwnInterrupt(BaseException):
    """Is not caught by `except Exception`."""


def noted() -> Exception:
    """Return an exception with a note and a cause."""
    error = LookupError("no such word")
    error.add_note("in the dictionary")
    error.__cause__ = OSError("the shelf is empty")
    return error


def recurses() -> BaseException:
    """Go down for ever."""
    return recurses()


KINDS: dict[str, Callable[[], BaseException]] = {
    "two arguments": lambda: TwoArgumentsError("hole", "bucket"),
    "locked": LockedError,
    "silent": SilentError,
    "noted": noted,
    "several": lambda: ExceptionGroup("several", [ValueError("one"), LockedError()]),
    "interrupt": KeyboardInterrupt,
    "exit": lambda: SystemExit("good bye"),
    "own interrupt": lambda: OwnInterrupt("stop"),
    "end of a generator": GeneratorExit,
    "end of an iteration": StopIteration,
    "recursion": recurses,
}


def by_number(number: int) -> NoReturn:
    """Raise in the number's own way."""
    raise [*KINDS.values()][number]()


def by_rows(rows: list[int]) -> NoReturn:
    """Raise in the way of the batch's number, where its rows are merged."""
    by_number(rows[0])


def by_batch(batch: NDArray[Any]) -> NoReturn:
    """Raise in the way of the batch's number, after it was merged."""
    by_number(int(batch[0]))


class Raising(Sequence[int]):
    """A source whose records can't be read."""

    def __len__(self) -> int:
        return len(KINDS)

    def __getitem__(self, index: Any) -> Any:
        by_number(index)


def only_in_workers(number: int) -> int:
    """Raise in a worker process, and only there."""
    if is_child():
        raise LookupError(f"no device for {number}")
    return number


def can_not_be_sent(rows: list[int]) -> Any:
    """Merge rows into what can't be pickled."""
    return [*rows, threading.Lock()]


def exits_at_once(number: int) -> int:
    """Leave a worker process without a word."""
    if is_child():
        os._exit(number % 250)
    return number


class PrepareWith:
    """Raises in some way while a worker is prepared."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __call__(self, worker: int) -> None:
        """Raise."""
        del worker
        raise KINDS[self._kind]()


class NotesIncomplete:
    """A step above a batch of consecutive numbers; it makes a file if a batch has other numbers."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Return the batch."""
        first = batch[0]
        if batch.tolist() != [first + row for row in range(len(batch))]:
            os.close(os.open(self._path, os.O_CREAT))
        return batch


def raises_at_sixty(number: int) -> int:
    """Return the number; raise at 60."""
    if number == 60:
        raise ValueError("sixty")
    return number
