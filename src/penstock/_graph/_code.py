"""Digests of a function's code: its byte code, the values it was made with, and the functions it calls.

A cache on disk and the index of a filter hold results of the user's functions. They may be used only while the
functions compute the same, so they are keyed by digests of the functions. Source text would be a worse key: it changes
with comments, and doesn't show closures, defaults and partials. A pickle would not do: it has a function's name only.

The identity of a function is the same in every process of one version of Python. It differs if a part differs:

  - the byte code and constants, nested functions included, without line numbers, file names and names of variables;
  - defaults, the arguments of a `functools.partial`, the values of a closure, the object of a bound method, and the
    fields or attributes of a called object, with the code of its class's methods;
  - the functions, classes and values that the code names as globals. Functions and classes of the function's own
    top-level package are followed in the same way; those of other packages, and of Penstock, count by name.

Numbers, strings, enums, arrays, dtypes, containers of these and objects with such attributes count by value, a large
array by a sample. An object with a method `fingerprint()` counts by its result, any other by the name of its type. The
identity doesn't cover files that the function reads, or functions that it calls through a module's name, since the
byte code doesn't show these.

`held_values` covers the values of a function that may change while a program runs, and takes a bounded time. States use
it: a warning shows that a resumed run has another lookup table.
"""

import contextlib
import dataclasses
import dis
import enum
import functools
import hashlib
import itertools
import re
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

_MAX_LEVELS: Final = 32  # of values within values; deeper ones count by the names of their types
_MAX_FOLLOWED: Final = 4096  # objects of a walk; functions and classes beyond them count by name
_WHOLE_BYTES: Final = 1 << 20  # a larger array counts by a sample
_SAMPLED_VALUES: Final = 1024  # values of such an array, or of a long container
_MAX_HELD: Final = 1 << 15  # values of a function that are visited
_MAX_HELD_BY_ONE: Final = 64  # of these, for each value of a set
_HELD_BYTES: Final = 1 << 16  # a larger array or text counts by a sample
# Classes of random generators: their states change with each draw, and say nothing about the function.
_GENERATORS: Final = frozenset({"Random", "SystemRandom", "Generator", "RandomState"})
_LINE: Final = "__firstlineno__"  # where the body of a class stores its first line, from Python 3.13 on
_OF_CLASS_BODIES: Final = ("__name__", "__module__", "__qualname__", _LINE)  # the names that these use first
_PLAIN: Final = frozenset({type(None), bool, int, float, complex, str, bytes, type(...), range})
_NAMESPACES: Final = frozenset({"argparse", "types"})  # modules of `Namespace` and `SimpleNamespace`
_Value = TypeVar("_Value")
_NAMED: Final = (types.FunctionType, types.BuiltinFunctionType, type)


def code_identity(function: Callable[..., Any], *, with_state: bool = True) -> str:
    """Return the identity of a function, 32 hexadecimal digits.

    Args:
        function: any callable.
        with_state: whether values that may change while a program runs count: the content of lists, dicts, sets and
            arrays, and the attributes of objects other than frozen dataclasses. Without them a function's identity is
            the same however often it was called.

    Example:
        >>> import functools
        >>> code_identity(functools.partial(round, ndigits=1)) == code_identity(functools.partial(round, ndigits=2))
        False
    """
    text = Walk(package_of(innermost(function)), with_state=with_state).text(function)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def held_values(function: Callable[..., Any]) -> str:
    """Return a digest of the values of a function that may change while a program runs.

    These are the content of lists, dicts, sets and arrays in closures, defaults, arguments of partials and globals that
    its code names, and the attributes of objects there and of the called object. If an object's class is of the
    function's own package, or a namespace, only attributes that code names count. Long containers and large arrays
    count by a sample, and at most 32,768 values are visited. The first call for a function decides: a function that
    changes its values later keeps its digest.

    Args:
        function: any callable.

    Returns:
        16 hexadecimal digits, the same in every process; "" for a function without such values.

    Example:
        >>> import functools
        >>> held_values(functools.partial(sorted, [1, 2])) == held_values(functools.partial(sorted, [1, 3]))
        False
        >>> held_values(len)
        ''
    """
    return _held_values.of(function, functools.partial(_held_digits, function))


class Kept(Generic[_Value]):
    """Values of objects, by identity, as long as the objects live.

    A dict of the objects would compare them: CPython compares nested code in a time that doubles with each level.
    """

    def __init__(self) -> None:
        self._values: dict[int, tuple[weakref.ref[object], _Value]] = {}

    def of(self, thing: object, compute: Callable[[], _Value]) -> _Value:
        """Return the value of an object; compute it the first time."""
        known = self._values.get(id(thing))
        if known is not None and known[0]() is thing:
            return known[1]
        value = compute()
        with contextlib.suppress(TypeError):  # some objects have no weak references
            self._values[id(thing)] = weakref.ref(thing, functools.partial(self._drop, id(thing))), value
        return value

    def _drop(self, number: int, ended: object) -> None:
        if number in self._values and self._values[number][0] is ended:
            del self._values[number]


_held_values: Final[Kept[str]] = Kept()
_names_in: Final[Kept[frozenset[str]]] = Kept()  # by code


def _held_digits(function: Callable[..., Any]) -> str:
    package = package_of(innermost(function))
    walk = first = _Held(package)
    text = first.text(function)
    if first.needs_second:
        walk = _Held(package, first.named)
        text = walk.text(function)
    if not walk.has_state:
        return ""
    # The text may lack the state that was visited: if it does, it equals the text without state.
    if not walk.shows_state and text == _Held(package, first.named, with_state=False).text(function):
        return ""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def is_lambda_or_local(function: Callable[..., Any]) -> bool:
    """Return whether a function, or the class of a called object, is a lambda or was defined in a function.

    Example:
        >>> import functools
        >>> is_lambda_or_local(functools.partial(lambda number: number)), is_lambda_or_local(len)
        (True, False)
    """
    inner = innermost(function)
    name = inner.__qualname__ if isinstance(inner, _NAMED) else type(inner).__qualname__
    return "<lambda>" in name or "<locals>" in name


def innermost(function: object) -> object:
    """Return the function within partials and bound methods."""
    while isinstance(function, (functools.partial, types.MethodType)):
        if isinstance(function, types.MethodType):
            function = function.__func__
        else:
            function = cast("functools.partial[object]", function).func
    return function


def package_of(thing: object) -> str:
    """Return the top-level package of a function or class, or of an object's class."""
    module: object = getattr(thing if isinstance(thing, _NAMED) else type(thing), "__module__", None)
    return str(module).partition(".")[0]


def full_name(thing: object) -> str:
    """Return the name of a function or class, with its module."""
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', getattr(thing, '__name__', ''))}"


class _CodeText(NamedTuple):
    """The text of a function's code, the same in all walks of one class that aren't near their limits.

    Attributes:
        text: of the byte code and the constants, nested functions included.
        values: the number of values that a walk visits for it.
        levels: how deep they are nested.
    """

    text: str
    values: int
    levels: int


class Walk:
    """A walk from a function to everything it depends on, which visits no object twice."""

    whole_bytes: int = _WHOLE_BYTES  # a larger array counts by a sample
    code_texts: ClassVar[Kept[_CodeText]] = Kept()

    def __init__(self, package: str, *, with_state: bool, depth: int = 0) -> None:
        self.package = package
        self._with_state = with_state
        self._depth = depth
        # By id, with their numbers. The objects are held, so that no id is used again.
        self._met: dict[int, tuple[int, object]] = {}

    @property
    def with_state(self) -> bool:
        """Whether values that may change while a program runs count; read only for such values, as `_Held` notes."""
        return self._with_state

    def text(self, value: object) -> str:
        """Return the text of a value. Values with the same text are equal, but for samples and limits."""
        if type(value) in _PLAIN:
            return f"{type(value).__name__} {value!r}"
        if self._depth >= _MAX_LEVELS:
            return full_name(type(value))
        self._depth += 1
        try:
            find = functools.partial(_describer, value)
            is_proxy = value.__class__ is not type(value)
            describe = find() if is_proxy else _describers.of(type(value), find)
            return describe(value, self) + self.beside(value)
        finally:
            self._depth -= 1

    def texts(self, values: Iterable[object]) -> str:
        """Return the text of some values, in order."""
        return f"[{', '.join(map(self.text, values))}]"

    def alone(self, value: object) -> str:
        """Return the text of a value independent of other values, for values whose order is unknown."""
        return self._sibling().text(value)

    def _sibling(self) -> "Walk":
        return Walk(self.package, with_state=self._with_state, depth=self._depth)

    @property
    def visited(self) -> int:
        """The number of visited values, in a walk that has a limit of them."""
        return 0

    def visits(self, values: int, levels: int) -> bool:
        """Count values whose text is known as visited; return False, and count none, if a limit may be near."""
        del values
        return self._depth + levels <= _MAX_LEVELS

    def sample(self, values: Sequence[object]) -> Sequence[object]:
        """Return the values that count: all of them, unless the time is bounded."""
        return values

    def names(self, names: frozenset[str]) -> None:
        """Record the names in a function's code."""

    def counts(self, owner: type, name: str, value: object) -> bool:
        """Return whether an attribute of an object of class `owner` counts."""
        del owner, name, value
        return True

    def may_hide_state(self, value: object) -> None:
        """Record that the state of a visited value may be missing in the text."""

    def own_text(self, thing: object) -> str | None:
        """Return the text of an object that identifies itself or stands for another one; None for others."""
        kind = type(thing)
        own: object = getattr(kind, "fingerprint", None)
        if callable(own):
            return f"{full_name(kind)} {own(thing)}"
        wrapped: object = getattr(thing, "__wrapped__", None)
        return None if wrapped is None else f"{full_name(kind)} {self.text(wrapped)}"

    def beside(self, value: object) -> str:
        """Return the text of what a function, container or array has beside its code or values, if that counts."""
        del value
        return ""

    def has_member(self, name: str, member: object) -> bool:
        """Return whether a member of a class counts, other than a function or property."""
        del member
        return not name.startswith("__")

    def array_digest(self, array: NDArray[Any]) -> str:
        """Return the digest of an array, or of a sample of a large one."""
        if array.nbytes > self.whole_bytes:
            array = array.flat[np.linspace(0, array.size - 1, _SAMPLED_VALUES).astype(np.int64)]
        return hashlib.blake2b(array.tobytes(), digest_size=16).hexdigest()

    def tensor(self, thing: object) -> str:
        """Return the text of a tensor of another package, which must be on the host."""
        return self.text(np.from_dlpack(cast("Any", thing)))

    def fields(self, thing: object) -> str:
        """Return the text of an object of a dataclass."""
        names = [field.name for field in dataclasses.fields(cast("Any", thing)) if field.compare]
        return members_text({name: getattr(thing, name) for name in names}, self, type(thing))

    def standard(self, thing: object) -> str:
        """Return the text of the content of an object of the standard library; "" for none."""
        # Locks, threads and files have no lasting value; an object that has one defines how it is pickled.
        return self.text(thing.__reduce_ex__(4)) if defines_pickle(type(thing)) else ""

    def content(self, thing: object) -> str:
        """Return the text of an object's content, which is the state that a copy would get."""
        return self.state(thing, thing.__getstate__())

    def state(self, thing: object, state: object) -> str:
        """Return the text of an object's state."""
        if isinstance(state, dict):
            return members_text(cast("dict[str, object]", state), self, type(thing))
        return self.text(state)

    def again(self, thing: object) -> str | None:
        """Return a reference to an object that was met before; None for a new one."""
        if id(thing) in self._met:
            return f"again {self._met[id(thing)][0]}"
        self._met[id(thing)] = len(self._met), thing
        return None

    def follows(self, thing: object) -> bool:
        """Return whether a function or class counts by its code; else it counts by its name."""
        return package_of(thing) == self.package != "penstock" and not self.is_full

    @property
    def is_full(self) -> bool:
        """Whether so many objects were met that further functions and classes count by name."""
        return len(self._met) >= _MAX_FOLLOWED


@dataclasses.dataclass(slots=True)
class _Notes:
    """Notes about the values that a walk and its siblings have visited.

    Attributes:
        has_state: whether some of them may change while a program runs.
        may_hide_state: whether the state of some may be missing in the text: it was empty, or raised an exception.
        counted: the attributes that counted before any code named them.
        left_out: the attributes that were left out, since no code had named them yet.
    """

    has_state: bool = False
    may_hide_state: bool = False
    counted: set[str] = dataclasses.field(default_factory=set)
    left_out: set[str] = dataclasses.field(default_factory=set)


class _Held(Walk):
    """A walk in bounded time, in which only attributes that code names count.

    All names are known only at its end. So a first walk counts an attribute if code that it has visited by then names
    it, or if its value is an object, whose code may name more; it leaves out other plain values. If a name that it
    visits later shows that this was wrong, a second walk is needed.

    Args:
        package: of the function.
        counted: the names in the code; None in a first walk.
        with_state: as for `code_identity`.

    Attributes:
        named: the names in the code of all visited functions, except in those of siblings.
    """

    whole_bytes = _HELD_BYTES
    code_texts = Kept()

    def __init__(
        self, package: str, counted: set[str] | None = None, *, with_state: bool = True, depth: int = 0
    ) -> None:
        super().__init__(package, with_state=with_state, depth=depth)
        self.named: set[str] = set()
        self._named_before = self.named  # a sibling has the names of the walk that made it
        self._counted = counted
        self._left = _MAX_HELD
        self._notes = _Notes()

    @property
    def with_state(self) -> bool:
        self._notes.has_state = True
        return self._with_state

    @property
    def has_state(self) -> bool:
        """Whether the walk has visited values that may change while a program runs."""
        return self._notes.has_state

    @property
    def shows_state(self) -> bool:
        """Whether these values are certainly in the walk's text."""
        return self._notes.has_state and not self._notes.may_hide_state

    @property
    def needs_second(self) -> bool:
        """Whether this first walk counted attributes that no code names, or left out some that code names."""
        return not self._notes.counted <= self.named or not self._notes.left_out.isdisjoint(self.named)

    def text(self, value: object) -> str:
        self._left -= 1
        if self._left < 0 or type(value).__name__ in _GENERATORS:
            return full_name(type(value))
        if isinstance(value, (str, bytes, bytearray)) and len(value) > _HELD_BYTES:
            half = _HELD_BYTES // 2
            return f"{type(value).__name__} {len(value)} {value[:half]!r} {value[-half:]!r}"
        return super().text(value)

    def _sibling(self) -> Walk:
        walk = _Held(self.package, self._counted, with_state=self._with_state, depth=self._depth)
        walk._left = min(self._left, _MAX_HELD_BY_ONE)
        walk._notes = self._notes
        walk._named_before = self._named_before
        return walk

    def sample(self, values: Sequence[object]) -> Sequence[object]:
        if len(values) <= _SAMPLED_VALUES:
            return values
        chosen = np.linspace(0, len(values) - 1, _SAMPLED_VALUES).astype(np.int64).tolist()
        return [len(values), *(values[number] for number in chosen)]

    @property
    def visited(self) -> int:
        return _MAX_HELD - self._left

    def visits(self, values: int, levels: int) -> bool:
        if self._left < values + _MAX_HELD_BY_ONE or not super().visits(values, levels):
            return False
        self._left -= values
        return True

    def names(self, names: frozenset[str]) -> None:
        self.named |= names

    def counts(self, owner: type, name: str, value: object) -> bool:
        if not self._is_partly_used(owner):
            return True
        if self._counted is not None:
            return name in self._counted
        if name in self._named_before:
            return True
        is_left_out = type(value) in _PLAIN
        (self._notes.left_out if is_left_out else self._notes.counted).add(name)
        return not is_left_out

    def follows(self, thing: object) -> bool:
        return package_of(thing) not in sys.stdlib_module_names and super().follows(thing)

    def may_hide_state(self, value: object) -> None:
        del value
        self._notes.may_hide_state = True

    def content(self, thing: object) -> str:
        # No code of the object's class is called.
        members: dict[str, object] = getattr(thing, "__dict__", {})
        return members_text(members, self, type(thing)) if members else ""

    def _is_partly_used(self, owner: type) -> bool:
        return package_of(owner) in _NAMESPACES or self.follows(owner)


def _of_function(function: types.FunctionType, walk: Walk) -> str:
    if package_of(function) == "penstock":
        return f"function {full_name(function)}"
    again = walk.again(function)
    if again is not None:
        return again
    code = function.__code__
    names = _names_in.of(code, functools.partial(code_names, code))
    walk.names(names)
    parts = [
        _of_code(code, walk),
        walk.text(function.__defaults__),
        walk.text(tuple(sorted((function.__kwdefaults__ or {}).items()))),
        walk.texts(map(_held, function.__closure__ or ())),
    ]
    # co_names includes names of attributes. One that is also a global adds its value needlessly, but in every process.
    found = sorted(names & function.__globals__.keys())
    parts += [f"{name} = {_of_global(function.__globals__[name], walk)}" for name in found]
    return f"function {' '.join(parts)}"


def _held(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return "nothing"


def code_names(code: types.CodeType) -> frozenset[str]:
    """Return the names in a function's code, nested functions included."""
    nested = (code_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset(code.co_names).union(*nested)


def _of_global(value: object, walk: Walk) -> str:
    if isinstance(value, (types.FunctionType, type)) and not walk.follows(value):
        return full_name(value)
    return walk.text(value)


def _of_code(code: types.CodeType, walk: Walk) -> str:
    known = walk.code_texts.of(code, functools.partial(_code_text, type(walk), code))
    return known.text if walk.visits(known.values, known.levels) else _new_code_text(code, walk)


def _code_text(kind: type[Walk], code: types.CodeType) -> _CodeText:
    walk = kind("", with_state=True)
    text = _new_code_text(code, walk)
    return _CodeText(text, walk.visited, _levels(code) - 1)


def _new_code_text(code: types.CodeType, walk: Walk) -> str:
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    if code.co_names[:4] == _OF_CLASS_BODIES:
        return f"{_class_body_text(code, walk)} {code.co_exceptiontable.hex()} {counts} {code.co_names}"
    return f"{code.co_code.hex()} {code.co_exceptiontable.hex()} {counts} {code.co_names} {walk.texts(code.co_consts)}"


def _class_body_text(code: types.CodeType, walk: Walk) -> str:
    """Return the text of the byte code and constants of a class's body, without the line that it stores."""
    steps = [(step.opcode, step.argval) for step in dis.get_instructions(code)]
    del steps[[value for _, value in steps].index(_LINE) - 1]
    return " ".join(f"{number} {walk.text(value)}" for number, value in steps)


def _levels(constant: object) -> int:
    inner = constant.co_consts if isinstance(constant, types.CodeType) else constant
    if not isinstance(inner, (tuple, frozenset)):
        return 0
    return 1 + max(map(_levels, cast("Iterable[object]", inner)), default=0)


def _of_class(kind: type, walk: Walk) -> str:
    """Return a class's name, and, if the walk follows it, the code of its functions and its plain values.

    The function in which it was defined doesn't count: a class that cloudpickle has sent to another process lacks it.
    """
    name = f"class {kind.__module__}.{kind.__qualname__.rpartition('<locals>.')[2]}"
    if not walk.follows(kind) or walk.again(kind) is not None:
        return name
    parts: list[str] = []
    for base in kind.__mro__:
        members: Mapping[str, object] = vars(base) if walk.follows(base) else {}
        for key in sorted(members):
            function = _function_of(members[key])
            if function is not None or walk.has_member(key, members[key]):
                parts.append(f"{key} = {walk.text(members[key] if function is None else function)}")
    return f"{name} {' '.join(parts)}"


def _function_of(member: object) -> object:
    """Return the function of a class's member, both functions of a property, or None if it is no method."""
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


def _of_partial(partial: "functools.partial[object]", walk: Walk) -> str:
    return f"partial {walk.text(partial.func)} {walk.texts(partial.args)} {members_text(partial.keywords, walk)}"


def _of_method(method: types.MethodType, walk: Walk) -> str:
    return f"method {walk.text(method.__func__)} {walk.text(method.__self__)}"


def _of_builtin(function: types.BuiltinFunctionType, walk: Walk) -> str:
    owner: object = function.__self__
    return f"{full_name(function)} {'' if isinstance(owner, types.ModuleType) else walk.text(owner)}"


def _of_tuple(values: tuple[object, ...], walk: Walk) -> str:
    return f"{type(values).__qualname__} {walk.texts(walk.sample(values))}"


def _of_set(values: "frozenset[object] | set[object]", walk: Walk) -> str:
    if isinstance(values, set) and not walk.with_state:
        return full_name(type(values))
    if len(walk.sample(range(len(values)))) < len(values):  # the order of a set depends on the process
        return f"{type(values).__qualname__} {len(values)}"
    return f"{type(values).__qualname__} {sorted(map(walk.alone, values))}"  # likewise


def _of_list(values: "list[object] | deque[object]", walk: Walk) -> str:
    if not walk.with_state:
        return full_name(type(values))
    return walk.again(values) or f"{type(values).__qualname__} {walk.texts(walk.sample(values))}"


def _of_dict(values: dict[object, object], walk: Walk) -> str:
    if not walk.with_state:
        return full_name(type(values))
    again = walk.again(values)
    if again is not None:
        return again
    chosen = walk.sample(range(len(values)))
    items: Iterable[object] = values.items()
    if len(chosen) < len(values):  # the first ones, since reaching others takes as long as visiting all
        items = [len(values), *itertools.islice(values.items(), len(chosen))]
    return f"{type(values).__qualname__} {walk.texts(items)}"


def _of_array(array: NDArray[Any], walk: Walk) -> str:
    if not walk.with_state or array is getattr(sys.modules.get("numpy.ma"), "masked", None):  # it is the only one
        return full_name(type(array))
    described = f"{full_name(type(array))} {array.dtype} {array.shape}"
    if array.dtype.hasobject:
        return f"{described} {walk.text(array.tolist())}"
    return f"{described} {walk.array_digest(array)}"


def _of_scalar(scalar: "np.generic[Any]", walk: Walk) -> str:
    del walk
    return f"{scalar.dtype} {scalar.tobytes().hex()}"


def _of_enum(member: enum.Enum, walk: Walk) -> str:
    return f"{walk.text(type(member))} {member.name}"


def _of_pattern(pattern: re.Pattern[Any], walk: Walk) -> str:
    del walk
    return repr((pattern.pattern, pattern.flags))


def _of_module(module: types.ModuleType, walk: Walk) -> str:
    del walk
    return f"module {module.__name__}"


def _of_object(value: object, walk: Walk) -> str:
    """Return the text of an object: its `fingerprint()`, its fields, its array, or its attributes."""
    own = walk.own_text(value) or walk.again(value)
    if own is not None:
        return own
    described = f"{walk.text(type(value))} {getattr(value, '__name__', '')}"
    with contextlib.suppress(Exception):  # the user's class may raise anything
        return f"{described} {_of_content(value, walk)}"
    walk.may_hide_state(value)
    return described


def _of_content(value: object, walk: Walk) -> str:
    kind: Any = type(value)
    thing: Any = value
    if dataclasses.is_dataclass(kind) and (thing.__dataclass_params__.frozen or walk.with_state):
        return walk.fields(value)
    if not walk.with_state:
        return ""
    content = _of_state(value, walk)
    if not content:
        walk.may_hide_state(value)
    return content


def _of_state(value: object, walk: Walk) -> str:
    kind: Any = type(value)
    thing: Any = value
    if hasattr(kind, "__dlpack__"):
        return walk.tensor(thing)
    if package_of(kind) in sys.stdlib_module_names and package_of(kind) not in _NAMESPACES:
        return walk.standard(value)
    return walk.content(thing)


def defines_pickle(kind: type) -> bool:
    """Return whether the objects of a class are pickled in another way than by their attributes."""
    thing: Any = kind
    return thing.__reduce__ is not object.__reduce__ or thing.__reduce_ex__ is not object.__reduce_ex__


def members_text(members: Mapping[str, object], walk: Walk, owner: type = object) -> str:
    """Return the text of the members of an object of class `owner` that count, by name."""
    return walk.texts((name, members[name]) for name in sorted(members) if walk.counts(owner, name, members[name]))


_DESCRIBE: Final[tuple[tuple[Any, Callable[[Any, Walk], str]], ...]] = (
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
_describers: Final[Kept[Callable[[Any, Walk], str]]] = Kept()  # by type


def _describer(value: object) -> Callable[[Any, Walk], str]:
    return next(describe for kind, describe in _DESCRIBE if isinstance(value, kind))
