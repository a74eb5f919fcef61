"""Objects that are sources, and the remedy for objects that aren't."""

from collections import UserDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from penstock.errors import SourceError, UsageError
from penstock.sources import (
    Arrays,
    Range,
    Source,
    as_source,
    can_read_into,
    check_length,
    describe_key,
    read_records,
    source_fingerprint,
    source_length,
)
from penstock.testing import SourceTests


class Plain:
    """A source with only the required methods."""

    def __init__(self, length: int = 3) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> int:
        return key * 10


def test_dicts_of_arrays_and_arrays_become_arrays() -> None:
    """A dict of arrays has a record for each row, not for each name; other sequences are sources themselves."""
    assert as_source({"x": np.arange(3), "y": np.zeros((3, 2))})[1]["x"] == 1
    assert isinstance(as_source(np.zeros((3, 2))), Arrays)
    for value in ([1, 2], (1, 2), range(5), Plain(), Range(3), memoryview(b"abc")):
        assert as_source(value) is value


def _numbers() -> Iterator[int]:
    yield 1


def test_other_objects_are_refused_with_a_remedy() -> None:
    """The message names the object, and an object to pass instead."""
    cases: list[tuple[object, str]] = [
        (b"train/", r"a bytes. Bytes have no records: pass a path as a str"),
        (Plain, "create an instance of it"),
        (_numbers(), "pass an iterable that fits into memory as list"),
        ({1, 2}, "pass an iterable that fits into memory as list"),
        (3, "one of ps.sources"),
        (None, "one of ps.sources"),
        (UserDict({"x": np.zeros(3)}), "Its keys are names: pass a dict of arrays"),
        ({"train": Plain()}, "if it is a dict of datasets, read one of them"),
    ]
    for value, message in cases:
        with pytest.raises(UsageError, match=message):
            as_source(value)


def test_the_length_must_be_one() -> None:
    """A length that Python refuses is a UsageError with the rule."""
    assert source_length(Plain(7)) == 7
    with pytest.raises(UsageError, match="must be an int of at least 0"):
        source_length(Plain(-1))


def test_a_changed_length_names_both() -> None:
    """A source that grew or shrank is a SourceError with both lengths."""
    source = Plain(3)
    check_length(source, 3)
    source.length = 5
    with pytest.raises(SourceError, match="the source changed its length from 3 to 5"):
        check_length(source, 3)


def test_without_a_fingerprint_type_and_length_count() -> None:
    """Without a method `fingerprint`, only the type and length of a source count."""
    assert source_fingerprint(Plain(3)) == source_fingerprint(Plain(3))
    assert source_fingerprint(Plain(3)) != source_fingerprint(Plain(4))
    assert source_fingerprint(["a"]) != source_fingerprint(("a",))


def test_a_fingerprint_must_be_a_str() -> None:
    """Another type would not survive a saved state unchanged."""

    class Numbered(Plain):
        def fingerprint(self) -> int:
            return 7

    with pytest.raises(UsageError, match=r"fingerprint\(\) of a source must return a str; got 7"):
        source_fingerprint(Numbered())


def test_rows_are_filled_only_if_shapes_are_fixed() -> None:
    """`read_into` is used if it exists, unless the source says that its records' shapes differ."""

    class Filling(Plain):
        def read_into(self, keys: list[int], out: object) -> None:
            """Do nothing."""

    class Ragged(Filling):
        fixed_shape = False

    sources: list[Source] = [Filling(), Ragged(), Plain(), Arrays({"x": np.zeros(2)}), Arrays({"x": ["a", "b"]})]
    assert [can_read_into(source) for source in sources] == [True, False, False, True, False]


def test_sources_describe_their_keys() -> None:
    """A source's own description of a key follows the number."""

    class Described(Plain):
        def describe_key(self, key: int) -> str:
            return f"row {key} of the table"

    assert describe_key(Described(), 2) == "key 2 (row 2 of the table)"
    assert describe_key(Plain(), 2) == "key 2"


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


def test_datasets_of_torch_are_read_at_once() -> None:
    """`Subset` has `__getitems__`, which is used; an iterable dataset is refused; tensors of a dict become arrays."""
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
    tensor = pytest.importorskip("torch").zeros(3, 2)
    tensors = as_source({"x": tensor})
    tensor[1] = 7
    assert tensors[1]["x"].tolist() == [7, 7]
    assert can_read_into(tensors)
