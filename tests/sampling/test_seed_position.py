"""Parts and passes map the seed position; samplers that only reorder leave it unchanged."""

import numpy as np

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
    seed_positions,
)


def places(sampler: ScalarSampler, epoch: int) -> list[tuple[int, int]]:
    """Return the seed positions of all elements of one epoch."""
    epochs, positions = seed_positions(sampler, np.full(len(sampler), epoch), np.arange(len(sampler)))
    return list(zip(epochs.tolist(), positions.tolist(), strict=True))


def test_samplers_that_only_reorder_leave_it() -> None:
    """Shuffles and selections leave seed positions, so that an element taken twice is augmented in two ways."""
    own: tuple[Sampler, ...] = (
        *(Shuffle(12, 1), Reorder(12, 1), Select(np.array([5, 5, 1]))),
        *(WeightedDraws(np.ones(3), 12, 1), Balance(np.arange(3), 12, 1)),
    )
    for sampler in own:
        expected = [(3, position) for position in range(len(sampler))]
        assert places(sampler, 3) == expected
        assert places(FixedOrder(sampler), 3) == expected


def test_siblings_share_none() -> None:
    """Slices, fixed shards and filters of one dataset have no seed position in common, and together have all."""
    slices = [Slice(start, 3, 4) for start in range(3)]
    for shards in (slices, [Bits.from_mask(np.arange(12) % 5 == rest) for rest in range(5)]):
        everywhere = [place for shard in shards for place in places(shard, 2)]
        assert sorted(everywhere) == [(2, position) for position in range(12)]
    assert places(CheckedSampler(slices[1], 12), 3) == places(slices[1], 3)


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
