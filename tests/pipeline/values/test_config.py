"""The values that describe a pipeline: refused arguments, kinds of ops, names of stages, texts, and pickling."""

import functools
import inspect
import itertools
import pickle
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any, cast, get_origin

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.pipeline import (
    Aggregate,
    Disaggregate,
    Merge,
    PathVariants,
    Pipe,
    Pipeline,
    PipelineBuilder,
    PipelineConfig,
    Sink,
    Source,
    SubprocessPipeline,
    ThreadExecutor,
)
from tests.profiles import in_short


def _plain(item: int) -> int:
    return item


def _counting(item: int) -> Iterator[int]:
    yield item


async def _awaited(item: int) -> int:
    return item


async def _streamed(item: int) -> AsyncIterator[int]:
    yield item


@functools.wraps(_plain)
def _wrapped(item: int) -> int:
    return _plain(item)


class _Called:
    """A callable class that also has `__getitem__`."""

    def __call__(self, item: int) -> int:
        return item

    def __getitem__(self, item: int) -> int:
        return item


class _CalledAsync:
    """A class whose `__call__` and methods are async."""

    async def __call__(self, item: int) -> int:
        return item

    async def method(self, item: int) -> int:
        return item

    @staticmethod
    async def static(item: int) -> int:
        return item

    @classmethod
    def made(cls, item: int) -> Iterator[int]:
        yield item


class _CalledStream:
    """A class whose `__call__` is an async generator."""

    @staticmethod
    async def __call__(item: int) -> AsyncIterator[int]:
        yield item


class _Sums:
    """An aggregator whose batches are sums of at least ten."""

    def __init__(self) -> None:
        self.held: list[int] = []

    def accumulate(self, item: int, /) -> int | None:
        self.held.append(item)
        return self.flush() if sum(self.held) >= 10 else None

    def flush(self) -> int | None:
        total, self.held = sum(self.held), []
        return total or None


class _Workers:
    """An executor that is a value: it has a number of processes."""

    max_workers = 2


def _config(*stages: Any, source: Source | Merge | None = None) -> PipelineConfig:
    return PipelineConfig(source or Source([1, 2]), stages, Sink())


class _MadeOf(_CalledAsync):
    """A class that is called with an item, and whose instances are async."""

    def __init__(self, item: int) -> None:
        self.item = item


def _make_class(item: object) -> object:
    return _Called if item else _CalledAsync


KINDS: dict[str, list[Any]] = {
    # Calling a class makes an object, and awaits nothing.
    "sync": [_plain, _wrapped, len, str.upper, int, _MadeOf, _Called(), _make_class],
    "generator": [_counting, _CalledAsync.made],
    "async": [_awaited, _CalledAsync(), _CalledAsync().method, _CalledAsync.static, _CalledAsync().__call__],
    "async generator": [_streamed, _CalledStream()],
    "lookup": [{1: 2}, [1], np.arange(3), range(3)],
}


def test_the_kind_of_an_op() -> None:
    """An op's kind follows from its code, also inside partials of partials."""
    for kind, op in ((kind, op) for kind, ops in KINDS.items() for op in ops):
        assert Pipe(op).kind == kind, op
        if callable(op):
            assert Pipe(functools.partial(op)).kind == kind
            assert Pipe(functools.partial(functools.partial(op))).kind == kind


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: Pipe(3), r"an op is callable, or has __getitem__; got 3\. Pass"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: Pipe(_plain, concurrency=0), r"concurrency must be an integer of at least 1; got 0\."),
    (lambda: Pipe(_plain, concurrency=True), r"concurrency must be .*; got True"),
    (lambda: Pipe(_plain, max_items=0), r"max_items must be .*; got 0"),
    (lambda: Pipe(_plain, max_bytes=-1), r"max_bytes must be .*; got -1"),
    (lambda: Pipe(_plain, name=""), r"a stage's name .*; got name=''"),
    (lambda: Pipe(_plain, name="a/b"), r"a stage's name is text without '/'.*; got name='a/b'"),
    (lambda: Pipe(_plain, output_order="any"), r"output_order is one of 'completion', 'input'; got 'any'"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: Pipe(_plain, max_failures=-2), r"max_failures is .*; got -2\. Write"),
    (lambda: Pipe(_plain, max_failures=True), r"max_failures is .*; got True"),
    (lambda: Pipe(_plain, max_failures=Fraction(3, 2)), r"max_failures is .*; got Fraction\(3, 2\)"),
    (lambda: Pipe(_plain, max_failures=0.1), r"max_failures is .*; got 0.1"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: Pipe(_plain, executor=4), r"an executor is a .*; got 4\. Pass one"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: Pipe(_plain, executor=cast("Any", ThreadExecutor)), r"an executor is a .*; got <class .*ThreadExecutor'>"),
    (lambda: Pipe(_awaited, executor=_Workers()), r"an async op runs in the pipeline's event loop; got executor="),
    (lambda: Pipe(_streamed, executor=_Workers()), r"an async op runs in .* for _streamed\. Omit executor"),
    (
        lambda: Pipe(_streamed, output_order="input"),
        r"an async generator's .*; got output_order='input' for _streamed\. Omit",
    ),
    (lambda: Aggregate(0), r"the size of a batch must be .*; got 0"),
    (lambda: Aggregate(True), r"the size of a batch must be .*; got True"),  # noqa: FBT003 - refused
    (lambda: Aggregate("ab"), r"aggregate takes a number of items, or .*; got 'ab'"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: PathVariants(_plain, ()), r"paths is a tuple of at least one path.*; got \(\)"),
    (lambda: PathVariants(_plain, [()]), r"paths is a tuple .*; got \[\(\)\]"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: PathVariants(_plain, ((_plain,),)), r"a stage is a Pipe, .*; got <function _plain"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: PathVariants(_streamed, ((),)), r"a router is a function, .*; got <function _streamed"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: PathVariants({}, ((),)), r"a router is a function, plain or async, .*; got {}"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: Sink(0), r"buffer_size must be .*; got 0"),
    (lambda: Sink(max_bytes=0), r"max_bytes must be .*; got 0"),
    (lambda: Source(3), r"a source is iterable, or async iterable; got 3\. Pass a list"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: Source(_counting), r"a source is iterable.*; got <function _counting.*Pass its result"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: Source(list), r"a source is iterable.*; got <class 'list'>\. Pass its result"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: Merge(()), r"Merge takes a tuple of at least one PipelineConfig; got \(\)"),
    (lambda: Merge((Source([]),)), r"Merge takes .*; got \(Source\(list\),\)"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: Merge((_config(),), order="random"), r"order is one of 'arrival', 'turns'; got 'random'"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (
        lambda: Merge((_config(), _config(source=Source([], continuous=True)))),
        r"merged pipelines are all continuous, or none is; got continuous=\[False, True\]\. Set the same",
    ),
    (lambda: PipelineConfig([], (), Sink()), r"source is a Source or a Merge; got \[\]\. Write Source\("),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: PipelineConfig(Source([]), (), 3), r"sink is a Sink; got 3\. Write Sink\("),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: PipelineConfig(Source([]), [], Sink()), r"the stages are a tuple; got \[\]\. Write tuple\("),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: _config(_plain), r"a stage is a Pipe, .*; got <function _plain.*Wrap a function as Pipe\("),
    (
        lambda: _config(Pipe(_plain, name="a"), Pipe(len, name="a")),
        r"two stages can't share a name.*; got name='a' again",
    ),
    (lambda: _config(Pipe(_plain, name="sink")), r"source, merge and sink are reserved; got name='sink'"),
    (
        lambda: _config(PathVariants(_plain, ((Pipe(len, name="b"), Pipe(_plain, name="b")),))),
        r"two stages can't share a name.*; got name='b' again\. Give one of them another name",
    ),
]


def test_wrong_arguments() -> None:
    """A wrong argument is refused when the value is made, with the rule, the value and the remedy."""
    for make, message in WRONG:
        with pytest.raises(UsageError, match=message):
            make()


def test_executors_and_failures() -> None:
    """An object with `submit`, or with a number of processes, is an executor for any op that isn't async.

    A count, -1 and a share of the items are accepted as limits of failures.
    """
    with ThreadPoolExecutor(1) as threads:
        executors: list[Any] = [threads, _Workers()]
        ops: list[Any] = [_plain, _counting, {1: 2}, _Called()]
        for executor, op in itertools.product(executors, ops):
            assert Pipe(op, executor=executor).executor is executor
    for most in (0, 5, -1, Fraction(0), Fraction(1, 100), Fraction(1)):
        assert Pipe(_plain, max_failures=most).max_failures == most


def test_no_two_passes_share_an_aggregator() -> None:
    """Each pass has an aggregator of its own, equal to the given one."""
    aggregators: list[Any] = [_Sums(), _Sums, functools.partial(_Sums), lambda: _Sums()]
    for aggregator in aggregators:
        stage = Aggregate(aggregator)
        first, second = stage.open(), stage.open()
        assert [first.accumulate(item) for item in (4, 5)] == [None, None]
        assert second.flush() is None
        assert stage.open().flush() is None
        assert [first.accumulate(6), first.flush()] == [15, None]
    with pytest.raises(UsageError, match=r"an aggregator's factory .*; dict returned {}\. Pass a number"):
        Aggregate(dict).open()  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused


def test_classes_take_the_types_of_their_items() -> None:
    """A class with the types of items, and of results, in brackets refers to the class, and makes equal values."""
    of_items: list[Any] = [Aggregate, Disaggregate, Merge, PathVariants, Pipeline, PipelineConfig, Sink, Source]
    of_items.append(SubprocessPipeline)
    assert all(get_origin(generic[int]) is generic for generic in of_items)
    of_both: tuple[Any, ...] = (Pipe, PipelineBuilder)
    assert all(get_origin(generic[str, int]) is generic for generic in of_both)
    stage = Pipe[str, int](len, concurrency=2)
    assert stage == Pipe(len, concurrency=2)
    assert pickle.loads(pickle.dumps(stage)) == stage
    assert PipelineConfig[int](Source("ab"), (stage,), Sink[int]()).names() == ("source", "len", "sink")


def test_a_merge_is_continuous_if_its_pipelines_are() -> None:
    """A merge, also one of merges, is continuous if its pipelines are."""
    for continuous in (False, True):
        part = _config(source=Source([], continuous=continuous))
        merged = _config(source=Merge((part, _config(source=Merge((part, part))))))
        assert merged.continuous is continuous


def test_names_come_in_the_order_of_flow() -> None:
    """The stages of paths follow their router, merged pipelines come first, and both have a prefix."""
    inner = PathVariants(len, ((Pipe(_plain),), ()))
    route = PathVariants(_plain, ((Pipe(_plain), Disaggregate()), (inner, Pipe(_plain, name="last"))), name="route")
    part = _config(Pipe(_plain), Aggregate(2))
    whole = _config(Pipe(_plain), route, Pipe(_plain), source=Merge((part, _config(source=Merge((part,))))))
    merged = ["source", "_plain", "aggregate", "sink"]
    assert list(whole.names()) == [
        *(f"merge[0]/{name}" for name in merged),
        *(f"merge[1]/merge[0]/{name}" for name in merged),
        "merge[1]/merge",
        "merge[1]/sink",
        "merge",
        "_plain",
        "route",
        "route[0]/_plain",
        "route[0]/disaggregate",
        "route[1]/len",
        "route[1]/len[0]/_plain",
        "route[1]/last",
        "_plain#2",
        "sink",
    ]


def test_default_names() -> None:
    """A stage has the name of its function, class or aggregator, also inside a partial."""
    partial = functools.partial(functools.partial(_plain))
    aggregates = (Aggregate(3), Aggregate(_Sums()), Aggregate(_Sums), Aggregate(functools.partial(_Sums)))
    pipes = (Pipe(partial), Pipe(_Called()), Pipe(int), Pipe(_CalledAsync().method), Pipe({}), Pipe(str.upper))
    assert _config(*pipes, *aggregates).names()[1:-1] == (
        *("_plain", "_Called", "int", "_CalledAsync.method", "dict", "str.upper"),
        *("aggregate", "_Sums", "_Sums#2", "_Sums#3"),
    )


def _named(name: str) -> Callable[[int], int]:
    def op(item: int) -> int:
        return item

    op.__qualname__ = name
    return op


NAMES = st.sampled_from(["a", "b", "a#2", "a#3", "b#2#2", "sink", "source"])


@in_short(10)
@given(
    defaults=st.lists(NAMES, max_size=8), explicit=st.lists(NAMES, max_size=8), order=st.randoms(use_true_random=False)
)
def test_names_are_unique(defaults: list[str], explicit: list[str], order: Any) -> None:
    """Explicit names are used or refused; default names get the smallest free ordinal, in the order of flow."""
    stages = [Pipe(_named(name)) for name in defaults] + [Pipe(_plain, name=name) for name in explicit]
    order.shuffle(stages)
    if {"source", "sink"} & {*explicit} or max(Counter(explicit).values(), default=0) > 1:
        with pytest.raises(UsageError, match="share a name"):
            _config(*stages)
        return
    used = ["source", "merge", "sink", *explicit]
    expected: list[str] = []
    for stage in stages:
        base = stage.name or str(getattr(stage.op, "__qualname__", ""))
        candidates = [base, *(f"{base}#{ordinal}" for ordinal in range(2, 40))]
        expected.append(stage.name or next(name for name in candidates if name not in used))
        used.append(expected[-1])
    assert list(_config(*stages).names()) == ["source", *expected, "sink"]
    assert len({*_config(*stages).names()}) == len(stages) + 2


def test_the_text_of_a_pipeline() -> None:
    """Each stage has a line with its kind, limits and order; inner stages are indented below it."""
    route = PathVariants(len, ((Pipe(str.upper, max_failures=Fraction(1, 100)),), ()), name="route")
    first = _config(Pipe({1: 2}, max_bytes=4096, executor=_Workers()), source=Source((1,), continuous=True))
    second = _config(source=Source("ab", continuous=True))
    stages = (
        Pipe(bytes.hex, concurrency=4, output_order="input", max_failures=1, max_items=1, repeatable=True),
        route,
        Aggregate(2, drop_last=True),
        Disaggregate(),
        Pipe(len, max_failures=-1, skip_none=True),
    )
    whole = PipelineConfig(Merge((first, second), order="turns"), stages, Sink(1, max_bytes=1000))
    assert str(whole) == whole.describe()
    assert str(whole).split("\n") == [
        "merge: 2 pipelines in turns",
        "  merge[0]:",
        "    source: tuple, continuous",
        "    dict: lookup, concurrency 1, on _Workers, 4,096 bytes",
        "    sink: up to 3 items",
        "  merge[1]:",
        "    source: str, continuous",
        "    sink: up to 3 items",
        "bytes.hex: function, concurrency 4, in input order, up to 1 failure, 1 item waiting, repeatable",
        "route: to one of 2 paths",
        "  route[0]:",
        "    str.upper: function, concurrency 1, failures up to 1/100",
        "  route[1]: unchanged",
        "aggregate: lists of 2, without the last",
        "disaggregate: the elements of each item",
        "len: function, concurrency 1, any number of failures, without None",
        "sink: up to 1 item, 1,000 bytes",
    ]


LOCATED: list[tuple[Any, Any]] = [
    *((_plain, _plain), (functools.partial(_awaited), _awaited), (_wrapped, _plain), (_Called(), _Called.__call__)),
    *((_CalledAsync().method, _CalledAsync.method), (_MadeOf, _MadeOf.__init__)),
]


def test_the_location_of_an_op() -> None:
    """A stage's line ends with the location of its function's code, also inside partials and decorators."""
    for op, function in LOCATED:
        assert function.__code__.co_filename == inspect.getsourcefile(_plain)
        location = f", at {function.__code__.co_filename}:{function.__code__.co_firstlineno}"
        assert str(_config(Pipe(op))).split("\n")[1].endswith(location)
        if Pipe(op).kind == "sync":
            assert str(_config(PathVariants(op, ((),)))).split("\n")[1].endswith(location)


def test_texts_are_short() -> None:
    """No repr shows the contents of a source or a container."""
    many = list(range(10_000))
    whole = _config(Pipe(many, concurrency=2), PathVariants(_plain, ((), ())), source=Source(many))
    assert repr(whole) == "PipelineConfig(source > list > _plain > sink)"
    assert [repr(each) for each in (whole.source, *whole.pipes)] == [
        "Source(list)",
        "Pipe(list, concurrency=2)",
        "PathVariants(_plain, 2 paths)",
    ]


def test_round_trip() -> None:
    """A config of ops that can be pickled is equal after pickling, and so are the kinds of its ops."""
    stages = (
        Pipe(functools.partial(_plain), concurrency=3, name="first", max_failures=Fraction(1, 7)),
        Pipe(_awaited, max_items=9),
        PathVariants(_plain, ((Pipe(_streamed), Aggregate(_Sums)), (Pipe({1: 2}),)), name="route"),
        Aggregate(3, drop_last=True),
        Disaggregate(),
    )
    part = PipelineConfig(Source(range(9), continuous=True), stages[1:], Sink(2, max_bytes=5))
    whole = PipelineConfig(Merge((part, part), order="turns"), stages[1:], Sink())
    again = pickle.loads(pickle.dumps(whole))
    assert again == whole
    assert str(again) == str(whole)
    first = PipelineConfig(Source([1]), stages, Sink())
    returned: PipelineConfig = pickle.loads(pickle.dumps(first))
    assert returned.names() == first.names()
    assert [stage.kind for stage in returned.pipes if isinstance(stage, Pipe)] == ["sync", "async"]


def test_values_are_frozen() -> None:
    """The attributes of a checked value can't be set."""
    for value, name in ((Pipe(_plain), "concurrency"), (Sink(), "buffer_size"), (_config(), "pipes")):
        with pytest.raises(AttributeError, match="cannot assign"):
            setattr(value, name, 0)
