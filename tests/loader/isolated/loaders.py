"""Isolated loaders, and comparisons of what they deliver."""

from typing import Any

import penstock as ps
from tests.equivalence.definition import digest


def isolated(dataset: ps.Dataset, num_workers: int = 0, **options: Any) -> ps.Loader:
    """Return a loader that runs in a helper process."""
    return ps.Loader(dataset, num_workers=num_workers, isolated=True, **options)


def same(found: Any, expected: Any) -> bool:
    """Return whether two batches are equal, byte for byte."""
    return bool(digest(found) == digest(expected))


def assert_same(found: list[Any], expected: list[Any]) -> None:
    """Fail unless all batches are equal, byte for byte."""
    assert len(found) == len(expected)
    assert all(map(same, found, expected))


def most_in_flight(loader: ps.Loader) -> float:
    """Return the largest number of bytes in flight in an epoch."""
    return max(loader.stats()["bytes_in_flight"] for _ in loader)
