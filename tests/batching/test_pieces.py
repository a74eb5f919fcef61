"""Documents are cut into pieces, and plans hold every token of them, once."""

import pickle
import re
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.batching import PackingPlan, concat_then_split, plan_packing
from penstock.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

How: TypeAlias = Literal["best_fit", "split"]
Long: TypeAlias = Literal["split", "drop"]
lengths_lists = st.lists(st.integers(0, 30), max_size=60)
capacities = st.integers(1, 12)


def listed(plan: PackingPlan) -> list[list[tuple[int, int, int]]]:
    """Return a plan's pieces, sequence by sequence."""
    pieces = list(zip(plan.document.tolist(), plan.offset.tolist(), plan.length.tolist(), strict=True))
    return [pieces[first:last] for first, last in zip(plan.bounds[:-1].tolist(), plan.bounds[1:].tolist(), strict=True)]


@given(lengths_lists, capacities, st.sampled_from(["split", "drop"]))
def test_long_documents_are_cut_or_dropped(lengths: list[int], capacity: int, long: Long) -> None:
    """A document is cut every `capacity` tokens, in order, or documents longer than that are dropped."""
    expected = [
        (document, offset, min(capacity, length - offset))
        for document, length in enumerate(lengths)
        if long == "split" or length <= capacity
        for offset in range(0, length, capacity)
    ]
    plan = plan_packing(lengths, capacity, long=long)
    assert expected == sorted(piece for sequence in listed(plan) for piece in sequence)


@given(lengths_lists, capacities, st.data())
def test_documents_are_concatenated(lengths: list[int], capacity: int, data: st.DataObject) -> None:
    """The pieces are those of a walk over all tokens, place by place."""
    room = data.draw(st.integers(1, capacity))
    expected: list[list[int]] = []
    sequence, place = 0, capacity - room
    for document, length in enumerate(lengths):
        for token in range(length):
            if place == capacity:
                sequence, place = sequence + 1, 0
            if token == 0 or place == 0:
                expected.append([document, token, 0, sequence, place])
            expected[-1][2] += 1
            place += 1
    pieces = concat_then_split(lengths, capacity, room=room)
    assert expected == np.stack(pieces, axis=1).tolist()


@given(lengths_lists, capacities, st.sampled_from(["best_fit", "split"]), st.integers(1, 9), st.integers(0, 3))
def test_a_plan_has_every_token_once(lengths: list[int], capacity: int, how: How, bins: int, most: int) -> None:
    """The pieces of each document cover it, no sequence is too full or empty, and the order is the documents'."""
    plan = plan_packing(lengths, capacity, how=how, bins=bins, max_documents=most)
    sequences = listed(plan)
    tokens = [
        (document, offset + place)
        for sequence in sequences
        for document, offset, length in sequence
        for place in range(length)
    ]
    assert sorted(tokens) == [(document, place) for document, length in enumerate(lengths) for place in range(length)]
    assert all(0 < sum(piece[2] for piece in sequence) <= capacity for sequence in sequences)
    assert all(sequence == sorted(sequence) for sequence in sequences)
    assert sequences == sorted(sequences)
    if how == "best_fit":
        assert all(not most or len(sequence) <= most for sequence in sequences)
        assert all(offset % capacity == 0 for sequence in sequences for _, offset, _ in sequence)
    else:
        assert all(sum(piece[2] for piece in sequence) == capacity for sequence in sequences[:-1])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40), st.integers(1, 9))
def test_a_plan_of_features_fits_in_each(lengths: list[tuple[int, int]], bins: int) -> None:
    """Every document that fits is in one sequence, and no feature of a sequence is too full."""
    table = np.array(lengths, np.int64).reshape(-1, 2)
    plan = plan_packing(table, (8, 5), bins=bins, long="drop")
    expected = [number for number, (one, other) in enumerate(lengths) if one + other and one <= 8 and other <= 5]
    assert expected == sorted(plan.document.tolist())
    assert (plan.length == table[plan.document]).all()
    for first, last in zip(plan.bounds[:-1], plan.bounds[1:], strict=True):
        assert (plan.length[first:last].sum(axis=0) <= (8, 5)).all()


@given(lengths_lists, st.data())
def test_some_sequences_are_taken(lengths: list[int], data: st.DataObject) -> None:
    """A part of a plan has the pieces of its sequences, also with renumbered documents."""
    plan = plan_packing(lengths, 10)
    chosen = data.draw(st.lists(st.integers(0, len(plan) - 1), max_size=8)) if len(plan) else []
    part = plan.take(chosen)
    assert [listed(plan)[number] for number in chosen] == listed(part)
    documents, local = part.renumbered()
    assert sorted({piece[0] for sequence in listed(part) for piece in sequence}) == documents.tolist()
    assert part.document.tolist() == documents[local.document].tolist()
    assert part.bounds.tolist() == local.bounds.tolist()


def test_planning_ahead_fills_sequences() -> None:
    """Documents of mixed lengths leave less than half a percent of the room free."""
    quantiles = np.linspace(-2.5, 2.5, 20_000)
    lengths = np.maximum(1, np.exp(quantiles + 6)).astype(np.int64)
    lengths = lengths[(np.arange(20_000) * 7919) % 20_000]
    plan = plan_packing(lengths, 2048)
    assert lengths.sum() / (len(plan) * 2048) > 0.995


def test_a_plan_is_a_value() -> None:
    """Plans of the same pieces are equal, hash alike, survive pickling, and cannot be written to."""
    plan = plan_packing([5, 3, 2, 4, 20], 6)
    again = pickle.loads(pickle.dumps(plan))
    assert plan == again
    assert hash(plan) == hash(again)
    assert plan != plan_packing([5, 3, 2, 4, 19], 6)
    length = np.array([2, 3])
    copied = PackingPlan(np.array([0, 1]), np.array([0, 0]), length, np.array([0, 2]))
    length[0] = 9
    assert listed(copied) == [[(0, 0, 2), (1, 0, 3)]]
    arrays: list[NDArray[Any]] = [again.document, again.offset, again.length, again.bounds]
    assert not any(array.flags.writeable for array in arrays)


WRONG: list[tuple[Any, Any, dict[str, Any], str]] = [
    ([1], 0, {}, "capacity must be at least 1; got capacity=0"),
    ([-1], 5, {}, "lengths must not be negative; got -1 for document 0"),
    ([0.5], 5, {}, "lengths must be integers; got dtype float64"),
    ([[1]], 5, {"how": "split"}, "lengths must have one axis here; got shape (1, 1)"),
    ([1], [5], {"how": "split"}, "how='split' takes one capacity; got [5]"),
    ([[1, 2]], [5], {}, "lengths must have a column for each capacity"),
    ([[1, 2]], [5, 0], {}, "capacity must be at least 1; got capacity=0"),
    ([[1, 2], [6, 1]], [5, 5], {}, "cannot be split; document 1 has [6, 1] with capacity [5, 5]"),
    ([1], 5, {"how": "first"}, "how must be 'best_fit' or 'split'; got how='first'"),
    ([1], 5, {"long": "cut"}, "long must be 'split' or 'drop'; got long='cut'"),
    ([1], 5, {"bins": 0}, "bins must be in [1, 2**31); got bins=0"),
    ([], 5, {"max_documents": -1}, "max_documents must be at least 0; got -1"),
]


def test_wrong_plans_are_refused() -> None:
    """A wrong argument is named, with its value."""
    for lengths, capacity, arguments, message in WRONG:
        with pytest.raises(UsageError, match=re.escape(message)):
            plan_packing(lengths, capacity, **arguments)
    with pytest.raises(UsageError, match=r"room must be in \[1, 5\], the capacity; got room=0"):
        concat_then_split([1], 5, room=0)
    with pytest.raises(UsageError, match="a feature can be taken only if documents have several lengths"):
        plan_packing([1], 5).feature(0)
    with pytest.raises(IndexError, match=r"sequences must be in \[0, 1\); got -1 to 0"):
        plan_packing([1], 5).take([0, -1])


def test_wrong_arrays_are_refused() -> None:
    """The arrays of a plan must fit together."""
    zero = np.zeros(1, np.int64)
    for length, bounds, message in (
        (zero[:0], zero, "document, offset and length must have one value for each piece"),
        (zero, zero, "bounds must go from 0 to the number of pieces, 1; got shape (1,), from [0] to [0]"),
        (zero, zero[:0], "bounds must go from 0 to the number of pieces, 1; got shape (0,), from [] to []"),
        (zero, np.array([0, 2, 1]), "bounds must never decrease"),
    ):
        with pytest.raises(UsageError, match=re.escape(message)):
            PackingPlan(zero, zero, length, bounds)
