"""A concatenation is the list of its components; every rule names invalid arguments."""

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.sampling import Concatenation, MixtureRule, WeightedMixture

lengths_of_some = st.lists(st.integers(0, 12), max_size=8).map(tuple)


@given(lengths_of_some, st.integers(0, 2**62), st.data())
def test_a_concatenation_is_the_list_of_all_positions(
    lengths: tuple[int, ...], epoch: int, data: st.DataObject
) -> None:
    """Both forms return each component's positions in turn, for calls in any order; empty components never occur."""
    concatenation = Concatenation(lengths)
    expected = [(component, epoch, place) for component, length in enumerate(lengths) for place in range(length)]
    assert len(concatenation) == len(expected)
    assert [concatenation(epoch, position) for position in range(len(expected))] == expected
    rows = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=20)) if expected else []
    answers = concatenation.block(np.full(len(rows), epoch), np.array(rows, np.int64))
    assert all(answer.dtype == np.int64 for answer in answers)
    assert list(zip(*(answer.tolist() for answer in answers), strict=True)) == [expected[row] for row in rows]


@given(st.integers(0, 3), st.integers(0, 5), st.data())
def test_blocks_within_one_component(start: int, epoch: int, data: st.DataObject) -> None:
    """Both forms agree for a run of positions, mostly in one component, and for mixed epochs."""
    concatenation = Concatenation((100, 100, 0, 100, 2**40))
    rows = start * 97 + np.arange(data.draw(st.integers(1, 60)))
    epochs = (rows + epoch) % 3
    answers = concatenation.block(epochs, rows)
    pairs = zip(epochs.tolist(), rows.tolist(), strict=True)
    assert list(zip(*(answer.tolist() for answer in answers), strict=True)) == [concatenation(*pair) for pair in pairs]


@given(lengths_of_some)
def test_a_concatenation_is_a_value(lengths: tuple[int, ...]) -> None:
    """A pickled one is equal to the first, hashes alike and takes nothing computed with it."""
    concatenation = Concatenation(lengths)
    size = len(pickle.dumps(concatenation))
    assert len(concatenation) == sum(lengths)
    assert len(pickle.dumps(concatenation)) == size
    twin = pickle.loads(pickle.dumps(concatenation))
    assert twin == concatenation
    assert hash(twin) == hash(concatenation)
    assert len(twin) == sum(lengths)
    assert isinstance(twin, MixtureRule)


@pytest.mark.parametrize("lengths", [(), (0,), (3, 0, 4)])
def test_positions_outside_are_index_errors(lengths: tuple[int, ...]) -> None:
    """Both forms raise IndexError for a position out of range."""
    concatenation = Concatenation(lengths)
    for position in (-1, sum(lengths), 2**63 - 1):
        with pytest.raises(IndexError, match="position must be in"):
            concatenation(0, position)
        with pytest.raises(IndexError, match="position must be in"):
            concatenation.block(np.zeros(1, np.int64), np.array([position]))


def test_lengths_out_of_range_are_named() -> None:
    """A negative length, and a sum over 2**62, are UsageErrors."""
    with pytest.raises(UsageError, match=r"length must be an integer in \[0, 2\*\*62\]; got length=-1"):
        Concatenation((1, -1))
    with pytest.raises(UsageError, match=r"add up to at most 2\*\*62; got 4611686018427387905 from 2 components"):
        Concatenation((2**62, 1))


def test_epochs_that_passes_cannot_count_are_named() -> None:
    """An epoch so late that its passes would not fit 64 bits is an error, not a wrong number."""
    mixture = WeightedMixture(("a",), (10,), schedule=((0, (1,)),), stop="never", seed=7)
    assert mixture(2**32 - 2, 0) == (0, (2**32 - 2) * 2**31, 0)
    for epoch in (-1, 2**32 - 1):
        with pytest.raises(UsageError, match=r"epoch must be in \[0, 4294967294\].*got epoch="):
            mixture(epoch, 0)
        with pytest.raises(UsageError, match="epoch must be in"):
            mixture.block(np.array([epoch]), np.array([0]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": ()}, "names must be at least one, all different; got (). Name each component once."),
        ({"names": ("a", "a")}, "names must be at least one, all different; got ('a', 'a'). Name each component once."),
        ({"lengths": (1,)}, "each component must have a length; got 1 lengths for 2 names. Pass one for each."),
        ({"lengths": (1, -1)}, "length must be an integer in [0, 2**62]; got length=-1. Pass the parent's len()."),
        (
            {"schedule": ()},
            "a schedule must begin at position 0 and its positions must rise; got []. "
            "Pass the first weights with position 0.",
        ),
        (
            {"schedule": ((0, (1, 1)), (5, (1, 2)), (5, (2, 1)))},
            "a schedule must begin at position 0 and its positions must rise; got [0, 5, 5]. "
            "Pass the first weights with position 0.",
        ),
        (
            {"schedule": ((0, (0, 0)),)},
            "each of the 2 components must have a weight, and one of them over 0; got (0, 0). "
            "Pass 0 for components to leave out.",
        ),
        (
            {"schedule": ((0, (1, 1, 1)),)},
            "each of the 2 components must have a weight, and one of them over 0; got (1, 1, 1). "
            "Pass 0 for components to leave out.",
        ),
        (
            {"schedule": ((0, (2**16, 1)),)},
            "weights must add up to at most 65536; got weights that add up to 65537. "
            "Make them with penstock.sampling.integer_weights.",
        ),
        (
            {"schedule": ((0, (0.5, 1)),)},
            "weight must be an integer in [0, 2**62]; got weight=0.5. "
            "Make them with penstock.sampling.integer_weights.",
        ),
        ({"stop": "some"}, "stop must be 'first', 'all' or 'never'; got stop='some'. Pass one of them."),
        (
            {"stop": "never", "lengths": (1, 0)},
            "only components with elements can repeat; got stop='never' and 'b' of length 0. "
            "Leave it out, or pass stop='all'.",
        ),
        ({"seed": -1}, "seed must be an integer in [0, 2**64); got seed=-1. Pass any such number and keep it."),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], message: str) -> None:
    """An invalid argument is a UsageError with the rule, the value and the remedy."""
    right = WeightedMixture(("a", "b"), (5, 5), schedule=((0, (1, 1)),), stop="first", seed=7)
    with pytest.raises(UsageError) as caught:
        dataclasses.replace(right, **change)
    assert str(caught.value) == message
