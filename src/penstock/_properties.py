"""Properties of classes that have a `__getattr__`, from which an AttributeError of user code reaches the caller.

The problem: Python also calls `__getattr__` after a property has raised an AttributeError, and drops that error. So a
mistake in a user's function, which a property calls, would look as if the object had no such property.

The solution: a class with a `__getattr__` derives from `NotesErrors`. Its properties, and those of its subclasses, note
their AttributeErrors; `__getattr__` begins with `raise_noted`, which raises such an error again.

Rejected: to get the property once more in `__getattr__`. The user's function would be called twice, and the second call
may succeed, as with a stream that has moved on. And `__getattribute__`, which would slow down every attribute.
"""

import functools
import threading
from collections.abc import Callable


class _Noted(threading.local):
    error: tuple[object, str, AttributeError] | None = None
    """The error that a property has just raised in this thread, with the object and the property's name."""


_noted = _Noted()


class NotesErrors:
    """The base of a class that has a `__getattr__`: its properties note their AttributeErrors."""

    __slots__ = ()

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        for name, found in list(vars(cls).items()):
            if isinstance(found, property) and found.fget is not None:
                setattr(cls, name, found.getter(_noting(name, found.fget)))


def _noting(name: str, getter: Callable[[object], object]) -> Callable[[object], object]:
    @functools.wraps(getter)
    def get(owner: object) -> object:
        try:
            return getter(owner)
        except AttributeError as error:
            _noted.error = (owner, name, error)
            raise

    return get


def raise_noted(owner: object, name: str) -> None:
    """Raise the AttributeError of an object's property again, if Python calls `__getattr__` because of it."""
    noted, _noted.error = _noted.error, None
    if noted is not None and noted[0] is owner and noted[1] == name:
        try:
            raise noted[2]
        finally:
            del noted  # its traceback holds this frame
