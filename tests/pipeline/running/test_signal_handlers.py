"""An exception of a signal handler during a read is raised by the read once, and the next read continues."""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest

from penstock.pipeline import Pipeline, PipelineBuilder
from tests.pipeline.running.reading import PATIENCE_SECONDS, build, gate
from tests.profiles import IS_LONG

# A handler may be called in a finalizer of Python's own, where Python prints its exception and discards it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

EVERY_SECONDS = 0.00017
NUM_ITEMS = 2000


class InterruptedError_(Exception):  # noqa: N801, N818 - the handler's exception needs no other name
    """The handler's exception."""


class Timer:
    """A timer whose handler raises in the main thread, at any instruction.

    Attributes:
        raised: how often it has raised.
        armed: whether it may raise, once; the code that sets it catches the exception.
    """

    def __init__(self) -> None:
        self.raised = 0
        self.armed = False

    def __call__(self, _: int, __: FrameType | None) -> None:
        """Raise, if the timer is armed."""
        if self.armed:
            self.armed = False
            self.raised += 1
            raise InterruptedError_

    def start(self, first_seconds: float = EVERY_SECONDS) -> None:
        """Call the handler after `first_seconds`, and then periodically."""
        signal.setitimer(signal.ITIMER_REAL, first_seconds, EVERY_SECONDS)


@contextmanager
def interrupting() -> Generator[Timer]:
    """Yield a timer, which is stopped at the end of the block."""
    timer = Timer()
    before = signal.signal(signal.SIGALRM, timer)
    try:
        yield timer
    finally:
        timer.armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def by_for(pipeline: Pipeline[Any], timer: Timer, found: list[Any], passes: int) -> int:
    """Read passes by iterators that are kept; return how often the handler's exception was caught."""
    met = 0
    for _ in range(passes):
        items, ended = iter(pipeline), False
        while not ended:
            try:
                timer.armed = True
                for item in items:
                    found.append(item)  # noqa: PERF402 - keeps the items before an exception
                ended = True
                timer.armed = False
            except InterruptedError_:
                met += 1
        found.append("end")
    return met


def by_get_item(pipeline: Pipeline[Any], timer: Timer, found: list[Any], passes: int) -> int:
    """Read passes by `get_item`; return how often the handler's exception was caught."""
    met, ends = 0, 0
    while ends < passes:
        try:
            timer.armed = True
            item = pipeline.get_item(timeout=PATIENCE_SECONDS)
            timer.armed = False
            found.append(item)
        except EOFError:
            timer.armed = False
            ends += 1
            found.append("end")
        except InterruptedError_:
            met += 1
    return met


Read = Callable[[Pipeline[Any], Timer, list[Any], int], int]


@pytest.mark.parametrize(
    ("read", "sink", "statistics"),
    [
        (by_for, {"buffer_size": 3}, False),
        (by_for, {"buffer_size": 100, "max_bytes": 300}, False),
        (by_for, {"buffer_size": 3}, True),
        (by_get_item, {"buffer_size": 1}, False),
        (by_get_item, {"buffer_size": 1000}, False),
    ],
)
def test_no_item_is_lost(read: Read, sink: dict[str, int], *, statistics: bool) -> None:
    """However often a handler raises while a pass is read, each item is read once, in order, and then the end."""
    builder = PipelineBuilder().add_source(range(NUM_ITEMS)).pipe(abs).add_sink(**sink)
    with builder.build(num_threads=2, statistics=statistics).auto_stop() as pipeline, interrupting() as timer:
        found: list[Any] = []
        timer.start()
        met = read(pipeline, timer, found, 1)
    assert found == [*range(NUM_ITEMS), "end"]
    assert timer.raised == met > 0


@pytest.mark.parametrize(("read", "length"), [(by_for, 0), (by_get_item, 1), (by_for, 3), (by_get_item, 3)])
def test_no_pass_is_lost(read: Read, length: int) -> None:
    """Over many passes of a few items, no end of a pass is lost, and none is read twice."""
    passes = 300
    with build(range(length), continuous=True).auto_stop() as pipeline, interrupting() as timer:
        found: list[Any] = []
        timer.start()
        read(pipeline, timer, found, passes)
    assert found == [*range(length), "end"] * passes


@pytest.mark.parametrize("continuous", [False, True])
def test_a_read_that_waits(*, continuous: bool) -> None:
    """A handler that raises while a read waits ends the read at once, and the next read gets the item."""
    with gate() as calls:

        def wait(item: int) -> int:
            calls.pass_through()
            return item

        with build(range(3), wait, continuous=continuous).auto_stop() as pipeline, interrupting() as timer:
            calls.wait_until(lambda now: now.inside == 1)
            items = iter(pipeline)
            timer.start(0.01)
            for _ in range(3):
                for read in (items.__next__, pipeline.get_item):
                    with pytest.raises(InterruptedError_):  # noqa: PT012 - armed here, so that it is caught
                        timer.armed = True
                        read()
            calls.open()
            assert [*items] == [0, 1, 2]


@pytest.mark.longer
def test_passes_and_stops() -> None:
    """A handler that raises in a start, a read or a stop leaves nothing running, and the next pass works."""
    threads = threading.active_count()
    pipeline = build(range(3))
    with interrupting() as timer:
        for delay in range(1, 300, 3 if IS_LONG else 9):
            pipeline.start()
            assert pipeline.get_item(timeout=PATIENCE_SECONDS) == 0
            timer.start(delay * 0.000007)
            with suppress(InterruptedError_):
                timer.armed = True
                for _ in range(3):
                    for _ in pipeline:
                        pass
                pipeline.stop()
                timer.armed = False
            assert [*pipeline.get_iterator(timeout=PATIENCE_SECONDS)] == [0, 1, 2]
            pipeline.stop()
    assert timer.raised > 0
    assert threading.active_count() == threads
