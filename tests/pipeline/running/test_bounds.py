"""The limits of a pipeline: calls never exceed the concurrency of their stage, nor waiting items the room for them."""

import asyncio
import itertools
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NoReturn

import pytest

from penstock.pipeline import Pipe, PipelineBuilder
from tests.pipeline.meaning.graphs import KINDS, Kind, of_kind
from tests.pipeline.running.reading import PATIENCE_SECONDS, Gate, gate

pytestmark = pytest.mark.each_value

Order = Literal["input", "completion"]
ORDERS = pytest.mark.parametrize("order", ["input", "completion"])
OF_EACH_KIND = pytest.mark.parametrize("kind", KINDS)
MAX_IN_A_CHANNEL = 1024  # of cheap items, if the user sets no limit
FEW_AHEAD = 64  # ample for a few channels of at most two items, and the lanes between them
MAX_AHEAD = 3 * 4 * MAX_IN_A_CHANNEL  # three channels whose items are lists of up to four


def can_be(kind: Kind, order: Order) -> bool:
    """Return whether a stage may have this kind and this order."""
    return not (kind == "async generator" and order == "input")


@ORDERS
@pytest.mark.parametrize("kind", ["sync", "generator", "lookup"])
@pytest.mark.parametrize("concurrency", [1, 2, 5])
@pytest.mark.parametrize("threads", [1, 3, 6])
def test_as_many_calls_as_the_concurrency(order: Order, kind: Kind, concurrency: int, threads: int) -> None:
    """A stage runs as many calls as its concurrency, or as there are threads if these are fewer, and never more."""
    with gate() as calls:

        def wait(item: int) -> int:
            calls.pass_through()
            return item

        builder = PipelineBuilder().add_source(range(60))
        builder.pipe(of_kind(kind, wait), concurrency=concurrency, output_order=order)
        with builder.add_sink().build(num_threads=threads).auto_stop() as pipeline:
            expected = min(concurrency, threads)
            calls.wait_until(lambda now: now.inside == expected)
            calls.open()
            found = [*pipeline]
    assert calls.peak <= expected
    assert sorted(found) == [*range(60)]
    if order == "input" or concurrency == 1:
        assert found == [*range(60)]


@ORDERS
@pytest.mark.parametrize("kind", ["async", "async generator"])
@pytest.mark.parametrize("source", ["at once", "one by one"])
@pytest.mark.parametrize("options", [{}, {"max_items": 1}, {"max_bytes": 1}])
@pytest.mark.parametrize("statistics", [False, True])
def test_every_allowed_call_starts_before_one_ends(
    order: Order, kind: Kind, source: str, options: dict[str, Any], *, statistics: bool
) -> None:
    """While items wait and fewer calls than allowed are under way, further calls start, however long the first take."""
    if not can_be(kind, order):
        return
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

    builder = PipelineBuilder().add_source(range(250) if source == "at once" else one_by_one())
    builder.pipe(wait if kind == "async" else generate, concurrency=100, output_order=order, **options)
    with builder.add_sink(5).build(num_threads=1, statistics=statistics).auto_stop() as pipeline:
        iterator = pipeline.get_iterator(timeout=PATIENCE_SECONDS)
        assert sorted(iterator) == [*range(250)]
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

    builder = PipelineBuilder().add_source(range(lanes * rounds))
    builder.pipe(wait, concurrency=lanes, output_order=order)
    with builder.add_sink(lanes * rounds).build(num_threads=1).auto_stop() as pipeline:
        assert sorted(pipeline) == [*range(lanes * rounds)]
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

        builder = PipelineBuilder().add_source(range(400)).pipe(wait, concurrency=lanes, output_order=order)
        with builder.add_sink(1).build(num_threads=1).auto_stop() as pipeline:
            assert sorted(pipeline) == [*range(400)]
        counts[lanes] = calls / 400
    assert counts[100] < 2 * counts[2], counts


def test_a_list_needs_no_thread() -> None:
    """The items of a list, which runs no code of the user's, are taken without a thread of the source."""
    before = {*threading.enumerate()}
    started: list[str] = []

    async def note(item: int) -> int:
        started.extend(thread.name for thread in threading.enumerate() if thread not in before)
        return item

    with PipelineBuilder().add_source([*range(10)]).pipe(note).add_sink(5).build(num_threads=1).auto_stop() as pipeline:
        assert [*pipeline] == [*range(10)]
    assert len({*started}) == 1  # the loop's


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

    builder = PipelineBuilder().add_source(range(10)).path_variants(route, [[], [Pipe(str)]])
    builder.pipe(tick)
    with builder.add_sink().build(num_threads=1).auto_stop() as pipeline:
        assert sorted(pipeline, key=int) == [0, "1", 2, "3", 4, "5", 6, "7", 8, "9"]


def test_an_async_router_is_awaited_for_one_item_at_a_time() -> None:
    """An async router gets one item at a time, in order."""
    calls = Gate()
    routed: list[int] = []

    async def route(item: int) -> int:
        with calls:
            await asyncio.sleep(0)
            routed.append(item)
        return item % 3

    builder = PipelineBuilder().add_source(range(60)).path_variants(route, [[], [], []]).add_sink(4)
    with builder.build(num_threads=1).auto_stop() as pipeline:
        assert sorted(pipeline) == [*range(60)]
    assert routed == [*range(60)]
    assert calls.peak == 1


@OF_EACH_KIND
@ORDERS
def test_one_at_a_time(kind: Kind, order: Order) -> None:
    """With concurrency 1, calls run one after the other, in the order of the items, on any number of threads."""
    if not can_be(kind, order):
        return
    calls = Gate()
    called: list[int] = []

    def note(item: int) -> int:
        with calls:
            called.append(item)
        return item

    builder = PipelineBuilder().add_source(range(500)).pipe(of_kind(kind, note), output_order=order)
    with builder.add_sink(4).build(num_threads=4).auto_stop() as pipeline:
        assert [*pipeline] == [*range(500)]
    assert called == [*range(500)]
    assert calls.peak == 1


def test_a_slow_item_delays_only_the_items_after_it() -> None:
    """In completion order others overtake a slow item; in input order they wait for it, and none is lost."""
    for order in ("completion", "input"):
        with gate() as slow:

            def wait_at_zero(item: int, slow: Gate = slow) -> int:
                if item == 0:
                    slow.pass_through()
                return item

            builder = PipelineBuilder().add_source(range(20))
            builder.pipe(wait_at_zero, concurrency=2, output_order=order, max_items=2)
            with builder.add_sink(1).build(num_threads=2).auto_stop() as pipeline:
                slow.wait_until(lambda now: now.inside == 1)
                if order == "completion":
                    assert [pipeline.get_item(timeout=PATIENCE_SECONDS) for _ in range(5)] == [1, 2, 3, 4, 5]
                    slow.open()
                    rest = [pipeline.get_item(timeout=PATIENCE_SECONDS) for _ in range(15)]
                    assert sorted(rest) == [0, *range(6, 20)]
                else:
                    slow.open()
                    assert [*pipeline] == [*range(20)]


@ORDERS
def test_a_slow_item_holds_no_result_back(order: Order) -> None:
    """The results before an item that takes long can be read meanwhile, also those of the same chunk."""
    kinds: tuple[Kind, ...] = ("sync", "generator")
    for kind, lanes, number in itertools.product(kinds, (1, 2, 5), (1, 3, 40, 400)):
        with gate() as slow:

            def wait_at(item: int, slow: Gate = slow, number: int = number) -> int:
                if item == number:
                    slow.pass_through()
                return item

            builder = PipelineBuilder().add_source(itertools.count())
            builder.pipe(of_kind(kind, wait_at), concurrency=lanes, output_order=order)
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

        builder = PipelineBuilder().add_source(range(2)).pipe(values, concurrency=2, output_order="input")
        with builder.add_sink(5).build(num_threads=2).auto_stop() as pipeline:
            for each in (slow, between, end):
                each.wait_until(lambda now: now.inside == 1)
                let_a_call_become_slow()
                if each is not end:
                    each.open()
            first.open()
            assert [pipeline.get_item(timeout=PATIENCE_SECONDS) for _ in "ab"] == ["a", "b"]
            end.open()


@ORDERS
@pytest.mark.parametrize("place", ["threads", "executor"])
def test_all_lanes_share_the_items_behind_a_slow_one(order: Order, place: str) -> None:
    """If items take long after many cheap ones, all lanes work on them, also on the rest of a chunk."""
    with gate() as slow, gate() as later, ThreadPoolExecutor(5) as pool:

        def wait(item: int) -> int:
            if item >= 300:
                (slow if item == 300 else later).pass_through()
            return item

        builder = PipelineBuilder().add_source(range(1_000))
        executor = pool if place == "executor" else None
        builder.pipe(wait, concurrency=5, output_order=order, executor=executor)
        with builder.add_sink(2_000).build(num_threads=5).auto_stop() as pipeline:
            slow.wait_until(lambda now: now.inside == 1)
            let_a_call_become_slow()
            slow.open()
            later.wait_until(lambda now: now.inside == 5)
            later.open()
            assert sorted(pipeline) == [*range(1_000)]


@pytest.mark.parametrize("behind", [1, 150])
@pytest.mark.parametrize("place", ["threads", "executor"])
@ORDERS
def test_the_items_behind_a_stuck_one_go_to_other_lanes(order: Order, place: str, behind: int) -> None:
    """While a call is stuck on an item, all others are computed, also those behind it in its chunk."""
    with gate() as stuck, ThreadPoolExecutor(2) as pool:
        computed: set[int] = set()
        all_others = threading.Event()

        def wait(item: int) -> int:
            if item == 300:
                stuck.pass_through()
            computed.add(item)
            if len(computed) == count - 1:
                all_others.set()
            return item

        count = 301 + behind
        executor = pool if place == "executor" else None
        builder = PipelineBuilder().add_source(range(count))
        builder.pipe(wait, concurrency=2, output_order=order, executor=executor)
        with builder.add_sink(2 * count).build(num_threads=2).auto_stop() as pipeline:
            assert all_others.wait(PATIENCE_SECONDS), sorted({*range(count)} - computed)
            stuck.open()
            assert sorted(pipeline) == [*range(count)]


class Counting:
    """An endless source that counts the items taken from it."""

    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[int]:
        for number in itertools.count():
            self.taken = number + 1
            yield number


class CountingAsync(Counting):
    """An endless async source that counts the items taken from it."""

    async def __aiter__(self) -> AsyncIterator[int]:
        for number in Counting.__iter__(self):
            yield number


SHAPES: dict[str, Callable[[PipelineBuilder], PipelineBuilder]] = {
    "plain": lambda builder: builder,
    "sync": lambda builder: builder.pipe(lambda item: item, concurrency=2, max_items=2),
    "ordered": lambda builder: builder.pipe(lambda item: item, concurrency=3, output_order="input", max_items=2),
    "async": lambda builder: builder.pipe(of_kind("async", lambda item: item), concurrency=3, max_items=2),
    "async ordered": lambda builder: builder.pipe(
        of_kind("async", lambda item: item), concurrency=3, output_order="input", max_items=2
    ),
    "generator": lambda builder: builder.pipe(of_kind("generator", lambda item: item), concurrency=2, max_items=2),
    "flat": lambda builder: builder.aggregate(4).disaggregate(),
    "paths": lambda builder: builder.path_variants(lambda item: item % 2, [[], []]),
}


UNBOUNDED = {"flat", "paths"}  # have stages that take no `max_items`


def run_something_else(count: int = 2000) -> None:
    """Let time pass: run another pipeline over `count` items."""
    other = PipelineBuilder().add_source(range(count)).pipe(abs).add_sink(8).build(num_threads=2)
    with other.auto_stop():
        assert sum(1 for _ in other) == count


def let_a_call_become_slow() -> None:
    """Let more time pass than the chunks of cheap items take."""
    began = time.perf_counter()
    while time.perf_counter() < began + 0.05:
        run_something_else(100)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("source", [Counting, CountingAsync])
def test_an_unread_pipeline_stops_taking_items(shape: str, source: type[Counting]) -> None:
    """A pipeline takes no more items than its channels have room for; while it isn't read, it takes none."""
    counting = source()
    with SHAPES[shape](PipelineBuilder().add_source(counting)).add_sink(2).build(num_threads=3).auto_stop() as pipeline:
        first = pipeline.get_item(timeout=PATIENCE_SECONDS)
        assert isinstance(first, int)
        run_something_else()
        before = counting.taken
        run_something_else()
        assert counting.taken == before
        for number in range(1, 2_000):
            assert counting.taken - number <= (MAX_AHEAD if shape in UNBOUNDED else FEW_AHEAD)
            pipeline.get_item(timeout=PATIENCE_SECONDS)


def test_slow_items_are_not_taken_far_ahead() -> None:
    """Before a slow op only as many items wait as its channel has room for."""
    counting = Counting()
    with gate() as calls:

        def wait(item: int) -> int:
            calls.pass_through()
            return item

        builder = PipelineBuilder().add_source(counting).pipe(wait, concurrency=2, max_items=4)
        with builder.add_sink(1).build(num_threads=2).auto_stop():
            calls.wait_until(lambda now: now.inside == 2)
            run_something_else()
            assert calls.entered == 2
            assert counting.taken <= 2 + 4 + 1
            calls.open()


def test_two_pipelines_of_one_config_share_nothing() -> None:
    """Two pipelines of one config run at the same time, each with its own aggregators and order."""
    config = PipelineBuilder().add_source(range(101)).pipe(abs).aggregate(10).add_sink()
    first, second = config.build(num_threads=1), config.build(num_threads=2)
    found: list[list[Any]] = []

    def read() -> None:
        with second.auto_stop():
            found.append([*second])

    thread = threading.Thread(target=read)
    thread.start()
    with first.auto_stop():
        found.append([*first])
    thread.join(PATIENCE_SECONDS)
    assert found[0] == found[1] == [[*range(start, min(start + 10, 101))] for start in range(0, 101, 10)]


class _NoNbytes:
    """An item whose attributes raise."""

    def __getattr__(self, name: str) -> NoReturn:
        raise KeyError(name)


def _with_itself() -> list[object]:
    items: list[object] = []
    items.append(items)
    return items


def _nested(depth: int) -> list[object]:
    items: list[object] = []
    for _ in range(depth):
        items = [items]
    return items


@pytest.mark.parametrize("item", [_NoNbytes(), {"a": _NoNbytes()}, _with_itself(), _nested(5000)], ids=lambda _: "item")
@pytest.mark.parametrize("options", [{}, {"max_bytes": 1000}])
def test_items_without_a_size_pass(item: object, options: dict[str, Any]) -> None:
    """An item whose size can't be computed passes all channels, as an object of a few bytes."""
    builder = PipelineBuilder().add_source([item] * 200).pipe(lambda item: item, **options)
    with builder.add_sink(3, **options).build(num_threads=1).auto_stop() as pipeline:
        assert sum(each is item for each in pipeline) == 200
