"""The end of a resource, which happens once; and its renewal in a forked child.

Problem: Python code that runs because an object is dropped (`__del__`, a weakref callback) can't raise. Python prints a
Ctrl-C that arrives there, and loses it. Solution: a `Closer` closes a resource when that is requested, else when its
owner is dropped, else at program exit; C++ calls it (`CallWhenDropped`), and an interrupt that arrives meanwhile is
raised in the code that runs next.

For the same reason a weak reference has no callback in Python here, and that excludes `WeakMethod` and the weak
dictionaries of the standard library: `weakly` makes a function of a method, and a `Reference` has a callback in C.

`renewed_after_fork` is for locks that another thread held at the fork, and for resources of the parent alone.
"""

import os
import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from penstock._caught import Caught
from penstock._native import CallWhenDropped

PROGRAM_ENDS: Final = "the loader was closed, because the program ends; join the threads that read it before that"

_T = TypeVar("_T")


class Closer:
    """Calls `close` until one call completes. Only the owner holds the closer, so both are dropped together.

    Args:
        close: the function; it must allow another call after an interrupt. It must not reference the owner, except
            through objects that the garbage collector tracks.

    Example:
        >>> closer = Closer(lambda: print("closed"))
        >>> del closer
        closed
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self._closing = _Closing(close)
        self._when_dropped = CallWhenDropped(self._closing)

    @property
    def is_open(self) -> bool:
        """Whether it has not been closed yet."""
        return self._closing.is_open

    @property
    def ends_with_program(self) -> bool:
        """Whether the end of the program closes it; true before it begins to close."""
        return self._closing.ends_with_program

    def __call__(self) -> None:
        """Close now, unless that is done. After an interrupt, which is raised, it is not done: a later call closes."""
        self._closing()


class _Closing:
    """The state of a closer, which outlives the owner until `close` has completed."""

    def __init__(self, close: Callable[[], None]) -> None:
        self.is_open = True
        self.ends_with_program = False
        self._close = close
        # Assigned before `finalize` runs: an interrupt may arrive in between, and `__call__` reads it.
        self._at_exit: weakref.finalize[..., _Closing] | None = None
        # A weak reference: `finalize` lives until the program ends, and `close` may reference the owner.
        self._at_exit = weakref.finalize(self, _close_at_exit, weakref.ref(self))

    def __call__(self) -> None:
        if self.is_open:
            self._close()
            self.is_open = False
            if self._at_exit is not None:
                self._at_exit.detach()


def _close_at_exit(closing: "weakref.ref[_Closing]") -> None:
    alive = closing()
    if alive is not None:
        alive.ends_with_program = True
        alive()


class Renewable(Protocol):
    """Something that a forked child can't use as it was."""

    def renew_after_fork(self) -> None:
        """Make it usable again; called in the child, before any other thread runs there."""
        ...


class Reference(weakref.ref[_T]):
    """A weak reference that equals only itself, so that a set keeps one for each of two equal things.

    Its callback should be a built-in method, such as that of a set or a deque.
    """

    __slots__: tuple[str, ...] = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__


def weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls a bound method, if its object still lives.

    Example:
        >>> class Lamp:
        ...     def ring(self): print("ring")
        >>> lamp = Lamp()
        >>> ring = weakly(lamp.ring)
        >>> ring()
        ring
        >>> del lamp
        >>> ring()
    """
    bound: Any = method
    return partial(_call, weakref.ref(bound.__self__), bound.__func__)


def _call(reference: "weakref.ref[object]", function: Callable[[object], None]) -> None:
    alive = reference()
    if alive is not None:
        function(alive)


_living: Final[set[Reference[Renewable]]] = set()


def renewed_after_fork(thing: Renewable) -> None:
    """Call `thing.renew_after_fork` in every forked child, for as long as the thing lives."""
    _living.add(Reference(thing, _living.discard))


def _renew_all() -> None:
    for reference in list(_living):
        thing = reference()
        with Caught() as caught:
            if thing is not None:
                thing.renew_after_fork()
        if caught.error is not None:  # Python would also print it, and then renew no other thing
            error = caught.taken()
            sys.__excepthook__(type(error), error, error.__traceback__)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
