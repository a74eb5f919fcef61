"""Range: the integers of Python's range."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.sources import Range
from tests.profiles import in_short

INT64 = st.integers(-(2**63), 2**63 - 1)


@in_short(10)
@given(start=INT64, step=st.integers(-(2**62), 2**62).filter(bool), length=st.integers(0, 9), data=st.data())
def test_integers_are_pythons(start: int, step: int, length: int, data: st.DataObject) -> None:
    """Every integer is exact, also at the ends of int64, read alone, in blocks and into an array."""
    expected = range(start, start + step * length, step)
    if not all(-(2**63) <= number < 2**63 for number in expected):
        return
    source = Range(expected.start, expected.stop, expected.step)
    keys = data.draw(st.lists(st.sampled_from(range(length)) if length else st.nothing(), max_size=length and 9))
    read = source.read(keys)
    assert read == [expected[key] for key in keys]
    assert [type(number) for number in read] == [int] * len(keys)
    out = np.empty(len(keys), np.int64)
    source.read_into(keys, out)
    assert out.tolist() == read


def test_arguments_are_those_of_range() -> None:
    """One argument is the stop; a step may count down."""
    assert list(Range(4)) == [0, 1, 2, 3]
    assert list(Range(2, 5)) == [2, 3, 4]
    assert list(Range(5, 0, -2)) == [5, 3, 1]
    assert repr(Range(4)) == "Range(0, 4, 1)"
    assert Range(4).fingerprint() == Range(0, 4, 1).fingerprint() != Range(5).fingerprint()


def test_keys_must_be_integers_in_range() -> None:
    """Keys that aren't integers along one axis are a TypeError, never rounded; one outside is an IndexError."""
    others: list[Any] = [np.array([0.5]), np.array(["0"]), np.array(0), np.zeros((1, 1), np.int64)]
    for keys in others:
        with pytest.raises(TypeError, match="keys must be integers along one axis"):
            Range(5).read(keys)
    for outside in ([-1], [5], [0, 2**62], [2, -(2**63)]):
        with pytest.raises(IndexError, match=rf"a key must be in \[0, 5\); got {outside[-1]}"):
            Range(5).read(outside)


def test_ranges_beyond_int64_are_refused() -> None:
    """So are a step of 0, and more integers than positions."""
    for arguments in ((0, 5, 0), (2**63 - 1, 2**63 + 1), (-(2**63) - 1, 0)):
        with pytest.raises(UsageError, match=r"step must not be 0|must fit into int64"):
            Range(*arguments)
    assert len(Range(2**62)) == 2**62
    for stop in (2**62 + 1, 2**63):
        with pytest.raises(UsageError, match=r"a range must have at most 2\*\*62 integers; got range\(0, \d+\)"):
            Range(stop)
