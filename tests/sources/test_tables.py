"""Tables of pyarrow, pandas, polars and Hugging Face are sources of their rows, equal to the libraries' own."""

import itertools
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import CorruptRecordError, MissingDependencyError, UsageError
from penstock.sources import as_source, can_read_into, read_records, source_fingerprint
from penstock.testing import SourceTests, assert_same
from tests.profiles import fewer, in_short
from tests.sources.promises import check_source

pa: Any = pytest.importorskip("pyarrow")

from tests.sources.arrow_values import records_of, tables  # noqa: E402 - it needs pyarrow

TABLE = pa.table(
    {
        "id": pa.array([4, 5, None], pa.int16()),
        "text": ["é", None, "a text in which no letter is é"],
        "tokens": pa.array([[1, 2], [], None], pa.list_(pa.uint16())),
        "box": pa.array([[[1, 2], [3, 4]]] * 3, pa.list_(pa.list_(pa.float32(), 2), 2)),
        "kind": pa.array(["x", "y", "x"]).dictionary_encode(),
    }
)
BOX = np.array([[1, 2], [3, 4]], np.float32)
RECORDS = [
    {"id": np.int16(4), "text": "é", "tokens": np.array([1, 2], np.uint16), "box": BOX, "kind": "x"},
    {"id": np.int16(5), "text": None, "tokens": np.array([], np.uint16), "box": BOX, "kind": "y"},
    {"id": None, "text": TABLE["text"][2].as_py(), "tokens": None, "box": BOX, "kind": "x"},
]


def hugging_face() -> Any:
    """Return the library, whose import takes seconds: only the process that runs these tests needs it."""
    return pytest.importorskip("datasets")


class Exported:
    """A table of a library that only exports Arrow's C stream, as polars does."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


@pytest.fixture(autouse=True, scope="module")
def _no_progress_thread() -> None:
    """The progress bars of `datasets` would start a thread that stays."""
    pytest.importorskip("tqdm").tqdm.monitor_interval = 0


def joined() -> Any:
    """Return a table in two batches, of which one is a slice."""
    return pa.concat_tables([pa.concat_tables([TABLE, TABLE]).slice(3, 1), TABLE.slice(1)])


def frame() -> Any:
    """Return a data frame of pandas: missing values are NaN in columns of NumPy, and None in others."""
    pandas: Any = pytest.importorskip("pandas")
    columns = {
        "a": [1.5, -2.0],
        "b": pandas.array(["x", None], dtype="string"),
        "c": pandas.array([7, None], dtype="Int64"),
        "d": pandas.array([1, 2], dtype="Int64"),
        "e": pandas.Categorical(["u", "v"]),
    }
    return pandas.DataFrame(columns, index=["row", "other"])


FRAME = [
    {"a": np.float64(1.5), "b": "x", "c": 7, "d": np.int64(1), "e": "u"},
    {"a": np.float64(-2), "b": None, "c": None, "d": np.int64(2), "e": "v"},
]


def selected() -> Any:
    """Return a Hugging Face dataset that was concatenated, and then selected by indices."""
    datasets = hugging_face()
    parts = [datasets.Dataset.from_dict({"text": [t], "tokens": [[5] * len(t)]}) for t in ("a", "bb", "ccc")]
    return datasets.concatenate_datasets(parts).select([2, 0, 2, 1])


SELECTED = [{"text": text, "tokens": [5] * len(text)} for text in ("ccc", "a", "ccc", "bb")]


def plain() -> Any:
    """Return a Hugging Face dataset of texts and numbers, whose records are written straight into batches."""
    columns = {"text": ["", "é"], "label": [-1, 3], "weight": [2.0, 0.5]}
    dataset = hugging_face().Dataset.from_dict(columns).select([1, 0])
    assert can_read_into(as_source(dataset))
    return dataset


PLAIN = [{"text": "é", "label": 3, "weight": 0.5}, {"text": "", "label": -1, "weight": 2.0}]


@pytest.mark.parametrize(
    ("make", "expected"),
    [(joined, RECORDS), (lambda: Exported(TABLE), RECORDS), (frame, FRAME), (selected, SELECTED), (plain, PLAIN)],
)
def test_tables_keep_the_promises_of_a_source(make: Callable[[], Any], expected: Sequence[Any]) -> None:
    """Those of pyarrow, of a library that exports Arrow's stream, of pandas and of Hugging Face."""
    check_source(make, expected, SourceTests)


@pytest.mark.parametrize("kind", ["table", "dataset"])
def test_columns_of_a_table_are_written_straight_into_batches(kind: str) -> None:
    """A loader delivers the batches of the records, and reads again what has a null or a format meanwhile."""
    columns = {"text": [f"é{number}" for number in range(20)], "label": list(range(20))}
    table = pa.concat_tables([pa.table(columns).slice(3), pa.table(columns).slice(0, 7)])
    given = table if kind == "table" else hugging_face().Dataset.from_dict(table.to_pydict())
    dataset = ps.read(given, seed=1).shuffle().batch(4)
    assert can_read_into(as_source(given))
    assert not can_read_into(as_source(pa.table({"x": [1, None]})))
    assert not can_read_into(as_source(pa.table({"x": [[1], [1, 2]]})))
    with ps.Loader(dataset, num_workers=0) as loader:
        for epoch in range(2):
            assert_same(list(loader), list(dataset.epoch(epoch)))
        if kind == "dataset":
            given.set_format("numpy")
            assert_same(list(loader), list(dataset.epoch(2)))


@in_short(10)
@given(tables())
def test_rows_are_those_of_pyarrow(table: Any) -> None:
    """Any table has the rows of `to_pylist`, with NumPy's values for numbers, here and in another process."""
    source = as_source(table)
    for read in (source, pickle.loads(pickle.dumps(source)), as_source(Exported(table))):
        assert_same(read_records(read, np.arange(len(table))), records_of(table))


def test_tensors_have_the_axes_of_pyarrow() -> None:
    """The axes are those of `to_numpy_ndarray`, which gives every array from `from_numpy_ndarray` a permutation."""
    for permutation in (None, [0, 1], [1, 0]):
        kind = pa.fixed_shape_tensor(pa.float32(), [2, 3], permutation=permutation)
        numbers = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(24, dtype=np.float32)), 6)
        tensors = pa.ExtensionArray.from_storage(kind, numbers)
        read = read_records(as_source(pa.table({"x": tensors})), np.arange(4))
        assert_same([record["x"] for record in read], list(tensors.to_numpy_ndarray()))


@fewer()
@given(tables(), st.data())
def test_records_of_hugging_face_are_its_own(table: Any, data: st.DataObject) -> None:
    """Records equal those of `dataset[key]`, of the same types, whether or not the values can be read directly."""
    try:
        dataset = hugging_face().Dataset(table)
    except (TypeError, ValueError, KeyError, NotImplementedError):  # some types of Arrow have no feature
        return
    keys = data.draw(st.lists(st.integers(0, len(table) - 1), max_size=5)) if len(table) else []
    is_selected: bool = data.draw(st.booleans())
    if keys and is_selected:
        dataset = dataset.select(keys, keep_in_memory=True)
        keys = list(range(len(keys)))
    source = as_source(dataset)
    own = [dataset[key] for key in keys]
    assert repr([source[key] for key in keys]) == repr(own)
    assert repr(read_records(source, np.array(keys, np.int64))) == repr(own)


def test_lengths_of_hugging_face_follow_its_indices() -> None:
    """Lengths are those of the selected records; a format, which may change them, is refused."""
    columns = {"tokens": [[1], [1, 2], [], [1, 2, 3]]}
    dataset = hugging_face().Dataset.from_dict(columns).select([3, 0, 3], keep_in_memory=True)
    source: Any = as_source(dataset)
    assert source.lengths("tokens").tolist() == [3, 1, 3]
    dataset.set_format("numpy")
    with pytest.raises(UsageError, match=r"dataset\.with_format\(None\)"):
        source.lengths("tokens")


def test_a_format_or_a_feature_of_hugging_face_is_applied() -> None:
    """A dataset reads its own records if it has a format, also one that is set later, a transform, or a feature."""
    datasets = hugging_face()
    dataset = datasets.Dataset.from_dict({"x": [1, 2], "y": ["a", "b"]})
    source = as_source(dataset)
    assert source[1] == {"x": 2, "y": "b"}
    dataset.set_format("numpy", columns=["x"])
    assert_same(source[1], {"x": np.int64(2)})
    dataset.set_transform(doubled)
    assert read_records(source, np.array([1, 0])) == [{"z": 4}, {"z": 2}]
    dataset.reset_format()
    assert read_records(source, np.array([1, 0])) == [{"x": 2, "y": "b"}, {"x": 1, "y": "a"}]

    grid = datasets.Features({"grid": datasets.Array2D((2, 2), "int64")})
    arrays = datasets.Dataset.from_dict({"grid": [[[1, 2], [3, 4]]]}, features=grid)
    assert repr(as_source(arrays)[0]) == repr(arrays[0])


def test_a_formatted_record_does_not_depend_on_those_that_are_read_with_it() -> None:
    """`datasets` formats rows together: a null makes the others float32, and a transform may pad to the longest."""
    dataset = hugging_face().Dataset.from_dict({"x": [2**24 + 1, None, 2**24 + 3], "y": [[1], [2, 3], []]})
    for formatted in (dataset.with_format("numpy"), dataset.with_transform(padded)):
        read = read_records(as_source(formatted), np.arange(3))
        assert repr(read) == repr([formatted[key] for key in range(3)])


def doubled(batch: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return a batch of other columns."""
    return {"z": [2 * x for x in batch["x"]]}


def padded(batch: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    """Return rows of one length."""
    longest = max(map(len, batch["y"]))
    return {"y": [row + [0] * (longest - len(row)) for row in batch["y"]]}


@fewer()
@given(tables())
def test_lengths_are_those_of_the_values(table: Any) -> None:
    """Lengths are `len` of each value, and 0 for None; a column without lengths is refused by name and type."""
    source: Any = as_source(table)
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        values = [record[name] for record in records_of(table)]
        if any(isinstance(value, str | bytes | list | np.ndarray) for value in values) and not pa.types.is_map(kind):
            lengths = source.lengths(name)
            assert lengths.dtype == np.int64
            assert lengths.tolist() == [0 if value is None else len(value) for value in values]
        elif len(table) and (pa.types.is_map(kind) or pa.types.is_struct(kind) or pa.types.is_temporal(kind)):
            with pytest.raises(UsageError, match=f"column '{name}' has the type "):
                source.lengths(name)


def test_a_slice_is_sent_without_the_rest_of_its_table() -> None:
    """A pickle has the bytes of the rows alone."""
    table = pa.table({"x": np.arange(100_000)})
    assert len(pickle.dumps(as_source(table.slice(500, 10)))) < 2_000


def test_fingerprints_change_with_columns_and_rows() -> None:
    """Each of names, types, number of rows and content changes a dataset's fingerprint; batches of rows don't."""
    tables = [
        pa.table({"x": pa.array([1, 2], pa.int64())}),
        pa.table({"y": pa.array([1, 2], pa.int64())}),
        pa.table({"x": pa.array([1, 2], pa.int32())}),
        pa.table({"x": pa.array([1, 2, 3], pa.int64())}),
        pa.table({"x": pa.array([1, 3], pa.int64())}),
    ]
    for one, other in itertools.combinations([ps.read(table).fingerprint for table in tables], 2):
        assert one != other
    again = pa.concat_tables([tables[0].slice(0, 1), tables[0].slice(1)])
    assert ps.read(again).fingerprint == ps.read(tables[0]).fingerprint
    dataset = hugging_face().Dataset(tables[0])
    assert source_fingerprint(as_source(dataset)) == "datasets.arrow_dataset.Dataset-2"


def test_what_is_no_table_is_refused() -> None:
    """Columns without names, or with one name twice, are refused with the remedy."""
    with pytest.raises(UsageError, match=r"must have named columns, of .*; got a ChunkedArray.*pyarrow\.table"):
        as_source(TABLE["id"])
    with pytest.raises(UsageError, match=r"the table has 'a' twice\. Rename one"):
        as_source(pa.table([[1], [2]], names=["a", "a"]))
    pandas: Any = pytest.importorskip("pandas")
    with pytest.raises(UsageError, match=r"each a str; got 0 in \[0, 1\]"):
        as_source(pandas.DataFrame([[1, 2]]))
    source: Any = as_source(TABLE)
    with pytest.raises(UsageError, match="no column 'ids'; there are 'id', 'text', 'tokens', 'box', 'kind'"):
        source.lengths("ids")
    datasets = hugging_face()
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"x": [1]})})
    with pytest.raises(UsageError, match=r"arrays\['train'\] must be an array; got a Dataset.* a dict of datasets"):
        as_source(splits)


def test_columns_of_polars_that_arrow_does_not_have_are_refused() -> None:
    """It exports addresses in place of objects, and integers that pyarrow doesn't know."""
    polars: Any = pytest.importorskip("polars")
    with pytest.raises(UsageError, match=r"of the type Object.*; 'x' has it. .*frame.to_dicts\(\)"):
        as_source(polars.DataFrame({"a": [1], "x": polars.Series([{}], dtype=polars.Object)}))
    with pytest.raises(UsageError, match=r"types that pyarrow has; got a DataFrame: .*i128.*convert its columns"):
        as_source(polars.DataFrame({"x": polars.Series([1], dtype=polars.Int128)}))


def test_damaged_text_is_named() -> None:
    """Text that isn't UTF-8 raises an error with the row, and the note names the key."""
    text = pa.StringArray.from_buffers(2, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"a\xff"))
    source = as_source(pa.table({"text": text}))
    assert source[0] == {"text": "a"}
    with pytest.raises(CorruptRecordError, match=r"row 1 isn't: .*can't decode byte 0xff") as raised:
        read_records(source, np.array([0, 1]))
    assert "key 1 of ArrowTable(2 rows of 'text')" in raised.value.__notes__[0]


def test_damaged_text_of_a_process_is_named() -> None:
    """The same where the consumer makes the texts of a worker process; the batches before it are delivered."""
    offsets, content = np.arange(65, dtype=np.int32), b"a" * 49 + b"\xff" + b"a" * 14
    text = pa.StringArray.from_buffers(64, pa.py_buffer(offsets), pa.py_buffer(content))
    dataset = ps.read(pa.table({"text": text, "number": range(64)})).batch(4)
    with ps.Loader(dataset, num_workers=1, workers="processes") as loader:
        batches = iter(loader)
        assert [next(batches)["number"][0] for _ in range(12)] == [*range(0, 48, 4)]
        with pytest.raises(CorruptRecordError, match=r"row 49 isn't: .*can't decode byte 0xff"):
            next(batches)


def test_a_missing_pyarrow_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of another library needs pyarrow; without it, the error has the command that installs it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'penstock\[arrow\]'"):
        as_source(Exported(None))
