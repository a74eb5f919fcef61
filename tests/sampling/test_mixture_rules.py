"""A concatenation is the list of its components; every rule names invalid arguments."""

import pickle

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
    size = len(pickle.dumps(concatenation))
    expected = [(component, epoch, place) for component, length in enumerate(lengths) for place in range(length)]
    assert len(concatenation) == len(expected)
    assert len(pickle.dumps(concatenation)) == size
    twin = pickle.loads(pickle.dumps(concatenation))
    assert (twin, hash(twin), len(twin)) == (concatenation, hash(concatenation), len(expected))
    assert isinstance(twin, MixtureRule)
    assert [concatenation(epoch, position) for position in range(len(expected))] == expected
    rows = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=20)) if expected else []
    answers = concatenation.block(np.full(len(rows), epoch), np.array(rows, np.int64))
    assert all(answer.dtype == np.int64 for answer in answers)
    assert list(zip(*(answer.tolist() for answer in answers), strict=True)) == [expected[row] for row in rows]


def test_positions_outside_are_index_errors() -> None:
    """Both forms raise IndexError for a position out of range."""
    for lengths in ((), (0,), (3, 0, 4)):
        concatenation = Concatenation(lengths)
        for position in (-1, sum(lengths), 2**63 - 1):
            with pytest.raises(IndexError, match="position must be in"):
                concatenation(0, position)
            with pytest.raises(IndexError, match="position must be in"):
                concatenation.block(np.zeros(1, np.int64), np.array([position]))


def test_blocks_within_one_component() -> None:
    """Both forms agree for a run of positions, mostly in one component, and for mixed epochs."""
    concatenation = Concatenation((100, 100, 0, 100, 2**40))
    for start in range(0, 320, 31):
        rows = start + np.arange(60)
        epochs = rows % 3
        answers = concatenation.block(epochs, rows)
        pairs = [concatenation(*pair) for pair in zip(epochs.tolist(), rows.tolist(), strict=True)]
        assert list(zip(*(answer.tolist() for answer in answers), strict=True)) == pairs


def test_an_epoch_whose_passes_have_no_numbers_is_another_one() -> None:
    """An epoch so late that its passes would not fit 64 bits has passes of an epoch that is drawn from it."""
    mixture = WeightedMixture(("a",), (10,), schedule=((0, (1,)),), stop="never", seed=7)
    assert mixture(2**32 - 2, 0) == (0, (2**32 - 2) * 2**31, 0)
    late = [2**32 - 2, 2**32 - 1, 2**62, 2**63 - 1]
    _, epochs, _ = mixture.block(np.array(late), np.zeros(4, np.int64))
    assert epochs.tolist() == [mixture(epoch, 0)[1] for epoch in late]
    assert len({*epochs.tolist()}) == 4
    assert min(epochs) >= 0
    for call in (lambda: mixture(-1, 0), lambda: mixture.block(np.array([-1]), np.array([0]))):
        with pytest.raises(UsageError, match=r"epoch must be at least 0; got epoch=-1"):
            call()
