"""Parquet and Arrow files are sources of their rows, whatever their blocks, and refuse what isn't a whole file."""

import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources import Arrow, Parquet, read_records
from penstock.testing import assert_same
from tests.places import in_places
from tests.profiles import fewer
from tests.sources.promises import check_source

pa: Any = pytest.importorskip("pyarrow")
parquet: Any = pytest.importorskip("pyarrow.parquet")
ipc: Any = pytest.importorskip("pyarrow.ipc")

from tests.sources.arrow_values import records_of, tables  # noqa: E402 - it needs pyarrow

Table = Any
TABLE = pa.table(
    {
        "id": pa.array(range(10), pa.int32()),
        "text": [None if number == 3 else "é" * number for number in range(10)],
        "tokens": pa.array([list(range(number)) for number in range(10)], pa.list_(pa.uint16())),
        "a.b": pa.array(["x", "y"] * 5).dictionary_encode(),
    }
)
RECORDS: list[dict[str, Any]] = records_of(TABLE)


def write_arrow(table: Table, path: Path, *, stream: bool = False, compression: str | None = None) -> None:
    """Write an Arrow file with a batch for each three rows."""
    new = ipc.new_stream if stream else ipc.new_file
    options = ipc.IpcWriteOptions(compression=compression, unify_dictionaries=True)
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=3)


def write_parquet(table: Table, path: Path, **options: Any) -> None:
    """Write a Parquet file with a group for each three rows, of which each page has a checksum."""
    parquet.write_table(table, path, row_group_size=3, write_page_checksum=True, **options)


Write = Callable[[Table, Path], None]
write_stream: Write = partial(write_arrow, stream=True)
CASES: dict[str, tuple[type[Parquet | Arrow], Write, dict[str, Any]]] = {
    "groups of Parquet": (Parquet, write_parquet, {}),
    "groups of Parquet, of which one is kept": (Parquet, write_parquet, {"decoded_bytes": 0}),
    "mapped batches": (Arrow, write_arrow, {}),
    "mapped batches of a stream": (Arrow, write_stream, {}),
    "compressed batches, of which one is kept": (Arrow, partial(write_arrow, compression="lz4"), {"decoded_bytes": 0}),
}


@pytest.mark.parametrize("case", CASES)
def test_two_files_keep_the_promises_of_a_source(tmp_path: Path, case: str) -> None:
    """They have ten rows in all."""
    make, write, options = CASES[case]
    write(TABLE.slice(0, 7), tmp_path / "0.data")
    write(TABLE.slice(7), tmp_path / "1.data")
    check_source(lambda: make(f"{tmp_path}/*.data", cache=tmp_path, **options), RECORDS, columns=("text", "tokens"))


@fewer()
@given(tables(), st.data())
def test_arrow_files_have_the_rows_of_any_table(
    tmp_path_factory: pytest.TempPathFactory, table: Table, data: st.DataObject
) -> None:
    """Any table is read from a file or a stream, compressed or not, as pyarrow has it."""
    folder = tmp_path_factory.mktemp("arrow")
    stream: bool = data.draw(st.booleans())
    compression: str | None = data.draw(st.sampled_from([None, "lz4", "zstd"]))
    try:
        table.validate(full=True)  # pyarrow may make an invalid index below a null struct
        write_arrow(table.unify_dictionaries(), folder / "a.arrow", stream=stream, compression=compression)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # pyarrow can't write the type
        return
    source = Arrow(folder / "a.arrow", cache=folder)
    assert_same(read_records(source, np.arange(len(table))[::-1]), records_of(table)[::-1])


@fewer()
@given(tables())
def test_parquet_files_have_the_rows_of_any_table(tmp_path_factory: pytest.TempPathFactory, table: Table) -> None:
    """Any table that Parquet can store is read as pyarrow reads it."""
    folder = tmp_path_factory.mktemp("parquet")
    try:
        table.validate(full=True)  # as above
        write_parquet(table, folder / "a.parquet")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # pyarrow can't write the type
        return
    source = Parquet(folder / "a.parquet", cache=folder)
    stored = parquet.read_table(folder / "a.parquet")
    assert_same(read_records(source, np.arange(len(table))[::-1]), records_of(stored)[::-1])


NUMBERS = pa.table(
    {
        "id": pa.array(range(12), pa.int32()),
        "when": pa.array(range(12), pa.timestamp("ms")),
        "odd": pa.array([number % 2 == 1 for number in range(12)]),
        "box": pa.array([[[number, -number]] for number in range(12)], pa.list_(pa.list_(pa.int16(), 2), 1)),
        "name": pa.array(["ä" * number for number in range(12)]),
        "code": pa.array([bytes([number]) * (number % 3) for number in range(12)], pa.large_binary()),
        "x": pa.array([None if number in {7, 9, 10, 11} else number / 3 for number in range(12)], pa.float32()),
        "note": pa.array([None if number == 3 else str(number) for number in range(12)]),
    }
)


def unexpected(*_: object) -> None:
    """Stand in for a method that must not be called."""
    raise AssertionError


@pytest.mark.parametrize("case", CASES)
def test_columns_are_written_straight_into_batches(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader makes no record of a table of numbers, texts and bytes, and delivers the batches of the records."""
    make, write, options = CASES[case]
    write(NUMBERS.drop_columns(["x", "note"]), tmp_path / "a.data")
    dataset = ps.read(make(tmp_path / "a.data", cache=tmp_path, **options), seed=1).shuffle().batch(4)
    expected = [list(dataset.epoch(epoch)) for epoch in range(2)]
    with ps.Loader(dataset, num_workers=0) as loader:
        assert_same(list(loader), expected[0])
        monkeypatch.setattr(make, "read", unexpected)
        assert_same(list(loader), expected[1])


def test_a_null_among_numbers_is_that_of_a_record(tmp_path: Path) -> None:
    """A batch with nulls alone has None, one with some is refused as the definition does, and others are arrays."""
    write_parquet(NUMBERS.drop_columns("note"), tmp_path / "a.parquet")
    dataset = ps.read(Parquet(tmp_path / "a.parquet", cache=tmp_path)).batch(3)
    with pytest.raises(UsageError) as refused:
        dataset[2]
    for kept in (dataset[:2], dataset[3:], dataset):
        batches: list[Any] = []
        with ps.Loader(kept, num_workers=1, workers="threads") as loader:
            if kept is dataset:
                with pytest.raises(UsageError, match=re.escape(str(refused.value))):
                    batches.extend(loader)
            else:
                batches.extend(loader)
        assert_same(batches, [dataset[number] for number in range(2)] if kept is dataset else list(kept))


@in_places("inline", "processes")
def test_nulls_alone_after_numbers_are_no_failure(
    tmp_path: Path, place: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Once batches are read straight into arrays, one with nulls alone still has None, and no worker fails at it."""
    column = pa.array([*range(2000), *[None] * 50, *range(50)], pa.int64())
    parquet.write_table(pa.table({"x": column}), tmp_path / "a.parquet", row_group_size=50)
    dataset = ps.read(Parquet(tmp_path / "a.parquet", cache=tmp_path)).batch(10)
    with ps.Loader(dataset, **place) as loader:
        assert_same(list(loader), list(dataset))
    assert not caplog.messages


def test_what_read_into_cannot_fill_is_refused(tmp_path: Path) -> None:
    """A null, or an array of another dtype or shape, is an error, also where the group has nulls."""
    write_parquet(NUMBERS, tmp_path / "a.parquet")
    source = Parquet(tmp_path / "a.parquet", ["id", "x", "note"], cache=tmp_path)
    out = {"id": np.zeros(2, np.int32), "x": np.zeros(2, np.float32), "note": [""] * 2}
    source.read_into([8, 0], out)
    columns = {name: [source[key][name] for key in (8, 0)] for name in out}
    assert_same(out, {**columns, "id": np.array(columns["id"]), "x": np.array(columns["x"])})
    cases: list[tuple[list[int], dict[str, Any], str]] = [
        ([0, 7], {}, "read_into needs a value in every row; column 'x' has a null. Use read."),
        ([8, 0], {"x": np.zeros(2)}, r"out\['x'\] must be float32 of shape \(2,\); got float64 of shape \(2,\)"),
        ([8, 0], {"id": np.zeros((2, 1), np.int32)}, r"out\['id'\] must be int32 of shape \(2,\)"),
        ([8, 3], {}, "read_into needs a value in every row; column 'note' has a null. Use read."),
        ([8, 12], {}, r"a key must be in \[0, 12\); got 12"),
    ]
    for keys, change, message in cases:
        with pytest.raises((UsageError, IndexError), match=message):
            source.read_into(keys, out | change)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[str]]]:
    """Return the groups that are decoded from now on, each with its columns."""
    found: list[tuple[int, list[str]]] = []
    read: Callable[..., Any] = parquet.ParquetFile.read_row_group

    def counted(self: Any, group: int, columns: list[str], **options: Any) -> Any:
        found.append((group, columns))
        return read(self, group, columns, **options)

    monkeypatch.setattr(parquet.ParquetFile, "read_row_group", counted)
    return found


def test_a_read_decodes_each_group_once(tmp_path: Path, decoded: list[tuple[int, list[str]]]) -> None:
    """Keys in any order cost one decoding for each group, whatever is kept; kept groups cost none."""
    write_parquet(TABLE, tmp_path / "a.parquet")
    keys = np.array([9, 0, 5, 1, 8, 2, 3, 0])
    source = Parquet(tmp_path / "a.parquet", ["tokens", "id"], cache=tmp_path, decoded_bytes=0)
    order: list[int] = keys.tolist()
    expected = [RECORDS[key] for key in order]
    assert_same(source.read(keys), [{name: record[name] for name in ("tokens", "id")} for record in expected])
    assert sorted(decoded) == [(group, ["tokens", "id"]) for group in range(4)]
    source = Parquet(tmp_path / "a.parquet", ["a.b"], cache=tmp_path)
    decoded.clear()
    for _ in range(2):
        assert_same(source.read(keys), [{"a.b": record["a.b"]} for record in expected])
    assert len(decoded) == 4


def test_threads_decode_a_group_once(tmp_path: Path, decoded: list[tuple[int, list[str]]]) -> None:
    """Threads that need the same group at once wait for the one that decodes it."""
    write_parquet(TABLE, tmp_path / "a.parquet")
    source = Parquet(tmp_path / "a.parquet", cache=tmp_path)
    all_came = threading.Barrier(4)

    def read(_: int) -> Any:
        all_came.wait()
        return source.read(np.arange(10))

    with ThreadPoolExecutor(4) as threads:
        for records in threads.map(read, range(4)):
            assert_same(records, RECORDS)
    assert len(decoded) == 4


def test_wasted_decoding_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A source that decodes many rows for each that it returns logs a warning; one that is read in order doesn't."""
    parquet.write_table(pa.table({"x": np.arange(12_000)}), tmp_path / "a.parquet", row_group_size=50)
    read_in_order = Parquet(tmp_path / "a.parquet", cache=tmp_path, decoded_bytes=0)
    assert [record["x"] for record in read_records(read_in_order, np.arange(12_000))] == list(range(12_000))
    assert not caplog.records
    source = Parquet(tmp_path / "a.parquet", cache=tmp_path, decoded_bytes=0)
    for key in range(0, 24_000, 50):
        source[key % 12_000]
    (logged,) = caplog.messages
    assert "decoded 10,000 records to return 200, since a group is decoded as a whole" in logged


def test_a_forked_child_waits_for_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that is forked while a thread decodes a group decodes it by itself."""
    write_parquet(TABLE, tmp_path / "a.parquet")
    source = Parquet(tmp_path / "a.parquet", cache=tmp_path)
    read: Callable[..., Any] = parquet.ParquetFile.read_row_group
    is_inside, may_go_on = threading.Event(), threading.Event()

    def waiting(*arguments: Any, **options: Any) -> Any:
        is_inside.set()
        may_go_on.wait()
        return read(*arguments, **options)

    monkeypatch.setattr(parquet.ParquetFile, "read_row_group", waiting)
    with ThreadPoolExecutor(1) as threads, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside a thread, which is what is tested
        record = threads.submit(source.__getitem__, 5)
        is_inside.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            may_go_on.set()
            os._exit(0 if source[5]["id"] == 5 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        may_go_on.set()
        assert record.result()["id"] == 5


def test_a_shuffle_by_blocks_decodes_few_groups(tmp_path: Path, decoded: list[tuple[int, list[str]]]) -> None:
    """`shuffle(blocks=True)` reads all rows, and decodes each group once if the open ones fit into the bound."""
    table = pa.table({"x": np.arange(300)})
    write_parquet(table, tmp_path / "a.parquet")
    source = Parquet(tmp_path / "a.parquet", cache=tmp_path, decoded_bytes=10 * 24)
    assert source.blocks.tolist() == list(range(0, 301, 3))
    dataset = ps.read(source, seed=2).shuffle(blocks=True, live=4, rows=4).batch(4)
    order = np.concatenate([batch["x"] for batch in ps.Loader(dataset)])
    assert sorted(order) == list(range(300))
    assert not np.array_equal(order, np.arange(300))
    assert len(decoded) <= 2 * 100


def test_lengths_read_one_column(tmp_path: Path, decoded: list[tuple[int, list[str]]]) -> None:
    """Lengths are `len` of the values, 0 for None, and need no other column."""
    write_parquet(TABLE, tmp_path / "a.parquet")
    write_arrow(TABLE, tmp_path / "a.arrow")
    stored = Parquet(tmp_path / "a.parquet", cache=tmp_path)
    mapped = Arrow(tmp_path / "a.arrow", cache=tmp_path)
    for source in (stored, mapped):
        assert source.lengths("tokens").tolist() == list(range(10))
        assert source.lengths("text").tolist() == [0, 1, 2, 0, *range(4, 10)]
    assert {name for _, columns in decoded for name in columns} == {"tokens", "text"}
    with pytest.raises(UsageError, match="column 'id' has the type int32"):
        mapped.lengths("id")
    with pytest.raises(UsageError, match=r"no column 'ids' in Arrow\(10 rows in 1 file\); .* are 'id', 'text'"):
        mapped.lengths("ids")


def test_processes_read_files_and_resume(tmp_path: Path) -> None:
    """A loader with a process delivers the batches of one thread, from a state and in the next epoch."""
    table = NUMBERS.drop_columns(["x", "note"])
    write_parquet(table, tmp_path / "a.parquet")
    write_arrow(table, tmp_path / "a.arrow")
    sources = [Parquet(tmp_path / "a.parquet", cache=tmp_path), Arrow(tmp_path / "a.arrow", cache=tmp_path)]
    parts = [ps.read(source, seed=seed).shuffle(blocks=True, live=2) for seed, source in enumerate(sources)]
    for dataset in (ps.zip(*parts).batch(2), parts[0].batch(4)):
        first = ps.Loader(dataset)
        next(iter(first))
        with ps.Loader(dataset, workers="processes", num_workers=1) as loader:
            loader.load_state_dict(first.state_dict())
            assert_same(list(loader), list(dataset)[1:])
            assert_same(list(loader), list(dataset.epoch(1)))


def test_messages_name_the_block(tmp_path: Path) -> None:
    """A key's description has row, block and file; the fingerprint changes with the columns."""
    write_parquet(TABLE, tmp_path / "a.parquet")
    write_arrow(TABLE, tmp_path / "a.arrow", stream=True)
    source = Parquet([tmp_path / "a.parquet"] * 2, cache=tmp_path)
    assert source.describe_key(14) == "row 1 of group 1 of file 'a.parquet'"
    assert Arrow(tmp_path / "a.arrow", cache=tmp_path).describe_key(9) == "row 9 of batch 0 of file 'a.arrow'"
    assert source.fingerprint() != Parquet([tmp_path / "a.parquet"] * 2, ["id"], cache=tmp_path).fingerprint()


FORMATS: dict[str, tuple[type[Parquet | Arrow], Write]] = {
    "parquet": (Parquet, write_parquet),
    "arrow": (Arrow, write_arrow),
    "stream": (Arrow, write_stream),
}


def test_a_schema_without_a_length_before_it_is_read(tmp_path: Path) -> None:
    """Files of polars are such: readers find the schema and the batches by the end of the file."""
    write_arrow(TABLE, tmp_path / "a.arrow")
    content = (tmp_path / "a.arrow").read_bytes()
    end = 16 + int.from_bytes(content[12:16], "little")
    (tmp_path / "a.arrow").write_bytes(content[:8] + content[16:end] + bytes(8) + content[end:])
    assert_same(Arrow(tmp_path / "a.arrow", cache=tmp_path).read(range(10)), RECORDS)


@pytest.mark.parametrize("name", FORMATS)
def test_columns_must_be_those_of_the_first_file(tmp_path: Path, name: str) -> None:
    """A column that is missing, new or of another type is named with both files, once a file is indexed or not."""
    make, write = FORMATS[name]
    first, other = tmp_path / "a", tmp_path / "b"
    write(TABLE, first)
    for table, message in (
        (TABLE.drop_columns("id"), "column 'id' is int32 in '.*a' and missing in '.*b'"),
        (TABLE.append_column("new", TABLE["id"]), "column 'new' is missing in '.*a' and int32 in '.*b'"),
        (TABLE.set_column(0, "id", TABLE["text"]), "column 'id' is int32 in '.*a' and string in '.*b'"),
    ):
        write(table, other)
        make([other, other], cache=tmp_path)  # it is in the cache now
        with pytest.raises(UsageError, match=message):
            make([first, other], cache=tmp_path)
    source = make([first, other], ["text"], cache=tmp_path)
    assert source[13] == {"text": None}
    with pytest.raises(UsageError, match=r"no column 'texts' in '.*a'; its columns are 'id', 'text', 'tokens', 'a.b'"):
        make(first, ["texts"], cache=tmp_path)


@pytest.mark.skipif(not hasattr(pa, "json_"), reason="this pyarrow has no type of JSON")
def test_logical_types_of_other_programs_are_read(tmp_path: Path) -> None:
    """UUIDs and JSON of a Parquet file without Arrow's schema, as other programs write it, are bytes and texts."""
    identifiers = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16, b"1" * 16], pa.binary(16)))
    documents = pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", '{"a": 1}']))
    for number in range(2):
        write_parquet(
            pa.table({"id": identifiers, "document": documents}),
            tmp_path / f"{number}.parquet",
            store_schema=number > 0,
        )
    source = Parquet(tmp_path / "*.parquet")
    assert source.read([1, 3]) == [{"id": b"1" * 16, "document": '{"a": 1}'}] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes on Linux alone")
def test_a_name_that_is_no_text_is_read(tmp_path: Path) -> None:
    """A file's name may be any bytes."""
    path = tmp_path / os.fsdecode(b"\xff")
    for source, write in ((Parquet, write_parquet), (Arrow, write_arrow)):
        write(TABLE, tmp_path / "a")
        (tmp_path / "a").replace(path)
        assert_same(source(path)[9], RECORDS[9])


def test_a_stream_without_an_end_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A stream that ends between two messages looks like a whole one, so a warning names the file."""
    write_arrow(TABLE, tmp_path / "a.arrow", stream=True)
    Arrow(tmp_path / "a.arrow", cache=tmp_path)
    assert not caplog.records
    content = (tmp_path / "a.arrow").read_bytes()
    (tmp_path / "a.arrow").write_bytes(content[:-8])
    assert len(Arrow(tmp_path / "a.arrow", cache=tmp_path)) == 10
    assert "a.arrow' has no end mark" in caplog.text


def test_two_streams_in_a_file_are_refused(tmp_path: Path) -> None:
    """A reader of streams stops at the end of the first one, so the rows of the second would be lost."""
    write_stream(TABLE, tmp_path / "a.arrow")
    content = (tmp_path / "a.arrow").read_bytes()
    (tmp_path / "a.arrow").write_bytes(content + content)
    with pytest.raises(CorruptRecordError, match=rf"a.arrow' has {len(content)} bytes after it, such as"):
        Arrow(tmp_path / "a.arrow", cache=tmp_path)


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_no_whole_file_is_refused(tmp_path: Path, name: str) -> None:
    """An empty, truncated or foreign file is named at once, and a changed or deleted one at the next read."""
    make, write = FORMATS[name]
    path, good = tmp_path / "a", tmp_path / "good"
    write(TABLE, good)
    content = good.read_bytes()
    for damaged in (b"", b"some text, and no table", content[: len(content) // 2], content[:20]):
        path.write_bytes(damaged)
        for paths in (path, [good, path]):
            with pytest.raises(CorruptRecordError, match=r"'.*/a' must be a whole file of .*: restore it"):
                make(paths, cache=tmp_path)
    write(TABLE, path)
    source = make(path, cache=tmp_path, decoded_bytes=0)
    write(TABLE.slice(1), path)
    with pytest.raises(SourceError, match=r"a' changed since it was indexed"):
        source[9]
    path.unlink()
    with pytest.raises(SourceError, match="No such file"):
        source[9]


def test_a_footer_with_a_damaged_name_is_refused(tmp_path: Path) -> None:
    """A name that isn't UTF-8 is a CorruptRecordError with the file, as any other damage."""
    write_parquet(TABLE.select(["id"]).rename_columns(["number"]), tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(content.replace(b"number", b"numb\xffr"))
    with pytest.raises(CorruptRecordError, match=r"a.parquet' must be a whole file of Parquet: .*utf-8.*restore it"):
        Parquet(tmp_path / "a.parquet", cache=tmp_path)


def test_feather_of_version_1_is_refused(tmp_path: Path) -> None:
    """Its files have the suffix of version 2, and are no Arrow IPC; the error says how to write them again."""
    (tmp_path / "a.feather").write_bytes(b"FEA1" + bytes(28))
    with pytest.raises(UsageError, match=r"a.feather' has version 1. Write it again, as in feather.write_feather"):
        Arrow(tmp_path / "a.feather", cache=tmp_path)


MAPS = [[("k", 1)]] * 8
TRUSTED = {
    "map": pa.array(MAPS, pa.map_(pa.string(), pa.int32())),
    "maps in lists": pa.array([[row] for row in MAPS], pa.list_(pa.map_(pa.string(), pa.int32()))),
    "union": pa.UnionArray.from_dense(
        pa.array([0] * 8, pa.int8()), pa.array(range(8), pa.int32()), [pa.array(list("abcdefgh"))]
    ),
    "two fields of a name": pa.StructArray.from_arrays([pa.array([["a"]] * 8)] * 2, names=["x", "x"]),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array(range(1, 9), pa.int32()), pa.array(range(8))),
}


def test_damaged_offsets_of_values_that_pyarrow_reads_are_an_error(tmp_path: Path) -> None:
    """With a damaged offset of these types, pyarrow would abort the process."""
    for values in TRUSTED.values():
        write_arrow(pa.table({"x": values}), tmp_path / "a.arrow")
        content = bytearray((tmp_path / "a.arrow").read_bytes())
        content[content.index(np.arange(1, 4, dtype=np.int32).tobytes()) + 7] = 0xFF  # the 2 is negative
        (tmp_path / "a.arrow").write_bytes(content)
        source = Arrow(tmp_path / "a.arrow", cache=tmp_path)
        with pytest.raises(CorruptRecordError, match=r"a.arrow' must be a whole file of Arrow IPC: .*restore it"):
            read_records(source, np.arange(8))


def test_lengths_of_damaged_texts_are_an_error(tmp_path: Path) -> None:
    """An offset outside of the text is refused; pyarrow would read there."""
    for kind, dtype in (("string", np.int32), ("large_string", np.int64)):
        write_arrow(pa.table({"x": pa.array(["a"] * 8, kind)}), tmp_path / "a.arrow")
        content = bytearray((tmp_path / "a.arrow").read_bytes())
        content[content.index(np.arange(1, 4, dtype=dtype).tobytes()) + 7] = 0x7F
        (tmp_path / "a.arrow").write_bytes(content)
        source = Arrow(tmp_path / "a.arrow", cache=tmp_path)
        with pytest.raises(CorruptRecordError, match=r"'x' isn't: .*[Oo]ffset.* is damaged: write it again"):
            source.lengths("x")


def test_a_damaged_page_is_found_by_its_checksum(tmp_path: Path) -> None:
    """A flipped bit in a page of Parquet is an error that names the file and the group; other groups are read."""
    write_parquet(TABLE.select(["id"]), tmp_path / "a.parquet", compression="none", use_dictionary=False)
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[content.index(np.int32(4).tobytes() + np.int32(5).tobytes())] ^= 1
    (tmp_path / "a.parquet").write_bytes(content)
    source = Parquet(tmp_path / "a.parquet", cache=tmp_path)
    assert source[0] == {"id": 0}
    with pytest.raises(CorruptRecordError, match=r"a.parquet' must be a whole file of Parquet: .*CRC") as raised:
        read_records(source, np.array([0, 4]))
    assert "row 1 of group 1 of file 'a.parquet'" in raised.value.__notes__[0]


@pytest.mark.parametrize("plain", [False, True])
def test_an_encrypted_file_is_refused(tmp_path: Path, *, plain: bool) -> None:
    """Encryption is named as the reason, of the whole file or of a column; other columns can be read."""
    encryption: Any = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):  # type: ignore[misc]  # pyarrow has no types
        def wrap_key(self, key: bytes, _: str) -> str:
            return key.hex()

    def made(_: object) -> Keys:
        return Keys()

    factory = encryption.CryptoFactory(made)
    chosen = encryption.EncryptionConfiguration("footer", column_keys={"column": ["text"]}, plaintext_footer=plain)
    options = factory.file_encryption_properties(encryption.KmsConnectionConfig(), chosen)
    path = tmp_path / "a.parquet"
    table = pa.table({"text": ["secret"], "id": [1]})
    parquet.write_table(table, path, encryption_properties=options)
    with pytest.raises(UsageError, match=r"a.parquet' is, or a column .*Write it without encryption"):
        Parquet(path, cache=tmp_path)[0]
    if plain:
        assert Parquet(path, ["id"], cache=tmp_path)[0] == {"id": 1}
