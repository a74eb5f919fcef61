"""What processes of a Ray cluster compute equals the definition: pairs of verbs, and resumes there of inline states."""

import importlib
from typing import Any

import pytest

from tests.equivalence.combinations import INLINE, check_combinations
from tests.equivalence.test_folds_above_batches import FOLDS, batches, check, rows
from tests.equivalence.test_verbs import PAIRS, numbers
from tests.profiles import IS_LONG

pytest.importorskip("ray")
door: Any = importlib.import_module("penstock.ray")


@pytest.mark.slow
def test_pairs_in_a_pool_equal_the_definition() -> None:
    """A sample of all pairs, computed by one pool."""
    with door.Pool(2) as pool:
        check_combinations(PAIRS[3 :: 13 if IS_LONG else 61], numbers(), INLINE, {"workers": pool})


def test_folds_above_batches_equal_the_definition() -> None:
    """Batches and their rows have their origins above the elements that a pool computes."""
    with door.Pool(2) as pool:
        check(batches(FOLDS["map, window_shuffle"]), {"workers": pool})
        check(rows(FOLDS["window_shuffle"], "pad"), {"workers": pool})
