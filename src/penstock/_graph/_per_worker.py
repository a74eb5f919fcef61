"""`PerWorker`: a function that each worker makes for itself, such as a decoder that threads can't share."""

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast

from penstock._graph._describe import function_name
from penstock._os import renewed_after_fork
from penstock.errors import UsageError

P = ParamSpec("P")
U = TypeVar("U")
_logger = logging.getLogger("penstock")
_inherited: Final[list[object]] = []  # the parent's objects in a forked child; kept, so that no finalizer runs


class _Holder:
    """An object whose lifetime is that of its thread; a finalizer on it closes the thread's function."""

    __slots__ = ("__weakref__",)


class _Local(threading.local):
    """The calling thread's function, which is in `call` once it was made."""

    call: Callable[..., Any]
    holder: _Holder

    def renew_after_fork(self) -> None:
        """Put the parent's function aside, so that the child makes its own."""
        _inherited.append(dict(self.__dict__))
        self.__dict__.clear()


@dataclass(frozen=True)
class PerWorker(Generic[P, U]):
    """A function for `map` and similar verbs that each worker makes once, at its first element, by calling `make()`.

    The function that `make` returns stays in the thread that made it: it is never pickled, and no two threads call it.
    Its `close()`, if it has one, is called when the thread ends, when the last dataset that uses it is dropped, or when
    the program ends, whichever is first. A context manager without `close` is entered before the first call and left at
    the end. Exceptions of closing are logged. Two values are equal if their `make` is equal.

    Attributes:
        make: called without arguments; returns the function that is called with each element.

    Raises:
        UsageError: at the first element, if the result of `make` can't be called. An exception in `make` is an error of
            the element and follows `on_error`; the next element calls `make` again.

    Example:
        >>> import penstock as ps
        >>> class Decoder:
        ...     def __call__(self, number):
        ...         return number * 2
        >>> with ps.Loader(ps.range(4).map(PerWorker(Decoder)).batch(4), num_workers=2) as loader:
        ...     next(iter(loader))
        array([0, 2, 4, 6])
    """

    make: Callable[[], Callable[P, U]]
    _local: _Local = field(default_factory=_Local, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not callable(self.make):
            raise UsageError(
                f"make must be a function without arguments that returns a function; got {self.make!r}. "
                "Give the class, or a function that returns the object: PerWorker(lambda: Decoder(size))."
            )
        # Steps and messages show this name.
        object.__setattr__(self, "__qualname__", function_name(self.make))
        renewed_after_fork(self._local)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> U:
        """Call this worker's function, made on the first call."""
        try:
            call: Callable[P, U] = self._local.call
        except AttributeError:
            call = self._make_here()
        return call(*args, **kwargs)

    def __reduce__(self) -> tuple[type["PerWorker[P, U]"], tuple[Callable[[], Callable[P, U]]]]:
        return type(self), (self.make,)

    def _make_here(self) -> Callable[P, U]:
        made: Any = self.make()
        close: Callable[[], object] | None = getattr(made, "close", None)
        if close is None and hasattr(made, "__exit__"):
            stack = contextlib.ExitStack()
            made, close = stack.enter_context(made), stack.close
        if not callable(made):
            if callable(close):
                close()
            raise UsageError(
                f"make must return a function that takes an element; {self.make!r} returned "
                f"{type(made).__qualname__}. Return a function, or an object with __call__."
            )
        if callable(close):
            self._local.holder = holder = _Holder()
            weakref.finalize(holder, _close, close, os.getpid())
        self._local.call = made
        return cast("Callable[P, U]", made)


def _close(close: Callable[[], object], pid: int) -> None:
    if os.getpid() != pid:  # a forked child has a copy; the resource is its parent's
        return
    try:
        close()
    except Exception:
        _logger.exception("closing the function that PerWorker made failed")
