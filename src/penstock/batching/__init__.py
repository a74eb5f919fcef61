"""Batches of elements: their leaves are stacked, or padded first, and their containers kept.

    elements  [{"image": uint8 (28, 28), "label": 3, "name": "a"}, …]      one for each row
    batch     {"image": uint8 (rows, 28, 28), "label": int64 (rows,), "name": ["a", …]}

`stack` defines `.batch(n)` and `pad` defines `.padded_batch(n)`, in plain NumPy. A loader writes each element directly
into its row, with the same bytes as result.

`stack_arrays` and `normalize_images` are for a user's own merge or map: they write into given memory.
"""

from penstock.batching._images import normalize_images as normalize_images
from penstock.batching._leaf import LeafSpec as LeafSpec
from penstock.batching._merge import Batch as Batch
from penstock.batching._merge import Merge as Merge
from penstock.batching._merge import Stack as Stack
from penstock.batching._merge import stack as stack
from penstock.batching._pad import Pad as Pad
from penstock.batching._pad import pad as pad
from penstock.batching._stack_arrays import stack_arrays as stack_arrays

__all__ = ["normalize_images", "stack_arrays"]
