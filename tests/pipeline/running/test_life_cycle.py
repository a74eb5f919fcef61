"""From start to stop and again: what each call does in each state, and what becomes of items meanwhile."""

import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError, UsageError
from penstock.pipeline import Pipeline, PipelineBuilder
from tests.pipeline.running.reading import PATIENCE_SECONDS, READINGS, Again, Gate, Pass, build, gate, read_by_for

ON_EACH_READ = pytest.mark.parametrize("read", READINGS)


def in_thread(function: Callable[[], object]) -> threading.Thread:
    """Start a thread."""
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def joined(thread: threading.Thread) -> None:
    """Wait for a thread's end."""
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


# Starting and stopping.


def test_nothing_starts_before_it_is_asked_to() -> None:
    """A pipeline that was only built has no thread and has taken nothing."""
    before = threading.active_count()
    taken: list[int] = []
    pipeline = build(map(taken.append, range(3)))
    assert (threading.active_count(), taken) == (before, [])
    pipeline.stop()
    pipeline.stop(timeout=1)
    assert (threading.active_count(), taken) == (before, [])


def test_started_by_hand() -> None:
    """`start` starts it, so that items are made before the first is asked for; a second start is refused."""
    calls = Gate()

    def note(item: int) -> int:
        with calls:
            return item

    pipeline = build(op=note)
    pipeline.start(timeout=PATIENCE_SECONDS)
    calls.wait_until(lambda now: now.entered > 0)
    with pytest.raises(UsageError, match="stop"):
        pipeline.start()
    assert [*pipeline] == [*range(10)]
    pipeline.stop()


@ON_EACH_READ
@pytest.mark.parametrize("passes", [0, 1, 3])
def test_restarted_after_stop(read: Callable[[Pipeline], Pass], passes: int) -> None:
    """After `stop` it can be started again, by hand or by reading, and begins from the beginning."""
    pipeline = build()
    for by_hand in (False, True, True):
        if by_hand:
            pipeline.start()
        for _ in range(passes):
            assert read(pipeline) == Pass([*range(10)])
        pipeline.stop()
    assert read(pipeline) == Pass([*range(10)])
    pipeline.stop()


def test_stopped_in_the_midst_of_a_pass() -> None:
    """What was on its way when it was stopped is dropped, and a new pass has everything again."""
    pipeline = build(range(1000))
    for count in (0, 1, 5, 999):
        iterator = iter(pipeline)
        assert [next(iterator) for _ in range(count)] == [*range(count)]
        pipeline.stop()
    assert [*pipeline] == [*range(1000)]
    pipeline.stop()


def test_restarted_after_a_failure() -> None:
    """After a failure that was read, the next pass begins from the beginning, and may go well."""
    broken = [True]

    def divide(item: int) -> float:
        return 1 / (0 if item == 5 and broken[0] else 1)

    pipeline = build(op=divide)
    found = read_by_for(pipeline)
    assert found.items == [1.0] * 5
    assert found.failure is not None
    broken.clear()
    broken.append(False)
    assert read_by_for(pipeline) == Pass([1.0] * 10)
    pipeline.stop()


@pytest.mark.parametrize("state", ["never started", "started", "read", "ended", "failed"])
def test_stopped_in_each_state(state: str) -> None:
    """`stop` may be called in every state, twice, and leaves no thread."""
    before = threading.active_count()

    def divide(item: int) -> float:
        return 1 / (5 - item if state == "failed" else 1)

    pipeline = build(op=divide)
    if state == "started":
        pipeline.start()
    elif state == "read":
        pipeline.get_item(timeout=PATIENCE_SECONDS)
    elif state != "never started":
        read_by_for(pipeline)
    pipeline.stop()
    pipeline.stop()
    assert threading.active_count() == before


def test_stopped_from_another_thread() -> None:
    """A read that waits while somebody stops the pipeline comes back, without an item that doesn't exist."""
    with gate() as calls:

        def wait(item: int) -> int:
            if item == 3:
                calls.pass_through()
            return item

        pipeline = build(op=wait)
        items = iter(pipeline)
        assert [next(items) for _ in range(3)] == [0, 1, 2]

        def stop() -> None:
            calls.wait_until(lambda now: now.inside == 1)
            with pytest.raises(TimeoutError):  # the op can't be ended, only waited for
                pipeline.stop(timeout=0.01)
            calls.open()
            pipeline.stop(timeout=PATIENCE_SECONDS)

        thread = in_thread(stop)
        with pytest.raises((PenstockError, EOFError, StopIteration)):
            next(items)
        joined(thread)
    assert [*pipeline] == [*range(10)]
    pipeline.stop()


def test_stopped_by_many_at_once() -> None:
    """Several threads may stop it at the same time; each returns when it has ended."""
    for _ in range(20):
        pipeline = build(itertools.count())
        pipeline.get_item(timeout=PATIENCE_SECONDS)
        barrier = threading.Barrier(4)
        returned: list[bool] = []

        def stop(pipeline: Pipeline = pipeline, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(PATIENCE_SECONDS)
            pipeline.stop(timeout=PATIENCE_SECONDS)
            returned.append(True)  # noqa: B023 - joined below, in the same turn

        threads = [in_thread(stop) for _ in range(4)]
        for thread in threads:
            joined(thread)
        assert returned == [True] * 4


def test_a_stuck_op_and_a_time_out() -> None:
    """`stop` with a time-out gives up on a function that doesn't return; later it can be stopped and run again."""
    with gate() as calls:

        def wait(item: int) -> int:
            calls.pass_through()
            return item

        pipeline = build(op=wait)
        pipeline.start()
        calls.wait_until(lambda now: now.inside == 1)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                pipeline.stop(timeout=0.01)
        calls.open()
        pipeline.stop(timeout=PATIENCE_SECONDS)
        assert [*pipeline] == [*range(10)]
        pipeline.stop()


def test_a_blocked_source_and_a_time_out() -> None:
    """So it is with a source that gives nothing and doesn't return."""
    with gate() as calls:

        def numbers() -> Iterator[int]:
            yield 1
            calls.pass_through()
            yield 2

        pipeline = build(Again(numbers))
        assert pipeline.get_item(timeout=PATIENCE_SECONDS) == 1
        calls.wait_until(lambda now: now.inside == 1)
        with pytest.raises(TimeoutError):
            pipeline.stop(timeout=0.01)
        calls.open()
        pipeline.stop(timeout=PATIENCE_SECONDS)
        assert [*pipeline] == [1, 2]
        pipeline.stop()


def test_auto_stop() -> None:
    """`auto_stop` starts it, gives it, and stops it in the end, whether left by its end, an exception or in a read."""
    before = threading.active_count()
    pipeline = build(range(100))
    with pipeline.auto_stop() as given:
        assert given is pipeline
        assert threading.active_count() > before
        assert [*pipeline] == [*range(100)]
    assert threading.active_count() == before
    with pytest.raises(KeyError), pipeline.auto_stop(timeout=PATIENCE_SECONDS):  # noqa: PT012 - raised in the midst
        for item in pipeline:
            if item == 7:
                raise KeyError(item)
    assert threading.active_count() == before
    with pipeline.auto_stop():
        assert [*pipeline] == [*range(100)]


# Being collected.


class Held:
    """Something that a pipeline holds, and whose end can be watched."""

    def __call__(self, item: int) -> int:
        """Do nothing."""
        return item


@pytest.mark.parametrize("state", ["built", "started", "read", "ended", "iterator"])
def test_collected(state: str) -> None:
    """A pipeline that nobody holds any more stops by itself, and lets go of its source and ops."""
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
        assert next(items) == 1  # an iterator holds its pipeline
        del items
    gc.collect()
    for thread in threads:
        if "penstock" in thread.name:
            joined(thread)
    gc.collect()
    assert watched() is None


def test_a_thousand_starts() -> None:
    """Starting and stopping again and again grows nothing."""
    pipeline = build(range(3))
    for _ in range(50):
        assert [*pipeline] == [0, 1, 2]
        pipeline.stop()


# All of it in any order.

SOURCE: list[int] = [
    *range(60)
]  # more than a pipeline that isn't read takes: it runs until somebody reads it to the end
ACTIONS = st.lists(st.sampled_from(["start", "stop", "get", "get", "get all", "pass", "leave"]), max_size=25)


class Model:
    """Where the next item comes from, in plain words."""

    def __init__(self, *, continuous: bool) -> None:
        self._continuous = continuous
        self.position: int | None = None  # None: it doesn't run

    def start(self) -> bool:
        """Begin if it doesn't run; return whether that was allowed."""
        if self.position is not None:
            return False
        self.position = 0
        return True

    def get(self) -> int | None:
        """Return the next item, or None at the end of a pass, which continuous sources leave by that."""
        position: int = self.position or 0
        if position == len(SOURCE):
            self.position = 0 if self._continuous else position
            return None
        self.position = position + 1
        return SOURCE[position]

    def read_pass(self, count: int) -> None:
        """Read so many items of a new pass, or all and its end."""
        self.position = count
        if count == len(SOURCE):
            self.get()


@given(actions=ACTIONS, continuous=st.booleans(), threads=st.integers(1, 2))
def test_as_the_model(actions: list[str], threads: int, *, continuous: bool) -> None:
    """In whatever order it is started, stopped and read, items come as a position in the source says."""
    builder = PipelineBuilder().add_source(SOURCE, continuous=continuous)
    builder.pipe(abs, concurrency=2, output_order="input", max_items=2)
    pipeline = builder.add_sink(2).build(num_threads=threads)
    model = Model(continuous=continuous)
    for action in actions:
        act(pipeline, model, action)
    pipeline.stop()


def act(pipeline: Pipeline, model: Model, action: str) -> None:
    """Do one thing to both."""
    match action:
        case "start":
            _start(pipeline, model)
        case "stop":
            pipeline.stop()
            model.position = None
        case "pass":
            assert [*pipeline] == SOURCE
            model.read_pass(len(SOURCE))
        case "leave":
            assert next(iter(pipeline)) == 0
            model.read_pass(1)
        case "get":
            _get(pipeline, model)
        case _:
            while _get(pipeline, model):
                pass


def _start(pipeline: Pipeline, model: Model) -> None:
    if model.position == len(SOURCE):  # nobody can tell whether it still runs
        return
    if model.start():
        pipeline.start()
    else:
        with pytest.raises(UsageError):
            pipeline.start()


def _get(pipeline: Pipeline, model: Model) -> bool:
    expected = model.get()
    if expected is not None:
        assert pipeline.get_item(timeout=PATIENCE_SECONDS) == expected
        return True
    with pytest.raises(EOFError):
        pipeline.get_item(timeout=PATIENCE_SECONDS)
    return False
