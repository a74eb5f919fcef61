"""A mask says which part of an element is data rather than padding: a bool leaf beside the others."""

from typing import Any, TypeGuard

import numpy as np

from penstock._graph._nodes import Batch, Element
from penstock.errors import GraphError


def add_mask(element: Element, name: str, data: int, total: int, what: str) -> Element:
    """Return the element with a leaf `name` of shape (total,): true for the first `data`.

    Args:
        element: a dict.
        name: of a leaf that it has not.
        data: how many rows or frames are data.
        total: how many there are.
        what: what a message calls the element, such as "batch".

    Raises:
        GraphError: if it is no dict, or has that leaf.
    """
    if not _is_dict(element) or name in element:
        found = f"a dict that has {name!r} already" if _is_dict(element) else f"a {type(element).__name__}"
        raise GraphError(f"mask={name!r} must name a new leaf of a dict; the {what} is {found}")
    return {**element, name: np.arange(total) < data}


def with_mask(step: Batch, batch: Element, data_rows: int, rows: int) -> Element:
    """Return the batch with the step's mask leaf: true for the first `data_rows` of its rows."""
    return batch if step.mask is None else add_mask(batch, step.mask, data_rows, rows, "batch")


def _is_dict(element: object) -> TypeGuard[dict[Any, Any]]:
    return isinstance(element, dict)
