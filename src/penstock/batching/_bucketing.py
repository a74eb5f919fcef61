"""How elements of about one size are put into batches: the description, without the doing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Bucketing:
    """What a `bucket` step was told.

    Attributes:
        size: an element's size, such as its number of tokens.
        boundaries: ascending; a bucket holds sizes up to its boundary, the largest included.
        rows: how many elements make a batch of each bucket; of the global batch, over all ranks.
        merge: from a list of elements to a batch, one for each bucket.
        keep_short: whether what is left in the buckets at the end comes out as short batches.
    """

    size: Callable[[Any], int]
    boundaries: tuple[int, ...]
    rows: tuple[int, ...]
    merge: tuple[Callable[[list[Any]], Any], ...]
    keep_short: bool = True
