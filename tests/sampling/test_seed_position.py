"""Parts and passes map the seed position; samplers that only reorder leave it unchanged."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sampling import (
    Balance,
    Bits,
    CheckedSampler,
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
    seed_position,
    seed_positions,
)

samplers: st.SearchStrategy[Sampler] = st.one_of(
    st.just(Shuffle(12, 1)),
    st.just(Reorder(12, 1)),
    st.builds(Slice, st.integers(0, 9), st.integers(1, 5), st.just(12)),
    st.just(Select(np.arange(12) * 3)),
    st.just(Bits.from_mask(np.arange(30) % 5 < 2)),
    st.just(WeightedDraws(np.ones(5), 12, 1)),
    st.just(Balance(np.arange(5), 12, 1)),
    st.builds(Repeat, st.just(4), st.just(3), reshuffle=st.booleans()),
    st.builds(FixedEpoch, st.just(12), st.integers(0, 3)),
)
all_samplers = st.one_of(
    samplers, st.builds(FixedOrder, samplers, st.integers(1, 3)), st.builds(CheckedSampler, samplers, st.just(2**62))
)


def places(sampler: ScalarSampler, epoch: int) -> list[tuple[int, int]]:
    """Return the seed positions of all elements of one epoch."""
    epochs, positions = seed_positions(sampler, np.full(len(sampler), epoch), np.arange(len(sampler)))
    return list(zip(epochs.tolist(), positions.tolist(), strict=True))


@given(all_samplers, st.integers(0, 9))
def test_scalar_and_block_forms_agree(sampler: ScalarSampler, epoch: int) -> None:
    """A block of seed positions has the results of single calls."""
    assert places(sampler, epoch) == [seed_position(sampler, epoch, position) for position in range(len(sampler))]


@pytest.mark.parametrize(
    "sampler",
    [
        Shuffle(12, 1),
        Reorder(12, 1),
        Select(np.array([5, 5, 1])),
        WeightedDraws(np.ones(3), 12, 1),
        Balance(np.arange(3), 12, 1),
    ],
)
def test_samplers_that_only_reorder_leave_it(sampler: Sampler) -> None:
    """Shuffles and selections leave seed positions, so that an element taken twice is augmented in two ways."""
    expected = [(3, position) for position in range(len(sampler))]
    assert places(sampler, 3) == expected
    assert places(FixedOrder(sampler), 3) == expected


@pytest.mark.parametrize(
    "shards",
    [[Slice(start, 3, 4) for start in range(3)], [Bits.from_mask(np.arange(12) % 5 == rest) for rest in range(5)]],
)
def test_siblings_share_none(shards: list[Sampler]) -> None:
    """Slices, fixed shards and filters of one dataset have no seed position in common, and together have all."""
    everywhere = [place for shard in shards for place in places(shard, 2)]
    assert sorted(everywhere) == [(2, position) for position in range(12)]


def test_passes_share_none() -> None:
    """Each pass of a repeated dataset, in any epoch, has seed positions of its own."""
    repeat = Repeat(4, times=3)
    everywhere = places(repeat, 0) + places(repeat, 1)
    assert everywhere == [(epoch, position) for epoch in range(6) for position in range(4)]


def test_a_fixed_epoch_has_one_epochs_randomness() -> None:
    """A dataset fixed at an epoch has that epoch's seed positions in all of its epochs."""
    assert places(FixedEpoch(4, epoch=2), 0) == places(FixedEpoch(4, epoch=2), 7) == [(2, p) for p in range(4)]


def test_a_fixed_order_still_has_new_randomness_every_epoch() -> None:
    """FixedOrder repeats the order and not the randomness: no two epochs share a seed position, passes included."""
    fixed = FixedOrder(Repeat(4, times=3), cycle=2)
    everywhere = [place for epoch in range(5) for place in places(fixed, epoch)]
    assert len(set(everywhere)) == len(everywhere) == 60
    assert everywhere == [place for epoch in range(5) for place in places(Repeat(4, times=3), epoch)]
