"""The source of a table of another library."""

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from penstock.errors import UsageError
from penstock.sources._arrays import Arrays
from penstock.sources._arrow_table import ArrowTable
from penstock.sources._hugging_face import HuggingFaceRows, is_hugging_face
from penstock.sources._source import Source

DataFrame = Any  # of pandas, or a library with its interface
Series = Any


def source_of_table(value: object) -> Source:
    """Return the source of the rows of a table.

    Args:
        value: a `Dataset` of Hugging Face, a data frame of pandas, or an object that exports Arrow's C stream.

    Returns:
        The source.

    Raises:
        UsageError: the columns have no names, or two have one.
        MissingDependencyError: the table needs pyarrow, which isn't installed.
    """
    if is_hugging_face(value):
        return HuggingFaceRows(value)
    if hasattr(value, "iloc") and hasattr(value, "columns"):
        return Arrays(_columns_of(value))
    return ArrowTable(value)


def _columns_of(frame: DataFrame) -> dict[str, NDArray[Any]]:
    """Return the columns of a data frame of pandas by their names, without the index.

    Columns of NumPy's dtypes aren't copied, and keep their NaN; a missing value of any other dtype is None.

    Raises:
        UsageError: a name isn't a str, or two columns have one name.
    """
    names: list[object] = list(frame.columns)
    for name in names:
        if not isinstance(name, str) or names.count(name) > 1:
            raise UsageError(
                f"the columns of a data frame must have different names, each a str; got {name!r} in {names}. Rename "
                'them, as in frame.set_axis(["a", "b"], axis=1).'
            )
    return {cast("str", name): _array_of(frame[name]) for name in names}


def _array_of(column: Series) -> NDArray[Any]:
    is_of_numpy = isinstance(column.dtype, np.dtype)
    array: NDArray[Any] = (
        column.to_numpy() if is_of_numpy or not column.isna().any() else column.to_numpy(dtype=object, na_value=None)
    )
    return array
