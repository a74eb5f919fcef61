"""The steps that were not delivered yet, so that computing them can be begun again anywhere."""

from penstock._runtime._batches import StepRange, Unit
from penstock._streaming import Token


class Remaining:
    """The steps that are left, while batches come in order or each with its step.

    Args:
        step_ranges: all of them, in order.
    """

    def __init__(self, step_ranges: list[StepRange]) -> None:
        self._step_ranges = step_ranges  # at least one, of no steps perhaps
        self._index = 0  # batches of the first range that were delivered
        self._token: Token = None  # that the last of them came with

    def hand_out(self, token: Token) -> bool:
        """Take a batch out, by the token that it came with; return whether it was the first of those that are left."""
        unit = self.place(token)
        if unit is None:
            self._index += 1
            self._token = token
            return True
        step_ranges = self.step_ranges()
        self._step_ranges = without(step_ranges, StepRange(unit, 1, 0)) or [
            step_ranges[0].part(step_ranges[0].steps, step_ranges[0].steps)
        ]
        return unit.step == step_ranges[0].first.step

    def step_ranges(self) -> list[StepRange]:
        """Return the remaining steps, in order; at least one range, perhaps of no steps."""
        if self._index:
            first, *others = self._step_ranges
            first = first.after(self._index, self._token)
            self._step_ranges = [first, *others] if first.steps or not others else others
            self._index = 0
        return self._step_ranges

    def place(self, token: Token) -> Unit | None:
        """Return the place of the step that a token tells; None where it tells none."""
        step_range = self._step_ranges[0]
        return None if token is None or step_range.where is not None else step_range.unit(token - step_range.first.step)


def without(step_ranges: list[StepRange], taken: StepRange) -> list[StepRange]:
    """Return some ranges without the steps of another, which are in one of them."""
    left: list[StepRange] = []
    for step_range in step_ranges:
        before = taken.first.step - step_range.first.step
        if 0 <= before < step_range.steps:
            after = before + taken.steps
            parts = (step_range.part(0, before), step_range.part(after, step_range.steps))
            left += (part for part in parts if part.steps)
        else:
            left.append(step_range)
    return left
