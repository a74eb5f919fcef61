"""Steps to batches: ranges of steps, the rows of a step, their merge, and the steps above the batch.

All functions are pure functions of the plan and the step. Inline loaders, threads and processes call the same ones.
`Remaining` keeps the steps that were not delivered yet, so that computing them can start again anywhere.

Two classes compute whole batches in the caller's thread. `InlineBatches` takes the plain path, one batch at a time:
rows, merge, the steps above. It serves `batch_at`, and finds the batch and the row of an error. `DirectBatches` is the
short path, for records that are only read.
"""

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock._caught import raised_by_handler
from penstock._graph import (
    DROPPED,
    Context,
    Element,
    Integers,
    Location,
    Map,
    Node,
    Origin,
    Reindex,
    SeedPosition,
    apply_again,
    apply_one,
    element_after_crash,
    element_at,
    evaluate_block,
    locate,
    nested_ordinal,
    origins,
    passes_below,
    read_into,
    seed_position_block,
    with_mask,
)
from penstock._plan import Batches, Plan, Shard
from penstock._readings import StepTimes
from penstock._runtime._policy import DIRECT_BYTES, SAMPLED_EVERY, SHORT_SECONDS
from penstock._streaming import RankSegment, Token, made_token
from penstock.batching import Column, Layout, PlannedRows, RowStacker, Stack, write_rows
from penstock.errors import InternalError
from penstock.sampling import apply_block as apply_sampler
from penstock.sampling import seed_positions

if TYPE_CHECKING:
    from collections.abc import Callable

_PADDING_SHIFT = 40  # bits; the ordinals of rows that `unbatch` takes out of batches are smaller


class Unit(NamedTuple):
    """One step: its number, and the epoch and position of its first element in the timeline."""

    step: int
    epoch: int
    position: int
    batch: int
    """Elements in a full global batch."""


class Where(NamedTuple):
    """The position in a dataset that is read in order: this rank's segments, and the token of the next batch."""

    rank_segments: tuple[RankSegment, ...]
    token: Token


class StepRange(NamedTuple):
    """`steps` consecutive steps from `first` on; in a dataset that is read in order, from `where` on."""

    first: Unit
    steps: int
    stride: int
    """The difference between the positions of two consecutive steps."""
    where: Where | None = None
    """The position in a dataset that is read in order; None for an indexable one."""

    @property
    def start(self) -> int:
        """The number of the first step."""
        return self.first.step

    def unit(self, index: int) -> Unit:
        """Return the range's step `index`, counted from 0."""
        step, epoch, position, batch = self.first
        return Unit(step + index, epoch, position + index * self.stride, batch)

    def after(self, steps: int, token: Token) -> "StepRange":
        """Return the range without its first `steps` steps; `token` is that of the last of these."""
        if self.where is None:
            return self.part(steps, self.steps)
        return StepRange(self.unit(steps), self.steps, self.stride, self.where._replace(token=made_token(token)))

    def part(self, start: int, steps: int) -> "StepRange":
        """Return the range of `steps` steps from its step `start` on, or of fewer where it ends."""
        return StepRange(self.unit(start), min(steps, self.steps - start), self.stride)


class Remaining:
    """The steps that were not delivered, while batches are delivered in order, or each with its step.

    Args:
        step_ranges: all steps, in order; at least one range, perhaps of no steps.
    """

    def __init__(self, step_ranges: list[StepRange]) -> None:
        self._step_ranges = step_ranges
        self._index = 0  # how many batches of the first range were delivered
        self._token: Token = None  # of the last of them

    def remove_delivered(self, token: Token) -> bool:
        """Remove a delivered batch, given by its token; return whether it was the first of the remaining ones."""
        unit = None if token is None else self.unit_of(token)
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

    def unit_of(self, token: Token) -> Unit | None:
        """Return the step that a token names; None where it names none."""
        step_range = self._step_ranges[0]
        return None if token is None or step_range.where is not None else step_range.unit(token - step_range.first.step)


def without(step_ranges: list[StepRange], taken: StepRange) -> list[StepRange]:
    """Return ranges without the steps of `taken`, which are all in one of the ranges."""
    left: list[StepRange] = []
    for step_range in step_ranges:
        before = taken.first.step - step_range.first.step
        if 0 <= before < step_range.steps:
            after = before + taken.steps
            if before:
                left.append(step_range.part(0, before))
            if after < step_range.steps:
                left.append(step_range.part(after, step_range.steps))
        else:
            left.append(step_range)
    return left


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
        """The number of rows, padding included."""
        return self.high - self.low

    @property
    def data(self) -> int:
        """The number of rows without padding."""
        return min(max(self.last + 1 - self.first - self.low, 0), self.total)

    def positions(self, start: int, stop: int) -> Integers:
        """Return the positions of this rank's rows [start, stop)."""
        positions = np.arange(self.first + self.low + start, self.first + self.low + stop, dtype=np.int64)
        return np.minimum(positions, self.last) if self.data < self.total else positions


def rows_of(program: Batches, shard: Shard, unit: Unit) -> Rows:
    """Return the rows below the batch that this rank computes for a step."""
    if program.batch is None:
        return Rows(unit.epoch, unit.position, 0, 1, unit.position)
    epoch, first = _first_row(program, unit)
    count = min(unit.batch, program.total - first)
    padded = unit.batch if program.batch.value.remainder == "pad" else count
    low, high = padded * shard.rank // shard.count, padded * (shard.rank + 1) // shard.count
    return Rows(epoch, first, low, high, first + count - 1)


def rows_of_batch(plan: Plan) -> int:
    """Return the rows of a full batch on this rank."""
    return max(plan.batch_size // plan.shard.count, 1)


def rows_of_step_range(program: Batches, shard: Shard, step_range: StepRange) -> tuple[list[Rows], list[int]]:
    """Return all rows of a range of steps, in as few runs as possible, and the first row of each step.

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
    """Return the coordinates of a step at each node above the batch, outermost first, and then at the batch itself."""
    at = (unit.epoch, unit.position // unit.batch if program.can_recut else unit.position)
    found = [at]
    for step in program.above:
        if isinstance(step, Reindex):
            at = step.sampler(*at)
        found.append(at)
    return found


def evaluate_rows(
    program: Batches, spans: list[tuple[Rows, int, int]], context: Context, *, late: bool = False
) -> list[Element]:
    """Return the elements of rows of one or several batches.

    Args:
        program: the program of the plan.
        spans: for each batch, its rows, and the span [start, stop) of them to evaluate.
        context: the context of the calling thread.
        late: as for `evaluate_block`; `write_evaluated` takes such elements.
    """
    epochs, positions = row_coordinates(spans)
    context.times.start(len(positions))
    if context.crashing_rows:
        at = list(zip(epochs.tolist(), positions.tolist(), strict=True))
        if not context.crashing_rows.keys().isdisjoint(at):
            return [_element_at(program.rows, *each, context) for each in at]
    return evaluate_block(program.rows, epochs, positions, context, late=late).elements


def write_evaluated(
    program: Batches,
    elements: Sequence[Element],
    layout: Layout,
    columns: Sequence[Column],
    start: int,
    context: Context,
) -> None:
    """Write the elements of `evaluate_rows` into rows from `start` on, and end the time of the batch.

    Raises:
        LayoutMismatchError: an element doesn't fit the layout.
    """
    write_rows(layout, elements, columns, start)
    if isinstance(elements, PlannedRows):  # which were filled just now
        context.times.lap(program.sampled, 0)
    context.times.lap(program.batch, len(elements))


def _element_at(node: Node, epoch: int, position: int, context: Context) -> Element:
    crash = context.crashing_rows.get((epoch, position))
    if crash is None:
        return element_at(node, epoch, position, context)
    return element_after_crash(node, epoch, position, crash, context)


def row_coordinates(spans: list[tuple[Rows, int, int]]) -> tuple[Integers, Integers]:
    """Return the epochs and positions, below the batch, of rows of one or several batches."""
    if len(spans) == 1:
        rows, start, stop = spans[0]
        epochs = np.empty(stop - start, np.int64)
        epochs.fill(rows.epoch)  # takes a third of the time of np.full
        return epochs, rows.positions(start, stop)
    epochs = np.repeat([rows.epoch for rows, _, _ in spans], [stop - start for _, start, stop in spans])
    return epochs, np.concatenate([rows.positions(start, stop) for rows, start, stop in spans])


def coordinates_of(program: Batches, shard: Shard, unit: Unit, row: int) -> tuple[int, int]:
    """Return the epoch and position, below the batch, of row `row` of this rank's part of a step."""
    epochs, positions = row_coordinates([(rows_of(program, shard, unit), row, row + 1)])
    return int(epochs[0]), int(positions[0])


def direct_keys(program: Batches, epochs: Integers, positions: Integers) -> Integers:
    """Return the keys of rows, for a program whose rows are read directly (`Batches.direct`)."""
    step = program.rows
    while isinstance(step, Reindex):
        epochs, positions = apply_sampler(step.sampler, epochs, positions)
        step = step.parent
    return positions


def with_masks(program: Batches, shard: Shard, step_range: StepRange, batches: list[Element]) -> list[Element]:
    """Return the first batches of a range of steps with the mask leaf, if there is one."""
    step = program.batch
    if step is None or step.value.mask is None:
        return batches
    rows = [rows_of(program, shard, step_range.unit(index)) for index in range(len(batches))]
    return [with_mask(step.value, batch, each.data, each.total) for batch, each in zip(batches, rows, strict=True)]


class Merger:
    """Merges batches, one after the other; where the merge is plain stacking, it keeps the layout for the next one."""

    def __init__(self, program: Batches, context: Context) -> None:
        self._program = program
        self._context = context
        merge = None if program.batch is None else program.batch.value.merge
        self._merge: Callable[[list[Element]], Element] | None = RowStacker() if isinstance(merge, Stack) else merge

    def merged(self, rows: Rows, elements: list[Element]) -> Element:
        """Merge the elements of a step's rows; without a batch, return the only element."""
        step = self._program.batch
        if step is None or self._merge is None:
            return elements[0]
        # Padding is there already, as rows that repeat the last one.
        batch = with_mask(step.value, self._merge(elements), rows.data, rows.total)
        self._context.times.lap(step, len(elements))
        return batch


def _applied(
    steps: tuple[Map, ...], batch: Element, locations: "_Locations", context: Context, weight: int = 1
) -> Element:
    """Apply steps to a batch; the times of the steps count `weight` times, and are not taken if that is 0."""
    for step in steps:
        if step.form == "none":  # as `apply_one`, but a location is computed for an error only
            draws = context.draws
            before = None if draws is None else draws.before(step)
            try:
                batch = step.function(batch)
                if draws is not None and before is not None:
                    draws.after(step, before, context.observe)
            except Exception as error:
                if raised_by_handler(error):
                    raise
                batch = apply_again(step, batch, error, locations.at(step), context, element_at)
        else:
            batch = apply_one(step, batch, locations.at(step), context, element_at)
        if batch is DROPPED:
            raise InternalError("an indexable dataset drops no batch")
        if weight:
            context.times.lap(step, 1, weight)
    return batch


def _maps(program: Batches) -> tuple[Map, ...]:
    """Return the functions above the batch, innermost first."""
    return tuple(step for step in reversed(program.above) if isinstance(step, Map))


class _Locations:
    """The locations that the definition gives a batch at the steps above it, computed on request."""

    def __init__(self, program: Batches, find: "Callable[[], tuple[Unit, Rows]]") -> None:
        self._program = program
        self._find = find

    def at(self, step: Map) -> Location:
        """Return the location at one of the steps."""
        program = self._program
        unit, rows = self._find()
        index = next(index for index, each in enumerate(program.above) if each is step)
        at = _coordinates(program, unit)[index]
        seed = _seed_position(program, rows, program.above[index + 1 :], at)
        epochs, positions = row_coordinates([(rows, 0, 1)])
        _, part, key = locate(program.rows, int(epochs[0]), int(positions[0]))
        return Location(*at, seed, key, part=part)


def _seed_position(program: Batches, rows: Rows, below: tuple[Map | Reindex, ...], at: tuple[int, int]) -> SeedPosition:
    """Return the seed position of this rank's part of a batch at a step above it: that of the part's first row."""
    if program.batch is None:
        raise InternalError("there is no batch to apply steps to")
    epochs, batches = np.array([at[0]], np.int64), np.array([at[1]], np.int64)
    for step in below:
        if isinstance(step, Reindex):
            if not passes_below(step.sampler):
                return SeedPosition(int(epochs[0]), int(batches[0]), rows.low)
            epochs, batches = seed_positions(step.sampler, epochs, batches)
    first = np.array([rows.first], np.int64) if program.can_recut else batches * program.batch.value.size
    padding = max(rows.first + rows.low - rows.last, 0)  # above 0 where all of the rank's rows are padding
    seeds = seed_position_block(program.rows, epochs, first + rows.low - padding)
    epoch, position, ordinal = (int(part[0]) for part in seeds)
    padded = ordinal + (padding << _PADDING_SHIFT)
    return SeedPosition(epoch, position, padded if padded < 1 << 63 else nested_ordinal(ordinal, padding))


def row_origins(program: Batches, rows: Rows, start: int, stop: int) -> tuple[Origin, ...]:
    """Return the origins of rows [start, stop) of a step's batch."""
    return origins(program.rows, *row_coordinates([(rows, start, stop)]))


def _unit_and_rows(program: Batches, shard: Shard, step_range: StepRange, index: int) -> tuple[Unit, Rows]:
    unit = step_range.unit(index)
    return unit, rows_of(program, shard, unit)


def finished_batches(
    program: Batches, shard: Shard, step_range: StepRange, batches: Iterable[Element], context: Context
) -> Iterator[Element]:
    """Yield the merged batches of some steps with the steps above the batch applied, each when it is requested.

    Where these take little time, they are timed in two of the batches, which count for all.
    """
    above, weight, index = _maps(program), 1, 0
    locations = _Locations(program, lambda: _unit_and_rows(program, shard, step_range, index))  # of the current batch
    for index, batch in enumerate(batches):
        if not weight:
            yield _applied(above, batch, locations, context, 0)
            continue
        context.times.resume()
        began = time.perf_counter()
        finished = _applied(above, batch, locations, context, weight)
        if weight > 1:
            weight = 0
        elif time.perf_counter() - began < SHORT_SECONDS:
            weight = step_range.steps - index - 1  # the next one counts for all that are left
        yield finished
        del finished


class InlineBatches:
    """Computes the batches of an indexable dataset in the caller's thread."""

    def __init__(self, program: Batches, shard: Shard, context: Context) -> None:
        self._program = program
        self._shard = shard
        self._context = context
        self._merger = Merger(program, context)
        self._above = _maps(program)
        self._every = self._untimed = 1  # the steps above are timed in one of so many batches; not timed since

    def batch(self, unit: Unit, *, careful: bool = False) -> Element:
        """Return a step's batch.

        Args:
            unit: the step.
            careful: whether rows are computed one by one, so that no row after one that raises is computed.
        """
        return self.finished(unit, self.merged(unit, careful=careful))

    def merged(self, unit: Unit, *, careful: bool = False) -> Element:
        """Return a step's batch, to which the steps above the batch were not applied yet."""
        rows = self._rows(unit)
        size = 1 if careful else max(rows.total, 1)
        elements: list[Element] = []
        for start in range(0, rows.total, size):
            elements += evaluate_rows(self._program, [(rows, start, min(start + size, rows.total))], self._context)
        return self._merger.merged(rows, elements)

    def merge(self, unit: Unit, elements: list[Element]) -> Element:
        """Return the merged elements of a step's rows."""
        return self._merger.merged(self._rows(unit), elements)

    def finished(self, unit: Unit, batch: Element) -> Element:
        """Apply the steps above the batch to a merged batch."""
        if not self._above:
            return batch
        locations = _Locations(self._program, lambda: (unit, self._rows(unit)))
        if self._untimed < self._every:
            self._untimed += 1
            return _applied(self._above, batch, locations, self._context, 0)
        self._untimed = 1
        self._context.times.resume()
        began = time.perf_counter()
        batch = _applied(self._above, batch, locations, self._context, self._every)
        self._every = 1 if time.perf_counter() - began > SHORT_SECONDS else SAMPLED_EVERY
        return batch

    def _rows(self, unit: Unit) -> Rows:
        return rows_of(self._program, self._shard, unit)


class DirectBatches:
    """Merged batches of a program whose rows are read directly: keys for all steps, records for a few at once.

    Attributes:
        step_range: the steps.
        at_once: how many batches fit memory that is used again while it is still in the cache.
    """

    def __init__(self, plan: Plan, step_range: StepRange, layout: Layout) -> None:
        program, shard = plan.batches, plan.shard
        read = program.direct
        if read is None:
            raise InternalError("these rows are not read directly")
        self.step_range = step_range
        self._program = program
        self._shard = shard
        self._layout = layout
        self._read = read
        self._untimed = 0  # calls of `batches` since one was timed
        runs, self._bounds = rows_of_step_range(program, shard, step_range)
        self._keys = direct_keys(program, *row_coordinates([(rows, 0, rows.total) for rows in runs]))
        self.at_once = max(DIRECT_BYTES * step_range.steps // max(layout.row_bytes * self._bounds[-1], 1), 1)

    def batches(self, index: int, count: int, times: StepTimes) -> list[Element]:
        """Return the batches of `count` steps from `index` on, or of fewer at the end."""
        bounds = self._bounds[index : index + count + 1]
        first = bounds[0]
        self._untimed = (self._untimed + 1) % SAMPLED_EVERY
        weight = SAMPLED_EVERY if self._untimed == 1 else 0
        if weight:  # reading takes so little time that it is measured in one of so many calls
            times.start(weight * (bounds[-1] - first))
        columns = self._layout.columns(bounds[-1] - first)
        read_into(self._read, self._keys[first : bounds[-1]], self._layout.batch(columns), times, weight)
        batches = self._layout.batches(columns, [bound - first for bound in bounds])
        if not self._program.has_mask:  # so that no part of the range is made
            return batches
        return with_masks(self._program, self._shard, self.step_range.part(index, len(batches)), batches)


def can_be_direct(layout: Layout) -> bool:
    """Return whether `read_into` can write all leaves of a row: arrays, texts and bytes."""
    return None not in layout.kinds
