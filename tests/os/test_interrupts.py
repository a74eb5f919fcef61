"""Functions that hold signals back raise the handler's exception at their end, or where they wait."""

import signal
from contextlib import nullcontext

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
    def take_or_undo(self, held: HeldInterrupts, *, fails: bool) -> str:
        """Take an item, or raise an error, either of which can be taken back."""
        self.steps.append("taken")
        held.undo = lambda: self.steps.append("undone")
        if fails:
            raise LookupError("no item")
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


def after_the_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send a signal when the outermost scope has put the program's handlers back, once."""
    leave, handler = HeldInterrupts.__exit__, signal.getsignal(signal.SIGINT)
    sent: list[bool] = []

    def leave_and_send(scope: HeldInterrupts, kind: object, error: BaseException | None, traceback: object) -> None:
        leave(scope, kind, error, traceback)
        if not sent and signal.getsignal(signal.SIGINT) is handler:
            sent.append(True)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(HeldInterrupts, "__exit__", leave_and_send)


@pytest.mark.parametrize("fails", [False, True])
def test_a_signal_after_the_scope_takes_the_result_back(monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    """The caller gets neither the item nor the error, which therefore counts as not taken."""
    taking = Taking()
    after_the_scope(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        taking.take_or_undo(fails=fails)
    assert taking.steps == ["taken", "undone"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_result_that_reaches_the_caller_is_not_taken_back(*, fails: bool) -> None:
    """Without a signal the item or the error is delivered."""
    taking = Taking()
    with pytest.raises(LookupError, match="no item") if fails else nullcontext():
        assert taking.take_or_undo(fails=fails) == "item"
    assert taking.steps == ["taken"]


def test_a_second_signal_interrupts_no_undo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both exceptions come out, one as the context of the other, and the result is taken back once."""
    taking, settle = Taking(), HeldInterrupts.settle
    seen: list[BaseException] = []

    def interrupted(scope: HeldInterrupts, error: BaseException) -> None:
        seen.append(error)
        if len(seen) == 1:
            signal.raise_signal(signal.SIGINT)
        settle(scope, error)

    after_the_scope(monkeypatch)
    monkeypatch.setattr(HeldInterrupts, "settle", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        taking.take_or_undo(fails=False)
    assert isinstance(caught.value.__context__, KeyboardInterrupt)
    assert taking.steps == ["taken", "undone"]
