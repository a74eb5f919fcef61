"""The columns of a data frame of pandas, as arrays."""

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from penstock.errors import UsageError

DataFrame = Any  # of pandas, or a library with its interface
Series = Any


def columns_of_frame(frame: DataFrame) -> dict[str, NDArray[Any]]:
    """Return the columns of a data frame by their names, without the index.

    Columns of NumPy's dtypes aren't copied, and keep their NaN; a missing value of any other dtype is None.

    Args:
        frame: the data frame.

    Returns:
        For each column, an array of one axis.

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
