"""A function's identity is the same in every process, and differs where the function may compute something else."""

import configparser
import functools
import io
import string
import struct
import textwrap
import threading
import types
import uuid
from collections import ChainMap, UserDict, UserList, defaultdict, deque
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import penstock as ps
from penstock._graph import Read, _code
from penstock._graph._code import held_values
from penstock._graph._key import key_identity
from penstock.batching import Pad
from tests.graph.identified import (
    KINDS,
    Mode,
    Plain,
    Resize,
    closing_over,
    code_identity,
    helper,
    identities,
    is_lambda_or_local,
)
from tests.profiles import in_short


def module_of(source: str, name: str = "package_of_test") -> Any:
    """Return a module with this source, by default of a package of its own."""
    module = types.ModuleType(name)
    exec(compile(textwrap.dedent(source), "package_of_test.py", "exec"), module.__dict__)
    return module


BASE = """
SIZE = 3
def deepest(number): return number + 1
def helper(number): return deepest(number)
class Crop:
    bound = 2
    def __init__(self, size): self.size = size
    def inner(self, number): return number - 1
    @property
    def area(self): return self.size * 2
    @staticmethod
    def fixed(number): return number * 5
    def __call__(self, number): return self.inner(number)
def decode(number, *, scale=2):
    def nested(value): return value in {"a", "b"}
    class Local:
        factor = 7
        def __init__(self): self.offset = 6
        def __call__(self): return self.offset * 8
    return helper(number) * SIZE * scale, nested(number), Crop(3)(number), Local()()
"""
CHANGES = {
    "global": ("SIZE = 3", "SIZE = 4"),
    "function two calls below": ("number + 1", "number + 2"),
    "called function": ("return deepest(number)", "return deepest(number) + 0"),
    "method of a class": ("number - 1", "number - 2"),
    "property of a class": ("self.size * 2", "self.size * 3"),
    "static method": ("number * 5", "number * 6"),
    "attribute of a class": ("bound = 2", "bound = 3"),
    "default": ("scale=2", "scale=3"),
    "constant of a nested function": ('"b"}', '"c"}'),
    "argument": ("Crop(3)(number)", "Crop(4)(number)"),
    "attribute of a nested class": ("factor = 7", "factor = 8"),
    "method of a nested class": ("self.offset * 8", "self.offset * 9"),
}


def test_each_reached_part_of_the_package_counts() -> None:
    """Each part of its own package that a function reaches changes its identity.

    Line numbers, comments, unused functions and the name of the file don't change it.
    """
    identity = code_identity(module_of(BASE).decode)
    for change, (old, new) in CHANGES.items():
        assert BASE.count(old) == 1
        assert code_identity(module_of(BASE.replace(old, new)).decode) != identity, change
    moved = BASE.replace("return number + 1", "\n  return (number +\n  1)")
    assert code_identity(module_of(f"# a comment\n\n\ndef unused(): return 3\n{moved}").decode) == identity


@dataclass
class Counting:
    """A dataclass that isn't frozen, one of whose fields doesn't count."""

    size: int
    calls: int = field(default=0, compare=False)

    def __call__(self, number: int) -> int:
        """Return the product."""
        self.calls += 1
        return number * self.size


LARGE = np.arange(1 << 20)
DIFFERENT: list[tuple[Any, Any]] = [
    (functools.partial(helper, 1), functools.partial(helper, 2)),
    (functools.partial(helper, 1), functools.partial(helper, number=1)),
    (functools.partial(np.add, np.arange(3)), functools.partial(np.add, np.arange(3.0))),
    (closing_over(0.0), closing_over(-0.0)),
    (closing_over(1), closing_over(bool(1))),
    (closing_over("1"), closing_over(b"1")),
    (closing_over([1]), closing_over((1,))),
    (closing_over({"a": 1, "b": 2}), closing_over({"b": 2, "a": 1})),
    (closing_over({"a": 1}), closing_over({"a": 2})),
    (closing_over({1, 2}), closing_over({1, 3})),
    (closing_over(Mode.FAST), closing_over(Mode.FINE)),
    (closing_over(np.zeros(4)), closing_over(np.zeros((2, 2)))),
    (closing_over(LARGE), closing_over(LARGE + 1)),
    (closing_over(lambda: 1), closing_over(lambda: 2)),
    (Resize(3), Resize(4)),
    (Resize(3).crop, Resize(4).crop),
    (Pad(length=3), Pad(length=4)),
    (Plain(3), Plain(4)),
    (Plain(Plain(3)), Plain(Plain(4))),
    (Counting(3), Counting(4)),
]


def test_functions_with_other_values_differ() -> None:
    """Arguments, held values, fields and attributes count by their value and type; equal ones give one identity."""
    for first, second in DIFFERENT:
        assert code_identity(first) != code_identity(second)
        assert code_identity(first) == code_identity(first)
    assert code_identity(closing_over({"a", "b", "c"})) == code_identity(closing_over({"c", "b", "a"}))
    assert code_identity(closing_over(np.arange(6)[::2])) == code_identity(closing_over(np.array([0, 2, 4])))
    assert code_identity(Plain([3], {"x": 1})) == code_identity(Plain([3], {"x": 1}))
    assert code_identity(Counting(3, calls=1)) == code_identity(Counting(3, calls=2))
    assert len({identity for identity, *_ in identities().values()}) == len(KINDS)


@in_short(15)
@given(st.integers(0, 40), st.integers(0, 17))
def test_kept_texts_are_those_of_a_new_walk(levels: int, partials: int) -> None:
    """The text of code is kept between walks. A digest is that of a walk that uses none, also near a walk's limits."""
    nested = module_of(f"function = lambda value: {'lambda value: ' * levels}((1, (2, 3.0)), {{4, (5,)}})").function
    for _ in range(partials):
        nested = functools.partial(len, (nested,))

    def refuses(walk: object, values: int, levels: int) -> bool:
        del walk, values, levels
        return False

    def digests() -> list[str]:
        return [code_identity(nested), code_identity(nested, with_state=False), held_values(nested)]

    with pytest.MonkeyPatch.context() as patch:
        for kind in ("Walk", "_Held"):
            patch.setattr(f"penstock._graph._code.{kind}.visits", refuses)
        expected = digests()
    assert [digests(), digests()] == [expected, expected]


class Unknown:
    """An object whose own fingerprint fails."""

    def fingerprint(self) -> str:
        """Raise an error."""
        raise RuntimeError


@dataclass(frozen=True, repr=False)  # a generated `__repr__` holds a set
class Holding:
    """A frozen object that holds another one beside a list."""

    seen: tuple[list[int], object]


LEAVES: st.SearchStrategy[object] = st.sampled_from([1, "text", (2, 3), frozenset({4})])
OBJECTS: st.SearchStrategy[object] = st.sampled_from(
    [threading.Lock(), types.SimpleNamespace(), Plain(1), Resize(3), Holding(([1], Unknown()))]
)
HELD: st.SearchStrategy[object] = st.recursive(
    LEAVES | OBJECTS | st.builds(lambda: np.arange(3)),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.builds(Plain, inner)
        | st.builds(types.SimpleNamespace, size=inner)
        | st.dictionaries(st.just("one"), inner)
        | inner.map(lambda value: (value, value))
    ),
    max_leaves=6,
)


@example([types.SimpleNamespace()])
@example(types.SimpleNamespace())
@example(Holding(([1], Unknown())))
@given(HELD)
def test_short_walks_decide_as_long_ones(value: object) -> None:
    """The digest of held values is the same if it is never taken for granted which attributes and values count."""
    digits = vars(_code)["_held_digits"]
    function = closing_over(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock._graph._code._Held.needs_second", True)
        patch.setattr("penstock._graph._code._Held.shows_state", False)
        expected = digits(function)
    assert digits(function) == expected


def test_recursive_objects_have_an_identity() -> None:
    """Lists, objects and functions that hold themselves have an identity."""
    loop: list[Any] = [1]
    loop.append(loop)
    held = Plain(loop)
    held.values = (held, loop)
    assert code_identity(closing_over(loop, held)) == code_identity(closing_over(loop, held))

    def recursive(number: int) -> int:
        return recursive(number - 1) if number else 0

    assert len(code_identity(recursive)) == 32


def test_without_state_use_changes_nothing() -> None:
    """Without state, the values that a function collects don't change its identity; frozen values do."""
    seen: list[int] = []
    cache: dict[int, int] = {}
    function = closing_over(seen, cache, np.zeros(3), Plain(1))
    before = code_identity(function, with_state=False), code_identity(function)
    seen.append(1)
    cache[1] = 2
    assert code_identity(function, with_state=False) == before[0]
    assert code_identity(function) != before[1]
    assert code_identity(Resize(3), with_state=False) != code_identity(Resize(4), with_state=False)


class Versioned:
    """An object with a fingerprint of its own."""

    def __init__(self, version: str, noise: int) -> None:
        self.version, self.noise = version, noise

    def fingerprint(self) -> str:
        """Return the identifying value."""
        return self.version

    def __call__(self, number: int) -> int:
        """Return the number."""
        return number


def defined_here() -> Callable[..., Any]:
    """Return an object whose class a function defines."""

    class Adds:
        def __call__(self, number: int) -> int:
            return number + 1

    return Adds()


def defined_there() -> Callable[..., Any]:
    """Return an object of an equal class, which another function defines."""

    class Adds:
        def __call__(self, number: int) -> int:
            return number + 1

    return Adds()


def test_what_identifies_an_object() -> None:
    """Of an object with a fingerprint nothing else counts.

    A class that cloudpickle has sent to another process lacks the name of the function that defines it.
    """
    assert code_identity(Versioned("a", 1)) == code_identity(Versioned("a", 2)) != code_identity(Versioned("b", 1))
    assert code_identity(defined_here()) == code_identity(defined_there())


def test_a_function_may_compare_with_masked() -> None:
    """NumPy's constant `masked`, which refuses the attributes that its own `tobytes` sets, counts by its class."""
    identities = {code_identity(closing_over(value)) for value in (np.ma.masked, np.ma.masked, np.zeros(()))}
    assert len(identities) == 2


def test_all_of_a_function_that_reads_a_first_line_counts() -> None:
    """Only the body of a class stores its own line: what else has the attribute's name is compared as a whole."""
    texts = [f"lambda *, a=1, b=2: {name}.__firstlineno__" for name in "ab"]
    assert len({code_identity(eval(text)) for text in texts}) == 2


def test_lambdas_and_local_functions_are_known() -> None:
    """Lambdas and local functions are found in partials, methods and objects of local classes."""

    class Local:
        """A class of this function."""

        def __call__(self) -> None:
            """Do nothing."""

    local: list[Any] = [lambda: 1, closing_over(1), Local(), Local().__call__, functools.partial(Local()), Local]
    named: list[Any] = [helper, len, str, Resize(3), Resize(3).crop, functools.partial(helper, 1), np.add]
    assert all(map(is_lambda_or_local, local))
    assert not any(map(is_lambda_or_local, named))


class Scaled:
    """A decorator that keeps a factor beside the function that it wraps."""

    def __init__(self, function: Callable[[int], int], factor: int) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.factor = factor

    def __call__(self, number: int) -> int:
        """Return the function's result, scaled."""
        return self.function(number) * self.factor


class Text(str):
    """A text of a class of its own."""

    __slots__ = ()


class Count(int):
    """A number of a class of its own, with an attribute."""

    unit = "bytes"


class Vocabulary(dict[str, int]):
    """A dict with an attribute."""

    def __init__(self, unknown: int) -> None:
        super().__init__(a=1)
        self.unknown = unknown


class Signal(np.ndarray[Any, Any]):
    """An array with an attribute."""

    rate = 0


@dataclass
class Scale:
    """An object whose comparison leaves out an attribute and a field."""

    factor: InitVar[int]
    offset: int = field(default=0, compare=False)

    def __post_init__(self, factor: int) -> None:
        self._factor = factor

    @functools.cached_property
    def square(self) -> int:
        """The square of the factor."""
        return self._factor**2


def counted(unit: str) -> Count:
    """Return a number with an attribute."""
    count = Count(1)
    count.unit = unit
    return count


def signal(rate: int) -> Signal:
    """Return an array with an attribute."""
    array = np.zeros(2).view(Signal)
    array.rate = rate
    return array


def masked(mask: list[bool]) -> Any:
    """Return an array with a mask."""
    make: Any = np.ma.array
    return make([1, 2], mask=mask)


def scaled(scale: int) -> Callable[[int], int]:
    """Return a function with an attribute."""

    def function(number: int) -> int:
        return number

    vars(function)["scale"] = scale
    return function


HOLDING: list[tuple[Callable[[Any], object], object, object]] = [
    (struct.Struct, "<I", ">I"),
    (string.Template, "a $x", "b $x"),
    (textwrap.TextWrapper, 10, 30),
    (lambda value: configparser.ConfigParser({"a": value}), "1", "2"),
    (UserDict, {"a": 1}, {"a": 2}),
    (UserList, [1], [2]),
    (ChainMap, {"a": 1}, {"a": 2}),
    (lambda number: uuid.UUID(int=number), 1, 2),
    (io.BytesIO, b"a", b"b"),
    (memoryview, b"a", b"b"),
    (lambda kind: kind | None, int, float),
    (lambda keys: dict.fromkeys(keys).keys(), "ab", "ac"),
    (Text, "a", "b"),
    (Text, "a" * 2000, "b" * 2000),
    (Count, 1, 2),
    (counted, "bytes", "rows"),
    (Vocabulary, 1, 2),
    (signal, 1, 2),
    (lambda factory: defaultdict(factory, a=1), int, float),
    (lambda length: deque([1], length), 1, None),
    (masked, [True, False], [False, True]),
    (Scale, 1, 2),
    (lambda offset: Scale(1, offset), 1, 2),
    (scaled, 1, 2),
    (functools.partial(functools.partialmethod, helper), 1, 2),
]


def test_the_key_of_a_cache_has_what_a_value_holds() -> None:
    """The state that a value gives a copy of itself counts, whatever its class; a cached property doesn't."""
    for make, first, second in HOLDING:
        one, again, other = (key_identity(closing_over(make(each))) for each in (first, first, second))
        assert one == again != other, make
        assert one.hidden == ()
    scale = Scale(2)
    before = key_identity(closing_over(scale))
    assert scale.square == 4
    assert key_identity(closing_over(scale)) == before


def test_the_key_of_a_cache_has_all_of_a_wrapper() -> None:
    """An object that wraps a function counts by its values, too, and so do the functions of a dispatcher."""
    assert key_identity(Scaled(helper, 2)) == key_identity(Scaled(helper, 2)) != key_identity(Scaled(helper, 3))
    assert key_identity(functools.lru_cache(helper)) == key_identity(functools.lru_cache(1)(helper))
    dispatched = functools.singledispatch(helper)
    before = key_identity(dispatched)
    dispatched.register(str, len)
    assert key_identity(dispatched) != before


EDITED = """
import functools, string
from typing import NamedTuple
class Pair(NamedTuple):
    first: int = 1
    def total(self): return self.first + 1
class Table(dict):
    def total(self): return len(self) + 2
class Sum:
    def add(self, number, more): return number + more
    __call__ = functools.partialmethod(add, more=3)
PAIR, TABLE, SUM, = Pair(), Table(), Sum()
def decode(number): return PAIR.total() + TABLE.total() + SUM(number)
"""


def test_the_key_of_a_cache_has_the_code_of_an_objects_class() -> None:
    """The code of the class of a tuple or dict counts, and so does a method that is made of another one."""
    assert key_identity(module_of(EDITED).decode) == key_identity(module_of(EDITED).decode)
    for part in ("first + 1", "len(self) + 2", "more=3"):
        edited = EDITED.replace(part, part[:-1] + "4")
        assert key_identity(module_of(EDITED).decode) != key_identity(module_of(edited).decode), part


WRAPPED = """
def helper(number): return number + 1
class Transform:
    def __call__(self, number): return helper(number)
class Requests:
    def __len__(self): return 1
    async def read(self, keys): return [helper(key) for key in keys]
def made(): return Transform()
"""


def test_the_key_follows_users_code_in_objects_of_others() -> None:
    """What a PerWorker calls counts, the source in an async one, and a class of the program that a library's holds."""
    holders: dict[str, tuple[Callable[[Any], Any], str]] = {
        "class": (lambda module: ps.PerWorker(module.Transform), "package_of_test"),
        "function": (lambda module: ps.PerWorker(module.made), "package_of_test"),
        "async source": (lambda module: source_of(ps.read(module.Requests())), "package_of_test"),
        "composition": (lambda module: composed(module.Transform()), "__main__"),
    }
    for name, (held, package) in holders.items():
        one, again, other = (
            key_identity(held(module_of(source, package)))
            for source in (WRAPPED, WRAPPED, WRAPPED.replace("+ 1", "+ 2"))
        )
        assert one == again != other, name


def source_of(dataset: ps.Dataset[Any]) -> object:
    """Return the source of a dataset without steps."""
    assert isinstance(dataset.node, Read)
    return dataset.node.source


def composed(transform: object) -> object:
    """Return an object of another package that holds a transform."""
    library = module_of("class Compose:\n    def __init__(self, transforms): self.transforms = transforms", "library")
    return library.Compose([transform])
