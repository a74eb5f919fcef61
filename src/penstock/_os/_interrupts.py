"""Signals that wait: a scope in which their handlers run only where it allows them, and threads that lose none.

Problem: Python may call a signal's handler between any two instructions of the main thread. The exception that the
handler raises (Ctrl-C, a timeout, any other) then leaves things half done: a lock that was just taken is never
released, a packet that was just read is lost, a thread that was just started has no owner. Python interrupts no other
thread; there a scope does nothing.

Guarantees of `HeldInterrupts`:
  - A handler is called once for a signal, or once for several of the same number, as Python does. Its exception is
    raised once: by `allow`, by the code after it, or at the end of the scope.
  - The scope restores all handlers, however it ends.
  - Scopes may be nested: the inner scope's signals wait for the end of the outer one. So an inner scope leaves the
    handlers as they are, which is cheaper, while the outer one holds.
  - The result of a `holding_interrupts` method reaches its caller, or its `undo` is called, once. This also holds for a
    signal that Python notices between the scope's end and the return, and for a second signal during the `undo`.

Where a function starts a thread, a process or a coroutine and keeps it, or takes something out of a queue and notes it,
it is marked `@uninterrupted`. A method that also waits is marked `@holding_interrupts`, and allows interrupts there.
Rejected: to hold interrupts during all of a loader's `next`. A scope costs about as much as an inline batch of one row.

A `DaemonThread` refers to no `threading.Thread`, because of two traps of `threading`:
  - When a `Thread` is dropped, `threading` runs Python code for it. Python prints a Ctrl-C that arrives there, and does
    not raise it. So the last reference to the `Thread` belongs to the thread itself, which signals never interrupt.
  - In Python 3.11 a `join` that Ctrl-C ends marks the thread as ended. So a bell reports the end.
"""

import contextvars
import functools
import importlib
import inspect
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Concatenate, Final, ParamSpec, Self, TypeVar

from penstock._caught import Handler, python_handlers, scopes
from penstock._os._bell import Bell

ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")
OwnerT = TypeVar("OwnerT")

_signal = importlib.import_module("_signal")
_get: Final[Callable[[int], object]] = _signal.getsignal
_set: Final[Callable[[int, Handler], object]] = _signal.signal


class HeldInterrupts:
    """A scope in which signals are held back, except between `allow` and `hold`.

    At its end the scope calls the handlers of the signals that arrived.

    Attributes:
        undo: takes back the result of a `holding_interrupts` method, which a handler's exception keeps from its caller.
        has_raised: whether a handler has raised where the scope allowed it.
        replaced: the handlers of the program, by number; none in a scope that leaves them as they are.
    """

    __slots__ = ("_allowed", "_arrived", "has_raised", "replaced", "undo")

    def __init__(self) -> None:
        self.undo: Callable[[], object] | None = None
        self.has_raised = False
        self._arrived: list[int] = []  # numbers of signals whose handlers were not called yet
        self._allowed = False
        self.replaced: dict[int, Handler] = {}

    def __enter__(self) -> Self:
        if threading.get_ident() == threading.main_thread().ident:
            if scopes and scopes[-1].holds():
                return self
            self.replaced = python_handlers()
            try:
                scopes.append(self)
                for number in self.replaced:
                    _set(number, self._on_signal)
            except BaseException:  # from a handler that was not replaced yet
                self.__exit__()
                raise
        return self

    def __exit__(self, *error: object) -> None:
        if self in scopes:
            scopes.remove(self)
        if self.replaced:
            try:
                self._restore()
            finally:
                self._call_handlers()

    def take_back(self) -> None:
        """Call `undo`, once."""
        with HeldInterrupts():
            undo, self.undo = self.undo, None
            if undo is not None:
                undo()

    def allow(self) -> None:
        """Call the handlers of the signals that arrived; from now on call handlers at once."""
        self._allowed = True
        self._call_handlers()

    def hold(self) -> None:
        """Hold signals back from now on. After a handler has raised, the scope does so by itself."""
        self._allowed = False

    def allowing(self, function: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Return the result of a call during which handlers run; a handler's exception may also follow the call."""
        self.allow()
        try:
            return function(*arguments)
        finally:
            self.hold()

    def holds(self) -> bool:
        """Return whether signals reach this scope, and wait; a handler of the program may have set others."""
        are_set = bool(self.replaced) and all(_get(number) == self._on_signal for number in self.replaced)
        return are_set and not self._allowed

    def _restore(self) -> None:
        try:
            for number, handler in self.replaced.items():
                if _get(number) == self._on_signal:  # if not, a handler of the program has set another one
                    _set(number, handler)
        except BaseException:  # from a handler that was just restored
            self._restore()
            raise

    def _on_signal(self, number: int, frame: FrameType | None, /) -> None:
        if number not in self._arrived:
            self._arrived.append(number)
        if self._allowed:
            self._call_handlers(frame)

    def _call_handlers(self, frame: FrameType | None = None) -> None:
        if not self._arrived:
            return
        allowed = self._allowed
        self._allowed = False  # and stays so if a handler raises, so that one exception is raised
        number = self._arrived.pop(0)
        try:
            self.replaced[number](number, frame or inspect.currentframe())
        except BaseException:
            self.has_raised = True
            raise
        finally:
            self._call_handlers()
        self._allowed = allowed


def uninterrupted(function: Callable[ParamsT, ResultT]) -> Callable[ParamsT, ResultT]:
    """Make a function hold signals back while it runs: one that starts something and keeps it, or takes and notes it.

    The function doesn't wait and calls no function of the user, so that Ctrl-C is never late. Functions that it calls
    need no scope of their own.

    Example:
        >>> @uninterrupted
        ... def start(threads):
        ...     threads.append(DaemonThread(lambda: None, "example"))
        >>> threads = []
        >>> start(threads)
        >>> threads[0].wait(None)
        True
    """

    @functools.wraps(function)
    def held(*args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
        with HeldInterrupts():
            return function(*args, **kwargs)

    return held


def holding_interrupts(
    method: Callable[Concatenate[OwnerT, HeldInterrupts, ParamsT], ResultT],
) -> Callable[Concatenate[OwnerT, ParamsT], ResultT]:
    """Make a method hold signals back, except where it waits.

    Returns:
        The method, which callers call without `held`: the scope, in which the method's waits let signals through.
    """

    @functools.wraps(method)
    def call(self: OwnerT, /, *args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
        # Python calls handlers at the ends of calls, also of the call that ends the scope. Up to `return`, and to the
        # first `raise` below, follow no further calls. So the result or the method's own error reaches the caller.
        held = HeldInterrupts()
        raised: BaseException | None = None
        try:
            with held:
                try:
                    result = method(self, held, *args, **kwargs)
                except BaseException as error:
                    raised = error
                    raise
        except BaseException as error:
            if error is raised:
                raised = held.undo = None  # they hold this frame, by the traceback
                raise
            raised = None
            try:
                held.take_back()
            finally:
                held.take_back()  # in case that a second signal came before the first call
            raise
        held.undo = None  # no call; a scope inside of this one may have noted `held`, with its handler of signals
        return result

    return call


class DaemonThread:
    """A thread that runs `work` once, with the context variables of the thread that starts it.

    So functions of the program compute the same there: NumPy's treatment of errors and decimal's precision are such
    variables. Their values are shared, but for decimal's context, which functions may change.

    Example:
        >>> done = []
        >>> thread = DaemonThread(lambda: done.append("work"), "example")
        >>> thread.wait(None), done
        (True, ['work'])
    """

    @uninterrupted
    def __init__(self, work: Callable[[], None], name: str) -> None:
        """Start the thread."""
        self.name: Final = name
        ended = Bell()
        self._ended: Bell | None = ended  # None once it has rung
        thread = threading.Thread(target=_context().run, args=(_run, work, ended), name=name, daemon=True)
        self._thread = weakref.ref(thread)
        thread.start()
        self._ident = thread.ident

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.get_ident() == self._ident and not self.has_ended  # a new thread may get the same ident

    @property
    def has_ended(self) -> bool:
        """Whether the work is over."""
        ended = self._ended
        return ended is None or ended.wait(0.0)

    def wait(self, timeout_seconds: float | None) -> bool:
        """Wait until the thread has ended; Ctrl-C ends the wait, and changes nothing.

        Returns:
            Whether it has ended; False after the timeout.
        """
        ended = self._ended
        if ended is not None and not ended.wait(timeout_seconds):
            return False
        self._ended = None
        self._join()
        return True

    @uninterrupted
    def _join(self) -> None:
        thread = self._thread()
        if thread is not None:
            thread.join()  # short: its work is done


def _context() -> contextvars.Context:
    context = contextvars.copy_context()
    if (decimal := sys.modules.get("decimal")) is not None:
        context.run(decimal.setcontext, decimal.getcontext().copy())
    return context


def _run(work: Callable[[], None], ended: Bell) -> None:
    try:
        work()
    finally:
        ended.ring()
        del ended, work  # a traceback that outlives the thread would keep them alive through this frame
