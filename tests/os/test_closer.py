"""A closer closes once: on request, when its owner is dropped, or at exit. Weak references lose no interrupt."""

import gc
import signal
import sys
import weakref
from collections.abc import Callable
from types import FrameType

import pytest

from penstock._native import CallWhenDropped
from penstock._os import Closer, Reference, renewed_after_fork, weakly
from tests.programs.forked import outcome


class Owner:
    """Owns a closer."""

    def __init__(self, close: Callable[[], None]) -> None:
        self.closer = Closer(close)
        self.other: object = None


def test_closed_once_on_request_or_with_the_owner() -> None:
    """Called twice and dropped, it closes once; else at once with the owner's last reference, or by the collector."""
    closed: list[str] = []
    owner = Owner(lambda: closed.append("called"))
    opened = [owner.closer.is_open]
    owner.closer()
    owner.closer()
    opened.append(owner.closer.is_open)
    del owner
    assert (opened, closed) == ([True, False], ["called"])
    owner = Owner(lambda: closed.append("dropped"))
    del owner
    assert closed == ["called", "dropped"]
    owner = Owner(lambda: closed.append("collected"))
    owner.other = owner
    del owner
    assert closed == ["called", "dropped"]
    gc.collect()
    assert closed == ["called", "dropped", "collected"]


def test_a_cycle_through_the_owner_is_collected() -> None:
    """A resource that has come to reference the owner, as an error does by its traceback, is collected with it."""

    class Resource:
        def __init__(self) -> None:
            self.error: object = None

        def close(self) -> None:
            closed.append(1)

    closed: list[int] = []
    resource = Resource()
    owner = Owner(resource.close)
    resource.error = owner
    dropped = weakref.ref(resource)
    del owner, resource
    gc.collect()
    assert closed == [1]
    assert dropped() is None


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_interrupts_of_a_drop_are_raised_when_the_program_continues(kind: type[BaseException]) -> None:
    """A signal's handler may raise at each attempt: the owner is closed, and the last exception has the others."""
    calls: list[int] = []

    def close() -> None:
        calls.append(1)
        if len(calls) < 4:
            raise kind(len(calls))

    owner = Owner(close)
    with pytest.raises(kind) as caught:  # noqa: PT012 - it's raised some instructions after the drop
        del owner
        drop([])
    assert [error.args for error in chain_of(caught.value)] == [(3,), (2,), (1,)]
    assert len(calls) == 4


def test_an_interrupt_of_a_call_is_raised_by_it() -> None:
    """A call raises the interrupt; the closer is still open."""
    calls: list[int] = []

    def close() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt

    owner = Owner(close)
    with pytest.raises(KeyboardInterrupt):
        owner.closer()
    assert owner.closer.is_open
    del owner
    assert len(calls) == 2


def test_an_error_of_a_drop_is_printed_and_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in closing goes where Python sends those of dropped objects; an error on its way stays as it is."""
    raised: list[object] = []

    def record(unraisable: "sys.UnraisableHookArgs") -> None:
        raised.append(unraisable.exc_type)

    monkeypatch.setattr(sys, "unraisablehook", record)

    def broken() -> None:
        raise OSError("is gone")

    def fail() -> None:
        owner = Owner(broken)
        raise LookupError(owner.closer.is_open)

    try:
        fail()
    except LookupError as error:
        error.__traceback__ = None  # drops the owner
    assert raised == [OSError]


@pytest.mark.usefixtures("forked_programs")
def test_closed_at_the_end_of_the_program() -> None:
    """An owner that is still there is closed in good order, while all modules are there.

    A Ctrl-C may come when a closer is kept for the program's end, and its maker doesn't know it yet.
    """
    program = """
        import weakref
        from penstock._os import Closer
        kept = [Closer(lambda number=number: print('closed', number)) for number in range(2)]
        make = weakref.finalize
        def make_and_interrupt(*arguments):
            make(*arguments)
            raise KeyboardInterrupt
        weakref.finalize = make_and_interrupt
        try:
            Closer(lambda: print('closed'))
        except KeyboardInterrupt as error:
            kept.append(error)
    """
    assert outcome(program) == (0, "closed\nclosed 1\nclosed 0\n", "")


def test_an_uninitialised_object_calls_nothing() -> None:
    """The native object survives being collected without having been initialised."""
    owner: list[object] = [CallWhenDropped.__new__(CallWhenDropped)]
    owner.append(owner)
    del owner
    gc.collect()


def test_closed_at_the_bottom_of_a_recursion() -> None:
    """The collector runs anywhere; where there is no room for calls of `close`, it is given other room."""
    closed: list[int] = []
    owners = [Owner(lambda: closed.append(depth(100)))]

    def descend() -> None:
        try:
            descend()
        finally:
            owners.clear()

    with pytest.raises(RecursionError):
        descend()
    assert closed == [100]


def depth(calls: int) -> int:
    """Return the number of nested calls that it makes."""
    return 1 + depth(calls - 1) if calls > 1 else 1


def test_an_endless_recursion_in_closing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """It is printed, like every exception of what closes on drop."""

    def endless() -> None:
        endless()

    hook, sys.unraisablehook = sys.unraisablehook, sys.__unraisablehook__
    try:
        del Owner(endless).closer
    finally:
        sys.unraisablehook = hook
    assert "RecursionError" in capsys.readouterr().err


class Same:
    """Equals every other; something that is renewed, and whose method is called weakly."""

    def __init__(self) -> None:
        self.calls: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same)

    def __hash__(self) -> int:
        return 1

    def renew_after_fork(self) -> None:
        """Do nothing."""

    def count(self) -> None:
        """Count a call."""
        self.calls += 1


def test_a_reference_equals_itself_alone() -> None:
    """Two equal things have two references in a set, and each leaves it when its thing is dropped."""
    things = [Same(), Same()]
    living: set[Reference[Same]] = set()
    living.update(Reference(thing, living.discard) for thing in things)
    assert len(living) == 2
    del things[0]
    assert [reference() for reference in living] == things
    things.clear()
    assert living == set()


def test_a_drop_runs_no_python_of_weak_references() -> None:
    """An interrupt would be lost there. A function that calls a method weakly doesn't keep its object alive."""
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    thing = Same()
    renewed_after_fork(thing)
    function = weakly(thing.count)
    function()
    calls, dropped = thing.calls, weakref.ref(thing)
    sys.setprofile(note)
    del thing
    sys.setprofile(None)
    function()
    assert (calls, dropped(), called) == (1, None, [])


@pytest.mark.usefixtures("forked_programs")
def test_a_renewal_that_fails_keeps_no_other_from_a_forked_child() -> None:
    """All things are renewed, and Python prints the errors."""
    ended = outcome("""
        import os
        from penstock._os import renewed_after_fork

        class Thing:
            def renew_after_fork(self):
                print("renewed", flush=True)
                raise OSError("too many open files")

        things = [Thing(), Thing()]
        for thing in things:
            renewed_after_fork(thing)
        if os.fork() == 0:
            os._exit(0)
        os.wait()
    """)
    assert ended.stdout.split() == ["renewed"] * 2
    assert ended.stderr.count("OSError: too many open files") == 2


class StoppedError(Exception):
    """An exception of a signal's handler."""


def drop(owner: list[object]) -> None:
    """Drop the objects of a list, and execute some instructions: an exception is raised at one of the next ones."""
    owner.clear()
    for _ in range(1000):
        pass


def stop(*_: object) -> None:
    """Raise, as a signal's handler does."""
    raise StoppedError


def chain_of(error: BaseException | None) -> list[BaseException]:
    """Return an exception, and those of its context."""
    return [] if error is None else [error, *chain_of(error.__context__)]


@pytest.mark.filterwarnings("error")
def test_an_exception_of_a_handler_is_not_the_functions_own() -> None:
    """If a signal's handler raises while a function runs for a drop, the call is repeated, and the program gets it."""
    calls: list[int] = []

    def function() -> None:
        calls.append(1)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with pytest.raises(StoppedError):
            drop([CallWhenDropped(function)])
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(calls) == 2


def test_an_exception_that_is_handled_is_the_context_of_one_from_a_drop() -> None:
    """An exception of a drop that is raised while another one is handled has that one as context, beside its own."""
    calls: list[int] = []

    def function() -> None:
        calls.append(1)
        try:
            int("one")
        except ValueError:
            stop()

    def divide(zero: int) -> None:
        try:
            len((CallWhenDropped(function, never_raises=True), 1 // zero))
        except ZeroDivisionError:
            drop([])

    with pytest.raises(StoppedError) as caught:
        divide(0)
    assert len(calls) == 1  # the exception is a handler's, so the function isn't called again
    assert list(map(type, chain_of(caught.value))) == [StoppedError, ValueError, ZeroDivisionError]


def test_a_context_that_is_a_circle() -> None:
    """An exception of a drop is raised, without a context, where that of the exception that is handled never ends."""
    circle, other = ValueError(), KeyError()
    circle.__context__, other.__context__ = other, circle

    def fail() -> int:
        raise circle

    def call() -> None:
        try:
            len((CallWhenDropped(stop, never_raises=True), fail()))
        except ValueError:
            drop([])

    with pytest.raises(StoppedError) as caught:
        call()
    assert caught.value.__context__ is None
    assert circle.__context__ is other
    circle.__context__ = None
