"""A permutation is a bijection for every length, and its order is frozen."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from penstock.errors import UsageError
from penstock.sampling import Permutation
from tests.sampling.permutation_oracle import PermutationOracle

POWERS = [2**k for k in (2, 3, 7, 10, 15, 16, 17, 18, 20)]
AWKWARD = sorted(
    {0, 1, 2, 3, 5, 7, 13, 997, 7919, 65521, 65539, 104729, 1299709, 4**10 + 1}
    | {power + offset for power in POWERS for offset in (-1, 0, 1)}
)
seeds = st.integers(0, 2**64 - 1)
lengths = st.one_of(st.integers(1, 300), st.integers(65530, 65550), st.integers(1, 2**62))

# (length, seed): the keys at positions 0, 1, 2, 3 and length - 1. Never to be changed: runs are resumed by them.
GOLDEN = {
    (10, 0): [3, 4, 9, 0, 7],
    (10, 1): [0, 7, 6, 9, 4],
    (1000, 42): [76, 296, 26, 749, 262],
    (65536, 7): [810, 9656, 62813, 59917, 50450],
    (65537, 7): [16969, 45878, 28141, 3914, 42008],
    (131072, 7): [43608, 33555, 38, 65066, 1628],
    (1281167, 0): [1269511, 1186069, 643973, 5842, 563025],
    (1281167, 18446744073709551615): [638222, 438124, 680068, 677288, 1278741],
    (4294967297, 3): [989586121, 90977668, 3177546188, 2405633837, 3610831984],
    (1099511627777, 3): [324265625054, 832110510072, 640389111180, 45508433224, 126099560745],
    (4611686018427387904, 9): [
        1822701614010462888,
        2924799889736299089,
        2203446888989004601,
        1081222624635869881,
        1542113581302036001,
    ],
}


@pytest.mark.parametrize("length", AWKWARD)
def test_every_length_gives_a_bijection(length: int) -> None:
    """Every key of [0, length) has exactly one position, and the inverse finds it."""
    permutation = Permutation(length, seed=length % 17)
    positions = np.arange(length)
    keys = permutation.block(positions)
    assert keys.dtype == np.int64
    assert keys.shape == (length,)
    assert np.array_equal(np.sort(keys), positions)
    assert np.array_equal(permutation.inverse_block(keys), positions)


@pytest.mark.parametrize("length", [2**31, 2**32 + 1, 2**40 + 1, 10**12, 2**61 + 1, 2**62 - 1, 2**62])
def test_huge_lengths_are_one_to_one_in_samples(length: int) -> None:
    """For lengths too large for a table, different positions have different keys, and the inverse finds them."""
    permutation = Permutation(length, seed=11)
    ends = [np.arange(5000), np.arange(length - 5000, length)]
    positions = np.concatenate([*ends, np.linspace(5000, length - 5001, 20000).astype(np.int64)])
    keys = permutation.block(positions)
    assert keys.min() >= 0
    assert keys.max() < length
    assert len(np.unique(keys)) == len(np.unique(positions))
    assert np.array_equal(permutation.inverse_block(keys), positions)


@given(lengths, seeds, st.data())
def test_scalar_and_block_forms_agree(length: int, seed: int, data: st.DataObject) -> None:
    """A block has the results of single calls, position by position, and so has the inverse."""
    positions = data.draw(st.lists(st.integers(0, length - 1), max_size=70))
    permutation = Permutation(length, seed)
    keys = permutation.block(np.array(positions, np.int64)).tolist()
    assert keys == [permutation(position) for position in positions]
    assert permutation.inverse_block(np.array(keys, np.int64)).tolist() == positions
    assert [permutation.inverse(key) for key in keys] == positions


@given(st.one_of(st.integers(1, 300), st.integers(65537, 2**62)), seeds, st.data())
def test_the_order_is_the_specified_one(length: int, seed: int, data: st.DataObject) -> None:
    """The keys are those of the specification, implemented in Python."""
    positions = data.draw(st.lists(st.integers(0, length - 1), max_size=40))
    oracle = PermutationOracle(length, seed)
    keys = Permutation(length, seed).block(np.array(positions, np.int64)).tolist()
    assert keys == [oracle.key_at(position) for position in positions]


@pytest.mark.parametrize("length", [65535, 65536, 65537, 131072, 131073])
def test_the_order_is_the_specified_one_around_the_largest_table(length: int) -> None:
    """Around the largest table and the smallest network, the keys are those of the specification."""
    oracle = PermutationOracle(length, 2024)
    keys = Permutation(length, 2024).block(np.arange(0, length, 41)).tolist()
    assert keys == [oracle.key_at(position) for position in range(0, length, 41)]


@pytest.mark.parametrize(("length", "seed"), GOLDEN)
def test_the_order_is_frozen(length: int, seed: int) -> None:
    """These keys are the same in every version and on every machine."""
    positions = [0, 1, 2, 3, length - 1]
    oracle = PermutationOracle(length, seed)
    assert [oracle.key_at(position) for position in positions] == GOLDEN[length, seed]
    assert Permutation(length, seed).block(np.array(positions)).tolist() == GOLDEN[length, seed]
    assert [Permutation(length, seed)(position) for position in positions] == GOLDEN[length, seed]


def test_seed_and_length_both_choose_the_order() -> None:
    """Neighbouring seeds give unrelated orders, and so do neighbouring lengths with one seed."""
    orders = {
        tuple(Permutation(length, seed).block(np.arange(50)).tolist()) for length in (100, 101) for seed in range(9)
    }
    assert len(orders) == 18


def test_any_thread_may_call() -> None:
    """Threads that call one permutation and its inverse at once get the results that a single thread gets."""
    positions = np.arange(50_000)
    expected = Permutation(50_000, seed=3).block(positions)

    def ask(_: int) -> bool:
        permutation = Permutation(50_000, seed=3)
        keys = permutation.block(positions)
        return np.array_equal(keys, expected) and np.array_equal(permutation.inverse_block(keys), positions)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(32)))


def test_it_is_a_value() -> None:
    """It compares by length and seed, can be a key of a dict, and is pickled as these two numbers."""
    permutation = Permutation(60_000, seed=5)
    permutation.block(np.arange(10))
    pickled = pickle.dumps(permutation)
    assert len(pickled) < 200
    assert pickle.loads(pickled) == permutation
    assert {permutation: 1}[Permutation(60_000, seed=5)] == 1
    assert permutation != Permutation(60_000, seed=6)
    assert Permutation(cast("Any", np.int64(7)), seed=cast("Any", np.uint64(5))) == Permutation(7, seed=5)
    assert len(permutation) == 60_000


@pytest.mark.parametrize(
    "positions",
    [np.array([3, 1, 2], np.int32), np.array([3, 1, 2], np.uint8), np.array([3, 0, 1, 0, 2])[::2], [3, 1, 2]],
    ids=["int32", "uint8", "strided", "list"],
)
def test_blocks_of_other_integers_are_converted(positions: ArrayLike) -> None:
    """Other integer types, strided arrays and lists of the same positions give the same keys."""
    permutation = Permutation(1_000_000, seed=5)
    assert permutation.block(positions).tolist() == [permutation(position) for position in (3, 1, 2)]


def test_a_block_may_be_empty_and_leaves_its_argument_alone() -> None:
    """No positions give no keys, and the array that was given is not written to."""
    permutation = Permutation(1_000_000, seed=5)
    positions = np.arange(100)
    positions.flags.writeable = False
    permutation.block(positions)
    assert np.array_equal(positions, np.arange(100))
    assert permutation.block([]).shape == (0,)
    assert Permutation(0, seed=5).block(np.arange(0)).shape == (0,)


@given(st.sampled_from([1, 10, 65536, 65537, 10**6, 2**62]), st.integers(0, 99), st.data())
@example(0, 0, None)
def test_a_position_outside_is_an_index_error(length: int, row: int, data: st.DataObject | None) -> None:
    """A position outside [0, length) raises IndexError with the range and the position, anywhere in a block."""
    outside = (
        length if data is None else data.draw(st.one_of(st.integers(-(2**63), -1), st.integers(length, 2**63 - 1)))
    )
    permutation = Permutation(length, seed=1)
    block = np.full(100, max(length - 1, 0), np.int64)
    if length == 0:
        row = 0
    block[row] = outside
    message = rf"^position must be in \[0, {length}\); got position={outside}$"
    with pytest.raises(IndexError, match=message):
        permutation.block(block)
    with pytest.raises(IndexError, match=message):
        permutation(outside)
    message = rf"^key must be in \[0, {length}\); got key={outside}$"
    with pytest.raises(IndexError, match=message):
        permutation.inverse_block(block)
    with pytest.raises(IndexError, match=message):
        permutation.inverse(outside)


@pytest.mark.parametrize(
    "positions", [np.array([0.0, 1.0]), np.zeros((2, 2), np.int64), np.int64(3), np.array([True]), np.array(["a"])]
)
def test_a_block_must_be_integers_on_one_axis(positions: ArrayLike) -> None:
    """Anything but integers in an array of one axis is a UsageError with dtype, shape and the remedy."""
    with pytest.raises(
        UsageError, match=r"^positions must be an int64 array of one axis; got dtype .* Convert it with"
    ):
        Permutation(5, seed=0).block(positions)


def test_a_position_must_be_an_integer() -> None:
    """A float is no position, even if it is a whole number."""
    with pytest.raises(TypeError):
        Permutation(5, seed=0)(cast("Any", 1.0))
