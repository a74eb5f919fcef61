"""Evaluation of a block of positions at once, element for element equal to `element_at`.

The problem: `element_at` walks the graph once for each element, and each time computes a permutation, reads a record
and derives a seed. For elements that take microseconds, that walk is most of the cost.

The solution: one walk for many positions. Samplers map arrays of positions, sources return many records in one call,
seeds are derived in arrays, and a user's function is called in one loop. Positions of one block may repeat and be in
any order, since a sampler above decides them. Where a step makes several elements of one (`unbatch`, `flat_map`,
`windows`), each parent element is evaluated once (`distinct`), and a repeated result is copied, since a function above
may write to its input. Of the last parent, the other pieces are kept for the thread's next block (`_kept_pieces`).

A part of a mixture may have only a row or two in a block. Arrays of one row cost more than they save, so such blocks
are divided with lists, and up to four rows of a part are evaluated without arrays (`_mix_few`).

A row that crashes workers is never computed, and the outermost `on_error` above it decides (`element_after_crash`).
Which step's function crashed the process is unknown. So the crash counts as an error of the outermost step whose
`on_error` is not "raise"; if the row has several zipped parts, of the first part with such a step.

Invariants:
  - The elements equal `element_at` of each position.
  - The function of a map is called once for each element, unless an error that may pass is retried, or a cache finds
    out which elements of a block were replaced. When it raises, the results before are kept (`_apply.apply_into`).
  - Elements that a filter or `on_error="skip"` leaves out are missing, and `Block.kept` has the numbers of the others.
"""

import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeGuard, assert_never, cast

import numpy as np

from penstock._caught import Caught
from penstock._graph._apply import (
    DROPPED,
    Context,
    Location,
    after_error,
    apply_again,
    apply_into,
    apply_one,
    location_of,
)
from penstock._graph._coordinates import (
    SeedPosition,
    SeedPositions,
    Share,
    components_of,
    indices,
    keys_of,
    locate_block,
    passes_below,
    seed_position_block,
)
from penstock._graph._evaluate import cached, element_at, keeps
from penstock._graph._inputs import first_inputs, inputs, inputs_at
from penstock._graph._kept_pieces import KeptParent
from penstock._graph._length import length
from penstock._graph._nodes import (
    Cache,
    Combine,
    Element,
    Filter,
    Fold,
    Gather,
    GatherFacts,
    Integers,
    Map,
    Node,
    Read,
    Reindex,
    Split,
    Stream,
)
from penstock._graph._splitting import splitting_of
from penstock._readings import StepTimes
from penstock.errors import InternalError
from penstock.sampling import MixtureRule
from penstock.sampling import apply_block as apply_sampler
from penstock.sources import fill_rows, is_read_singly, read_record

_ROWS_PER_PART: Final = 4  # on average; with fewer, an array for each part costs more than a list
_MAX_SINGLY: Final = 4  # rows of a part: evaluating these without arrays costs about as much as with them


class Block(NamedTuple):
    """The elements of a block of positions."""

    elements: list[Element]
    kept: Integers | None
    """The numbers, within the block, of the elements that were kept; None for all of them."""
    filtered: int = 0
    """The number of elements that a predicate left out, rather than an error."""


def join_blocks(singles: list[Block]) -> Block:
    """Return blocks of one position each as one block."""
    numbers = [number for number, single in enumerate(singles) if single.elements]
    kept = None if len(numbers) == len(singles) else np.array(numbers, np.int64)
    elements = [element for single in singles for element in single.elements]
    return Block(elements, kept, sum(single.filtered for single in singles))


class BlockLocations:
    """The locations of a block's elements at one node, computed on request."""

    def __init__(self, node: Node, epochs: Integers, positions: Integers, kept: Integers | None) -> None:
        self._node = node
        self._epochs = epochs if kept is None else epochs[kept]
        self._positions = positions if kept is None else positions[kept]
        self._seeds: SeedPositions | None = None
        self._shares: list[Share] | None = None
        self._keys: Integers | None = None
        self._components: list[str] | None = None

    @property
    def are_plain(self) -> bool:
        """True: no part's salt is mixed into the seed positions."""
        return True

    def at(self, index: int) -> Location:
        """Return the location of the block's element `index`."""
        seeds, keys = self.seeds(), self.keys()
        seed = SeedPosition(*(int(part[index]) for part in seeds))
        part = self.components()[index]
        return Location(int(self._epochs[index]), int(self._positions[index]), seed, int(keys[index]), part=part)

    def all(self) -> list[Location]:
        """Return the locations of all elements of the block."""
        seeds = map(SeedPosition, *(part.tolist() for part in self.seeds()))
        positions = self._epochs.tolist(), self._positions.tolist()
        keyed = zip(*positions, seeds, self.keys().tolist(), self.components(), strict=True)
        return [Location(epoch, position, seed, key, part=part) for epoch, position, seed, key, part in keyed]

    def seeds(self) -> SeedPositions:
        """Return the seed positions of the block's elements."""
        if self._seeds is None:
            self._seeds = seed_position_block(self._node, self._epochs, self._positions)
        return self._seeds

    def keys(self) -> Integers:
        """Return the keys of the block's elements."""
        if self._keys is None:
            self._keys = keys_of(self._located(), len(self._positions))
        return self._keys

    def components(self) -> list[str]:
        """Return the component of each element of the block."""
        if self._components is None:
            self._components = components_of(self._located(), len(self._positions))
        return self._components

    def indices(self) -> list[int | None]:
        """Return the index of each element over all epochs, as `Origin.index`."""
        seeds = self.seeds()
        return indices(self._node, seeds.epochs.tolist(), seeds.positions.tolist())

    def _located(self) -> list[Share]:
        if self._shares is None:
            self._shares = locate_block(self._node, self._epochs, self._positions)
        return self._shares


def evaluate_block(node: Node, epochs: Integers, positions: Integers, context: Context, *, late: bool = False) -> Block:
    """Return the elements at a block of coordinates of a node.

    Args:
        node: an indexable node, or filters and skipping maps over one.
        epochs: int64 (elements,), the epoch of each element.
        positions: int64 (elements,), each in [0, length of the indexable node).
        context: of the calling thread.
        late: whether the elements may be others than a list, made when they are first used.
    """
    times = context.times
    outer = times.enter()
    # A loop, not a recursion: a user's traceback has the same few frames above any function of a chain of maps.
    steps: list[tuple[Map | Filter, Integers, Integers]] = []
    while isinstance(node, Map | Reindex | Filter):
        if isinstance(node, Reindex):
            epochs, positions = apply_sampler(node.sampler, epochs, positions)
            times.lap(node, len(positions))
        else:
            steps.append((node, epochs, positions))
        node = node.parent
    block = _evaluate_root(node, epochs, positions, context, late=late and not steps)
    times.lap(node, len(block.elements))
    while steps:
        step, epochs, positions = steps.pop()
        locations = BlockLocations(step.parent, epochs, positions, block.kept)
        if isinstance(step, Map):
            results: list[Element] = []
            apply_into(results, step, block.elements, locations, context, element_at)
            if step.on_error == "skip":
                block = _keep(results, block, [result is not DROPPED for result in results])
            else:
                block = block._replace(elements=results)
        else:
            below = block
            block = _keep(below.elements, below, _predicate(step, below.elements, locations))
            block = block._replace(filtered=below.filtered + len(below.elements) - len(block.elements))
        times.lap(step, len(block.elements))
    if outer is not None:
        times.leave(outer)
    return block


def read_into(node: Read, keys: Integers, out: Element, times: StepTimes, weight: int = 1) -> None:
    """Read records straight into the arrays of a batch, and end the time of the node.

    Args:
        node: its source has `read_into`.
        keys: int64 (rows,), the keys of the records.
        out: the batch, whose arrays have one row for each key.
        times: of the calling thread.
        weight: this call stands for so many calls, as in `StepTimes.lap`; 0 if nothing of it is measured.

    Raises:
        SourceError: as `fill_rows`. The rows are then read again, by `read`.
    """
    fill_rows(node.source, keys, out)
    if weight:
        times.lap(node, len(keys), weight)


def _evaluate_root(node: Node, epochs: Integers, positions: Integers, context: Context, *, late: bool = False) -> Block:
    """Return the elements of a node that is neither a map, a filter nor a sampler."""
    match node:
        case Read(source=source):
            draws = context.draws if len(positions) else None  # a block without elements shows nothing
            before = None if draws is None else draws.before(node)
            records = context.read(source, positions)
            if draws is not None and before is not None:
                draws.after(node, before, context.observe)
            return Block(records, None)
        case Gather():
            gathered = _gathered(node, epochs, positions, context)
            return Block(cast("list[Element]", gathered) if late else [*gathered], None)
        case Split():
            return Block(_split(node, epochs, positions, context), None)
        case Cache():
            return Block(_cached(node, epochs, positions, context), None)
        case Combine(value=value) if value.rule is not None:
            return Block(_mixed(node, value.rule, epochs, positions, context), None)
        case Combine(names=names, value=value) if length(node) is not None:
            columns = [evaluate_block(*below[:3], context).elements for below in inputs(node, epochs, positions)]
            return Block(value.joined(names, columns), None)
        case Stream() | Combine() | Fold():
            raise InternalError(f"a {type(node).__name__} node has no positions")
        case Map() | Reindex() | Filter():
            raise InternalError(f"a {type(node).__name__} node is applied to the block of its root")
        case _:
            assert_never(node)


def _keep(elements: list[Element], below: Block, mask: list[bool]) -> Block:
    chosen = np.flatnonzero(np.asarray(mask, bool))
    kept = chosen if below.kept is None else below.kept[chosen]
    return Block([elements[i] for i in chosen.tolist()], kept, below.filtered)


def _predicate(step: Filter, elements: list[Element], locations: BlockLocations) -> list[bool]:
    with Caught(Exception):  # called again below, one by one, which adds a note to the error
        predicate = step.predicate
        return [bool(predicate(element)) for element in elements]
    return [keeps(step, element, locations.at(index)) for index, element in enumerate(elements)]


def _gathered(step: Gather[GatherFacts], epochs: Integers, positions: Integers, context: Context) -> Sequence[Element]:
    """Return elements that are made of several inputs each; the inputs of all are evaluated as one block."""
    (below,) = inputs(step, epochs, positions)
    return step.value.merged(positions, below.bounds(), evaluate_block(*below[:3], context).elements)


def _split(step: Split, epochs: Integers, positions: Integers, context: Context) -> list[Element]:
    """Return elements several of which may be made of one input; each input is evaluated once, or was kept."""
    value = splitting_of(step)
    if value.reads_pieces(step):
        return value.read(step, epochs, positions)
    if not len(positions):
        return []
    (below,) = inputs(step, epochs, positions)
    if below.ordinals is None:
        raise InternalError("elements that are made of one input have ordinals")
    _, input_epochs, input_positions, which = below.distinct()
    wanted = list(zip(which, below.ordinals.tolist(), strict=True))
    at = list(zip(input_epochs.tolist(), input_positions.tolist(), strict=True))
    prepared = _kept_parent(step, at, wanted, context)
    absent = [number for number in range(len(at)) if number not in prepared]
    events = context.kept.events
    if absent:
        made = _prepared(step, input_epochs[absent], input_positions[absent], context)
        prepared.update(zip(absent, made, strict=True))

    def again(number: int) -> Element:
        return value.piece_at(step, int(epochs[number]), int(positions[number]), context, element_at)

    elements = value.taken(prepared, wanted, positions, again)
    last = which[-1]
    if context.kept.events == events and value.has_more(prepared[last]):
        context.kept.keep(KeptParent(step, *at[last], prepared[last]))
    return elements


def _kept_parent(
    step: Split, at: list[tuple[int, int]], wanted: list[tuple[int, int]], context: Context
) -> dict[int, Any]:
    """Return the step's kept parent, by its number in the block, if the block needs it; else nothing.

    Args:
        step: the step.
        at: the epoch and position of each of the block's parents.
        wanted: the number of the parent, and the ordinal, of each element of the block.
        context: of the calling thread.
    """
    kept = context.kept.take(step)
    if kept is None or (kept.epoch, kept.position) not in at:
        return {}
    number = at.index((kept.epoch, kept.position))
    ordinals = [ordinal for of, ordinal in wanted if of == number]
    return {number: kept.pieces} if splitting_of(step).has(kept.pieces, ordinals) else {}


def _prepared(step: Split, epochs: Integers, positions: Integers, context: Context) -> Sequence[Any]:
    """Evaluate some parents, and prepare them to take their pieces."""
    before, began = context.kept.parent_seconds, time.perf_counter()
    elements = evaluate_block(step.parent, epochs, positions, context).elements
    locations = BlockLocations(step.parent, epochs, positions, None)
    prepared = splitting_of(step).prepared(step, elements, positions, locations, context, element_at)
    context.kept.parent_seconds = before + time.perf_counter() - began
    return prepared


def _cached(step: Cache, epochs: Integers, positions: Integers, context: Context) -> list[Element]:
    """Return elements from the store; those that it doesn't hold are evaluated as one block."""

    def compute(absent: list[int]) -> list[Element]:
        return evaluate_block(step.parent, epochs[absent], positions[absent], context).elements

    return cached(step, positions.tolist(), compute, context)


def _mixed(step: Combine, rule: MixtureRule, epochs: Integers, positions: Integers, context: Context) -> list[Element]:
    """Return elements that are those of one part each, evaluated as one block for each part that occurs."""
    elements: list[Element] = [None] * len(positions)
    if len(positions) < _ROWS_PER_PART * len(step.parts):
        _mix_few(step.parts, elements, rule.block(epochs, positions), context)
        return elements
    parts = inputs(step, epochs, positions)
    if len(parts) == 1:
        return evaluate_block(*parts[0][:3], context).elements
    for below in parts:
        if below.rows is None:
            raise InternalError("a block with rows of several parts lists the rows of each")
        found = evaluate_block(*below[:3], context).elements
        for row, element in zip(below.rows.tolist(), found, strict=True):
            elements[row] = element
    return elements


def _mix_few(
    parts: tuple[Node, ...], elements: list[Element], found: tuple[Integers, Integers, Integers], context: Context
) -> None:
    """Fill in the elements of a block that has few rows of each part, without an array for each part.

    Args:
        parts: of the mixture.
        elements: the list to fill, as long as the block.
        found: the part of each element, and its epoch and position in that part.
        context: of the calling thread.
    """
    _, epochs, positions = found
    rows_of: dict[int, list[int]] = {}
    for row, number in enumerate(found[0].tolist()):
        rows_of.setdefault(number, []).append(row)
    at = list(zip(epochs.tolist(), positions.tolist(), strict=True))
    outer = context.times.enter()
    for number, rows in rows_of.items():
        part = parts[number]
        if len(rows) <= _MAX_SINGLY and (len(rows) == 1 or _is_read_singly(part)):
            few = _few(part, [at[row] for row in rows], context)
        else:
            few = evaluate_block(part, epochs[rows], positions[rows], context).elements
        for row, element in zip(rows, few, strict=True):
            elements[row] = element
    context.times.leave(outer)


def _is_read_singly(node: Node) -> bool:
    """Return whether a few elements cost less one by one than as a block, reading included."""
    while not isinstance(node, Read):
        if not (isinstance(node, Reindex) or (isinstance(node, Map) and node.form == "none")):
            return False
        node = node.parent
    return is_read_singly(node.source)


def _few(node: Node, at: list[tuple[int, int]], context: Context) -> list[Element]:
    """Return a few elements as `evaluate_block` would, without arrays where a step has a scalar form.

    Args:
        node: a part of a mixture.
        at: the epoch and position of each element.
        context: of the calling thread.
    """
    times = context.times
    maps: list[tuple[Map, list[tuple[int, int]]]] = []
    while isinstance(node, Reindex) or (isinstance(node, Map) and node.form == "none"):
        if isinstance(node, Reindex):
            at = [node.sampler(epoch, position) for epoch, position in at]
            times.lap(node, len(at))
        else:
            maps.append((node, at))
        node = node.parent
    if isinstance(node, Read) and is_read_singly(node.source):
        elements = [read_record(node.source, position) for _, position in at]
        times.lap(node, len(elements))
    elif isinstance(node, Read):
        elements = list(context.read(node.source, np.array([position for _, position in at], np.int64)))
        times.lap(node, len(elements))
    else:
        epochs, positions = (np.array(column, np.int64) for column in zip(*at, strict=True))
        elements = evaluate_block(node, epochs, positions, context).elements
    while maps:
        step, at = maps.pop()
        elements = [_called(step, element, *of, context) for element, of in zip(elements, at, strict=True)]
        times.lap(step, len(elements))
    return elements


def _called(step: Map, element: Element, epoch: int, position: int, context: Context) -> Element:
    """Return the result of a step's function without other arguments for one element."""
    with Caught(Exception) as caught:
        return step.function(element)
    location = location_of(step.parent, epoch, position)
    return apply_again(step, element, cast("Exception", caught.taken()), location, context, element_at)


def elements_per_parent(node: Node) -> float | None:
    """Return how many of a node's elements are made of one parent element, on average; None if each is made of its own.

    Steps that keep the order, such as a map, may be between the node and the one that makes several of one.
    """
    while _keeps_order(node):
        node = node.parent
    if not isinstance(node, Split) or splitting_of(node).reads_pieces(node):
        return None
    return (length(node) or 0) / max(length(node.parent) or 0, 1)


def parents_of_block(node: Node, epochs: Integers, positions: Integers) -> Integers:
    """Return the position of the parent of each element of a block, for a node with `elements_per_parent`."""
    while _keeps_order(node):
        node, epochs, positions = first_inputs(node, epochs, positions)[:3]
    return first_inputs(node, epochs, positions).positions


def _keeps_order(node: Node) -> TypeGuard[Map | Filter | Cache | Reindex]:
    if isinstance(node, Reindex):
        return passes_below(node.sampler) and not node.name
    return isinstance(node, Map | Filter | Cache)


def handles_errors(node: Node, epoch: int, position: int) -> bool:
    """Return whether a step between a node and the element's record replaces a failing element or leaves it out."""
    match node:
        case Map(parent=parent, on_error=on_error):
            return on_error != "raise" or handles_errors(parent, epoch, position)
        case Filter(parent=parent):
            return handles_errors(parent, epoch, position)
        case Reindex() | Combine():
            return any(handles_errors(*below) for below in inputs_at(node, epoch, position))
        case _:
            return False


def element_after_crash(node: Node, epoch: int, position: int, death: Exception, context: Context) -> Element:
    """Return the element that replaces a crashing row, or DROPPED; raise `death` if every step raises its errors."""
    match node:
        case Map(parent=parent, on_error=on_error):
            location = _location_at(parent, epoch, position)
            if on_error != "raise":
                return after_error(node, death, location, context, element_at)
            below = element_after_crash(parent, epoch, position, death, context)
            return below if below is DROPPED else apply_one(node, below, location, context, element_at)
        case Filter(parent=parent):
            below = element_after_crash(parent, epoch, position, death, context)
            if below is DROPPED:
                return DROPPED
            location = _location_at(parent, epoch, position)
            return below if keeps(node, below, location) else DROPPED
        case Reindex():
            return element_after_crash(*inputs_at(node, epoch, position)[0], death, context)
        case Combine(names=names, value=value):
            parts = inputs_at(node, epoch, position)
            crashing = next((part for part in parts if handles_errors(*part)), parts[0])
            columns = [
                [element_after_crash(*part, death, context) if part is crashing else element_at(*part, context)]
                for part in parts
            ]
            return value.joined(names, columns)[0]
        case _:
            raise death


def _location_at(node: Node, epoch: int, position: int) -> Location:
    """Return an element's location at a node that may leave elements out, for which `location_of` isn't defined."""
    return BlockLocations(node, np.array([epoch], np.int64), np.array([position], np.int64), None).at(0)
