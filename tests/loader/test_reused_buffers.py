"""A stream yields new objects: one that uses a buffer or a dict again is an error, and a constant one is none."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import GraphError


def one_array() -> Iterator[Any]:
    """Yield one array with other numbers each time."""
    buffer = np.zeros(3)
    for number in range(500):
        buffer[:] = number
        yield buffer


def one_dict() -> Iterator[Any]:
    """Yield one dict with another array each time."""
    record: dict[str, Any] = {}
    for number in range(500):
        record["x"] = np.full(2, number)
        yield record


def views() -> Iterator[Any]:
    """Yield new dicts with views of one array."""
    for buffer in one_array():
        yield {"x": buffer[:2], "name": "view"}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("iterable", [one_array, one_dict, views])
def test_a_stream_that_changes_its_elements_is_an_error(iterable: Any, workers: int) -> None:
    """A loader reads ahead, so each batch would repeat the last element that was read."""
    dataset = ps.stream(iterable).batch(4)
    message = rf"must yield new objects.* {iterable.__name__} changed an element .* Yield a copy"
    with ps.Loader(dataset, num_workers=workers, workers="threads") as loader, pytest.raises(GraphError, match=message):
        list(loader)


def test_a_constant_stream_is_none() -> None:
    """A stream may yield one array over and over, or the same number, text or None."""
    array = np.array([1.0, np.nan])
    for constant in (array, {"x": array, "y": float("nan")}, "text", 7, None, [array, [None]]):
        elements = iter(ps.Loader(ps.stream([constant]).repeat()))
        assert all(next(elements) is constant for _ in range(200))
