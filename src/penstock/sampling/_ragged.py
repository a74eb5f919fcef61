"""Elements of which each parent's element yields a known number, as `flat_map` with counts and windows of episodes do.

A binary search finds the parent's element of any position.
"""

import functools
from collections.abc import Callable
from dataclasses import field
from functools import cached_property
from typing import Literal, Self, assert_never

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.errors import UsageError
from penstock.sampling._arguments import (
    LARGEST_LENGTH,
    array_digest,
    check_position,
    check_positions,
    checked_integer,
    int64_block,
)


@frozen(cached=True)
class Ragged:
    """The elements that the parent's elements yield, one after another: counts[i] of them for element i.

    Two are equal if their counts are. The repr has a digest of the counts. The object takes sixteen bytes for each of
    the parent's elements, its pickle eight.

    Attributes:
        counts: int64 of shape (n,) for a parent of n elements, none negative, in the sum at most 2**62. It is copied,
            and the copy is read-only.

    Raises:
        UsageError: if `counts` is invalid.

    Example:
        >>> ragged = Ragged(np.array([2, 0, 3]))
        >>> [ragged.locate_one(position) for position in range(len(ragged))]
        [(0, 0), (0, 1), (2, 0), (2, 1), (2, 2)]
    """

    counts: NDArray[np.int64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", checked_counts("counts", self.counts))

    def __len__(self) -> int:
        """Return the number of all elements."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def locate_one(self, position: int) -> tuple[int, int]:
        """Return (parent, ordinal): the position of the parent's element, and the place, from 0, among those it yields.

        Args:
            position: in [0, len(self)).

        Raises:
            IndexError: if `position` is outside.

        Example:
            >>> Ragged(np.array([2, 0, 3])).locate_one(4)
            (2, 2)
        """
        check_position(position, len(self))
        parent = int(self._ends.searchsorted(position, side="right"))
        return parent, position - (int(self._ends[parent]) - int(self.counts[parent]))

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (parents, ordinals) of many positions.

        Args:
            positions: int64 of shape (n,), each in [0, len(self)), in any order.

        Returns:
            The results of `locate_one` for each position: two int64 arrays of shape (n,).

        Raises:
            IndexError: if a position is outside.

        Example:
            >>> parents, ordinals = Ragged(np.array([2, 0, 3])).locate(np.array([4, 0]))
            >>> parents.tolist(), ordinals.tolist()
            ([2, 0], [2, 0])
        """
        check_positions(positions, len(self))
        parents = self._ends.searchsorted(positions, side="right").astype(np.int64, copy=False)
        return parents, positions - (self._ends[parents] - self.counts[parents])

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """For each of the parent's elements, the number of elements that it and those before it yield."""
        return self.counts.cumsum()

    @cached_property
    def _digest(self) -> str:
        return array_digest(self.counts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ragged):
            return NotImplemented
        return np.array_equal(self.counts, other.counts)

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:
        return f"Ragged(<{len(self.counts)} counts {self._digest}>)"

    def __reduce__(self) -> tuple[type[Self], tuple[NDArray[np.int64]]]:
        # Through the constructor, since an unpickled array is writable.
        return type(self), (self.counts,)


def checked_counts(name: str, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a read-only copy of numbers that aren't negative and add up to at most 2**62.

    Raises:
        UsageError: if they are invalid.
    """
    checked = int64_block(name, counts).copy()
    if checked.size and checked.min() < 0:
        raise UsageError(
            f"{name} must not be negative; got {checked.min()} for element {checked.argmin()}. Use 0 for none."
        )
    sums = checked.cumsum()
    # The first sum that exceeds int64 is negative, since both its summands are below 2**63.
    outside = (sums < 0) | (sums > LARGEST_LENGTH)
    if outside.any():
        raise UsageError(
            f"{name} must add up to at most 2**62; got more up to element {outside.argmax()}. Use fewer elements."
        )
    checked.flags.writeable = False
    return checked


@frozen(cached=True)
class WindowTable:
    """Windows of `length` frames that begin at frames 0, stride, 2 * stride, … of each episode, one after another.

    With partial="drop" all windows are whole: those that end within the episode. Then frames at an episode's end, and
    episodes shorter than a window, may be in no window.

    With partial="pad" the last windows may be shorter, and their reader pads them. An episode with frames has a first
    window. A further window exists if it has a frame that the window before doesn't have: if its start and the stop of
    the window before are both below the episode's length. So if stride <= length, every frame of every episode is in a
    window, and if stride == length, in exactly one.

    Two are equal if all attributes are. The repr has a digest of the lengths.

    Attributes:
        lengths: int64 of shape (n,): the number of frames of each episode; none negative, in the sum at most 2**62. It
            is copied, and the copy is read-only.
        length: the number of frames in a window, from 1 to 2**62.
        stride: the number of frames between the starts of two windows, from 1 to 2**62.
        partial: "drop" or "pad".

    Raises:
        UsageError: if one of them is invalid.

    Example:
        >>> table = WindowTable(np.array([5, 2]), 3, stride=3, partial="pad")
        >>> [table.locate_one(position) for position in range(len(table))]
        [(0, 0, 3), (0, 3, 5), (1, 0, 2)]
        >>> len(WindowTable(np.array([5, 2]), 3, stride=3, partial="drop"))
        1
    """

    lengths: NDArray[np.int64]
    length: int
    stride: int = field(kw_only=True)
    partial: Literal["drop", "pad"] = field(kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", checked_counts("lengths", self.lengths))
        sizes = range(1, LARGEST_LENGTH + 1)
        rule = "[1, 2**62]. Pass a number of frames"
        object.__setattr__(self, "length", checked_integer("length", self.length, sizes, rule))
        object.__setattr__(self, "stride", checked_integer("stride", self.stride, sizes, rule))
        if self.partial not in ("drop", "pad"):
            raise UsageError(
                f'partial must be "drop" or "pad"; got {self.partial!r}. Pass "pad" to have every frame in a window.'
            )

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self._windows)

    def locate_one(self, position: int) -> tuple[int, int, int]:
        """Return (episode, start, stop) of one window.

        Args:
            position: in [0, len(self)).

        Returns:
            The episode's position, and the window's frames in it, [start, stop); fewer than `length` if the episode
            ends before.

        Raises:
            IndexError: if `position` is outside.

        Example:
            >>> WindowTable(np.array([2, 9]), 4, stride=2, partial="drop").locate_one(2)
            (1, 4, 8)
        """
        episode, ordinal = self._windows.locate_one(position)
        start = ordinal * self.stride
        return episode, start, min(start + self.length, int(self.lengths[episode]))

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return (episodes, starts, stops) of many windows.

        Args:
            positions: int64 of shape (n,), each in [0, len(self)), in any order.

        Returns:
            The results of `locate_one` for each, all int64 of shape (n,).

        Raises:
            IndexError: if a position is outside.

        Example:
            >>> table = WindowTable(np.array([5, 2]), 3, stride=3, partial="pad")
            >>> episodes, starts, stops = table.locate(np.arange(3))
            >>> episodes.tolist(), (stops - starts).tolist()
            ([0, 0, 1], [3, 2, 2])
        """
        episodes, ordinals = self._windows.locate(positions)
        starts = ordinals * self.stride
        return episodes, starts, np.minimum(starts + self.length, self.lengths[episodes])

    @cached_property
    def _windows(self) -> Ragged:
        match self.partial:
            case "drop":
                counts = np.where(self.lengths < self.length, 0, (self.lengths - self.length) // self.stride + 1)
            case "pad":
                # Window k > 0 exists if its start, and the stop of the window before, are below the episode's length:
                # if k * stride < beyond.
                beyond = self.lengths - max(self.length - self.stride, 0)
                counts = np.where(self.lengths == 0, 0, np.maximum(-(-beyond // self.stride), 1))
            case _:
                assert_never(self.partial)
        return Ragged(counts)

    @cached_property
    def _digest(self) -> str:
        return array_digest(self.lengths)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WindowTable):
            return NotImplemented
        return repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return (
            f"WindowTable(<{len(self.lengths)} lengths {self._digest}>, length={self.length}, stride={self.stride}, "
            f"partial={self.partial!r})"
        )

    def __reduce__(self) -> tuple[Callable[[NDArray[np.int64], int], "WindowTable"], tuple[NDArray[np.int64], int]]:
        # Through the constructor, since an unpickled array is writable.
        constructor = functools.partial(WindowTable, stride=self.stride, partial=self.partial)
        return constructor, (self.lengths, self.length)
