"""Pairs of loaders with shared workers, and the functions of their datasets."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

import penstock as ps
from tests.dataset.functions import is_even
from tests.equivalence.kinds import as_array, is_dict, is_list_or_tuple, is_numpy
from tests.loader.sent_functions import as_list, halves

KINDS = pytest.mark.parametrize(
    "kind",
    [
        "threads",
        pytest.param(
            "processes",
            marks=pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's"),
        ),
    ],
)

TRAINING: ps.Dataset = ps.range(90, seed=1).shuffle().map(halves).batch(4)
VALIDATION: ps.Dataset = ps.range(50, seed=2).map(abs).batch(7)
IN_ORDER: ps.Dataset = ps.range(60, seed=3).filter(is_even).batch(5)
MERGED: ps.Dataset = ps.range(40, seed=4).map(halves).batch(3, merge=as_list)


@contextmanager
def pair(
    kind: str, first: ps.Dataset, second: ps.Dataset, num_workers: int = 2, **options: Any
) -> Generator[tuple[ps.Loader, ps.Loader]]:
    """Return an owner of workers, and a loader with these options that shares them; close both after the test."""
    with (
        ps.Loader(first, num_workers=num_workers, workers=_kind(kind)) as owner,
        ps.Loader(second, workers=owner, **options) as other,
    ):
        yield owner, other


def _kind(kind: str) -> Any:
    return kind


def listed(batches: Any) -> list[Any]:
    """Return batches as plain values, to compare."""
    return [plain(batch) for batch in batches]


def plain(batch: Any) -> Any:
    """Return a batch as a plain value."""
    if is_dict(batch):
        return {name: plain(leaf) for name, leaf in batch.items()}
    if is_list_or_tuple(batch):
        return [plain(row) for row in batch]
    return as_array(batch).tolist() if is_numpy(batch) else batch
