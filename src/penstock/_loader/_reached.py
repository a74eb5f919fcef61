"""The set of delivered steps where batches are delivered out of order: all before one step, and some after it."""

from collections.abc import Collection
from typing import NamedTuple


class Reached(NamedTuple):
    """All steps before `step` were delivered, and those in the spans [start, stop) of `ahead`, which follow it."""

    step: int
    ahead: tuple[tuple[int, int], ...] = ()

    @property
    def total(self) -> int:
        """The number of delivered steps."""
        return self.step + sum(stop - start for start, stop in self.ahead)

    @property
    def end(self) -> int:
        """The step after the last delivered one."""
        return self.ahead[-1][1] if self.ahead else self.step

    def gaps(self, end: int) -> list[tuple[int, int]]:
        """Return the spans of steps before `end` that were not delivered; at least one, which may be empty."""
        starts = (self.step, *(stop for _, stop in self.ahead))
        stops = (*(start for start, _ in self.ahead), end)
        gaps = list(zip(starts, stops, strict=True))
        return gaps if gaps[-1][0] < end else gaps[:-1] or gaps

    def after(self, step: int) -> "Reached":
        """Return the set with one more delivered step."""
        return (
            Reached(step + 1)
            if step == self.step and not self.ahead
            else _joined(self.step, (step, step + 1), *self.ahead)
        )

    def without(self, steps: Collection[int]) -> "Reached":
        """Return the set as it was before some steps were delivered."""
        first = min((self.step, *steps))
        spans: list[tuple[int, int]] = []
        for low, stop in ((first, self.step), *self.ahead):
            start = low
            for step in sorted(step for step in steps if low <= step < stop):
                spans.append((start, step))
                start = step + 1
            spans.append((start, stop))
        return _joined(first, *spans)


def _joined(step: int, *spans: tuple[int, int]) -> Reached:
    ahead: list[tuple[int, int]] = []
    for start, stop in sorted(span for span in spans if span[0] < span[1]):
        if start <= step:
            step = stop
        elif ahead and ahead[-1][1] == start:
            ahead[-1] = (ahead[-1][0], stop)
        else:
            ahead.append((start, stop))
    return Reached(step, tuple(ahead))
