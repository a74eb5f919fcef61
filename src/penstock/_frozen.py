"""Frozen dataclasses with slots that compile no code of their own.

`dataclasses.dataclass` generates and compiles the source of six methods for each class. That takes two thirds of a
millisecond for each class, and took half the time of `import penstock`. Here `dataclass` only finds the fields, so that
`fields`, `replace` and `match` treat the class as a dataclass. The methods that must be fast are compiled once for each
number of fields; a class gets copies of them with its own names in place of `field_0`, `field_1` and so on. All classes
share the other methods.
"""

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from functools import cache
from reprlib import recursive_repr
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast, dataclass_transform, overload

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


@overload
def frozen(described: type[T], /) -> type[T]: ...


@overload
def frozen(*, eq: bool = True, cached: bool = False) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(
    described: type[T] | None = None, /, *, eq: bool = True, cached: bool = False
) -> type[T] | Callable[[type[T]], type[T]]:
    """Make a class that lists its fields a frozen dataclass with slots.

    The result is that of `@dataclass(frozen=True, slots=True)`, with restrictions: every field is a parameter of
    `__init__` and has no default factory, no base has fields, and no method calls `super()` without arguments. Methods
    that the class defines are kept. A pickle contains the fields, but no cached values.

    Args:
        described: the class.
        eq: whether objects with equal fields are equal and have equal hashes. If False, each object equals only itself.
            Default True.
        cached: whether objects have a `__dict__`, which a `functools.cached_property` needs. Default False.

    Example:
        >>> @frozen
        ... class Point:
        ...     x: int
        ...     y: int = 0
        >>> Point(3), Point(3) == Point(3, y=0), len({Point(3), Point(3)})
        (Point(x=3, y=0), True, 1)
    """

    def make(described: type[T]) -> type[T]:
        found: Any = dataclass(init=False, repr=False, eq=False)(described)
        found.__dataclass_params__.frozen = True
        members = _SHARED | (_comparing(described, [each for each in fields(found) if each.compare]) if eq else {})
        made = _with_slots(described, members, [each.name for each in fields(found)], cached=cached)
        if "__init__" not in vars(described):
            type.__setattr__(made, "__init__", _initializer(made, fields(found)))
        return made

    return make if described is None else make(described)


def _with_slots(described: type[T], members: dict[str, object], names: list[str], *, cached: bool) -> type[T]:
    """Return a copy of the class, with slots in place of the fields' defaults, and with these members added."""
    left_out = {*names, "__dict__", "__weakref__"}
    own = {name: kept for name, kept in vars(described).items() if name not in left_out}
    if own.get("__hash__") is None:  # Python sets it to None in a class that defines `__eq__`
        own.pop("__hash__", None)
    slots = (*names, "__dict__") if cached else tuple(names)
    create = cast("Callable[..., type[T]]", type(described))  # the metaclass
    return create(
        described.__name__,
        described.__bases__,
        members | own | {"__slots__": slots, "__qualname__": described.__qualname__},
    )


def _initializer(described: type[Any], described_fields: tuple[Field[Any], ...]) -> FunctionType:
    """Return an `__init__` that sets the fields, through the descriptors of their slots, and calls `__post_init__`."""
    positional = [each for each in described_fields if not each.kw_only]
    keyword = [each for each in described_fields if each.kw_only]
    parameters = [*positional, *keyword]
    code = _initializer_code(len(positional), len(keyword), checked=hasattr(described, "__post_init__"))
    setters = {f"set_{number}": getattr(described, each.name).__set__ for number, each in enumerate(parameters)}
    made = _method(described, code, parameters, setters)
    made.__defaults__ = tuple(each.default for each in positional if each.default is not MISSING)
    made.__kwdefaults__ = {each.name: each.default for each in keyword if each.default is not MISSING}
    made.__annotations__ = {each.name: each.type for each in parameters} | {"return": None}
    return made


@cache
def _initializer_code(positional: int, keyword: int, *, checked: bool) -> CodeType:
    names = [f"field_{number}" for number in range(positional + keyword)]
    parameters = ", ".join(["self", *names[:positional], *(["*"] if keyword else []), *names[positional:]])
    steps = [f"set_{number}(self, {name})" for number, name in enumerate(names)]
    return _compiled(
        f"def __init__({parameters}): " + "; ".join([*steps, "self.__post_init__()" if checked else "pass"])
    )


def _comparing(described: type[Any], compared: list[Field[Any]]) -> dict[str, object]:
    """Return the methods that compare and hash these fields."""
    return {code.co_name: _method(described, code, compared, {}) for code in _comparing_codes(len(compared))}


@cache
def _comparing_codes(count: int) -> tuple[CodeType, CodeType]:
    ours, others = ("".join(f"{of}.field_{number}, " for number in range(count)) for of in ("self", "other"))
    same = f"({ours}) == ({others}) if other.__class__ is self.__class__ else NotImplemented"
    return (
        _compiled(f"def __eq__(self, other): return {same}"),
        _compiled(f"def __hash__(self): return hash(({ours}))"),
    )


def _compiled(source: str) -> CodeType:
    made: dict[str, FunctionType] = {}
    exec(source, {}, made)
    (function,) = made.values()
    return function.__code__


def _method(described: type[Any], code: CodeType, named: list[Field[Any]], uses: dict[str, object]) -> FunctionType:
    """Return a function of this code, with the names of the fields in place of `field_0`, `field_1` and so on."""
    names = {f"field_{number}": each.name for number, each in enumerate(named)}
    renamed = code.replace(
        co_names=tuple(names.get(name, name) for name in code.co_names),
        co_varnames=tuple(names.get(name, name) for name in code.co_varnames),
        co_qualname=f"{described.__qualname__}.{code.co_name}",
    )
    made = FunctionType(renamed, uses)
    made.__module__ = described.__module__
    return made


@recursive_repr()
def _represent(self: "DataclassInstance") -> str:
    shown = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({shown})"


def _set(_: object, name: str, _new: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(_: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: "DataclassInstance") -> list[object]:
    return [getattr(self, each.name) for each in fields(self)]


def _set_state(self: "DataclassInstance", state: list[object]) -> None:
    for each, kept in zip(fields(self), state, strict=True):
        object.__setattr__(self, each.name, kept)


_SHARED: dict[str, object] = {
    "__repr__": _represent,
    "__setattr__": _set,
    "__delattr__": _delete,
    "__getstate__": _state,
    "__setstate__": _set_state,
}
