"""Batches of elements: their leaves are stacked, or padded first, and their containers kept.

    elements  [{"image": uint8 (28, 28), "label": 3, "name": "a"}, …]      one for each row
    batch     {"image": uint8 (rows, 28, 28), "label": int64 (rows,), "name": ["a", …]}

`stack` defines `.batch(n)` and `pad` defines `.padded_batch(n)`, in plain NumPy. A loader writes each element directly
into its row, with the same bytes as result.

`stack_arrays` and `normalize_images` are for a user's own merge or map: they write into given memory.
"""

from typing import TYPE_CHECKING

from penstock import _lazy
from penstock.batching._bucketing import BucketedBatches as BucketedBatches
from penstock.batching._bucketing import Bucketing as Bucketing
from penstock.batching._bucketing import LengthOf as LengthOf
from penstock.batching._bucketing import PadToBucket as PadToBucket
from penstock.batching._bucketing import merges as merges
from penstock.batching._bucketing import plan_buckets as plan_buckets
from penstock.batching._grouping import Grouping as Grouping
from penstock.batching._grouping import PackingPlan as PackingPlan
from penstock.batching._grouping import Pieces as Pieces
from penstock.batching._grouping import concat_then_split as concat_then_split
from penstock.batching._grouping import plan_of_sequences as plan_of_sequences
from penstock.batching._images import normalize_images as normalize_images
from penstock.batching._images import scale_and_shift as scale_and_shift
from penstock.batching._joined import JoinedElements as JoinedElements
from penstock.batching._joined import Leaf as Leaf
from penstock.batching._joined import array_bytes as array_bytes
from penstock.batching._joined import joined as joined
from penstock.batching._joined import kept as kept
from penstock.batching._joined import shown as shown
from penstock.batching._joined import together as together
from penstock.batching._leaf import LeafError as LeafError
from penstock.batching._leaf import LeafSpec as LeafSpec
from penstock.batching._leaf import as_value as as_value
from penstock.batching._leaf import describe_kind as describe_kind
from penstock.batching._leaf import element_spec as element_spec
from penstock.batching._leaf import kind_of as kind_of
from penstock.batching._merge import Batch as Batch
from penstock.batching._merge import Column as Column
from penstock.batching._merge import Merge as Merge
from penstock.batching._merge import Stack as Stack
from penstock.batching._merge import stack as stack
from penstock.batching._pack import STREAMING_BINS as STREAMING_BINS
from penstock.batching._pack import Documents as Documents
from penstock.batching._pack import OpenBins as OpenBins
from penstock.batching._pack import assign_best_fit as assign_best_fit
from penstock.batching._pack import padding_token as padding_token
from penstock.batching._pack import plan_packing as plan_packing
from penstock.batching._pack import whole_pieces as whole_pieces
from penstock.batching._packing import Columns as Columns
from penstock.batching._packing import Form as Form
from penstock.batching._packing import PackedDocuments as PackedDocuments
from penstock.batching._packing import Packing as Packing
from penstock.batching._packing import PlannedRows as PlannedRows
from penstock.batching._packing import documents_of as documents_of
from penstock.batching._packing import empty_columns as empty_columns
from penstock.batching._packing import extra_names as extra_names
from penstock.batching._packing import fill_columns as fill_columns
from penstock.batching._packing import form_of as form_of
from penstock.batching._packing import lengths_of as lengths_of
from penstock.batching._packing import max_rows as max_rows
from penstock.batching._packing import meta_columns as meta_columns
from penstock.batching._packing import row_bytes as row_bytes
from penstock.batching._packing import rows_of as rows_of
from penstock.batching._pad import Pad as Pad
from penstock.batching._pad import pad as pad
from penstock.batching._stack_arrays import check_out as check_out
from penstock.batching._stack_arrays import stack_arrays as stack_arrays
from penstock.batching._stack_arrays import write_tensors as write_tensors

if TYPE_CHECKING:
    from penstock.batching._layout import Layout as Layout
    from penstock.batching._layout import LayoutMismatchError as LayoutMismatchError
    from penstock.batching._layout import RowStacker as RowStacker
    from penstock.batching._layout import copied as copied
    from penstock.batching._layout import cut as cut
    from penstock.batching._layout import fast_stack as fast_stack
    from penstock.batching._layout import layout_of as layout_of
    from penstock.batching._layout import split_leaves as split_leaves
    from penstock.batching._layout import write_column as write_column
    from penstock.batching._layout import write_rows as write_rows
    from penstock.batching._merge import independent_rows as independent_rows
    from penstock.batching._merge import split_rows as split_rows
else:
    # Loaded on demand: a description of a dataset needs none of them.
    __getattr__ = _lazy.from_modules(
        __name__,
        Layout="penstock.batching._layout",
        copied="penstock.batching._layout",
        cut="penstock.batching._layout",
        layout_of="penstock.batching._layout",
        independent_rows="penstock.batching._merge",
        split_rows="penstock.batching._merge",
        LayoutMismatchError="penstock.batching._layout",
        RowStacker="penstock.batching._layout",
        fast_stack="penstock.batching._layout",
        split_leaves="penstock.batching._layout",
        write_column="penstock.batching._layout",
        write_rows="penstock.batching._layout",
    )
    __dir__ = _lazy.listing(__name__)

__all__ = ["normalize_images", "stack_arrays"]
