"""Steps to batches: the rows of a step, their merge, and the steps above the batch.

All functions are pure functions of the plan and the step. Inline loaders, threads and processes call the same ones.
"""

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from penstock._graph import (
    DROPPED,
    Context,
    Element,
    Integers,
    Location,
    Map,
    Node,
    Origin,
    Read,
    Reindex,
    SeedPosition,
    after_error,
    apply_one,
    element_after_crash,
    element_at,
    evaluate_block,
    indices,
    locate,
    nested_ordinal,
    passes_below,
    seed_position_block,
    with_mask,
)
from penstock._plan._plan import Shard
from penstock._plan._program import Batches
from penstock._streaming import RankSegment, Token
from penstock.batching import RowStacker, Stack
from penstock.errors import InternalError
from penstock.sampling import apply_block as apply_sampler
from penstock.sampling import seed_positions
from penstock.sources import can_read_into

if TYPE_CHECKING:
    from collections.abc import Callable


WHOLE_BATCH: Final = -1
"""In `Context.crashing_rows`, after a step's epoch and position: it is no row that processes die of, but the batch."""

_PADDING_SHIFT = 40  # beyond the ordinals of rows that are taken out of batches


class Unit(NamedTuple):
    """One step's place: its number, and the epoch and position of its first element, as the timeline has it."""

    step: int
    epoch: int
    position: int
    batch: int
    """Elements in a full global batch."""


class Where(NamedTuple):
    """The place in a dataset that is read in order: this rank's segments, and the token of the next batch."""

    rank_segments: tuple[RankSegment, ...]
    token: Token


class StepRange(NamedTuple):
    """A range of steps: `steps` of them from `first` on; of a dataset that is read in order, from `where` on."""

    first: Unit
    steps: int
    stride: int
    """How far the position moves with each step."""
    where: Where | None = None
    """The place in a dataset that is read in order; None for an indexable one."""

    def unit(self, index: int) -> Unit:
        """Return the range's step `index`, counted from 0."""
        step, epoch, position, batch = self.first
        return Unit(step + index, epoch, position + index * self.stride, batch)

    def after(self, steps: int, token: Token) -> "StepRange":
        """Return what is left after some steps, the last of which came with this token."""
        if self.where is None:
            return self.part(steps, self.steps)
        return StepRange(self.unit(steps), self.steps, self.stride, self.where._replace(token=token))

    def part(self, start: int, steps: int) -> "StepRange":
        """Return the range of `steps` steps from step `start` on, at most as many as there are."""
        return StepRange(self.unit(start), min(steps, self.steps - start), self.stride)


class Rows(NamedTuple):
    """This rank's rows of one batch: positions [first + low, first + high) below the batch, clipped to `last`."""

    epoch: int
    first: int
    low: int
    high: int
    last: int
    """The last row of data; padding repeats it."""

    @property
    def total(self) -> int:
        """How many rows there are, padding included."""
        return self.high - self.low

    @property
    def data(self) -> int:
        """How many of the rows are data."""
        return min(max(self.last + 1 - self.first - self.low, 0), self.total)

    def positions(self, start: int, stop: int) -> Integers:
        """Return the positions of rows [start, stop) of this rank's."""
        positions = np.arange(self.first + self.low + start, self.first + self.low + stop, dtype=np.int64)
        return np.minimum(positions, self.last) if self.data < self.total else positions


def rows_of(program: Batches, shard: Shard, unit: Unit) -> Rows:
    """Return which rows below the batch this rank computes for a step."""
    if program.batch is None:
        return Rows(unit.epoch, unit.position, 0, 1, unit.position)
    epoch, first = _first_row(program, unit)
    count = min(unit.batch, program.total - first)
    padded = unit.batch if program.batch.remainder == "pad" else count
    low, high = (padded * rank // shard.count for rank in (shard.rank, shard.rank + 1))
    return Rows(epoch, first, low, high, first + count - 1)


def rows_of_step_range(program: Batches, shard: Shard, step_range: StepRange) -> tuple[list[Rows], list[int]]:
    """Return all rows of a range of steps, in as few runs as possible, and the row at which each step begins.

    Returns:
        The runs, and, for `steps` steps, `steps` + 1 bounds: step i has rows [bounds[i], bounds[i + 1]).
    """
    if program.can_recut and shard.count == 1:  # one batch begins where the other ends
        first, last = step_range.first, rows_of(program, shard, step_range.unit(step_range.steps - 1))
        total = (step_range.steps - 1) * first.batch + last.total
        return [Rows(first.epoch, first.position, 0, total, last.last)], [*range(0, total, first.batch), total]
    runs = [rows_of(program, shard, step_range.unit(index)) for index in range(step_range.steps)]
    return runs, list(itertools.accumulate((rows.total for rows in runs), initial=0))


def _first_row(program: Batches, unit: Unit) -> tuple[int, int]:
    if program.can_recut:
        return unit.epoch, unit.position
    epoch, batch = _coordinates(program, unit)[-1]
    return epoch, batch * unit.batch


def _coordinates(program: Batches, unit: Unit) -> list[tuple[int, int]]:
    """Return a step's coordinates at each step above the batch, outermost first, and at last at the batch itself."""
    at = (unit.epoch, unit.position // unit.batch if program.can_recut else unit.position)
    found = [at]
    for step in program.above:
        if isinstance(step, Reindex):
            at = step.sampler(*at)
        found.append(at)
    return found


def evaluate_rows(program: Batches, spans: list[tuple[Rows, int, int]], context: Context) -> list[Element]:
    """Return the elements of some rows of one or several batches.

    Args:
        program: the plan's.
        spans: rows [start, stop) of each batch.
        context: of the calling thread.
    """
    epochs, positions = row_coordinates(spans)
    if context.crashing_rows:
        at = list(zip(epochs.tolist(), positions.tolist(), strict=True))
        if not context.crashing_rows.keys().isdisjoint(at):
            return [_element_at(program.rows, *each, context) for each in at]
    return evaluate_block(program.rows, epochs, positions, context).elements


def _element_at(node: Node, epoch: int, position: int, context: Context) -> Element:
    death = context.crashing_rows.get((epoch, position))
    if death is None:
        return element_at(node, epoch, position, context)
    return element_after_crash(node, epoch, position, death, context)


def row_coordinates(spans: list[tuple[Rows, int, int]]) -> tuple[Integers, Integers]:
    """Return the epochs and positions, below the batch, of some rows of one or several batches."""
    if len(spans) == 1:
        rows, start, stop = spans[0]
        epochs = np.empty(stop - start, np.int64)
        epochs.fill(rows.epoch)  # a third of what np.full takes
        return epochs, rows.positions(start, stop)
    epochs = np.repeat([rows.epoch for rows, _, _ in spans], [stop - start for _, start, stop in spans])
    return epochs, np.concatenate([rows.positions(start, stop) for rows, start, stop in spans])


def coordinates_of(program: Batches, shard: Shard, unit: Unit, row: int) -> tuple[int, int]:
    """Return the epoch and position, below the batch, of one of this rank's rows of a step."""
    epochs, positions = row_coordinates([(rows_of(program, shard, unit), row, row + 1)])
    return int(epochs[0]), int(positions[0])


def reads_directly(program: Batches) -> Read | None:
    """Return the source's node if rows are records in another order and can be read straight into a stacked batch."""
    if program.stack is None:
        return None
    step = program.rows
    while isinstance(step, Reindex):
        step = step.parent
    return step if isinstance(step, Read) and can_read_into(step.source) else None


def direct_keys(program: Batches, epochs: Integers, positions: Integers) -> Integers:
    """Return the keys of rows that `reads_directly`."""
    step = program.rows
    while isinstance(step, Reindex):
        epochs, positions = apply_sampler(step.sampler, epochs, positions)
        step = step.parent
    return positions


def with_masks(program: Batches, shard: Shard, step_range: StepRange, batches: list[Element]) -> list[Element]:
    """Return the first batches of a range of steps with the mask leaf, if there is one."""
    step = program.batch
    if step is None or step.mask is None:
        return batches
    rows = [rows_of(program, shard, step_range.unit(index)) for index in range(len(batches))]
    return [with_mask(step, batch, each.data, each.total) for batch, each in zip(batches, rows, strict=True)]


class Merger:
    """Merges batch after batch; where the merge is plain stacking it keeps the layout from one to the next."""

    def __init__(self, program: Batches, context: Context) -> None:
        self._program = program
        self._context = context
        merge = None if program.batch is None else program.batch.merge
        self._merge: Callable[[list[Element]], Element] | None = RowStacker() if isinstance(merge, Stack) else merge

    def __call__(self, rows: Rows, unit: Unit, elements: list[Element]) -> Element:
        """Return a step's batch from the elements of its rows, the steps above the batch applied."""
        program = self._program
        if program.batch is None or self._merge is None:
            return elements[0]
        # Padding is there already, as rows that repeat the last one.
        merged = with_mask(program.batch, self._merge(elements), rows.data, rows.total)
        return apply_above(program, rows, unit, merged, self._context)


def apply_above(program: Batches, rows: Rows, unit: Unit, batch: Element, context: Context) -> Element:
    """Return a merged batch after the steps above it, each seeing the place that the definition has for it."""
    if not program.above:
        return batch
    place_above = _Places(program, rows, unit)
    return _applied(program.above[::-1], batch, place_above, context)


def may_be_replaced(program: Batches) -> bool:
    """Return whether a step above the batch replaces one that fails."""
    return any(isinstance(step, Map) and step.on_error != "raise" for step in program.above)


def batch_around(program: Batches, rows: Rows, unit: Unit, death: Exception, context: Context) -> Element:
    """Return what takes the place of a batch that processes die of as a whole, where it `may_be_replaced`.

    The crash doesn't show which step's function it was in, so it counts as one of the outermost such step.
    """
    place_above = _Places(program, rows, unit)
    for index, step in enumerate(program.above):
        if isinstance(step, Map) and step.on_error != "raise":
            batch = after_error(step, death, place_above(step), context, element_at)
            return _applied(program.above[:index][::-1], batch, place_above, context)
    raise death


def _applied(steps: tuple[Map | Reindex, ...], batch: Element, place_above: "_Places", context: Context) -> Element:
    for step in steps:
        if isinstance(step, Map):
            batch = apply_one(step, batch, place_above(step), context, element_at)
            if batch is DROPPED:
                raise InternalError("a dataset that leaves elements out is read in order")
    return batch


class _Places:
    """The places that the definition has for a batch at the steps above it."""

    def __init__(self, program: Batches, rows: Rows, unit: Unit) -> None:
        self._program = program
        self._rows = rows
        self._coordinates = _coordinates(program, unit)
        epochs, positions = row_coordinates([(rows, 0, 1)])
        _, self._part, self._key = locate(program.rows, int(epochs[0]), int(positions[0]))

    def __call__(self, step: Map) -> Location:
        index = next(index for index, each in enumerate(self._program.above) if each is step)
        at = self._coordinates[index]
        seed = _seed_position(self._program, self._rows, self._program.above[index + 1 :], at)
        return Location(*at, seed, self._key, part=self._part)


def _seed_position(program: Batches, rows: Rows, below: tuple[Map | Reindex, ...], at: tuple[int, int]) -> SeedPosition:
    """Return the seed position of this rank's part of a batch: its first row's, seen from a step above the batch."""
    if program.batch is None:
        raise InternalError("there is no batch to apply steps to")
    epochs, batches = np.array([at[0]], np.int64), np.array([at[1]], np.int64)
    for step in below:
        if isinstance(step, Reindex):
            if not passes_below(step.sampler):
                return SeedPosition(int(epochs[0]), int(batches[0]), rows.low)
            epochs, batches = seed_positions(step.sampler, epochs, batches)
    first = np.array([rows.first], np.int64) if program.can_recut else batches * program.batch.size
    padding = max(rows.first + rows.low - rows.last, 0)  # above 0 where all of the rank's rows are padding
    seeds = seed_position_block(program.rows, epochs, first + rows.low - padding)
    epoch, position, ordinal = (int(part[0]) for part in seeds)
    padded = ordinal + (padding << _PADDING_SHIFT)
    return SeedPosition(epoch, position, padded if padded < 1 << 63 else nested_ordinal(ordinal, padding))


def origin(program: Batches, rows: Rows, row: int) -> Origin:
    """Return where one row of a step's batch comes from."""
    epochs, positions = row_coordinates([(rows, row, row + 1)])
    seeds = seed_position_block(program.rows, epochs, positions)
    _, component, key = locate(program.rows, int(epochs[0]), int(positions[0]))
    epoch, position, ordinal = (int(part[0]) for part in seeds)
    (index,) = indices(program.rows, [epoch], [position])
    return Origin(epoch, position, key, ordinal=ordinal, component=component, index=index)
