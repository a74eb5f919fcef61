"""The signatures of callables: whether a call with some arguments would certainly fail."""

import functools
import inspect
from contextlib import suppress
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final, cast

from penstock._printable import printable
from penstock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_DEPTH: Final = 32  # of partials, methods and callable objects around a function; ends a cycle of `__call__`s


def name_of(op: object) -> str:
    """Return the name of a callable for texts: the qualified name of a function or class, or of an object's class.

    Example:
        >>> name_of(str.upper), name_of(functools.partial(int, base=2)), name_of({"key": 1})
        ('str.upper', 'int', 'dict')
    """
    while isinstance(op, functools.partial):
        op = cast("functools.partial[object]", op).func
    name: object = getattr(op, "__qualname__", None) or getattr(op, "__name__", None)
    return printable(name if isinstance(name, str) else type(op).__qualname__)


def check_takes(
    called: object, arguments: tuple[str, ...], what: str, remedy: str = "Bind other arguments with functools.partial"
) -> None:
    """Check that a callable can be called with some positional arguments.

    It raises only if the call would certainly fail. A callable without a signature, or whose signature a decorator has
    replaced, passes here and may fail when it is called.

    Args:
        called: a function, class, partial, method, or object with a `__call__`.
        arguments: the names, for the message, of the arguments that it gets; at most two.
        what: the name of the callable's part in the message.
        remedy: the end of the message.

    Raises:
        UsageError: it takes fewer arguments, or needs more.

    Example:
        >>> check_takes(len, ("the item",), "an op")
        >>> check_takes(divmod, ("the item",), "an op")
        Traceback (most recent call last):
        penstock.errors.UsageError: an op is called with one argument, the item; got divmod, where divmod takes \
(x, y, /): missing a required argument: 'y'. Bind other arguments with functools.partial
    """
    plain = called.__func__ if isinstance(called, MethodType) else called
    count = len(arguments) + (plain is not called)
    if isinstance(plain, FunctionType) and _takes_only(plain.__code__, count):
        return
    function, given, keywords = _called_function(called, len(arguments))
    signature = None if function is None else _signature_of(function)
    if signature is None:
        return
    try:
        signature.bind(*given, **keywords)
    except TypeError as error:
        counted = ("no argument", "one argument, ", "two arguments, ")[len(arguments)]
        raise UsageError(
            f"{what} is called with {counted}{' and '.join(arguments)}; got {name_of(called)}, where "
            f"{name_of(function)} takes {_parameters(signature)}: {error}. {remedy}"
        ) from None


def _called_function(called: object, count: int) -> tuple[object | None, list[object], dict[str, object]]:
    """Return the function that runs in the end, None if that isn't certain, and its arguments for a number of them."""
    function: object | None = called
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
    return function, given, keywords


def _takes_only(code: CodeType, count: int) -> bool:
    """Return whether a function of some code takes this number of arguments and no others, so that it needs no look.

    A decorator may have set another signature, which passes too.
    """
    return code.co_argcount == count and not code.co_kwonlyargcount


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
