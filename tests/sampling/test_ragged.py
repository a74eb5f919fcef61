"""Positions are mapped to the elements that yield them, and to windows that lose no frame."""

import copy
import pickle
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.errors import UsageError
from penstock.sampling import Ragged, WindowTable

counts_of_parents = st.lists(st.integers(0, 6), max_size=12)
lengths_of_episodes = st.lists(st.integers(0, 25), max_size=6)
sizes = st.integers(1, 12)
partials = st.sampled_from(["drop", "pad"])


def int64(values: list[int]) -> NDArray[np.int64]:
    """Return a list as an array."""
    return np.array(values, np.int64)


def windows_of(table: WindowTable) -> list[tuple[int, int, int]]:
    """Return all windows, found in a block, which must be those found one by one."""
    episodes, starts, stops = table.locate(np.arange(len(table)))
    windows = list(zip(episodes.tolist(), starts.tolist(), stops.tolist(), strict=True))
    assert windows == [table.locate_one(position) for position in range(len(table))]
    return windows


@given(counts_of_parents, st.data())
def test_positions_go_through_what_each_yields(counts: list[int], data: st.DataObject) -> None:
    """All positions in order give each parent's ordinals; blocks in any order and single calls give the same."""
    ragged = Ragged(int64(counts))
    expected = [(parent, ordinal) for parent, count in enumerate(counts) for ordinal in range(count)]
    assert len(ragged) == len(expected)
    assert [ragged.locate_one(position) for position in range(len(ragged))] == expected
    positions: list[int] = data.draw(st.lists(st.sampled_from(range(len(ragged))), max_size=20)) if expected else []
    parents, ordinals = ragged.locate(int64(positions))
    assert parents.dtype == ordinals.dtype == np.int64
    assert list(zip(parents.tolist(), ordinals.tolist(), strict=True)) == [expected[place] for place in positions]


def test_sums_may_be_as_large_as_lengths() -> None:
    """Up to 2**62 elements are found exactly; more are an error, also where the sum doesn't fit 64 bits."""
    ragged = Ragged(int64([2**61, 0, 2**61]))
    assert len(ragged) == 2**62
    assert ragged.locate_one(2**62 - 1) == (2, 2**61 - 1)
    for counts in ([2**62, 1], [2**62, 2**62, 2**62, 2**62], [2**63 - 1, 2**63 - 1, 2]):
        with pytest.raises(UsageError, match=r"^counts must add up to at most 2\*\*62; got more up to element [01]"):
            Ragged(int64(counts))


@given(lengths_of_episodes, sizes, sizes, partials)
def test_windows_are_those_of_the_rule(
    lengths: list[int], length: int, stride: int, partial: Literal["drop", "pad"]
) -> None:
    """Whole windows are all that fit; padded windows are all that have a frame that no earlier window has.

    So padded windows lose no frame, unless the stride leaves gaps.
    """
    expected: list[tuple[int, int, int]] = []
    for episode, count in enumerate(lengths):
        seen: set[int] = set()
        for start in range(0, count, stride):
            frames = set(range(start, min(start + length, count)))
            if (len(frames) == length) if partial == "drop" else (frames - seen):
                expected.append((episode, start, start + len(frames)))
            seen |= frames
    assert windows_of(WindowTable(int64(lengths), length, stride=stride, partial=partial)) == expected


def test_windows_may_be_huge() -> None:
    """Nothing overflows for the longest windows, strides and episodes."""
    partials: tuple[Literal["drop", "pad"], ...] = ("drop", "pad")
    for partial in partials:
        table = WindowTable(int64([2**62, 0]), 2**62, stride=2**62, partial=partial)
        assert windows_of(table) == [(0, 0, 2**62)]
        table = WindowTable(int64([3, 2**61]), 1, stride=2**62, partial=partial)
        assert windows_of(table) == [(0, 0, 1), (1, 0, 1)]
        table = WindowTable(int64([2**62]), 2**62, stride=1, partial=partial)
        assert windows_of(table) == [(0, 0, 2**62)]


def test_positions_outside_are_index_errors() -> None:
    """Both forms raise IndexError for a position out of range, and an empty table has no positions."""
    for table in (Ragged(int64([2, 0, 3])), WindowTable(int64([2, 0, 3]), 2, stride=1, partial="pad")):
        for position in (-1, len(table), 2**63 - 1):
            message = rf"^position must be in \[0, {len(table)}\); got position={position}$"
            with pytest.raises(IndexError, match=message):
                table.locate_one(position)
            with pytest.raises(IndexError, match=message):
                table.locate(int64([0, position]))
    with pytest.raises(IndexError):
        Ragged(int64([])).locate_one(0)


def test_they_are_their_numbers() -> None:
    """Equal numbers make equal tables, pickled and copied ones too; others have another repr, which stays short."""
    lengths = int64([5, 2])
    tables: list[Ragged | WindowTable] = [
        Ragged(lengths),
        Ragged(lengths[::-1]),
        WindowTable(lengths, 2, stride=1, partial="pad"),
        WindowTable(lengths[::-1], 2, stride=1, partial="pad"),
        WindowTable(lengths, 3, stride=1, partial="pad"),
        WindowTable(lengths, 2, stride=2, partial="pad"),
        WindowTable(lengths, 2, stride=1, partial="drop"),
    ]
    lengths[:] = 9
    for table in tables:
        twins: list[Ragged | WindowTable] = [pickle.loads(pickle.dumps(table)), copy.deepcopy(table)]
        for twin in twins:
            assert twin == table
            assert hash(twin) == hash(table)
            assert [twin.locate_one(position) for position in range(len(twin))] == [
                table.locate_one(position) for position in range(len(table))
            ]
        assert table != "a table"
        assert len(repr(table)) < 120
    assert len(set(tables)) == len({repr(table) for table in tables}) == len(tables)
