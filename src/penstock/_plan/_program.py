"""The two programs of a plan: a dataset with positions, computed in any order, and one that is read in order.

Both have the same attributes, so that no caller needs to distinguish them: the inputs that workers can compute, the
steps above the folds, whether streams are read, the size of the last batch. A program computes each of them once, and a
pickle of it contains none of them.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import NoReturn

from penstock._frozen import frozen
from penstock._graph import Batch, Fold, Gather, Map, Node, Read, Reindex, Stream, walk
from penstock._streaming import MAX_INPUTS, Collate, InputRef, even_limit, input_refs_of, worker_collate
from penstock.batching import Stack
from penstock.errors import InternalError
from penstock.sources import can_read_into


@frozen(cached=True)
class Batches:
    """An indexable dataset: rows depend on their position alone; a batch is rows merged, then the steps above it.

    A dataset without a batch has `batch=None`: every element is a step of its own.
    """

    rows: Node
    """The node below the batch."""
    total: int
    """The number of rows in an epoch."""
    batch: Gather[Batch] | None
    above: tuple[Map | Reindex, ...]
    """The steps above the batch, outermost first."""
    can_recut: bool
    """Whether batches may start anywhere: no step above the batch reorders them."""

    @property
    def is_indexed(self) -> bool:
        """Whether the dataset has positions."""
        return True

    @property
    def batches(self) -> "Batches":
        """The program itself."""
        return self

    @property
    def streaming(self) -> NoReturn:
        """Not available: this dataset isn't read in order.

        Raises:
            InternalError: always.
        """
        raise InternalError("an indexable dataset is not read in order")

    @cached_property
    def stack(self) -> Stack | None:
        """The merge, if Penstock itself stacks the rows; None for a function of the user, and without a batch."""
        merge = None if self.batch is None else self.batch.value.merge
        return merge if isinstance(merge, Stack) else None

    @property
    def has_own_merge(self) -> bool:
        """Whether rows are merged by a function, such as one of the user's, and not only stacked."""
        return self.batch is not None and self.stack is None

    @cached_property
    def direct(self) -> Read | None:
        """The node of the source, if rows are its records and can be read straight into a stacked batch."""
        if self.stack is None:
            return None
        step = self.sampled
        return step if isinstance(step, Read) and can_read_into(step.source) else None

    @cached_property
    def sampled(self) -> Node:
        """The node of the rows below the samplers that choose among them."""
        step = self.rows
        while isinstance(step, Reindex):
            step = step.parent
        return step

    @property
    def has_mask(self) -> bool:
        """Whether batches have a leaf that marks padding."""
        return self.batch is not None and self.batch.value.mask is not None

    @property
    def merges(self) -> bool:
        """Whether making a batch takes more than functions of rows and stacking."""
        return self.has_own_merge or (self.batch is not None and bool(self.above))

    @property
    def rest(self) -> int:
        """The number of rows in a last batch that isn't full; 0 if all are full."""
        return self.total % (1 if self.batch is None else self.batch.value.size)

    @property
    def reorders_batches(self) -> bool:
        """Whether a step above the batch reorders batches."""
        return not self.can_recut

    @property
    def worker_inputs(self) -> tuple[Node, ...]:
        """The nodes whose positions workers compute."""
        return (self.rows,)

    @property
    def uses_workers(self) -> bool:
        """Whether workers can compute any of it."""
        return True

    @property
    def collate(self) -> None:
        """The steps above the folds: None, since there are no folds."""
        return

    @property
    def reads_streams(self) -> bool:
        """Whether any input is a stream."""
        return False

    @property
    def in_order(self) -> tuple[Node, ...]:
        """The steps that one thread runs in order: none."""
        return ()

    @property
    def even_limit(self) -> None:
        """The limit on which all ranks end: None, since they end together without one."""
        return


@frozen(cached=True)
class Streaming:
    """A dataset that is read in order: its inputs depend on the position alone, the steps above take them in order."""

    node: Node
    batch: Gather[Batch] | Fold | None
    """The outermost batch, if any; each rank makes its part of it."""

    @property
    def is_indexed(self) -> bool:
        """Whether the dataset has positions."""
        return False

    @property
    def batches(self) -> NoReturn:
        """Not available: this dataset isn't indexable.

        Raises:
            InternalError: always.
        """
        raise InternalError("a dataset that is read in order has no batches of its own")

    @property
    def streaming(self) -> "Streaming":
        """The program itself."""
        return self

    @property
    def rest(self) -> None:
        """The number of rows in a last batch that isn't full: None, since it is known only after reading."""
        return

    @property
    def reorders_batches(self) -> bool:
        """Whether a step above the batch reorders batches."""
        return False

    @cached_property
    def input_refs(self) -> Mapping[int, InputRef]:
        """The inputs, by the numbers with which batches refer to them."""
        return input_refs_of(self.node)

    @cached_property
    def in_order(self) -> tuple[Node, ...]:
        """The steps that one thread runs in order: all but the inputs that workers compute, and the steps above."""
        anywhere = {id(step) for each in self.worker_inputs for step in walk(each)}
        anywhere |= set(map(id, () if self.collate is None else self.collate.steps))
        return tuple(step for step in walk(self.node) if id(step) not in anywhere)

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        """The streams, and the outermost nodes without a fold below them."""
        return tuple(each.node for each in self.input_refs.values())

    @cached_property
    def worker_inputs(self) -> tuple[Node, ...]:
        """The inputs that workers can compute ahead: all but streams; none if there are too many."""
        return tuple(each for each in self.inputs if not isinstance(each, Stream)) if not self.has_many_inputs else ()

    @property
    def has_many_inputs(self) -> bool:
        """Whether there are too many inputs for workers to compute ahead."""
        return len(self.inputs) > MAX_INPUTS

    @property
    def uses_workers(self) -> bool:
        """Whether workers can compute anything: inputs, or the steps above the folds."""
        return bool(self.worker_inputs) or self.collate is not None

    @cached_property
    def collate(self) -> Collate | None:
        """The steps above the folds that workers compute; None where there are none."""
        return worker_collate(self.node)

    @cached_property
    def reads_streams(self) -> bool:
        """Whether any input is a stream."""
        return any(isinstance(each, Stream) for each in self.inputs)

    @cached_property
    def even_limit(self) -> Fold | None:
        """The limit on which all ranks end, if they have enough data; None if there is none."""
        return even_limit(self.node)
