"""Exceptions of user code, caught in one place to be raised in another.

The problem: Python calls a signal's handler between any two instructions of the main thread, so an exception of a
handler (Ctrl-C, a timer's time-out) is raised in any code that happens to run. Code that takes it for a failure of an
element would skip that element, or compute its batch again, and the program would lose its exception.

The solution: `CaughtFailure` keeps what user code raises, and lets Ctrl-C and exceptions of signals' handlers pass.
`raised_by_handler` tells the two apart by the traceback: Python passes the interrupted frame to a handler, so a
handler's frame has that frame among its local variables. Everything that catches exceptions on the path of a batch uses
this module.

Rejected: a test for KeyboardInterrupt only, since handlers raise other exceptions, such as a time-out that derives from
Exception; and a comparison with the installed handlers only, since a handler may have been replaced by the time its
exception is caught.

Invariants:
  - The exception of a handler that interrupts this library's code is raised from the caller's own call.
  - A handler that user code installs and removes inside a function, for a time limit, counts as part of that code.
  - In a worker process all handlers count as user code (`keep_all`), since no caller waits there.
  - What ends programs, such as SystemExit, is a failure like any other where user code raises it.
"""

import importlib
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final, Protocol, Self, TypeAlias, cast

Handler: TypeAlias = Callable[[int, FrameType | None], Any]

# From the C module: the function of `signal` takes ten times as long, since it converts results to enumerations.
_get: Final[Callable[[int], Any]] = importlib.import_module("_signal").getsignal
_NUMBERS: Final = sorted(set(map(int, signal.valid_signals())) - {int(signal.SIGKILL), int(signal.SIGSTOP)})


class Replacing(Protocol):
    """A scope of held signals (`_os._interrupts`), which has set handlers of its own."""

    replaced: dict[int, Handler]
    """The program's handlers, by number."""

    def holds(self) -> bool:
        """Return whether signals reach this scope, and wait."""
        ...


scopes: Final[list[Replacing]] = []
"""The scopes that have set handlers, the innermost one last."""
_passes = True
_seen: tuple[tuple[list[Any], dict[int, Handler]], ...] = ()  # the last two: with signals held and not held


class Caught:
    """Keeps the exception of its block, in which user code runs, to be raised or reported elsewhere.

    Args:
        kind: the class of exceptions that are kept, by default all. Ctrl-C may be raised anywhere in the main thread,
            and is lost if the caller only reports the block's error, or tries another way; `CaughtFailure` lets it
            pass. Exceptions of signals' handlers are kept only with BaseException.
    """

    __slots__ = ("_kind", "error")

    def __init__(self, kind: type[BaseException] = BaseException) -> None:
        self.error: BaseException | None = None
        self._kind = kind

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> bool:
        if not isinstance(error, self._kind):
            return False
        if self._kind is not BaseException and raised_by_handler(error):
            return False
        self.error = error
        return True

    def taken(self) -> BaseException:
        """Return the exception and drop this reference to it; the two would form a cycle through its traceback."""
        assert self.error is not None
        error, self.error = self.error, None
        return error


class CaughtFailure(Caught):
    """Keeps what user code raises in its block, of any kind, and lets interrupts pass (`is_interrupt`).

    An error that is kept under a name, and not taken, forms a cycle through its traceback: then delete the name.
    """

    __slots__ = ()

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> bool:
        if error is None or is_interrupt(error):
            return False
        self.error = error
        return True


def add_note(error: BaseException, note: str) -> None:
    """Add a note to a user's exception; not if its class refuses to have attributes set, as a frozen dataclass does."""
    with CaughtFailure():
        error.add_note(note)


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception must pass at once: Ctrl-C, or that of a signal's handler, in the main thread.

    So must a group that has one, such as that of tasks which Ctrl-C has cancelled.
    """
    if any(map(is_interrupt, _members(error))):
        return True
    return _is_main() and (isinstance(error, KeyboardInterrupt) or raised_by_handler(error))


def _members(error: BaseException) -> tuple[BaseException, ...]:
    if not isinstance(error, BaseExceptionGroup):
        return ()
    return cast("BaseExceptionGroup[BaseException]", error).exceptions


def ends_generator(error: BaseException) -> bool:
    """Return whether a generator must end at once: at an interrupt, or closed where it has yielded."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    is_closed = isinstance(error, GeneratorExit) and trace is not None and _is_ours(trace.tb_frame)
    return is_closed or is_interrupt(error)


def raised_by_handler(error: BaseException) -> bool:
    """Return whether a signal's handler raised an exception, rather than the code that the signal interrupted.

    The traceback then has the frame of a handler below the interrupted frame, which Python passes to the handler. An
    installed handler is recognized by its code, too, as one that a scope of held signals has replaced: the exception
    may have been raised before the scope began. A handler that is no longer installed and interrupted the user's
    code counts as part of that code: functions with a time limit have such handlers. But one that ends the program, as
    by SystemExit, may have put back the handler before it, so that the next signal kills.
    """
    trace = error.__traceback__
    if trace is None or trace.tb_next is None or not _is_main():
        return False
    codes = set(map(_code_of, python_handlers().values()))
    for scope in scopes:
        codes.update(map(_code_of, scope.replaced.values()))
    interrupted, trace, is_ours = trace.tb_frame, trace.tb_next, True
    ends = not isinstance(error, Exception)
    while trace is not None:
        frame = trace.tb_frame
        is_ours = is_ours and _is_ours(interrupted)
        if frame.f_code in codes or ((is_ours or ends) and _is_given(frame, interrupted)):
            return True
        interrupted, trace = frame, trace.tb_next
    return False


def waited(wait: Callable[..., bool], *arguments: object) -> bool:
    """Return the result of a wait that changes nothing, so that its caller can wait again after a handler's exception.

    To the caller of this function, too, nothing has happened that another call wouldn't repeat (`ended_wait`).
    """
    return wait(*arguments)


def ended_wait(error: BaseException) -> bool:
    """Return whether an exception was raised inside of `waited`, which no code of the program has called meanwhile."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame):
        if trace.tb_frame.f_code is waited.__code__:
            return True
        trace = trace.tb_next
    return False


def keep_all() -> None:
    """Treat exceptions of handlers as part of the code that they interrupt, in a worker process.

    No caller waits for such an exception in a worker, where only the user's functions install handlers.
    """
    global _passes
    _passes = False


def _is_main() -> bool:
    return _passes and threading.get_ident() == threading.main_thread().ident


def _is_ours(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__")).partition(".")[0]
    return name == "penstock" or name in sys.stdlib_module_names


def _is_given(frame: FrameType, caller: FrameType) -> bool:
    for value in frame.f_locals.values():
        given = cast("tuple[object, ...]", value) if type(value) is tuple else (value,)
        if any(each is caller for each in given):
            return True
    return False


def _code_of(handler: object) -> object:
    function = getattr(handler, "func", handler)  # unwraps a `functools.partial`
    function = getattr(function, "__func__", function)
    return getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)


def python_handlers() -> dict[int, Handler]:
    """Return the handlers of all signals that have one in Python, by number. Callers must not change the dict."""
    global _seen
    found = list(map(_get, _NUMBERS))  # this is fast; making the dict is slow
    for handlers, by_number in _seen:
        if handlers == found:
            return by_number
    made = {number: handler for number, handler in zip(_NUMBERS, found, strict=True) if callable(handler)}
    _seen = (*_seen[-1:], (found, made))  # a new tuple: a signal's handler may call this during the loop above
    return made
