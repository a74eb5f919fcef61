"""A pickle in parts holds the same value as one in a block, and the large arrays in it are not copied."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from penstock._pickles import dump, load_parts
from penstock._runtime._shared_values import in_parts
from penstock.errors import MessageError
from penstock.testing import assert_same

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | st.text() | arrays.arrays(np.uint16, st.integers(0, 200)),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES, st.integers(1, 300))
def test_parts_hold_the_value(value: Any, least_bytes: int) -> None:
    """Whatever is large, the value is the same."""
    parts = in_parts(dump(value), least_bytes)
    assert_same([load_parts(parts, copied_bytes=1 << 40)], [value])
    assert all(before.stop <= after.start for before, after in pairwise(parts))


def test_large_arrays_are_not_copied() -> None:
    """A part is the memory of the array itself; loaded, it is a copy that may be written to, if that is requested."""
    large, small = np.arange(1000), np.arange(3)
    parts = in_parts(dump({"small": small, "large": large, "last": small.copy()}), 1000)
    assert [np.shares_memory(part.array, large) for part in parts] == [False, True, False]
    assert not any(np.shares_memory(part.array, small) for part in parts)
    copied: Any = load_parts(parts, copied_bytes=1 << 40)
    copied["large"][:] = 0
    assert large[1] == 1
    seen: Any = load_parts(parts, copied_bytes=0)
    assert np.shares_memory(seen["large"], large)


def test_lost_parts() -> None:
    """Parts at the end that are missing are an error."""
    parts = in_parts(dump({"large": np.arange(1000)}), 1000)
    with pytest.raises(MessageError, match="truncated"):
        load_parts(parts[:-1], copied_bytes=1 << 40)
