"""Lowering is a function from a dataset and a loader's arguments to a plan, which is a value."""

import re
import threading
from typing import Any, Literal

import pytest

import penstock as ps
from penstock._graph._nodes import Batch, Node, Read, Reindex
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
    """The same dataset and arguments give an equal plan; anything else another."""
    dataset = ps.range(20).shuffle().map(double).batch(4)
    assert plan_of(dataset) == plan_of(ps.range(20).shuffle().map(double).batch(4))
    changes: list[dict[str, Any]] = [
        {"place": "threads", "num_workers": 2}, {"shard": Shard(0, 2)}, {"prefetch": 3}, {"memory": 10**6},
        {"copy": True}, {"limits": Limits(num_batch_workers=1)},
    ]  # fmt: skip
    plans = [plan_of(dataset), plan_of(dataset.take(3)), *(plan_of(dataset, **change) for change in changes)]
    for number, plan in enumerate(plans):
        assert [plan == other for other in plans] == [number == index for index in range(len(plans))]


def test_plans_can_be_read() -> None:
    """Printed, a plan shows every decision."""
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


def test_plans_cannot_be_changed() -> None:
    """A plan is decided once."""
    with pytest.raises(AttributeError):
        setattr(plan_of(ps.range(3)), "prefetch", 9)  # noqa: B010 - the checkers know, too, that this can't be set


def test_batches_have_rows_and_a_batch() -> None:
    """Rows are what is below the outermost batch; where batches start can be chosen anew."""
    dataset = ps.range(20).shuffle().map(double)
    program = batches_of(dataset.batch(6))
    assert program.rows == dataset.node
    assert (program.total, kinds(program.above), program.can_recut) == (20, [], True)
    assert program.batch is not None
    assert program.batch.size == 6


def test_maps_above_a_batch_are_kept_apart() -> None:
    """They are applied to merged batches, outermost last; batches can still be cut anew."""
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
def test_reordered_batches_cannot_be_cut_anew(name: str) -> None:
    """A batch that has a place among batches must keep its rows."""
    program = batches_of(REORDERED[name])
    assert not program.can_recut
    assert program.total == 20


def test_elements_without_a_batch_are_steps() -> None:
    """Also rows that were taken out of batches: these are elements again."""
    for dataset in (ps.range(20).map(double), ps.range(20).batch(4).unbatch()):
        program = batches_of(dataset)
        assert (program.rows, program.total, program.batch, program.above) == (dataset.node, 20, None, ())
        assert program.can_recut
        assert plan_of(dataset).batch_size == 1


def test_batches_of_batches_merge_the_outer_ones() -> None:
    """The inner batch belongs to the rows."""
    program = batches_of(ps.range(20).batch(2).batch(3))
    assert isinstance(program.rows, Batch)
    assert (program.total, program.batch and program.batch.size) == (10, 3)


def test_filters_belong_to_what_depends_on_the_position() -> None:
    """Without a batch above them there are no folds: any worker may leave elements out."""
    dataset = ps.range(20).map(double).filter(is_odd).map(double)
    program = ordered_of(dataset)
    assert inputs_of(program.node) == [dataset.node]
    assert program.batch is None


def test_what_is_read_in_order_starts_at_the_first_batch_of_an_ordered_dataset() -> None:
    """Below it positions are computed by anyone; the outermost batch is what ranks are cut from."""
    below = ps.range(20).batch(2).unbatch().filter(is_odd)
    program = ordered_of(below.batch(3).map(double).unbatch().filter(is_odd).batch(5))
    assert inputs_of(program.node) == [below.node]
    assert isinstance(program.batch, Batch)
    assert program.batch.size == 5


def test_rows_of_reordered_short_batches_are_read_in_order() -> None:
    """Where the rows' positions aren't known, they are counted in order."""
    program = ordered_of(ps.range(20).batch(3).shuffle().unbatch())
    (leaf,) = inputs_of(program.node)
    assert isinstance(leaf, Reindex)
    assert count_positions(leaf) == 7


def test_skipping_steps_leave_positions_below() -> None:
    """Positions address the dataset below what is left out."""
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
    """No workers compute inline, whatever kind was named; some are threads."""
    assert choose_place(num_workers, workers) == expected


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (None, None),
        (1, 1),
        (1_000_000, 1_000_000),
        ("2GiB", 2 * 2**30),
        ("1.5 MB", 1_500_000),
        (" 64kib ", 64 * 1024),
        ("10kb", 10_000),
        ("123", 123),
        ("1GB", 10**9),
    ],
)
def test_memory_is_a_number_of_bytes(memory: int | str | None, expected: int | None) -> None:
    """As a number, or as text with a decimal or binary unit."""
    assert parse_memory(memory) == expected


def test_lengths_are_those_of_the_dataset() -> None:
    """Steps in an epoch, the outermost step applied; an ordered dataset's aren't known."""
    assert plan_of(ps.range(20).batch(6)).length == 4
    assert plan_of(ps.range(20).batch(6, remainder="drop")).length == 3
    assert plan_of(ps.range(20)).length == 20
    assert plan_of(ps.range(20).filter(is_odd).batch(2)).length == 0


def test_without_a_shard_there_is_one_rank() -> None:
    """It takes everything."""
    assert plan_of(ps.range(20)).shard == Shard(0, 1)


def test_the_source_is_at_the_bottom() -> None:
    """A bare source is a plan, too."""
    assert isinstance(batches_of(ps.range(20)).rows, Read)


def takes_long(number: int) -> int:
    """Return what was given, after a while."""
    threading.Event().wait(0.01)
    return number


@pytest.mark.parametrize(("workers", "name"), [("threads", "thread"), ("processes", "process")])
def test_who_names_a_kind_of_worker_gets_some(workers: Literal["threads", "processes"], name: str) -> None:
    """Their number is measured then, where it isn't said; 0 says that there are none."""
    dataset = ps.range(10_000).map(takes_long).batch(4)
    with ps.Loader(dataset, workers=workers) as loader:
        assert re.search(rf"\b[1-9]\d* {name}", repr(loader))
    with ps.Loader(dataset, num_workers=0, workers=workers) as loader:
        assert "inline" in repr(loader)
