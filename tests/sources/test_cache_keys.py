"""A cache on disk and the index of a filter never have the elements of another dataset."""

import contextlib
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock as ps
from penstock.batching import Pad
from penstock.errors import GraphError
from penstock.sampling import FixedOrder
from tests.dataset.functions import is_odd

h5py: Any = pytest.importorskip("h5py")
lmdb: Any = pytest.importorskip("lmdb")
pyarrow: Any = pytest.importorskip("pyarrow")
parquet: Any = pytest.importorskip("pyarrow.parquet")
torch: Any = pytest.importorskip("torch")
zarr: Any = pytest.importorskip("zarr")
array_record: Any = pytest.importorskip("array_record.python.array_record_module")


def shown(element: object) -> str:
    """Return a text that shows the element."""
    return repr(element)


def cached(folder: Path, source: Any) -> list[str]:
    """Return the elements of a source, and keep them in a cache that other datasets use, too."""
    return list(ps.read(source).map(shown).cache(folder / "cache"))


def plain(source: Any) -> list[str]:
    """Return the elements of a source."""
    return list(ps.read(source).map(shown))


def write_table(path: Path, first: int) -> None:
    """Write a table with one number."""
    parquet.write_table(pyarrow.table({"x": [first]}), path)


def write_images(path: Path, first: int) -> None:
    """Write a folder with one image."""
    (path / "cat").mkdir(parents=True)
    (path / "cat" / "0.png").write_bytes(bytes([first]))


def write_datasets(path: Path, first: int) -> None:
    """Write a file of HDF5 with one number."""
    with h5py.File(path, "w") as file:
        file["x"] = np.array([first])


def write_values(path: Path, first: int) -> None:
    """Write a database of LMDB with one value."""
    with lmdb.open(str(path), subdir=False, lock=False) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"key", bytes([first]))


def write_rows(path: Path, first: int) -> None:
    """Write a database of SQLite with one row."""
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE numbers (x INTEGER)")
    database.execute("INSERT INTO numbers VALUES (?)", (first,))
    database.commit()
    database.close()


def write_records(path: Path, first: int) -> None:
    """Write a file of ArrayRecord with one record."""
    writer = array_record.ArrayRecordWriter(str(path), "group_size:1")
    writer.write(bytes([first]))
    writer.close()


KINDS: dict[str, tuple[Callable[[Path, int], object], Callable[[Path], Any]]] = {
    "a.npy": (lambda path, first: np.save(path, np.array([first])), ps.sources.Arrays.open),
    "a.jsonl": (lambda path, first: path.write_text(f"{first}\n"), ps.sources.JsonLines),
    "a.bin": (
        lambda path, first: path.write_bytes(bytes([first] * 4)),
        lambda path: ps.sources.Tokens(path, 4, dtype="u1"),
    ),
    "images": (write_images, ps.sources.ImageFolder),
    "a.parquet": (write_table, ps.sources.Parquet),
    "a.h5": (write_datasets, ps.sources.HDF5),
    "a.zarr": (lambda path, first: zarr.create_array(path, data=np.array([first])), ps.sources.Zarr),
    "a.lmdb": (write_values, ps.sources.Lmdb),
    "a.db": (write_rows, lambda path: ps.sources.Sqlite(path, "numbers")),
    "a.array_record": (write_records, ps.sources.ArrayRecord),
}


@pytest.mark.usefixtures("started_zarr")
def test_files_of_equal_names_and_sizes_are_distinguished(tmp_path: Path) -> None:
    """A cache has other elements for a file in another folder, and for one that was written again."""
    for name, (write, opened) in KINDS.items():
        for seconds, folder in enumerate(("train", "val", "val")):
            path = tmp_path / folder / name
            shutil.rmtree(path.parent, ignore_errors=True)
            path.parent.mkdir()
            write(path, 10 + seconds)
            for file in path.parent.rglob("*"):
                os.utime(file, (seconds, seconds))  # the clock of the file system may not move between two writes
            source = opened(path)
            assert cached(tmp_path, source) == plain(source), name
            del source  # LMDB opens a file once


class Images:
    """A source without a fingerprint."""

    def __init__(self, size: object) -> None:
        self.size = size
        self.lock = threading.Lock()

    def __len__(self, *_: object) -> int:
        return 1

    def __getitem__(self, key: int) -> str:
        return f"{key} of {self.size!r}"


class Requests:
    """An async source without a fingerprint."""

    def __init__(self, host: int) -> None:
        self.host = host

    def __len__(self) -> int:
        return 1

    async def read(self, keys: Any) -> list[int]:
        """Return one record for each key."""
        return [self.host for _ in keys]


class Lines(ps.sources.JsonLines):
    """A source of a file with an attribute of its own."""

    def __init__(self, path: str, factor: int) -> None:
        super().__init__(path)
        self._factor = factor

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) * self._factor

    def read(self, keys: Any) -> list[Any]:
        """Return the record of each key."""
        return [self[key] for key in keys]


def changed(number: int) -> list[int]:
    """Return a list that differs in one value, which a sample would miss."""
    return [number if place == 1 else 0 for place in range(600)]


def hugging_face(number: int) -> Any:
    """Return a table of Hugging Face, whose import takes too long for processes that only collect this file."""
    return pytest.importorskip("datasets").Dataset.from_dict({"x": [number]})


OBJECTS: list[Callable[[int], Any]] = [
    Images,
    lambda number: Images({"a": [np.full(3, number)]}),
    lambda number: Images(torch.full((2,), float(number), requires_grad=True)),
    lambda number: Images(torch.full((2,), float(number), dtype=torch.bfloat16)),
    lambda number: Images(range(number)),
    Requests,
    changed,
    lambda number: [{"x": value} for value in changed(number)],
    lambda number: np.array([[str(number)]], object),
    lambda number: np.asfortranarray(np.array(changed(number) * 300).reshape(2, -1)),  # larger than 1 MB
    lambda number: pyarrow.table({"x": changed(number)}),
    hugging_face,
    lambda number: torch.utils.data.TensorDataset(torch.full((1,), number)),
]


@pytest.mark.parametrize("make", OBJECTS)
def test_sources_of_equal_types_and_lengths_are_distinguished(tmp_path: Path, make: Callable[[int], Any]) -> None:
    """A cache has other elements for a source that holds other values, and the same ones for an equal source."""
    found: list[list[str]] = []
    for number in (1, 2, 1):
        source = make(number)
        found.append(cached(tmp_path, source))
        assert found[-1] == plain(source)
        del source  # an async one has a thread
    assert found[0] != found[1]
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_subclass_of_a_source_of_files_is_distinguished(tmp_path: Path) -> None:
    """The attributes that a subclass adds to a source of files count."""
    (tmp_path / "a.jsonl").write_text("3\n")
    for factor in (1, 2):
        assert cached(tmp_path, Lines(f"{tmp_path}/a.jsonl", factor)) == [str(3 * factor)]


def test_an_edited_source_is_distinguished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of a source's class counts."""
    assert cached(tmp_path, Images(1)) == plain(Images(1))
    monkeypatch.setattr(Images, "__getitem__", Images.__len__)
    assert cached(tmp_path, Images(1)) == plain(Images(1)) == ["1"]


def test_a_version_keeps_the_names_of_functions(tmp_path: Path) -> None:
    """Two datasets of one version share no elements if their functions have other names."""
    for function in (shown, is_odd):
        dataset = ps.range(2).map(function)
        assert list(dataset.cache(tmp_path / "cache", version="1")) == list(dataset)


def test_a_source_that_hides_its_content_is_refused(tmp_path: Path) -> None:
    """A source that holds an open file needs a version, which replaces what isn't visible."""
    with open(os.devnull) as file:
        dataset = ps.read(Images(file)).map(shown)
        with pytest.raises(GraphError, match=r"a cache on disk must distinguish.* \(TextIOWrapper\).*fingerprint\(\)"):
            dataset.cache(tmp_path / "cache")
        with pytest.raises(GraphError, match=r"filter\(index=…\) must distinguish.* leave index= out"):
            dataset.filter(bool, index=tmp_path / "a.index")
        assert list(dataset.cache(tmp_path / "cache", version="1")) == list(dataset.cache()) == list(dataset)


def test_an_index_of_a_file_that_was_written_again_is_replaced(tmp_path: Path) -> None:
    """The index of a filter isn't that of the file that was there before."""
    np.save(tmp_path / "a.npy", np.arange(4))
    os.utime(tmp_path / "a.npy", (1, 1))
    assert list(ps.read(tmp_path / "a.npy").filter(is_odd, index=tmp_path / "a.index")) == [1, 3]
    np.save(tmp_path / "a.npy", np.arange(1, 5))
    with pytest.warns(UserWarning, match="another source"):
        assert list(ps.read(tmp_path / "a.npy").filter(is_odd, index=tmp_path / "a.index")) == [1, 3]


@dataclass(frozen=True, eq=False)
class Listed:
    """A sampler of a user's: the order in which it lists the elements."""

    keys: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.keys)

    def __call__(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the epoch and the element listed for the position."""
        return epoch, int(self.keys[position])


def test_an_order_of_the_users_counts_as_a_whole(tmp_path: Path) -> None:
    """A cache and an index are those of a sampler that differs at two of a thousand positions."""
    order = np.arange(1000)
    changed_order = order.copy()
    changed_order[[5, 6]] = order[[6, 5]]
    for number, keys in enumerate((order, changed_order)):
        dataset = ps.range(1000).reindex(FixedOrder(Listed(keys)))
        assert list(dataset.cache(tmp_path / "cache")[4:8]) == list(dataset[4:8])
        assert list(dataset.cache(tmp_path / "cache", version="1")[4:8]) == list(dataset[4:8])
        with pytest.warns(UserWarning, match="another") if number else contextlib.nullcontext():
            indexed = dataset.filter(is_odd, index=tmp_path / "a.index")
        assert list(indexed[:4]) == list(filter(is_odd, dataset[:8]))


EPISODES = [np.full(length, length) for length in (1, 4, 2, 3)]
LENGTHS = [1, 4, 2, 3]
ARGUMENTS: dict[str, Callable[[ps.Dataset[Any], int], ps.Dataset[Any]]] = {
    "windows": lambda dataset, number: dataset.map(in_dict).windows(2, lengths=LENGTHS, mask=f"m{number}"),
    "padded_batch": lambda dataset, number: dataset.padded_batch(2, fill=number),
    "pack": lambda dataset, number: dataset.pack(5, lengths=LENGTHS, fill=number),
    "bucket": lambda dataset, number: dataset.bucket(len, [2, 4], rows=2, lengths=LENGTHS, pad=Pad(fill=number)),
    "full buckets": lambda dataset, number: dataset.bucket(
        len, [3, 4], rows=2, lengths=LENGTHS, remainder="drop", pad=Pad(fill=number)
    ),
}


def in_dict(frames: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return an episode as a dict."""
    return {"frames": frames}


@pytest.mark.parametrize("version", [None, "1"])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_verbs_are_distinguished(tmp_path: Path, name: str, version: str | None) -> None:
    """A cache has other elements where a verb below has another fill or mask, also with a version."""
    for number in (1, 2):
        dataset = ARGUMENTS[name](ps.read(EPISODES), number)
        kept = dataset.cache(tmp_path / "cache", version=version)
        assert list(map(shown, kept)) == list(map(shown, dataset))
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_the_same_argument_of_another_step_is_distinguished(tmp_path: Path) -> None:
    """Two parts of which the first has a mask aren't two parts of which the second has it."""
    plain = ps.read(EPISODES).map(in_dict)
    masked, unmasked = (plain.windows(2, lengths=LENGTHS, partial="pad", mask=mask) for mask in ("m", None))
    for dataset in (ps.zip(masked, unmasked), ps.zip(unmasked, masked)):
        assert repr(dataset.cache(tmp_path / "cache")[0]) == repr(dataset[0])
