"""The batch that all ranks share in a dataset that is read in order: each rank makes its part of the rows."""

from penstock._graph._length import is_indexable
from penstock._graph._nodes import Batch, Bucket, Filter, FlatMap, Limit, Map, Node, Unbatch, WindowShuffle


def outermost_batch(node: Node) -> Batch | Bucket | None:
    """Return the batch that ranks share, or None if there is no batch or a step above it needs whole batches.

    If the rows of batches have positions (`unbatch` of an indexable batch), ranks share these rows, and no batch. A
    `pack` above a batch makes sequences of several batches, so there ranks share no batch, either.
    """
    while not isinstance(node, Batch | Bucket):
        if not isinstance(node, Map | Filter | FlatMap | Unbatch | WindowShuffle | Limit):
            return None
        if isinstance(node, FlatMap | Unbatch) and is_indexable(node):
            return None
        node = node.parent
    return node
