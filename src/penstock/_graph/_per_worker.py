"""A function that every worker makes for itself: a decoder, a connection, a tokenizer that threads can't share."""

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
_inherited: Final[list[object]] = []  # what a forked child got from its parent: kept, so that nothing ends it here


class _Holder:
    """Lives as long as its thread; its end is the end of the thread's object."""

    __slots__ = ("__weakref__",)


class _Local(threading.local):
    """The calling thread's object, as `call`, once it has been made."""

    call: Callable[..., Any]
    holder: _Holder

    def renew_after_fork(self) -> None:
        """Set the parent's object aside; the child makes one of its own."""
        _inherited.append(dict(self.__dict__))
        self.__dict__.clear()


@dataclass(frozen=True)
class PerWorker(Generic[P, U]):
    """A function for `map` and its like that each worker makes once, at its first element, by calling `make()`.

    What `make` returns stays in the thread or process that made it: it is never pickled, and never called by two
    threads at once. When its thread ends, when the last dataset that uses it is dropped, or else when the program ends,
    its `close()` is called if it has one; a context manager without `close` is entered before its first use and left
    at the end. What closing raises is logged. Two are equal if they make the same.

    Attributes:
        make: called without arguments; returns the function that is then called with every element.

    Raises:
        UsageError: at the first element, if what `make` returns can't be called. What `make` itself raises comes as
            an error of the element, for which `on_error` holds; the next element calls it again.

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
        # What steps and messages call it by, as they would call the function that it stands for.
        object.__setattr__(self, "__qualname__", function_name(self.make))
        renewed_after_fork(self._local)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> U:
        """Call this worker's own object."""
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
                f"make must return what can be called with an element; {self.make!r} returned "
                f"{type(made).__qualname__}. Return a function, or an object with __call__."
            )
        if callable(close):
            self._local.holder = holder = _Holder()
            weakref.finalize(holder, _close, close, os.getpid())
        self._local.call = made
        return cast("Callable[P, U]", made)


def _close(close: Callable[[], object], pid: int) -> None:
    if os.getpid() != pid:  # a forked child has a copy; what is behind it is its parent's
        return
    try:
        close()
    except Exception:
        _logger.exception("closing what PerWorker made failed")
