"""A wait for a thread survives Ctrl-C, and an ended thread leaves nothing behind."""

import os
import signal
import sys
import threading
from contextvars import ContextVar
from decimal import getcontext, localcontext

import pytest

from penstock._os import DaemonThread
from tests.programs.forked import outcome
from tests.promptness import PATIENCE_SECONDS


def test_it_works_and_ends() -> None:
    """It runs its work once, under its name, as a daemon; after the wait it no longer exists."""
    seen: list[tuple[str, bool, bool]] = []
    let_go = threading.Event()

    def work() -> None:
        let_go.wait(PATIENCE_SECONDS)
        current = threading.current_thread()
        seen.append((current.name, current.daemon, thread.is_current))

    thread = DaemonThread(work, "mine")
    assert not thread.is_current
    assert not thread.wait(0.01)
    let_go.set()
    assert thread.wait(PATIENCE_SECONDS)
    assert not any(each.name == "mine" for each in threading.enumerate())
    assert thread.has_ended
    assert thread.wait(0.0)
    assert seen == [("mine", True, True)]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no POSIX signals here")
def test_an_interrupted_wait_can_be_waited_again() -> None:
    """The wait raises Ctrl-C at once; the thread continues, and the next wait waits for its end."""
    let_go, press_now = threading.Event(), threading.Event()

    def press() -> None:
        if press_now.wait(PATIENCE_SECONDS):
            os.kill(os.getpid(), signal.SIGINT)

    def work() -> None:
        let_go.wait(PATIENCE_SECONDS)

    thread, pressing = DaemonThread(work, "waits"), DaemonThread(press, "presses")
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come before the wait
        press_now.set()
        thread.wait(PATIENCE_SECONDS)
    assert not thread.has_ended
    assert not thread.wait(0.01)
    let_go.set()
    assert thread.wait(PATIENCE_SECONDS)
    assert pressing.wait(PATIENCE_SECONDS)


def test_work_that_raises_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error goes to `threading.excepthook`; a wait for the thread ends."""
    raised: list[object] = []

    def record(arguments: threading.ExceptHookArgs) -> None:
        raised.append(arguments.exc_type)

    monkeypatch.setattr(threading, "excepthook", record)

    def work() -> None:
        raise LookupError("none")

    thread = DaemonThread(work, "raises")
    assert thread.wait(PATIENCE_SECONDS)
    assert raised == [LookupError]


def test_it_begins_with_the_context_of_its_starter() -> None:
    """Its context variables have the values of the thread that starts it; what it sets, it alone sees."""
    variable = ContextVar("variable", default=0)
    seen: list[object] = []

    def note() -> None:
        seen.append((variable.get(), getcontext().prec))

    def work() -> None:
        note()
        variable.set(2)
        getcontext().prec = 7
        note()

    with localcontext(prec=5):
        variable.set(1)
        assert DaemonThread(work, "inherits").wait(PATIENCE_SECONDS)
        note()
    assert seen == [(1, 5), (2, 7), (1, 5)]


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize(
    "work", ["bell.wait(0.0)", "CallWhenDropped(lambda: bell.wait(0.0))", "CallWhenDropped(partial(time.sleep, 0.0))"]
)
def test_a_program_ends_while_a_thread_is_in_native_code(work: str) -> None:
    """A thread that asks for the lock of an interpreter that ends just stops; the program ends as always."""
    program = f"""
        import threading, time
        from functools import partial
        from penstock._native import CallWhenDropped
        from penstock._os import Bell

        bell, works = Bell(), threading.Event()

        def run():
            while True:
                {work}
                works.set()

        threading.Thread(target=run, daemon=True).start()
        works.wait()
        print("done")
    """
    assert outcome(program) == (0, "done\n", "")
