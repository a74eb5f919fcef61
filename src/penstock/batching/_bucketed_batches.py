"""Batches of elements of similar size, planned from the sizes of all elements; each can be computed alone."""

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.batching._bucketing import Bucketing, check_bucket
from penstock.batching._pieces import PackingPlan

Integers = NDArray[np.int64]


@frozen
class BucketedBatches:
    """The grouping of a planned bucketing.

    Attributes:
        plan: the elements of each batch: their positions as `document`, their sizes as `length`.
        bucketing: the arguments of the bucketing.
    """

    plan: PackingPlan
    bucketing: Bucketing

    def __len__(self) -> int:
        return len(self.plan)

    def members(self, groups: Integers, /) -> tuple[Integers, Integers]:
        """Return the number of elements of each batch, and the positions of all of them."""
        part = self.plan.take(groups)
        return np.diff(part.bounds), part.document

    def merge(self, groups: Integers, elements: Sequence[Any], /) -> list[Any]:
        """Return the batches of these elements.

        Raises:
            GraphError: an element belongs to another bucket than planned.
        """
        part = self.plan.take(groups)
        buckets = np.searchsorted(self.bucketing.boundaries, part.length).tolist()
        for element, bucket, position in zip(elements, buckets, part.document.tolist(), strict=True):
            check_bucket(self.bucketing, element, bucket, f"at position {position}")
        bounds = part.bounds.tolist()
        spans = itertools.pairwise(bounds)
        return [self.bucketing.merge[buckets[first]](list(elements[first:last])) for first, last in spans]

    def fingerprint(self) -> str:
        """Return a text that identifies these batches."""
        digest = hashlib.blake2b(digest_size=16)
        for array in (self.plan.document, self.plan.bounds):
            digest.update(np.ascontiguousarray(array).data)
        return f"bucketed {self.bucketing.boundaries} {digest.hexdigest()}"


def plan_buckets(bucketing: Bucketing, sizes: Integers) -> PackingPlan:
    """Return the batches of each bucket in turn, the elements of each bucket in order.

    Args:
        bucketing: the arguments of the bucketing.
        sizes: int64 (elements,), none above the last boundary.

    Example:
        >>> bucketing = Bucketing(len, (4, 8), (2, 1), ())
        >>> plan = plan_buckets(bucketing, np.array([3, 8, 1, 4]))
        >>> [plan.document[first:last].tolist() for first, last in zip(plan.bounds, plan.bounds[1:])]
        [[0, 2], [3], [1]]
    """
    bucket = np.searchsorted(bucketing.boundaries, sizes)
    positions: list[Integers] = []
    counts: list[Integers] = []
    for number, rows in enumerate(bucketing.rows):
        members = np.flatnonzero(bucket == number)
        full, left = divmod(len(members), rows)
        keeps = left > 0 and bucketing.keep_short
        positions.append(members if keeps else members[: full * rows])
        counts.append(np.array([rows] * full + [left] * keeps, np.int64))
    order = np.concatenate(positions)
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(counts))])
    return PackingPlan(order, np.zeros_like(order), sizes[order], bounds)
