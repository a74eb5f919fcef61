"""What identifies a function: its byte code, what it was made with, and what it calls.

The identity is the same in every process that runs the same version of Python, and differs wherever what a function
computes may differ: so it is what a cache is kept under. Part of it are

  - the byte code and constants, nested functions included, without line numbers, file names and names of variables;
  - defaults, the arguments of a `functools.partial`, the values that a closure holds, the object of a bound method, and
    the fields or attributes of an object that is called, with the code of its class's methods;
  - the functions, classes and values that the code names as globals. Functions and classes of the function's own
    top-level package are followed in the same way; of other packages, and of Penstock, the name counts.

Numbers, strings, enums, arrays, dtypes, containers of these and objects with such attributes count by value, a large
array by a sample; what has a method `fingerprint()` counts by what it returns; the rest by the name of its type. What
isn't part of it, because no code shows it: files that the function reads, and what it calls through a module's name.
"""

import contextlib
import dataclasses
import enum
import functools
import hashlib
import re
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

_DEEPEST: Final = 32
_MOST_FOLLOWED: Final = 4096
_WHOLE_BYTES: Final = 1 << 20
_SAMPLED_VALUES: Final = 1024
_PLAIN: Final = frozenset({type(None), bool, int, float, complex, str, bytes, type(...), range})
_NAMESPACES: Final = frozenset({"argparse", "types"})
_NAMED: Final = (types.FunctionType, types.BuiltinFunctionType, type)


def code_identity(function: Callable[..., Any], *, with_state: bool = True) -> str:
    """Return what identifies a function, 32 hexadecimal digits.

    Args:
        function: any callable.
        with_state: whether what may change while a program runs counts too: the content of lists, dicts, sets and
            arrays, and the attributes of objects other than frozen dataclasses. Where it doesn't, a function keeps
            its identity however often it is called.

    Example:
        >>> import functools
        >>> code_identity(functools.partial(round, ndigits=1)) == code_identity(functools.partial(round, ndigits=2))
        False
    """
    text = _Walk(_package(_innermost(function)), with_state=with_state).text(function)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def is_lambda_or_local(function: Callable[..., Any]) -> bool:
    """Return whether a function, or the class of an object that is called, has no name of its own in a module.

    Example:
        >>> import functools
        >>> is_lambda_or_local(functools.partial(lambda number: number)), is_lambda_or_local(len)
        (True, False)
    """
    inner = _innermost(function)
    name = inner.__qualname__ if isinstance(inner, _NAMED) else type(inner).__qualname__
    return "<lambda>" in name or "<locals>" in name


def _innermost(function: object) -> object:
    """Return the function below partials and bound methods."""
    while isinstance(function, (functools.partial, types.MethodType)):
        if isinstance(function, types.MethodType):
            function = function.__func__
        else:
            function = cast("functools.partial[object]", function).func
    return function


def _package(thing: object) -> str:
    """Return the top-level package of a function or class, or of an object's class."""
    module: object = getattr(thing if isinstance(thing, _NAMED) else type(thing), "__module__", None)
    return str(module).partition(".")[0]


def _name(thing: object) -> str:
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', getattr(thing, '__name__', ''))}"


class _Walk:
    """One walk from a function to all it depends on; it goes nowhere twice."""

    def __init__(self, package: str, *, with_state: bool) -> None:
        self.package = package
        self.with_state = with_state
        self._depth = 0
        # By identity, with their numbers; the things are held, so that no identity is used again.
        self._met: dict[int, tuple[int, object]] = {}

    def text(self, value: object) -> str:
        """Return what tells a value from others."""
        if type(value) in _PLAIN:
            return f"{type(value).__name__} {value!r}"
        if self._depth >= _DEEPEST:
            return _name(type(value))
        self._depth += 1
        try:
            describe = next(describe for kind, describe in _DESCRIBE if isinstance(value, kind))
            return describe(value, self)
        finally:
            self._depth -= 1

    def texts(self, values: Iterable[object]) -> str:
        """Return what tells some values from others, in order."""
        return f"[{', '.join(map(self.text, values))}]"

    def alone(self, value: object) -> str:
        """Return what tells a value from others, whatever else was met: for values whose order isn't known."""
        walk = _Walk(self.package, with_state=self.with_state)
        walk._depth = self._depth
        return walk.text(value)

    def again(self, thing: object) -> str | None:
        """Return which of the things met before this is; None for a new one."""
        if id(thing) in self._met:
            return f"again {self._met[id(thing)][0]}"
        self._met[id(thing)] = len(self._met), thing
        return None

    def follows(self, thing: object) -> bool:
        """Return whether the code of a function or class counts, and not its name alone."""
        return _package(thing) == self.package != "penstock" and len(self._met) < _MOST_FOLLOWED


def _of_function(function: types.FunctionType, walk: _Walk) -> str:
    if _package(function) == "penstock":
        return f"function {_name(function)}"
    again = walk.again(function)
    if again is not None:
        return again
    parts = [
        _of_code(function.__code__, walk),
        walk.text(function.__defaults__),
        walk.text(tuple(sorted((function.__kwdefaults__ or {}).items()))),
        walk.texts(map(_held, function.__closure__ or ())),
    ]
    # Names of attributes are among them; one that is also a global's adds what it needn't, and always the same.
    names = sorted(set(_names(function.__code__)) & function.__globals__.keys())
    parts += [f"{name} = {_of_global(function.__globals__[name], walk)}" for name in names]
    return f"function {' '.join(parts)}"


def _held(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return "nothing"


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _of_global(value: object, walk: _Walk) -> str:
    if isinstance(value, (types.FunctionType, type)) and not walk.follows(value):
        return _name(value)
    return walk.text(value)


def _of_code(code: types.CodeType, walk: _Walk) -> str:
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    return f"{code.co_code.hex()} {code.co_exceptiontable.hex()} {counts} {code.co_names} {walk.texts(code.co_consts)}"


def _of_class(kind: type, walk: _Walk) -> str:
    """Return a class's name, and where the walk follows it the code of its functions and its plain values."""
    name = f"class {_name(kind)}"
    if not walk.follows(kind) or walk.again(kind) is not None:
        return name
    parts: list[str] = []
    for base in kind.__mro__:
        members: Mapping[str, object] = vars(base) if walk.follows(base) else {}
        for key in sorted(members):
            function = _function_of(members[key])
            if function is not None or not key.startswith("__"):
                parts.append(f"{key} = {walk.text(members[key] if function is None else function)}")
    return f"{name} {' '.join(parts)}"


def _function_of(member: object) -> object:
    """Return the function behind a member of a class; several for a property, None for what is no method."""
    match member:
        case staticmethod() | classmethod():
            return cast("staticmethod[..., object]", member).__func__
        case property():
            return member.fget, member.fset
        case functools.cached_property():
            return cast("functools.cached_property[object]", member).func
        case types.FunctionType():
            return member
        case _:
            return None


def _of_partial(partial: "functools.partial[object]", walk: _Walk) -> str:
    return f"partial {walk.text(partial.func)} {walk.texts(partial.args)} {_of_members(partial.keywords, walk)}"


def _of_method(method: types.MethodType, walk: _Walk) -> str:
    return f"method {walk.text(method.__func__)} {walk.text(method.__self__)}"


def _of_builtin(function: types.BuiltinFunctionType, walk: _Walk) -> str:
    owner: object = function.__self__
    return f"{_name(function)} {'' if isinstance(owner, types.ModuleType) else walk.text(owner)}"


def _of_tuple(values: tuple[object, ...], walk: _Walk) -> str:
    return f"{type(values).__qualname__} {walk.texts(values)}"


def _of_set(values: "frozenset[object] | set[object]", walk: _Walk) -> str:
    if isinstance(values, set) and not walk.with_state:
        return _name(type(values))
    return f"{type(values).__qualname__} {sorted(map(walk.alone, values))}"  # their order depends on the process


def _of_list(values: list[object], walk: _Walk) -> str:
    if not walk.with_state:
        return _name(type(values))
    return walk.again(values) or f"{type(values).__qualname__} {walk.texts(values)}"


def _of_dict(values: dict[object, object], walk: _Walk) -> str:
    if not walk.with_state:
        return _name(type(values))
    return walk.again(values) or f"{type(values).__qualname__} {walk.texts(values.items())}"


def _of_array(array: NDArray[Any], walk: _Walk) -> str:
    if not walk.with_state:
        return _name(type(array))
    described = f"{_name(type(array))} {array.dtype} {array.shape}"
    if array.dtype.hasobject:
        return f"{described} {walk.text(array.tolist())}"
    if array.nbytes > _WHOLE_BYTES:
        array = array.flat[np.linspace(0, array.size - 1, _SAMPLED_VALUES).astype(np.int64)]
    return f"{described} {hashlib.blake2b(array.tobytes(), digest_size=16).hexdigest()}"


def _of_scalar(scalar: "np.generic[Any]", walk: _Walk) -> str:
    del walk
    return f"{scalar.dtype} {scalar.tobytes().hex()}"


def _of_enum(member: enum.Enum, walk: _Walk) -> str:
    return f"{walk.text(type(member))} {member.name}"


def _of_pattern(pattern: re.Pattern[Any], walk: _Walk) -> str:
    del walk
    return repr((pattern.pattern, pattern.flags))


def _of_module(module: types.ModuleType, walk: _Walk) -> str:
    del walk
    return f"module {module.__name__}"


def _of_object(value: object, walk: _Walk) -> str:
    """Return what tells an object from others: what it says itself, its fields, its array, or its attributes."""
    kind = type(value)
    own: object = getattr(kind, "fingerprint", None)
    if callable(own):
        return f"{_name(kind)} {own(value)}"
    wrapped: object = getattr(value, "__wrapped__", None)
    if wrapped is not None:
        return f"{_name(kind)} {walk.text(wrapped)}"
    again = walk.again(value)
    if again is not None:
        return again
    described = f"{walk.text(kind)} {getattr(value, '__name__', '')}"
    with contextlib.suppress(Exception):  # whatever the user's class does when it is asked
        described = f"{described} {_of_content(value, walk)}"
    return described


def _of_content(value: object, walk: _Walk) -> str:
    kind: Any = type(value)
    thing: Any = value
    if dataclasses.is_dataclass(kind) and (walk.with_state or thing.__dataclass_params__.frozen):
        fields = [field.name for field in dataclasses.fields(kind) if field.compare]
        return _of_members({name: getattr(value, name) for name in fields}, walk)
    if not walk.with_state:
        return ""
    if hasattr(kind, "__dlpack__"):  # a tensor of another package, in the memory of the processor
        return walk.text(np.from_dlpack(thing))
    if _package(kind) in sys.stdlib_module_names and _package(kind) not in _NAMESPACES:
        # Locks, threads and files have nothing that lasts; what has a value of its own says how it is pickled.
        has_value = kind.__reduce__ is not object.__reduce__ or kind.__reduce_ex__ is not object.__reduce_ex__
        return walk.text(thing.__reduce_ex__(4)) if has_value else ""
    state: object = thing.__getstate__()  # what a copy would have
    if isinstance(state, dict):
        return _of_members(cast("dict[str, object]", state), walk)
    return walk.text(state)


def _of_members(members: Mapping[str, object], walk: _Walk) -> str:
    return walk.texts((name, members[name]) for name in sorted(members))


_DESCRIBE: Final[tuple[tuple[Any, Callable[[Any, _Walk], str]], ...]] = (
    (types.FunctionType, _of_function),
    (types.CodeType, _of_code),
    (types.MethodType, _of_method),
    (types.BuiltinFunctionType, _of_builtin),
    (functools.partial, _of_partial),
    (type, _of_class),
    (types.ModuleType, _of_module),
    (enum.Enum, _of_enum),
    (np.generic, _of_scalar),
    (np.ndarray, _of_array),
    (tuple, _of_tuple),
    ((frozenset, set), _of_set),
    ((list, deque), _of_list),
    (dict, _of_dict),
    (re.Pattern, _of_pattern),
    (object, _of_object),
)
