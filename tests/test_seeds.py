"""Seeds are derived from a path of names and numbers by a rule that never changes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock._seeds import derive, derive_block, mix
from tests import seeds

INT64 = st.integers(-(2**63), 2**63 - 1)
PARTS = st.one_of(INT64, st.text(max_size=20))
NAMES = ["shuffle", "augment", "é", ""]


@given(st.integers(), st.lists(PARTS, max_size=5))
def test_derive_is_the_stated_rule(seed: int, path: list[int | str]) -> None:
    """`derive` folds each part of the path into the seed, integers and names by different tags."""
    assert derive(seed, *path) == seeds.derive(seed, *path)


# These values are part of the promise: a dataset described today has the same order for ever. The second form above
# gives them too, so they are no mere copy of what the code said once.
FROZEN = [
    (0, (), 0xE220A8397B1DCDAF),  # the first output of SplitMix64 seeded with 0, as in Vigna's reference code
    (7, ("shuffle",), 0xC6022AB792C19685),
    (7, ("shuffle", 3), 0x841BB3199441DFC9),
    (-1, (-1, "", 2**63 - 1), 0x83C964F546955D7F),
]


@pytest.mark.parametrize(("seed", "path", "expected"), FROZEN)
def test_values_are_frozen(seed: int, path: tuple[int | str, ...], expected: int) -> None:
    """Literal values, which no change of the code may change."""
    assert derive(seed, *path) == seeds.derive(seed, *path) == expected


@given(st.integers(), st.lists(st.tuples(INT64, INT64, INT64), min_size=1, max_size=20))
def test_blocks_are_the_scalars(seed: int, paths: list[tuple[int, int, int]]) -> None:
    """`derive_block` is `derive` of each row, to the bit."""
    columns = [np.array(column, np.int64) for column in zip(*paths, strict=True)]
    block = derive_block(seed, *columns)
    assert block.dtype == np.uint64
    assert block.tolist() == [derive(seed, *path) for path in paths]


def test_an_empty_block_is_empty() -> None:
    """No rows have no seeds."""
    assert derive_block(7, np.zeros(0, np.int64)).tolist() == []


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_mixing_is_one_to_one(first: int, second: int) -> None:
    """Two numbers never mix to the same, so that no two positions share a seed."""
    assert (mix(first) == mix(second)) == (first == second)


@given(st.integers(-5, 5), st.integers(0, 5), st.integers(-5, 5), st.integers(0, 5))
def test_seeds_and_epochs_do_not_add_up(seed: int, epoch: int, other_seed: int, other_epoch: int) -> None:
    """Seed 1 in epoch 1 is unrelated to seed 2 in epoch 0."""
    same = (seed, epoch) == (other_seed, other_epoch)
    assert (derive(seed, "shuffle", epoch) == derive(other_seed, "shuffle", other_epoch)) is same


def test_orders_of_neighbouring_seeds_and_epochs_differ() -> None:
    """A dataset's order with one seed in one epoch is none of another seed's in any other."""
    orders = {
        (seed, epoch): tuple(ps.range(40, seed=seed).shuffle().epoch(epoch)) for seed in range(5) for epoch in range(5)
    }
    assert len(set(orders.values())) == len(orders)


def test_numbers_and_names_are_apart() -> None:
    """The number 3 and the name "3" lead to different seeds, and so do a path and its parts joined."""
    seeds = [derive(0, 3), derive(0, "3"), derive(0, "ab"), derive(0, "a", "b"), derive(0), derive(0, "")]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("seed", [0, -1, 2**64, 2**70 + 3, np.int64(7), np.uint8(200)])
def test_any_integer_is_a_seed(seed: int) -> None:
    """Seeds count modulo 2**64, whatever their sign, size or type."""
    order = list(ps.range(20, seed=seed).shuffle())
    assert sorted(order) == list(range(20))
    assert order == list(ps.range(20, seed=int(seed) % 2**64).shuffle())
