"""A pipeline in a process of its own: items, passes, failures, dropped items and the report."""

import asyncio
import gc
import itertools
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import AlreadyRunningError, ClosedError, PipelineFailure, UsageError, WorkerError
from penstock.pipeline import PipelineBuilder, PipelineConfig, ProcessExecutor, SubprocessPipeline, run_in_subprocess
from tests.pipeline.processes import ops
from tests.pipeline.running.reading import first_awaited


def config_of(source: Any, *functions: Any, continuous: bool = False) -> PipelineConfig:
    """Return a pipeline of plain functions."""
    builder = PipelineBuilder().add_source(source, continuous=continuous)
    for function in functions:
        builder.pipe(function)
    return builder.add_sink().get_config()


def started(source: Any, *functions: Any, continuous: bool = False) -> SubprocessPipeline[Any]:
    """Return such a pipeline in a process."""
    return run_in_subprocess(config_of(source, *functions, continuous=continuous), num_threads=1)


def _not_at_the_top() -> Any:
    def found(number: int) -> int:
        return number

    return found


def test_passes_in_one_process() -> None:
    """Each `for` is a pass, also after one that was left early, and all passes run in the same process."""
    with started(range(10), ops.double).auto_stop() as pipeline:
        state = repr(pipeline)
        assert list(pipeline) == [2 * number for number in range(10)]
        assert list(itertools.islice(pipeline, 4)) == [0, 2, 4, 6]
        kept = iter(pipeline)
        assert [next(kept), next(kept)] == [0, 2]
        assert list(kept) == [2 * number for number in range(2, 10)]
        assert next(kept, None) is None
        second = iter(pipeline)
        next(second)
        assert repr(pipeline) == state
        assert list(pipeline) == [2 * number for number in range(10)]
        with pytest.raises(ClosedError, match="this pass has ended"):
            next(second)
    assert "not running" in repr(pipeline)
    assert len(list(started(range(10)))) == 10  # the iterator keeps the pipeline alive


def test_items_one_by_one_and_states() -> None:
    """`get_item` starts the pipeline, and raises at the end of the pass; a stop allows another start."""
    pipeline = started("ab")
    states = [pipeline.state]
    assert [pipeline.get_item(), pipeline.get_item()] == ["a", "b"]
    states.append(pipeline.state)
    for _ in range(2):
        with pytest.raises(EOFError):
            pipeline.get_item()
    states.append(pipeline.state)
    pipeline.stop(wait=False)
    states.append(pipeline.state)
    assert states == ["new", "running", "done", "stopped"]
    pipeline.stop()
    for _ in range(2):
        with pytest.raises(ClosedError, match="the pipeline was stopped"):
            pipeline.get_item(timeout=60)
    pipeline.start()
    assert pipeline.get_item(timeout=60) == "a"
    for kind in (UsageError, RuntimeError, AlreadyRunningError):
        with pytest.raises(kind, match="while it runs"):
            pipeline.start()
    pipeline.stop()


def test_leaving_a_for_early() -> None:
    """Over a continuous source the next `for` continues, and skips an empty rest; so does an `async for`."""
    with started(range(6), ops.double, continuous=True).auto_stop() as pipeline:
        found = [list(itertools.islice(pipeline, 4)) for _ in range(3)]
        assert found == [[0, 2, 4, 6], [8, 10], [0, 2, 4, 6]]
        found = [list(itertools.islice(pipeline, 2)) for _ in range(3)]
        assert found == [[8, 10], [0, 2], [4, 6]]
        assert pipeline.get_item() == 8
        older = iter(pipeline)
        assert list(pipeline) == [10]
        assert [pipeline.get_item() for _ in range(6)] == [0, 2, 4, 6, 8, 10]
        with pytest.raises(EOFError):
            pipeline.get_item()
        assert pipeline.get_item() == 0
        with pytest.raises(ClosedError, match="this pass has ended for this reader"):
            next(older)
        assert list(pipeline) == [2, 4, 6, 8, 10]
        found = [first_awaited(pipeline, 4) for _ in range(3)]
        assert found == [[0, 2, 4, 6], [8, 10], [0, 2, 4, 6]]


def test_a_continuous_source_is_begun_one_pass_ahead(tmp_path: Path) -> None:
    """A pass begins in the process when the one before it is first read here, and no earlier."""

    def count() -> int:
        return len(list(tmp_path.iterdir()))

    with started(ops.NotedLetters(tmp_path), continuous=True).auto_stop() as pipeline:
        for passes in range(1, 6):
            assert count() <= passes
            assert list(pipeline) == ["a"]
            assert count() <= passes + 1
    assert count() <= 6


def test_large_arrays() -> None:
    """Large arrays arrive complete, as views that aren't overwritten while they are kept."""
    one: Any = None
    other: Any = None
    with started(range(20), ops.image).auto_stop() as pipeline:
        numbers: list[int] = []
        for one, other in itertools.pairwise(pipeline):
            assert all((each["image"] == each["number"]).all() for each in (one, other))
            assert one["image"].shape == (3, 100, 100)
            numbers.append(one["number"])
        del one, other
    assert numbers == [*range(19)]


_LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary())
_ITEMS = st.recursive(
    _LEAVES, lambda inner: st.one_of(st.lists(inner), st.tuples(inner), st.dictionaries(st.text(), inner)), max_leaves=8
)


@settings(max_examples=3)
@given(st.lists(_ITEMS, max_size=30))
def test_items_of_any_kind(items: list[object]) -> None:
    """Items arrive unchanged and in order, None and nested ones included."""
    with started(items).auto_stop() as pipeline:
        assert list(pipeline) == items


def test_a_failure_comes_after_the_items_before_it() -> None:
    """Items computed before a failure are read first; then the failure, once, caused by the user's exception."""
    with started([0, 2, 3, 4], ops.refuse_odd).auto_stop() as pipeline:
        for _ in range(2):
            received: list[int] = []
            with pytest.raises(PipelineFailure) as failed:
                ops.into(received, pipeline)
            assert received == [0, 2]
            assert (failed.value.stage, failed.value.item) == ("refuse_odd", "3")
            cause = failed.value.__cause__
            assert isinstance(cause, ops.OddError)
            assert cause.number == 3
            assert any("in refuse_odd" in note for note in cause.__notes__)
        with pytest.raises(EOFError):
            pipeline.get_item()


def _read_up_to_the_failure(pipeline: SubprocessPipeline[Any]) -> None:
    pipeline.get_item()
    while not pipeline.dropped() and "not running" not in repr(pipeline):
        pipeline.get_item()


def test_a_failure_that_nobody_reads() -> None:
    """Leaving the scope raises a failure that was not read."""
    with pytest.raises(PipelineFailure, match="refuse_odd"), started([0, 2, 3], ops.refuse_odd).auto_stop() as pipeline:
        _read_up_to_the_failure(pipeline)


def _failure_of(read: Callable[[], object]) -> "weakref.ref[PipelineFailure]":
    try:
        read()
    except PipelineFailure as failure:
        return weakref.ref(failure)
    pytest.fail("there was no failure")


def test_a_failure_that_is_forgotten_is_gone() -> None:
    """So are the frames of the program through which it went, without Python's collector, however the pass was read."""
    gc.disable()
    try:
        with started([0, 3], ops.refuse_odd).auto_stop() as pipeline:
            failures = [_failure_of(lambda: [*pipeline])]
            iter(pipeline)  # begins another pass
            failures += [_failure_of(lambda: [pipeline.get_item() for _ in range(2)])]
        failures += [_failure_of(lambda: _leave_unread(pipeline))]
        assert [each() for each in failures] == [None] * 3
    finally:
        gc.enable()


def _leave_unread(pipeline: SubprocessPipeline[Any]) -> None:
    with pipeline.auto_stop():
        _read_up_to_the_failure(pipeline)


def test_what_can_not_be_sent() -> None:
    """An exception that can't be sent arrives as text; a part of an item is named by its place, after other items."""
    cases: list[tuple[list[int], Any, list[int], str, str]] = [
        ([1], ops.refuse_stubbornly, [], "refuse_stubbornly", "StubbornError: stubborn 1"),
        ([0, 2, 1], ops.lock_of, [0, 2], "sink", r"lock can't be sent .* to this one: it has"),
        ([1], ops.nested_lock, [], "sink", r"dict can't be sent .* to this one: \['a'\]\[1\] has the type"),
    ]
    for source, op, items, stage, words in cases:
        received: list[Any] = []
        pipeline = started(source, op)
        with pytest.raises(PipelineFailure, match=words) as failed:
            ops.into(received, pipeline)
        pipeline.stop()
        assert (received, failed.value.stage) == (items, stage)
        assert isinstance(failed.value.__cause__, WorkerError) or op is not ops.refuse_stubbornly


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        (config_of([ops.Unbuildable()]), WorkerError, r"config can't be rebuilt in process .* must be importable"),
        (config_of(range(3), _not_at_the_top()), UsageError, r"stage .* must be picklable"),
        (config_of(number for number in range(3)), UsageError, "the source must be picklable"),
    ],
)
def test_configs_that_can_not_be_sent(config: PipelineConfig, error: type[Exception], words: str) -> None:
    """A part of a config that can't be pickled is named when the pipeline starts, and no process starts."""
    with pytest.raises(error, match=words):
        run_in_subprocess(config, num_threads=1).start()


def test_dropped_items_and_reports() -> None:
    """Dropped items and the report are available here, while the pipeline runs and after a stop."""
    config = config_of(range(6), ops.refuse_odd)
    pipeline = run_in_subprocess(config, num_threads=1, max_failures=3, statistics=True)
    assert pipeline.dropped() == []
    assert pipeline.report().stages == ()
    for times in (1, 2):
        with pipeline.auto_stop():
            assert list(pipeline) == [0, 2, 4]
            while_running = pipeline.dropped()
            stages = pipeline.report().stages
        for dropped in (while_running, pipeline.dropped()):
            assert [(each.stage, each.item) for each in dropped] == [("refuse_odd", item) for item in "135"] * times
            assert all(isinstance(each.error, ops.OddError) for each in dropped)
        assert stages[-1].items == pipeline.report().stages[-1].items == 3
    with pytest.raises(UsageError, match="statistics"):
        run_in_subprocess(config, num_threads=1).report()


def test_a_timeout_that_never_ends() -> None:
    """A timeout may be infinite."""
    with started(range(3)).auto_stop(timeout=math.inf) as pipeline:
        assert pipeline.get_item(timeout=math.inf) == 0
        assert [*pipeline.get_iterator(timeout=math.inf)] == [0, 1, 2]


def test_waits_that_end_early() -> None:
    """A read that times out, or a wait of an `async for` that is cancelled, has taken nothing."""

    async def read_all(pipeline: SubprocessPipeline[Any]) -> list[int]:
        received: list[int] = []
        items = aiter(pipeline)
        while True:
            try:
                async with asyncio.timeout(0.002):
                    received.append(await anext(items))
            except TimeoutError:
                continue
            except StopAsyncIteration:
                return received

    with started(range(50), ops.double).auto_stop() as pipeline:
        assert asyncio.run(read_all(pipeline)) == [2 * number for number in range(50)]
        found = list(itertools.islice(pipeline, 1))
        while len(found) < 50:
            try:
                found.append(pipeline.get_item(timeout=0))
            except TimeoutError:
                continue
        assert found == [2 * number for number in range(50)]


def test_processes_inside() -> None:
    """A stage of the pipeline may run in processes of its own."""
    builder = PipelineBuilder().add_source(range(6)).pipe(ops.double, executor=ProcessExecutor(2), concurrency=2)
    with run_in_subprocess(builder.add_sink().get_config(), num_threads=1).auto_stop() as pipeline:
        assert sorted(pipeline) == [2 * number for number in range(6)]


def test_random_state() -> None:
    """Each process draws different numbers."""
    one, other = (list(started([None], ops.draws)) for _ in range(2))
    assert one[0][1] != other[0][1]
    assert one[0][2] != other[0][2]


def test_arguments_are_checked() -> None:
    """Wrong arguments are refused before anything starts."""
    with pytest.raises(UsageError, match="num_threads"):
        run_in_subprocess(config_of("ab"), num_threads=0)
    with pytest.raises(UsageError, match="start_method"):
        run_in_subprocess(config_of("ab"), num_threads=1, start_method="fork")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] # the refused argument
