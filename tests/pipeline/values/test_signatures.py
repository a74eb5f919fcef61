"""A stage refuses an op that certainly can't be called with one item."""

import enum
import functools
import inspect
import operator
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest

from penstock.errors import UsageError
from penstock.pipeline import Aggregate, PathVariants, Pipe


def _two(item: int, size: int) -> int:
    return item + size


def _by_keyword(item: int, *, size: int) -> int:
    return item + size


async def _async_two(item: int, size: int) -> int:
    return item + size


def _class(*bases: type, **methods: Any) -> Any:
    """Return a class with these methods."""
    return type("Made", bases, methods)


class _Pair(NamedTuple):
    item: int
    size: int


class _Single(NamedTuple):
    item: int


@dataclass
class _Record:
    item: int
    size: int = 1


class _Color(enum.Enum):
    RED = 1


def _injecting(function: Callable[[int, int], int]) -> Callable[[int], int]:
    @functools.wraps(function)
    def inject(item: int) -> int:
        return function(item, 7)

    return inject


def _stating(function: Callable[..., int]) -> Callable[..., int]:
    """Return a decorated function with the signature of the wrapped one, though it takes fewer arguments."""

    def call(item: int) -> int:
        return function(item, 7)

    call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined] # pyright: ignore[reportFunctionMemberAccess] - as decorators do
    return call


def _any_number(*items: int) -> int:
    return len(items)


def _with_default(item: int, size: int = 1) -> int:
    return item + size


def _take_two(_: object, item: object, size: object) -> None:
    del item, size


_called = _class(
    __call__=_take_two, method=_take_two, static=staticmethod(lambda: 0), of_class=classmethod(lambda _: 0)
)
_made_of_two = _class(__init__=_take_two)
_by_metaclass = _class(type, __call__=_any_number)("Made", (), {"__init__": _take_two})

REFUSED: list[Any] = [
    *(_two, _by_keyword, _async_two, lambda: 0, _called(), _called().method, _called.static, _called.of_class),
    *(_class(__call__=staticmethod(_two))(), _made_of_two, _Pair, _class(), os.getcwd, "a".upper),
    *(functools.partial(_two), functools.partial(_by_keyword), functools.partial(_two, 1, 2)),
    *(functools.partial(functools.partial(_two, 1), size=2), functools.partial(_called(), strange=1)),
    *(functools.partial(len, "a"),),
]
ACCEPTED: list[Any] = [
    *(len, int, str, print, str.upper, dict.fromkeys, dict[int, int]().get, max, np.sqrt, np.asarray),
    *(operator.itemgetter(0), re.compile("a").match, functools.lru_cache(abs), functools.lru_cache(_injecting(_two))),
    *(_injecting(_two), _stating(_two), _class(__call__=staticmethod(abs))(), _Single, _Record, _Color, Mock()),
    *(functools.partial(_two, 1), functools.partial(_two, size=1), functools.partial(_by_keyword, size=1)),
    *(functools.partial(functools.partial(_two), size=2), functools.partial(_called().method, 3), _by_metaclass),
    *(functools.partial(_Pair, size=3), _any_number, _with_default),
]


def test_refused() -> None:
    """An op or a router that needs more than one argument, or takes none, is refused with its parameters."""
    for op in REFUSED:
        with pytest.raises(UsageError, match=r"an op is called with one argument, the item; got .* takes .*partial"):
            Pipe(op)
        if not inspect.iscoroutinefunction(op):
            with pytest.raises(UsageError, match="a router is called with one argument, the item"):
                PathVariants(op, ((),))


def test_accepted() -> None:
    """A callable that takes an item, or whose parameters are unknown, is accepted."""
    for op in ACCEPTED:
        pipe: Any = Pipe(op)
        route: Any = PathVariants(op, ((),))
        assert pipe.op is route.router is op
    assert Pipe({1: 2}).kind == "lookup"  # which isn't called


class _Collector:
    def __init__(self, size: int = 1) -> None:
        self.size = size

    def accumulate(self, item: int, /) -> int | None:
        return item

    def flush(self) -> int | None:
        return None


def _collecting(size: int) -> _Collector:
    return _Collector(size)


def _take_one(_: object, item: object) -> None:
    del item


async def _flush_later(_: object) -> None:
    pass


def test_aggregators() -> None:
    """An aggregator whose methods, or whose factory, can't be called as a stage calls them is refused."""
    no_argument = "an aggregator's factory is called with no argument"
    is_async = "the methods of an aggregator are plain functions; got an async flush of"
    later = _class(accumulate=_take_one, flush=_flush_later)
    needs_size = _class(_Collector, __init__=_take_one)
    unfit: list[tuple[Any, str]] = [
        *((needs_size, no_argument), (_collecting, no_argument), (later(), is_async)),
        *((_class(_Collector, flush=_take_one)(), "flush is called with no argument"),),
        *(
            (
                _class(_Collector, accumulate=_take_two)(),
                "accumulate is called with one argument",
            ),
        ),
        (later, is_async),
    ]
    for given, message in unfit:
        with pytest.raises(UsageError, match=message):
            Aggregate(given)
    unseen: Aggregate[int] = Aggregate(lambda: later())
    with pytest.raises(UsageError, match="got an async flush of"):  # when a pass uses it
        unseen.open()
    fit: list[Any] = [
        _Collector,
        _Collector(3),
        functools.partial(needs_size, 3),
        functools.partial(_collecting, size=3),
    ]
    for given in fit:
        assert Aggregate(given).open().accumulate(5) == 5
