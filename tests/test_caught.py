"""`python_handlers` remembers what it has returned, and may be called at any moment, also by a signal's handler."""

import signal
from collections.abc import Generator
from types import FrameType

import pytest

from penstock._caught import python_handlers, raised_by_handler
from penstock._os import HeldInterrupts


class Asking:
    """A handler that asks for all handlers while it is compared with another one, as a signal's handler may then."""

    asks = True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Do nothing."""

    def __eq__(self, other: object) -> bool:
        if Asking.asks:
            Asking.asks = False
            signal.signal(signal.SIGUSR2, Asking())
            python_handlers()
        return self is other

    def __hash__(self) -> int:
        return id(self)


@pytest.fixture
def handlers_kept() -> Generator[None]:
    """Restore the handlers of two signals."""
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers_kept")
def test_a_call_inside_a_call() -> None:
    """Both return the handlers of their moment, whatever the inner one remembers."""
    for _ in range(3):
        Asking.asks = False
        for _ in range(2):
            signal.signal(signal.SIGUSR1, Asking())
            python_handlers()
        last = Asking()
        signal.signal(signal.SIGUSR1, last)
        Asking.asks = True
        assert python_handlers()[signal.SIGUSR1] is last
        assert not Asking.asks
        found = python_handlers()
        assert {number: signal.getsignal(number) for number in found} == found


def raising(number: int, frame: FrameType | None) -> None:
    """Raise, without a trace of the interrupted frame: its variable is another one by then."""
    frame = None
    raise TimeoutError(number, frame)


@pytest.mark.usefixtures("handlers_kept")
def test_an_exception_from_before_a_scope_is_examined_in_it() -> None:
    """An exception is known as a handler's where a scope of held signals has replaced that handler meanwhile."""
    signal.signal(signal.SIGUSR1, raising)
    with pytest.raises(TimeoutError) as caught:
        signal.raise_signal(signal.SIGUSR1)
    with HeldInterrupts():
        assert raised_by_handler(caught.value)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    assert not raised_by_handler(caught.value)
