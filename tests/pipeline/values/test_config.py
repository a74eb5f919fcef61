"""A whole pipeline as a value: the names of its stages, its text, and pickling."""

import functools
import inspect
import pickle
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.pipeline import Aggregate, Disaggregate, Merge, PathVariants, Pipe, PipelineConfig, Sink, Source
from tests.pipeline.values.ops import (
    Called,
    CalledAsync,
    Sums,
    Total,
    Workers,
    awaited,
    config,
    plain,
    streamed,
    wrapped,
)


def test_a_merge_is_continuous_if_its_pipelines_are() -> None:
    """A merge, also one of merges, is continuous if its pipelines are."""
    for continuous in (False, True):
        part = config(source=Source([], continuous=continuous))
        merged = config(source=Merge((part, config(source=Merge((part, part))))))
        assert merged.continuous is continuous


# Names.


def test_names_come_in_the_order_of_flow() -> None:
    """The stages of paths follow their router, merged pipelines come first, and both have a prefix."""
    inner = PathVariants(len, ((Pipe(plain),), ()))
    route = PathVariants(plain, ((Pipe(plain), Disaggregate()), (inner, Pipe(plain, name="last"))), name="route")
    part = config(Pipe(plain), Aggregate(2))
    whole = config(Pipe(plain), route, Pipe(plain), source=Merge((part, config(source=Merge((part,))))))
    merged = ["source", "plain", "aggregate", "sink"]
    assert list(whole.names()) == [
        *(f"merge[0]/{name}" for name in merged),
        *(f"merge[1]/merge[0]/{name}" for name in merged),
        "merge[1]/merge",
        "merge[1]/sink",
        "merge",
        "plain",
        "route",
        "route[0]/plain",
        "route[0]/disaggregate",
        "route[1]/len",
        "route[1]/len[0]/plain",
        "route[1]/last",
        "plain#2",
        "sink",
    ]


def test_default_names() -> None:
    """A stage has the name of its function, class or aggregator, also inside a partial."""
    partial = functools.partial(functools.partial(plain))
    aggregates = (Aggregate(3), Aggregate(Sums()), Aggregate(Sums), Aggregate(functools.partial(Sums)))
    pipes = (Pipe(partial), Pipe(Called()), Pipe(int), Pipe(CalledAsync().method), Pipe({}), Pipe(str.upper))
    assert config(*pipes, *aggregates).names()[1:-1] == (
        *("plain", "Called", "int", "CalledAsync.method", "dict", "str.upper"),
        *("aggregate", "Sums", "Sums#2", "Sums#3"),
    )


def _named(name: str) -> Callable[[int], int]:
    def op(item: int) -> int:
        return item

    op.__qualname__ = name
    return op


NAMES = st.sampled_from(["a", "b", "a#2", "a#3", "b#2#2", "sink", "source"])


@given(
    defaults=st.lists(NAMES, max_size=8), explicit=st.lists(NAMES, max_size=8), order=st.randoms(use_true_random=False)
)
def test_names_are_unique(defaults: list[str], explicit: list[str], order: Any) -> None:
    """Explicit names are used or refused; default names get the smallest free ordinal, in the order of flow."""
    stages = [Pipe(_named(name)) for name in defaults] + [Pipe(plain, name=name) for name in explicit]
    order.shuffle(stages)
    if {"source", "sink"} & {*explicit} or max(Counter(explicit).values(), default=0) > 1:
        with pytest.raises(UsageError, match="share a name"):
            config(*stages)
        return
    used = ["source", "merge", "sink", *explicit]
    expected: list[str] = []
    for stage in stages:
        base = stage.name or str(getattr(stage.op, "__qualname__", ""))
        candidates = [base, *(f"{base}#{ordinal}" for ordinal in range(2, 40))]
        expected.append(stage.name or next(name for name in candidates if name not in used))
        used.append(expected[-1])
    assert list(config(*stages).names()) == ["source", *expected, "sink"]
    assert len({*config(*stages).names()}) == len(stages) + 2


STAGES: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([Pipe(plain), Pipe(len), Aggregate(2), Disaggregate()]),
    lambda inner: st.lists(st.lists(inner, max_size=3).map(tuple), min_size=1, max_size=3).map(
        lambda paths: PathVariants(plain, tuple(paths))
    ),
    max_leaves=12,
)


def _count(stages: tuple[Any, ...]) -> int:
    return sum(1 + (sum(map(_count, stage.paths)) if isinstance(stage, PathVariants) else 0) for stage in stages)


@given(stages=st.lists(STAGES, max_size=4).map(tuple), parts=st.integers(0, 3))
def test_everything_has_a_name_and_a_line(stages: tuple[Any, ...], parts: int) -> None:
    """In any pipeline, each stage, source and sink has a unique name, and a line of text."""
    part = config(*stages)
    whole = config(*stages, source=Merge((part,) * parts) if parts else None)
    names = whole.names()
    assert len({*names}) == len(names) == (_count(stages) + 2) * (parts + 1)
    lines = [line.strip() for line in str(whole).split("\n")]
    described = [line.partition(": ")[0] for line in lines if ": " in line and not line.endswith(": unchanged")]
    assert Counter(described) == Counter(name.rpartition("/")[2] for name in names)


# Text.


def test_the_text_of_a_pipeline() -> None:
    """Each stage has a line with its kind, limits and order; inner stages are indented below it."""
    route = PathVariants(len, ((Pipe(str.upper, max_failures=Fraction(1, 100)),), ()), name="route")
    first = config(Pipe({1: 2}, max_bytes=4096, executor=Workers()), source=Source((1,), continuous=True))
    second = config(source=Source("ab", continuous=True))
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
        "    dict: lookup, concurrency 1, on Workers, 4,096 bytes",
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
    *((plain, plain), (functools.partial(awaited), awaited), (wrapped, plain), (Called(), Called.__call__)),
    *((CalledAsync().method, CalledAsync.method), (Total, Total.__init__)),
]


def test_the_location_of_an_op() -> None:
    """A stage's line ends with the location of its function's code, also inside partials and decorators."""
    for op, function in LOCATED:
        assert function.__code__.co_filename == inspect.getsourcefile(plain)
        location = f", at {function.__code__.co_filename}:{function.__code__.co_firstlineno}"
        assert str(config(Pipe(op))).split("\n")[1].endswith(location)
        if Pipe(op).kind == "sync":
            assert str(config(PathVariants(op, ((),)))).split("\n")[1].endswith(location)


def test_texts_are_short() -> None:
    """No repr shows the contents of a source or a container."""
    many = list(range(10_000))
    whole = config(Pipe(many, concurrency=2), PathVariants(plain, ((), ())), source=Source(many))
    assert repr(whole) == "PipelineConfig(source > list > plain > sink)"
    assert [repr(each) for each in (whole.source, *whole.pipes)] == [
        "Source(list)",
        "Pipe(list, concurrency=2)",
        "PathVariants(plain, 2 paths)",
    ]


# Values.


def test_round_trip() -> None:
    """A config of ops that can be pickled is equal after pickling, and so are the kinds of its ops."""
    stages = (
        Pipe(functools.partial(plain), concurrency=3, name="first", max_failures=Fraction(1, 7)),
        Pipe(awaited, max_items=9),
        PathVariants(plain, ((Pipe(streamed), Aggregate(Sums)), (Pipe({1: 2}),)), name="route"),
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
    for value, name in ((Pipe(plain), "concurrency"), (Sink(), "buffer_size"), (config(), "pipes")):
        with pytest.raises(AttributeError, match="cannot assign"):
            setattr(value, name, 0)
