"""The bucketing of elements by size: its arguments, and the batches that are planned from the sizes of all elements."""

import bisect
import contextlib
import hashlib
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._tree import Element
from penstock.batching._grouping import NOTE_ON_SUBSTITUTES, PackingPlan
from penstock.batching._merge import Batch
from penstock.batching._pad import Pad
from penstock.errors import GraphError


@frozen
class LengthOf:
    """The size of an element as the length of one of its leaves."""

    leaf: str

    def __call__(self, element: Element, /) -> int:
        """Return the length of the leaf.

        Raises:
            GraphError: the element has no such leaf, or the leaf has no length.
        """
        try:
            return len(element[self.leaf])
        except (TypeError, KeyError, IndexError):
            leaves = list(element) if hasattr(element, "keys") else []
            found = f"a dict of {leaves}" if leaves else f"a {type(element).__qualname__}"
            raise GraphError(
                f"the size of an element is the length of its leaf {self.leaf!r}; got {found}. Name a leaf that is an "
                "array, or pass a function that returns an element's size."
            ) from None


@frozen
class Bucketing:
    """The arguments of a `bucket` step.

    Attributes:
        size: returns an element's size, such as its number of tokens.
        boundaries: the largest size of each bucket, ascending.
        rows: for each bucket, the number of elements in a batch of all ranks together.
        merge: for each bucket, the function that returns the batch of a list of elements.
        keep_short: whether the elements left in the buckets at the end become short batches.
    """

    size: Callable[[Any], int]
    boundaries: tuple[int, ...]
    rows: tuple[int, ...]
    merge: tuple[Callable[[list[Any]], Any], ...]
    keep_short: bool = True

    def bucket(self, element: Element) -> int:
        """Return the index of an element's bucket.

        Raises:
            GraphError: its size is no whole number, negative, or above the last boundary.
        """
        size: Any = self.size(element)
        number = bisect.bisect_left(self.boundaries, size if type(size) is int and size >= 0 else _whole(size))
        if number == len(self.boundaries):
            raise GraphError(
                f"no element may be larger than the last boundary, {self.boundaries[-1]}; got one of size {size}. "
                "Raise the boundary, shorten the element in .map, or remove it with .filter."
            )
        return number


def _whole(size: object) -> int:
    if isinstance(size, SupportsIndex) and not isinstance(size, bool):
        with contextlib.suppress(TypeError):  # an array has this method, too, which only works for a single number
            if (number := operator.index(size)) >= 0:
                return number
    raise GraphError(f"size must return a whole number of at least 0; got {size!r}")


@frozen
class PadToBucket:
    """The merge of a batch whose elements belong to one bucket; it finds that bucket, and applies its merge."""

    bucketing: Bucketing

    def __call__(self, elements: Sequence[Element], /) -> Batch:
        """Return the batch.

        Raises:
            GraphError: the elements belong to several buckets.
        """
        number = self.bucketing.bucket(elements[0])
        for element in elements:
            check_bucket(self.bucketing, element, number, "of a batch")
        return self.bucketing.merge[number](list(elements))


def check_bucket(bucketing: Bucketing, element: Element, number: int, where: str) -> None:
    """Check that an element belongs to the planned bucket.

    Raises:
        GraphError: it doesn't.
    """
    if bucketing.bucket(element) != number:
        raise GraphError(
            f"elements must have the sizes that bucket() was given; one {where} has {bucketing.size(element)}, and was "
            f"planned for the bucket up to {bucketing.boundaries[number]}. Pass the lengths of the dataset before "
            f"bucket(), in its order. {NOTE_ON_SUBSTITUTES}"
        )


def merges(boundaries: Sequence[int], pad: Pad) -> tuple[Pad, ...]:
    """Return the merge of each bucket, which pads to the bucket's boundary."""
    return tuple(Pad(boundary, pad.fill, pad.mask) for boundary in boundaries)


@frozen
class BucketedBatches:
    """The batches of a planned bucketing. Each can be computed alone.

    Attributes:
        plan: the elements of each batch: `document` has their positions, `length` their sizes.
        bucketing: the arguments of the bucketing.
    """

    plan: PackingPlan
    bucketing: Bucketing

    def __len__(self) -> int:
        return len(self.plan)

    def members(self, groups: NDArray[np.int64], /) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the number of elements of each batch, and the positions of all of them."""
        return self.plan.members(groups)

    def merge(self, groups: NDArray[np.int64], elements: Sequence[Any], /) -> list[Any]:
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


def plan_buckets(bucketing: Bucketing, sizes: NDArray[np.int64]) -> PackingPlan:
    """Return the plan of all batches, bucket after bucket; the elements of a bucket keep their order.

    Args:
        bucketing: the arguments of the bucketing.
        sizes: the size of each element, int64 (elements,), none above the last boundary.

    Example:
        >>> bucketing = Bucketing(len, (4, 8), (2, 1), ())
        >>> plan = plan_buckets(bucketing, np.array([3, 8, 1, 4]))
        >>> [plan.document[first:last].tolist() for first, last in zip(plan.bounds, plan.bounds[1:])]
        [[0, 2], [3], [1]]
    """
    bucket = np.searchsorted(bucketing.boundaries, sizes)
    positions: list[NDArray[np.int64]] = []
    counts: list[NDArray[np.int64]] = []
    for number, rows in enumerate(bucketing.rows):
        members = np.flatnonzero(bucket == number)
        full, left = divmod(len(members), rows)
        keeps = left > 0 and bucketing.keep_short
        positions.append(members if keeps else members[: full * rows])
        counts.append(np.array([rows] * full + [left] * keeps, np.int64))
    order = np.concatenate(positions)
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(counts))])
    return PackingPlan(order, np.zeros_like(order), sizes[order], bounds)
