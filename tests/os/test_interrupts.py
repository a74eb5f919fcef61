"""Functions that hold signals back raise the handler's exception at their end, or where they wait."""

import signal

import pytest

from penstock._os import HeldInterrupts, holding_interrupts, uninterrupted


class Taking:
    """Takes an item in two steps, and waits between them if it is to."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    @uninterrupted
    def take(self) -> str:
        """Take at once."""
        self.steps.append("taken")
        signal.raise_signal(signal.SIGINT)
        self.steps.append("noted")
        return "item"

    @holding_interrupts
    def wait(self, held: HeldInterrupts, *, waits: bool) -> str:
        """Take after a wait."""
        self.steps.append("begun")
        signal.raise_signal(signal.SIGINT)
        if waits:
            held.allow()
            held.hold()
        self.steps.append("taken")
        return "item"


def test_a_signal_waits_for_the_end_of_an_uninterrupted_function() -> None:
    """Both steps are done; the exception is raised once, and the program's handler is back."""
    taking, handler = Taking(), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        taking.take()
    assert taking.steps == ["taken", "noted"]
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize(("waits", "steps"), [(True, ["begun"]), (False, ["begun", "taken"])])
def test_a_signal_is_let_through_where_a_method_waits(*, waits: bool, steps: list[str]) -> None:
    """It ends the wait; without a wait it is raised at the end."""
    taking = Taking()
    with pytest.raises(KeyboardInterrupt):
        taking.wait(waits=waits)
    assert taking.steps == steps


def test_a_scope_inside_of_another_waits_for_the_outer_one() -> None:
    """An uninterrupted function may call others."""
    outer: list[str] = []

    @uninterrupted
    def call() -> None:
        outer.extend((Taking().take(), "after"))

    with pytest.raises(KeyboardInterrupt):
        call()
    assert outer == ["item", "after"]
