"""Random datasets with async sources: the same records, awaited, and returned in another order."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

import penstock as ps
from penstock._dataset import Dataset
from penstock._graph._nodes import Node, Read, parents_of
from penstock._graph._rewrite import with_parents


class Awaited:
    """The records of a source, each of which takes a few turns of the event loop."""

    def __init__(self, source: Any, keys_per_read: int) -> None:
        self.source = source
        self.keys_per_read = keys_per_read
        self.most_keys = 0

    def __len__(self) -> int:
        return len(self.source)

    async def read(self, keys: NDArray[np.int64]) -> list[Any]:
        """Return the records."""
        self.most_keys = max(self.most_keys, len(keys))
        for _ in range(int(keys[0]) * 7 % 5):
            await asyncio.sleep(0)
        return [self.source[key] for key in keys.tolist()]


def made_async(dataset: ps.Dataset, keys_per_read: int) -> ps.Dataset:
    """Return the dataset over async sources."""
    return Dataset(_made_async(dataset.node, keys_per_read))


def _made_async(node: Node, keys_per_read: int) -> Node:
    if isinstance(node, Read):
        return replace(node, source=ps.sources.as_source(Awaited(node.source, keys_per_read)))
    return with_parents(node, tuple(_made_async(parent, keys_per_read) for parent in parents_of(node)))


LIMITS = st.builds(ps.Limits, read_ahead=st.sampled_from([1, 2, 7, 64]))
KEYS_PER_READ = st.sampled_from([1, 1, 3])
