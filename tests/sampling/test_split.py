"""The counts of a split are whole, near to the fractions, and add up."""

import re
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.sampling import split_counts


@given(st.integers(1, 200), st.integers(0, 2**62))
def test_equal_parts_whose_fractions_are_not_exact(parts: int, length: int) -> None:
    """Parts of 1/n, whose sum isn't 1 in floating point, still divide all elements, as evenly as possible."""
    counts = list(split_counts(length, {str(part): 1 / parts for part in range(parts)}).values())
    assert sum(counts) == length
    assert counts == sorted(counts, reverse=True)
    assert max(counts) - min(counts) <= 1


@st.composite
def tenths(draw: st.DrawFn) -> list[int]:
    """Draw whole thousandths, over 0, that add up to at most 1000."""
    cuts = sorted(draw(st.sets(st.integers(1, 1000), min_size=1, max_size=6)))
    return [stop - start for start, stop in zip([0, *cuts], cuts, strict=False)]


@given(tenths(), st.one_of(st.integers(0, 50), st.integers(0, 2**62)))
def test_no_part_is_off_by_a_whole_element(thousandths: list[int], length: int) -> None:
    """Every part gets its share of the length, rounded up or down; the parts and the rest add up to the length."""
    names = [f"part {number}" for number in range(len(thousandths))]
    counts = split_counts(length, {name: part / 1000 for name, part in zip(names, thousandths, strict=True)})
    assert list(counts) == names
    for count, part in zip(counts.values(), thousandths, strict=True):
        assert abs(count - Fraction(part, 1000) * length) < 1
    assert sum(counts.values()) == length if sum(thousandths) == 1000 else sum(counts.values()) <= length


def test_counts_that_one_can_check_by_hand() -> None:
    """The counts are those of the largest remainder, computed by hand."""
    for length, fractions, counts in (
        (10, {"train": 0.9, "val": 0.1}, [9, 1]),
        (100, {"train": 0.7, "val": 0.2, "test": 0.1}, [70, 20, 10]),
        (3, {"train": 0.9, "val": 0.1}, [3, 0]),
        (10, {"a": 0.25, "b": 0.25}, [3, 2]),
        (0, {"a": 0.5, "b": 0.5}, [0, 0]),
    ):
        assert list(split_counts(length, fractions).values()) == counts


def test_wrong_arguments_are_named() -> None:
    """Invalid arguments are a UsageError with the rule, the value and the remedy."""
    cases: list[tuple[int, dict[str, Any], str]] = [
        (-1, {"a": 1.0}, "length must be an integer in [0, 2**62]; got length=-1. Pass the parent's len()."),
        (5, {}, "a split must have at least one part; got none. Pass such as {'train': 0.9, 'val': 0.1}."),
        *(
            (5, {"a": value}, f"a fraction must be a number over 0; got a={value!r}. Omit parts that you don't want.")
            for value in (0.0, -0.5, float("nan"), float("inf"), "0.5", True)
        ),
        (5, {"a": 0.75, "b": 0.5}, "fractions must add up to at most 1; got {'a': 0.75, 'b': 0.5}, that is 1.25. Make"),
    ]
    for length, fractions, message in cases:
        with pytest.raises(UsageError, match=re.escape(message)):
            split_counts(length, fractions)
