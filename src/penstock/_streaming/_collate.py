"""The steps above the last fold: functions of rows, the batch of these rows, and functions of batches.

The folds run in one thread, one element after the other. The steps above the last fold are often the expensive ones
(tokenize, decode, pad), and each result depends on the rows of one batch only. So workers compute them, for several
batches at once, while the folds continue. The stages below are then opened without these steps (`Opening.collate`), and
their batches are lists of rows, or stacked batches where only functions of batches are left.

Which function may be left to workers:
  - Functions of rows directly below the batch that is merged here, if their errors are raised. With "skip" a row
    would be missing from a batch that the fold has already closed.
  - Functions of batches, whatever their `on_error`. Below a `limit` a function with "skip" stays in the fold, since
    the limit must not count batches that are left out.
  - No function that is part of a block input: workers compute these anyway.
"""

from collections.abc import Mapping
from typing import Any, TypeGuard

from penstock._caught import CaughtFailure
from penstock._frozen import frozen
from penstock._graph import (
    DROPPED,
    Batch,
    Context,
    Element,
    Fold,
    Gather,
    Map,
    Node,
    after_error,
    apply_block,
    apply_into,
    element_at,
    is_batch,
    merge_block,
)
from penstock._streaming._batch import Rest
from penstock._streaming._inputs import is_block_input
from penstock._streaming._stage import InputRef, Provenance, StreamedLocations
from penstock.batching import Stack
from penstock.errors import InternalError


@frozen(eq=False)
class Collate:
    """The steps that workers compute.

    Attributes:
        rows: the functions of single rows right below the batch that is merged here, innermost first.
        merge: the batch whose rows workers merge; None if the fold stacks them, or there is no batch.
        above: the functions of batches, innermost first.
    """

    rows: tuple[Map, ...]
    merge: Gather[Batch] | None
    above: tuple[Map, ...]

    @property
    def steps(self) -> tuple[Node, ...]:
        """The functions and the batch, innermost first."""
        return (*self.rows, *(() if self.merge is None else (self.merge,)), *self.above)

    def has(self, node: Node) -> bool:
        """Return whether a node is one of the functions of rows or batches."""
        return any(step is node for step in (*self.rows, *self.above))

    def check(self, given: Element, rows: Provenance) -> None:
        """Raise an InternalError if workers merge the batch, and the stages below didn't yield the list of its rows."""
        if self.merge is not None and not (_is_list(given) and len(given) == len(rows)):
            raise InternalError(f"workers merge the list of a batch's {len(rows)} rows; got {given!r:.200}")


def collate_of(node: Node, shared: Gather[Batch] | Fold | None) -> Collate | None:
    """Return the steps above a node's last fold; None if there are none.

    Args:
        node: of a dataset that is read in order.
        shared: the batch that its ranks share. No step above it is part of a block input.
    """
    above, node = _functions(node, any_may_fail=True, are_in_inputs=shared is None)
    rows: tuple[Map, ...] = ()
    if is_batch(node):
        rows, _ = _functions(node.parent, any_may_fail=False, are_in_inputs=True)
    merge = node if is_batch(node) and (rows or not isinstance(node.value.merge, Stack)) else None
    return Collate(rows, merge, above) if above or merge is not None else None


def _functions(node: Node, *, any_may_fail: bool, are_in_inputs: bool) -> tuple[tuple[Map, ...], Node]:
    """Return the functions from a node down that workers may compute, innermost first, and the node below them.

    A limit counts elements without reading them, so a function below it may be applied after it, unless it leaves out
    elements.

    Args:
        node: of a dataset that is read in order.
        any_may_fail: whether to include functions whose errors aren't raised.
        are_in_inputs: whether functions that depend on the position alone are part of a block input.
    """
    functions: list[Map] = []
    is_limited = False
    while isinstance(node, Fold | Map) and not (are_in_inputs and is_block_input(node)):
        if isinstance(node, Fold):
            if node.value.limit is None:
                break
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
    """The steps, for one rank.

    Attributes:
        collate: the steps.
        size: this rank's number of rows in a full batch.
        inputs: the inputs of the dataset, as seen from these steps.
    """

    collate: Collate
    size: int
    inputs: Mapping[int, InputRef]

    def result(self, given: Element, provenance: Provenance, context: Context) -> Element:
        """Return a batch, or DROPPED.

        Args:
            given: the list of a batch's rows, if workers merge it; else the batch.
            provenance: of the rows, if there are functions of rows; else of the batch.
            context: of the calling thread.
        """
        if self.collate.rows:
            made: list[Element] = Rest() if isinstance(given, Rest) else []
            self.rows_into(made, given, provenance, context)
            given = made
        return self.merged(given, provenance, context)

    def rows_into(self, made: list[Element], rows: list[Element], provenance: Provenance, context: Context) -> None:
        """Add the results of the functions of rows to a list; after an error the list has those of the rows before."""
        self._apply_into(made, self.collate.rows, rows, provenance, context)

    @property
    def takes_blocks(self) -> bool:
        """Whether there are only functions of batches, of which each makes one of each, so that they take several."""
        collate = self.collate
        return not collate.rows and collate.merge is None and all(step.on_error == "raise" for step in collate.above)

    def batches_into(self, made: list[Element], given: list[Element], provenance: Provenance, context: Context) -> None:
        """Add the `result` of several batches to a list, as `rows_into` does, where the steps take blocks."""
        self._apply_into(made, self.collate.above, given, provenance, context)

    def _apply_into(
        self,
        made: list[Element],
        steps: tuple[Map, ...],
        rows: list[Element],
        provenance: Provenance,
        context: Context,
    ) -> None:
        error: BaseException | None = None
        context.times.start(0)
        for step in steps:
            results: list[Element] = []
            with CaughtFailure() as caught:
                locations = StreamedLocations(self.inputs, provenance[: len(rows)])
                apply_into(results, step, rows, locations, context, element_at)
            if caught.error is not None:  # a later function sees fewer rows, so its error is of an earlier row
                error = caught.taken()
            context.times.lap(step, len(results))
            rows = results
        made += rows
        if error is not None:
            try:
                raise error
            finally:
                del error  # else its traceback would hold the rows

    def merged(self, given: Element, provenance: Provenance, context: Context) -> Element:
        """Return a batch, or DROPPED, from rows to which the functions of rows were applied."""
        if isinstance(given, Rest):
            return DROPPED
        merge, times = self.collate.merge, context.times
        times.start(0)
        batch = given if merge is None else merge_block(merge.value, given, self.size)
        times.lap(merge, 1)
        locations = StreamedLocations(self.inputs, provenance[:1])
        for step in self.collate.above:
            (batch,) = apply_block(step, [batch], locations, context, element_at)
            times.lap(step, 1)
            if batch is DROPPED:
                break
        return batch

    def around(self, death: Exception, provenance: Provenance, context: Context) -> Element:
        """Return DROPPED for a batch that crashes workers, if a step leaves out failing batches.

        The function that crashed is unknown, so the outermost step with `on_error="skip"` counts as the one.

        Raises:
            Exception: the crash, if no step leaves out failing batches.
        """
        skipping = next((step for step in reversed(self.collate.above) if step.on_error == "skip"), None)
        if skipping is None:
            raise death
        return after_error(skipping, death, StreamedLocations(self.inputs, provenance).at(0), context, element_at)
