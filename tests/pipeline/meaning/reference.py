"""The reference for a pipeline: its stages applied to one item at a time, in plain Python, without threads.

`evaluate` returns the items that a pipeline puts out, in the order of the source's items, and how it ends.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Protocol

from penstock.pipeline import SKIP
from tests.pipeline.meaning.graphs import (
    Branch,
    BrokenError,
    Graph,
    Group,
    Items,
    StageValue,
    Step,
    Ungroup,
    numbers_of,
    origin_of,
    outputs_of,
)

RATE_FROM = 100  # a rate of failures is checked once a stage has tried this many items


@dataclass(frozen=True)
class Failure:
    """The failure of a stage: its name (None for a source), the item, and the exception."""

    stage: str | None
    item: object
    error: BaseException


def evaluate(
    graph: Graph,
    max_failures: int | Fraction = 0,
    dropped: list[Failure] | None = None,
    tried: list[int] | None = None,
) -> tuple[list[Any], Failure | None]:
    """Return the items of one pass in input order, and the failure that ended it, if one did.

    Dropped items are added to `dropped`, and the number of items that the stages tried is added to `tried`.
    """
    run = _Run(max_failures, [] if dropped is None else dropped)
    outputs: list[Any] = []
    try:
        stream = _turns([_source(items) for items in graph.sources])
        for stage in graph.stages:
            stream = _through(_stage(stage, run), stream)
        for item in stream:
            outputs.append(item)  # noqa: PERF402 - keeps the items before a failure
        run.end()
    except _FailedError as failed:
        return outputs, failed.failure
    finally:
        if tried is not None:
            tried.append(run.tried)
    return outputs, None


class _FailedError(Exception):
    """Carries the failure that ends the pipeline up to `evaluate`."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


@dataclass
class _Run:
    """The limit of failures of all stages together, and what counts against it."""

    allowed: int | Fraction
    dropped: list[Failure]
    tried: int = 0

    def drop(self, failure: Failure) -> None:
        """Drop an item, or end the pipeline."""
        failed = len(self.dropped) + 1
        if isinstance(self.allowed, Fraction):
            is_exceeded = self.tried >= RATE_FROM and failed > self.allowed * self.tried
        else:
            is_exceeded = 0 <= self.allowed < failed
        if is_exceeded:
            raise _FailedError(failure) from failure.error
        self.dropped.append(failure)

    def end(self) -> None:
        """Check the rate at the end."""
        if isinstance(self.allowed, Fraction) and len(self.dropped) > self.allowed * self.tried:
            raise _FailedError(self.dropped[-1])


def _source(items: Items) -> Iterator[Any]:
    try:
        yield from numbers_of(items)
    except BrokenError as error:
        raise _FailedError(Failure(None, None, error)) from error


def _turns(streams: list[Iterator[Any]]) -> Iterator[Any]:
    while streams:
        for stream in [*streams]:
            try:
                yield next(stream)
            except StopIteration:
                streams.remove(stream)


class _Stage(Protocol):
    """A stage: its outputs for each item, and its outputs at the end."""

    def push(self, item: Any, /) -> Iterator[Any]: ...

    def finish(self) -> Iterator[Any]: ...


def _stage(stage: StageValue, run: _Run, prefix: str = "") -> _Stage:
    match stage:
        case Step() | Ungroup():
            return _Call(stage, run, prefix)
        case Group():
            return _Collect(stage, run)
        case Branch():
            return _Route(stage, run)


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


class _Call:
    def __init__(self, stage: Step | Ungroup, run: _Run, prefix: str) -> None:
        self._outputs_of: Any = iter if isinstance(stage, Ungroup) else partial(outputs_of, stage)
        self._name = None if isinstance(stage, Ungroup) else f"{prefix}{stage.name}"
        self._run = run

    def push(self, item: Any) -> Iterator[Any]:
        self._run.tried += 1
        try:
            for output in self._outputs_of(item):
                if output is not SKIP:
                    yield output
        except BrokenError as error:
            self._run.drop(Failure(self._name, item, error))

    def finish(self) -> Iterator[Any]:
        return iter(())


class _Collect:
    def __init__(self, group: Group, run: _Run) -> None:
        self._group = group
        self._run = run
        self._held: list[Any] = []

    def push(self, item: Any) -> Iterator[Any]:
        self._run.tried += 1
        self._held.append(item)
        size = origin_of(item) if self._group.by_aggregator else len(self._held)
        return self._take() if size % self._group.count == 0 else iter(())

    def finish(self) -> Iterator[Any]:
        return iter(()) if self._group.drop_last else self._take()

    def _take(self) -> Iterator[Any]:
        held, self._held = self._held, []
        return iter([held] if held else [])


class _Route:
    def __init__(self, branch: Branch, run: _Run) -> None:
        self._branch = branch
        self._run = run
        self._paths = [
            [_stage(stage, run, prefix=f"{branch.name}[{number}]/") for stage in path]
            for number, path in enumerate(branch.paths)
        ]

    def push(self, item: Any) -> Iterator[Any]:
        self._run.tried += 1
        if origin_of(item) not in self._branch.fails_at:
            yield from _push_along(self._paths[origin_of(item) % len(self._paths)], iter([item]))
            return
        try:
            self._run.drop(Failure(self._branch.name, item, BrokenError(item)))
        except _FailedError:
            yield from self.finish()  # the paths are downstream: the items they hold were computed before
            raise

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
