"""The source over a `Dataset` of the library datasets, whose records are what `dataset[key]` returns.

`dataset[key]` makes a table of one row and formats it, which takes twenty microseconds and more. This source reads the
values from the dataset's Arrow table by itself, through its list of indices if it was shuffled or selected. It does so
only where the result is the same: the dataset has no format or transform, no feature that must be decoded, such as an
image, and no extension type. Otherwise the dataset itself reads, one key at a time: its `__getitems__` formats rows
together, so the dtype of a row's value may depend on the other rows, such as on a null among them. A format can be set
at any time, so each read looks for one.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, SupportsIndex, cast

import numpy as np
from numpy.typing import NDArray

from penstock.errors import UsageError
from penstock.sources._arrow_rows import PLAIN, ArrowRows
from penstock.sources._source import Keys, Record, as_key, as_keys, check_range

Dataset = Any  # of the library, which has no types

_MODULE: Final = "datasets.arrow_dataset"
_CLASS: Final = "Dataset"
_FORMAT: Final = ("_format_type", "_format_kwargs", "_format_columns")
"""The attributes of a dataset that are None or empty without a format."""


def is_hugging_face(value: object) -> bool:
    """Return whether an object is a `datasets.Dataset`."""
    kind = type(value)
    return (kind.__module__, kind.__qualname__) == (_MODULE, _CLASS)


class HuggingFaceRows:
    """The records of a `datasets.Dataset`, equal to those of `dataset[key]`.

    Args:
        dataset: the dataset.

    Attributes:
        dataset: the dataset.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self._opened: tuple[ArrowRows, NDArray[Any] | None] | None = None
        self._is_readable: bool | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: SupportsIndex) -> Record:
        number = as_key(key, len(self))
        if not self._is_plain():
            return self.dataset[number]
        rows, indices = self._open()
        return rows[number if indices is None else indices.item(number)]

    def read(self, keys: Sequence[int] | Keys) -> list[Record]:
        """Return the record of each key.

        Args:
            keys: in [0, length), one axis.

        Returns:
            The records, each as `dataset[key]` returns it.
        """
        checked = as_keys(keys)
        if not self._is_plain():
            return [self.dataset[key] for key in checked.tolist()]
        check_range(checked, len(self))
        rows, indices = self._open()
        return rows.take(checked if indices is None else indices[checked].astype(np.int64))

    @property
    def fixed_shape(self) -> bool:
        """Whether records can be written into batches: all columns are int64, float64 or strings, without nulls."""
        return self._is_plain() and self._open()[0].can_fill_batches

    def read_into(self, keys: Sequence[int] | Keys, out: Record) -> None:
        """Write the records of `keys` to `out`.

        Args:
            keys: in [0, length), one axis.
            out: a dict with an array for each column of numbers, and a list for each other one.

        Raises:
            UsageError: an array has another dtype or shape than the values, or the dataset has a format now.
        """
        if not self._is_plain():
            raise UsageError(f"{self!r} formats its records. Read them by `read`.")
        checked = as_keys(keys)
        check_range(checked, len(self))
        rows, indices = self._open()
        rows.take_into(checked if indices is None else indices[checked].astype(np.int64), out)

    def lengths(self, column: str) -> NDArray[np.int64]:
        """Return the length of a column's value in every record, for `pack` and `bucket`; other columns aren't read.

        Args:
            column: the name of a column of lists, texts or bytes.

        Returns:
            int64, one axis: `len(record[column])`, and 0 for None.

        Raises:
            UsageError: there is no such column, its values have no length, or the dataset has a format or a feature
                that changes its values.
        """
        if not self._is_plain():
            raise UsageError(
                f"lengths are read from the dataset's table, whose values {self!r} formats or decodes. Remove the "
                "format, as in dataset.with_format(None), or pass the lengths of your own."
            )
        rows, indices = self._open()
        lengths = rows.lengths(column)
        return lengths if indices is None else lengths[indices]

    def _identity_parts(self) -> object:
        """Return the dataset, which the key of a cache identifies by its own fingerprint."""
        return self.dataset

    def fingerprint(self) -> str:
        """Return the type and length, as for any object without a fingerprint."""
        return f"{_MODULE}.{_CLASS}-{len(self)}"

    def __repr__(self) -> str:
        return repr(self.dataset)

    def __reduce__(self) -> tuple[object, ...]:
        return HuggingFaceRows, (self.dataset,)

    def _is_plain(self) -> bool:
        state = _attributes(self.dataset)
        if any(state.get(name, name) for name in _FORMAT):  # an attribute that isn't there counts as a format
            return False
        if self._is_readable is None:
            self._is_readable = _is_readable(self.dataset)
        return self._is_readable

    def _open(self) -> tuple[ArrowRows, NDArray[Any] | None]:
        # Two threads may do this at once: the rows of one are kept.
        opened = self._opened
        if opened is None:
            given = _attributes(self.dataset)["_indices"]
            indices = None if given is None else cast("NDArray[Any]", given.table.column(0).to_numpy())
            rows = ArrowRows(self.dataset.data.table.to_batches(), tuple(self.dataset.features), PLAIN)
            opened = self._opened = (rows, indices)
        return opened


def _attributes(dataset: Dataset) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", vars(dataset))


def _is_readable(dataset: Dataset) -> bool:
    """Return whether the values of the dataset's table are those of its records."""
    decodes = getattr(importlib.import_module("datasets.features.features"), "require_decoding", None)
    if decodes is None or "_indices" not in _attributes(dataset):
        return False  # another version of the library
    schema = dataset.data.table.schema
    if sorted(schema.names) != sorted(dataset.features) or any(map(decodes, dataset.features.values())):
        return False
    return not any("extension<" in str(kind) for kind in schema.types)  # also within a list
