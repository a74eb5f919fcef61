"""A concatenation is its components' positions, listed one component after the other."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.sampling import Concatenation, MixtureRule

lengths_of_some = st.lists(st.integers(0, 12), max_size=8).map(tuple)


@given(lengths_of_some, st.integers(0, 2**62), st.data())
def test_a_concatenation_is_the_list_of_all_positions(
    lengths: tuple[int, ...], epoch: int, data: st.DataObject
) -> None:
    """Both forms answer with each component's positions in turn, in any order of asking; empty ones never come."""
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
    """A run of positions, mostly in one component, and mixed epochs are answered alike."""
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
    """Neither form answers for a position outside."""
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
