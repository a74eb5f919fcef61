"""What stands above the last fold of an ordered dataset: functions of rows, their batch, and functions of batches.

Each depends on one batch's rows alone. So anyone may compute it, for several batches at once, while what folds goes on:
the stages below are opened without these steps then (`Opening.collate`), and give what they are to be computed from.
"""

from collections.abc import Mapping
from typing import Any, TypeGuard

from penstock._caught import Caught
from penstock._frozen import frozen
from penstock._graph._apply import DROPPED, Context, after_error, apply_block, apply_into
from penstock._graph._blocks import merge_block
from penstock._graph._evaluate import element_at
from penstock._graph._nodes import Batch, Bucket, Element, Limit, Map, Node
from penstock._graph._streaming._batch import Rest
from penstock._graph._streaming._block_input import is_block_input
from penstock._graph._streaming._chunk import Provenance
from penstock._graph._streaming._locations import InputRef, StreamedLocations
from penstock.batching import Stack
from penstock.errors import InternalError


@frozen(eq=False)
class Collate:
    """The steps.

    Attributes:
        rows: the functions of single rows right below the batch that is merged here, innermost first.
        merge: the batch whose rows are merged here; None where they come stacked, or there is none.
        above: the functions of batches, innermost first.
    """

    rows: tuple[Map, ...]
    merge: Batch | None
    above: tuple[Map, ...]

    def has(self, node: Node) -> bool:
        """Return whether a node is one of the functions."""
        return any(step is node for step in (*self.rows, *self.above))

    def check(self, given: Element, rows: Provenance) -> None:
        """Raise where the stages below gave anything but the list of a batch's rows, and that batch is merged here."""
        if self.merge is not None and not (_is_list(given) and len(given) == len(rows)):
            raise InternalError(f"a batch must come here as the list of its {len(rows)} rows; got {given!r:.200}")


def collate_of(node: Node, shared: Batch | Bucket | None) -> Collate | None:
    """Return the steps above the last fold that an ordered node's batches are made of; None where there are none.

    Args:
        node: of a dataset that is read in order.
        shared: the batch that its ranks share. No step above it is part of a leaf.
    """
    above, node = _functions(node, any_may_fail=True, are_in_inputs=shared is None)
    rows: tuple[Map, ...] = ()
    if isinstance(node, Batch):
        rows, _ = _functions(node.parent, any_may_fail=False, are_in_inputs=True)
    merge = node if isinstance(node, Batch) and (rows or not isinstance(node.merge, Stack)) else None
    return Collate(rows, merge, above) if above or merge is not None else None


def _functions(node: Node, *, any_may_fail: bool, are_in_inputs: bool) -> tuple[tuple[Map, ...], Node]:
    """Return the functions from a node down that may be left to others, innermost first, and the node below.

    A limit counts elements without looking at them, so a function below it may be applied after it, unless it leaves
    elements out.

    Args:
        node: of a dataset that is read in order.
        any_may_fail: whether those that go on after an error are among them.
        are_in_inputs: whether functions that depend on the position alone are part of a block input.
    """
    functions: list[Map] = []
    is_limited = False
    while isinstance(node, Limit | Map) and not (are_in_inputs and is_block_input(node)):
        if isinstance(node, Limit):
            is_limited = True
        elif node.on_error == "raise" or (any_may_fail and not (is_limited and node.on_error == "skip")):
            functions.append(node)
        else:
            break
        node = node.parent
    return tuple(functions[::-1]), node


def _is_list(given: object) -> TypeGuard[list[Any]]:
    return isinstance(given, list)


@frozen
class CollateRun:
    """The steps, with what they need to know of the rank that computes them.

    Attributes:
        collate: the steps.
        size: how many rows this rank has of a full batch.
        leaves: as the steps see them.
    """

    collate: Collate
    size: int
    inputs: Mapping[int, InputRef]

    def result(self, given: Element, provenance: Provenance, context: Context) -> Element:
        """Return a batch, or DROPPED.

        Args:
            given: a batch's rows, where they are merged here; else the batch as it comes from below.
            provenance: those of the rows, where functions of rows are among the steps; else the batch's own.
            context: of the calling thread.
        """
        if self.collate.rows:
            made: list[Element] = Rest() if isinstance(given, Rest) else []
            self.rows_into(made, given, provenance, context)
            given = made
        return self.merged(given, provenance, context)

    def rows_into(self, made: list[Element], rows: list[Element], provenance: Provenance, context: Context) -> None:
        """Add what the functions of rows make of some to a list; if one raises, of those before that row."""
        error: BaseException | None = None
        for step in self.collate.rows:
            results: list[Element] = []
            with Caught(Exception) as caught:
                locations = StreamedLocations(self.inputs, provenance[: len(rows)])
                apply_into(results, step, rows, locations, context, element_at)
            if caught.error is not None:  # of a row before the one that failed so far, if any
                error = caught.taken()
            rows = results
        made += rows
        if error is not None:
            try:
                raise error
            finally:
                del error  # else its traceback holds it, and the rows

    def merged(self, given: Element, provenance: Provenance, context: Context) -> Element:
        """Return a batch, or DROPPED, where the functions of rows were applied."""
        if isinstance(given, Rest):
            return DROPPED
        merge = self.collate.merge
        batch = given if merge is None else merge_block(merge, given, self.size)
        locations = StreamedLocations(self.inputs, provenance[:1])
        for step in self.collate.above:
            (batch,) = apply_block(step, [batch], locations, context, element_at)
            if batch is DROPPED:
                break
        return batch

    def around(self, death: Exception, provenance: Provenance, context: Context) -> Element:
        """Return what takes the place of a batch that processes die of: DROPPED, if one of the steps leaves it out.

        Nobody knows which of the functions it was that a process died in, so it is taken for that step's.

        Raises:
            Exception: the death, where all steps raise what fails.
        """
        skipping = next((step for step in reversed(self.collate.above) if step.on_error == "skip"), None)
        if skipping is None:
            raise death
        return after_error(skipping, death, StreamedLocations(self.inputs, provenance).at(0), context, element_at)
