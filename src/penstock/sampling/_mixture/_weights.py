"""Weights of a mixture as whole numbers: exact if the period is short enough, else the nearest ratios."""

import math
from collections.abc import Sequence
from fractions import Fraction
from numbers import Integral, Rational, Real
from typing import Final

from penstock.errors import UsageError

LARGEST_PERIOD: Final = 2**16


def integer_weights(weights: Sequence[float | Fraction]) -> tuple[int, ...]:
    """Return whole numbers in the ratios of `weights`, without a common divisor.

    A float counts as the decimal number of its repr: 0.1 is a tenth. The sum of the result is the period of the
    mixture, in which each component has its exact share, and is at most 2**16. Integers are never rounded. If floats or
    fractions would need a longer period, the result has the nearest ratios with a sum of 2**16 before common divisors
    are removed, by the largest remainder, with at least 1 for each weight over 0.

    Args:
        weights: one for each component, none negative and at least one over 0. Their sum is arbitrary.

    Returns:
        One integer for each weight; 0 for a weight of 0.

    Raises:
        UsageError: if one is negative or not finite, none is over 0, more than 2**16 are, or integers would need a
            period of more than 2**16.

    Example:
        >>> integer_weights([0.7, 0.2, 0.1]), integer_weights([30, 10]), integer_weights([0.5, 0])
        ((7, 2, 1), (3, 1), (1, 0))
    """
    numbers = [_checked_weight(place, weight) for place, weight in enumerate(weights)]
    positive = sum(map(bool, numbers))
    if not positive:
        raise UsageError(
            f"at least one weight must be over 0; got {list(weights)!r}. Pass a weight over 0 for a component."
        )
    if positive > LARGEST_PERIOD:
        raise UsageError(
            f"at most {LARGEST_PERIOD} weights may be over 0; got {positive}. Concatenate some components."
        )
    scale = math.lcm(*(number.denominator for number in numbers))
    exact = reduced([int(number * scale) for number in numbers])
    if sum(exact) <= LARGEST_PERIOD:
        return exact
    if all(isinstance(weight, Integral) for weight in weights):
        raise UsageError(
            f"integer weights must add up to at most {LARGEST_PERIOD} without their common divisor; got "
            f"{_some(weights)}, which add up to {sum(exact)}. Pass them as floats for the nearest ratios."
        )
    return reduced(_nearest(exact, LARGEST_PERIOD))


def reduced(weights: Sequence[int]) -> tuple[int, ...]:
    """Return `weights` divided by their greatest common divisor; at least one must not be 0."""
    divisor = math.gcd(*weights)
    return tuple(weight // divisor for weight in weights)


def _checked_weight(place: int, weight: object) -> Fraction:
    """Return a weight as the number that it prints as.

    Raises:
        UsageError: if it is not a finite number from 0 on.
    """
    number = Fraction(-1)
    match weight:
        case bool():
            pass
        case Integral():
            number = Fraction(int(weight))
        case Rational():
            number = Fraction(weight)
        case Real() if math.isfinite(weight):
            number = Fraction(str(weight))
        case _:
            pass
    if number >= 0:
        return number
    raise UsageError(
        f"a weight must be a finite number from 0 on; got {weight!r} as number {place} of them. "
        "Pass 0 for a component to leave out."
    )


def _nearest(weights: Sequence[int], period: int) -> list[int]:
    """Return whole numbers with the sum `period` and nearly the ratios of `weights`, at least 1 for weights over 0."""
    result = [0] * len(weights)
    rest = {place: weight for place, weight in enumerate(weights) if weight}
    total = sum(rest.values())
    # A share below one becomes one; the others divide the rest, which can bring more of them below one.
    while small := [place for place, weight in rest.items() if weight * period < total]:
        for place in small:
            result[place] = 1
            total -= rest.pop(place)
        period -= len(small)
    for place, weight in rest.items():
        result[place] = weight * period // total
    by_loss = sorted(rest, key=lambda place: -(rest[place] * period % total))
    for place in by_loss[: period - sum(result[place] for place in rest)]:
        result[place] += 1
    return result


def _some(weights: Sequence[object]) -> str:
    shown = ", ".join(repr(weight) for weight in weights[:8])
    return f"({shown}, …)" if len(weights) > 8 else f"({shown})"
