"""Random stage graphs: plain descriptions that Hypothesis can draw, show and shrink, and pipelines built from them.

Every leaf of an item is None or a number whose last three digits identify the source's item from which it was made.
Functions apply to the leaves of nested lists, so that batches of other items, which completion order produces, are
still equal once they are flattened.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from penstock.pipeline import SKIP, Aggregate, Disaggregate, Merge, PathVariants, Pipe, PipelineConfig, Sink, Source
from tests.pipeline.running.reading import Again

Kind = Literal["sync", "async", "generator", "async generator", "lookup"]
KINDS: list[Kind] = ["sync", "async", "generator", "async generator", "lookup"]
MAX_ITEMS = 1000


class BrokenError(ValueError):
    """The exception of the random functions and sources."""


@dataclass(frozen=True)
class Step:
    """A function for each item: it adds a number, and may skip items, return several, or fail."""

    number: int
    kind: Kind
    concurrency: int
    order: Literal["input", "completion"]
    leaves_out: bool = False
    fails_at: frozenset[int] = frozenset()
    max_items: int | None = None

    @property
    def name(self) -> str:
        """Its name in the pipeline."""
        return f"step {self.number}"


@dataclass(frozen=True)
class Group:
    """Batches of `count` items, or by an aggregator that ends a batch at each multiple of `count`."""

    count: int
    drop_last: bool = False
    by_aggregator: bool = False


@dataclass(frozen=True)
class Ungroup:
    """A stage that puts out the elements of each list."""


@dataclass(frozen=True)
class Branch:
    """Several paths, chosen by the source's item from which an item was made."""

    number: int
    paths: tuple["tuple[StageValue, ...]", ...]
    fails_at: frozenset[int] = frozenset()
    awaits: bool = False

    @property
    def name(self) -> str:
        """Its name in the pipeline."""
        return f"branch {self.number}"


StageValue = Step | Group | Ungroup | Branch


@dataclass(frozen=True)
class Items:
    """A source of `count` numbers from `first` on, some replaced by None, which may fail before one of them."""

    first: int
    count: int
    form: Literal["list", "iterable", "async"]
    nones: frozenset[int] = frozenset()
    fails_at: int | None = None


@dataclass(frozen=True)
class Graph:
    """A whole pipeline."""

    sources: tuple[Items, ...]
    stages: tuple[StageValue, ...]
    merge: Literal["turns", "arrival"] = "turns"
    buffer_size: int = 3
    continuous: bool = False

    def is_ordered(self) -> bool:
        """Return whether the outputs keep the order of the inputs."""
        merged = len(self.sources) == 1 or self.merge == "turns"
        return merged and all(map(_keeps_order, self.stages))

    def drops_last(self) -> bool:
        """Return whether a stage drops incomplete batches."""
        return any(isinstance(stage, Group) and stage.drop_last for stage in all_stages(self.stages))

    def intact(self) -> "Graph":
        """Return the same graph without failures and dropped batches."""
        sources = tuple(replace(source, fails_at=None) for source in self.sources)
        return replace(self, sources=sources, stages=tuple(map(_intact, self.stages)))


def all_stages(stages: Iterable[StageValue]) -> Iterator[StageValue]:
    """Yield every stage, including those on paths."""
    for stage in stages:
        yield stage
        if isinstance(stage, Branch):
            for path in stage.paths:
                yield from all_stages(path)


def flattened(item: Any) -> Iterator[Any]:
    """Yield the leaves of nested lists."""
    if isinstance(item, list):
        for inner in item:  # pyright: ignore[reportUnknownVariableType] - nested lists of any items
            yield from flattened(inner)
    else:
        yield item


def _keeps_order(stage: StageValue) -> bool:
    match stage:
        case Step():
            return stage.order == "input" or stage.concurrency == 1
        case Branch():
            return len(stage.paths) == 1 and all(map(_keeps_order, stage.paths[0]))
        case _:
            return True


def _intact(stage: StageValue) -> StageValue:
    match stage:
        case Step():
            return replace(stage, fails_at=frozenset())
        case Group():
            return replace(stage, drop_last=False)
        case Branch():
            paths = tuple(tuple(map(_intact, path)) for path in stage.paths)
            return replace(stage, fails_at=frozenset(), paths=paths)
        case Ungroup():
            return stage


# Pipelines of descriptions.


def configured(graph: Graph) -> PipelineConfig:
    """Return the config of a graph."""
    sources = [Source(source_of(items), continuous=graph.continuous) for items in graph.sources]
    stages = tuple(map(_built, graph.stages))
    sink = Sink(graph.buffer_size)
    if len(sources) == 1:
        return PipelineConfig(sources[0], stages, sink)
    parts = tuple(PipelineConfig(source, (), Sink(2)) for source in sources)
    return PipelineConfig(Merge(parts, order=graph.merge), stages, sink)


def source_of(items: Items) -> Any:
    """Return an iterable of the items that can be iterated over several times."""
    if items.form == "list" and items.fails_at is None:
        return list(numbers_of(items))
    return _AsyncNumbers(items) if items.form == "async" else Again(lambda: numbers_of(items))


def numbers_of(items: Items) -> Iterator[int | None]:
    """Yield the items of a source."""
    for number in range(items.first, items.first + items.count):
        if number == items.fails_at:
            raise BrokenError(number)
        yield None if number in items.nones else number


@dataclass(frozen=True)
class _AsyncNumbers:
    items: Items

    async def __aiter__(self) -> AsyncIterator[int | None]:
        for number, item in enumerate(numbers_of(self.items)):
            if number % 3 == 1:
                await asyncio.sleep(0)
            yield item


def _built(stage: StageValue) -> Any:
    match stage:
        case Step():
            return Pipe(
                _op_of(stage),
                concurrency=stage.concurrency,
                name=stage.name,
                output_order=stage.order,
                max_items=stage.max_items,
            )
        case Group():
            return Aggregate(_UpTo(stage.count) if stage.by_aggregator else stage.count, drop_last=stage.drop_last)
        case Ungroup():
            return Disaggregate()
        case Branch():
            paths = tuple(tuple(map(_built, path)) for path in stage.paths)
            return PathVariants(_router(stage), paths, name=stage.name)


class _UpTo:
    """An aggregator that ends a batch at each item made from a multiple of a number."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._items: list[Any] = []

    def accumulate(self, item: Any) -> list[Any] | None:
        self._items.append(item)
        return self.flush() if origin_of(item) % self._number == 0 else None

    def flush(self) -> list[Any] | None:
        items, self._items = self._items, []
        return items or None


def _router(branch: Branch) -> Any:
    def route(item: Any) -> int:
        if origin_of(item) in branch.fails_at:
            raise BrokenError(item)
        return origin_of(item) % len(branch.paths)

    async def route_later(item: Any) -> int:
        for _ in range(origin_of(item) % 3):
            await asyncio.sleep(0)
        return route(item)

    return route_later if branch.awaits else route


def origin_of(item: Any) -> int:
    """Return the number of the source's item from which an item was made."""
    return item % MAX_ITEMS if isinstance(item, int) else 0


def outputs_of(step: Step, item: Any) -> Iterator[Any]:
    """Yield a step's outputs for an item, up to its failure; some may be SKIP."""
    copies = 1
    if "generator" in step.kind:
        copies = 2 if isinstance(item, list) else origin_of(item) % 3
    output = changed(item, step)
    if copies == 2:
        yield output
    for leaf in flattened(item):
        if leaf is not None and origin_of(leaf) in step.fails_at:
            raise BrokenError(leaf)
    if copies > 0:
        yield output


class _Lookup:
    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __getitem__(self, item: Any) -> Any:
        return self._function(item)


def of_kind(
    kind: Kind,
    function: Callable[[Any], Any],
    outputs: Callable[[Any], Iterator[Any]] | None = None,
    waits: Callable[[Any], int] = lambda _: 1,
) -> Any:
    """Return an op of a kind that calls the function for each item.

    If it is a generator, it may have other outputs; if it is async, it gives way to other tasks some times.
    """

    def generate(item: Any) -> Iterator[Any]:
        if outputs is not None:
            yield from outputs(item)
        else:
            yield function(item)

    async def run_async(item: Any) -> Any:
        for _ in range(waits(item)):
            await asyncio.sleep(0)
        return function(item)

    async def generate_async(item: Any) -> AsyncIterator[Any]:
        for output in generate(item):
            for _ in range(waits(item)):
                await asyncio.sleep(0)
            yield output

    ops: dict[Kind, Any] = {
        "sync": function,
        "async": run_async,
        "generator": generate,
        "async generator": generate_async,
        "lookup": _Lookup(function),
    }
    return ops[kind]


def _op_of(step: Step) -> Any:
    outputs = partial(outputs_of, step)
    return of_kind(step.kind, lambda item: next(outputs(item)), outputs, lambda item: origin_of(item) * 7 % 5)


def changed(item: Any, step: Step) -> Any:
    """Return a step's result for an item: changed leaves, fewer if some are skipped, or SKIP."""
    if isinstance(item, list):
        inner = [changed(leaf, step) for leaf in item]  # pyright: ignore[reportUnknownVariableType] - as above
        return [leaf for leaf in inner if leaf is not SKIP]
    if step.leaves_out and origin_of(item) % 4 == 1:
        return SKIP
    return item if item is None else item + MAX_ITEMS * (step.number + 1)
