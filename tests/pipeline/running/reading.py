"""Small pipelines, four ways of reading a pass, and a gate that counts concurrent calls."""

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import PipelineFailure
from penstock.pipeline import Pipeline, PipelineBuilder, StageEnded
from tests.promptness import PATIENCE_SECONDS as PATIENCE_SECONDS


def build(source: Any = range(10), op: Any = abs, *, continuous: bool = False, **how: Any) -> Pipeline:
    """Return a pipeline of one stage and two threads."""
    return over(source, continuous=continuous).pipe(op, **how).add_sink(2).build(num_threads=2)


def over(source: Any, *, continuous: bool = False) -> PipelineBuilder:
    """Return a builder with a source."""
    return PipelineBuilder().add_source(source, continuous=continuous)


def items_of(builder: PipelineBuilder, *, sink: int = 3, threads: int = 1, **how: Any) -> list[Any]:
    """Return the items of one pass."""
    with builder.add_sink(sink).build(num_threads=threads, **how).auto_stop() as pipeline:
        return [*pipeline.get_iterator(timeout=PATIENCE_SECONDS)]


def first_awaited(pipeline: Any, count: int) -> list[Any]:
    """Return the first items of an `async for`, which is then left; fewer if there are fewer."""

    async def read() -> list[Any]:
        found: list[Any] = []
        async for item in pipeline:
            found.append(item)
            if len(found) == count:
                break
        return found

    return asyncio.run(read())


class Again:
    """A source that makes a new iterator for each pass."""

    def __init__(self, numbers: Callable[[], Iterator[Any]]) -> None:
        self._numbers = numbers

    def __iter__(self) -> Iterator[Any]:
        return self._numbers()


@dataclass
class Pass:
    """The items of one pass over the source, and its failure."""

    items: list[Any] = field(default_factory=list)
    failure: PipelineFailure | None = None


@contextmanager
def watched(pipeline: Pipeline) -> Generator[None]:
    """Stop the pipeline if a read inside the block hangs, and fail."""
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


@contextmanager
def _a_pass(pipeline: Pipeline) -> Generator[Pass]:
    found = Pass()
    try:
        with watched(pipeline):
            yield found
    except PipelineFailure as failure:
        found.failure = failure


def read_by_for(pipeline: Pipeline) -> Pass:
    """Read a pass by a `for`."""
    with _a_pass(pipeline) as found:
        for item in pipeline:
            found.items.append(item)
    return found


def read_by_iterator(pipeline: Pipeline) -> Pass:
    """Read a pass by an iterator with a timeout."""
    with _a_pass(pipeline) as found:
        for item in pipeline.get_iterator(timeout=PATIENCE_SECONDS):
            found.items.append(item)
    return found


def read_by_get_item(pipeline: Pipeline) -> Pass:
    """Read a pass by `get_item`."""
    iter(pipeline)  # starts a new pass, if something of this one was read
    with _a_pass(pipeline) as found, suppress(EOFError):
        while True:
            found.items.append(pipeline.get_item(timeout=PATIENCE_SECONDS))
    return found


def read_by_async_for(pipeline: Pipeline) -> Pass:
    """Read a pass by an `async for` in another event loop."""
    with _a_pass(pipeline) as found:

        async def read() -> None:
            async for item in pipeline:
                found.items.append(item)

        asyncio.run(read())
    return found


READINGS: list[Callable[[Pipeline], Pass]] = [read_by_for, read_by_iterator, read_by_get_item, read_by_async_for]


class Gate:
    """A gate at which functions wait; it counts how many wait now, how many waited at most, and how many came.

    Attributes:
        inside: how many functions are inside now.
        peak: the largest number that were inside at the same time.
        entered: how many have entered so far.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_open = False
        self.inside = 0
        self.peak = 0
        self.entered = 0

    def __enter__(self) -> None:
        with self._changed:
            self.inside += 1
            self.entered += 1
            self.peak = max(self.peak, self.inside)
            self._changed.notify_all()

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self.inside -= 1
            self._changed.notify_all()

    def pass_through(self) -> None:
        """Wait inside until the gate is open."""
        with self, self._changed:
            assert self._changed.wait_for(lambda: self._is_open, PATIENCE_SECONDS)

    def open(self) -> None:
        """Release all functions inside, and let later ones pass."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def wait_until(self, condition: Callable[["Gate"], bool]) -> None:
        """Wait until a condition on the counts is true."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), PATIENCE_SECONDS)


@contextmanager
def gate() -> Generator[Gate]:
    """Yield a gate that is opened at the end of the block, even after an error."""
    made = Gate()
    try:
        yield made
    finally:
        made.open()


def waiting(calls: Gate, at: int | None = None) -> Callable[[int], int]:
    """Return a function that returns its item; it waits at a gate, for each item or for one."""

    def wait(item: int) -> int:
        if at is None or item == at:
            calls.pass_through()
        return item

    return wait


class EndOfRun:
    """An observer that notes when a run has put its end into the outlet."""

    def __init__(self) -> None:
        self.noted = threading.Event()

    def __call__(self, event: object) -> None:
        """Note the end."""
        if isinstance(event, StageEnded) and event.stage == "sink":
            self.noted.set()

    def wait(self) -> None:
        """Wait for the end."""
        assert self.noted.wait(PATIENCE_SECONDS)
        self.noted.clear()
