"""Reading by `get_item` and iterators, with timeouts, and the pass that a read belongs to."""

import itertools
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ClosedError, PipelineFailure, UsageError
from penstock.pipeline import Merge, Pipe, Pipeline, PipelineBuilder
from tests.pipeline.running.reading import PATIENCE_SECONDS, Again, build, first_awaited, gate, over, waiting
from tests.profiles import in_short


@in_short(10)
@given(timeouts=st.lists(st.sampled_from([0.0, 0.00005, 0.0002, 0.001, None]), min_size=1, max_size=8))
def test_a_timeout_at_the_moment_when_an_item_is_ready(timeouts: list[float | None]) -> None:
    """Timeouts that end just when an item is ready lose no item and return none twice."""
    found: list[int] = []
    with build(range(100), concurrency=2, output_order="input").auto_stop() as pipeline:
        for timeout in itertools.cycle(timeouts):
            try:
                found.append(pipeline.get_item(timeout=PATIENCE_SECONDS if len(found) % 7 == 0 else timeout))
            except TimeoutError:
                continue
            except EOFError:
                break
    assert found == [*range(100)]


@pytest.mark.parametrize("timeout", [math.inf, 1e12])
def test_a_timeout_that_never_ends(timeout: float) -> None:
    """A timeout may be infinite, or longer than the system can count."""
    pipeline = build(range(3))
    assert pipeline.get_item(timeout=timeout) == 0
    assert [*pipeline.get_iterator(timeout=timeout)] == [0, 1, 2]
    pipeline.stop(timeout=timeout)
    with pipeline.auto_stop(timeout=timeout):
        assert [*pipeline] == [0, 1, 2]


def test_an_iterator_with_a_timeout() -> None:
    """`get_iterator(timeout=…)` raises TimeoutError at an item that takes longer, and can be read again."""
    with gate() as calls, build(range(4), waiting(calls, at=2)).auto_stop() as pipeline:
        items = pipeline.get_iterator(timeout=0.05)
        found = [next(items), next(items)]
        with pytest.raises(TimeoutError):
            next(items)
        calls.open()
        while len(found) < 4:
            try:
                found.append(next(items))
            except TimeoutError:
                continue
        assert found == [0, 1, 2, 3]


def _steps(pipeline: Pipeline, count: int) -> list[int]:
    return list(itertools.islice(pipeline, count))


def test_leaving_an_async_for_early_over_a_continuous_source() -> None:
    """The next `async for` continues with the rest of the pass, or, if nothing is left of it, with the next pass."""
    with build(range(6), continuous=True).auto_stop() as pipeline:
        found = [first_awaited(pipeline, count) for count in (1, 4, 3, 2, 4, 2, 7, 6)]
        assert found == [[0], [1, 2, 3, 4], [5], [0, 1], [2, 3, 4, 5], [0, 1], [2, 3, 4, 5], [*range(6)]]


@pytest.mark.parametrize("read", [_steps, first_awaited])
def test_leaving_a_for_early_over_an_iterator(read: Callable[[Pipeline, int], list[int]]) -> None:
    """If the source is an iterator, the next `for` continues; once the iterator is used up, it raises."""
    with build(iter(range(10))).auto_stop() as pipeline:
        assert [read(pipeline, 4) for _ in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        with pytest.raises(UsageError, match="once"):
            read(pipeline, 4)


def test_leaving_a_for_early_over_merged_iterators() -> None:
    """If one of several merged sources is an iterator, the next `for` continues, too."""
    parts = [over(given).add_sink().get_config() for given in (range(4), iter(range(10, 14)))]
    with over(Merge(tuple(parts), order="turns")).add_sink().build(num_threads=1).auto_stop() as pipeline:
        assert [_steps(pipeline, 3) for _ in range(3)] == [[0, 10, 1], [11, 2, 12], [3, 13]]


class _OwnIterator:
    """A source that is its own iterator, which begins anew in `__iter__`."""

    def __iter__(self) -> Iterator[int]:
        self._at = -1
        return self

    def __next__(self) -> int:
        if self._at == 99:
            raise StopIteration
        self._at += 1
        return self._at


def test_a_source_that_is_its_own_iterator_begins_once() -> None:
    """A pass calls `__iter__` once, however many parts it is read in."""
    with build(_OwnIterator()).auto_stop() as pipeline:
        assert [*pipeline.get_iterator(timeout=PATIENCE_SECONDS)] == [*range(100)]


def test_an_iterator_that_was_made_before() -> None:
    """One iterator reads at a time: an older one raises, even if both would read the same pass."""
    for source, others in ((range(10), [*range(10)]), (iter(range(10)), [*range(1, 10)])):
        with build(source).auto_stop() as pipeline:
            first = iter(pipeline)
            assert next(first) == 0
            second = iter(pipeline)
            assert next(second) == others[0]
            for _ in range(2):
                with pytest.raises(ClosedError, match="another one began to read"):
                    next(first)
            assert [*second] == others[1:]


class _Letters:
    """A source of three letters, plain or async, that counts its passes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.count = 0

    def __iter__(self) -> Iterator[str]:
        with self._changed:
            self.count += 1
            self._changed.notify_all()
        return iter("abc")

    def wait_for(self, count: int) -> None:
        """Wait until exactly `count` passes have begun."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.count >= count, PATIENCE_SECONDS)
            assert self.count == count


class _AsyncLetters:
    def __init__(self, letters: _Letters) -> None:
        self._letters = letters

    async def __aiter__(self) -> AsyncIterator[str]:
        for letter in self._letters:
            yield letter


def _merged(letters: _Letters) -> PipelineBuilder:
    part = over(letters, continuous=True).add_sink().get_config()
    return over(Merge((part, part)))


CONTINUOUS: dict[str, Callable[[_Letters], PipelineBuilder]] = {
    "async": lambda letters: over(_AsyncLetters(letters), continuous=True),
    "paths": lambda letters: over(letters, continuous=True).path_variants("abc".index, [[Pipe(str.upper)], [], []]),
    "merged": _merged,
}


@pytest.mark.parametrize("shape", CONTINUOUS)
def test_a_continuous_source_starts_one_pass_ahead(shape: str) -> None:
    """However few and cheap its items are, a pass starts when the one before it is being read, and no earlier."""
    letters = _Letters()
    sources = 2 if shape == "merged" else 1
    pipeline = CONTINUOUS[shape](letters).pipe(str.lower, max_items=100).add_sink(100).build(num_threads=1)
    with pipeline.auto_stop():
        for passes in range(1, 4):
            letters.wait_for(passes * sources)
            items = iter(pipeline)
            next(items)
            letters.wait_for((passes + 1) * sources)
            assert len([*items]) == 3 * sources - 1
    assert letters.count == 4 * sources


def test_empty_passes_of_a_continuous_source() -> None:
    """Each `for` over an empty continuous source ends, and its next pass starts."""
    passes_begun: list[int] = []

    def nothing() -> Iterator[int]:
        passes_begun.append(1)
        return iter(())

    with over(Again(nothing), continuous=True).add_sink(10).build(num_threads=1).auto_stop() as pipeline:
        for passes in range(1, 6):
            assert [*pipeline.get_iterator(timeout=PATIENCE_SECONDS)] == []
            assert len(passes_begun) <= passes + 1


@pytest.mark.parametrize("continuous", [False, True])
def test_a_kept_iterator(*, continuous: bool) -> None:
    """An iterator that is kept returns the rest of its pass, and stays ended."""
    with build(continuous=continuous).auto_stop() as pipeline:
        items = iter(pipeline)
        assert [next(items) for _ in range(4)] == [0, 1, 2, 3]
        assert [*items] == [4, 5, 6, 7, 8, 9]
        assert [*items] == []
        assert [*pipeline] == [*range(10)]
        assert [*items] == []


def test_a_source_is_closed() -> None:
    """A source's generator is closed when its pass ends: at its end, when left early, at a failure, at a `stop`."""
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
    next(iter(pipeline))
    how = "failed"
    with pytest.raises(PipelineFailure):
        list(pipeline)
    how = "stopped"
    next(iter(pipeline))
    pipeline.stop()
    assert len(closed) == 4
    assert closed[-1] == "stopped"
