"""Checks of the arguments of samplers, with their errors, and the digest of an array in a sampler's repr.

An invalid argument of a constructor raises `UsageError`; a position out of range raises `IndexError`, as in any
sequence.
"""

import hashlib
import operator
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.errors import UsageError

LARGEST_LENGTH: Final = 2**62
_LARGEST_INT64: Final = 2**63 - 1


def checked_length(length: int) -> int:
    """Return `length` as an int from 0 to 2**62."""
    return checked_integer("length", length, range(LARGEST_LENGTH + 1), "[0, 2**62]. Pass the parent's len()")


def checked_seed(seed: int) -> int:
    """Return `seed` as an int from 0 to 2**64 - 1."""
    return checked_integer("seed", seed, range(2**64), "[0, 2**64). Pass any such number and keep it")


def checked_integer(name: str, value: int, allowed: range, rule: str) -> int:
    """Return `value` as an int if it is in `allowed`.

    Args:
        name: the argument's name.
        value: the argument; any object that Python accepts as an index, except a bool.
        allowed: the valid values.
        rule: the text of `allowed`, then a full stop and the remedy.

    Raises:
        UsageError: it is no integer, or not in `allowed`.
    """
    interval, _, remedy = rule.partition(". ")
    problem = f"{name} must be an integer in {interval}; got {name}={value!r}. {remedy}."
    if isinstance(value, bool | np.bool_):
        raise UsageError(problem)
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(problem) from None
    if number not in allowed:
        raise UsageError(problem)
    return number


def int64_block(name: str, values: ArrayLike) -> NDArray[np.int64]:
    """Return `values` as an int64 array of one axis, contiguous; the same array if it is one already.

    Raises:
        UsageError: they are not integers, or don't have exactly one axis.
    """
    array = np.asarray(values)
    if array.dtype == np.int64 and array.ndim == 1 and array.flags.c_contiguous:
        return array
    if array.size == 0 and array.ndim == 1:
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UsageError(
            f"{name} must be an int64 array of one axis; got dtype {array.dtype} and shape {array.shape}. "
            f"Convert it with numpy.asarray({name}, numpy.int64)."
        )
    check_int64(name, array)
    return np.ascontiguousarray(array, np.int64)


def check_int64(name: str, array: NDArray[Any]) -> None:
    """Check that an array of integers has none above the largest int64, which a conversion would make negative.

    Raises:
        UsageError: it has; the text names the largest.
    """
    if array.dtype == np.uint64 and array.size and array.max() > _LARGEST_INT64:
        raise UsageError(f"{name} must be below 2**63; got {array.max()} at position {array.argmax()}")


def check_position(position: int, length: int, name: str = "position") -> None:
    """Check that `position` is in [0, length).

    Raises:
        IndexError: it is not.
    """
    if not 0 <= position < length:
        raise IndexError(f"{name} must be in [0, {length}); got {name}={position}")


def check_positions(positions: NDArray[np.int64], length: int) -> None:
    """Check that all positions are in [0, length).

    Raises:
        IndexError: one is not; the text names the first.
    """
    # As unsigned numbers, negative ones are larger than any length, so one comparison checks both bounds.
    if positions.size and int(positions.view(np.uint64).max()) >= length:
        outside = (positions < 0) | (positions >= length)
        check_position(int(positions[outside.argmax()]), length)


def array_digest(array: NDArray[np.generic]) -> str:
    """Return 32 hexadecimal digits, which differ for contiguous arrays of another type, shape or content."""
    hasher = hashlib.blake2b(f"{array.dtype.str} {array.shape}".encode(), digest_size=16)
    if array.size:
        hasher.update(array.reshape(-1).view(np.uint8).data)
    return hasher.hexdigest()
