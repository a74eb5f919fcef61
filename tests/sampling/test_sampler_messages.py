"""Invalid arguments of samplers are errors with the rule, the value and the remedy."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from penstock.errors import UsageError
from penstock.sampling import FixedEpoch, FixedOrder, Reorder, Repeat, Select, Shuffle, Slice

LENGTH_RULE = "length must be an integer in [0, 2**62]; got length={}. Pass the parent's len()."
SEED_RULE = "seed must be an integer in [0, 2**64); got seed={}. Pass any such number and keep it."

WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "negative length": (lambda: Shuffle(-1, 0), LENGTH_RULE.format(-1)),
    "negative seed": (lambda: Shuffle(3, -1), SEED_RULE.format(-1)),
    "length over 2**62": (lambda: Reorder(2**62 + 1, 0), LENGTH_RULE.format(2**62 + 1)),
    "seed over 64 bits": (lambda: Reorder(3, 2**64), SEED_RULE.format(2**64)),
    "negative start": (lambda: Slice(-1, 1, 3), "start must be an integer in [0, 2**62]; got start=-1. Count from 0."),
    "step 0": (
        lambda: Slice(0, 0, 3),
        "step must not be 0; got step=0. To take one element many times use Select or Repeat.",
    ),
    "negative length of a slice": (lambda: Slice(0, 1, -1), LENGTH_RULE.format(-1)),
    "last key below 0": (
        lambda: Slice(1, -1, 3),
        "the last key must be in [0, 2**62]; got -1 from Slice(start=1, step=-1, length=3). Make length smaller.",
    ),
    "slice with step 0": (
        lambda: Slice.from_slice(slice(None, None, 0), 3),
        "step must not be 0; got slice(None, None, 0). Omit it to take every element.",
    ),
    "negative key": (
        lambda: Select(np.array([3, -2])),
        "keys must not be negative; got -2 at position 1. Use Select.from_positions to count from the parent's end.",
    ),
    "keys that are floats": (
        lambda: Select(cast("Any", np.array([0.5]))),
        "keys must be an int64 array of one axis; got dtype float64 and shape (1,). "
        "Convert it with numpy.asarray(keys, numpy.int64).",
    ),
    "position past the end": (
        lambda: Select.from_positions([0, 5], 5),
        "positions must be in [-5, 5); got 5 as number 1 of them. Take only positions that the parent has.",
    ),
    "position before the start": (
        lambda: Select.from_positions([-6], 5),
        "positions must be in [-5, 5); got -6 as number 0 of them. Take only positions that the parent has.",
    ),
    "mask of another length": (
        lambda: Select.from_positions([True, False], 5),
        "a mask must have one bool for each of the 5 elements; got shape (2,). Compute it over the whole parent.",
    ),
    "no times": (
        lambda: Repeat(5, 0),
        "times must be an integer in [1, 2**62]; got times=0. Pass None to repeat without end.",
    ),
    "too many times": (
        lambda: Repeat(5, 2**61),
        f"length * times must be at most 2**62; got length=5, times={2**61}. Pass times=None to repeat without end.",
    ),
    "epoch too large": (
        lambda: Repeat(5, 2)(2**62, 0),
        f"epoch must be in [0, {2**62 - 2}] if an epoch has 2 passes; got epoch={2**62}. Repeat fewer times.",
    ),
    "epoch too large in a block": (
        lambda: Repeat(5, 2).block(np.array([0, 2**62]), np.array([0, 0])),
        f"epoch must be in [0, {2**62 - 2}] if an epoch has 2 passes; got epoch={2**62}. Repeat fewer times.",
    ),
    "negative epoch": (
        lambda: FixedEpoch(5, -1),
        "epoch must be an integer in [0, 2**62]; got epoch=-1. Count from 0.",
    ),
    "cycle 0": (
        lambda: FixedOrder(Shuffle(5, 1), 0),
        "cycle must be an integer in [1, 2**62]; got cycle=0. Pass 1 for the same order always.",
    ),
    "no sampler": (
        lambda: FixedOrder(cast("Any", [1, 2])),
        "sampler must have a length and be callable as sampler(epoch, position); got [1, 2]. "
        "Pass one such as penstock.sampling.Shuffle(length, seed).",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_arguments_are_named(mistake: str) -> None:
    """An invalid argument is a UsageError with the rule, the value and the remedy."""
    make, message = WRONG[mistake]
    with pytest.raises(UsageError) as caught:
        make()
    assert str(caught.value) == message
