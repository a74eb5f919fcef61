"""A permutation is a bijection for every length, and its order is frozen."""

import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.sampling import Permutation
from tests.sampling.permutation_oracle import PermutationOracle

AWKWARD = sorted(
    {0, 1, 2, 3, 5, 13, 7919, 65521, 1299709, 4**9 + 1}
    | {2**k + offset for k in (2, 7, 10, 16, 17) for offset in (-1, 0, 1)}
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
    (2**62, 9): [
        1822701614010462888,
        2924799889736299089,
        2203446888989004601,
        1081222624635869881,
        1542113581302036001,
    ],
}


def test_every_length_gives_a_bijection() -> None:
    """Every key of [0, length) has exactly one position, and the inverse finds it; of huge lengths in samples."""
    for length in AWKWARD:
        permutation = Permutation(length, seed=length % 17)
        positions = np.arange(length)
        keys = permutation.block(positions)
        assert keys.dtype == np.int64
        assert np.array_equal(np.sort(keys), positions), length
        assert np.array_equal(permutation.inverse_block(keys), positions), length
    huge: list[int] = [2**31, 2**40 + 1, 2**62 - 1, 2**62]
    for length in huge:
        permutation = Permutation(length, seed=11)
        ends = [np.arange(500), np.arange(length - 500, length)]
        positions = np.concatenate([*ends, np.linspace(500, length - 501, 2000).astype(np.int64)])
        keys = permutation.block(positions)
        assert 0 <= keys.min() <= keys.max() < length
        assert len(np.unique(keys)) == len(np.unique(positions))
        assert np.array_equal(permutation.inverse_block(keys), positions), length


@given(lengths, seeds, st.data())
def test_scalar_and_block_forms_agree(length: int, seed: int, data: st.DataObject) -> None:
    """A block has the results of single calls, position by position, and so has the inverse."""
    positions = data.draw(st.lists(st.integers(0, length - 1), max_size=70))
    permutation = Permutation(length, seed)
    keys = permutation.block(np.array(positions, np.int64)).tolist()
    assert keys == [permutation(position) for position in positions]
    assert permutation.inverse_block(np.array(keys, np.int64)).tolist() == positions
    assert [permutation.inverse(key) for key in keys] == positions


@example(65535, 2024, None)
@example(65536, 2024, None)
@example(131073, 2024, None)
@given(st.one_of(st.integers(1, 300), st.integers(65537, 2**62)), seeds, st.data())
def test_the_order_is_the_specified_one(length: int, seed: int, data: st.DataObject | None) -> None:
    """The keys are those of the specification, implemented in Python."""
    drawn = None if data is None else data.draw(st.lists(st.integers(0, length - 1), max_size=40))
    positions = list(range(0, length, 997)) if drawn is None else drawn
    oracle = PermutationOracle(length, seed)
    keys = Permutation(length, seed).block(np.array(positions, np.int64)).tolist()
    assert keys == [oracle.key_at(position) for position in positions]


def test_the_order_is_frozen() -> None:
    """These keys are the same in every version and on every machine."""
    for (length, seed), expected in GOLDEN.items():
        positions = [0, 1, 2, 3, length - 1]
        oracle = PermutationOracle(length, seed)
        assert [oracle.key_at(position) for position in positions] == expected
        assert Permutation(length, seed).block(np.array(positions)).tolist() == expected


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


def test_a_short_block_keeps_the_interpreters_lock() -> None:
    """No other thread computes meanwhile, for which the block would wait longer than it takes."""
    permutation, positions = Permutation(2**40, seed=7), np.arange(8)
    permutation.block(positions)  # the first block makes the native permutation, which gives the lock up
    gate, ran = threading.Lock(), list[int]()
    gate.acquire()

    def run_once() -> None:
        gate.acquire()
        ran.append(1)

    before = sys.getswitchinterval()
    sys.setswitchinterval(100)  # seconds, for which no thread gives the lock up by itself
    other = threading.Thread(target=run_once)
    other.start()
    try:
        gate.release()  # the other thread waits for the interpreter's lock now
        for _ in range(20_000):
            permutation.block(positions)
        assert not ran
    finally:
        sys.setswitchinterval(before)
        other.join()
    assert ran


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


def test_blocks_of_other_integers_are_converted() -> None:
    """Other integer types, strided arrays and lists of the same positions give the same keys; arguments stay."""
    permutation = Permutation(1_000_000, seed=5)
    expected = [permutation(position) for position in (3, 1, 2)]
    frozen = np.array([3, 1, 2])
    frozen.flags.writeable = False
    others: list[Any] = [np.array([3, 1, 2], np.int32), np.array([3, 1, 2], np.uint8), [3, 1, 2], frozen]
    for positions in [*others, np.array([3, 0, 1, 0, 2])[::2]]:
        assert permutation.block(positions).tolist() == expected
    assert frozen.tolist() == [3, 1, 2]
    assert permutation.block([]).shape == Permutation(0, seed=5).block(np.arange(0)).shape == (0,)


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


def test_a_position_must_be_an_integer() -> None:
    """A float is no position, even if it is a whole number."""
    with pytest.raises(TypeError):
        Permutation(5, seed=0)(cast("Any", 1.0))
    for positions in (np.array([0.0, 1.0]), np.zeros((2, 2), np.int64), np.int64(3), np.array([True]), np.array(["a"])):
        with pytest.raises(
            UsageError, match=r"^positions must be an int64 array of one axis; got dtype .* Convert it with"
        ):
            Permutation(5, seed=0).block(positions)
