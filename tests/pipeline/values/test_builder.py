"""The builder: each call adds one value, in the order of flow, and the config is independent of the builder."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.pipeline import (
    Aggregate,
    Disaggregate,
    Merge,
    PathVariants,
    Pipe,
    PipelineBuilder,
    PipelineConfig,
    Sink,
    Source,
)

CALLS: list[tuple[Callable[[PipelineBuilder], PipelineBuilder], Any]] = [
    (lambda builder: builder.pipe(abs), Pipe(abs)),
    (
        lambda builder: builder.pipe({1: 2}, concurrency=2, output_order="input", repeatable=True, max_failures=-1),
        Pipe({1: 2}, concurrency=2, output_order="input", repeatable=True, max_failures=-1),
    ),
    (
        lambda builder: builder.pipe(len, max_failures=Fraction(1, 9), max_items=4, max_bytes=5, skip_none=True),
        Pipe(len, max_failures=Fraction(1, 9), max_items=4, max_bytes=5, skip_none=True),
    ),
    (lambda builder: builder.aggregate(3, drop_last=True), Aggregate(3, drop_last=True)),
    (lambda builder: builder.disaggregate(), Disaggregate()),
    (
        lambda builder: builder.path_variants(abs, [[Pipe(abs), Disaggregate()], []]),
        PathVariants(abs, ((Pipe(abs), Disaggregate()), ())),
    ),
]


def test_a_chain_of_calls_makes_a_config() -> None:
    """A chain of calls makes the same config as its constructor."""
    builder = PipelineBuilder().add_source([1, 2], continuous=True)
    for call, _ in CALLS:
        assert call(builder) is builder
    builder.add_sink(4, max_bytes=7)
    stages = tuple(stage for _, stage in CALLS)
    expected = PipelineConfig(Source([1, 2], continuous=True), stages, Sink(4, max_bytes=7))
    assert builder.get_config() == expected == builder.get_config()


def test_names_and_executors_are_passed_on() -> None:
    """A stage has the name and the executor given to its call."""
    with ThreadPoolExecutor(1) as executor:
        builder = PipelineBuilder().add_source([]).pipe(abs, executor=executor, name="mine")
        config = builder.path_variants(abs, [[]], name="route").add_sink().get_config()
    assert config.names() == ("source", "mine", "route", "sink")
    assert [stage.executor for stage in config.pipes if isinstance(stage, Pipe)] == [executor]


def test_merged_pipelines_are_a_source() -> None:
    """A merge is added as a source; `continuous` is set on the merged pipelines."""
    part = PipelineBuilder().add_source([1], continuous=True).add_sink().get_config()
    merged = PipelineBuilder().add_source(Merge((part, part))).add_sink().get_config()
    assert merged == PipelineConfig(Merge((part, part)), (), Sink())
    with pytest.raises(UsageError, match=r"is set on the source of each .*; got continuous=True for a Merge\. Set it"):
        PipelineBuilder().add_source(Merge((part,)), continuous=True)


def test_a_config_is_independent_of_its_builder() -> None:
    """A list of paths that changes after the call doesn't change the config."""
    path = [Pipe(abs)]
    builder = PipelineBuilder().add_source([]).path_variants(abs, [path])
    path.clear()
    assert builder.add_sink().get_config().names() == ("source", "abs", "abs[0]/abs", "sink")


def test_the_source_comes_first_and_the_sink_last() -> None:
    """A call before the source or after the sink is refused, and changes nothing."""
    calls: list[Callable[[PipelineBuilder], object]] = [*(call for call, _ in CALLS), PipelineBuilder.add_sink]
    for call in calls:
        builder = PipelineBuilder()
        with pytest.raises(UsageError, match=r"begins with its source; got .* first\. Call add_source"):
            call(builder)
        builder.add_source([1]).add_sink()
        config = builder.get_config()
        with pytest.raises(UsageError, match=r"ends with its sink; got .* after it\. Call add_sink\(\) last"):
            call(builder)
        assert builder.get_config() == config


def test_a_missing_source_or_sink_and_a_second_source() -> None:
    """A pipeline has one source and one sink."""
    with pytest.raises(UsageError, match=r"got PipelineBuilder\(\)\. Call add_source\(…\) first"):
        PipelineBuilder().get_config()
    builder = PipelineBuilder().add_source([1]).pipe(abs)
    with pytest.raises(UsageError, match=r"got PipelineBuilder\(source > abs\)\. Call add_sink\(\) last"):
        builder.build(num_threads=1)
    with pytest.raises(
        UsageError, match=r"a pipeline has one source; got another one, range\. Make a pipeline of each"
    ):
        builder.add_source(range(3))


def test_a_refused_call_adds_nothing() -> None:
    """A refused call, also one that repeats a name, doesn't change the builder."""
    builder = PipelineBuilder().add_source([1]).pipe(abs, name="a")
    wrong: Any = [Pipe(abs)]
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: builder.pipe(abs, concurrency=0), "at least 1; got 0"),
        (lambda: builder.aggregate(0), "at least 1; got 0"),
        (lambda: builder.add_sink(0), "at least 1; got 0"),
        (lambda: builder.pipe(len, name="a"), "got name='a' again"),
        (lambda: builder.path_variants(abs, [[]], name="a"), "got name='a' again"),
        (lambda: builder.path_variants(abs, wrong), r"each a tuple of stages; got \(Pipe\(abs\),\)"),
    ]
    for call, message in refused:
        with pytest.raises(UsageError, match=message):
            call()
    assert builder.add_sink().get_config() == PipelineConfig(Source([1]), (Pipe(abs, name="a"),), Sink())


def test_the_text_of_a_builder_is_short() -> None:
    """The repr names the stages, and doesn't show their contents."""
    builder = PipelineBuilder()
    assert repr(builder) == "PipelineBuilder()"
    builder.add_source(list(range(9_999))).pipe(list(range(9_999))).pipe(abs).aggregate(2)
    assert repr(builder) == "PipelineBuilder(source > list > abs > aggregate)"
