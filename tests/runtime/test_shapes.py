"""Rows of any kind and shape: threads return the batches of the definition, also if rows differ from the first."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.equivalence.definition import digests, epoch_of, outcomes

WORKERS = pytest.mark.parametrize("workers", [0, 3])


DIFFERENT: dict[str, Callable[[int], Any]] = {
    "lengths": lambda number: np.arange(number // 4 + 1) + number,
    "large and growing": lambda number: np.full(10_000 + number // 4 * 100, number),
    "other leaves": lambda n: {"x": float(n)} if n < 20 else {"x": np.float32(n), "y": [n, (n, None)]},
    "dtypes": lambda number: number if number // 4 % 2 else float(number),
    "texts": lambda number: {"name": f"image {number}", "raw": bytes([number]), "none": None},
    "nothing": lambda number: {"x": np.zeros((0, 3), np.float32), "number": number},
    "orders of keys": lambda number: dict([("a", number), ("b", number * 2.0)][:: 1 - 2 * (number % 2)]),
}


@WORKERS
@pytest.mark.parametrize("kind", DIFFERENT)
def test_batches_may_differ_from_each_other(kind: str, workers: int) -> None:
    """Rows that agree within a batch are merged without a warning, whatever the batches before were."""
    dataset = ps.range(40).map(DIFFERENT[kind], name="row").batch(4)
    with ps.Loader(dataset, num_workers=workers, prefetch=3) as loader:
        for epoch in range(2):
            assert digests(loader) == digests(epoch_of(dataset, epoch))


def test_workers_compute_rows_without_a_common_layout() -> None:
    """After a row that doesn't fit the layout, workers still compute all rows."""
    threads: list[int] = []

    def noted(number: int) -> Any:
        threads.append(threading.get_ident())
        return DIFFERENT["dtypes"](number)

    with ps.Loader(ps.range(40).map(noted).batch(4), num_workers=1) as loader:
        assert len(list(loader)) == 10
        threads.clear()
        assert len(list(loader)) == 10
    assert threading.get_ident() not in threads


ODD: dict[str, Callable[[int], Any]] = {
    "shape": lambda number: np.zeros(4 if number == 22 else 3),
    "structure": lambda number: {"x": number, "y": number} if number == 22 else {"x": number},
    "dtype": lambda number: float(number) if number == 22 else number,
}


@WORKERS
@pytest.mark.parametrize("kind", ODD)
def test_rows_that_do_not_fit_raise_the_error_of_the_definition(kind: str, workers: int) -> None:
    """A row that differs from the first of its batch raises the same message as the definition."""
    dataset = ps.range(40).map(ODD[kind], name="row").batch(4)
    expected = outcomes(epoch_of(dataset, 0))
    assert len(expected) == 6
    with ps.Loader(dataset, num_workers=workers) as loader:
        assert outcomes(loader) == expected
        loader.seek(6)
        assert len(list(loader)) == 4


BASE = np.arange(4000.0).reshape(40, 10, 10)
VIEWS: list[Callable[[Any], Any]] = [
    lambda x: x,
    lambda x: x.T,
    lambda x: x[::-1, ::-2],
    lambda x: x[3],
    lambda x: x[2, 5],
    lambda x: x.reshape(4, 25)[:, :7],
    lambda x: np.broadcast_to(x[0], (5, 10)),
    lambda x: {"row": x[0], "column": x[:, 0], "again": x[0]},
    lambda x: x.astype(">f4"),
    lambda x: x.view(np.uint8)[:, ::8],
]


def test_functions_may_return_views() -> None:
    """Views of every kind are stacked like copies, and the source doesn't change."""
    before = BASE.copy()
    for view in VIEWS:
        dataset = ps.read(list(BASE), seed=1).shuffle().map(view, name="view").batch(6)
        for workers in (0, 3):
            with ps.Loader(dataset, num_workers=workers) as loader:
                for epoch in range(2):
                    assert digests(loader) == digests(epoch_of(dataset, epoch))
    assert np.array_equal(before, BASE)


def add_in_place(element: Any) -> Any:
    """Change the element itself."""
    element["x"] += 1
    element["new"] = element["x"][:2]
    return element


@WORKERS
def test_functions_may_change_records_in_place(workers: int) -> None:
    """A function may change records of Penstock's sources: the sources stay the same, over epochs."""
    arrays = {"x": np.arange(120).reshape(40, 3)}
    before = arrays["x"].copy()
    rows = ps.read(arrays, seed=1)
    for read in (rows, rows.shuffle()):
        dataset = read.map(add_in_place).batch(4)
        with ps.Loader(dataset, num_workers=workers) as loader:
            for epoch in range(2):
                found = list(loader)
                assert digests(found) == digests(epoch_of(dataset, epoch))
                assert sorted(int(x) for batch in found for x in batch["x"][:, 0]) == list(range(1, 121, 3))
    assert np.array_equal(arrays["x"], before)


@WORKERS
def test_batches_may_be_changed_in_place(workers: int) -> None:
    """The consumer and the steps above `batch` may change a batch: no other batch and no source changes."""
    arrays = {"x": np.arange(40_000).reshape(40, 1000)}
    dataset = ps.read(arrays).batch(4).map(add_in_place)
    with ps.Loader(dataset, num_workers=workers) as loader:
        for _ in range(2):
            for step, batch in enumerate(loader):
                assert np.array_equal(batch["x"], np.arange(step * 4000, step * 4000 + 4000).reshape(4, 1000) + 1)
                batch["x"][...] = -1
    assert np.array_equal(arrays["x"], np.arange(40_000).reshape(40, 1000))


class Reused:
    """A source that always hands out the same dict."""

    def __init__(self) -> None:
        self.shared = np.zeros(3)

    def __len__(self) -> int:
        return 40

    def __getitem__(self, key: int) -> Any:
        return {"x": self.shared, "number": key}


@WORKERS
def test_records_may_share_arrays(workers: int) -> None:
    """Rows that share an array are as many rows, and the batch is no view of it."""
    source = Reused()
    with ps.Loader(ps.read(source).batch(4), num_workers=workers) as loader:
        for batch in loader:
            batch["x"] += 1
    assert not source.shared.any()
