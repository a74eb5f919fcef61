"""Small pipelines, the ways of reading one pass of them, and a watch over what runs at the same time."""

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import PipelineFailure
from penstock.pipeline import Pipeline, PipelineBuilder

PATIENCE_SECONDS = 20.0  # a safety net, where a test would otherwise hang for ever


def build(source: Any = range(10), op: Any = abs, *, continuous: bool = False, **how: Any) -> Pipeline:
    """Return a pipeline of one stage and two threads."""
    return PipelineBuilder().add_source(source, continuous=continuous).pipe(op, **how).add_sink(2).build(num_threads=2)


class Again:
    """A source that begins anew in each pass."""

    def __init__(self, numbers: Callable[[], Iterator[Any]]) -> None:
        self._numbers = numbers

    def __iter__(self) -> Iterator[Any]:
        """Begin."""
        return self._numbers()


@dataclass
class Pass:
    """What one pass over the source gave, and how it ended."""

    items: list[Any] = field(default_factory=list)
    failure: PipelineFailure | None = None


@contextmanager
def watched(pipeline: Pipeline) -> Generator[None]:
    """Let no read inside hang for ever: one that does is ended by a `stop`, and fails."""
    hung = threading.Event()

    def end() -> None:
        hung.set()
        with suppress(TimeoutError):
            pipeline.stop(timeout=1)

    timer = threading.Timer(PATIENCE_SECONDS, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        assert not hung.is_set(), "the read hung"


def read_by_for(pipeline: Pipeline) -> Pass:
    """Read by a `for`."""
    found = Pass()
    try:
        with watched(pipeline):
            for item in pipeline:
                found.items.append(item)
    except PipelineFailure as failure:
        found.failure = failure
    return found


def read_by_iterator(pipeline: Pipeline) -> Pass:
    """Read by an iterator with a time-out."""
    found = Pass()
    try:
        for item in pipeline.get_iterator(timeout=PATIENCE_SECONDS):
            found.items.append(item)
    except PipelineFailure as failure:
        found.failure = failure
    return found


def read_by_get_item(pipeline: Pipeline) -> Pass:
    """Read item by item."""
    found = Pass()
    iter(pipeline)  # begins a new pass, if something of this one was read
    try:
        while True:
            found.items.append(pipeline.get_item(timeout=PATIENCE_SECONDS))
    except EOFError:
        return found
    except PipelineFailure as failure:
        found.failure = failure
    return found


def read_by_async_for(pipeline: Pipeline) -> Pass:
    """Read by an `async for` in an event loop of one's own."""
    found = Pass()

    async def read() -> None:
        async for item in pipeline:
            found.items.append(item)

    try:
        with watched(pipeline):
            asyncio.run(read())
    except PipelineFailure as failure:
        found.failure = failure
    return found


READINGS: list[Callable[[Pipeline], Pass]] = [
    read_by_for,
    read_by_iterator,
    read_by_get_item,
    read_by_async_for,
]


class Gate:
    """A gate that functions wait at, and which tells how many wait and how many waited at most."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_open = False
        self.inside = 0
        self.most = 0
        self.entered = 0

    def __enter__(self) -> None:
        """Be counted as inside."""
        with self._changed:
            self.inside += 1
            self.entered += 1
            self.most = max(self.most, self.inside)
            self._changed.notify_all()

    def __exit__(self, *_: object) -> None:
        """Be inside no longer."""
        with self._changed:
            self.inside -= 1
            self._changed.notify_all()

    def pass_through(self) -> None:
        """Wait inside until it is open."""
        with self, self._changed:
            assert self._changed.wait_for(lambda: self._is_open, PATIENCE_SECONDS)

    def open(self) -> None:
        """Let everybody go, and whoever comes."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def wait_until(self, is_so: Callable[["Gate"], bool]) -> None:
        """Wait until something holds for the counts."""
        with self._changed:
            assert self._changed.wait_for(lambda: is_so(self), PATIENCE_SECONDS)


@contextmanager
def gate() -> Generator[Gate]:
    """Give a gate that is open in the end, whatever happens."""
    made = Gate()
    try:
        yield made
    finally:
        made.open()
