"""Datasets of other libraries are sources unchanged; each test is skipped if its library isn't installed."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import UsageError
from penstock.sources import Arrays, Source, as_source, can_read_into, read_records, source_fingerprint, source_length
from penstock.testing import SourceTests


def _hugging_face() -> Source:
    datasets: Any = pytest.importorskip("datasets")
    pytest.importorskip("tqdm").tqdm.monitor_interval = 0  # else it starts a thread that stays
    columns = {"text": ["a", "b", "c", "d"], "label": [3, 1, 0, 2]}
    return as_source(datasets.Dataset.from_dict(columns))


class TestHuggingFace(SourceTests):
    """A Hugging Face `Dataset`, which has `__getitems__`."""

    expected = [{"text": text, "label": label} for text, label in zip("abcd", [3, 1, 0, 2], strict=True)]  # noqa: RUF012 - the suite reads it

    def make_source(self) -> Source:
        """Return a dataset in memory."""
        return _hugging_face()


def test_a_dict_of_hugging_face_splits_is_refused_without_reading_it() -> None:
    """`load_dataset` without a split returns a dict of datasets: the message says to read one of them."""
    datasets: Any = pytest.importorskip("datasets")
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"x": [1]})})
    with pytest.raises(UsageError, match=r"arrays\['train'\] must be an array; got a Dataset.* a dict of datasets"):
        as_source(splits)


def _write_array_record(folder: Path) -> Path:
    module: Any = pytest.importorskip("array_record.python.array_record_module")
    path = folder / "a.array_record"
    writer = module.ArrayRecordWriter(str(path), "group_size:1")
    for number in range(5):
        writer.write(f"record {number}".encode())
    writer.close()
    return path


class TestArrayRecord(SourceTests):
    """An ArrayRecord data source, which has `__getitems__` and leaves negative keys to the caller."""

    expected = [f"record {number}".encode() for number in range(5)]  # noqa: RUF012 - the suite reads it
    folder: Path

    @pytest.fixture(autouse=True)
    def _prepare(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        _write_array_record(tmp_path)

    def test_a_key_past_the_end_raises_index_error(self) -> None:
        """ArrayRecord raises a ValueError instead, which datasets tolerate, since they request no keys past the end."""
        with pytest.raises(ValueError, match="key should be in"):
            self.make_source()[5]

    def test_a_negative_key_counts_from_the_end_or_raises_index_error(self) -> None:
        """The same holds for negative keys."""
        with pytest.raises(ValueError, match="key should be in"):
            self.make_source()[-1]

    def make_source(self) -> Source:
        """Return the data source over one file."""
        data_source: Any = pytest.importorskip("array_record.python.array_record_data_source")
        return as_source(data_source.ArrayRecordDataSource([str(self.folder / "a.array_record")]))


class TestTorch(SourceTests):
    """A torch map-style dataset of tuples of tensors, compared as NumPy arrays."""

    expected = [(0, 0.0), (1, 0.5), (2, 1.0)]  # noqa: RUF012 - the suite reads it

    def make_source(self) -> Source:
        """Return a dataset."""
        data: Any = pytest.importorskip("torch.utils.data")
        torch: Any = pytest.importorskip("torch")
        return as_source(data.TensorDataset(torch.arange(3), torch.arange(3) / 2))

    def test_records_are_independent_of_the_source(self) -> None:
        """They aren't: each is a view of the tensors, as the records of a list of arrays are."""
        with pytest.raises(AssertionError, match="must equal"):
            super().test_records_are_independent_of_the_source()

    def test_records_of_one_read_share_no_arrays(self) -> None:
        """They do, for the same reason."""
        with pytest.raises(AssertionError, match="must equal"):
            super().test_records_of_one_read_share_no_arrays()


def test_torch_subsets_are_read_at_once() -> None:
    """`Subset` has `__getitems__`, which is used; an iterable dataset is refused."""
    data: Any = pytest.importorskip("torch.utils.data")
    asked: list[list[int]] = []

    class Squares:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, key: int) -> int:
            raise AssertionError

        def __getitems__(self, keys: list[int]) -> list[int]:
            asked.append(keys)
            return [key * key for key in keys]

    source = as_source(data.Subset(Squares(), [9, 7, 5]))
    assert source_length(source) == 3
    assert read_records(source, np.array([2, 0, 2])) == [25, 81, 25]
    assert asked == [[5, 9, 5]]

    endless = type("Endless", (data.IterableDataset,), {"__iter__": iter})()
    with pytest.raises(UsageError, match="must have __len__ and __getitem__"):
        as_source(endless)


def test_torch_tensors_in_a_dict_become_arrays() -> None:
    """Tensors share their memory with the arrays that they become."""
    torch: Any = pytest.importorskip("torch")
    tensor = torch.zeros(3, 2)
    source = as_source({"x": tensor})
    tensor[1] = 7
    assert source[1]["x"].tolist() == [7, 7]
    assert can_read_into(source)


def test_a_memory_map_is_read_in_another_process_by_its_name(tmp_path: Path) -> None:
    """`np.memmap` given as a source is never sent as a copy."""
    mapped = np.memmap(tmp_path / "a.bin", np.float32, "w+", shape=(1000, 64))
    mapped[:] = np.arange(64_000).reshape(1000, 64)
    source = as_source(mapped)
    assert isinstance(source, Arrays)
    sent = pickle.dumps(source)
    assert len(sent) < 2_000 < os.stat(tmp_path / "a.bin").st_size
    received: Arrays = pickle.loads(sent)
    mapped[7, 0] = -1
    assert received[7][0] == -1
    assert source_fingerprint(received) == source_fingerprint(source)
