"""Datasets of other libraries are sources unchanged; each test is skipped if its library isn't installed."""

from typing import Any

import numpy as np
import pytest

from penstock.errors import UsageError
from penstock.sources import Source, as_source, can_read_into, read_records, source_length
from penstock.testing import SourceTests


def test_a_dict_of_hugging_face_splits_is_refused_without_reading_it() -> None:
    """`load_dataset` without a split returns a dict of datasets: the message says to read one of them."""
    datasets: Any = pytest.importorskip("datasets")
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"x": [1]})})
    with pytest.raises(UsageError, match=r"arrays\['train'\] must be an array; got a Dataset.* a dict of datasets"):
        as_source(splits)


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
