"""The life cycle of a pipeline: the effect of each call in each state, on the pipeline and on its items."""

import asyncio
import gc
import itertools
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import AlreadyRunningError, ClosedError, UsageError
from penstock.pipeline import Pipe, Pipeline, ThreadExecutor
from tests.pipeline.meaning.graphs import KINDS, of_kind
from tests.pipeline.running.reading import (
    PATIENCE_SECONDS,
    READINGS,
    Again,
    EndOfRun,
    Gate,
    Pass,
    build,
    gate,
    over,
    read_by_for,
    read_by_get_item,
    waiting,
)
from tests.profiles import in_short


def in_thread(function: Callable[[], object]) -> threading.Thread:
    """Start a thread."""
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def joined(thread: threading.Thread) -> None:
    """Wait until a thread has ended."""
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def state_of(pipeline: Pipeline) -> str:
    """Return the state; a type checker can't narrow it."""
    return pipeline.state


# Starting and stopping.


def test_building_starts_nothing() -> None:
    """A pipeline that was only built has no thread and has taken no item."""
    before = threading.active_count()
    taken: list[int] = []
    pipeline = build(map(taken.append, range(3)))
    assert (threading.active_count(), taken) == (before, [])
    pipeline.stop()
    pipeline.stop(timeout=1)
    assert (threading.active_count(), taken) == (before, [])


def test_started_by_hand() -> None:
    """`start` starts the pipeline, which computes items before the first read; a second start is refused."""
    taken = threading.Event()

    def take(item: int) -> int:
        taken.set()
        return item

    pipeline = build(op=take)
    pipeline.start(timeout=PATIENCE_SECONDS)
    assert taken.wait(PATIENCE_SECONDS)
    for kind in (UsageError, RuntimeError, AlreadyRunningError):
        with pytest.raises(kind, match="stop"):
            pipeline.start()
    assert [*pipeline] == [*range(10)]
    pipeline.stop()


def test_states() -> None:
    """`state` is "new", "running", "done" and "stopped" in turn."""
    end, broken = EndOfRun(), [False]

    def wait_for_end() -> None:
        end.wait()
        while state_of(pipeline) == "running":  # for a moment, since the run calls the observer just before it ends
            pass

    builder = over(range(5)).pipe(lambda item: item // (not broken[0]))
    pipeline = builder.add_sink(3).build(num_threads=1, observer=end)
    assert state_of(pipeline) == "new"
    assert "new" in repr(pipeline)
    pipeline.start()
    assert state_of(pipeline) == "running"
    assert [pipeline.get_item() for _ in range(5)] == [*range(5)]
    wait_for_end()
    assert state_of(pipeline) == "done"
    assert "done" in repr(pipeline)
    with pytest.raises(EOFError):
        pipeline.get_item()
    assert state_of(pipeline) == "done"
    broken[0] = True
    pipeline.start()
    wait_for_end()
    assert state_of(pipeline) == "done"
    assert pipeline.failure is not None
    for _ in range(2):
        pipeline.stop()
        assert state_of(pipeline) == "stopped"


def test_auto_stop() -> None:
    """`auto_stop` starts the pipeline and stops it, whether the block ends, raises, or is left during a read."""
    before = threading.active_count()
    pipeline = build(range(100))
    with pipeline.auto_stop() as given:
        assert given is pipeline
        assert threading.active_count() > before
        assert [*pipeline] == [*range(100)]
    assert threading.active_count() == before
    with pytest.raises(KeyError), pipeline.auto_stop(timeout=PATIENCE_SECONDS):  # noqa: PT012 - raised inside the block
        for item in pipeline:
            if item == 7:
                raise KeyError(item)
    assert threading.active_count() == before
    with pipeline.auto_stop():
        assert [*pipeline] == [*range(100)]


def _stop_with_a_timeout(pipeline: Pipeline) -> None:
    with pytest.raises(TimeoutError):
        pipeline.stop(timeout=0.01)


ENDS: list[tuple[Callable[[Pipeline], object], str, bool]] = [
    (_stop_with_a_timeout, "the pipeline was stopped", False),
    (lambda pipeline: pipeline.stop(wait=False), "the pipeline was stopped", True),
    (iter, "this pass has ended for this reader", False),
]


@pytest.mark.parametrize(
    ("read", "end", "message", "continuous"),
    # Between two calls of `get_item` a reader belongs to no pass, so that a new one may come without an error.
    [(read, *each) for read in READINGS for each in ENDS if (read, each[0]) != (read_by_get_item, iter)],
)
def test_ended_from_another_thread(
    read: Callable[[Pipeline], Pass], end: Callable[[Pipeline], object], message: str, *, continuous: bool
) -> None:
    """A read that waits while another thread ends its pass raises ClosedError at once, in each way of reading."""
    with gate() as calls:
        pipeline = build(op=waiting(calls, at=3), continuous=continuous)
        ended: list[str] = []

        def read_all() -> None:
            with pytest.raises(ClosedError) as raised:
                read(pipeline)
            ended.append(str(raised.value))

        reader = in_thread(read_all)
        calls.wait_until(lambda now: now.inside == 1)
        end(pipeline)
        joined(reader)
        assert ended[0].startswith(message)
        calls.open()
    assert [*pipeline] == [*range(10)]
    pipeline.stop(timeout=PATIENCE_SECONDS)


def test_stopped_between_two_reads() -> None:
    """After a stop, an iterator in the middle of its pass raises ClosedError; one whose pass was over stays ended."""
    pipeline = build(range(100))
    ended = iter(pipeline)
    assert len([*ended]) == 100
    still_open = iter(pipeline)
    assert next(still_open) == 0
    pipeline.stop()
    for _ in range(3):
        assert next(ended, None) is None
        with pytest.raises(ClosedError, match="the pipeline was stopped"):
            next(still_open)
    assert [*pipeline] == [*range(100)]
    with pytest.raises(ClosedError, match="this pass has ended"):
        next(still_open)
    pipeline.stop()


def test_stopped_when_only_the_end_was_left() -> None:
    """A pass whose items were all read ends without an error, even if a stop comes before its end is read."""
    end = EndOfRun()
    pipeline = over(range(3)).add_sink(5).build(num_threads=1, observer=end)
    items = iter(pipeline)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    end.wait()
    pipeline.stop()
    assert [*items] == []


@pytest.mark.parametrize("kind", [*KINDS, "on threads of an executor"])
def test_stopped_by_its_own_functions(kind: Any) -> None:
    """A pipeline's own function, of any kind, can stop it without waiting, but not wait for its own end."""
    refusals: list[str] = []
    stopped: list[Pipeline] = []

    def stop(item: int) -> int:
        try:
            stopped[0].stop()
        except UsageError as error:
            refusals.append(str(error))
        stopped[0].stop(wait=False)
        return item

    on_threads: dict[str, Any] = {"executor": ThreadExecutor(1)}
    pipeline = build(range(100), of_kind(kind, stop)) if kind in KINDS else build(range(100), stop, **on_threads)
    stopped.append(pipeline)
    with pytest.raises(ClosedError, match="the pipeline was stopped"):
        list(pipeline.get_iterator(timeout=PATIENCE_SECONDS))
    assert pipeline.state == "stopped"
    pipeline.stop()
    stopped.clear()
    assert "wait=False" in refusals[0]


@pytest.mark.parametrize("where", ["source", "op"])
def test_a_stuck_function(where: str) -> None:
    """`stop` and `start` with a timeout don't wait for a stuck function; no function runs in two runs at once."""
    with gate() as calls:
        wait = waiting(calls)
        pipeline = build(Again(lambda: map(wait, range(3)))) if where == "source" else build(range(3), wait)
        pipeline.start()
        calls.wait_until(lambda now: now.inside == 1)
        pipeline.stop(wait=False)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                pipeline.stop(timeout=0.01)
            with pytest.raises(TimeoutError):
                pipeline.start(timeout=0.01)
            assert pipeline.state == "stopped"
        found: list[Pass] = []
        reader = in_thread(lambda: found.append(read_by_for(pipeline)))
        assert calls.peak == 1
        calls.open()
        joined(reader)
        assert found == [Pass([0, 1, 2])]
        pipeline.stop()


@pytest.mark.parametrize("order", ["input", "completion"])
def test_calls_that_wait_for_a_thread_at_a_stop(order: Any) -> None:
    """Calls that wait for a thread when the pipeline is stopped begin no item; a stop waits for those that run."""
    with gate() as calls:
        stopped = threading.Event()

        def numbers() -> Iterator[int]:
            try:
                yield from itertools.count()
            finally:
                stopped.set()

        builder = over(Again(numbers)).pipe(waiting(calls), concurrency=8, output_order=order)
        pipeline = builder.add_sink().build(num_threads=1)
        pipeline.start()
        calls.wait_until(lambda now: now.inside == 1)
        pipeline.stop(wait=False)
        assert stopped.wait(PATIENCE_SECONDS)
        calls.open()
        pipeline.stop(timeout=PATIENCE_SECONDS)
        assert calls.entered == 1


def test_stopped_by_several_threads_at_once() -> None:
    """Several threads may stop the pipeline at the same time; each call returns when the pipeline has ended."""
    barrier = threading.Barrier(4)
    for _ in range(5):
        pipeline = build(itertools.count())
        pipeline.get_item(timeout=PATIENCE_SECONDS)
        returned: list[bool] = []

        def stop(pipeline: Pipeline = pipeline, returned: list[bool] = returned) -> None:
            barrier.wait(PATIENCE_SECONDS)
            pipeline.stop(timeout=PATIENCE_SECONDS)
            returned.append(True)

        for thread in [in_thread(stop) for _ in range(4)]:
            joined(thread)
        assert returned == [True] * 4


# Garbage collection.


class _Held:
    """An op that waits at an item, and whose garbage collection can be observed."""

    def __init__(self, stuck: Gate | None = None) -> None:
        self._stuck = stuck

    def __call__(self, item: int) -> int:
        return item if self._stuck is None else waiting(self._stuck, at=1)(item)


@pytest.mark.parametrize("state", ["built", "started", "read", "ended", "iterator", "stuck"])
def test_collected(state: str) -> None:
    """A pipeline without references stops by itself, and releases its source and ops."""
    with gate() as stuck:
        held = _Held(stuck if state == "stuck" else None)
        watched = weakref.ref(held)
        pipeline = build(itertools.count() if state != "ended" else range(5), held)
        del held
        items: Iterator[Any] | None = None
        if state == "started":
            pipeline.start()
        elif state in {"read", "stuck"}:
            pipeline.get_item(timeout=PATIENCE_SECONDS)
        elif state == "ended":
            assert len([*pipeline]) == 5
        elif state == "iterator":
            items = iter(pipeline)
            next(items)
        threads = [each for each in threading.enumerate() if each.ident is not None and "penstock" in each.name]
        if state == "stuck":
            stuck.wait_until(lambda now: now.inside == 1)
        del pipeline
        if items is not None:
            assert next(items) == 1  # an iterator keeps its pipeline alive
            del items
        gc.collect()
    for thread in threads:
        joined(thread)
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_that_was_left_early_keeps_no_items(kind: Any) -> None:
    """Once the pipeline has stopped, the items that no reader took are gone, without Python's collector."""
    made: list[weakref.ref[_Held]] = []

    def same(item: _Held) -> _Held:
        return item

    def items() -> Iterator[_Held]:
        while True:
            held = _Held()
            made.append(weakref.ref(held))
            yield held

    builder = over(Again(items)).pipe(of_kind(kind, same), concurrency=2).aggregate(2).disaggregate()
    builder.path_variants(lambda item: id(item) % 2, [[Pipe(same)], [Pipe(same)]])
    builder.pipe(of_kind("async", same), concurrency=2, output_order="input")
    gc.disable()
    try:
        with builder.add_sink(2).build(num_threads=2).auto_stop() as pipeline:
            next(iter(pipeline))
        assert sum(each() is not None for each in made) == 0
    finally:
        gc.enable()


class _Waiting:
    """An async source, and an op, which waits after each item.

    Args:
        fails: whether the source waits, too, and each wait raises an exception of its own if it is cancelled.
    """

    def __init__(self, *, fails: bool) -> None:
        self.made: list[weakref.ref[_Held]] = []
        self._fails = fails

    async def __aiter__(self) -> AsyncIterator[_Held]:
        while True:
            held = _Held()
            self.made.append(weakref.ref(held))
            yield held
            if self._fails:
                await self._wait()

    async def thrice(self, item: _Held) -> AsyncIterator[_Held]:
        for _ in range(3):
            yield item
            await self._wait()

    async def _wait(self) -> None:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError as error:
            if self._fails:
                raise ConnectionError from error
            raise


@pytest.mark.parametrize("fails", [False, True])
def test_async_generators_that_were_left_early_keep_no_items(*, fails: bool) -> None:
    """Generators that wait after an item when the pipeline stops keep no item either, and lanes that hadn't begun."""
    source = _Waiting(fails=fails)
    gc.disable()
    try:
        for _ in range(5):  # lanes are often about to begin at the stop, but not each time
            with over(source).pipe(source.thrice, concurrency=8).add_sink(8).build(num_threads=1).auto_stop() as held:
                next(iter(held))
        assert sum(each() is not None for each in source.made) == 0
    finally:
        gc.enable()


def test_a_read_that_ran_out_of_time_keeps_nothing() -> None:
    """A pipeline whose read raised TimeoutError stops when it is dropped, without Python's collector."""
    with gate() as stuck:
        pipeline = build(range(3), waiting(stuck, at=0))
        pipeline.start(timeout=PATIENCE_SECONDS)
        gc.disable()
        try:
            with pytest.raises(TimeoutError):
                pipeline.get_item(timeout=0)
            dropped = weakref.ref(pipeline)
            del pipeline
            assert dropped() is None
        finally:
            gc.enable()


# All calls in any order.

# More items than an unread pipeline takes, so it is "running" until its end is read.
SOURCE: list[int] = [*range(60)]
ACTIONS = st.lists(
    st.sampled_from(["start", "stop", "stop at once", "get", "get", "get all", "pass", "leave"]), max_size=25
)


class _Both:
    """A pipeline and its model, the position of the next item in the source, on which the same methods are called."""

    def __init__(self, pipeline: Pipeline, *, continuous: bool) -> None:
        self._pipeline = pipeline
        self._continuous = continuous
        self._position: int | None = None  # None: the pipeline doesn't run
        self.is_stopped = False

    def start(self) -> None:
        if self._position == len(SOURCE):  # the pipeline may be "running" or "done"
            return
        if self._position is not None:
            with pytest.raises(UsageError):
                self._pipeline.start()
            return
        self._pipeline.start()
        self._position, self.is_stopped = 0, False

    def stop(self, *, wait: bool) -> None:
        self._pipeline.stop(wait=wait)
        self._position, self.is_stopped = None, True

    def get(self) -> bool:
        """Get an item, and return whether there was one; after its end a continuous source starts the next pass."""
        position: int = self._position or 0
        if self.is_stopped or position == len(SOURCE):
            with pytest.raises(ClosedError if self.is_stopped else EOFError):
                self._pipeline.get_item(timeout=PATIENCE_SECONDS)
            self._position = 0 if self._continuous and not self.is_stopped else self._position
            return False
        assert self._pipeline.get_item(timeout=PATIENCE_SECONDS) == SOURCE[position]
        self._position = position + 1
        return True

    def read(self, count: int) -> None:
        """Read at most `count` items by a new `for`; if there are fewer, the end of their pass was read, too."""
        position: int = self._position or 0
        begin = position if self._continuous and position < len(SOURCE) else 0
        expected = SOURCE[begin : begin + count]
        assert [*itertools.islice(self._pipeline, count)] == expected
        self.is_stopped = False
        self._position = 0 if self._continuous and len(expected) < count else begin + len(expected)


@in_short(10)
@given(actions=ACTIONS, continuous=st.booleans(), threads=st.integers(1, 2))
def test_a_pipeline_equals_its_model(actions: list[str], threads: int, *, continuous: bool) -> None:
    """Started, stopped and read in any order, a pipeline returns the items of the model."""
    builder = over(SOURCE, continuous=continuous).pipe(abs, concurrency=2, output_order="input", max_items=2)
    pipeline = builder.add_sink(2).build(num_threads=threads)
    both = _Both(pipeline, continuous=continuous)
    for action in actions:
        match action:
            case "start":
                both.start()
            case "stop" | "stop at once":
                both.stop(wait=action == "stop")
            case "pass" | "leave":
                both.read(len(SOURCE) + 1 if action == "pass" else 7)
            case "get":
                both.get()
            case _:
                while both.get():
                    pass
        assert (pipeline.state == "stopped") == both.is_stopped
    pipeline.stop()
