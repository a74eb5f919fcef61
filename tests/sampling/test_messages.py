"""Invalid arguments of samplers, rules and weights are errors with the rule, the value and the remedy."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from penstock.errors import UsageError
from penstock.sampling import (
    Balance,
    Bits,
    BlockShuffle,
    CheckedSampler,
    Concatenation,
    FixedEpoch,
    FixedOrder,
    Permutation,
    Ragged,
    Reorder,
    Repeat,
    Select,
    Shuffle,
    Slice,
    WeightedMixture,
    WindowTable,
    balanced_length,
    integer_weights,
)
from tests.equivalence.kinds import is_dict
from tests.messages import case, check_message

LENGTH = "length must be an integer in [0, 2**62]; got length={}. Pass the parent's len()."
SEED = "seed must be an integer in [0, 2**64); got seed={}. Pass any such number and keep it."
LABELS = "labels must be integers, bools or strings in an array of one axis that is not empty; got dtype"
MASK = "a mask must be a bool array of one axis; got dtype"
WEIGHT = "a weight must be a finite number from 0 on; got {} as number {} of them."
NAMES = "names must be at least one, all different; got {}. Name each component once."
SCHEDULE = (
    "a schedule must begin at position 0 and its positions must rise; got {}. Pass the first weights with position 0."
)
ONE_OVER_0 = "must have a weight, and one of them over 0; got {}. Pass 0 for components to leave out."
EPOCHS = "epoch must be at least 0; got epoch=-1. Count from 0."
MIXTURE = WeightedMixture(("a", "b"), (5, 5), schedule=((0, (1, 1)),), stop="first", seed=7)
NONE = np.array([], np.int64)
MASKS: list[object] = [np.array([0, 1]), np.zeros((2, 2), np.bool_), []]


def balance(labels: Any) -> object:
    """Return a sampler of these labels."""
    return Balance(labels, 10, seed=1)


def length_of(labels: Any) -> object:
    """Return the length of a balanced dataset of these labels."""
    return balanced_length(labels)


def blocks(**changed: Any) -> object:
    """Return a block shuffle with other arguments."""
    arguments: dict[str, Any] = {"bounds": np.array([0, 4]), "seed": 0, **changed}
    return BlockShuffle(**arguments)


def mixture(**changed: Any) -> object:
    """Return a mixture with other arguments."""
    return dataclasses.replace(MIXTURE, **changed)


def windows(lengths: list[int], length: int, stride: int, partial: Any) -> object:
    """Return a table of windows."""
    return WindowTable(np.array(lengths), length, stride=stride, partial=partial)


# The call, its arguments, and the message.
WRONG: list[tuple[Callable[..., object], Any, str]] = [
    (Shuffle, (-1, 0), LENGTH.format(-1)),
    (Shuffle, (3, -1), SEED.format(-1)),
    (Reorder, (2**62 + 1, 0), LENGTH.format(2**62 + 1)),
    (Reorder, (3, 2**64), SEED.format(2**64)),
    *((Permutation, (length, 0), LENGTH.format(length)) for length in (-1, 2**62 + 1, 1.5, True)),
    *((Permutation, (5, seed), SEED.format(repr(seed))) for seed in (-1, 2**64, "7", None)),
    (Slice, (-1, 1, 3), "start must be an integer in [0, 2**62]; got start=-1. Count from 0."),
    (Slice, (0, 0, 3), "step must not be 0; got step=0. To take one element many times use Select or Repeat."),
    (Slice, (0, 1, -1), LENGTH.format(-1)),
    (
        *(Slice, (1, -1, 3)),
        "the last key must be in [0, 2**62]; got -1 from Slice(start=1, step=-1, length=3). Make length smaller.",
    ),
    (
        *(Slice.from_slice, (slice(None, None, 0), 3)),
        "step must not be 0; got slice(None, None, 0). Omit it to take every element.",
    ),
    (
        *(Select, (np.array([3, -2]),)),
        "keys must not be negative; got -2 at position 1. Use Select.from_positions to count from the parent's end.",
    ),
    (Select, (np.array([1, 2**63], np.uint64),), f"keys must be below 2**63; got {2**63} at position 1"),
    (
        *(Select, (np.array([0.5]),)),
        "keys must be an int64 array of one axis; got dtype float64 and shape (1,). "
        "Convert it with numpy.asarray(keys, numpy.int64).",
    ),
    (
        *(Select.from_positions, ([0, 5], 5)),
        "positions must be in [-5, 5); got 5 as number 1 of them. Take only positions that the parent has.",
    ),
    (
        *(Select.from_positions, ([-6], 5)),
        "positions must be in [-5, 5); got -6 as number 0 of them. Take only positions that the parent has.",
    ),
    (
        *(Select.from_positions, ([True, False], 5)),
        "a mask must have one bool for each of the 5 elements; got shape (2,). Compute it over the whole parent.",
    ),
    (Repeat, (5, 0), "times must be an integer in [1, 2**62]; got times=0. Pass None to repeat without end."),
    (
        *(Repeat, (5, 2**61)),
        f"length * times must be at most 2**62; got length=5, times={2**61}. Pass times=None to repeat without end.",
    ),
    (Repeat(5, 2), (-1, 0), EPOCHS),
    (Repeat(5, 2).block, (np.array([0, -1]), np.array([0, 0])), EPOCHS),
    (FixedEpoch, (5, -1), "epoch must be an integer in [0, 2**62]; got epoch=-1. Count from 0."),
    (
        *(FixedOrder, (Shuffle(5, 1), 0)),
        "cycle must be an integer in [1, 2**62]; got cycle=0. Pass 1 for the same order always.",
    ),
    (
        *(FixedOrder, ([1, 2],)),
        "sampler must have a length and be callable as sampler(epoch, position); got [1, 2]. "
        "Pass one such as penstock.sampling.Shuffle(length, seed).",
    ),
    *((CheckedSampler, (sampler, 3), "sampler must") for sampler in ([1], Shuffle)),
    (CheckedSampler, (Shuffle(3, 1), -1), "length must"),
    *(
        (call, (labels,), LABELS)
        for call in (balance, length_of)
        for labels in (np.array([0.5]), NONE, np.zeros((2, 2), np.int64), [None])
    ),
    (Bits, (np.zeros(2, np.uint8), 17), "packed must be a uint8 array of shape (3,), "),
    (Bits, (np.zeros(3, np.int64), 17), "got dtype int64"),
    (Bits, (np.array([8], np.uint8), 3), "the bits after the last of 3 elements must be 0; got 0b00001000"),
    (Bits, (np.zeros(0, np.uint8), -1), "length must be an integer"),
    *((Bits.from_mask, (mask,), MASK) for mask in MASKS),
    *((blocks, {"bounds": bounds}, "bounds must begin with 0") for bounds in (np.array([1, 2]), NONE)),
    (blocks, {"bounds": np.array([0, 2, 1])}, "never decrease"),
    *((blocks, {name: 0}, f"{name} must be an integer in") for name in ("live", "rows")),
    (blocks, {"seed": -1}, "seed must be an integer in"),
    *((integer_weights, ([1, each],), WEIGHT.format(repr(each), 1)) for each in (-1, float("inf"), True, "1")),
    (integer_weights, ([float("nan")],), WEIGHT.format("nan", 0)),
    *(
        (integer_weights, (weights,), f"at least one weight must be over 0; got {weights}. Pass a weight over 0 for a")
        for weights in ([0, 0.0], [])
    ),
    (
        *(integer_weights, ([2**16, 1],)),
        "integer weights must add up to at most 65536 without their common divisor; got (65536, 1), which add up "
        "to 65537. Pass them as floats for the nearest ratios.",
    ),
    (integer_weights, ([0.5] * (2**16 + 1),), "at most 65536 weights may be over 0; got 65537. Concatenate some"),
    (Ragged, (np.array([3, -2]),), "counts must not be negative; got -2 for element 1. Use 0 for none."),
    (Ragged, (np.array([0.5]),), "counts must be an int64 array of one axis; got dtype float64"),
    (Ragged, (np.array([[1]]),), "counts must be an int64 array of one axis; got dtype int64 and shape (1, 1)"),
    (windows, ([3], 0, 1, "pad"), "length must be an integer in [1, 2**62]; got length=0. Pass a number of frames."),
    (windows, ([3], 1, 0, "pad"), "stride must be an integer in [1, 2**62]; got stride=0. Pass a number of frames."),
    (windows, ([3], 1, 1, "keep"), 'partial must be "drop" or "pad"; got \'keep\''),
    (windows, ([-3], 1, 1, "pad"), "lengths must not be negative"),
    (Concatenation, ((1, -1),), LENGTH.format(-1)),
    (Concatenation, ((2**62, 1),), f"add up to at most 2**62; got {2**62 + 1} from 2 components"),
    *((mixture, {"names": names}, NAMES.format(names)) for names in ((), ("a", "a"))),
    (mixture, {"lengths": (1,)}, "each component must have a length; got 1 lengths for 2 names. Pass one for each."),
    (mixture, {"lengths": (1, -1)}, LENGTH.format(-1)),
    (mixture, {"schedule": ()}, SCHEDULE.format([])),
    (mixture, {"schedule": ((0, (1, 1)), (5, (1, 2)), (5, (2, 1)))}, SCHEDULE.format([0, 5, 5])),
    *((mixture, {"schedule": ((0, each),)}, ONE_OVER_0.format(each)) for each in ((0, 0), (1, 1, 1))),
    (
        *(mixture, {"schedule": ((0, (2**16, 1)),)}),
        "weights must add up to at most 65536; got weights that add up to 65537. "
        "Make them with penstock.sampling.integer_weights.",
    ),
    (
        *(mixture, {"schedule": ((0, (0.5, 1)),)}),
        "weight must be an integer in [0, 2**62]; got weight=0.5. Make them with penstock.sampling.integer_weights.",
    ),
    (mixture, {"stop": "some"}, "stop must be 'first', 'all' or 'never'; got stop='some'. Pass one of them."),
    (
        *(mixture, {"stop": "never", "lengths": (1, 0)}),
        "only components with elements can repeat; got stop='never' and 'b' of length 0. "
        "Leave it out, or pass stop='all'.",
    ),
    (mixture, {"seed": -1}, SEED.format(-1)),
]


def test_the_message_of_a_wrong_call() -> None:
    """An invalid argument is a UsageError with the rule, the value and the remedy."""
    for make, arguments, message in WRONG:
        call = partial(make, **arguments) if is_dict(arguments) else partial(make, *arguments)
        check_message(case(call, UsageError, message))
