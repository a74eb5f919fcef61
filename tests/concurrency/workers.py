"""Workers of these tests, and jobs for them; importable, also by processes, for which pytest would take long."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class Idle:
    """The start and the stop of workers that need none."""

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


class Plain:
    """A worker with plain methods. A job is a number to add, or a function to call."""

    def start(self) -> None:
        """Record the place."""
        self.home = (os.getpid(), threading.get_ident())
        self.total = 0

    def run(self, job: int | Callable[[], Any]) -> Any:
        """Return the sum so far, or the function's result."""
        self.stop()
        if callable(job):
            return job()
        self.total += job
        return self.total

    def stop(self) -> None:
        """Check that this is the same place."""
        assert self.home == (os.getpid(), threading.get_ident())


class Async:
    """A worker with async methods that wait. Jobs are those of `Plain`."""

    def __init__(self) -> None:
        self.plain = Plain()

    async def start(self) -> None:
        """Record the place."""
        await asyncio.sleep(0)
        self.plain.start()
        self.loop = asyncio.get_running_loop()

    async def run(self, job: int | Callable[[], Any]) -> Any:
        """Return the sum so far, or the function's result."""
        await asyncio.sleep(0)
        assert self.loop is asyncio.get_running_loop()
        return self.plain.run(job)

    async def stop(self) -> None:
        """Check that it stops in the same place."""
        await asyncio.sleep(0)
        assert self.loop is asyncio.get_running_loop()
        self.plain.stop()


class Gated(Idle):
    """A worker whose job is a future, for which it waits."""

    async def run(self, job: asyncio.Future[int]) -> int:
        """Wait for the job's future."""
        return await job


class Formatter(Idle):
    """A worker whose jobs have positional arguments and arguments by name."""

    def run(self, number: int, /, digits: int, *more: int, unit: str = "m") -> str:
        """Return the numbers with their unit."""
        return " ".join(f"{each:.{digits}f} {unit}" for each in (number, *more))


class OddError(Exception):
    """An exception with two arguments and an attribute, which can be pickled and unpickled."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(name, number)
        self.number = number


@dataclass(frozen=True)
class FrozenError(Exception):
    """An exception that refuses to have attributes set."""


class StubbornError(Exception):
    """An exception that can be pickled, but not unpickled."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(f"{name} {number}")


def odd() -> None:
    """Raise an error with two arguments."""
    raise OddError("odd", 7)


def stubborn() -> None:
    """Raise an error that can't be unpickled."""
    raise StubbornError("stubborn", 7)


def raise_it(error: BaseException) -> None:
    """Raise an error."""
    raise error


def exit_now() -> None:
    """End the process at once."""
    os._exit(7)


def kill_self() -> None:
    """Kill the process by a signal."""
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_ever() -> None:
    """Never return."""
    threading.Event().wait()


def die_beside_a_child() -> None:
    """Kill the process; its child holds every descriptor for some seconds more."""
    if os.fork() == 0:
        threading.Event().wait(3)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def lambda_of_one() -> Any:
    """Return a lambda, which can't be pickled."""
    return lambda: 1


class Fails:
    """A worker that calls a function, which raises or ends the process, in one of its methods or when it is made."""

    def __init__(self, method: str, function: Callable[[], None] = odd) -> None:
        self._method, self._function = method, function
        self._go("make")

    def _go(self, method: str) -> None:
        if method == self._method:
            self._function()

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


class AsyncFails:
    """The same with async methods."""

    def __init__(self, method: str) -> None:
        self._plain = Fails(method)

    async def start(self) -> None:
        """Start, or fail."""
        await asyncio.sleep(0)
        self._plain.start()

    async def run(self, job: object) -> object:
        """Run, or fail."""
        await asyncio.sleep(0)
        return self._plain.run(job)

    async def stop(self) -> None:
        """Stop, or fail."""
        await asyncio.sleep(0)
        self._plain.stop()
