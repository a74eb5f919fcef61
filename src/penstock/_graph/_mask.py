"""Masks: bool leaves that are true where an element has data and not padding."""

from typing import Any, TypeGuard

import numpy as np

from penstock._graph._nodes import Batch, Element
from penstock.errors import GraphError


def add_mask(element: Element, name: str, data: int, total: int, what: str) -> Element:
    """Return the element with a bool leaf `name` of shape (total,) that is true for the first `data`.

    Args:
        element: a dict.
        name: the key of the new leaf.
        data: the number of rows or frames of data.
        total: the number of rows or frames with padding.
        what: the noun for the element in messages, such as "batch".

    Raises:
        GraphError: the element is not a dict, or already has that key.
    """
    if not _is_dict(element) or name in element:
        found = f"a dict that has {name!r} already" if _is_dict(element) else f"a {type(element).__name__}"
        raise GraphError(f"mask={name!r} must name a new leaf of a dict; the {what} is {found}")
    return {**element, name: np.arange(total) < data}


def with_mask(step: Batch, batch: Element, data_rows: int, rows: int) -> Element:
    """Return the batch with the step's mask, if it has one: true for the first `data_rows` rows."""
    return batch if step.mask is None else add_mask(batch, step.mask, data_rows, rows, "batch")


def _is_dict(element: object) -> TypeGuard[dict[Any, Any]]:
    return isinstance(element, dict)
