"""The limits of a pipeline: calls never exceed the concurrency of their stage, nor waiting items the room for them."""

import asyncio
import itertools
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, NoReturn

import pytest

from penstock.pipeline import Pipe, PipelineBuilder
from tests.pipeline.meaning.graphs import Kind, of_kind
from tests.pipeline.running.reading import PATIENCE_SECONDS, Gate, gate, items_of, over, waiting

Order = Literal["input", "completion"]
ORDERS = pytest.mark.parametrize("order", ["input", "completion"])
MAX_IN_A_CHANNEL = 1024  # of cheap items, if the user sets no limit
FEW_AHEAD = 64  # ample for a few channels of at most two items, and the lanes between them
MAX_AHEAD = 3 * 4 * MAX_IN_A_CHANNEL  # three channels whose items are lists of up to four


def _has_inside(count: int, now: Gate) -> bool:
    return now.inside == count


@pytest.mark.parametrize("kind", ["sync", "generator", "lookup"])
def test_as_many_calls_as_the_concurrency(kind: Kind) -> None:
    """A stage runs as many calls as its concurrency, or as there are threads if these are fewer, and never more."""
    cases: list[tuple[Order, int, int]] = [
        *(("completion", 1, 3), ("completion", 5, 3), ("input", 2, 1), ("input", 5, 6), ("completion", 2, 6)),
    ]
    for order, concurrency, threads in cases:
        with gate() as calls:
            builder = over(range(60)).pipe(of_kind(kind, waiting(calls)), concurrency=concurrency, output_order=order)
            with builder.add_sink().build(num_threads=threads).auto_stop() as pipeline:
                expected = min(concurrency, threads)
                calls.wait_until(partial(_has_inside, expected))
                calls.open()
                found = [*pipeline]
        assert calls.peak <= expected
        assert (found if order == "input" or concurrency == 1 else sorted(found)) == [*range(60)]


@pytest.mark.parametrize(
    ("order", "kind", "source", "options", "statistics"),
    [
        ("input", "async", "at once", {}, False),
        ("input", "async", "one by one", {"max_bytes": 1}, False),
        ("completion", "async", "one by one", {"max_items": 1}, True),
        ("completion", "async generator", "at once", {"max_bytes": 1}, True),
        ("completion", "async generator", "one by one", {}, False),
    ],
)
def test_every_allowed_call_starts_before_one_ends(
    order: Order, kind: Kind, source: str, options: dict[str, Any], *, statistics: bool
) -> None:
    """While items wait and fewer calls than allowed are under way, further calls start, however long the first take."""
    calls = Gate()
    full, called = asyncio.Event(), asyncio.Event()

    async def wait(item: int) -> int:
        with calls:
            called.set()
            if calls.inside == 100:
                full.set()
            await full.wait()
        return item

    async def generate(item: int) -> AsyncIterator[int]:
        yield await wait(item)

    async def one_by_one() -> AsyncIterator[int]:
        for number in range(250):
            yield number
            await called.wait()
            if not full.is_set():
                called.clear()

    builder = over(range(250) if source == "at once" else one_by_one())
    builder.pipe(wait if kind == "async" else generate, concurrency=100, output_order=order, **options)
    assert sorted(items_of(builder, statistics=statistics)) == [*range(250)]
    assert calls.peak == 100


@ORDERS
def test_calls_that_end_together_are_followed_together(order: Order) -> None:
    """Lanes that become free together get their items in a few turns of the loop, and not one of them in each turn."""
    lanes, rounds = 20, 10
    turns = 0
    began: list[int] = []  # the turn in which each call began
    waiting: list[asyncio.Future[None]] = []

    def count_turns() -> None:
        nonlocal turns
        turns += 1
        if len(began) < lanes * rounds:
            asyncio.get_running_loop().call_soon(count_turns)

    async def wait(item: int) -> int:
        if not began:
            count_turns()
        began.append(turns)
        waiting.append(asyncio.get_running_loop().create_future())
        if len(waiting) < lanes:
            await waiting[-1]
        else:
            for future in waiting:
                future.set_result(None)
            waiting.clear()
        return item

    builder = over(range(lanes * rounds)).pipe(wait, concurrency=lanes, output_order=order)
    assert sorted(items_of(builder, sink=lanes * rounds)) == [*range(lanes * rounds)]
    assert max(began[each + lanes - 1] - began[each] for each in range(lanes, lanes * rounds, lanes)) < lanes // 2


@ORDERS
def test_a_slow_reader_wakes_a_lane_at_a_time(order: Order) -> None:
    """While results wait for a slow reader, an item costs the loop as few calls with 100 lanes as with two."""
    counts = {}
    for lanes in (2, 100):
        calls = 0

        def count(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        async def wait(item: int) -> int:
            sys.setprofile(count)  # of the loop's thread, which ends with the pipeline
            await asyncio.sleep(0)
            return item

        builder = over(range(300)).pipe(wait, concurrency=lanes, output_order=order)
        assert sorted(items_of(builder, sink=1)) == [*range(300)]
        counts[lanes] = calls / 300
    assert counts[100] < 2 * counts[2], counts


def test_a_list_needs_no_thread() -> None:
    """The items of a list, which runs no code of the user's, are taken without a thread of the source."""
    before = {*threading.enumerate()}
    started: set[str] = set()

    async def note(item: int) -> int:
        started.update(thread.name for thread in threading.enumerate() if thread not in before)
        return item

    assert items_of(over([*range(10)]).pipe(note)) == [*range(10)]
    assert len(started) == 1  # the loop's


def test_a_slow_router_blocks_no_coroutine() -> None:
    """A plain router that waits runs on a thread: coroutines run meanwhile, even one that the router waits for."""
    ticked = threading.Event()

    def route(item: int) -> int:
        if item == 1:
            assert ticked.wait(PATIENCE_SECONDS)
        return item % 2

    async def tick(item: int) -> int:
        await asyncio.sleep(0)
        ticked.set()
        return item

    builder = over(range(10)).path_variants(route, [[], [Pipe(str)]]).pipe(tick)
    assert sorted(items_of(builder), key=int) == [0, "1", 2, "3", 4, "5", 6, "7", 8, "9"]


@ORDERS
@pytest.mark.parametrize("kind", ["sync", "generator"])
def test_a_slow_item_holds_no_result_back(order: Order, kind: Kind) -> None:
    """The results before an item that takes long can be read meanwhile, also those of the same chunk."""
    for lanes, number in ((1, 1), (1, 40), (2, 3), (2, 400), (5, 40), (1, 400)):
        with gate() as slow:
            op: Any = of_kind(kind, waiting(slow, at=number))
            builder = over(itertools.count()).pipe(op, concurrency=lanes, output_order=order)
            with builder.add_sink(5).build(num_threads=lanes).auto_stop() as pipeline:
                found: set[object] = set()
                while not found >= {*range(number)}:
                    found.add(pipeline.get_item(timeout=PATIENCE_SECONDS))
                assert number not in found
                slow.open()


def test_values_that_waited_for_their_turn() -> None:
    """The values that a generator makes while others wait for their turn are passed on with these."""
    with gate() as first, gate() as slow, gate() as between, gate() as end:

        def values(item: int) -> Iterator[str]:
            if item == 0:
                first.pass_through()
                return
            slow.pass_through()
            yield "a"
            between.pass_through()
            yield "b"
            end.pass_through()

        builder = over(range(2)).pipe(values, concurrency=2, output_order="input")
        with builder.add_sink(5).build(num_threads=2).auto_stop() as pipeline:
            for each in (slow, between, end):
                each.wait_until(lambda now: now.inside == 1)
                let_a_call_become_slow()
                if each is not end:
                    each.open()
            first.open()
            assert [pipeline.get_item(timeout=PATIENCE_SECONDS) for _ in "ab"] == ["a", "b"]
            end.open()


@pytest.mark.parametrize(("order", "place"), [("input", "threads"), ("completion", "threads"), ("input", "executor")])
def test_all_lanes_share_the_items_behind_a_slow_one(order: Order, place: str) -> None:
    """If items take long after many cheap ones, all lanes work on them, also on the rest of a chunk."""
    with gate() as slow, gate() as later, ThreadPoolExecutor(5) as pool:

        def wait(item: int) -> int:
            if item >= 300:
                (slow if item == 300 else later).pass_through()
            return item

        executor = pool if place == "executor" else None
        builder = over(range(1_000)).pipe(wait, concurrency=5, output_order=order, executor=executor)
        with builder.add_sink(2_000).build(num_threads=5).auto_stop() as pipeline:
            slow.wait_until(lambda now: now.inside == 1)
            let_a_call_become_slow()
            slow.open()
            later.wait_until(lambda now: now.inside == 5)
            later.open()
            assert sorted(pipeline) == [*range(1_000)]


@pytest.mark.parametrize(
    ("order", "place", "behind"),
    [
        ("input", "threads", 1),
        ("completion", "threads", 150),
        ("input", "executor", 1),
        ("completion", "executor", 150),
    ],
)
def test_the_items_behind_a_stuck_one_go_to_other_lanes(order: Order, place: str, behind: int) -> None:
    """While a call is stuck on an item, all others are computed, and in completion order they can be read.

    In the order of the input the other lane keeps a few chunks at most, and their size depends on the machine's load.
    """
    with gate() as stuck, ThreadPoolExecutor(2) as pool:
        computed: set[int] = set()
        all_others = threading.Event()
        pass_or_wait = waiting(stuck, at=300)

        def wait(item: int) -> int:
            pass_or_wait(item)
            computed.add(item)
            if len(computed) == count - 1:
                all_others.set()
            return item

        count = 301 + behind
        executor = pool if place == "executor" else None
        builder = over(range(count)).pipe(wait, concurrency=2, output_order=order, executor=executor)
        with builder.add_sink(2 * count).build(num_threads=2).auto_stop() as pipeline:
            assert all_others.wait(PATIENCE_SECONDS), sorted({*range(count)} - computed)
            items = pipeline.get_iterator(timeout=PATIENCE_SECONDS)
            found = [next(items) for _ in range(count - 1)] if order == "completion" else []
            assert 300 not in found
            stuck.open()
            assert sorted([*found, *items]) == [*range(count)]


class _Counting:
    """An endless source that counts the items taken from it."""

    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[int]:
        for number in itertools.count():
            self.taken = number + 1
            yield number


class _CountingAsync(_Counting):
    async def __aiter__(self) -> AsyncIterator[int]:
        for number in _Counting.__iter__(self):
            yield number


SHAPES: dict[str, Callable[[PipelineBuilder], PipelineBuilder]] = {
    "plain": lambda builder: builder,
    "sync": lambda builder: builder.pipe(abs, concurrency=2, max_items=2),
    "ordered": lambda builder: builder.pipe(abs, concurrency=3, output_order="input", max_items=2),
    "async": lambda builder: builder.pipe(of_kind("async", abs), concurrency=3, max_items=2),
    "async ordered": lambda builder: builder.pipe(
        of_kind("async", abs), concurrency=3, output_order="input", max_items=2
    ),
    "generator": lambda builder: builder.pipe(of_kind("generator", abs), concurrency=2, max_items=2),
    "flat": lambda builder: builder.aggregate(4).disaggregate(),
    "paths": lambda builder: builder.path_variants(lambda item: item % 2, [[], []]),
}


def run_something_else(count: int = 500) -> None:
    """Let time pass: run another pipeline over `count` items."""
    assert len(items_of(over(range(count)).pipe(abs), sink=8, threads=2)) == count


def let_a_call_become_slow() -> None:
    """Let more time pass than the chunks of cheap items take."""
    began = time.perf_counter()
    while time.perf_counter() < began + 0.05:
        run_something_else(100)


@pytest.mark.parametrize(("shape", "source"), [("plain", _CountingAsync), *((shape, _Counting) for shape in SHAPES)])
def test_an_unread_pipeline_stops_taking_items(shape: str, source: type[_Counting]) -> None:
    """A pipeline takes no more items than its channels have room for; while it isn't read, it takes none."""
    counting = source()
    with SHAPES[shape](over(counting)).add_sink(2).build(num_threads=3).auto_stop() as pipeline:
        assert isinstance(pipeline.get_item(timeout=PATIENCE_SECONDS), int)
        run_something_else()
        before = counting.taken
        run_something_else()
        assert counting.taken == before
        for number in range(1, 700):
            assert counting.taken - number <= (MAX_AHEAD if shape in {"flat", "paths"} else FEW_AHEAD)
            pipeline.get_item(timeout=PATIENCE_SECONDS)


def test_slow_items_are_not_taken_far_ahead() -> None:
    """Before a slow op only as many items wait as its channel has room for."""
    counting = _Counting()
    with gate() as calls:
        builder = over(counting).pipe(waiting(calls), concurrency=2, max_items=4)
        with builder.add_sink(1).build(num_threads=2).auto_stop():
            calls.wait_until(lambda now: now.inside == 2)
            run_something_else()
            assert calls.entered == 2
            assert counting.taken <= 2 + 4 + 1
            calls.open()


def test_two_pipelines_of_one_config_share_nothing() -> None:
    """Two pipelines of one config run at the same time, each with its own aggregators and order."""
    config = over(range(101)).pipe(abs).aggregate(10).add_sink()
    with config.build(num_threads=1).auto_stop() as first, config.build(num_threads=2).auto_stop() as second:
        for one, other in zip(first, second, strict=True):
            assert one == other == [*range(one[0], min(one[0] + 10, 101))]


class _NoNbytes:
    def __getattr__(self, name: str) -> NoReturn:
        raise KeyError(name)


def test_items_without_a_size_pass() -> None:
    """An item whose size can't be computed passes all channels, as an object of a few bytes."""
    in_itself: list[object] = []
    in_itself.append(in_itself)
    nested: list[object] = []
    for _ in range(5000):
        nested = [nested]
    given: list[Any] = [_NoNbytes(), {"a": _NoNbytes()}, in_itself, nested]
    for item in given:
        builder = over([item] * 5).pipe(lambda item: item, max_bytes=1000).add_sink(3, max_bytes=1000)
        with builder.build(num_threads=1).auto_stop() as pipeline:
            assert sum(each is item for each in pipeline) == 5
