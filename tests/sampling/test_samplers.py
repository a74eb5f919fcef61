"""Every sampler is a frozen value whose scalar and block forms are one function."""

import copy
import pickle
import re
from dataclasses import FrozenInstanceError, dataclass
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.errors import UsageError
from penstock.sampling import (
    Balance,
    Bits,
    BlockShuffle,
    CheckedSampler,
    Concatenation,
    FixedEpoch,
    FixedOrder,
    Reorder,
    Repeat,
    Sampler,
    ScalarSampler,
    Select,
    Shuffle,
    Slice,
    WeightedDraws,
    apply_block,
    facts_of,
    seed_position,
    seed_positions,
)
from tests.profiles import fewer, in_short

seeds = st.integers(0, 2**64 - 1)
lengths = st.one_of(st.integers(1, 20), st.integers(65530, 65540), st.integers(1, 2**40))


@dataclass(frozen=True)
class Rotated:
    """A user's sampler, with the scalar form alone."""

    length: int

    def __len__(self) -> int:
        return self.length

    def __call__(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the epoch and key of a position."""
        return epoch, (position + epoch) % self.length


@st.composite
def slices(draw: st.DrawFn) -> Slice:
    """Draw a slice forwards or backwards."""
    start, length = draw(st.integers(0, 2**40)), draw(lengths)
    step = draw(st.one_of(st.integers(-9, -1), st.integers(1, 9)))
    return Slice(start + (9 * length if step < 0 else 0), step, length)


OURS: dict[str, st.SearchStrategy[Sampler]] = {
    "Shuffle": st.builds(Shuffle, lengths, seeds),
    "Reorder": st.builds(Reorder, lengths, seeds),
    "Slice": slices(),
    "Select": st.lists(st.integers(0, 2**62), min_size=1, max_size=9).map(lambda keys: Select(np.array(keys))),
    "Repeat": st.builds(Repeat, lengths, st.one_of(st.none(), st.integers(1, 5)), reshuffle=st.booleans()),
    "Bits": st.lists(st.booleans(), min_size=1).map(lambda mask: Bits.from_mask([*mask, True])),
    "WeightedDraws": st.builds(
        WeightedDraws, st.lists(st.floats(0.5, 9), min_size=1, max_size=9).map(np.array), lengths, seeds
    ),
    "Balance": st.builds(
        Balance,
        st.lists(st.integers(0, 9), min_size=1).map(np.array)
        | st.integers(65, 90).map(lambda classes: np.arange(classes * 2) % classes),
        lengths,
        seeds,
    ),
    "BlockShuffle": st.builds(
        BlockShuffle,
        st.lists(st.integers(1, 40), min_size=1, max_size=30).map(lambda sizes: np.cumsum([0, *sizes])),
        *(seeds, st.sampled_from([1, 6, 16]), st.sampled_from([1, 6, 64])),
    ),
    "FixedEpoch": st.builds(FixedEpoch, lengths, st.integers(0, 2**62)),
}
OURS["FixedOrder"] = st.builds(FixedOrder, st.one_of(*OURS.values()), st.integers(1, 4))
ALL: dict[str, st.SearchStrategy[ScalarSampler]] = {
    **OURS,
    "a user's": st.builds(Rotated, lengths),
    "a user's, checked": st.builds(CheckedSampler, st.builds(Rotated, lengths), st.just(2**62)),
    "FixedOrder of a user's": st.builds(FixedOrder, st.builds(Rotated, lengths), st.integers(1, 4)),
}


@pytest.mark.parametrize("kind", ALL)
@in_short(15)
@given(data=st.data())
def test_scalar_and_block_forms_agree(kind: str, data: st.DataObject) -> None:
    """A block has the scalar form's results, with epochs that are all the same, in runs or mixed; copies are equal."""
    sampler = data.draw(ALL[kind])
    for twin in (pickle.loads(pickle.dumps(sampler)), copy.deepcopy(sampler)):
        assert twin == sampler
        assert hash(twin) == hash(sampler)
    few_epochs = st.sampled_from(data.draw(st.sampled_from([[0], [7], [0, 1], [5, 2, 0, 2**31]])))
    pairs = data.draw(st.lists(st.tuples(few_epochs, st.integers(0, len(sampler) - 1)), max_size=30))
    epochs = np.array([epoch for epoch, _ in pairs], np.int64)
    positions = np.array([position for _, position in pairs], np.int64)
    given_epochs, given_positions = epochs.copy(), positions.copy()
    result_epochs, keys = apply_block(sampler, epochs, positions)
    assert result_epochs.dtype == keys.dtype == np.int64
    answers = list(zip(result_epochs.tolist(), keys.tolist(), strict=True))
    assert answers == [sampler(epoch, position) for epoch, position in pairs]
    seeded = [part.tolist() for part in seed_positions(sampler, epochs, positions)]
    assert list(zip(*seeded, strict=True)) == [seed_position(sampler, epoch, position) for epoch, position in pairs]
    assert np.array_equal(epochs, given_epochs)
    assert np.array_equal(positions, given_positions)


@pytest.mark.parametrize("kind", ALL)
@fewer()
@given(data=st.data())
def test_the_facts_that_a_sampler_states_are_true(kind: str, data: st.DataObject) -> None:
    """No two random streams share an element, a fixed order is that of each epoch, and all are all."""
    sampler = data.draw(ALL[kind])
    facts = facts_of(sampler)
    positions = range(min(len(sampler), 100))
    orders = [[sampler(epoch, position) for position in positions] for epoch in range(3)]
    if facts.takes_once:
        streams = {(taken, seed_position(sampler, 0, at)) for at, taken in enumerate(orders[0])}
        assert len(streams) == len(set(orders[0]))
    if facts.is_fixed:
        assert [[key for _, key in order] for order in orders[1:]] == [[key for _, key in orders[0]]] * 2
    if facts.keeps_all and len(sampler) <= len(positions):
        keys = {key for _, key in orders[2]}
        assert keys == set(range(len(keys)))


@pytest.mark.parametrize("kind", OURS)
@fewer()
@given(row=st.integers(0, 9), data=st.data())
def test_positions_outside_are_index_errors(kind: str, row: int, data: st.DataObject) -> None:
    """Both forms raise IndexError for a position out of range, which would be another part's element."""
    sampler = data.draw(OURS[kind])
    length = len(sampler)
    outside = data.draw(st.one_of(st.integers(-(2**63), -1), st.integers(length, 2**63 - 1)))
    positions = np.zeros(10, np.int64)
    positions[row] = outside
    mixed = np.array([0, 0, 0, 1, 1, 0, 0, 0, 0, 0])
    message = rf"^position must be in \[0, {length}\); got position={outside}$"
    for epochs in (np.zeros(10, np.int64), np.ones(10, np.int64), mixed):
        with pytest.raises(IndexError, match=message):
            sampler.block(epochs, positions)
    for epoch in (0, 1):
        with pytest.raises(IndexError, match=message):
            sampler(epoch, outside)


def test_samplers_of_nothing() -> None:
    """A sampler may be empty: its length is 0, an empty block stays empty, and no position exists."""
    nothing = np.array([], np.int64)
    samplers: tuple[Sampler, ...] = (
        *(Shuffle(0, 1), Reorder(0, 1), Slice(0, 1, 0), Select(nothing)),
        *(Bits(np.array([], np.uint8), 0), Bits.from_mask(np.zeros(9, np.bool_)), WeightedDraws(np.ones(1), 0, 1)),
        *(Balance(np.ones(1, np.int64), 0, 1), Repeat(0, None), FixedEpoch(0, 1)),
    )
    for sampler in samplers:
        assert len(sampler) == 0
        epochs, keys = apply_block(sampler, nothing, nothing)
        assert epochs.shape == keys.shape == (0,)
        with pytest.raises(IndexError):
            sampler(0, 0)


def test_every_sampler_is_one_by_the_protocol() -> None:
    """Penstock's samplers have both forms; one with only the scalar form is a ScalarSampler; other objects are none."""
    assert isinstance(Shuffle(3, 1), Sampler)
    assert isinstance(Rotated(3), ScalarSampler)
    assert not isinstance(Rotated(3), Sampler)
    assert not isinstance([1, 2], ScalarSampler)
    with pytest.raises(FrozenInstanceError):
        cast("Any", Shuffle(3, 1)).length = 4


optional_ints = st.one_of(st.none(), st.integers(-25, 25))


@given(st.builds(slice, optional_ints, optional_ints, optional_ints.filter(lambda step: step != 0)), st.integers(0, 20))
def test_from_slice_takes_what_a_list_would(positions: slice, parent_length: int) -> None:
    """Slice.from_slice takes the same elements in the same order as slicing a list does."""
    taken = Slice.from_slice(positions, parent_length)
    assert [taken(4, position) for position in range(len(taken))] == [
        (4, key) for key in range(parent_length)[positions]
    ]


@given(st.integers(1, 20), st.data())
def test_select_takes_what_numpy_would(parent_length: int, data: st.DataObject) -> None:
    """Select.from_positions takes the same elements as NumPy's indexing, by lists, arrays and masks."""
    indices = data.draw(st.lists(st.integers(-parent_length, parent_length - 1), max_size=10))
    mask = data.draw(st.lists(st.booleans(), min_size=parent_length, max_size=parent_length))
    parent = np.arange(parent_length)
    expected = parent[np.array(indices, np.int64)].tolist()
    assert Select.from_positions(indices, parent_length).keys.tolist() == expected
    assert Select.from_positions(np.array(indices, np.int32), parent_length).keys.tolist() == expected
    assert Select.from_positions(mask, parent_length).keys.tolist() == parent[np.array(mask)].tolist()
    assert Select.from_positions(np.array(mask), parent_length).keys.tolist() == parent[np.array(mask)].tolist()


def test_select_is_independent_of_the_array_it_was_made_from() -> None:
    """Select copies its keys, which are read-only, also in a pickled copy."""
    keys = np.array([4, 4, 1])
    select = Select(keys)
    keys[0] = 9
    assert select.keys.tolist() == [4, 4, 1]
    for one in (select, pickle.loads(pickle.dumps(select)), copy.deepcopy(select)):
        with pytest.raises(ValueError, match="read-only"):
            one.keys[0] = 9
    assert select != Select(np.array([4, 1, 4]))
    assert select != (4, 4, 1)
    assert len({select, Select(cast("Any", np.array([4, 4, 1], np.uint8)))}) == 1


def test_endless_repetition_has_a_length() -> None:
    """Endless means as many passes as positions can count, at most 2**31."""
    for length, passes in ((0, 2**31), (10, 2**31), (2**31, 2**31), (2**31 + 1, 2**31 - 1), (2**62, 1)):
        repeat = Repeat(length, None)
        assert repeat.endless
        assert not Repeat(length, 1).endless
        assert repeat.passes == passes
        assert len(repeat) == length * passes <= 2**62


def test_passes_and_orders_go_through_the_epochs() -> None:
    """Epoch after epoch, the passes are the parent's epochs; without reshuffling, one epoch again.

    Reorder is the identity in epoch 0, and Shuffle in all others.
    """
    for epoch in range(3):
        again, same = Repeat(4, 3), Repeat(4, 3, reshuffle=False)
        passes = [(epoch * 3 + number, key) for number in range(3) for key in range(4)]
        assert [again(epoch, position) for position in range(len(again))] == passes
        assert [same(epoch, position) for position in range(len(same))] == [(epoch, key) for _, key in passes]
        orders = [(Reorder(20, 5)(epoch, at), Shuffle(20, 5)(epoch, at)) for at in range(20)]
        assert all(order == (shuffled if epoch else (0, at)) for at, (order, shuffled) in enumerate(orders))


def test_repetitions_without_end_in_one_another_have_every_epoch() -> None:
    """Passes of passes have no numbers above the largest epoch, and no two of the first hundred epochs are alike."""
    inner, outer = Repeat(3, None), Repeat(100, None)
    epochs, positions = outer.block(np.repeat(np.arange(100), 7), np.tile(np.arange(95, 102), 100))
    found = np.stack(inner.block(epochs, positions))
    assert found.T.tolist() == [list(inner(*outer(epoch, key))) for epoch in range(100) for key in range(95, 102)]
    assert found[0, :7].tolist() == [*[31, 32, 32, 32, 33], 2**31, 2**31]
    assert found.min() >= 0
    assert len({*found[0].tolist()}) == 100 * 4


def test_fixed_order_repeats_the_order_and_counts_the_epoch() -> None:
    """The order repeats every `cycle` epochs, while the epoch is the real one; FixedEpoch has one epoch."""
    shuffle = Shuffle(9, 5)
    fixed = FixedOrder(shuffle, 3)
    assert len(fixed) == 9
    for epoch in range(7):
        orders = [fixed(epoch, position) for position in range(9)]
        assert orders == [(epoch, shuffle(epoch % 3, position)[1]) for position in range(9)]
    once = FixedEpoch(3, epoch=5)
    assert [once(epoch, position) for epoch in (0, 9) for position in range(3)] == [(5, 0), (5, 1), (5, 2)] * 2


@dataclass(frozen=True)
class Wrong:
    """A user's sampler with a fault."""

    answer: object
    block_answer: object = None

    def __len__(self) -> int:
        return 3

    def __call__(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the wrong result."""
        del epoch, position
        return cast("tuple[int, int]", self.answer)


@dataclass(frozen=True)
class WrongBlock(Wrong):
    """The same for the block form."""

    is_pair: bool = True

    def block(
        self, epochs: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the wrong keys, in a pair or alone."""
        del positions
        keys: Any = self.block_answer
        return (epochs, keys) if self.is_pair else keys


def test_a_users_scalar_form_must_give_two_integers() -> None:
    """A result other than (epoch, key) is a UsageError that names the sampler and the result, in each form."""
    for answer in (3, (3,), (0, 1, 2), (0, 1.0), (0, None), None, (0, 2**63)):
        sampler = Wrong(answer)
        expected = f"a sampler must return two integers, (epoch, key); {sampler!r} returned {answer!r}. Return both."
        for each in (sampler, CheckedSampler(sampler, 10)):
            with pytest.raises(UsageError) as caught:
                apply_block(each, np.zeros(2, np.int64), np.arange(2))
            assert str(caught.value) == expected
        with pytest.raises(UsageError, match=re.escape(expected)):
            CheckedSampler(sampler, 10)(0, 0)


def test_a_users_block_form_must_give_int64_arrays() -> None:
    """Arrays of a wrong length, type or shape are a UsageError."""
    for keys, message in (
        (np.arange(3), "block must return as many epochs and keys as it takes positions; .* took 2 and returned 2 e"),
        (np.zeros(2), r"the keys of a sampler's block must be an int64 .*; got dtype float64 and shape \(2,\)"),
        (np.zeros((2, 1), np.int64), r"the keys .* got dtype int64 and shape \(2, 1\)"),
    ):
        with pytest.raises(UsageError, match=message):
            apply_block(WrongBlock(None, keys), np.zeros(2, np.int64), np.arange(2))


def test_a_users_block_form_must_give_a_pair() -> None:
    """A rule of a mixture, whose block form returns three arrays, and one that returns none are UsageErrors."""
    rule: Any = Concatenation((2, 1))
    for sampler in (rule, WrongBlock(None, is_pair=False)):
        with pytest.raises(UsageError, match=r"must return a pair of arrays, \(epochs, keys\); .* Return both\."):
            apply_block(sampler, np.zeros(2, np.int64), np.arange(2))
