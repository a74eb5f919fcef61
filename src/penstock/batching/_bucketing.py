"""The description of a bucketing, which puts elements of similar size into batches, and the bucket of a size."""

import bisect
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

from penstock._frozen import frozen
from penstock._tree import Element
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
        boundaries: ascending; a bucket holds sizes up to and with its boundary.
        rows: the number of elements in a batch of each bucket; of the global batch, over all ranks.
        merge: from a list of elements to a batch, one for each bucket.
        keep_short: whether the elements left in the buckets at the end become short batches.
    """

    size: Callable[[Any], int]
    boundaries: tuple[int, ...]
    rows: tuple[int, ...]
    merge: tuple[Callable[[list[Any]], Any], ...]
    keep_short: bool = True

    def bucket(self, element: Element) -> int:
        """Return the number of an element's bucket.

        Raises:
            GraphError: its size is no whole number, or above the last boundary.
        """
        size: Any = self.size(element)
        if isinstance(size, bool) or not isinstance(size, SupportsIndex):
            raise GraphError(f"size must return a whole number; got {size!r}")
        number = bisect.bisect_left(self.boundaries, size.__index__())
        if number == len(self.boundaries):
            raise GraphError(
                f"no element may be larger than the last boundary, {self.boundaries[-1]}; got one of size {size}. "
                "Raise the boundary, shorten the element in .map, or remove it with .filter."
            )
        return number


@frozen
class PadToBucket:
    """The merge of a batch whose rows belong to one bucket: that of the bucket."""

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


def check_bucket(bucketing: Bucketing, element: Element, number: int, which: str) -> None:
    """Check that an element belongs to the planned bucket.

    Raises:
        GraphError: it doesn't.
    """
    if bucketing.bucket(element) != number:
        raise GraphError(
            f"elements must have the sizes that bucket() was given; one {which} has {bucketing.size(element)}, and was "
            f"planned for the bucket up to {bucketing.boundaries[number]}. Pass the lengths of the dataset before "
            "bucket(), in its order."
        )


def merges(boundaries: Sequence[int], pad: Pad) -> tuple[Pad, ...]:
    """Return the merge of each bucket: padding to its boundary."""
    return tuple(Pad(boundary, pad.fill, pad.mask) for boundary in boundaries)
