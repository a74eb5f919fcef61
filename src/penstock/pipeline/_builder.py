"""The builder of a `PipelineConfig`: a chain of calls, in the order in which items flow."""

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any, Generic, Self, cast

from penstock._printable import printable
from penstock.errors import UsageError
from penstock.pipeline._config import Merge, PipelineConfig, Source, stage_names
from penstock.pipeline._events import Observer
from penstock.pipeline._ops import InT, Op, OutT
from penstock.pipeline._pipeline import Pipeline, build_pipeline
from penstock.pipeline._stages import (
    Aggregate,
    Aggregator,
    Disaggregate,
    OutputOrder,
    PathVariants,
    Pipe,
    Sink,
    Stage,
    StageExecutor,
)


class PipelineBuilder(Generic[InT, OutT]):
    """A builder that collects a source, stages and a sink; each call returns the builder, so that calls can be chained.

    Example:
        >>> from penstock.pipeline import PipelineBuilder
        >>> builder = PipelineBuilder().add_source(range(5)).pipe(lambda number: number * 10, name="tens")
        >>> builder.aggregate(2).add_sink()
        PipelineBuilder(source > tens > aggregate > sink)
        >>> with builder.build(num_threads=1).auto_stop() as pipeline:
        ...     list(pipeline)
        [[0, 10], [20, 30], [40]]
    """

    def __init__(self) -> None:
        self._source: Source | Merge | None = None
        self._pipes: list[Stage] = []
        self._sink: Sink | None = None

    def add_source(self, source: Iterable[Any] | AsyncIterable[Any] | Merge, *, continuous: bool = False) -> Self:
        """Add the source of the items; the first call.

        Args:
            source: any iterable or async iterable; or a `Merge` of other pipelines.
            continuous: whether the next pass starts while the last items of this one are still being computed.
                Default False; for a `Merge` it is set on the sources of the merged pipelines.

        Returns:
            The builder.

        Raises:
            UsageError: the pipeline has a source already, the source isn't iterable, or `continuous` is given for a
                `Merge`.

        Example:
            >>> from penstock.pipeline import PipelineBuilder
            >>> PipelineBuilder().add_source([1, 2, 3], continuous=True)
            PipelineBuilder(source)
        """
        if self._source is not None:
            raise UsageError(
                f"a pipeline has one source; got another one, {type(source).__qualname__}. "
                "Make a pipeline of each, and pass add_source a Merge of their configs"
            )
        if isinstance(source, Merge):
            if continuous:
                raise UsageError(
                    "`continuous` is set on the source of each merged pipeline; got continuous=True for a Merge. "
                    "Set it where each of the sources is added"
                )
            self._source = source
        else:
            self._source = Source(source, continuous=continuous)
        return self

    def pipe(  # noqa: PLR0913 - a stage's decisions, of which a call makes two or three
        self,
        op: Op,
        *,
        concurrency: int = 1,
        executor: StageExecutor | None = None,
        name: str | None = None,
        output_order: OutputOrder = "completion",
        max_failures: int | Fraction | None = None,
        repeatable: bool = False,
        max_items: int | None = None,
        max_bytes: int | None = None,
        skip_none: bool = False,
    ) -> Self:
        """Add a stage that applies an op to each item, as `Pipe` describes it.

        Args:
            op: a function, plain, async or a generator; a callable object; or a container in which items are looked
                up.
            concurrency: how many items the op may have at once, at least 1. Default 1.
            executor: where a sync op runs: a `concurrent.futures.Executor`, a `ThreadExecutor` or a `ProcessExecutor`.
                Default None: the pipeline's own threads.
            name: the stage's name. Default None: the op's own name.
            output_order: "completion", the default, or "input".
            max_failures: how many items the op may fail on, as for `Pipe`. Default None: the limit given to `build`.
            repeatable: whether the op may be called again with items whose process died, as for `Pipe`. Default False.
            max_items: how many items may wait before the stage, at least 1. Default None: the engine's choice.
            max_bytes: how many bytes may wait before the stage, at least 1. Default None: no limit in bytes.
            skip_none: whether results that are None are skipped, as SKIP is. Default False.

        Returns:
            The builder.

        Raises:
            UsageError: an argument is wrong, another stage has the name, there is no source yet, or there is a sink
                already.

        Example:
            >>> from penstock.pipeline import PipelineBuilder
            >>> PipelineBuilder().add_source(["a"]).pipe(str.upper, concurrency=4, output_order="input")
            PipelineBuilder(source > str.upper)
        """
        return self._add(
            Pipe(
                op,
                concurrency=concurrency,
                executor=executor,
                name=name,
                output_order=output_order,
                max_failures=max_failures,
                repeatable=repeatable,
                max_items=max_items,
                max_bytes=max_bytes,
                skip_none=skip_none,
            )
        )

    def aggregate(
        self, size_or_aggregator: int | Aggregator[Any] | Callable[[], Aggregator[Any]], *, drop_last: bool = False
    ) -> Self:
        """Add a stage that collects items into batches.

        Args:
            size_or_aggregator: n for lists of n items; or an `Aggregator`, or a callable that makes one.
            drop_last: whether the incomplete batch at the end of a pass is dropped. Default False.

        Returns:
            The builder.

        Raises:
            UsageError: an argument is wrong, there is no source yet, or there is a sink already.

        Example:
            >>> from penstock.pipeline import PipelineBuilder
            >>> PipelineBuilder().add_source(range(5)).aggregate(2, drop_last=True)
            PipelineBuilder(source > aggregate)
        """
        return self._add(Aggregate(size_or_aggregator, drop_last=drop_last))

    def disaggregate(self) -> Self:
        """Add a stage that takes iterables, and puts out their elements one by one.

        Returns:
            The builder.

        Raises:
            UsageError: there is no source yet, or there is a sink already.

        Example:
            >>> from penstock.pipeline import PipelineBuilder
            >>> PipelineBuilder().add_source(["ab", "c"]).disaggregate()
            PipelineBuilder(source > disaggregate)
        """
        return self._add(Disaggregate())

    def path_variants(
        self,
        router: Callable[[Any], int | Awaitable[int]],
        paths: Sequence[Sequence[Stage]],
        *,
        name: str | None = None,
    ) -> Self:
        """Add a stage that sends each item along one of several paths, which merge again in order of completion.

        Args:
            router: a function, plain or async, that returns the number of an item's path, counted from 0.
            paths: the stages of each path; the items of an empty path pass unchanged.
            name: the stage's name. Default None: the router's own name.

        Returns:
            The builder.

        Raises:
            UsageError: an argument is wrong, there is no source yet, or there is a sink already.

        Example:
            >>> from penstock.pipeline import Pipe, PipelineBuilder
            >>> builder = PipelineBuilder().add_source(["a", "B"]).path_variants(str.isupper, [[Pipe(str.upper)], []])
            >>> print(builder.add_sink().get_config())
            source: list
            str.isupper: to one of 2 paths
              str.isupper[0]:
                str.upper: function, concurrency 1
              str.isupper[1]: unchanged
            sink: up to 3 items
        """
        return self._add(PathVariants(router, _as_tuples(paths), name=name))

    def add_sink(self, buffer_size: int = 3, *, max_bytes: int | None = None) -> Self:
        """Add the sink, in which finished items wait for the consumer; the last call.

        Args:
            buffer_size: how many items may wait, at least 1. Default 3.
            max_bytes: how many bytes may wait, at least 1. Default None: no limit in bytes.

        Returns:
            The builder.

        Raises:
            UsageError: an argument is wrong, there is no source yet, or there is a sink already.

        Example:
            >>> from penstock.pipeline import PipelineBuilder
            >>> PipelineBuilder().add_source(range(5)).add_sink(16)
            PipelineBuilder(source > sink)
        """
        self._need_open(f"a sink of {buffer_size!r}")
        self._sink = Sink(buffer_size, max_bytes=max_bytes)
        return self

    def get_config(self) -> PipelineConfig[OutT]:
        """Return the description as a value, which later calls don't change.

        Returns:
            The config.

        Raises:
            UsageError: there is no source or no sink.

        Example:
            >>> from penstock.pipeline import PipelineBuilder
            >>> PipelineBuilder().add_source(range(5)).add_sink().get_config().names()
            ('source', 'sink')
        """
        if self._source is None or self._sink is None:
            raise UsageError(
                f"a pipeline begins with a source and ends with a sink; got {self!r}. "
                f"Call {'add_source(…) first' if self._source is None else 'add_sink() last'}"
            )
        return PipelineConfig(self._source, tuple(self._pipes), self._sink)

    def build(
        self,
        *,
        num_threads: int,
        max_failures: int | Fraction = 0,
        statistics: bool = False,
        observer: Observer | None = None,
    ) -> Pipeline[OutT]:
        """Make the pipeline, as `build_pipeline(builder.get_config(), …)` does; this starts nothing.

        Args:
            num_threads: how many threads the sync ops without an executor share, at least 1.
            max_failures: how many items may be dropped because a stage failed on them, as for `build_pipeline`.
                Default 0: the first failure ends the pipeline.
            statistics: whether each stage's times and waits are measured. Default False.
            observer: called with each event. Default None.

        Returns:
            The pipeline.

        Raises:
            UsageError: an argument is wrong, or there is no source or no sink.

        Example:
            >>> from penstock.pipeline import PipelineBuilder
            >>> with PipelineBuilder().add_source(range(3)).add_sink().build(num_threads=1).auto_stop() as pipeline:
            ...     list(pipeline)
            [0, 1, 2]
        """
        return build_pipeline(
            self.get_config(),
            num_threads=num_threads,
            max_failures=max_failures,
            statistics=statistics,
            observer=observer,
        )

    def __repr__(self) -> str:
        ends = ["source"] if self._source is not None else [], ["sink"] if self._sink is not None else []
        return printable(f"PipelineBuilder({' > '.join([*ends[0], *stage_names(tuple(self._pipes)), *ends[1]])})")

    def _add(self, stage: Stage) -> Self:
        self._need_open(repr(stage))
        stage_names((*self._pipes, stage))  # refuses a repeated name in the call that repeats it
        self._pipes.append(stage)
        return self

    def _need_open(self, added: str) -> None:
        if self._source is None:
            raise UsageError(f"a pipeline begins with its source; got {added} first. Call add_source(…) before")
        if self._sink is not None:
            raise UsageError(f"a pipeline ends with its sink; got {added} after it. Call add_sink() last")


def _as_tuples(paths: object) -> tuple[tuple[Stage, ...], ...]:
    """Return paths as tuples; anything that isn't a path stays as it is, since `PathVariants` refuses it."""
    if not isinstance(paths, Iterable):
        return cast("tuple[tuple[Stage, ...], ...]", paths)
    given = cast("Iterable[tuple[Stage, ...]]", paths)
    return tuple(tuple(path) if isinstance(cast("object", path), Iterable) else path for path in given)
