"""Lance: rows of versions that the library wrote, and errors that name dataset, version and column."""

import doctest
import importlib
import os
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources import Lance, Source, describe_key
from penstock.testing import BlockSourceTests, assert_same

lance: Any = pytest.importorskip("lance")
pyarrow: Any = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.usefixtures("started_lance")

TEXTS = ["é" * (number % 4) for number in range(3000)]
TOKENS = [np.arange(number % 5, dtype=np.int32) for number in range(3000)]
RECORDS: list[Any] = [{"id": np.int64(key), "text": TEXTS[key], "tokens": TOKENS[key]} for key in range(3000)]
KEPT = [record for record in RECORDS if record["id"] % 7]


def write(path: Path) -> Path:
    """Write a dataset of two versions, the second without every seventh row, and return its path."""
    tokens = pyarrow.array(TOKENS, pyarrow.list_(pyarrow.int32()))
    table = pyarrow.table({"id": np.arange(3000), "text": TEXTS, "tokens": tokens})
    lance.write_dataset(table, str(path), max_rows_per_file=1300)
    lance.dataset(str(path)).delete("id % 7 = 0")
    return path


@pytest.fixture(scope="session")
def started_lance(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Start the threads that Lance keeps to the end of the program."""
    Lance(write(tmp_path_factory.mktemp("lance") / "a.lance")).read([0])


class TestLance(BlockSourceTests):
    """The latest version."""

    version: int | None = None
    expected: Sequence[Any] = KEPT
    path: Path

    @pytest.fixture(autouse=True)
    def _prepare(self, tmp_path: Path) -> None:
        self.path = write(tmp_path / "a.lance")

    def make_source(self) -> Source:
        """Return all rows."""
        return Lance(self.path, version=self.version)

    def test_no_descriptor_is_left(self) -> None:
        """The descriptors of sources that were dropped don't add up; Lance closes them in threads of its own."""
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            source: Any = pickle.loads(pickle.dumps(self.make_source()))
            assert_same(source.read([0]), [self.expected[0]])
        assert len(os.listdir("/proc/self/fd")) < before + 20


class TestLanceOfAVersion(TestLance):
    """The first version, without deleted rows."""

    version = 1
    expected = RECORDS


def test_columns_a_path_and_processes(tmp_path: Path) -> None:
    """Columns have the given order, `ps.read` takes the folder, and processes read the version that was the latest."""
    path = write(tmp_path / "a.lance")
    source = Lance(path, columns=["tokens", "id"])
    dataset, sent = ps.read(path, seed=3).shuffle(blocks=True), pickle.dumps(source)
    expected = list(dataset)
    lance.dataset(str(path)).delete("id > 10")
    for copy in (source, pickle.loads(sent)):
        assert_same(copy.read([5, 2, 5]), [{"tokens": KEPT[key]["tokens"], "id": KEPT[key]["id"]} for key in (5, 2, 5)])
    assert describe_key(source, 5) == "key 5 (row 5 of version 2 of 'a.lance')"
    assert source.lengths("tokens").tolist() == [len(record["tokens"]) for record in KEPT]
    assert source.fingerprint() != Lance(path, columns=["tokens", "id"]).fingerprint()
    with ps.Loader(dataset.batch(50, merge=list), num_workers=2, workers="processes") as loader:
        assert_same([record for batch in loader for record in batch], expected)


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The class's example prints what it says."""
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(importlib.import_module("penstock.sources._lance")) == (0, 3)


BAD: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: Lance(path.parent), "reads the folder of a dataset; '.*' can't be found"),
    (lambda path: Lance(path, version=9), "a.lance', version 9, can't be found"),
    (lambda path: Lance(path, version=-1), "version must be at least 1; got -1"),
    (lambda path: Lance(path, columns=["id", "id"]), "got 'id' twice"),
    (lambda path: Lance(path, columns=[]), "at least one column"),
    (lambda path: Lance(path, columns=["id", "x"]), "no column 'x' in '.*a.lance'; its columns are 'id', 'text'"),
    (lambda path: Lance(path).lengths("x"), "no column 'x' in '.*a.lance'"),
    (lambda path: Lance(path).lengths("id"), "id"),
]


def test_wrong_arguments(tmp_path: Path) -> None:
    """Each error has the dataset and what it has."""
    path = write(tmp_path / "a.lance")
    for call, reason in BAD:
        with pytest.raises(UsageError, match=reason):
            call(path)


@pytest.mark.parametrize("name", ["", "`q`"])
def test_a_name_that_lance_cannot_look_up_is_refused(tmp_path: Path, name: str) -> None:
    """Lance would panic, with an exception that isn't an Exception; the other columns are read."""
    lance.write_dataset(pyarrow.table({name: [1], "x": [2]}), str(tmp_path / "a.lance"))
    with pytest.raises(UsageError, match=rf"'{name}' in '.*a.lance' is empty or has a backtick"):
        Lance(tmp_path / "a.lance")
    assert Lance(tmp_path / "a.lance", columns=["x"])[0] == {"x": 2}


def test_blobs_are_refused(tmp_path: Path) -> None:
    """Lance returns their places in its files, in place of their bytes; the other columns are read."""
    blob = pyarrow.field("image", pyarrow.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pyarrow.schema([blob, pyarrow.field("in", pyarrow.struct([blob])), pyarrow.field("x", pyarrow.int64())])
    table = pyarrow.table({"image": [b"a"], "in": [{"image": b"a"}], "x": [1]}, schema=schema)
    lance.write_dataset(table, str(tmp_path / "a.lance"))
    for name in ("image", "in"):
        with pytest.raises(UsageError, match=f"must not be blobs, .*; '{name}' in '.*a.lance' is one, or has one"):
            Lance(tmp_path / "a.lance", columns=["x", name])
    assert Lance(tmp_path / "a.lance", columns=["x"])[0] == {"x": 1}


def test_another_dataset_at_the_path_is_refused(tmp_path: Path) -> None:
    """A copy in another process opens the dataset again, and checks that it has the files that the source found."""
    sent = pickle.dumps(Lance(write(tmp_path / "a.lance")))
    assert_same(pickle.loads(sent).read([7]), [KEPT[7]])
    shutil.rmtree(tmp_path / "a.lance")
    copy = pickle.loads(sent)
    write(tmp_path / "a.lance")
    with pytest.raises(SourceError, match=r"^version 2 of the Lance dataset '.*a.lance' must have the files"):
        copy.read([7])


def test_a_truncated_file(tmp_path: Path) -> None:
    """Reading its rows is an error with the dataset; rows of other fragments are read."""
    path = write(tmp_path / "a.lance")
    source = Lance(path, version=1)
    first = source.read(range(1300, 3000, 400))
    for file in path.glob("data/*"):
        if lance.dataset(str(path), version=1).get_fragments()[0].data_files()[0].path == file.name:
            file.write_bytes(file.read_bytes()[:100])
    source = pickle.loads(pickle.dumps(source))
    assert_same(source.read(range(1300, 3000, 400)), first)
    with pytest.raises(CorruptRecordError, match=r"a.lance', version 1, can't be read"):
        source.read([0])
