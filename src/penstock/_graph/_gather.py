"""The values of `Gather` nodes: batches of consecutive elements, and groups planned from known lengths.

Rows are merged into batches here, wherever they were computed. `outermost_batch` finds the batch that ranks share.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeGuard, assert_never

import numpy as np

from penstock._frozen import frozen
from penstock._graph._describe import function_name
from penstock._graph._length import is_indexable, length
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
    Merge,
    Node,
    Read,
    Reindex,
    Remainder,
    Split,
    Stream,
)
from penstock.batching import BucketedBatches, Grouping, Pad, PadToBucket, Stack, fast_stack
from penstock.errors import GraphError, InternalError


@frozen
class Batch(GatherFacts):
    """Consecutive elements merged into one; `size` is the global batch, over all ranks.

    `mask` names a bool leaf of every batch that is true for rows of data and false for padding.
    """

    size: int
    merge: Merge
    remainder: Remainder = "keep"
    mask: str | None = None

    @property
    def text(self) -> str:
        extra = "" if self.remainder == "keep" else f", remainder={self.remainder!r}"
        if isinstance(self.merge, Pad):
            return f"padded_batch({self.size}{extra})"
        merged = "" if isinstance(self.merge, Stack) else f", merge={function_name(self.merge)}"
        return f"batch({self.size}{merged}{extra})"

    @property
    def order_text(self) -> str:
        return "batch"

    @property
    def functions(self) -> Sequence[tuple[str, Callable[..., Any]]]:
        return (("merge", self.merge),)

    @property
    def key_text(self) -> str:
        if isinstance(self.merge, PadToBucket):
            return repr(self.merge.bucketing.merge)
        return repr(self.merge) if isinstance(self.merge, Pad) else ""

    @property
    def rows(self) -> tuple[int, ...]:
        """The number of rows of full batches, over all ranks, as `FoldFacts.rows`."""
        return (self.size,)

    def count(self, parent: Node) -> int | None:
        rows = length(parent)
        if rows is None:
            return None
        return rows // self.size if self.remainder == "drop" else -(-rows // self.size)

    def element_at(self, parent: Node, position: int, input_at: Callable[[int], Element]) -> Element:
        start, stop = self.size * position, min(self.size * (position + 1), length(parent) or 0)
        return merge_rows(self, [input_at(row) for row in range(start, stop)], self.size)

    def members(self, parent: Node, positions: Integers) -> tuple[Integers, Integers]:
        total = length(parent)
        if total is None:
            raise InternalError("batches that are read in order have no positions")
        counts = np.minimum(self.size, total - positions * self.size)
        ends = np.cumsum(counts)
        rows = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts - positions * self.size, counts)
        return counts, rows

    def member(self, parent: Node, positions: Integers, numbers: Integers | int) -> Integers:
        chosen: Integers = np.minimum(positions * self.size + numbers, (length(parent) or 1) - 1)
        return chosen

    def merged(self, positions: Integers, bounds: Sequence[int], elements: list[Element]) -> list[Element]:
        del positions
        return [merge_block(self, elements[start:stop], self.size) for start, stop in itertools.pairwise(bounds)]


@frozen
class Planned(GatherFacts):
    """Elements that are made of several of the parent's each, as planned from known lengths (`pack`, `bucket`)."""

    grouping: Grouping
    verb: str

    @property
    def text(self) -> str:
        return self.verb

    @property
    def order_text(self) -> str:
        return f"group {self.grouping.fingerprint()}"

    @property
    def key_text(self) -> str:
        return repr(self.grouping.bucketing.merge) if isinstance(self.grouping, BucketedBatches) else ""

    @property
    def is_planned(self) -> bool:
        return True

    def count(self, parent: Node) -> int | None:
        return None if length(parent) is None else len(self.grouping)

    def element_at(self, parent: Node, position: int, input_at: Callable[[int], Element]) -> Element:
        del parent
        group = np.array([position], np.int64)
        return self.grouping.merge(group, [input_at(each) for each in self.grouping.members(group)[1].tolist()])[0]

    def members(self, parent: Node, positions: Integers) -> tuple[Integers, Integers]:
        del parent
        return self.grouping.members(positions)

    def member(self, parent: Node, positions: Integers, numbers: Integers | int) -> Integers:
        del parent
        counts, members = self.grouping.members(positions)
        chosen: Integers = members[np.cumsum(counts) - counts + np.minimum(numbers, counts - 1)]
        return chosen

    def merged(self, positions: Integers, bounds: Sequence[int], elements: list[Element]) -> Sequence[Element]:
        del bounds
        return self.grouping.merge(positions, elements)


def is_batch(node: Node) -> TypeGuard[Gather[Batch]]:
    """Return whether a node is a batch of consecutive elements."""
    return isinstance(node, Gather) and isinstance(node.value, Batch)


class RowsPerBatch(NamedTuple):
    """Batches whose numbers of rows follow from their positions."""

    size: int
    """Rows of each batch; only the last may have fewer."""
    total: int
    """Rows of all batches."""


def rows_per_batch(node: Node) -> RowsPerBatch | None:
    """Return the numbers of rows of a node's batches, or None if they are unknown."""
    match node:
        case Gather(parent=parent, value=Batch(size=size, remainder=remainder)):
            rows = length(parent)
            if rows is None:
                return None
            batches = length(node) or 0
            return RowsPerBatch(size, rows if remainder == "keep" else batches * size)
        case Map(parent=parent, on_error=on_error):
            known = None if on_error == "skip" else rows_per_batch(parent)
            # The substitute of a batch may be the short one, or that of the short one a full one.
            return None if known is not None and on_error != "raise" and known.total % known.size else known
        case Cache(parent=parent):
            return rows_per_batch(parent)
        case Reindex(parent=parent, sampler=sampler):
            known = rows_per_batch(parent)
            if known is None or known.total % known.size:
                return None  # the sampler may move the short batch anywhere
            return RowsPerBatch(known.size, len(sampler) * known.size)
        case Read() | Stream() | Combine() | Filter() | Split() | Gather() | Fold():
            return None
        case _:
            assert_never(node)


def outermost_batch(node: Node) -> Gather[Batch] | Fold | None:
    """Return the batch that ranks share, or None if there is no batch or a step above it needs whole batches.

    If the rows of batches have positions (`unbatch` of an indexable batch), ranks share these rows, and no batch. A
    `pack` above a batch makes sequences of several batches, so there ranks share no batch, either.
    """
    while not (is_batch(node) or (isinstance(node, Fold) and node.value.rows)):
        if not isinstance(node, Map | Filter | Split | Fold):
            return None
        if isinstance(node, Fold) and not node.value.passes_all:
            return None
        if isinstance(node, Split) and is_indexable(node):
            return None
        node = node.parent
    return node


def merge_rows(step: Batch, rows: list[Element], size: int, merge: Merge | None = None) -> Element:
    """Return the rows merged into one batch, padded to `size` and masked as the step says.

    Args:
        step: the batch.
        rows: at least one.
        size: the number of rows of a full batch, of one rank.
        merge: a faster function with the results of the step's.
    """
    count = len(rows)
    if step.remainder == "pad":
        rows = rows + [rows[-1]] * (size - count)
    return with_mask(step, (merge or step.merge)(rows), count, len(rows))


def merge_block(step: Batch, rows: list[Element], size: int) -> Element:
    """Return `merge_rows`; stacking takes a faster path."""
    return merge_rows(step, rows, size, fast_stack if isinstance(step.merge, Stack) else None)


def with_mask(step: Batch, batch: Element, data_rows: int, rows: int) -> Element:
    """Return the batch with the step's mask, if it has one: true for the first `data_rows` rows."""
    return batch if step.mask is None else add_mask(batch, step.mask, data_rows, rows, "batch")


def add_mask(element: Element, name: str, data: int, total: int, what: str) -> Element:
    """Return the element with a bool leaf `name` of shape (total,) that is true for the first `data`.

    Args:
        element: a dict.
        name: the key of the new leaf.
        data: the number of rows or frames of data.
        total: the number of rows or frames with padding.
        what: the noun for the element in messages, such as "batch".

    Raises:
        GraphError: the element is not a dict, or already has that key.
    """
    if not _is_dict(element) or name in element:
        found = f"a dict that has {name!r} already" if _is_dict(element) else f"of type {type(element).__name__}"
        remedy = "Choose another name" if _is_dict(element) else "Return a dict from .map, or omit the mask"
        raise GraphError(f"mask={name!r} must name a new leaf of a dict; the {what} is {found}. {remedy}.")
    return {**element, name: np.arange(total) < data}


def _is_dict(element: object) -> TypeGuard[dict[Any, Any]]:
    return isinstance(element, dict)
