"""The op of a stage: its kind, and the location of its code.

An op is a function of one of four kinds, a callable object or class, or a container in which items are looked up. Its
kind follows from its code, before anything runs.
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

_MAX_DEPTH: Final = 32  # of partials, methods and callable objects around a function; ends a cycle of `__call__`s


Item: TypeAlias = Any
"""An argument or result of a user's function: any object; the pipeline doesn't look into it."""


class Lookup(Protocol):
    """A container whose keys are the items: a dict, a list, an array, a dataset."""

    @property
    def __getitem__(self) -> Callable[..., object]: ...


Op: TypeAlias = Callable[[Any], object] | Lookup


def kind_of(op: object) -> Kind:
    """Return the kind of an op; a partial, a bound method or a callable object has that of its function.

    Raises:
        UsageError: the op is neither callable nor a container.

    Example:
        >>> async def fetch(key): ...
        >>> kind_of(len), kind_of(fetch), kind_of({"key": 1}), kind_of(functools.partial(fetch, "key"))
        ('sync', 'async', 'lookup', 'async')
    """
    if not callable(op):
        if hasattr(type(op), "__getitem__"):
            return "lookup"
        raise UsageError(
            f"an op is callable, or has __getitem__; got {op!r:.200}. "
            "Pass a function, or a container in which items are looked up"
        )
    for called in _calls(op):
        if inspect.isasyncgenfunction(called):
            return "async generator"
        if inspect.iscoroutinefunction(called):
            return "async"
        if inspect.isgeneratorfunction(called):
            return "generator"
    return "sync"


def location_of(op: object) -> str:
    """Return where an op's code begins, as `file:line`; empty if it is not written in Python.

    For a decorated function it is the wrapped function's code, for a class its `__init__`.
    """
    called = _calls(op)[-1]
    if isinstance(called, type):
        called = vars(called).get("__init__")
    called = inspect.unwrap(cast("Callable[..., object]", called))
    code: object = getattr(called, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if isinstance(code, CodeType) else ""


def _calls(op: object) -> list[object]:
    """Return the chain of calls of an op: itself, the function of a partial or method, the `__call__` of an object."""
    found = [op]
    while len(found) < _MAX_DEPTH:
        called = _called_by(found[-1])
        if called is None:
            break
        found.append(called)
    return found


def _called_by(op: object) -> object | None:
    """Return the callable inside a partial, a bound method or a callable object; None for anything else."""
    if isinstance(op, functools.partial):
        return cast("functools.partial[object]", op).func
    if isinstance(op, MethodType):
        return cast("object", op.__func__)
    if isinstance(op, type) or inspect.isroutine(op) or not callable(op):
        return None
    method: object = inspect.getattr_static(type(op), "__call__")
    return getattr(method, "__func__", method)  # the function of a static or class method
