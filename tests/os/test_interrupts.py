"""Functions that hold signals back raise the handler's exception at their end, or where they wait."""

import signal
import sys
import weakref
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


def test_an_inner_scope_leaves_the_handlers_of_an_outer_one_that_holds() -> None:
    """It sets handlers of its own where the outer one lets signals through; each scope restores what it found."""
    program = signal.getsignal(signal.SIGINT)
    with HeldInterrupts() as outer:
        of_outer = signal.getsignal(signal.SIGINT)
        with HeldInterrupts():
            assert signal.getsignal(signal.SIGINT) == of_outer
        outer.allow()
        with HeldInterrupts():
            assert signal.getsignal(signal.SIGINT) not in {of_outer, program}
        assert signal.getsignal(signal.SIGINT) == of_outer
        outer.hold()
        with HeldInterrupts():
            assert signal.getsignal(signal.SIGINT) == of_outer
    assert signal.getsignal(signal.SIGINT) is program


def test_a_signal_is_let_through_where_a_method_waits() -> None:
    """It ends the wait; without a wait it is raised at the end."""
    for waits, steps in (True, ["begun"]), (False, ["begun", "taken"]):
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

    def leave_and_send(scope: HeldInterrupts, *error: object) -> None:
        leave(scope, *error)
        if not sent and signal.getsignal(signal.SIGINT) is handler:
            sent.append(True)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(HeldInterrupts, "__exit__", leave_and_send)


@pytest.mark.parametrize("fails", [False, True])
def test_a_signal_after_the_scope_takes_the_result_back(monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    """The caller gets neither the item nor the error, which therefore counts as not taken; without a signal it does."""
    taking = Taking()
    with pytest.raises(LookupError, match="no item") if fails else nullcontext():
        assert taking.take_or_undo(fails=fails) == "item"
    assert taking.steps == ["taken"]
    after_the_scope(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        taking.take_or_undo(fails=fails)
    assert taking.steps == ["taken", "taken", "undone"]


class Keeping:
    """Has another scope where it waits, as a call of a function that starts something does."""

    @holding_interrupts
    def take(self, held: HeldInterrupts) -> str:
        """Take an item."""
        held.undo = self.keep
        held.allow()
        with HeldInterrupts():  # notes the handlers that are set, which are of the scope around it
            return "item"

    def keep(self) -> None:
        """Keep the item."""


def test_a_call_that_has_returned_keeps_no_object() -> None:
    """Its object, which may own processes, is dropped with the last reference of the program."""
    keeping = Keeping()
    dropped = weakref.ref(keeping)
    assert keeping.take() == "item"
    del keeping
    assert dropped() is None


def test_an_error_that_reaches_the_caller_calls_no_function_after_the_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal can come only where a function is called; then the error would be neither delivered nor taken back."""
    taking = Taking()
    calls: list[str] = []
    leave = HeldInterrupts.__exit__

    def leave_and_watch(scope: HeldInterrupts, *error: object) -> None:
        leave(scope, *error)
        sys.setprofile(lambda frame, event, _: calls.append(f"{event} {frame.f_code.co_name}"))

    monkeypatch.setattr(HeldInterrupts, "__exit__", leave_and_watch)
    try:
        taking.take_or_undo(fails=True)
    except LookupError:
        sys.setprofile(None)
    assert [call for call in calls if call.startswith(("call", "c_call"))] == [
        "c_call test_an_error_that_reaches_the_caller_calls_no_function_after_the_scope"
    ]


def test_a_second_signal_interrupts_no_undo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both exceptions come out, one as the context of the other, and the result is taken back once."""
    taking, take_back = Taking(), HeldInterrupts.take_back
    calls: list[HeldInterrupts] = []

    def interrupted(scope: HeldInterrupts) -> None:
        calls.append(scope)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGINT)
        take_back(scope)

    after_the_scope(monkeypatch)
    monkeypatch.setattr(HeldInterrupts, "take_back", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        taking.take_or_undo(fails=False)
    assert isinstance(caught.value.__context__, KeyboardInterrupt)
    assert taking.steps == ["taken", "undone"]
