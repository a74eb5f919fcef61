"""The number of elements of each part of a split: the whole numbers nearest to the fractions."""

from collections.abc import Mapping
from fractions import Fraction
from numbers import Real

from penstock.errors import UsageError
from penstock.sampling._arguments import checked_length

_SUM_TOLERANCE = Fraction(1, 10**9)


def split_counts(length: int, fractions: Mapping[str, float]) -> dict[str, int]:
    """Return the number of elements of each named part, by the largest remainder (Hamilton's method).

    Every part gets its share rounded down; the remaining elements go, one each, to the parts that lost most by
    rounding, of equals to the earlier. So no part differs from its share by a whole element, and a small part of a
    short dataset can be empty.

    Args:
        length: from 0 to 2**62.
        fractions: for each name a number over 0, in the sum at most 1. If the sum is within 1e-9 of 1, the counts add
            up to `length`; if it is below, the rest of the elements belongs to no part.

    Returns:
        The counts by name, in the order of `fractions`.

    Raises:
        UsageError: if there is no part, a fraction is not over 0, or they add up to more than 1.

    Example:
        >>> split_counts(1797, {"train": 0.9, "val": 0.1})
        {'train': 1617, 'val': 180}
    """
    length = checked_length(length)
    shares = {name: _checked_share(name, fraction) for name, fraction in fractions.items()}
    if not shares:
        raise UsageError("a split must have at least one part; got none. Pass such as {'train': 0.9, 'val': 0.1}.")
    total = sum(shares.values(), Fraction(0))
    if total > 1 + _SUM_TOLERANCE:
        raise UsageError(
            f"fractions must add up to at most 1; got {dict(fractions)!r}, that is {float(total)!r}. Make one smaller."
        )
    parts = list(shares.values())
    if total >= 1 - _SUM_TOLERANCE:
        parts = [share / total for share in parts]
    else:
        parts.append(1 - total)  # the rest is one more part, which is left out at the end
    return dict(zip(shares, _largest_remainder(length, parts), strict=False))


def _checked_share(name: str, fraction: object) -> Fraction:
    """Return the number that a fraction prints as: 0.1 is a tenth, not the double next to it.

    Raises:
        UsageError: if it is no number over 0.
    """
    number = 0.0 if isinstance(fraction, bool) or not isinstance(fraction, Real) else float(fraction)
    if not 0 < number < float("inf"):
        raise UsageError(
            f"a fraction must be a number over 0; got {name}={fraction!r}. Omit parts that you don't want."
        )
    return Fraction(repr(number))


def _largest_remainder(length: int, parts: list[Fraction]) -> list[int]:
    """Return whole numbers with the sum `length`, near to `length * part`; the parts must add up to 1."""
    quotas = [part * length for part in parts]
    counts = [int(quota) for quota in quotas]
    by_loss = sorted(range(len(parts)), key=lambda part: counts[part] - quotas[part])
    for part in by_loss[: length - sum(counts)]:
        counts[part] += 1
    return counts
