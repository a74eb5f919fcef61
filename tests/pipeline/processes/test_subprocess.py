"""A pipeline in a process of its own: items, passes, failures, dropped items and the report."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import AlreadyRunningError, ClosedError, PipelineFailure, UsageError, WorkerError
from penstock.pipeline import PipelineBuilder, PipelineConfig, ProcessExecutor, run_in_subprocess
from tests.pipeline.processes import ops


def config_of(source: Any, *functions: Any, continuous: bool = False) -> PipelineConfig:
    """Return a pipeline of plain functions."""
    builder = PipelineBuilder().add_source(source, continuous=continuous)
    for function in functions:
        builder.pipe(function)
    return builder.add_sink().get_config()


def _not_at_the_top() -> Any:
    def found(number: int) -> int:
        return number

    return found


def test_passes_in_one_process() -> None:
    """Each `for` is a pass, also after one that was left early, and all passes run in the same process."""
    with run_in_subprocess(config_of(range(10), ops.double), num_threads=1).auto_stop() as pipeline:
        state = repr(pipeline)
        assert list(pipeline) == [2 * number for number in range(10)]
        for item in pipeline:
            if item == 6:
                break
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


def test_items_one_by_one() -> None:
    """`get_item` starts the pipeline, and raises at the end of the pass; a stop allows another start."""
    pipeline = run_in_subprocess(config_of("ab"), num_threads=1)
    assert [pipeline.get_item(), pipeline.get_item()] == ["a", "b"]
    for _ in range(2):
        with pytest.raises(EOFError):
            pipeline.get_item()
    pipeline.stop()
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


def test_states() -> None:
    """`state` is the state of the run, as far as it was read."""
    pipeline = run_in_subprocess(config_of("ab"), num_threads=1)
    states = [pipeline.state]
    items = iter(pipeline)
    states.append(pipeline.state)
    assert list(items) == ["a", "b"]
    states.append(pipeline.state)
    pipeline.stop(wait=False)
    states.append(pipeline.state)
    assert states == ["new", "running", "done", "stopped"]
    pipeline.stop()
    assert list(pipeline) == ["a", "b"]
    pipeline.stop()


def test_leaving_a_for_early() -> None:
    """Over a continuous source the next `for` continues, and skips an empty rest; otherwise it starts a new pass."""
    with run_in_subprocess(config_of(range(6), ops.double, continuous=True), num_threads=1).auto_stop() as pipeline:
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
    with run_in_subprocess(config_of(range(6), ops.double), num_threads=1).auto_stop() as pipeline:
        assert [list(itertools.islice(pipeline, 4)) for _ in range(2)] == [[0, 2, 4, 6]] * 2


def test_leaving_an_async_for_early() -> None:
    """After an `async for` that was left early, the next one continues in the same way."""

    async def steps(pipeline: Any, count: int) -> list[int]:
        found: list[int] = []
        async for item in pipeline:
            found.append(item)
            if len(found) == count:
                break
        return found

    async def main() -> list[list[int]]:
        return [await steps(pipeline, 4) for _ in range(3)]

    with run_in_subprocess(config_of(range(6), ops.double, continuous=True), num_threads=1).auto_stop() as pipeline:
        assert asyncio.run(main()) == [[0, 2, 4, 6], [8, 10], [0, 2, 4, 6]]


def test_a_continuous_source_is_begun_one_pass_ahead(tmp_path: Path) -> None:
    """A pass begins in the process when the one before it is first read here, and no earlier."""

    def count() -> int:
        return len(list(tmp_path.iterdir()))

    config = config_of(ops.NotedLetters(tmp_path), continuous=True)
    with run_in_subprocess(config, num_threads=1).auto_stop() as pipeline:
        for passes in range(1, 6):
            assert count() <= passes
            assert list(pipeline) == ["a"]
            assert count() <= passes + 1
    assert count() <= 6


def test_large_arrays() -> None:
    """Large arrays arrive complete, as views that aren't overwritten while they are kept."""
    with run_in_subprocess(config_of(range(20), ops.image), num_threads=1).auto_stop() as pipeline:
        element: Any = None
        before: Any = None
        count = 0
        for element in pipeline:
            assert (element["image"] == element["number"]).all()
            assert element["image"].shape == (3, 100, 100)
            if before is not None:
                assert (before["image"] == before["number"]).all()
            before = element
            count += 1
        del element, before
    assert count == 20


_LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary())
_ITEMS = st.recursive(
    _LEAVES, lambda inner: st.one_of(st.lists(inner), st.tuples(inner), st.dictionaries(st.text(), inner)), max_leaves=8
)


@settings(max_examples=5)
@given(st.lists(_ITEMS, max_size=30))
def test_items_of_any_kind(items: list[object]) -> None:
    """Items arrive unchanged and in order, None and nested ones included."""
    with run_in_subprocess(config_of(items), num_threads=1).auto_stop() as pipeline:
        assert list(pipeline) == items


def test_a_failure_comes_after_the_items_before_it() -> None:
    """Items computed before a failure are read first; then the failure, once, caused by the user's exception."""
    with run_in_subprocess(config_of([0, 2, 3, 4], ops.refuse_odd), num_threads=1).auto_stop() as pipeline:
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


def test_a_failure_that_nobody_reads() -> None:
    """Leaving the scope raises a failure that was not read, and doesn't raise one that was."""

    def leave() -> None:
        with run_in_subprocess(config_of([0, 2, 3, 4], ops.refuse_odd), num_threads=1).auto_stop() as pipeline:
            pipeline.get_item()
            while not pipeline.dropped() and "not running" not in repr(pipeline):
                pipeline.get_item()

    with pytest.raises(PipelineFailure, match="refuse_odd"):
        leave()


@pytest.mark.parametrize(("op", "words"), [(ops.refuse_stubbornly, "StubbornError: stubborn 1")])
def test_causes_that_can_not_be_sent(op: Any, words: str) -> None:
    """An exception that can't be unpickled here arrives as text."""
    pipeline = run_in_subprocess(config_of([1], op), num_threads=1)
    with pytest.raises(PipelineFailure) as failed:
        list(pipeline)
    pipeline.stop()
    assert isinstance(failed.value.__cause__, WorkerError)
    assert words in str(failed.value.__cause__)


def test_items_that_can_not_be_sent() -> None:
    """An item that can't be pickled is a failure that says so, after the items before it."""
    received: list[Any] = []
    pipeline = run_in_subprocess(config_of([0, 2, 1], ops.lock_of), num_threads=1)
    with pytest.raises(PipelineFailure, match=r"lock can't be sent .* to this one: it has") as failed:
        ops.into(received, pipeline)
    pipeline.stop()
    assert received == [0, 2]
    assert failed.value.stage == "sink"


def test_the_place_of_a_part_that_can_not_be_sent() -> None:
    """A part of an item that can't be pickled is named by its place in the item."""
    pipeline = run_in_subprocess(config_of([1], ops.nested_lock), num_threads=1)
    with pytest.raises(PipelineFailure, match=r"dict can't be sent .* to this one: \['a'\]\[1\] has the type"):
        list(pipeline)
    pipeline.stop()


def test_configs_that_can_not_be_rebuilt() -> None:
    """A config that is pickled and can't be rebuilt in the process is a WorkerError that says so."""
    with pytest.raises(WorkerError, match=r"the pipeline's config can't be rebuilt in process .* must be importable"):
        run_in_subprocess(config_of([ops.Unbuildable()]), num_threads=1).start()


def test_configs_that_can_not_be_sent() -> None:
    """A part of a config that can't be pickled is named when the pipeline starts, and no process starts."""
    with pytest.raises(UsageError, match=r"stage .* must be picklable"):
        run_in_subprocess(config_of(range(3), _not_at_the_top()), num_threads=1).start()
    with pytest.raises(UsageError, match="the source must be picklable"):
        run_in_subprocess(config_of(number for number in range(3)), num_threads=1).start()


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


def test_async_iteration() -> None:
    """`async for` is a pass; cancelling a wait loses no item."""

    async def main() -> list[int]:
        received: list[int] = []
        pipeline = run_in_subprocess(config_of(range(50), ops.double), num_threads=1)
        items = aiter(pipeline)
        try:
            while True:
                try:
                    async with asyncio.timeout(0.002):
                        received.append(await anext(items))
                except TimeoutError:
                    pass
        except StopAsyncIteration:
            pass
        finally:
            pipeline.stop()
        return received

    assert asyncio.run(main()) == [2 * number for number in range(50)]


def test_timeouts() -> None:
    """A read that times out has taken nothing."""
    with run_in_subprocess(config_of(range(5)), num_threads=1).auto_stop() as pipeline:
        received: list[int] = []
        while len(received) < 5:
            try:
                received.append(pipeline.get_item(timeout=0))
            except TimeoutError:
                continue
        assert received == list(range(5))


def test_processes_inside() -> None:
    """A stage of the pipeline may run in processes of its own."""
    builder = PipelineBuilder().add_source(range(6)).pipe(ops.double, executor=ProcessExecutor(2), concurrency=2)
    config = builder.add_sink().get_config()
    with run_in_subprocess(config, num_threads=1).auto_stop() as pipeline:
        assert sorted(pipeline) == [2 * number for number in range(6)]


def test_random_state() -> None:
    """Each process draws different numbers; an initializer may seed them."""
    drawn: list[tuple[int, int, int]] = []
    for _ in range(2):
        with run_in_subprocess(config_of([None], ops.draws), num_threads=1).auto_stop() as pipeline:
            drawn += pipeline
    assert drawn[0][1] != drawn[1][1]
    assert drawn[0][2] != drawn[1][2]


def test_arguments_are_checked() -> None:
    """Wrong arguments are refused before anything starts."""
    with pytest.raises(UsageError, match="num_threads"):
        run_in_subprocess(config_of("ab"), num_threads=0)
    with pytest.raises(UsageError, match="start_method"):
        run_in_subprocess(config_of("ab"), num_threads=1, start_method="fork")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] # the refused argument
