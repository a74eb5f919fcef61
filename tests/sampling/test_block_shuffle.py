"""A block shuffle is an exact permutation of every epoch that reads each block once, with few of them open."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.sampling import BlockShuffle, Permutation
from tests.sampling.permutation_oracle import network_key
from tests.seeds import derive


@st.composite
def shuffles(draw: st.DrawFn) -> BlockShuffle:
    """Draw a shuffle of blocks of any sizes, empty ones included."""
    sizes = draw(st.lists(st.sampled_from([0, 1, 2, 3, 7, 40]), max_size=30))
    live, rows = draw(st.sampled_from([1, 2, 6, 16, 300])), draw(st.sampled_from([1, 2, 6, 7, 64, 1000]))
    return BlockShuffle(np.cumsum([0, *sizes]), draw(st.integers(0, 2**64 - 1)), live, rows)


def keys_of(shuffle: BlockShuffle, epoch: int) -> NDArray[np.int64]:
    """Return the keys of an epoch, in order."""
    return shuffle.block(np.full(len(shuffle), epoch), np.arange(len(shuffle)))[1]


def oracle(shuffle: BlockShuffle, epoch: int) -> list[int]:
    """Return the keys of an epoch, computed from the specification with lists of all positions."""
    count, total = len(shuffle.bounds) - 1, len(shuffle)
    columns = max(each for each in range(1, 65) if shuffle.rows % each == shuffle.live % each == 0)
    width, lane_count = shuffle.rows // columns, shuffle.live // columns
    places: list[list[int]] = [[] for _ in range(columns)]
    for position in range(total):
        places[position % shuffle.rows // width].append(position)
    permutation = Permutation(count, derive(shuffle.seed, "line"))
    line = [
        (block, key)
        for block in map(permutation, range(count))
        for key in range(shuffle.bounds[block], shuffle.bounds[block + 1])
    ]
    keys, piece_number, start = [0] * total, 0, 0
    for column, positions in enumerate(places):
        pieces: list[list[int]] = []
        for index, (block, key) in enumerate(line[start : start + len(positions)]):
            if index == 0 or block != line[start + index - 1][0]:
                pieces.append([])
            pieces[-1].append(key)
        start += len(positions)
        numbers = range(piece_number, piece_number + len(pieces))
        piece_number += len(pieces)
        order = sorted(numbers, key=lambda number: derive(derive(shuffle.seed, epoch, "order"), number))
        taken = iter(positions)
        lanes = _lanes(shuffle, epoch, [pieces[number - numbers.start] for number in order], lane_count)
        for number in range(len(lanes[0])):
            live = sum(len(lane) > number for lane in lanes)
            seed = derive(shuffle.seed, epoch, "lane")
            for turn in range(live):
                lane = network_key(live, derive(seed, column, number), turn)
                keys[next(taken)] = lanes[lane][number]
    return keys


def _lanes(shuffle: BlockShuffle, epoch: int, pieces: list[list[int]], count: int) -> list[list[int]]:
    mean = max(1, len(shuffle) // max(1, len(shuffle.bounds) - 1))
    cells = [(number, key) for number, piece in enumerate(pieces) for key in piece]
    least, longer = divmod(len(cells), count)
    lanes: list[list[int]] = []
    start = 0
    for lane in range(count):
        part = cells[start : start + least + (lane < longer)]
        start += len(part)
        phase = lane * mean // count % max(1, len(part))
        lanes.append(
            [
                key
                for side in (part[phase:], part[:phase])
                for piece in dict.fromkeys(number for number, _ in side)
                for key in _shuffled(
                    [key for number, key in side if number == piece], derive(shuffle.seed, epoch, "piece")
                )
            ]
        )
    return lanes


def _shuffled(keys: list[int], seed: int) -> list[int]:
    return [keys[0] + network_key(len(keys), derive(seed, keys[0]), place) for place in range(len(keys))]


@given(shuffles(), st.integers(0, 3))
def test_an_epoch_is_the_specified_order_of_all_keys(shuffle: BlockShuffle, epoch: int) -> None:
    """The keys are those of the specification, each once."""
    keys = keys_of(shuffle, epoch).tolist()
    assert keys == oracle(shuffle, epoch)
    assert sorted(keys) == list(range(len(shuffle)))


@pytest.mark.parametrize(("live", "rows"), [(16, 64), (32, 48)])
def test_few_blocks_are_open_and_each_is_read_once(live: int, rows: int) -> None:
    """At any time about `live` blocks are open, and only those that a border cuts are read twice."""
    shuffle = BlockShuffle(np.arange(0, 65_537, 64), 5, live, rows)
    runs = _runs(keys_of(shuffle, 0) // 64, idle=4 * live)
    opened = np.zeros(len(shuffle) + 1, np.int64)
    for first, last in runs:
        opened[first] += 1
        opened[last + 1] -= 1
    assert opened.cumsum().max() <= 1.1 * live
    assert len(runs) <= 1024 + 2 * (live + shuffle.columns)


def _runs(blocks: NDArray[np.int64], idle: int) -> list[tuple[int, int]]:
    """Return the first and last position of each use of a block; one that isn't used for long is closed."""
    runs: list[tuple[int, int]] = []
    for block in np.unique(blocks):
        places = np.flatnonzero(blocks == block)
        cuts = np.flatnonzero(np.diff(places) > 64 * idle)
        firsts, lasts = [0, *(cuts + 1)], [*cuts, len(places) - 1]
        runs += [(int(places[first]), int(places[last])) for first, last in zip(firsts, lasts, strict=True)]
    return runs


@pytest.mark.parametrize(("live", "most"), [(64, 6.0), (256, 1.5)])
def test_batches_mix_by_the_number_of_live_blocks(live: int, most: float) -> None:
    """The mean of a sorted feature over a batch of b varies at most b / live times as much as by chance."""
    shuffle = BlockShuffle(np.arange(0, 131_073, 128), 3, live, 256)
    means = np.concatenate([keys_of(shuffle, epoch).reshape(-1, 256).mean(axis=1) for epoch in range(4)])
    by_chance = 131_072**2 / 12 / 256
    assert means.var() / by_chance < most


def test_the_order_never_changes() -> None:
    """Recorded keys of two epochs."""
    shuffle = BlockShuffle(np.array([0, 10, 14, 30, 31, 64]), 7, 4, 8)
    assert keys_of(shuffle, 0)[:12].tolist() == [19, 22, 41, 46, 51, 50, 5, 7, 24, 23, 45, 33]
    assert keys_of(shuffle, 5)[:12].tolist() == [17, 16, 37, 46, 49, 51, 30, 5, 22, 21, 45, 39]
