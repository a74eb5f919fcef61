"""The op of a stage: its kind, its name, its parameters and the location of its code.

An op is a function of one of four kinds, a callable object or class, or a container in which items are looked up. Its
kind follows from its code, before anything runs.
"""

import functools
import inspect
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FunctionType, MethodType
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


def name_of(op: object) -> str:
    """Return an op's default name: the qualified name of a function or class, or of an object's class.

    Example:
        >>> name_of(str.upper), name_of(functools.partial(int, base=2)), name_of({"key": 1})
        ('str.upper', 'int', 'dict')
    """
    while isinstance(op, functools.partial):
        op = cast("functools.partial[object]", op).func
    name: object = getattr(op, "__qualname__", None) or getattr(op, "__name__", None)
    return name if isinstance(name, str) else type(op).__qualname__


def check_takes(called: object, count: int, what: str) -> None:
    """Check that a callable can be called with `count` positional arguments.

    It raises only if the call would certainly fail. A callable without a signature, or whose signature a decorator has
    replaced, passes here and may fail when it is called.

    Args:
        called: a function, class, partial, method, or object with a `__call__`.
        count: how many arguments the stage passes.
        what: the name of the stage's part in the error message.

    Raises:
        UsageError: it takes fewer arguments, or needs more.

    Example:
        >>> check_takes(len, 1, "an op")
        >>> check_takes(divmod, 1, "an op")
        Traceback (most recent call last):
        penstock.errors.UsageError: an op is called with one argument, the item; got divmod, where divmod takes \
(x, y, /): missing a required argument: 'y'. Bind other arguments with functools.partial
    """
    function = called
    given: list[object] = [None] * count
    keywords: dict[str, object] = {}
    for _ in range(_MAX_DEPTH):
        before = function
        if isinstance(function, functools.partial):
            partial = cast("functools.partial[object]", function)
            given = [*_filled(partial.args, given), *given]
            keywords = {**partial.keywords, **keywords}
            function = partial.func
        elif isinstance(function, MethodType):
            given = [function.__self__, *given]
            function = cast("object", function.__func__)
        elif isinstance(function, type) or not inspect.isroutine(function):
            function, given = _function_of(function, given)
        if function is before:
            break
    signature = None if function is None else _signature_of(function)
    if signature is None:
        return
    try:
        signature.bind(*given, **keywords)
    except TypeError as error:
        arguments = {0: "no argument", 1: "one argument, the item"}[count]
        raise UsageError(
            f"{what} is called with {arguments}; got {name_of(called)}, where {name_of(function)} takes "
            f"{_parameters(signature)}: {error}. Bind other arguments with functools.partial"
        ) from None


def _function_of(called: object, given: list[object]) -> tuple[object | None, list[object]]:
    """Return the function that runs when a class or object is called, and its arguments; None if that isn't certain."""
    if isinstance(called, type):
        return _constructor_of(called), [called, *given]
    method: object = inspect.getattr_static(type(called), "__call__", None)
    match method:
        case FunctionType():
            return method, [called, *given]
        case staticmethod():
            return cast("staticmethod[..., object]", method).__func__, given
        case classmethod():
            return cast("classmethod[Any, ..., object]", method).__func__, [type(called), *given]
        case _:
            return None, given


def _constructor_of(made: type) -> object | None:
    if type(made) is not type or "__signature__" in vars(made):
        return None
    new, init = (inspect.getattr_static(made, name) for name in ("__new__", "__init__"))
    no_new, no_init = (vars(object)[name] for name in ("__new__", "__init__"))
    if new is no_new:
        return init if isinstance(init, FunctionType) else (_takes_nothing if init is no_init else None)
    return (
        cast("staticmethod[..., object]", new).__func__ if isinstance(new, staticmethod) and init is no_init else None
    )


def _takes_nothing(_: object) -> None:
    """Stand in for the constructor of a class with neither `__init__` nor `__new__`: its signature is the same."""


def _signature_of(function: object) -> inspect.Signature | None:
    """Return the signature of a function's code; None if it has none, or if a decorator set another one."""
    if "__signature__" in getattr(function, "__dict__", {}):
        return None
    with suppress(Exception):  # an annotation may name something that doesn't exist
        return inspect.signature(cast("Callable[..., object]", function), follow_wrapped=False)
    return None


def _filled(arguments: tuple[object, ...], given: list[object]) -> list[object]:
    """Return a partial's arguments, with its placeholders (Python 3.14) filled from the front of `given`."""
    placeholder: object = getattr(functools, "Placeholder", None)
    return [given.pop(0) if each is placeholder and given and placeholder is not None else each for each in arguments]


def _parameters(signature: inspect.Signature) -> str:
    """Return the names of the parameters, without annotations."""
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


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
