"""Reading: what comes from `get_item`, iterators and time-outs, and which pass it belongs to."""

import itertools
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PipelineFailure, UsageError
from penstock.pipeline import PipelineBuilder
from tests.pipeline.running.reading import PATIENCE_SECONDS, Again, build, gate


def test_get_item_starts_it() -> None:
    """`get_item` starts what isn't running, gives the items, and EOFError again and again at the end."""
    pipeline = build(range(3))
    assert [pipeline.get_item() for _ in range(3)] == [0, 1, 2]
    for _ in range(3):
        with pytest.raises(EOFError):
            pipeline.get_item(timeout=PATIENCE_SECONDS)
    pipeline.stop()
    assert pipeline.get_item(timeout=PATIENCE_SECONDS) == 0
    pipeline.stop()


def test_no_item_is_lost_by_a_time_out() -> None:
    """A read whose time is up takes nothing: the items come all, in order, however often one asked too early."""
    turn = threading.Semaphore(0)

    def wait(item: int) -> int:
        assert turn.acquire(timeout=PATIENCE_SECONDS)
        return item

    pipeline = build(range(50), wait)
    found: list[int] = []
    with pipeline.auto_stop():
        for number in range(50):
            for timeout in (0, 0.0001, 0.003):
                with pytest.raises(TimeoutError):
                    pipeline.get_item(timeout=timeout)
            turn.release()
            while len(found) == number:
                try:
                    found.append(pipeline.get_item(timeout=0.001))
                except TimeoutError:
                    continue
        with pytest.raises(EOFError):
            pipeline.get_item(timeout=PATIENCE_SECONDS)
    assert found == [*range(50)]


@given(timeouts=st.lists(st.sampled_from([0.0, 0.00005, 0.0002, 0.001, None]), min_size=1, max_size=8))
def test_time_outs_at_the_moment_when_items_come(timeouts: list[float | None]) -> None:
    """Times that are up just when an item comes lose none and double none."""
    found: list[int] = []
    with build(range(200), concurrency=2, output_order="input").auto_stop() as pipeline:
        for timeout in itertools.cycle(timeouts):
            try:
                found.append(pipeline.get_item(timeout=PATIENCE_SECONDS if len(found) % 7 == 0 else timeout))
            except TimeoutError:
                continue
            except EOFError:
                break
    assert found == [*range(200)]


def test_an_iterator_with_a_time_out() -> None:
    """`get_iterator(timeout=…)` raises TimeoutError at an item that takes longer, and can be asked again."""
    with gate() as calls:

        def wait(item: int) -> int:
            if item == 2:
                calls.pass_through()
            return item

        with build(range(4), wait).auto_stop() as pipeline:
            items = pipeline.get_iterator(timeout=0.05)
            found = [next(items)]
            found.append(next(items))
            with pytest.raises(TimeoutError):
                next(items)
            calls.open()
            while len(found) < 4:
                try:
                    found.append(next(items))
                except TimeoutError:
                    continue
            assert found == [0, 1, 2, 3]


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("count", [1, 4, 10])
def test_leaving_a_for_early(count: int, *, continuous: bool) -> None:
    """Leaving a `for` early ends its pass: the next `for` begins a new one, never with the rest of the old."""
    pipeline = PipelineBuilder().add_source(range(10), continuous=continuous).pipe(abs).add_sink(2).build(num_threads=2)
    with pipeline.auto_stop():
        for _ in range(5):
            found: list[int] = []
            for item in pipeline:
                found.append(item)
                if len(found) == count:
                    break
            assert found == [*range(count)]
        assert [*pipeline] == [*range(10)]


@pytest.mark.parametrize("continuous", [False, True])
def test_a_kept_iterator(*, continuous: bool) -> None:
    """An iterator that is kept gives the rest of its pass, and ends for ever once it has ended."""
    pipeline = PipelineBuilder().add_source(range(10), continuous=continuous).pipe(abs).add_sink(2).build(num_threads=2)
    with pipeline.auto_stop():
        items = iter(pipeline)
        for item in items:
            if item == 3:
                break
        assert [*items] == [4, 5, 6, 7, 8, 9]
        assert [*items] == []
        assert [*pipeline] == [*range(10)]
        assert [*items] == []


def test_a_one_shot_source() -> None:
    """A source that can be iterated once gives one pass; the next one says so."""
    pipeline = build(iter(range(5)))
    with pipeline.auto_stop():
        assert [*pipeline] == [*range(5)]
        with pytest.raises(UsageError, match=r"(?i)pass|once|iterator"):
            next(iter(pipeline))


def test_a_source_is_closed() -> None:
    """A source's generator is closed where its pass ends: at the end, when left early, by a failure, by `stop`."""
    closed: list[str] = []
    how = ""

    def numbers() -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            closed.append(how)

    def check(item: int) -> int:
        if how == "failed" and item == 5:
            raise ValueError(item)
        return item

    pipeline = build(Again(numbers), check)
    how = "ended"
    assert len([*pipeline]) == 100
    assert closed == ["ended"]
    how = "left"
    for _ in pipeline:
        break
    how = "failed"
    with pytest.raises(PipelineFailure):
        list(pipeline)
    how = "stopped"
    next(iter(pipeline))
    pipeline.stop()
    assert len(closed) == 4
    assert closed[-1] == "stopped"
