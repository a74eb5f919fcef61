"""Keeping what user code raises, of any kind, for code elsewhere that raises it again.

Python calls a signal's handler between any two instructions of the main thread, so what a handler raises (Ctrl-C, a
timer's time-out) comes out of whatever runs there. It is no failure of that, and must not be taken for one: an element
would be skipped, or a batch computed again, and the exception would be lost. So it passes through here, and through
everything that catches `Exception` on the way of a batch, and comes out of the caller's call.
"""

import importlib
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final, Self, TypeAlias, cast

Handler: TypeAlias = Callable[[int, FrameType | None], Any]

# What is below `signal`, which takes ten times as long for making enumerations of what it returns.
_get: Final[Callable[[int], Any]] = importlib.import_module("_signal").getsignal
_NUMBERS: Final = sorted(set(map(int, signal.valid_signals())) - {int(signal.SIGKILL), int(signal.SIGSTOP)})

_passes = True
_seen: tuple[list[Any], dict[int, Handler]] = [], {}


class Caught:
    """Keeps what its block raises: user code runs in it, and another will tell what it raised.

    Args:
        kind: what is kept, by default all. Where an error is told in other words, or leaves only another way to go,
            Ctrl-C would be lost, which is raised anywhere in the program's main thread: there it must be Exception; or,
            where threads do the same and mustn't end, all, with `pass_interrupt` after the block. What a signal's
            handler raises is kept only where all is.
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

    def pass_interrupt(self) -> None:
        """Raise it if a signal's handler may have: only the main thread gets that, and told in words it is lost."""
        if self.error is None or threading.current_thread() is not threading.main_thread():
            return
        if isinstance(self.error, KeyboardInterrupt) or raised_by_handler(self.error):
            raise self.taken()

    def taken(self) -> BaseException:
        """Return what was raised, and forget it: its traceback would hold whoever raises it again, and holds this."""
        assert self.error is not None
        error, self.error = self.error, None
        return error


def raised_by_handler(error: BaseException) -> bool:
    """Return whether a signal's handler raised an exception, and not the code that the signal interrupted.

    The traceback then has the frame of a handler below the frame that the signal interrupted, which the handler is
    given. A handler that is installed is known by its code, too. One that isn't installed any more and interrupted the
    user's code counts as part of that code: functions with a time limit have such handlers.
    """
    trace = error.__traceback__
    if trace is None or trace.tb_next is None or not _is_main():
        return False
    codes = set(map(_code_of, python_handlers().values()))
    interrupted, trace, is_ours = trace.tb_frame, trace.tb_next, True
    while trace is not None:
        frame = trace.tb_frame
        is_ours = is_ours and _is_ours(interrupted)
        if frame.f_code in codes or (is_ours and _is_given(frame, interrupted)):
            return True
        interrupted, trace = frame, trace.tb_next
    return False


def keep_all() -> None:
    """Take what handlers raise in this process for part of the code that they interrupt: it is a worker's.

    No caller waits for it here, and only the user's functions install handlers.
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
    function = getattr(handler, "func", handler)  # of a `functools.partial`
    function = getattr(function, "__func__", function)
    return getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)


def python_handlers() -> dict[int, Handler]:
    """Return the handlers of all signals that have one in Python; by number. Not to be changed."""
    global _seen  # to pick from the table each time would take longer than to read it
    found = list(map(_get, _NUMBERS))
    if found != _seen[0]:
        _seen = found, {number: handler for number, handler in zip(_NUMBERS, found, strict=True) if callable(handler)}
    return _seen[1]
