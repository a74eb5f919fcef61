"""An op is checked when it is described: that it can be called with one item, as far as that is certain."""

import enum
import functools
import inspect
import operator
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast
from unittest.mock import Mock

import numpy as np
import pytest

from penstock.errors import UsageError
from penstock.pipeline import Aggregate, PathVariants, Pipe


def two(item: int, size: int) -> int:
    """Need a size."""
    return item + size


def by_keyword(item: int, *, size: int) -> int:
    """Need it by name."""
    return item + size


def any_number(*items: int) -> int:
    """Take any number."""
    return len(items)


def with_default(item: int, size: int = 1) -> int:
    """Take a size, too."""
    return item + size


def nothing() -> int:
    """Take no item."""
    return 0


async def async_two(item: int, size: int) -> int:
    """Need a size."""
    return item + size


class Called:
    """Called in several ways, of which each needs a size, or takes no item."""

    def __call__(self, item: int, size: int) -> int:
        """Need a size."""
        return item + size

    def method(self, item: int, size: int) -> int:
        """Need a size."""
        return item + size

    @staticmethod
    def static() -> int:
        """Take no item."""
        return 0

    @classmethod
    def of_class(cls) -> int:
        """Take no item."""
        return 0


class CalledStatically:
    """Its call is a static method."""

    @staticmethod
    def __call__(item: int) -> int:
        """Take the item."""
        return item


class CalledStaticallyForTwo:
    """Its call is a static method that needs a size."""

    @staticmethod
    def __call__(item: int, size: int) -> int:
        """Need a size."""
        return item + size


class MadeOfTwo:
    """Made of an item and a size."""

    def __init__(self, item: int, size: int) -> None:
        self.both = item, size


class Pair(NamedTuple):
    """Made by `__new__`."""

    item: int
    size: int


class Single(NamedTuple):
    """Made by `__new__`, of one."""

    item: int


@dataclass
class Record:
    """Made by an `__init__` that nobody wrote."""

    item: int
    size: int = 1


class Empty:
    """Made of nothing."""


class Made(type):
    """Makes its classes callable in another way."""

    def __call__(cls, *items: int) -> int:
        """Take any number."""
        return len(items)


class ByMetaclass(metaclass=Made):
    """Its own `__init__` isn't called."""

    def __init__(self, item: int, size: int) -> None:
        self.both = item, size


class Color(enum.Enum):
    """Looked up by a call."""

    RED = 1


def injecting(function: Callable[[int, int], int]) -> Callable[[int], int]:
    """Decorate a function so that it gets its size."""

    @functools.wraps(function)
    def inject(item: int) -> int:
        return function(item, 7)

    return inject


def stating(function: Callable[..., int]) -> Callable[..., int]:
    """Decorate a function so that it states what it wraps, and takes less."""

    def call(item: int) -> int:
        return function(item, 7)

    call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined] # pyright: ignore[reportFunctionMemberAccess] - as decorators do
    return call


REFUSED: list[Any] = [
    two,
    by_keyword,
    nothing,
    async_two,
    lambda: 0,
    Called(),
    Called().method,
    Called.static,
    Called.of_class,
    CalledStaticallyForTwo(),
    MadeOfTwo,
    Pair,
    Empty,
    os.getcwd,
    "a".upper,
    functools.partial(two),
    functools.partial(by_keyword),
    functools.partial(two, 1, 2),
    functools.partial(functools.partial(two, 1), size=2),
    functools.partial(cast("Any", Called()), strange=1),
    functools.partial(len, "a"),
]
ACCEPTED: list[Any] = [
    len,
    int,
    str,
    print,
    str.upper,
    dict.fromkeys,
    dict[int, int]().get,
    max,
    np.sqrt,
    np.asarray,
    operator.itemgetter(0),
    re.compile("a").match,
    functools.lru_cache(abs),
    functools.lru_cache(injecting(two)),
    injecting(two),
    stating(two),
    CalledStatically(),
    Single,
    Record,
    ByMetaclass,
    Color,
    Mock(),
    functools.partial(two, 1),
    functools.partial(two, size=1),
    functools.partial(by_keyword, size=1),
    functools.partial(functools.partial(two), size=2),
    functools.partial(Called().method, 3),
    functools.partial(Pair, size=3),
    any_number,
    with_default,
]


@pytest.mark.parametrize("op", REFUSED)
def test_refused(op: Any) -> None:
    """An op or a router that one item is not enough for, or too much, is refused with what it takes."""
    with pytest.raises(UsageError, match=r"an op is called with one argument, the item; got .* takes .*partial"):
        Pipe(op)
    if not inspect.iscoroutinefunction(op):
        with pytest.raises(UsageError, match="a router is called with one argument, the item"):
            PathVariants(op, ((),))


@pytest.mark.parametrize("op", ACCEPTED)
def test_accepted(op: Any) -> None:
    """What takes an item, or doesn't tell what it takes, is accepted."""
    described: tuple[Any, Any] = Pipe(op), PathVariants(op, ((),))
    assert described[0].op is op
    assert described[1].router is op


def test_lookups_are_not_called() -> None:
    """A container is looked up in, whatever else it does."""
    assert Pipe({1: 2}).kind == "lookup"


class Collector:
    """An aggregator that is made of something, and whose methods take what they are given."""

    def __init__(self, size: int = 1) -> None:
        self.size = size

    def accumulate(self, item: int, /) -> int | None:
        """Take an item."""
        return item

    def flush(self) -> int | None:
        """Give nothing."""
        return None


class NeedsSize(Collector):
    """Can't be made of nothing."""

    def __init__(self, size: int) -> None:
        super().__init__(size)


def collecting(size: int) -> Collector:
    """Need a size."""
    return Collector(size)


class FlushesFor(Collector):
    """Needs something to flush."""

    def flush(self, reason: str) -> int | None:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride] - wrong
        """Give nothing."""
        del reason
        return None


class AccumulatesTwo(Collector):
    """Needs two items."""

    def accumulate(self, item: int, other: int, /) -> int | None:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride] - wrong
        """Take two."""
        return item + other


UNFIT: list[tuple[Any, str]] = [
    (NeedsSize, "what makes an aggregator is called with no argument"),
    (collecting, "what makes an aggregator is called with no argument"),
    (FlushesFor(), "flush is called with no argument"),
    (AccumulatesTwo(), "accumulate is called with one argument"),
]


@pytest.mark.parametrize(("given", "what"), UNFIT)
def test_aggregators(given: Any, what: str) -> None:
    """An aggregator whose methods, or whose maker, can't be called as a stage calls them is refused."""
    with pytest.raises(UsageError, match=what):
        Aggregate(given)


@pytest.mark.parametrize(
    "given", [Collector, Collector(3), functools.partial(NeedsSize, 3), functools.partial(collecting, size=3)]
)
def test_aggregators_that_fit(given: Any) -> None:
    """Others are accepted."""
    assert Aggregate(given).open().accumulate(5) == 5
