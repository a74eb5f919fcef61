"""The builder: each call adds one value, in the order of flow, and the config is independent of the builder."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

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
    PipelineBuilder,
    PipelineConfig,
    Sink,
    Source,
)

CALLS: list[tuple[Callable[[PipelineBuilder], PipelineBuilder], Any]] = [
    (lambda builder: builder.pipe(abs), Pipe(abs)),
    (
        lambda builder: builder.pipe(abs, concurrency=2, output_order="input"),
        Pipe(abs, concurrency=2, output_order="input"),
    ),
    (
        lambda builder: builder.pipe({1: 2}, max_failures=-1, repeatable=True),
        Pipe({1: 2}, max_failures=-1, repeatable=True),
    ),
    (
        lambda builder: builder.pipe(len, max_failures=Fraction(1, 9), max_items=4, max_bytes=5),
        Pipe(len, max_failures=Fraction(1, 9), max_items=4, max_bytes=5),
    ),
    (lambda builder: builder.aggregate(3, drop_last=True), Aggregate(3, drop_last=True)),
    (lambda builder: builder.disaggregate(), Disaggregate()),
    (
        lambda builder: builder.path_variants(abs, [[Pipe(abs), Disaggregate()], []]),
        PathVariants(abs, ((Pipe(abs), Disaggregate()), ())),
    ),
]


@given(chosen=st.lists(st.sampled_from(CALLS), max_size=6), buffer_size=st.integers(1, 9), continuous=st.booleans())
def test_a_chain_of_calls_makes_a_config(chosen: list[tuple[Any, Any]], buffer_size: int, *, continuous: bool) -> None:
    """Any chain of calls makes the same config as its constructor."""
    builder = PipelineBuilder().add_source([1, 2], continuous=continuous)
    for call, _ in chosen:
        assert call(builder) is builder
    builder.add_sink(buffer_size, max_bytes=7)
    stages = tuple(stage for _, stage in chosen)
    expected = PipelineConfig(Source([1, 2], continuous=continuous), stages, Sink(buffer_size, max_bytes=7))
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


STAGES: list[Callable[[PipelineBuilder], PipelineBuilder]] = [
    *(call for call, _ in CALLS),
    lambda builder: builder.add_sink(),
]


@pytest.mark.parametrize("call", STAGES)
def test_the_source_comes_first_and_the_sink_last(call: Callable[[PipelineBuilder], PipelineBuilder]) -> None:
    """A call before the source or after the sink is refused, and changes nothing."""
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


def test_a_wrong_argument_adds_nothing() -> None:
    """A refused call doesn't change the builder."""
    builder = PipelineBuilder().add_source([1])
    with pytest.raises(UsageError, match="at least 1; got 0"):
        builder.pipe(abs, concurrency=0)
    with pytest.raises(UsageError, match="at least 1; got 0"):
        builder.aggregate(0)
    with pytest.raises(UsageError, match="at least 1; got 0"):
        builder.add_sink(0)
    assert builder.add_sink().get_config() == PipelineConfig(Source([1]), (), Sink())


def test_a_repeated_name_is_refused_by_the_call_that_repeats_it() -> None:
    """The call that names a second stage the same raises, and adds nothing."""
    builder = PipelineBuilder().add_source([1]).pipe(abs, name="a")
    with pytest.raises(UsageError, match="got name='a' again"):
        builder.pipe(len, name="a")
    with pytest.raises(UsageError, match="got name='a' again"):
        builder.path_variants(abs, [[]], name="a")
    assert builder.add_sink().get_config().names() == ("source", "a", "sink")


def test_the_text_of_a_builder_is_short() -> None:
    """The repr names the stages, and doesn't show their contents."""
    builder = PipelineBuilder()
    assert repr(builder) == "PipelineBuilder()"
    builder.add_source(list(range(9_999))).pipe(list(range(9_999))).pipe(abs).aggregate(2)
    assert repr(builder) == "PipelineBuilder(source > list > abs > aggregate)"
