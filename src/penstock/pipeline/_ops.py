"""What a stage's op is: how it is called, what it is called, and where it was written.

An op is anything that makes something of an item: a function of one of four kinds, an object or class that is called,
or a container that items are looked up in. What it is, is told from its code before anything runs.
"""

import functools
import inspect
from collections.abc import Callable
from types import CodeType, MethodType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, cast

from penstock.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    InT = TypeVar("InT", default=Any)  # `Pipe` alone means `Pipe[Any, Any]`
    OutT = TypeVar("OutT", default=Any)
    OutT_co = TypeVar("OutT_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    InT = TypeVar("InT")
    OutT = TypeVar("OutT")
    OutT_co = TypeVar("OutT_co", covariant=True)

Kind: TypeAlias = Literal["sync", "async", "generator", "async generator", "lookup"]

_DEEPEST: Final = 32


Item: TypeAlias = Any
"""What users' functions are given and return: anything, which only they know."""


class Lookup(Protocol):
    """A container that items are keys of, whatever keys it takes: a dict, a list, an array, a dataset."""

    @property
    def __getitem__(self) -> Callable[..., object]: ...


Op: TypeAlias = Callable[[Any], object] | Lookup


def kind_of(op: object) -> Kind:
    """Return how an op is called; partials, bound methods and objects with a `__call__` are what they call.

    Raises:
        UsageError: if it is neither called nor looked up in.

    Example:
        >>> async def fetch(key): ...
        >>> kind_of(len), kind_of(fetch), kind_of({"key": 1}), kind_of(functools.partial(fetch, "key"))
        ('sync', 'async', 'lookup', 'async')
    """
    if not callable(op):
        if hasattr(type(op), "__getitem__"):
            return "lookup"
        raise UsageError(
            f"an op is called, or has __getitem__; got {op!r:.200}. Give a function, or a container to look items up in"
        )
    for called in _calls(op):
        if inspect.isasyncgenfunction(called):
            return "async generator"
        if inspect.iscoroutinefunction(called):
            return "async"
        if inspect.isgeneratorfunction(called):
            return "generator"
    return "sync"


def name_of(op: object) -> str:
    """Return an op's own name: a function's or class's qualified name, or that of an object's class.

    Example:
        >>> name_of(str.upper), name_of(functools.partial(int, base=2)), name_of({"key": 1})
        ('str.upper', 'int', 'dict')
    """
    while isinstance(op, functools.partial):
        op = cast("functools.partial[object]", op).func
    name: object = getattr(op, "__qualname__", None) or getattr(op, "__name__", None)
    return name if isinstance(name, str) else type(op).__qualname__


def place_of(op: object) -> str:
    """Return where an op's code begins, as `file:line`; empty where it has no code of Python.

    What a decorator wrapped counts, and for a class its `__init__`.
    """
    called = _calls(op)[-1]
    if isinstance(called, type):
        called = vars(called).get("__init__")
    called = inspect.unwrap(cast("Callable[..., object]", called))
    code: object = getattr(called, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if isinstance(code, CodeType) else ""


def _calls(op: object) -> list[object]:
    """Return the op, and what it calls in turn: the function of a partial or method, the `__call__` of an object."""
    found = [op]
    while len(found) < _DEEPEST:
        called = _called_by(found[-1])
        if called is None:
            break
        found.append(called)
    return found


def _called_by(op: object) -> object | None:
    """Return what a partial, a bound method or an object calls; None for functions, classes and what isn't called."""
    if isinstance(op, functools.partial):
        return cast("functools.partial[object]", op).func
    if isinstance(op, MethodType):
        return cast("object", op.__func__)
    if isinstance(op, type) or inspect.isroutine(op) or not callable(op):
        return None
    method: object = inspect.getattr_static(type(op), "__call__")
    return getattr(method, "__func__", method)  # what a static or class method holds
