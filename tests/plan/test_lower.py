"""Lowering is a function from a dataset and a loader's arguments to a plan, which is a value."""

import re
import threading
from typing import Any, Literal

import pytest

import penstock as ps
from penstock._graph._gather import is_batch
from penstock._graph._nodes import Node, Read, Reindex
from penstock._plan._lower import choose_place, lower, parse_memory
from penstock._plan._plan import Limits, Plan, Shard
from penstock._plan._program import Batches, Streaming
from penstock._streaming._inputs import count_positions
from penstock._streaming._opening import inputs_of
from tests.dataset.functions import double, is_odd


def plan_of(dataset: ps.Dataset, **changed: Any) -> Plan:
    """Return the plan of a dataset with the loader's defaults, or others."""
    arguments: dict[str, Any] = {
        "place": "inline", "num_workers": 0, "shard": None, "prefetch": 2, "memory": None, "copy": False,
        "limits": Limits(),
    } | changed  # fmt: skip
    return lower(dataset.node, **arguments)


def batches_of(dataset: ps.Dataset) -> Batches:
    """Return the program of an indexable dataset."""
    program = plan_of(dataset).program
    assert isinstance(program, Batches)
    return program


def ordered_of(dataset: ps.Dataset) -> Streaming:
    """Return the program of an ordered dataset."""
    program = plan_of(dataset).program
    assert isinstance(program, Streaming)
    return program


def kinds(nodes: tuple[Node, ...]) -> list[type]:
    """Return the types of nodes."""
    return [type(node) for node in nodes]


def test_plans_are_values() -> None:
    """Equal datasets and arguments give equal plans, and different ones different plans."""
    dataset = ps.range(20).shuffle().map(double).batch(4)
    assert plan_of(dataset) == plan_of(ps.range(20).shuffle().map(double).batch(4))
    changes: list[dict[str, Any]] = [
        {"place": "threads", "num_workers": 2}, {"shard": Shard(0, 2)}, {"prefetch": 3}, {"memory": 10**6},
        {"copy": True}, {"limits": Limits(num_batch_workers=1)},
    ]  # fmt: skip
    plans = [plan_of(dataset), plan_of(dataset.take(3)), *(plan_of(dataset, **change) for change in changes)]
    for number, plan in enumerate(plans):
        assert [plan == other for other in plans] == [number == index for index in range(len(plans))]


def test_a_printed_plan_shows_every_decision() -> None:
    """The text of a plan contains every decision."""
    text = repr(plan_of(ps.range(20).batch(4), place="threads", num_workers=2, shard=Shard(1, 2), memory=10**6))
    for part in (
        "place='threads'",
        "num_workers=2",
        "Shard(rank=1, count=2",
        "prefetch=2",
        "memory=1000000",
        "total=20",
    ):
        assert part in text


def test_plans_are_frozen() -> None:
    """An attribute of a plan can't be assigned."""
    with pytest.raises(AttributeError):
        setattr(plan_of(ps.range(3)), "prefetch", 9)  # noqa: B010 - the checkers know, too, that this can't be set


def test_an_indexable_dataset_is_rows_and_a_batch() -> None:
    """Rows are the node below the outermost batch, and batches may start anywhere."""
    dataset = ps.range(20).shuffle().map(double)
    program = batches_of(dataset.batch(6))
    assert program.rows == dataset.node
    assert (program.total, kinds(program.above), program.can_recut) == (20, [], True)
    assert program.batch is not None
    assert program.batch.value.size == 6


def test_maps_above_a_batch_are_separate() -> None:
    """They are applied to merged batches, outermost last; batches may still start anywhere."""
    program = batches_of(ps.range(20).batch(6).map(double, name="inner").map(double, name="outer"))
    assert [step.name for step in program.above] == ["outer", "inner"]
    assert program.can_recut


REORDERED: dict[str, ps.Dataset] = {
    "shuffled": ps.range(20).batch(6).shuffle(),
    "sliced": ps.range(20).batch(6)[1:],
    "repeated": ps.range(20).batch(6).repeat(2),
    "shuffled, then mapped": ps.range(20).batch(6).shuffle().map(double),
}


@pytest.mark.parametrize("name", REORDERED)
def test_reordered_batches_cannot_be_recut(name: str) -> None:
    """A batch with a position among batches keeps its rows."""
    program = batches_of(REORDERED[name])
    assert not program.can_recut
    assert program.total == 20


def test_elements_without_a_batch_are_steps() -> None:
    """Rows that `unbatch` takes out of batches are elements, too."""
    for dataset in (ps.range(20).map(double), ps.range(20).batch(4).unbatch()):
        program = batches_of(dataset)
        assert (program.rows, program.total, program.batch, program.above) == (dataset.node, 20, None, ())
        assert program.can_recut
        assert plan_of(dataset).batch_size == 1


def test_batches_of_batches_merge_the_outer_ones() -> None:
    """The inner batch belongs to the rows."""
    program = batches_of(ps.range(20).batch(2).batch(3))
    assert is_batch(program.rows)
    assert (program.total, program.batch and program.batch.value.size) == (10, 3)


def test_filters_without_a_batch_above_belong_to_the_inputs() -> None:
    """There are no folds then: any worker may leave elements out."""
    dataset = ps.range(20).map(double).filter(is_odd).map(double)
    program = ordered_of(dataset)
    assert inputs_of(program.node) == [dataset.node]
    assert program.batch is None


def test_the_inputs_of_a_streaming_dataset_end_below_its_first_batch() -> None:
    """Workers compute the positions below it; ranks share the outermost batch."""
    below = ps.range(20).batch(2).unbatch().filter(is_odd)
    program = ordered_of(below.batch(3).map(double).unbatch().filter(is_odd).batch(5))
    assert inputs_of(program.node) == [below.node]
    assert program.batch is not None
    assert program.batch.value.rows == (5,)


def test_rows_of_reordered_short_batches_are_read_in_order() -> None:
    """If the positions of rows aren't known, rows are read in order."""
    program = ordered_of(ps.range(20).batch(3).shuffle().unbatch())
    (leaf,) = inputs_of(program.node)
    assert isinstance(leaf, Reindex)
    assert count_positions(leaf) == 7


def test_steps_that_skip_keep_the_positions_below() -> None:
    """Positions address the dataset below the step that leaves elements out."""
    program = ordered_of(ps.range(20)[:15].map(double, on_error="skip").filter(is_odd).batch(2))
    (leaf,) = inputs_of(program.node)
    assert count_positions(leaf) == 15


@pytest.mark.parametrize(
    ("num_workers", "workers", "expected"),
    [
        (0, "auto", ("inline", 0)),
        (0, "threads", ("inline", 0)),
        (0, "processes", ("inline", 0)),
        (3, "auto", ("threads", 3)),
        (1, "threads", ("threads", 1)),
    ],
)
def test_the_place_follows_from_the_arguments(num_workers: int, workers: str, expected: tuple[str, int]) -> None:
    """0 workers compute inline, whatever the kind; otherwise the default is threads."""
    assert choose_place(num_workers, workers) == expected


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        *((None, None), (1, 1), (1_000_000, 1_000_000), ("2GiB", 2 * 2**30), ("1.5 MB", 1_500_000)),
        *((" 64kib ", 64 * 1024), ("10kb", 10_000), ("123", 123), ("1GB", 10**9)),
    ],
)
def test_memory_is_parsed_to_bytes(memory: int | str | None, expected: int | None) -> None:
    """It is a number, or text with a decimal or binary unit."""
    assert parse_memory(memory) == expected


def test_a_plan_has_the_length_of_its_dataset() -> None:
    """It counts the steps of an epoch after the outermost step; that of a streaming dataset isn't known."""
    assert plan_of(ps.range(20).batch(6)).length == 4
    assert plan_of(ps.range(20).batch(6, remainder="drop")).length == 3
    assert plan_of(ps.range(20)).length == 20
    assert plan_of(ps.range(20).filter(is_odd).batch(2)).length == 0


def test_without_a_shard_there_is_one_rank() -> None:
    """That rank gets all rows."""
    assert plan_of(ps.range(20)).shard == Shard(0, 1)


def test_a_bare_source_is_a_plan() -> None:
    """A source without steps has a plan."""
    assert isinstance(batches_of(ps.range(20)).rows, Read)


def takes_long(number: int) -> int:
    """Return the argument after a while."""
    threading.Event().wait(0.01)
    return number


@pytest.mark.parametrize(("workers", "name"), [("threads", "thread"), ("processes", "process")])
def test_a_kind_of_worker_without_a_number_has_workers(workers: Literal["threads", "processes"], name: str) -> None:
    """Their number is chosen by measuring if it isn't given; 0 means inline."""
    dataset = ps.range(10_000).map(takes_long).batch(4)
    with ps.Loader(dataset, workers=workers) as loader:
        assert re.search(rf"\b[1-9]\d* {name}", repr(loader))
    with ps.Loader(dataset, num_workers=0, workers=workers) as loader:
        assert "inline" in repr(loader)
