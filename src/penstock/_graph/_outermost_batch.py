"""The batch of a dataset of which each rank makes its own part, where the dataset is read in order."""

from penstock._graph._length import is_indexable
from penstock._graph._nodes import Batch, Bucket, Filter, FlatMap, Limit, Map, Node, Unbatch, WindowShuffle


def outermost_batch(node: Node) -> Batch | Bucket | None:
    """Return the batch that ranks share, if there is one: not below a step that takes batches by their positions.

    Where rows of batches have positions of their own, they are elements like others, and the batch is not shared.
    Packed sequences are no part of the batches that they are made of, either.
    """
    while not isinstance(node, Batch | Bucket):
        if not isinstance(node, Map | Filter | FlatMap | Unbatch | WindowShuffle | Limit):
            return None
        if isinstance(node, FlatMap | Unbatch) and is_indexable(node):
            return None
        node = node.parent
    return node
