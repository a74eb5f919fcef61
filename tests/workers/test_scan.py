"""A scan calls its function for all ranges, on threads; the results are held by the tests of indexed filters."""

import contextlib
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._dataset._filter_index import Task, scan


@given(total=st.integers(1, 2_000), num_threads=st.integers(1, 4), data=st.data())
def test_an_error_is_raised_in_order(total: int, num_threads: int, data: st.DataObject) -> None:
    """All results before the failing range are delivered first; then the error is raised."""
    failing = data.draw(st.integers(0, total - 1))
    last = 0

    def follow() -> None:
        nonlocal last
        for start, stop, _ in scan(total, lambda: task, num_threads):
            assert start == last
            last = stop

    def task(start: int, stop: int) -> None:
        if start <= failing < stop:
            raise LookupError(start)

    with pytest.raises(LookupError) as raised:
        follow()
    assert raised.value.args == (last,)
    assert last <= failing


def test_each_thread_has_a_task_of_its_own() -> None:
    """`make_task` is called in the thread whose ranges its task computes; its error arrives too."""
    makers: list[tuple[str, str]] = []

    def make_task() -> Task[None]:
        maker = threading.current_thread().name

        def task(start: int, stop: int) -> None:
            assert start < stop
            makers.append((maker, threading.current_thread().name))

        return task

    for _ in scan(500, make_task, 3):
        pass
    assert makers
    assert all(maker == user for maker, user in makers)

    def fail() -> Task[None]:
        raise LookupError("no task")

    with pytest.raises(LookupError, match="no task"):
        next(scan(5, fail, 2))


def test_work_in_flight_is_bounded() -> None:
    """However slowly results are taken, only a few ranges a thread are begun ahead of them."""
    lock = threading.Lock()
    begun = 0

    def task(start: int, stop: int) -> None:
        nonlocal begun
        del start, stop
        with lock:
            begun += 1

    for taken, _ in enumerate(scan(20_000, lambda: task, 3), 1):
        with lock:
            assert begun <= taken + 4 * 3


def test_closing_ends_the_threads() -> None:
    """When the generator is closed no further range is begun, and no thread is left, which the leak check sees."""
    last = threading.Event()

    def task(start: int, stop: int) -> None:
        del start
        if stop == 1_000_000:
            last.set()

    with contextlib.closing(scan(1_000_000, lambda: task, 2)) as results:
        next(results)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("penstock-scan")]
    assert not last.is_set()
