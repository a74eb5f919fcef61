"""Signals at random moments, with a handler that raises inside of a given function."""

import gc
import random  # noqa: TID251 - the moments at which signals arrive
import signal
from collections.abc import Callable, Generator
from types import CodeType, FrameType
from typing import Final

import pytest

_MIN_SECONDS: Final = 1e-4
_MAX_SECONDS: Final = 0.006


class Tick(Exception):  # noqa: N818 - what a timer raises
    """The program's own."""


KINDS = (Tick, TimeoutError, KeyboardInterrupt)


class Ticks:
    """A handler that raises inside of a function, and starts a timer for the next signal at a random moment.

    It raises nothing where Python, or this handler, would discard the exception: `raised` is how many have to come out.
    """

    def __init__(self, kind: type[BaseException], seed: int) -> None:
        self.raised = 0
        self._kind = kind
        self._chance = random.Random(seed)
        self._inside: CodeType | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Raise, if the signal has interrupted the function."""
        del number
        self._arm()
        collecting = {getattr(callback, "__code__", None) for callback in gc.callbacks}
        while frame is not None and frame.f_code is not self._inside:
            code = frame.f_code
            # A destructor, a callback of the collector, or this handler, which then wouldn't raise its own exception.
            if code.co_name == "__del__" or code in collecting or code is Ticks.__call__.__code__:
                return
            frame = frame.f_back
        if frame is not None and self._inside is not None:
            self.raised += 1
            raise self._kind(self.raised)

    def start(self, inside: CodeType) -> None:
        """Begin."""
        self._inside = inside
        self._arm()

    def stop(self) -> None:
        """Stop raising."""
        self._inside = None
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _arm(self) -> None:
        if self._inside is not None:
            signal.setitimer(signal.ITIMER_REAL, self._chance.uniform(_MIN_SECONDS, _MAX_SECONDS))


@pytest.fixture
def ticking() -> Generator[Callable[[type[BaseException], int], Ticks]]:
    """Install handlers, and restore the previous ones."""
    before = signal.getsignal(signal.SIGALRM)
    made: list[Ticks] = []

    def install(kind: type[BaseException], seed: int) -> Ticks:
        ticks = Ticks(kind, seed)
        made.append(ticks)
        signal.signal(signal.SIGALRM, ticks)
        return ticks

    yield install
    for each in made:
        each.stop()
    signal.signal(signal.SIGALRM, before)


def chained(error: BaseException | None) -> int:
    """Return the number of handlers' exceptions in a chain; a second one may be raised while the first propagates."""
    return 0 if error is None else isinstance(error, KINDS) + chained(error.__context__)
