"""The source of a table in memory: pyarrow's, or that of a library that exports Arrow's C stream, such as polars."""

import hashlib
import sys
from collections.abc import Sequence
from typing import Any, SupportsIndex, cast

import numpy as np
from numpy.typing import NDArray

from penstock.errors import UsageError
from penstock.sources._arrow_rows import NUMPY, Array, ArrowRows, names_of, need_arrow
from penstock.sources._content import sample_digest
from penstock.sources._source import Keys, Record, as_key, as_keys, check_range


class _Digest:
    """A file that keeps only the digest of all that is written to it."""

    closed = False

    def __init__(self) -> None:
        self.digest = hashlib.blake2b(digest_size=16)

    def write(self, content: bytes) -> int:
        self.digest.update(content)
        return len(content)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class ArrowTable:
    """The rows of a table as dicts of columns, with values as `penstock.sources.Arrow` has them.

    The table isn't copied where it is pyarrow's. Other processes get its bytes once, in shared memory where the loader
    has it; a slice is sent without the rest of its table.

    Args:
        table: a `pyarrow.Table`, or an object with `__arrow_c_stream__`.

    Raises:
        UsageError: the object has no columns, two of one name, or one of a type that pyarrow doesn't have.
        MissingDependencyError: pyarrow isn't installed.
    """

    def __init__(self, table: object) -> None:
        pyarrow = need_arrow()
        _need_no_pointers(table)
        try:
            self._table: Array = table if isinstance(table, pyarrow.Table) else pyarrow.table(table)
        except (TypeError, ValueError) as error:  # a single column, or integers of 128 bits
            raise UsageError(
                f"a table must have named columns, of types that pyarrow has; got a {type(table).__qualname__}: "
                f'{error}. Pass a table of it, as in pyarrow.table({{"x": column}}), or convert its columns.'
            ) from error
        self._rows = self._made()
        self._fingerprint: str | None = None
        self._content: str | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: SupportsIndex) -> Record:
        return self._rows[as_key(key, len(self._rows))]

    def read(self, keys: Sequence[int] | Keys) -> list[Record]:
        """Return the row of each key.

        Args:
            keys: in [0, length), one axis.

        Returns:
            A dict for each key.
        """
        checked = as_keys(keys)
        check_range(checked, len(self._rows))
        return self._rows.take(checked)

    @property
    def fixed_shape(self) -> bool:
        """Whether rows can be written into batches: numbers, times, equal lists of them or strings, without nulls."""
        return self._rows.can_fill_batches

    def read_into(self, keys: Sequence[int] | Keys, out: Record) -> None:
        """Write the rows of `keys` to `out`.

        Args:
            keys: in [0, length), one axis.
            out: a dict with an array for each column of numbers or times, and a list for each other one.

        Raises:
            UsageError: an array has another dtype or shape than the values.
        """
        checked = as_keys(keys)
        check_range(checked, len(self._rows))
        self._rows.take_into(checked, out)

    def lengths(self, column: str) -> NDArray[np.int64]:
        """Return the length of a column's value in every row; 0 for None.

        Args:
            column: the name of a column of lists, texts or bytes.

        Returns:
            int64, one axis.

        Raises:
            UsageError: there is no such column, or its values have no length.
        """
        return self._rows.lengths(column)

    def _identity_parts(self) -> object:
        """Return a digest of all content: the key of a cache has it."""
        if self._content is None:
            sink = _Digest()
            self._write(need_arrow().PythonFile(sink, mode="w"))
            self._content = sink.digest.hexdigest()
        return self._content

    def fingerprint(self) -> str:
        """Return a str that changes with the columns, the number of rows, and the content of a sample of rows."""
        if self._fingerprint is None:
            columns = [(field.name, str(field.type)) for field in self._table.schema]
            described = f"{columns} {len(self)} {sample_digest(cast('Sequence[object]', self))}"
            self._fingerprint = f"arrow-table-{hashlib.blake2b(described.encode(), digest_size=16).hexdigest()}"
        return self._fingerprint

    def __repr__(self) -> str:
        return f"ArrowTable({len(self)} rows of {', '.join(map(repr, self._table.column_names))})"

    def __getstate__(self) -> dict[str, Any]:
        sink = need_arrow().BufferOutputStream()
        self._write(sink)
        stream = np.frombuffer(sink.getvalue(), np.uint8)
        return {"stream": stream, "fingerprint": self._fingerprint, "content": self._content}

    def _write(self, sink: object) -> None:
        """Write the table as a stream of Arrow."""
        with need_arrow("pyarrow.ipc").new_stream(sink, self._table.schema) as writer:
            for batch in self._table.to_batches():
                if batch.num_rows:  # of an empty one with an offset, pyarrow writes a message that it can't read
                    writer.write_batch(batch)

    def __setstate__(self, state: dict[str, Any]) -> None:
        pyarrow, ipc = need_arrow(), need_arrow("pyarrow.ipc")
        self._table = ipc.open_stream(pyarrow.py_buffer(cast("NDArray[np.uint8]", state["stream"]))).read_all()
        self._rows = self._made()
        self._fingerprint = state["fingerprint"]
        self._content = state["content"]

    def _made(self) -> ArrowRows:
        return ArrowRows(self._table.to_batches(), names_of(self._table.schema, "the table"), NUMPY)


def _need_no_pointers(table: object) -> None:
    """Check that a data frame of polars has no column of Python's objects, of which it exports the addresses as bytes.

    Raises:
        UsageError: it has one.
    """
    polars = sys.modules.get("polars")
    if polars is None or not isinstance(table, polars.DataFrame):
        return
    schema = cast("Any", table).schema
    refused = next((name for name, kind in schema.items() if kind == polars.Object), None)
    if refused is not None:
        raise UsageError(
            f"a data frame of polars must not have columns of the type Object, whose values aren't in the table; "
            f"{refused!r} has it. Drop the column, convert it, or pass frame.to_dicts()."
        )
