"""A folder has the shards of one dataset; `write` refuses another, and warns where it can't know."""

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import UsageError
from tests.writing.numbers import digests, numbers

pyarrow = pytest.importorskip("pyarrow")


def test_shards_that_write_did_not_make_are_refused(tmp_path: Path) -> None:
    """A file of another program that has a shard's name is neither taken for the shard nor replaced."""
    (tmp_path / "00000.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(UsageError, match=r"'00000\.jsonl'.* no description\.json.*another folder"):
        ps.write(ps.range(10).map(lambda number: {"id": number}), tmp_path, "jsonl", num_workers=0)
    assert [path.name for path in tmp_path.iterdir()] == ["00000.jsonl"]
    assert (tmp_path / "00000.jsonl").read_text() == '{"id": 1}\n'
    (tmp_path / "00000.jsonl").rename(tmp_path / "manifest.json")
    with pytest.raises(UsageError, match=r"'manifest\.json'.* no description\.json.*another folder"):
        ps.write(ps.range(10), tmp_path, "jsonl", num_workers=0)


def test_another_dataset_in_the_folder_is_refused(tmp_path: Path) -> None:
    """The error names what differs; a changed shard is found as well."""
    ps.write(numbers(), tmp_path, num_workers=0)
    others: list[tuple[ps.Dataset[Any], dict[str, Any], str]] = [
        (numbers(301), {}, "fingerprint, elements"),
        (numbers(), {"format": "parquet"}, "the two differ in format. It wrote"),
        (numbers(), {"shard_bytes": 100}, "elements_per_shard"),
    ]
    for other, arguments, text in others:
        with pytest.raises(UsageError, match=text):
            ps.write(other, tmp_path, num_workers=0, **arguments)
    description = tmp_path / "description.json"
    current = description.read_text()
    description.write_text(current.replace('"version": 4', '"version": 2'))  # of a release with shards of other sizes
    with pytest.raises(UsageError, match="the two differ in version"):
        ps.write(numbers(), tmp_path, num_workers=0)
    description.write_text(current)
    (tmp_path / "00000.arrow").write_bytes(b"short")
    with pytest.raises(UsageError, match=r"00000\.arrow' was changed: the manifest has bytes .*, and the file 5\."):
        ps.write(numbers(), tmp_path, num_workers=0)


def scaled_by(factors: list[int]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that holds a list."""

    def scaled(element: dict[str, Any]) -> dict[str, Any]:
        return element | {"id": element["id"] * factors[0]}

    return scaled


def episodes() -> ps.Dataset[Any]:
    """Return two episodes."""
    return ps.read([{"frames": np.arange(4)}, {"frames": np.arange(4)}])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ps.read([{"id": 1}, {"id": 2}]), ps.read([{"id": 1}, {"id": 3}])),
        (episodes().windows(2, lengths=[4, 4], mask="one"), episodes().windows(2, lengths=[4, 4], mask="other")),
    ],
)
def test_other_records_and_masks_are_another_dataset(
    tmp_path: Path, one: ps.Dataset[Any], other: ps.Dataset[Any]
) -> None:
    """A call with other records of a list, or another mask, is refused."""
    for _ in range(2):
        ps.write(one, tmp_path, "jsonl", num_workers=0)
    with pytest.raises(UsageError, match="the two differ in fingerprint"):
        ps.write(other, tmp_path, "jsonl", num_workers=0)


def test_other_values_of_functions_get_a_warning(tmp_path: Path) -> None:
    """The shards that are there stay; the values may have nothing to do with the elements."""
    for number, factor in enumerate((2, 2, 3)):
        dataset = ps.read([{"id": 1}]).map(scaled_by([factor]))
        with pytest.warns(UserWarning, match="hold other values") if number == 2 else contextlib.nullcontext():
            ps.write(dataset, tmp_path, "jsonl", num_workers=0)
    assert (tmp_path / "00000.jsonl").read_text() == '{"id":2}\n'


class Remembering:
    """An order of a user's that keeps the epochs of its calls."""

    def __init__(self) -> None:
        self.epochs: set[int] = set()

    def __len__(self) -> int:
        return 2

    def __call__(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the elements in reverse."""
        self.epochs.add(epoch)
        return epoch, 1 - position


def test_other_values_of_samplers_get_a_warning(tmp_path: Path) -> None:
    """A sampler that keeps something about its calls gives the same elements, so the call goes on."""
    order = Remembering()
    dataset = ps.read([{"id": 1}, {"id": 2}]).reindex(order)
    ps.write(dataset, tmp_path, "jsonl", num_workers=0)
    order(7, 0)
    with pytest.warns(UserWarning, match="functions or samplers hold other values"):
        assert ps.write(dataset, tmp_path, "jsonl", num_workers=0).new == 0


def test_of_two_datasets_at_once_the_folder_gets_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call whose description comes after that of another call is refused, even if it found none before."""
    others, fsync = [numbers(40)], os.fsync

    def write_another(descriptor: int) -> None:
        fsync(descriptor)
        if others:
            threads.submit(ps.write, others.pop(), tmp_path / "both", "tar", num_workers=0).result()

    monkeypatch.setattr(os, "fsync", write_another)
    with ThreadPoolExecutor(1) as threads, pytest.raises(UsageError, match="differ in dataset, fingerprint"):
        ps.write(numbers(41), tmp_path / "both", "tar", num_workers=0)
    ps.write(numbers(40), tmp_path / "alone", "tar", num_workers=0)
    assert digests(tmp_path / "both") == digests(tmp_path / "alone")
