"""The rows of a batch: their number, and their elements.

A batch of `stack` has arrays with a row axis, and lists for str or bytes leaves. A list whose first item is a str or
bytes is such a column; any other list is a container.
"""

from typing import cast

from penstock._tree import Element, flatten, leaf_paths, subject, unflatten
from penstock.batching._merge import Batch
from penstock.errors import UsageError


def row_count(batch: Batch) -> int:
    """Return the number of rows: the length of the first axis of every array, and of every list of str or bytes.

    Raises:
        UsageError: two leaves have different numbers of rows, a leaf has no rows, or there is no leaf.

    Example:
        >>> import numpy as np
        >>> row_count({"label": np.array([3, 5]), "name": ["a", "b"]})
        2
    """
    leaves, structure = flatten(batch, _is_list_column)
    first_path, first_count = "", -1
    for leaf, path in zip(leaves, leaf_paths(structure), strict=True):
        if leaf is None:
            continue
        count = _leaf_rows(leaf, path)
        if first_count < 0:
            first_path, first_count = path, count
        if count != first_count:
            raise UsageError(
                f"all leaves of a batch must have one number of rows; {subject(first_path)} has {first_count} and "
                f"{subject(path)} has {count}. Return leaves of one length from .map."
            )
    if first_count < 0:
        raise UsageError(
            "a batch must have an array, or a list of str or bytes, which determine its rows; got none of them."
        )
    return first_count


def split_rows(batch: Batch) -> list[Element]:
    """Return the element of each row.

    An array of an element is a view of the batch's array, so a write to one changes the other. If the batch's array has
    only the row axis, the element gets a NumPy scalar, such as an int64 for a stacked Python int, in the machine's byte
    order. A str or bytes is an item of its list; None stays None.

    Raises:
        UsageError: as for `row_count`.

    Example:
        >>> import numpy as np
        >>> split_rows({"box": np.array([[1, 2], [3, 4]]), "name": ["a", "b"]})
        [{'box': array([1, 2]), 'name': 'a'}, {'box': array([3, 4]), 'name': 'b'}]
    """
    rows = row_count(batch)
    leaves, structure = flatten(batch, _is_list_column)
    columns = [[None] * rows if leaf is None else list(leaf) for leaf in leaves]
    return [unflatten(structure, values) for values in zip(*columns, strict=True)]


def _is_list_column(part: object) -> bool:
    if not isinstance(part, list):
        return False
    items = cast("list[object]", part)
    return len(items) > 0 and isinstance(items[0], (str, bytes))


def _leaf_rows(leaf: object, path: str) -> int:
    rows = (len(cast("list[object]", leaf)),) if _is_list_column(leaf) else getattr(leaf, "shape", ())
    shape: tuple[int, ...] = rows
    if len(shape) == 0:
        raise UsageError(
            f"every leaf of a batch must have a row axis; {subject(path)} is a {type(leaf).__qualname__} without one. "
            "Return an array with one row an element from the merge, or remove the leaf in .map."
        )
    return shape[0]
