"""The two programs of a plan: a dataset with positions, computed in any order, and one that is read in order.

Both answer the same questions, so that nobody has to know which one it is: what workers can compute, which steps above
the folds they compute, whether streams are read, how large the last batch is. A program computes each answer once, and
a pickle of it holds none of them.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import NoReturn

from penstock._frozen import frozen
from penstock._graph import Batch, Bucket, Limit, Map, Node, Reindex, Stream
from penstock._streaming import MAX_INPUTS, Collate, InputRef, even_limit, input_refs_of, worker_collate
from penstock.batching import Stack
from penstock.errors import InternalError


@frozen(cached=True)
class Batches:
    """An indexable dataset: rows depend on their position alone; a batch is rows merged, then the steps above it.

    A dataset without a batch has `batch=None`: every element is a step of its own.
    """

    rows: Node
    """The part below the batch."""
    total: int
    """How many rows an epoch has."""
    batch: Batch | None
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
        """The program of a dataset that is read in order, which this one isn't.

        Raises:
            InternalError: always.
        """
        raise InternalError("an indexable dataset is not read in order")

    @property
    def stack(self) -> Stack | None:
        """The merge, where rows are stacked by Penstock itself; None for a function of the user's and for no batch."""
        merge = None if self.batch is None else self.batch.merge
        return merge if isinstance(merge, Stack) else None

    @property
    def merges(self) -> bool:
        """Whether batches are made by more than functions of rows and stacking."""
        return self.batch is not None and (bool(self.above) or self.stack is None)

    @property
    def rest(self) -> int:
        """Rows in a last batch that isn't full; 0 where all are full."""
        return self.total % (1 if self.batch is None else self.batch.size)

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
        """The steps above the folds; there are no folds."""
        return

    @property
    def reads_streams(self) -> bool:
        """Whether a stream is read, beside other inputs or alone."""
        return False

    @property
    def even_limit(self) -> None:
        """The limit on which all ranks end; they end together without one."""
        return


@frozen(cached=True)
class Streaming:
    """A dataset that is read in order: its inputs depend on the position alone, the steps above take them in order."""

    node: Node
    batch: Batch | Bucket | None
    """The outermost batch, if any; every rank makes its part of it."""

    @property
    def is_indexed(self) -> bool:
        """Whether the dataset has positions."""
        return False

    @property
    def batches(self) -> NoReturn:
        """The program of an indexable dataset, which this one isn't.

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
        """Rows in a last batch that isn't full; only reading tells."""
        return

    @property
    def reorders_batches(self) -> bool:
        """Whether a step above the batch reorders batches."""
        return False

    @cached_property
    def input_refs(self) -> Mapping[int, InputRef]:
        """The inputs by their numbers, as batches see them."""
        return input_refs_of(self.node)

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        """The streams, and the highest nodes without a fold below."""
        return tuple(each.node for each in self.input_refs.values())

    @cached_property
    def worker_inputs(self) -> tuple[Node, ...]:
        """The inputs that workers can compute ahead: all but streams, and none where there are too many."""
        return tuple(each for each in self.inputs if not isinstance(each, Stream)) if not self.has_many_inputs else ()

    @property
    def has_many_inputs(self) -> bool:
        """Whether there are more inputs than workers compute ahead."""
        return len(self.inputs) > MAX_INPUTS

    @property
    def uses_workers(self) -> bool:
        """Whether workers can compute any of it: inputs, or the steps above streams."""
        return bool(self.worker_inputs) or self.collate is not None

    @cached_property
    def collate(self) -> Collate | None:
        """The steps above the folds that workers compute; None where there are none."""
        return worker_collate(self.node)

    @cached_property
    def reads_streams(self) -> bool:
        """Whether a stream is read, beside other inputs or alone."""
        return any(isinstance(each, Stream) for each in self.inputs)

    @cached_property
    def even_limit(self) -> Limit | None:
        """The limit on which all ranks end, if they have data enough; None where there is none."""
        return even_limit(self.node)
