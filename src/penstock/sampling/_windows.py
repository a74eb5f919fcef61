"""Windows over episodes of known lengths: a search finds the episode and the frames of a position."""

import functools
from collections.abc import Callable
from dataclasses import field
from typing import Literal, assert_never

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.errors import UsageError
from penstock.sampling._arguments import LARGEST_LENGTH, checked_integer
from penstock.sampling._digest import array_digest
from penstock.sampling._ragged import Ragged, checked_counts


@frozen(cached=True)
class WindowTable:
    """Windows of `length` frames that begin at frames 0, stride, 2 * stride, … of each episode, one after another.

    With partial="drop" there are only whole windows: those that end within the episode. Frames at an episode's end,
    and episodes shorter than a window, may then be in none.

    With partial="pad" the last windows may be shorter; their reader fills them up. The first window exists if the
    episode has a frame; another one exists if it has a frame that the window before doesn't have: if its start and the
    stop of the one before are both below the episode's length. So if stride <= length, every frame of every episode is
    in a window, and if stride == length in exactly one.

    Two are equal if all of these are. The repr has a digest of the lengths.

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

    @functools.cached_property
    def _windows(self) -> Ragged:
        match self.partial:
            case "drop":
                counts = np.where(self.lengths < self.length, 0, (self.lengths - self.length) // self.stride + 1)
            case "pad":
                # Window k > 0 exists if its start, and the stop of the one before, are below the length: k * stride <
                # beyond.
                beyond = self.lengths - max(self.length - self.stride, 0)
                counts = np.where(self.lengths == 0, 0, np.maximum(-(-beyond // self.stride), 1))
            case _:
                assert_never(self.partial)
        return Ragged(counts)

    @functools.cached_property
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
