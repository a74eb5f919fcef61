"""Stages with several values for an item, or none: they put them out as they are made, with limits, until a stop."""

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import pytest

from penstock.errors import PipelineFailure
from penstock.pipeline import SKIP, PipelineBuilder, ProcessExecutor
from tests.pipeline.meaning.graphs import KINDS, of_kind
from tests.pipeline.running.reading import PATIENCE_SECONDS, Again, gate, items_of, over

Where = Literal["threads", "pool", "disaggregate"]
WHERE = pytest.mark.parametrize("where", ["threads", "pool", "disaggregate"])
MAX_AHEAD = 2 * 1024 + 8  # cheap values: those in a channel, and those that a call has made for it
GENERATED = of_kind("generator", abs)
ORDERS: list[Literal["input", "completion"]] = ["input", "completion"]


def streaming(where: Where, generate: Callable[[], Iterator[Any]], pool: ThreadPoolExecutor) -> PipelineBuilder:
    """Return a pipeline of three items, with one stage that puts out the values of a generator for each."""
    if where == "disaggregate":
        return over(Again(lambda: (generate() for _ in range(3)))).disaggregate()

    def op(_: int) -> Iterator[Any]:
        yield from generate()

    return over(range(3)).pipe(op, executor=pool if where == "pool" else None, name="op")


@WHERE
def test_values_without_end(where: Where) -> None:
    """An endless generator runs as its values are read, no further ahead than there is room, until a stop."""
    made = [0]
    closed = threading.Event()

    def endless() -> Iterator[int]:
        try:
            while True:
                made[0] += 1
                yield made[0]
        finally:
            closed.set()

    with ThreadPoolExecutor(1) as pool:
        pipeline = streaming(where, endless, pool).add_sink(2).build(num_threads=1)
        read = [pipeline.get_item(timeout=PATIENCE_SECONDS) for _ in range(2500)]
        pipeline.stop(timeout=PATIENCE_SECONDS)
        after = made[0]
    assert read == [*range(1, 2501)]
    assert after - 2500 <= MAX_AHEAD
    assert closed.is_set()
    assert made[0] == after


@WHERE
def test_a_value_is_put_out_before_the_next_is_made(where: Where) -> None:
    """The first value can be read while the second is still being computed, and both before the generator fails."""
    with gate() as second, ThreadPoolExecutor(1) as pool:

        def generate() -> Iterator[int]:
            yield 1
            second.pass_through()
            yield 2
            raise ValueError("no third")

        with streaming(where, generate, pool).add_sink().build(num_threads=1).auto_stop() as pipeline:
            items = pipeline.get_iterator(timeout=PATIENCE_SECONDS)
            assert next(items) == 1
            second.open()
            assert next(items) == 2
            with pytest.raises(PipelineFailure, match="no third"):
                next(items)


def test_disaggregated_types() -> None:
    """Lists, texts, ranges, sets, dicts and iterators give their elements in order; another item fails."""
    items: list[Any] = [[1, SKIP, 2], "ab", (), range(3), {5}, {6: "six"}, iter([7, SKIP]), 8, [[9]], b"\x0a"]
    with over(items).disaggregate().add_sink().build(num_threads=1, max_failures=1).auto_stop() as pipeline:
        assert list(pipeline) == [1, 2, "a", "b", 0, 1, 2, 5, 6, 7, [9], 10]
        (dropped,) = pipeline.dropped()
    assert (dropped.stage, dropped.item, type(dropped.error)) == ("disaggregate", "8", TypeError)


# Pools of threads that fail themselves, and so end the pipeline, whatever its limit of failures is.


class _ObservedPool(ThreadPoolExecutor):
    """A pool that sets an event when a call was sent to it, and counts the calls."""

    def __init__(self, count: int, initializer: Callable[[], None] | None = None) -> None:
        super().__init__(count, initializer=initializer)
        self.sent = threading.Event()
        self.calls = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        submitted = super().submit(fn, *args, **kwargs)
        self.sent.set()
        self.calls += 1
        return submitted


class _UnpreparedPool(_ObservedPool):
    """A pool whose initializer raises when a call was sent to it."""

    def __init__(self) -> None:
        super().__init__(1, self._prepare)

    def _prepare(self) -> None:
        assert self.sent.wait(PATIENCE_SECONDS)
        raise ValueError("not prepared")


class _FailingPool(ThreadPoolExecutor):
    """A pool that runs each call, and returns a future that has failed."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        super().submit(fn, *args, **kwargs).result()
        failed: Future[Any] = Future()
        failed.set_exception(ValueError("not prepared"))
        return failed


def test_a_pool_that_is_shut_down() -> None:
    """A pool that is shut down, before a call is sent or before it begins, fails the stage."""
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(PipelineFailure, match="shutdown") as failed:
        items_of(over([1, 2]).pipe(GENERATED, executor=pool, name="op"), max_failures=-1)
    assert failed.value.stage == "op"
    with gate() as busy:
        pool = _ObservedPool(1)
        pool.submit(busy.pass_through)
        busy.wait_until(lambda now: now.inside == 1)
        pool.sent.clear()
        builder = over([1]).pipe(GENERATED, executor=pool).add_sink()
        with builder.build(num_threads=1, max_failures=-1).auto_stop() as pipeline:
            assert pool.sent.wait(PATIENCE_SECONDS)
            pool.shutdown(wait=False, cancel_futures=True)
            busy.open()
            with pytest.raises(PipelineFailure, match="cancelled"):
                list(pipeline.get_iterator(timeout=PATIENCE_SECONDS))
        pool.shutdown()


@pytest.mark.parametrize("op", [abs, GENERATED])
def test_a_pool_that_fails_a_call(op: Any) -> None:
    """A call that fails before it begins ends the pipeline; one that ran has its own result, whatever the pool says."""
    for order in ORDERS:
        with _UnpreparedPool() as pool, pytest.raises(PipelineFailure, match="initializer"):
            items_of(over(range(9)).pipe(op, executor=pool, concurrency=2, output_order=order), max_failures=-1)
    with _FailingPool(1) as failing:
        assert items_of(over(range(9)).pipe(op, executor=failing)) == [*range(9)]


def test_cheap_generators_share_calls() -> None:
    """One call in a thread opens many cheap generators, pulls their values, and closes them."""
    for order in ORDERS:
        with _ObservedPool(2) as pool:
            builder = over(range(1000)).pipe(GENERATED, executor=pool, concurrency=2, output_order=order)
            assert sorted(items_of(builder, sink=100)) == [*range(1000)]
        assert pool.calls < 1000


# Skipped items.


def odd_or_none(number: int) -> object:
    """Return an odd number itself, SKIP for a multiple of 4, and None for another number."""
    if number % 2:
        return number
    return SKIP if number % 4 == 0 else None


@pytest.mark.parametrize("kind", [*KINDS, "in a process"])
def test_none_is_skipped(kind: Any) -> None:
    """SKIP is always skipped, None only with `skip_none=True`."""
    executor = None if kind in KINDS else ProcessExecutor(1)
    op = of_kind(kind, odd_or_none) if kind in KINDS else odd_or_none
    for skips, concurrency in itertools.product((True, False), (1, 3) if executor is None else (1,)):
        builder = over(range(8)).pipe(op, skip_none=skips, concurrency=concurrency, executor=executor)
        found = sorted(map(str, items_of(builder, threads=3)))
        assert found == ["1", "3", "5", "7"] + ([] if skips else ["None", "None"])


class _Evens:
    """An aggregator of pairs of even numbers, which skips what it has no batch for."""

    def __init__(self) -> None:
        self._held: list[int] = []

    def accumulate(self, item: int) -> object:
        self._held += [item] if item % 2 == 0 else []
        return self.flush() if len(self._held) == 2 else SKIP

    def flush(self) -> object:
        held, self._held = self._held, []
        return held or SKIP


def test_an_aggregator_skips() -> None:
    """SKIP from an aggregator is no batch, neither for an item nor at the end."""
    for count, batches in ((8, [[0, 2], [4, 6]]), (6, [[0, 2], [4]]), (0, [])):
        assert items_of(over(range(count)).aggregate(_Evens())) == batches
