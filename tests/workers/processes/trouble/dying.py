"""Functions that kill, stop or hang worker processes, once or each time."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

from penstock._runtime._job_table import JobTable
from tests.workers.processes.functions import DEADLY, is_child


class Once:
    """Calls a function in this process at one number, the first time that any worker process computes the number."""

    def __init__(self, path: str, what: Callable[[], object]) -> None:
        self._path = path  # exists afterwards
        self._what = what

    def __call__(self, number: int) -> int:
        """Return the argument, perhaps after the call."""
        if number == DEADLY and is_child():
            self.do()
        return number

    def do(self) -> None:
        """Call the function, if no process has called it."""
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL))
            self._what()


class Parcel:
    """A number that is sent to worker processes: its first two computations kill them, and then its fourth arrival."""

    def __init__(self, directory: str, number: int) -> None:
        self._directory = directory
        self._number = number

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        if self._number == DEADLY and self._count("arrived") == 4:
            killed()

    def opened(self) -> int:
        """Return the number, or die."""
        if self._number == DEADLY and self._count("opened") <= 2:
            killed()
        return self._number

    def _count(self, what: str) -> int:
        with open(os.path.join(self._directory, what), "ab", buffering=0) as file:
            file.write(b"1")
            return file.tell()


def parcels(directory: str) -> Iterator[Parcel]:
    """Yield the numbers up to one that is deadly."""
    return (Parcel(directory, number) for number in range(DEADLY + 1))


class EachOnce:
    """Kills the first worker process that computes a number, for each of several numbers."""

    COUNT = 6

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def __call__(self, number: int) -> int:
        """Return the argument, or die."""
        if DEADLY <= number < DEADLY + self.COUNT:
            Once(os.path.join(self._directory, str(number)), killed).do()
        return number


class StaysLater:
    """A `worker_init` after which the first processes end before they have computed anything."""

    COUNT = 5

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def __call__(self, worker: int) -> None:
        """Make this process end at its first block, or not."""
        del worker
        paths = [os.path.join(self._directory, str(number)) for number in range(self.COUNT)]
        left = [path for path in paths if not os.path.exists(path)]
        if left:
            dies = Once(left[0], killed)

            def begin(*_: object) -> None:
                dies.do()

            setattr(JobTable, "begin", begin)  # noqa: B010 - a method, to type checkers


class ReadyLater:
    """A `worker_init` that hangs in the first process."""

    def __init__(self, path: str) -> None:
        self._first = Once(path, hangs)

    def __call__(self, worker: int) -> None:
        """Hang, or not."""
        del worker
        self._first.do()


class FailsAndDies:
    """Raises at one number in the first worker process, and kills it once it has reported that."""

    def __init__(self, path: str) -> None:
        self._once = Once(path, _die_at_outcome)

    def __call__(self, number: int) -> int:
        """Return the argument, or raise."""
        if self._once(number) == DEADLY and JobTable.set_outcome is _killed_at_outcome:
            raise ValueError("very wrong")
        return number


def _die_at_outcome() -> None:
    setattr(JobTable, "set_outcome", _killed_at_outcome)  # noqa: B010 - what type checkers know as a method


def _killed_at_outcome(*_: object) -> None:
    killed()


def killed() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def stopped() -> None:
    """Stop this process, so that not even a signal handler runs."""
    os.kill(os.getpid(), signal.SIGSTOP)


def hangs() -> None:
    """Hang."""
    threading.Event().wait()


def hangs_at(number: int) -> int:
    """Hang at one number in a worker process."""
    if number == DEADLY and is_child():
        hangs()
    return number


def merge_hangs(rows: list[int]) -> list[int]:
    """Merge rows, or hang."""
    return [hangs_at(number) for number in rows]


def never_ready(worker: int) -> None:
    """Hang in `worker_init`."""
    del worker
    hangs()


def takes_a_while(number: int) -> int:
    """Return the argument after a while."""
    threading.Event().wait(0.2)
    return number


def merge_slowly(rows: list[int]) -> list[int]:
    """Merge rows, after a while."""
    return [takes_a_while(rows[0]), *rows[1:]]
