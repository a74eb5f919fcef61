"""The values that describe a pipeline: refused arguments, kinds of ops, and the batches of aggregators."""

import functools
import itertools
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any, get_origin

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
)
from tests.pipeline.values.ops import (
    Called,
    CalledAsync,
    CalledStream,
    Sums,
    Workers,
    awaited,
    config,
    counting,
    plain,
    streamed,
    wrapped,
)


class _MadeOf(CalledAsync):
    """A class that is called with an item, and whose instances are async."""

    def __init__(self, item: int) -> None:
        self.item = item


def _make_class(item: object) -> object:
    return Called if item else CalledAsync


KINDS: dict[str, list[Any]] = {
    # Calling a class makes an object, and awaits nothing.
    "sync": [plain, wrapped, len, str.upper, int, _MadeOf, Called(), _make_class],
    "generator": [counting, CalledAsync.made],
    "async": [awaited, CalledAsync(), CalledAsync().method, CalledAsync.static, CalledAsync().__call__],
    "async generator": [streamed, CalledStream()],
    "lookup": [{1: 2}, [1], np.arange(3), range(3)],
}


def test_the_kind_of_an_op() -> None:
    """An op's kind follows from its code, also inside partials of partials."""
    for kind, op in ((kind, op) for kind, ops in KINDS.items() for op in ops):
        assert Pipe(op).kind == kind, op
        if callable(op):
            assert Pipe(functools.partial(op)).kind == kind
            assert Pipe(functools.partial(functools.partial(op))).kind == kind


def test_the_kind_fits_the_result_of_a_call() -> None:
    """The result of calling an op has the type that its kind implies."""
    types: dict[str, Any] = {
        "sync": int,
        "async": Awaitable,
        "generator": Iterator,
        "async generator": AsyncIterator,
    }
    for op in (plain, counting, awaited, streamed, Called(), CalledAsync(), CalledStream(), CalledAsync.made):
        result: Any = op(1)
        assert [kind for kind, of_kind in types.items() if isinstance(result, of_kind)] == [Pipe(op).kind]
        if hasattr(result, "close"):
            result.close()


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: Pipe(3), r"an op is callable, or has __getitem__; got 3\. Pass"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: Pipe(plain, concurrency=0), r"concurrency must be an integer of at least 1; got 0\."),
    (lambda: Pipe(plain, concurrency=True), r"concurrency must be .*; got True"),
    (lambda: Pipe(plain, max_items=0), r"max_items must be .*; got 0"),
    (lambda: Pipe(plain, max_bytes=-1), r"max_bytes must be .*; got -1"),
    (lambda: Pipe(plain, name=""), r"a stage's name .*; got name=''"),
    (lambda: Pipe(plain, name="a/b"), r"a stage's name is text without '/'.*; got name='a/b'"),
    (lambda: Pipe(plain, output_order="any"), r"output_order is one of 'completion', 'input'; got 'any'"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: Pipe(plain, max_failures=-2), r"max_failures is .*; got -2\. Write"),
    (lambda: Pipe(plain, max_failures=True), r"max_failures is .*; got True"),
    (lambda: Pipe(plain, max_failures=Fraction(3, 2)), r"max_failures is .*; got Fraction\(3, 2\)"),
    (lambda: Pipe(plain, max_failures=0.1), r"max_failures is .*; got 0.1"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: Pipe(plain, executor=4), r"an executor is a .*; got 4\. Pass one"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: Pipe(awaited, executor=Workers()), r"an async op runs in the pipeline's event loop; got executor="),
    (lambda: Pipe(streamed, executor=Workers()), r"an async op runs in .* for streamed\. Omit executor"),
    (
        lambda: Pipe(streamed, output_order="input"),
        r"an async generator's .*; got output_order='input' for streamed\. Omit",
    ),
    (lambda: Aggregate(0), r"the size of a batch must be .*; got 0"),
    (lambda: Aggregate(True), r"the size of a batch must be .*; got True"),  # noqa: FBT003 - refused
    (lambda: Aggregate("ab"), r"aggregate takes a number of items, or .*; got 'ab'"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: PathVariants(plain, ()), r"paths is a tuple of at least one path.*; got \(\)"),
    (lambda: PathVariants(plain, [()]), r"paths is a tuple .*; got \[\(\)\]"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: PathVariants(plain, ((plain,),)), r"a stage is a Pipe, .*; got <function plain"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: PathVariants(streamed, ((),)), r"a router is a function, .*; got <function streamed"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: PathVariants({}, ((),)), r"a router is a function, plain or async, .*; got {}"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: Sink(0), r"buffer_size must be .*; got 0"),
    (lambda: Sink(max_bytes=0), r"max_bytes must be .*; got 0"),
    (lambda: Source(3), r"a source is iterable, or async iterable; got 3\. Pass a list"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: Source(counting), r"a source is iterable.*; got <function counting.*Pass its result"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: Source(list), r"a source is iterable.*; got <class 'list'>\. Pass its result"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: Merge(()), r"Merge takes a tuple of at least one PipelineConfig; got \(\)"),
    (lambda: Merge((Source([]),)), r"Merge takes .*; got \(Source\(list\),\)"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: Merge((config(),), order="random"), r"order is one of 'arrival', 'turns'; got 'random'"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (
        lambda: Merge((config(), config(source=Source([], continuous=True)))),
        r"merged pipelines are all continuous, or none is; got continuous=\[False, True\]\. Set the same",
    ),
    (lambda: PipelineConfig([], (), Sink()), r"source is a Source or a Merge; got \[\]\. Write Source\("),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: PipelineConfig(Source([]), (), 3), r"sink is a Sink; got 3\. Write Sink\("),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: PipelineConfig(Source([]), [], Sink()), r"the stages are a tuple; got \[\]\. Write tuple\("),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - refused
    (lambda: config(plain), r"a stage is a Pipe, .*; got <function plain.*Wrap a function as Pipe\("),
    (
        lambda: config(Pipe(plain, name="a"), Pipe(len, name="a")),
        r"two stages can't share a name.*; got name='a' again",
    ),
    (lambda: config(Pipe(plain, name="sink")), r"source, merge and sink are reserved; got name='sink'"),
    (
        lambda: config(PathVariants(plain, ((Pipe(len, name="b"), Pipe(plain, name="b")),))),
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
        for executor, op in itertools.product((threads, Workers()), (plain, counting, {1: 2}, Called())):
            assert Pipe(op, executor=executor).executor is executor
    for most in (0, 5, -1, Fraction(0), Fraction(1, 100), Fraction(1)):
        assert Pipe(plain, max_failures=most).max_failures == most


@given(items=st.lists(st.integers(0, 9)), size=st.integers(1, 5))
def test_lists(items: list[int], size: int) -> None:
    """A size makes lists of that many items in order, and a shorter one of the rest."""
    aggregator = Aggregate(size).open()
    made: Any = [aggregator.accumulate(item) for item in items]
    assert [batch is not None for batch in made] == [(at + 1) % size == 0 for at in range(len(items))]
    rest: Any = aggregator.flush()
    batches: list[list[int] | None] = [*made, rest]
    assert [item for batch in batches for item in batch or []] == items
    assert rest is None or 0 < len(rest) < size
    assert aggregator.flush() is None


def test_no_two_passes_share_an_aggregator() -> None:
    """Each pass has an aggregator of its own, equal to the given one."""
    aggregators: list[Any] = [Sums(), Sums, functools.partial(Sums), lambda: Sums()]
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
