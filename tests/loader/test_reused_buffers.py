"""A stream yields new objects: one that uses a buffer or a dict again is an error, and a constant one is none."""

from collections.abc import Iterator
from dataclasses import dataclass, field
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
    message = rf"must yield new objects.* {iterable.__name__} yielded element \d+, .* had changed.* Yield a copy"
    with ps.Loader(dataset, num_workers=workers, workers="threads") as loader, pytest.raises(GraphError, match=message):
        list(loader)


def test_a_constant_stream_is_none() -> None:
    """A stream may yield one array over and over, or the same number, text or None."""
    array = np.array([1.0, np.nan])
    for constant in (array, {"x": array, "y": float("nan")}, "text", 7, None, [array, [None]]):
        elements = iter(ps.Loader(ps.stream([constant]).repeat()))
        assert all(next(elements) is constant for _ in range(200))


class Clock:
    """A clock by which every chunk of a stream takes too long for a second element."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        """Return the time, a second after the last one."""
        self.now += 1
        return self.now


def test_a_slow_stream_that_yields_one_object_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its chunks have one element each, of which the next one is the same object with another content."""
    monkeypatch.setattr("penstock._streaming._stream.time", Clock())
    for iterable in (one_array, one_dict):
        with pytest.raises(GraphError, match="must yield new objects"):
            list(ps.Loader(ps.stream(iterable).batch(4), num_workers=0))


@dataclass
class Doubled:
    """A record that the constructor can't make again."""

    number: int
    double: int = field(init=False)

    def __post_init__(self) -> None:
        self.double = 2 * self.number


def test_elements_of_any_kind_are_no_error() -> None:
    """An element that can't be taken apart isn't compared, and is delivered."""
    numbers = ps.stream(lambda: map(Doubled, range(20))).map(lambda record: record.double).batch(5)
    assert [batch.tolist() for batch in ps.Loader(numbers, num_workers=0)] == np.arange(0, 40, 2).reshape(4, 5).tolist()
