"""A stage refuses an op that certainly can't be called with one item."""

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
    """Need a size by keyword."""
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
    """A class whose `__call__` and methods each need a size, or take no item."""

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
    """A class whose `__call__` is a static method."""

    @staticmethod
    def __call__(item: int) -> int:
        """Take the item."""
        return item


class CalledStaticallyForTwo:
    """A class whose `__call__` is a static method that needs a size."""

    @staticmethod
    def __call__(item: int, size: int) -> int:
        """Need a size."""
        return item + size


class MadeOfTwo:
    """A class that needs an item and a size."""

    def __init__(self, item: int, size: int) -> None:
        self.both = item, size


class Pair(NamedTuple):
    """A class with a `__new__` of two arguments."""

    item: int
    size: int


class Single(NamedTuple):
    """A class with a `__new__` of one argument."""

    item: int


@dataclass
class Record:
    """A class with a generated `__init__`."""

    item: int
    size: int = 1


class Empty:
    """A class that takes no argument."""


class Made(type):
    """A metaclass whose `__call__` replaces the constructor."""

    def __call__(cls, *items: int) -> int:
        """Take any number."""
        return len(items)


class ByMetaclass(metaclass=Made):
    """A class whose `__init__` isn't called."""

    def __init__(self, item: int, size: int) -> None:
        self.both = item, size


class Color(enum.Enum):
    """An enum: a call looks up a member."""

    RED = 1


def injecting(function: Callable[[int, int], int]) -> Callable[[int], int]:
    """Return a decorated function that passes a size."""

    @functools.wraps(function)
    def inject(item: int) -> int:
        return function(item, 7)

    return inject


def stating(function: Callable[..., int]) -> Callable[..., int]:
    """Return a decorated function with the signature of the wrapped one, though it takes fewer arguments."""

    def call(item: int) -> int:
        return function(item, 7)

    call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined] # pyright: ignore[reportFunctionMemberAccess] - as decorators do
    return call


REFUSED: list[Any] = [
    *(two, by_keyword, nothing, async_two, lambda: 0, Called(), Called().method, Called.static, Called.of_class),
    *(CalledStaticallyForTwo(), MadeOfTwo, Pair, Empty, os.getcwd, "a".upper, functools.partial(two)),
    *(functools.partial(by_keyword), functools.partial(two, 1, 2)),
    *(functools.partial(functools.partial(two, 1), size=2), functools.partial(cast("Any", Called()), strange=1)),
    *(functools.partial(len, "a"),),
]
ACCEPTED: list[Any] = [
    *(len, int, str, print, str.upper, dict.fromkeys, dict[int, int]().get, max, np.sqrt, np.asarray),
    *(operator.itemgetter(0), re.compile("a").match, functools.lru_cache(abs), functools.lru_cache(injecting(two))),
    *(injecting(two), stating(two), CalledStatically(), Single, Record, ByMetaclass, Color, Mock()),
    *(functools.partial(two, 1), functools.partial(two, size=1), functools.partial(by_keyword, size=1)),
    *(functools.partial(functools.partial(two), size=2), functools.partial(Called().method, 3)),
    *(functools.partial(Pair, size=3), any_number, with_default),
]


@pytest.mark.parametrize("op", REFUSED)
def test_refused(op: Any) -> None:
    """An op or a router that needs more than one argument, or takes none, is refused with its parameters."""
    with pytest.raises(UsageError, match=r"an op is called with one argument, the item; got .* takes .*partial"):
        Pipe(op)
    if not inspect.iscoroutinefunction(op):
        with pytest.raises(UsageError, match="a router is called with one argument, the item"):
            PathVariants(op, ((),))


@pytest.mark.parametrize("op", ACCEPTED)
def test_accepted(op: Any) -> None:
    """A callable that takes an item, or whose parameters are unknown, is accepted."""
    described: tuple[Any, Any] = Pipe(op), PathVariants(op, ((),))
    assert described[0].op is op
    assert described[1].router is op


def test_lookups_are_not_called() -> None:
    """A container is an op of the kind "lookup"."""
    assert Pipe({1: 2}).kind == "lookup"


class Collector:
    """An aggregator with an optional argument, whose methods fit a stage."""

    def __init__(self, size: int = 1) -> None:
        self.size = size

    def accumulate(self, item: int, /) -> int | None:
        """Return the item."""
        return item

    def flush(self) -> int | None:
        """Return None."""
        return None


class NeedsSize(Collector):
    """An aggregator class that needs an argument."""

    def __init__(self, size: int) -> None:
        super().__init__(size)


def collecting(size: int) -> Collector:
    """Need a size."""
    return Collector(size)


class FlushesFor(Collector):
    """An aggregator whose `flush` needs an argument."""

    def flush(self, reason: str) -> int | None:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride] - wrong
        """Return None."""
        del reason
        return None


class AccumulatesTwo(Collector):
    """An aggregator whose `accumulate` needs two items."""

    def accumulate(self, item: int, other: int, /) -> int | None:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride] - wrong
        """Return the sum."""
        return item + other


class FlushesLater:
    """An aggregator whose `flush` is async."""

    def accumulate(self, item: int, /) -> int | None:
        """Return the item."""
        return item

    async def flush(self) -> int | None:
        """Return None."""
        return None


UNFIT: list[tuple[Any, str]] = [
    (NeedsSize, "an aggregator's factory is called with no argument"),
    (collecting, "an aggregator's factory is called with no argument"),
    (FlushesFor(), "flush is called with no argument"),
    (AccumulatesTwo(), "accumulate is called with one argument"),
    (FlushesLater(), "the methods of an aggregator are plain functions; got an async flush of"),
    (FlushesLater, "the methods of an aggregator are plain functions; got an async flush of"),
]


def test_a_factory_of_an_aggregator_with_async_methods() -> None:
    """A factory whose aggregator has an async method is refused when a pass uses it."""
    kinds: dict[str, Any] = {"later": FlushesLater}
    stage: Aggregate[int] = Aggregate(lambda: kinds["later"]())
    with pytest.raises(UsageError, match="got an async flush of"):
        stage.open()


@pytest.mark.parametrize(("given", "message"), UNFIT)
def test_refused_aggregators(given: Any, message: str) -> None:
    """An aggregator whose methods, or whose factory, can't be called as a stage calls them is refused."""
    with pytest.raises(UsageError, match=message):
        Aggregate(given)


@pytest.mark.parametrize(
    "given", [Collector, Collector(3), functools.partial(NeedsSize, 3), functools.partial(collecting, size=3)]
)
def test_accepted_aggregators(given: Any) -> None:
    """An aggregator, its class, or a factory without required arguments is accepted."""
    assert Aggregate(given).open().accumulate(5) == 5
