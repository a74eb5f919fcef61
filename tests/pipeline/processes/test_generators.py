"""Generators in processes yield their values in steps, as far as there is room, until a stop or a crash."""

import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

import pytest

from penstock.errors import PipelineFailure, WorkerError
from penstock.pipeline import ProcessExecutor
from tests.pipeline.processes import ops
from tests.pipeline.running.reading import PATIENCE_SECONDS, items_of, over


def test_values_without_end(tmp_path: Path) -> None:
    """An endless generator yields values; the next pass closes it in its process, and a stop ends the process."""
    builder = over([0]).pipe(partial(ops.endless, tmp_path), executor=ProcessExecutor(1))
    pipeline = builder.add_sink(2).build(num_threads=1)
    assert [pipeline.get_item(timeout=PATIENCE_SECONDS) for _ in range(2500)] == [*range(2500)]
    assert not (tmp_path / "closed").exists()
    again = pipeline.get_iterator(timeout=PATIENCE_SECONDS)  # ends the pass above
    assert next(again) == 0
    assert (tmp_path / "closed").exists()
    pipeline.stop(timeout=PATIENCE_SECONDS)


def test_a_generator_that_runs_when_its_pass_is_left(tmp_path: Path) -> None:
    """A generator whose step runs while the next pass begins is closed in its process after that step."""
    ops.pipe_in(tmp_path)
    os.mkfifo(tmp_path / "go")
    builder = over([1, 7]).pipe(partial(ops.wait_at_seven, tmp_path), executor=ProcessExecutor(1))
    with builder.add_sink().build(num_threads=1).auto_stop() as pipeline:
        assert pipeline.get_item(timeout=PATIENCE_SECONDS) == 1
        ops.pid_from(tmp_path)
        again = pipeline.get_iterator(timeout=PATIENCE_SECONDS)  # ends the pass above
        (tmp_path / "go").write_text("")
        assert list(again) == [1, 7]
    assert (tmp_path / "closed").exists()


@pytest.mark.parametrize("order", ["input", "completion"])
def test_a_generator_and_the_next_stage_share_one_process(order: Literal["input", "completion"]) -> None:
    """A generator that waits for room occupies no process, so the next stage can use the same one."""
    executor = ProcessExecutor(1)
    builder = over([100, 70, 0, 5]).pipe(ops.up_to, executor=executor, concurrency=2, output_order=order)
    found = items_of(builder.pipe(ops.double, executor=executor, max_items=1), sink=1)
    expected = [2 * number for count in (100, 70, 0, 5) for number in range(count)]
    assert sorted(found) == sorted(expected)
    if order == "input":
        assert found == expected


@pytest.mark.parametrize("at", [0, 3])
def test_a_death_in_a_repeatable_generator(tmp_path: Path, at: int) -> None:
    """An item whose process died starts again in another process, and each of its values is delivered once."""
    op = partial(ops.die_once, tmp_path, 5, at)
    builder = over(range(3))
    builder.pipe(op, executor=ProcessExecutor(2), concurrency=2, output_order="input", repeatable=True)
    assert items_of(builder) == [(item, number) for item in range(3) for number in range(5)]


def test_a_death_in_a_generator(tmp_path: Path) -> None:
    """The values of earlier steps are delivered; the item fails with the crash, and other items continue."""
    op = partial(ops.die_once, tmp_path, 4, 2)
    builder = over([7, 7]).pipe(op, executor=ProcessExecutor(1), name="op").add_sink()
    with builder.build(num_threads=1, max_failures=1).auto_stop() as pipeline:
        assert [*pipeline] == [(7, 0), (7, 1), *((7, number) for number in range(4))]
        (dropped,) = pipeline.dropped()
        assert (dropped.stage, dropped.item) == ("op", "7")
        assert isinstance(dropped.error, WorkerError)


@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_values_before_a_failure_are_delivered(kind: str) -> None:
    """Values before an exception are delivered; one that can't be pickled fails alone."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        executor = ProcessExecutor(1) if kind == "ours" else pool
        builder = over([1, 2]).pipe(ops.raise_late, executor=executor).add_sink()
        with builder.build(num_threads=1, max_failures=2).auto_stop() as pipeline:
            iterator = iter(pipeline)
            assert [next(iterator), next(iterator)] == [1, 2]
            with pytest.raises(PipelineFailure):
                next(iterator)
            assert [type(each.error) for each in pipeline.dropped()] == [WorkerError, ops.OddError]


def test_values_without_a_size() -> None:
    """Values whose size can't be computed arrive like others."""
    values = items_of(over([7]).pipe(ops.without_sizes, executor=ProcessExecutor(1)))
    assert [type(value) for value in values] == [ops.NoNbytes] * 7
