"""Lowering is a function from a dataset and a loader's arguments to a plan, which is a value."""

import re
import threading
from typing import Any, Literal

import pytest

import penstock as ps
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


def test_plans_are_values() -> None:
    """Equal datasets and arguments give equal plans; a plan is frozen, and its text has every decision."""
    dataset = ps.range(20).shuffle().map(double).batch(4)
    assert plan_of(dataset) == plan_of(ps.range(20).shuffle().map(double).batch(4))
    changes: list[dict[str, Any]] = [
        {"place": "threads", "num_workers": 2}, {"shard": Shard(0, 2)}, {"prefetch": 3}, {"memory": 10**6},
        {"copy": True}, {"limits": Limits(num_batch_workers=1)},
    ]  # fmt: skip
    plans = [plan_of(dataset), plan_of(dataset.take(3)), *(plan_of(dataset, **change) for change in changes)]
    for number, plan in enumerate(plans):
        assert [plan == other for other in plans] == [number == index for index in range(len(plans))]
    with pytest.raises(AttributeError):
        setattr(plans[0], "prefetch", 9)  # noqa: B010 - the checkers know, too, that this can't be set
    text = repr(plan_of(ps.range(20).batch(4), place="threads", num_workers=2, shard=Shard(1, 2), memory=10**6))
    for part in ("place='threads'", "num_workers=2", "Shard(rank=1, count=2", "prefetch=2", "memory=1000000"):
        assert part in text


BELOW = ps.range(20).shuffle().map(double)


@pytest.mark.parametrize(
    ("dataset", "rows", "total", "size", "above", "can_recut"),
    [
        (ps.range(20), ps.range(20), 20, None, [], True),
        (BELOW, BELOW, 20, None, [], True),
        (BELOW.batch(4).unbatch(), BELOW.batch(4).unbatch(), 20, None, [], True),
        (BELOW.batch(6), BELOW, 20, 6, [], True),
        (BELOW.batch(6).map(double, name="a").map(double, name="b"), BELOW, 20, 6, ["b", "a"], True),
        (BELOW.batch(2).batch(3), BELOW.batch(2), 10, 3, [], True),
        # A batch with a position among batches keeps its rows.
        (BELOW.batch(6).shuffle(), None, 20, 6, None, False),
        (BELOW.batch(6)[1:], None, 20, 6, None, False),
        (BELOW.batch(6).repeat(2), None, 20, 6, None, False),
        (BELOW.batch(6).shuffle().map(double, name="a"), None, 20, 6, None, False),
    ],
)
def test_an_indexable_dataset_is_rows_and_a_batch(
    dataset: ps.Dataset,
    rows: ps.Dataset | None,
    total: int,
    size: int | None,
    above: list[str] | None,
    *,
    can_recut: bool,
) -> None:
    """Rows are below the outermost batch; maps above it are applied to merged batches, which may start anywhere."""
    program = batches_of(dataset)
    assert (program.total, program.can_recut) == (total, can_recut)
    assert rows is None or program.rows == rows.node
    assert (program.batch and program.batch.value.size) == size
    assert above is None or [step.name for step in program.above] == above
    assert plan_of(dataset).batch_size == (size or 1)


FILTERED = ps.range(20).batch(2).unbatch().filter(is_odd)
MAPPED = ps.range(20).map(double).filter(is_odd).map(double)


@pytest.mark.parametrize(
    ("dataset", "leaf", "positions", "batch"),
    [
        (MAPPED, MAPPED, 20, None),  # without a fold, any worker may leave elements out
        (FILTERED.batch(3).map(double).unbatch().filter(is_odd).batch(5), FILTERED, 20, 5),
        # Positions address the dataset below the step that leaves elements out.
        (ps.range(20)[:15].map(double, on_error="skip").filter(is_odd).batch(2), None, 15, 2),
        # The positions of the rows of short batches that are reordered aren't known.
        (ps.range(20).batch(3).shuffle().unbatch(), ps.range(20).batch(3).shuffle(), 7, None),
    ],
)
def test_the_inputs_of_a_streaming_dataset_end_below_its_first_fold(
    dataset: ps.Dataset, leaf: ps.Dataset | None, positions: int, batch: int | None
) -> None:
    """Workers compute the positions of the inputs; ranks share the outermost batch."""
    program = ordered_of(dataset)
    (node,) = inputs_of(program.node)
    assert leaf is None or node == leaf.node
    assert count_positions(node) == positions
    assert (program.batch and program.batch.value.rows) == (batch and (batch,))


def test_arguments_and_lengths() -> None:
    """0 workers compute inline, whatever the kind, else the default is threads; a plan counts steps of an epoch."""
    for workers in ("auto", "threads", "processes"):
        assert choose_place(0, workers) == ("inline", 0)
    assert [choose_place(number, kind) for number, kind in ((3, "auto"), (1, "threads"))] == [
        ("threads", 3),
        ("threads", 1),
    ]
    sizes = {"2GiB": 2 * 2**30, "1.5 MB": 1_500_000, " 64kib ": 64 * 1024, "10kb": 10_000, "123": 123, "1GB": 10**9}
    assert {text: parse_memory(text) for text in sizes} == sizes
    assert [parse_memory(memory) for memory in (None, 1, 1_000_000)] == [None, 1, 1_000_000]
    numbers = ps.range(20)
    datasets = (numbers.batch(6), numbers.batch(6, remainder="drop"), numbers, numbers.filter(is_odd).batch(2))
    assert [plan_of(dataset).length for dataset in datasets] == [4, 3, 20, 0]
    assert plan_of(numbers).shard == Shard(0, 1)


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
