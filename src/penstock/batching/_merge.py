"""The definition of a batch in plain NumPy: leaves are stacked, and containers kept. `split_rows` is the inverse.

Every faster path must return the same as `stack`, and falls back to it for errors, so that all paths raise the same
text.

In a batch, a list whose first item is a str or bytes is a column; any other list is a container.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._independent import are_apart, independent
from penstock._tree import (
    Element,
    Structure,
    align_leaves,
    describe_difference,
    flatten,
    leaf_paths,
    subject,
    unflatten,
    unflatten_each,
)
from penstock.batching._leaf import (
    OWN_MERGE,
    LeafKind,
    LeafSpec,
    Value,
    describe_kind,
    has_padding,
    kind_of,
    values_of,
    write_value,
)
from penstock.errors import UsageError

Batch: TypeAlias = Any  # user data: an element whose leaves have a leading row axis, or what a user's merge returns
Column: TypeAlias = NDArray[Any] | list[Any] | None


class Merge(Protocol):
    """Makes one batch from the elements of its rows; any such function can be passed to `.batch(n, merge=…)`.

    Example:
        >>> merge: Merge = lambda elements: elements
        >>> merge([1, 2])
        [1, 2]
    """

    def __call__(self, elements: Sequence[Element], /) -> Batch:
        """Return the batch of these elements, row by row."""
        ...


@frozen
class Stack:
    """The merge that stacks leaves as `stack` does; the default of `.batch(n)`.

    Example:
        >>> Stack()([{"label": 3}, {"label": 5}])
        {'label': array([3, 5])}
    """

    def __call__(self, elements: Sequence[Element], /) -> Batch:
        """Return `stack(elements)`."""
        return stack(elements)


def stack(elements: Sequence[Element]) -> Batch:
    """Return the batch of these elements: the same containers, each leaf with a leading axis of rows.

    Arrays and NumPy scalars are stacked and keep their dtype and byte order. Python's int, float and bool become arrays
    of int64, float64 and bool. A str or bytes (NumPy's own, too) becomes a list; None stays None. An object
    with `__array__` or `__dlpack__`, such as a CPU tensor of torch, counts as its array. Nothing is promoted or padded:
    a leaf must have one dtype and shape in all rows. The keys of a dict may be in any order; that of row 0 is kept.

    Args:
        elements: at least one; nested dicts, lists, tuples, named tuples and dataclasses of leaves.

    Returns:
        The batch. Its arrays are new, C-contiguous and writable, of shape (rows, *leaf's shape).

    Raises:
        UsageError: there is no element, elements differ in structure, dtype or shape, or a leaf can't be stacked. The
            text names row 0, the lowest row that differs, and the leaf's path.

    Example:
        >>> import numpy as np
        >>> stack([{"image": np.zeros((2, 2)), "name": "a"}, {"image": np.ones((2, 2)), "name": "b"}])["image"].shape
        (2, 2, 2)
        >>> stack([(1, "a", None), (2, "b", None)])
        (array([1, 2]), ['a', 'b'], None)
    """
    structure, rows = open_rows(elements)
    paths = leaf_paths(structure)
    values: list[list[Value]] = []
    kinds: list[LeafKind] = []
    for row, row_values in enumerate(rows):
        row_kinds = [kind_of(value) for value in row_values]
        kinds = kinds or row_kinds
        for path, kind, row_kind in zip(paths, kinds, row_kinds, strict=True):
            if row_kind != kind:
                reject_kind(path, kind, row_kind, row)
        values.append(row_values)
    columns = [stacked([row_values[leaf] for row_values in values], kind) for leaf, kind in enumerate(kinds)]
    return unflatten(structure, columns)


def stacked(values: list[Any], kind: LeafKind) -> Column:
    """Return the column of these values, which are all of this kind."""
    if kind is None:
        return None
    if not isinstance(kind, LeafSpec):
        return values
    column = new_array((len(values), *kind.shape), kind.dtype)
    for row, value in enumerate(values):
        write_value(value, column[row, ...])
    return column


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a new C-contiguous array to be filled; bytes that belong to no field are already zero."""
    return np.zeros(shape, dtype) if has_padding(dtype) else np.ndarray(shape, dtype)


def open_rows(elements: Sequence[Element]) -> tuple[Structure, Iterator[list[Value]]]:
    """Return the structure of row 0, and an iterator over the rows' values in the order of its leaves.

    Raises:
        UsageError: there is no row. The iterator raises it for a row that differs from row 0 in structure, or has a
            leaf that a batch can't hold.
    """
    if len(elements) == 0:
        raise UsageError("a batch must have at least one element; got none. Pass the elements of its rows.")
    structure = flatten(elements[0])[1]
    return structure, _rows(structure, elements)


def _rows(structure: Structure, elements: Sequence[Element]) -> Iterator[list[Value]]:
    paths = leaf_paths(structure)
    for row, element in enumerate(elements):
        given, given_structure = flatten(element)
        leaves = align_leaves(structure, given, given_structure)
        if leaves is None:
            raise UsageError(
                "the elements of a batch must have one structure; "
                f"{describe_difference(structure, given_structure, ('row 0', f'row {row}'))}. "
                "Return one structure from .map (a sequence of varying length as an array), leave out others "
                f"by .filter, or {OWN_MERGE}."
            )
        yield values_of(leaves, paths, row)


def reject_kind(path: str, kind: LeafKind, row_kind: LeafKind, row: int) -> NoReturn:
    """Raise the error for a leaf whose kind in `row` differs from that in row 0.

    Raises:
        UsageError: always.
    """
    remedy = "Make it the same in .map"
    if isinstance(kind, LeafSpec) and isinstance(row_kind, LeafSpec):
        if kind.dtype != row_kind.dtype:
            remedy = "Convert it to one dtype in .map"
        elif len(kind.shape) == len(row_kind.shape) and kind.shape[1:] == row_kind.shape[1:]:
            remedy = "Make it of one length in .map, pad it with .padded_batch(n)"
        else:
            remedy = "Make it of one shape in .map"
    raise UsageError(
        f"a leaf must be of one dtype and shape in all rows of a batch, since nothing is promoted; {subject(path)} is "
        f"{describe_kind(kind)} in row 0 and {describe_kind(row_kind)} in row {row}. {remedy}, or {OWN_MERGE}."
    )


def row_count(batch: Batch) -> int:
    """Return the number of rows: the length of the first axis of every array, and of every list of str or bytes.

    Raises:
        UsageError: two leaves have different numbers of rows, a leaf has no row axis, or there is no leaf.

    Example:
        >>> import numpy as np
        >>> row_count({"label": np.array([3, 5]), "name": ["a", "b"]})
        2
    """
    return _rows_of(*flatten(batch, _is_list_column))


def _rows_of(leaves: list[Any], structure: Structure) -> int:
    counts = {_rows_of_leaf(leaf) for leaf in leaves if leaf is not None}
    count = counts.pop() if len(counts) == 1 else None
    if count is None:
        _reject_rows(leaves, structure)
    return count


def _reject_rows(leaves: list[Any], structure: Structure) -> NoReturn:
    """Raise the error for a batch whose rows can't be counted.

    Raises:
        UsageError: always.
    """
    found = [
        (path, _rows_of_leaf(leaf), leaf)
        for leaf, path in zip(leaves, leaf_paths(structure), strict=True)
        if leaf is not None
    ]
    for path, count, leaf in found:
        if count is None:
            raise UsageError(
                f"every leaf of a batch must have a row axis; {subject(path)} is a {type(leaf).__qualname__} without "
                "one. Let the merge return an array with one row for each element, or remove the leaf in .map."
            )
        first_path, first_count, _ = found[0]
        if count != first_count:
            raise UsageError(
                f"all leaves of a batch must have one number of rows; {subject(first_path)} has {first_count} and "
                f"{subject(path)} has {count}. Return leaves of one length from .map."
            )
    raise UsageError(
        "a batch must have an array, or a list of str or bytes, which determines its rows; got none. "
        "Return one from .map."
    )


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
    return _split(batch)[0]


def independent_rows(batch: Batch) -> list[Element]:
    """Return the element of each row, as `split_rows`; rows that share memory with each other are copied.

    Raises:
        UsageError: as for `split_rows`, or a row must be copied and can't be.

    Example:
        >>> import numpy as np
        >>> frames = np.arange(3.0).reshape(3, 1)
        >>> first, second = independent_rows({"now": frames[:-1], "next": frames[1:]})
        >>> first["next"] += 1
        >>> second["now"]
        array([1.])
    """
    rows, columns = _split(batch)
    return rows if are_apart(columns) else independent(rows)


def _split(batch: Batch) -> tuple[list[Element], list[Any]]:
    """Return the element of each row, and the columns."""
    leaves, structure = flatten(batch, _is_list_column)
    rows = _rows_of(leaves, structure)
    columns = [[None] * rows if leaf is None else list(leaf) for leaf in leaves]
    return columns[0] if structure.container is None else unflatten_each(structure, columns, rows), leaves


def _is_list_column(part: object) -> bool:
    if not isinstance(part, list):
        return False
    items = cast("list[object]", part)
    return len(items) > 0 and isinstance(items[0], (str, bytes))


def _rows_of_leaf(leaf: object) -> int | None:
    """Return the length of the row axis; None if the leaf has none."""
    if type(leaf) is np.ndarray and leaf.ndim:
        return len(leaf)
    if _is_list_column(leaf):
        return len(cast("list[object]", leaf))
    shape: Sequence[int] = getattr(leaf, "shape", ())
    return shape[0] if len(shape) > 0 else None
