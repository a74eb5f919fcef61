"""Packed sequences, planned from the lengths of all documents; each can be computed alone."""

import hashlib
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.batching._documents import filled, form_of, lengths_of, max_rows, row_blocks, rows_of
from penstock.batching._packing import Packing
from penstock.batching._pieces import PackingPlan
from penstock.errors import GraphError

Integers = NDArray[np.int64]


@frozen
class PackedDocuments:
    """The grouping of a planned packing.

    Attributes:
        plan: the documents of each sequence; a document's number is its position.
        packing: the arguments of the packing.
        lengths: the planned lengths, int64 (documents,) or (documents, features); they determine the plan.
    """

    plan: PackingPlan
    packing: Packing
    lengths: Integers = field(compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.plan)

    def members(self, groups: Integers, /) -> tuple[Integers, Integers]:
        """Return the number of documents of each sequence, and the positions of all of them."""
        part = self.plan.take(groups)
        return np.diff(part.bounds), part.document

    def merge(self, groups: Integers, elements: Sequence[Any], /) -> list[Any]:
        """Return the sequences of these documents.

        Raises:
            GraphError: a document can't be packed, or its length differs from the planned one.
        """
        if not len(groups):
            return []
        plan = self.plan.take(groups)
        form = form_of(self.packing, elements[0])
        found, planned = lengths_of(self.packing, form, elements), self.lengths[plan.document]
        if not np.array_equal(found, planned):
            number = int((found != planned).reshape(len(found), -1).any(axis=1).argmax())
            raise GraphError(
                "documents must have the lengths that pack() was given; the one at position "
                f"{plan.document[number]} has {found[number].tolist()}, the plan {planned[number].tolist()}. Pass the "
                "lengths of the dataset before pack(), in its order."
            )
        bounds = plan.bounds.tolist()
        made: list[Any] = []
        rows = max_rows(self.packing, form)
        for first, stop in row_blocks(len(groups), rows, rows):
            documents = elements[bounds[first] : bounds[stop]]
            made += rows_of(filled(self.packing, form, plan.span(first, stop), documents))
        return made

    def fingerprint(self) -> str:
        """Return a text that identifies this packing."""
        digest = hashlib.blake2b(digest_size=16)
        for array in (self.plan.document, self.plan.offset, self.plan.length, self.plan.bounds):
            digest.update(np.ascontiguousarray(array).data)
        return f"packed {self.packing!r} {digest.hexdigest()}"
