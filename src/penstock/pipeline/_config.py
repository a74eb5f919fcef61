"""A whole pipeline as a frozen value: a source or merged pipelines, stages, and a sink, each with a name of its own.

Errors and reports refer to stages by name. In a sequence of stages an explicit name is used as it is, and a default
name that is already used gets "#2", "#3" and so on; `source`, `merge` and `sink` are reserved. The name of a stage
inside a path or a merged pipeline has a prefix, as in `router[0]/resize` and `merge[1]/decode`.
"""

from collections.abc import AsyncIterable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY
from fractions import Fraction
from typing import Generic, Literal, TypeAlias, assert_never, cast

from penstock._frozen import frozen
from penstock._printable import printable
from penstock._signatures import name_of
from penstock.errors import UsageError
from penstock.pipeline._ops import OutT_co, location_of
from penstock.pipeline._stages import (
    Aggregate,
    Disaggregate,
    PathVariants,
    Pipe,
    Sink,
    Stage,
    ThreadExecutor,
    check_choice,
    check_stages,
    is_tuple_of,
)

MergeOrder: TypeAlias = Literal["arrival", "turns"]

_RESERVED_NAMES = ("source", "merge", "sink")
_KIND_TEXTS = {
    "sync": "function",
    "async": "async function",
    "generator": "generator",
    "async generator": "async generator",
    "lookup": "lookup",
}


@frozen
class Source(Generic[OutT_co]):
    """The source of a pipeline's items.

    Args:
        source: any iterable, or async iterable. Each pass iterates over it again, so an iterator, which can be iterated
            over only once, allows a single pass.
        continuous: whether the next pass starts while the last items of this one are still being computed.
            Default False.

    Raises:
        UsageError: the source is not iterable.

    Example:
        >>> from penstock.pipeline import Source
        >>> Source(range(1000), continuous=True)
        Source(range, continuous=True)
    """

    source: Iterable[OutT_co] | AsyncIterable[OutT_co]
    _: KW_ONLY
    continuous: bool = False

    def __post_init__(self) -> None:
        given: object = self.source
        kind = type(given)
        if not hasattr(kind, "__iter__") and not hasattr(kind, "__aiter__"):
            remedy = "Pass its result" if callable(given) else "Pass a list, a dataset or a generator"
            raise UsageError(f"a source is iterable, or async iterable; got {given!r:.200}. {remedy}")

    def __repr__(self) -> str:
        return f"Source({type(self.source).__qualname__}{', continuous=True' if self.continuous else ''})"


@frozen
class PipelineConfig(Generic[OutT_co]):
    """The description of a pipeline: its source, its stages in order, and its sink.

    `PipelineBuilder.get_config` makes it, and `build_pipeline` makes a pipeline of it. It can be pickled if its source
    and ops can. `str(config)` equals `config.describe()`.

    Args:
        source: a `Source`, or a `Merge` of other pipelines.
        pipes: the stages, as a tuple.
        sink: the `Sink`, in which finished items wait.

    Raises:
        UsageError: an argument is wrong, or two stages have the same explicit name.

    Example:
        >>> from penstock.pipeline import Aggregate, Pipe, PipelineConfig, Sink, Source
        >>> config = PipelineConfig(Source("abc"), (Pipe(str.upper, concurrency=2), Aggregate(2)), Sink())
        >>> print(config)
        source: str
        str.upper: function, concurrency 2
        aggregate: lists of 2
        sink: up to 3 items
        >>> config.names()
        ('source', 'str.upper', 'aggregate', 'sink')
    """

    source: "Source | Merge"
    pipes: tuple[Stage, ...]
    sink: Sink

    def __post_init__(self) -> None:
        source, sink = cast("tuple[object, object]", (self.source, self.sink))
        if not isinstance(source, Source | Merge):
            raise UsageError(f"source is a Source or a Merge; got {source!r:.200}. Write Source(iterable)")
        if not isinstance(sink, Sink):
            raise UsageError(f"sink is a Sink; got {sink!r:.200}. Write Sink(3)")
        check_stages(self.pipes)
        self.names()  # refuses repeated names

    @property
    def continuous(self) -> bool:
        """Whether the next pass starts while the last items of this one are still being computed."""
        return self.source.continuous

    def names(self) -> tuple[str, ...]:
        """Return the names of the source, all stages and the sink, in the order in which items flow.

        The stages of paths follow their router, first path first; the names of merged pipelines precede `merge`.

        Returns:
            The names, from that of the first source to `sink`; no two are equal.

        Example:
            >>> from penstock.pipeline import Merge, PathVariants, Pipe, PipelineConfig, Sink, Source
            >>> route = PathVariants(len, ((Pipe(str.upper),), (Pipe(str.lower), Pipe(str.lower))), name="route")
            >>> PipelineConfig(Source(["", "a"]), (route,), Sink()).names()
            ('source', 'route', 'route[0]/str.upper', 'route[1]/str.lower', 'route[1]/str.lower#2', 'sink')
            >>> PipelineConfig(Merge((PipelineConfig(Source("ab"), (), Sink()),)), (Pipe(ord),), Sink()).names()
            ('merge[0]/source', 'merge[0]/sink', 'merge', 'ord', 'sink')
        """
        return tuple(_names(self, ""))

    def describe(self) -> str:
        """Return the pipeline as text: a line for each stage, with its kind, its limits and the location of its code.

        The stages of a path or a merged pipeline are indented below a line with its prefix.

        Returns:
            The text.
        """
        return "\n".join(map(printable, _lines(self)))

    __str__ = describe

    def __repr__(self) -> str:
        return printable(f"PipelineConfig({' > '.join(['source', *stage_names(self.pipes), 'sink'])})")


@frozen
class Merge(Generic[OutT_co]):
    """Several pipelines as the source of another: the items of their sinks become its items.

    Args:
        pipelines: at least one, as a tuple. All are continuous, or none.
        order: "arrival", the default, takes items as they are ready; "turns" takes one item of each pipeline in turn,
            leaving out those that have ended, which gives the same order in every run.

    Raises:
        UsageError: an argument is wrong, or only some of the pipelines are continuous.

    Example:
        >>> from penstock.pipeline import Merge, PipelineBuilder
        >>> cats, dogs = (PipelineBuilder().add_source(names).add_sink().get_config() for names in ("cat", "dog"))
        >>> print(PipelineBuilder().add_source(Merge((cats, dogs), order="turns")).add_sink().get_config())
        merge: 2 pipelines in turns
          merge[0]:
            source: str
            sink: up to 3 items
          merge[1]:
            source: str
            sink: up to 3 items
        sink: up to 3 items
    """

    pipelines: tuple[PipelineConfig[OutT_co], ...]
    _: KW_ONLY
    order: MergeOrder = "arrival"

    def __post_init__(self) -> None:
        if not self.pipelines or not is_tuple_of(self.pipelines, PipelineConfig):
            raise UsageError(
                f"Merge takes a tuple of at least one PipelineConfig; got {self.pipelines!r:.200}. "
                "Write (builder.get_config(), other.get_config())"
            )
        check_choice("order", self.order, ("arrival", "turns"))
        given = [pipeline.continuous for pipeline in self.pipelines]
        if len(set(given)) > 1:
            raise UsageError(
                f"merged pipelines are all continuous, or none is; got continuous={given}. "
                "Set the same value for each source"
            )

    @property
    def continuous(self) -> bool:
        """Whether the merged pipelines are continuous."""
        return self.pipelines[0].continuous


def has_processes(config: PipelineConfig) -> bool:
    """Return whether a stage of the pipeline, of its paths or of merged pipelines may run in other processes."""
    merged = config.source.pipelines if isinstance(config.source, Merge) else ()
    return any(map(has_processes, merged)) or any(map(_has_processes, config.pipes))


def _has_processes(stage: Stage) -> bool:
    match stage:
        case Pipe(executor=executor):
            return executor is not None and not isinstance(executor, ThreadPoolExecutor | ThreadExecutor)
        case PathVariants(paths=paths):
            return any(_has_processes(inner) for path in paths for inner in path)
        case Aggregate() | Disaggregate():
            return False
        case _:
            assert_never(stage)


def stage_names(stages: tuple[Stage, ...]) -> tuple[str, ...]:
    """Return the names of a sequence of stages, without those inside their paths; no two are equal.

    Raises:
        UsageError: two stages have the same explicit name.
    """
    taken: set[str] = {*_RESERVED_NAMES}
    for stage in stages:
        name = _explicit_name(stage)
        if name in taken:
            raise UsageError(
                f"two stages can't share a name, and source, merge and sink are reserved; got name={name!r} again. "
                "Give one of them another name"
            )
        taken |= {name} if name else set()
    found: list[str] = []
    counts: dict[str, int] = {}  # the last ordinal used for each default name
    for stage in stages:
        name = _explicit_name(stage)
        if name is None:
            default = name = _default_name(stage).replace("/", ".")
            number = counts.get(default, 1)
            while name in taken:
                number += 1
                name = f"{default}#{number}"
            counts[default] = number
            taken.add(name)
        found.append(name)
    return tuple(found)


def prefix_inside(name: str, number: int) -> str:
    """Return the prefix of the names inside one path of a stage, or inside a merged pipeline."""
    return f"{name}[{number}]/"


def _explicit_name(stage: Stage) -> str | None:
    return stage.name if isinstance(stage, Pipe | PathVariants) else None


def _default_name(stage: Stage) -> str:
    match stage:
        case Pipe(op=op):
            return name_of(op)
        case PathVariants(router=router):
            return name_of(router)
        case Aggregate(size_or_aggregator=int()):
            return "aggregate"
        case Aggregate(size_or_aggregator=aggregator):
            return name_of(aggregator)
        case Disaggregate():
            return "disaggregate"
        case _:
            assert_never(stage)


def _names(config: PipelineConfig, prefix: str) -> Iterator[str]:
    if isinstance(config.source, Merge):
        for number, merged in enumerate(config.source.pipelines):
            yield from _names(merged, prefix + prefix_inside("merge", number))
        yield f"{prefix}merge"
    else:
        yield f"{prefix}source"
    yield from _names_of_stages(config.pipes, prefix)
    yield f"{prefix}sink"


def _names_of_stages(stages: tuple[Stage, ...], prefix: str) -> Iterator[str]:
    for name, stage in zip(stage_names(stages), stages, strict=True):
        yield prefix + name
        if isinstance(stage, PathVariants):
            for number, path in enumerate(stage.paths):
                yield from _names_of_stages(path, prefix + prefix_inside(name, number))


def _lines(config: PipelineConfig) -> Iterator[str]:
    """Yield the lines of a pipeline, with the names of its stages without a prefix."""
    match config.source:
        case Merge(pipelines=pipelines, order=order):
            how = "in turns" if order == "turns" else "as items arrive"
            yield f"merge: {_counted(len(pipelines), 'pipeline')} {how}"
            for number, merged in enumerate(pipelines):
                yield f"  merge[{number}]:"
                yield from (f"    {line}" for line in _lines(merged))
        case Source(source=source, continuous=continuous):
            yield f"source: {type(source).__qualname__}{', continuous' if continuous else ''}"
        case _:
            assert_never(config.source)
    yield from _lines_of_stages(config.pipes)
    yield f"sink: up to {_counted(config.sink.buffer_size, 'item')}{_bytes_text(config.sink.max_bytes)}"


def _lines_of_stages(stages: tuple[Stage, ...]) -> Iterator[str]:
    for name, stage in zip(stage_names(stages), stages, strict=True):
        yield f"{name}: {_stage_text(stage)}"
        if isinstance(stage, PathVariants):
            for number, path in enumerate(stage.paths):
                yield f"  {name}[{number}]:{'' if path else ' unchanged'}"
                yield from (f"    {line}" for line in _lines_of_stages(path))


def _stage_text(stage: Stage) -> str:
    match stage:
        case Pipe():
            return _pipe_text(stage)
        case PathVariants(router=router, paths=paths):
            return f"to one of {_counted(len(paths), 'path')}{_location_text(router)}"
        case Aggregate(size_or_aggregator=size_or_aggregator, drop_last=drop_last):
            is_size = isinstance(size_or_aggregator, int)
            text = f"lists of {size_or_aggregator}" if is_size else f"batches{_location_text(size_or_aggregator)}"
            return f"{text}{', without the last' if drop_last else ''}"
        case Disaggregate():
            return "the elements of each item"
        case _:
            assert_never(stage)


def _pipe_text(pipe: Pipe) -> str:
    """Return the kind of a pipe, its concurrency, and the arguments that differ from their defaults."""
    waiting = "" if pipe.max_items is None else f", {_counted(pipe.max_items, 'item')} waiting"
    return (
        f"{_KIND_TEXTS[pipe.kind]}, concurrency {pipe.concurrency}"
        f"{', in input order' if pipe.output_order == 'input' else ''}"
        f"{'' if pipe.executor is None else f', on {type(pipe.executor).__name__}'}"
        f"{_failures_text(pipe.max_failures)}{waiting}{_bytes_text(pipe.max_bytes)}"
        f"{', repeatable' if pipe.repeatable else ''}{', without None' if pipe.skip_none else ''}"
        f"{_location_text(pipe.op)}"
    )


def _failures_text(max_failures: int | Fraction | None) -> str:
    match max_failures:
        case None:
            return ""
        case -1:
            return ", any number of failures"
        case Fraction():
            return f", failures up to {max_failures}"
        case int():
            return f", up to {_counted(max_failures, 'failure')}"


def _bytes_text(max_bytes: int | None) -> str:
    return "" if max_bytes is None else f", {max_bytes:,} bytes"


def _location_text(op: object) -> str:
    location = location_of(op)
    return f", at {location}" if location else ""


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
