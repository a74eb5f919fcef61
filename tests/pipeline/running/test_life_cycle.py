"""The life cycle of a pipeline: the effect of each call in each state, on the pipeline and on its items."""

import asyncio
import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import AlreadyRunningError, ClosedError, UsageError
from penstock.pipeline import Pipe, Pipeline, PipelineBuilder, StageEnded
from tests.pipeline.meaning.graphs import KINDS, of_kind
from tests.pipeline.running.reading import PATIENCE_SECONDS, Again, Gate, Pass, build, gate, read_by_for


def in_thread(function: Callable[[], object]) -> threading.Thread:
    """Start a thread."""
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def joined(thread: threading.Thread) -> None:
    """Wait until a thread has ended."""
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


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
    calls = Gate()

    def note(item: int) -> int:
        with calls:
            return item

    pipeline = build(op=note)
    pipeline.start(timeout=PATIENCE_SECONDS)
    calls.wait_until(lambda now: now.entered > 0)
    for kind in (UsageError, RuntimeError, AlreadyRunningError):
        with pytest.raises(kind, match="stop"):
            pipeline.start()
    assert [*pipeline] == [*range(10)]
    pipeline.stop()


Add = Callable[[Any], None]


def by_for(pipeline: Pipeline, add: Add) -> None:
    """Read by a `for`."""
    for item in pipeline:
        add(item)


def by_async_for(pipeline: Pipeline, add: Add) -> None:
    """Read by an `async for`."""

    async def read() -> None:
        async for item in pipeline:
            add(item)

    asyncio.run(read())


def by_get_item(pipeline: Pipeline, add: Add) -> None:
    """Read item by item."""
    while True:
        add(pipeline.get_item())


def stop_with_a_timeout(pipeline: Pipeline) -> None:
    """Stop the pipeline with a timeout that is too short for a function that runs."""
    with pytest.raises(TimeoutError):
        pipeline.stop(timeout=0.01)


def stop_without_waiting(pipeline: Pipeline) -> None:
    """Stop the pipeline, and return at once."""
    pipeline.stop(wait=False)


def read_another_pass(pipeline: Pipeline) -> None:
    """Start another pass."""
    iter(pipeline)


@pytest.mark.parametrize("read", [by_for, by_async_for, by_get_item])
@pytest.mark.parametrize(
    ("end", "message", "continuous"),
    [
        (stop_with_a_timeout, "the pipeline was stopped", False),
        (stop_with_a_timeout, "the pipeline was stopped", True),
        (stop_without_waiting, "the pipeline was stopped", False),
        (stop_without_waiting, "the pipeline was stopped", True),
        (read_another_pass, "this pass has ended for this reader", False),
    ],
)
def test_ended_from_another_thread(
    read: Callable[[Pipeline, Add], None], end: Callable[[Pipeline], None], message: str, *, continuous: bool
) -> None:
    """A read that waits while another thread ends its pass raises ClosedError at once, in each way of reading."""
    with gate() as calls:

        def wait(item: int) -> int:
            if item == 3:
                calls.pass_through()
            return item

        pipeline = build(op=wait, continuous=continuous)
        found: list[Any] = []
        three = threading.Event()
        ended: list[Exception] = []

        def add(item: Any) -> None:
            found.append(item)
            if len(found) == 3:
                three.set()

        def read_all() -> None:
            try:
                read(pipeline, add)
            except (ClosedError, EOFError) as error:
                ended.append(error)

        reader = in_thread(read_all)
        calls.wait_until(lambda now: now.inside == 1)
        assert three.wait(PATIENCE_SECONDS)
        end(pipeline)
        joined(reader)
        assert found == [0, 1, 2]
        assert isinstance(ended[0], ClosedError)
        assert str(ended[0]).startswith(message)
        calls.open()
    assert [*pipeline] == [*range(10)]
    pipeline.stop(timeout=PATIENCE_SECONDS)


def test_stopped_between_two_reads() -> None:
    """After a stop, an iterator in the middle of its pass raises ClosedError; one whose pass was over stays ended."""
    pipeline = build(range(100))
    over = iter(pipeline)
    assert len([*over]) == 100
    still_open = iter(pipeline)
    assert next(still_open) == 0
    pipeline.stop()
    for _ in range(3):
        assert next(over, None) is None
        with pytest.raises(ClosedError, match="the pipeline was stopped"):
            next(still_open)
    assert [*pipeline] == [*range(100)]
    with pytest.raises(ClosedError, match="this pass has ended"):
        next(still_open)
    pipeline.stop()


def test_stopped_when_only_the_end_was_left() -> None:
    """A pass whose items were all read ends without an error, even if a stop comes before its end is read."""
    ended = threading.Event()

    def observe(event: object) -> None:
        if isinstance(event, StageEnded) and event.stage == "sink":
            ended.set()  # after the end was put into the outlet

    builder = PipelineBuilder().add_source(range(3))
    pipeline = builder.add_sink(5).build(num_threads=1, observer=observe)
    items = iter(pipeline)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    assert ended.wait(PATIENCE_SECONDS)
    pipeline.stop()
    assert [*items] == []


def test_stopped_by_its_own_functions() -> None:
    """A pipeline's own function, of any kind, can stop it without waiting, but not wait for its own end."""
    for kind in KINDS:
        refusals: list[str] = []

        stopped: list[Pipeline] = []

        def stop(item: int, stopped: list[Pipeline] = stopped, refusals: list[str] = refusals) -> int:
            try:
                stopped[0].stop()
            except UsageError as error:
                refusals.append(str(error))
            stopped[0].stop(wait=False)
            return item

        pipeline = build(range(100), of_kind(kind, stop))
        stopped.append(pipeline)
        with pytest.raises(ClosedError, match="the pipeline was stopped"):
            for _ in pipeline:
                pass
        assert pipeline.state == "stopped"
        pipeline.stop()
        stopped.clear()
        assert "wait=False" in refusals[0]


def test_started_after_a_stop_that_did_not_wait() -> None:
    """The next start waits for functions of the stopped run, or times out, so no function runs in two runs at once."""
    with gate() as calls:

        def wait(item: int) -> int:
            calls.pass_through()
            return item

        pipeline = build(op=wait)
        pipeline.start()
        calls.wait_until(lambda now: now.inside == 1)
        pipeline.stop(wait=False)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                pipeline.start(timeout=0.01)
            assert pipeline.state == "stopped"
        found: list[Pass] = []
        reader = in_thread(lambda: found.append(read_by_for(pipeline)))
        assert calls.peak == 1
        calls.open()
        joined(reader)
        assert found == [Pass([*range(10)])]
        pipeline.stop()


def state_of(pipeline: Pipeline) -> str:
    """Return the state; a type checker can't narrow it."""
    return pipeline.state


def test_states() -> None:
    """`state` is "new", "running", "done" and "stopped" in turn."""
    ended = threading.Event()

    def observe(event: object) -> None:
        if isinstance(event, StageEnded) and event.stage == "sink":
            ended.set()

    def wait_for_end() -> None:
        assert ended.wait(PATIENCE_SECONDS)
        while state_of(pipeline) == "running":  # for a moment, since the run calls the observer just before it ends
            pass
        ended.clear()

    broken = [False]
    builder = PipelineBuilder().add_source(range(5)).pipe(lambda item: item // (not broken[0]))
    pipeline = builder.add_sink(3).build(num_threads=1, observer=observe)
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


def test_stopped_by_several_threads_at_once() -> None:
    """Several threads may stop the pipeline at the same time; each call returns when the pipeline has ended."""
    for _ in range(20):
        pipeline = build(itertools.count())
        pipeline.get_item(timeout=PATIENCE_SECONDS)
        barrier = threading.Barrier(4)
        returned: list[bool] = []

        def stop(pipeline: Pipeline = pipeline, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(PATIENCE_SECONDS)
            pipeline.stop(timeout=PATIENCE_SECONDS)
            returned.append(True)  # noqa: B023 - joined below, in the same iteration

        threads = [in_thread(stop) for _ in range(4)]
        for thread in threads:
            joined(thread)
        assert returned == [True] * 4


@pytest.mark.parametrize("where", ["source", "op"])
def test_a_stuck_function_and_a_timeout(where: str) -> None:
    """`stop` with a timeout doesn't wait for a stuck function; once that returns, the pipeline can stop and restart."""
    with gate() as calls:

        def wait(item: int) -> int:
            calls.pass_through()
            return item

        pipeline = build(Again(lambda: map(wait, range(3)))) if where == "source" else build(range(3), wait)
        pipeline.start()
        calls.wait_until(lambda now: now.inside == 1)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                pipeline.stop(timeout=0.01)
        calls.open()
        pipeline.stop(timeout=PATIENCE_SECONDS)
        assert [*pipeline] == [0, 1, 2]
        pipeline.stop()


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


# Garbage collection.


class Held:
    """An op whose garbage collection can be observed."""

    def __call__(self, item: int) -> int:
        """Return the item."""
        return item


@pytest.mark.parametrize("state", ["built", "started", "read", "ended", "iterator"])
def test_collected(state: str) -> None:
    """A pipeline without references stops by itself, and releases its source and ops."""
    held = Held()
    watched = weakref.ref(held)
    pipeline = build(itertools.count() if state != "ended" else range(5), held)
    del held
    items: Iterator[Any] | None = None
    if state == "started":
        pipeline.start()
    elif state == "read":
        pipeline.get_item(timeout=PATIENCE_SECONDS)
    elif state == "ended":
        assert len([*pipeline]) == 5
    elif state == "iterator":
        items = iter(pipeline)
        next(items)
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    threads = {thread for thread in others if thread.ident is not None}  # those that have started
    del pipeline
    if items is not None:
        assert next(items) == 1  # an iterator keeps its pipeline alive
        del items
    gc.collect()
    for thread in threads:
        if "penstock" in thread.name:
            joined(thread)
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_that_was_left_early_keeps_no_items(kind: Any) -> None:
    """Once the pipeline has stopped, the items that no reader took are gone, without Python's collector."""
    made: list[weakref.ref[Held]] = []

    def same(item: Held) -> Held:
        return item

    def items() -> Iterator[Held]:
        while True:
            held = Held()
            made.append(weakref.ref(held))
            yield held

    builder = PipelineBuilder().add_source(Again(items)).pipe(of_kind(kind, same), concurrency=2)
    builder.aggregate(2).disaggregate().path_variants(lambda item: id(item) % 2, [[Pipe(same)], [Pipe(same)]])
    builder.pipe(of_kind("async", same), concurrency=2, output_order="input")
    gc.disable()
    try:
        with builder.add_sink(2).build(num_threads=2).auto_stop() as pipeline:
            next(iter(pipeline))
        assert sum(each() is not None for each in made) == 0
    finally:
        gc.enable()


# All calls in any order.

# More items than an unread pipeline takes, so it is "running" until its end is read.
SOURCE: list[int] = [*range(60)]
ACTIONS = st.lists(
    st.sampled_from(["start", "stop", "stop at once", "get", "get", "get all", "pass", "leave"]), max_size=25
)


class Model:
    """A model of a pipeline: the position of the next item in the source."""

    def __init__(self, *, continuous: bool) -> None:
        self._continuous = continuous
        self.position: int | None = None  # None: the pipeline doesn't run
        self.is_stopped = False

    def start(self) -> bool:
        """Start a pass if none runs; return whether that was allowed."""
        if self.position is not None:
            return False
        self.position = 0
        self.is_stopped = False
        return True

    def stop(self) -> None:
        """Stop."""
        self.position = None
        self.is_stopped = True

    def get(self) -> int | None:
        """Return the next item, or None at the end of a pass, after which a continuous source starts the next one."""
        position: int = self.position or 0
        if position == len(SOURCE):
            self.position = 0 if self._continuous else position
            return None
        self.position = position + 1
        return SOURCE[position]

    def read(self, count: int) -> list[int]:
        """Return at most `count` items of the pass that a new `for` reads; if there are fewer, its end was read."""
        self.is_stopped = False
        position: int = self.position or 0
        begin = position if self._continuous and position < len(SOURCE) else 0
        items = SOURCE[begin : begin + count]
        self.position = begin + len(items)
        if len(items) < count:
            self.get()
        return items


@given(actions=ACTIONS, continuous=st.booleans(), threads=st.integers(1, 2))
def test_a_pipeline_equals_its_model(actions: list[str], threads: int, *, continuous: bool) -> None:
    """Started, stopped and read in any order, a pipeline returns the items of the model."""
    builder = PipelineBuilder().add_source(SOURCE, continuous=continuous)
    builder.pipe(abs, concurrency=2, output_order="input", max_items=2)
    pipeline = builder.add_sink(2).build(num_threads=threads)
    model = Model(continuous=continuous)
    for action in actions:
        act(pipeline, model, action)
        assert (pipeline.state == "stopped") == model.is_stopped
    pipeline.stop()


def act(pipeline: Pipeline, model: Model, action: str) -> None:
    """Call the same method of the pipeline and the model."""
    match action:
        case "start":
            _start(pipeline, model)
        case "stop" | "stop at once":
            pipeline.stop(wait=action == "stop")
            model.stop()
        case "pass":
            assert [*pipeline] == model.read(len(SOURCE) + 1)
        case "leave":
            assert [*itertools.islice(pipeline, 7)] == model.read(7)
        case "get":
            _get(pipeline, model)
        case _:
            while _get(pipeline, model):
                pass


def _start(pipeline: Pipeline, model: Model) -> None:
    if model.position == len(SOURCE):  # the pipeline may be "running" or "done"
        return
    if model.start():
        pipeline.start()
    else:
        with pytest.raises(UsageError):
            pipeline.start()


def _get(pipeline: Pipeline, model: Model) -> bool:
    if model.is_stopped:
        with pytest.raises(ClosedError):
            pipeline.get_item(timeout=PATIENCE_SECONDS)
        return False
    expected = model.get()
    if expected is not None:
        assert pipeline.get_item(timeout=PATIENCE_SECONDS) == expected
        return True
    with pytest.raises(EOFError):
        pipeline.get_item(timeout=PATIENCE_SECONDS)
    return False
