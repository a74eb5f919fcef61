"""Workers of these tests; importable, so that they can live in processes."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

PLACES = ["task", "thread", "process"]


class Plain:
    """Its methods are plain. A job is a number to add, or a function to call."""

    def start(self) -> None:
        """Note where it lives."""
        self.home = (os.getpid(), threading.get_ident())
        self.total = 0

    def run(self, job: int | Callable[[], Any]) -> Any:
        """Return the sum so far, or what the function returns."""
        assert self.home == (os.getpid(), threading.get_ident())
        if callable(job):
            return job()
        self.total += job
        return self.total

    def stop(self) -> None:
        """Be stopped at home."""
        assert self.home == (os.getpid(), threading.get_ident())


class Async:
    """Its methods are async, and really wait. Jobs are those of Plain."""

    def __init__(self) -> None:
        self.plain = Plain()

    async def start(self) -> None:
        """Note where it lives."""
        await asyncio.sleep(0)
        self.plain.start()
        self.loop = asyncio.get_running_loop()

    async def run(self, job: int | Callable[[], Any]) -> Any:
        """Return the sum so far, or what the function returns."""
        await asyncio.sleep(0)
        assert self.loop is asyncio.get_running_loop()
        return self.plain.run(job)

    async def stop(self) -> None:
        """Be stopped at home."""
        await asyncio.sleep(0)
        assert self.loop is asyncio.get_running_loop()
        self.plain.stop()


class Formatter:
    """Its jobs have arguments by place and by name."""

    def start(self) -> None:
        """Have nothing to do."""

    def run(self, number: int, /, digits: int, *more: int, unit: str = "m") -> str:
        """Return the numbers with their unit."""
        return " ".join(f"{each:.{digits}f} {unit}" for each in (number, *more))

    def stop(self) -> None:
        """Have nothing to do."""


class OddError(Exception):
    """Takes two arguments, has an attribute, and can be pickled."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(name, number)
        self.number = number


class StubbornError(Exception):
    """Pickles, and can't be built again."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(f"{name} {number}")


def odd() -> None:
    """Raise an error with two arguments."""
    raise OddError("odd", 7)


def stubborn() -> None:
    """Raise an error that can't be brought over."""
    raise StubbornError("stubborn", 7)


def stop_iteration() -> None:
    """Raise what no future can hold."""
    raise StopIteration(7)


def cancelled() -> None:
    """Raise what would look like a cancellation."""
    raise asyncio.CancelledError


def system_exit() -> None:
    """Ask for the end of the program."""
    raise SystemExit(7)


def exit_now() -> None:
    """End the process, without a word."""
    os._exit(7)


def kill_self() -> None:
    """Kill the process by a signal."""
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_ever() -> None:
    """Never return."""
    threading.Event().wait()


def die_beside_a_child() -> None:
    """Kill the process, whose child holds every descriptor for some seconds more."""
    if os.fork() == 0:
        threading.Event().wait(3)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def lambda_of_one() -> Any:
    """Return what can't be pickled."""
    return lambda: 1


class FailsAt:
    """Fails in one of its methods."""

    method = ""

    def _go(self, method: str) -> None:
        if method == self.method:
            odd()

    def start(self) -> None:
        """Start, or fail."""
        self._go("start")

    def run(self, job: object) -> object:
        """Run, or fail."""
        self._go("run")
        return job

    def stop(self) -> None:
        """Stop, or fail."""
        self._go("stop")


class FailsAtMake(FailsAt):
    """Fails when it is made."""

    def __init__(self) -> None:
        odd()


class FailsAtStart(FailsAt):
    """Fails in its start."""

    method = "start"


class FailsAtRun(FailsAt):
    """Fails in its job."""

    method = "run"


class FailsAtStop(FailsAt):
    """Fails in its stop."""

    method = "stop"


class DiesAtStart(FailsAt):
    """Ends its process in its start."""

    def start(self) -> None:
        """Die."""
        exit_now()


class AsyncFails:
    """Fails as another worker does, but in async methods."""

    def __init__(self, other: type[FailsAt]) -> None:
        self.other = other()

    async def start(self) -> None:
        """Start, or fail."""
        await asyncio.sleep(0)
        self.other.start()

    async def run(self, job: object) -> object:
        """Run, or fail."""
        await asyncio.sleep(0)
        return self.other.run(job)

    async def stop(self) -> None:
        """Stop, or fail."""
        await asyncio.sleep(0)
        self.other.stop()
