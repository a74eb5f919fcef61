"""Objects for `combine`: one that is often empty, one that needs the last two elements, one that needs all."""

from typing import Any

import numpy as np

from tests.equivalence.functions import flat_sum, totals, weight_of


class Filled:
    """Groups of consecutive elements with a weight of 9 together; it holds nothing after each."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    @property
    def held(self) -> int:
        """The number of waiting elements."""
        return len(self.waiting)

    def add(self, element: Any) -> list[Any]:
        """Return a group that is full, and before it the waiting one, if the element alone is full."""
        if weight_of(element) == 6 and self.waiting:
            return [*self.flush(), totals([element])]
        self.waiting.append(element)
        return self.flush() if sum(map(weight_of, self.waiting)) >= 9 else []

    def flush(self) -> list[Any]:
        """Return the waiting elements."""
        group, self.waiting = self.waiting, []
        return [totals(group)]


class Neighbours:
    """Each element with the two before it, twice if its sum is odd; after the first element it is never empty."""

    def __init__(self) -> None:
        self.last: list[int] = []

    @property
    def held(self) -> int:
        """The number of elements that decide the next results."""
        return len(self.last)

    def add(self, element: Any) -> list[Any]:
        """Return the sums of three."""
        three = [*self.last, flat_sum(element)]
        self.last = three[-2:]
        return [np.array(three, np.int64) + copy for copy in range(1 + three[-1] % 2)] if len(three) == 3 else []

    def flush(self) -> list[Any]:
        """Return the last two, and both again the other way round."""
        return [np.array([*self.last, 0], np.int64), np.array([0, *self.last[::-1]], np.int64)]


class Running:
    """The sum of all elements so far, at every third one and at the end; it has no `held`."""

    def __init__(self) -> None:
        self.sum = 0
        self.count = 0

    def add(self, element: Any) -> list[Any]:
        """Return the sum, at every third element."""
        self.sum = (self.sum * 31 + flat_sum(element)) % 1_000_003
        self.count += 1
        return [] if self.count % 3 else [self.sum, -self.sum]

    def flush(self) -> list[Any]:
        """Return the sum."""
        return [self.sum]


class Delayed:
    """The elements themselves, each when three more were added."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    @property
    def held(self) -> int:
        """The number of waiting elements."""
        return len(self.waiting)

    def add(self, element: Any) -> list[Any]:
        """Return the element that was added three before."""
        self.waiting.append(element)
        return [self.waiting.pop(0)] if len(self.waiting) > 3 else []

    def flush(self) -> list[Any]:
        """Return the last three."""
        return self.waiting
