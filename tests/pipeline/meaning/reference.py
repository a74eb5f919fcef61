"""The reference for a pipeline: its stages applied to one item at a time, in plain Python, without threads.

`evaluate` returns the items that a pipeline puts out, in the order of the source's items, and how it ends.
"""

import asyncio
import copy
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

from penstock.pipeline import SKIP, Aggregate, Disaggregate, Merge, PathVariants, Pipe, PipelineConfig, Source

RATE_FROM = 100  # a rate of failures is checked once a stage has tried this many items


@dataclass(frozen=True)
class Failure:
    """The failure of a stage: its name (None for a source), the item, and the exception."""

    stage: str | None
    item: object
    error: BaseException


def evaluate(
    config: PipelineConfig,
    max_failures: int | Fraction = 0,
    dropped: list[Failure] | None = None,
    tried: list[int] | None = None,
) -> tuple[list[Any], Failure | None]:
    """Return the items of one pass in input order, and the failure that ended it, if one did.

    Dropped items are added to `dropped`, and the number of items that the stages tried is added to `tried`.
    """
    outputs: list[Any] = []
    with closing(asyncio.new_event_loop()) as loop:
        run = _Run(loop, max_failures, [] if dropped is None else dropped)
        try:
            for item in _pipeline(config, run):
                outputs.append(item)  # noqa: PERF402 - keeps the items before a failure
            run.end()
        except _FailedError as failed:
            return outputs, failed.failure
        finally:
            if tried is not None:
                tried.append(run.budget.seen)
    return outputs, None


class _FailedError(Exception):
    """Carries the failure that ends the pipeline up to `evaluate`."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


@dataclass
class _Budget:
    """The limit of failures of a stage, or of all stages together."""

    allowed: int | Fraction
    seen: int = 0
    failed: int = 0

    def is_spent(self, *, at_the_end: bool = False) -> bool:
        if isinstance(self.allowed, Fraction):
            return (at_the_end or self.seen >= RATE_FROM) and self.failed > self.allowed * self.seen
        return 0 <= self.allowed < self.failed


@dataclass
class _Run:
    """The state shared by the stages of one evaluation: an event loop, and the limits of failures."""

    loop: asyncio.AbstractEventLoop
    max_failures: int | Fraction
    dropped: list[Failure]
    budget: _Budget = field(init=False)
    budgets: list[_Budget] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.budget = _Budget(self.max_failures)
        self.budgets.append(self.budget)

    def budget_of(self, stage: Pipe | None) -> _Budget:
        if stage is None or stage.max_failures is None:
            return self.budget
        self.budgets.append(_Budget(stage.max_failures))
        return self.budgets[-1]

    def drop(self, failure: Failure, budget: _Budget) -> None:
        budget.failed += 1
        if budget.is_spent():
            raise _FailedError(failure) from failure.error
        self.dropped.append(failure)

    def end(self) -> None:
        if any(budget.is_spent(at_the_end=True) for budget in self.budgets):
            raise _FailedError(self.dropped[-1])


class _Stage(Protocol):
    """A stage: its outputs for each item, and its outputs at the end."""

    def push(self, item: Any, /) -> Iterator[Any]: ...

    def finish(self) -> Iterator[Any]: ...


def _pipeline(config: PipelineConfig, run: _Run) -> Iterator[Any]:
    stream = _turns(config.source, run) if isinstance(config.source, Merge) else _source(config.source, run)
    for stage in _stages(config.pipes, run, prefix=""):
        stream = _through(stage, stream)
    return stream


def _turns(merge: Merge, run: _Run) -> Iterator[Any]:
    streams = [_pipeline(config, run) for config in merge.pipelines]
    while streams:
        for stream in [*streams]:
            try:
                yield next(stream)
            except StopIteration:
                streams.remove(stream)


def _source(source: Source, run: _Run) -> Iterator[Any]:
    given: Any = source.source
    items: Iterator[Any] = _in_loop(aiter(given), run) if hasattr(given, "__aiter__") else iter(given)
    while True:
        try:
            item = next(items)
        except StopIteration:
            return
        except Exception as error:
            raise _FailedError(Failure(None, None, error)) from error
        yield item


def _in_loop(items: AsyncIterator[Any], run: _Run) -> Iterator[Any]:
    async def one() -> Any:
        return await anext(items)

    while True:
        try:
            item = run.loop.run_until_complete(one())
        except StopAsyncIteration:
            return
        yield item


def _through(stage: _Stage, items: Iterator[Any]) -> Iterator[Any]:
    failed = None
    while True:
        try:
            item = next(items)
        except StopIteration:
            break
        except _FailedError as error:  # from upstream: the items held here were computed before
            failed = error
            break
        yield from stage.push(item)
    yield from stage.finish()
    if failed is not None:
        raise failed


def _stages(stages: Sequence[Pipe | Aggregate | Disaggregate | PathVariants], run: _Run, prefix: str) -> list[_Stage]:
    return [_stage(stage, run, prefix) for stage in stages]


def _stage(stage: Pipe | Aggregate | Disaggregate | PathVariants, run: _Run, prefix: str) -> _Stage:
    match stage:
        case Pipe():
            return _Call(f"{prefix}{stage.name}", _outputs_of(stage.op, run), run, run.budget_of(stage))
        case Disaggregate():
            return _Call(None, iter, run, run.budget_of(None))
        case Aggregate():
            return _Collect(stage, run)
        case PathVariants():
            return _Branch(stage, run, prefix)


def _outputs_of(op: Any, run: _Run) -> Callable[[Any], Iterator[Any]]:
    code: Any = getattr(op, "func", op)  # a partial has the kind of its function
    if callable(code) and not inspect.isroutine(code):
        code = code.__call__
    if inspect.isasyncgenfunction(code):
        return lambda item: _in_loop(op(item), run)
    if inspect.isgeneratorfunction(code):
        return lambda item: op(item)
    if inspect.iscoroutinefunction(code):
        return lambda item: iter([run.loop.run_until_complete(op(item))])
    if callable(code):
        return lambda item: iter([op(item)])
    return lambda item: iter([op[item]])


class _Call:
    """A stage that calls a function for each item."""

    def __init__(
        self, name: str | None, outputs_of: Callable[[Any], Iterator[Any]], run: _Run, budget: _Budget
    ) -> None:
        self._name = name
        self._outputs_of = outputs_of
        self._run = run
        self._budget = budget

    def push(self, item: Any) -> Iterator[Any]:
        self._budget.seen += 1
        try:
            outputs = self._outputs_of(item)
            for output in outputs:
                if output is not SKIP:
                    yield output
        except Exception as error:  # noqa: BLE001 - the function may raise any
            self._run.drop(Failure(self._name, item, error), self._budget)

    def finish(self) -> Iterator[Any]:
        return iter(())


class _Collect:
    """A stage that collects items by number, or by an aggregator."""

    def __init__(self, stage: Aggregate, run: _Run) -> None:
        self._aggregator = _aggregator_of(stage)
        self._drop_last = stage.drop_last
        self._run = run

    def push(self, item: Any) -> Iterator[Any]:
        self._run.budget.seen += 1
        return self._batches(lambda: self._aggregator.accumulate(item), item)

    def finish(self) -> Iterator[Any]:
        return iter(()) if self._drop_last else self._batches(self._aggregator.flush, None)

    def _batches(self, call: Callable[[], Any], item: object) -> Iterator[Any]:
        try:
            batch = call()
        except Exception as error:  # noqa: BLE001 - the aggregator may raise any
            self._run.drop(Failure(None, item, error), self._run.budget)
            return
        if batch is not None:
            yield batch


def _aggregator_of(stage: Aggregate) -> Any:
    given = stage.size_or_aggregator
    if isinstance(given, int):
        return _Count(given)
    return given() if isinstance(given, type) else copy.deepcopy(given)


class _Count:
    """An aggregator of lists of a fixed size."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: list[Any] = []

    def accumulate(self, item: Any) -> list[Any] | None:
        self._items.append(item)
        return self.flush() if len(self._items) == self._size else None

    def flush(self) -> list[Any] | None:
        items, self._items = self._items, []
        return items or None


class _Branch:
    """A stage that sends each item along the path that the router chooses."""

    def __init__(self, stage: PathVariants, run: _Run, prefix: str) -> None:
        self._route = _outputs_of(stage.router, run)
        self._name = f"{prefix}{stage.name}"
        self._paths: list[list[_Stage]] = [
            _stages(path, run, f"{self._name}[{number}]/") for number, path in enumerate(stage.paths)
        ]
        self._run = run

    def push(self, item: Any) -> Iterator[Any]:
        self._run.budget.seen += 1
        try:
            number: int = next(self._route(item))
            path = self._paths[number]
        except Exception as error:  # noqa: BLE001 - the router may raise any
            try:
                self._run.drop(Failure(self._name, item, error), self._run.budget)
            except _FailedError:
                yield from self.finish()  # the paths are downstream: the items they hold were computed before
                raise
            return
        yield from _push_along(path, iter([item]))

    def finish(self) -> Iterator[Any]:
        for path in self._paths:
            yield from _finished(path)


def _finished(path: Sequence[_Stage]) -> Iterator[Any]:
    for number, stage in enumerate(path):
        yield from _push_along(path[number + 1 :], stage.finish())


def _push_along(path: Sequence[_Stage], items: Iterator[Any]) -> Iterator[Any]:
    if not path:
        yield from items
        return
    while True:
        try:
            item = next(items)
        except StopIteration:
            return
        except _FailedError:  # from upstream: the items held here were computed before
            yield from _finished(path)
            raise
        yield from _push_along(path[1:], path[0].push(item))
