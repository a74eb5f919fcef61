"""Datasets of small elements, with every verb that passes elements on in chunks, jobs or messages."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from tests.dataset.functions import same
from tests.equivalence.joins import Counter


def document(number: int) -> dict[str, NDArray[np.int32]]:
    """Return a document of a few tokens."""
    return {"tokens": np.full(1 + number * 7919 % 23, number, np.int32)}


def document_of(element: dict[str, Any]) -> dict[str, NDArray[np.int32]]:
    """Return the document of a row's number."""
    return document(element["number"])


def whole_document(number: int) -> dict[str, NDArray[np.int32]]:
    """Return a document that fills four sequences of 16 tokens."""
    return {"tokens": np.full(64, number, np.int32)}


def shifted(sequence: dict[str, Any]) -> dict[str, Any]:
    """Return inputs and targets."""
    return {"inputs": sequence["tokens"][:-1], "targets": sequence["tokens"][1:]}


def row(number: int) -> dict[str, Any]:
    """Return a row of two leaves."""
    return {"number": number, "values": np.full(3, number, np.float32)}


def noisy(element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return the element with a random number."""
    return {**element, "noise": rng.random()}


def is_kept(element: dict[str, Any]) -> bool:
    """Keep two of three, unevenly spread."""
    return int(element["number"]) * 2_654_435_761 % 2**32 % 3 != 0


def refuses_some(element: dict[str, Any]) -> dict[str, Any]:
    """Fail at about every ninth row, always."""
    if element["number"] * 40_503 % 9 == 4:
        raise ValueError("corrupt")
    return element


def copies(element: dict[str, Any]) -> list[dict[str, Any]]:
    """Return up to three rows made of one."""
    return [{**element, "copy": copy} for copy in range(element["number"] * 7919 % 4)]


def size_of(element: dict[str, Any]) -> int:
    """Return the size that decides a row's bucket."""
    return 1 + int(element["number"]) * 7919 % 40


def totals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge rows into a value that is no stack."""
    return {"numbers": [each["number"] for each in rows], "sum": np.array(sum(each["number"] for each in rows))}


def above(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch with a total over its rows."""
    return {**batch, "total": np.asarray(batch["number"]).sum()}


class Sized:
    """A combiner of consecutive rows whose sizes sum to at most 50, into two summaries."""

    def __init__(self) -> None:
        self.waiting: list[dict[str, Any]] = []

    @property
    def held(self) -> int:
        """The number of waiting rows."""
        return len(self.waiting)

    def add(self, element: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the summaries of the waiting rows when this row has no room."""
        groups = self.flush() if self.waiting and sum(map(size_of, (*self.waiting, element))) > 50 else []
        self.waiting.append(element)
        return groups

    def flush(self) -> list[dict[str, Any]]:
        """Return the summaries of the waiting rows."""
        group, self.waiting = self.waiting, []
        total = {**group[0], "number": sum(each["number"] for each in group)}
        return [{**group[0], "count": len(group)}, {**total, "count": -1}]


class Sums:
    """A combiner that returns the sum of all rows so far, but for each third row; it needs all of them."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def add(self, element: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the sum."""
        self.numbers.append(element["number"])
        return [{**element, "number": sum(self.numbers)}] if len(self.numbers) % 3 else []

    def flush(self) -> list[dict[str, Any]]:
        """Return nothing more."""
        return []


def _numbers(count: int) -> ps.Dataset[Any]:
    return ps.range(count, seed=count).shuffle()


def _rows(count: int) -> ps.Dataset[Any]:
    return _numbers(count).map(row, name="row")


def _stream(count: int) -> ps.Dataset[Any]:
    return ps.stream(partial(Counter, count), seed=1).map(row, name="row")


def _documents(count: int) -> ps.Dataset[Any]:
    return _numbers(count).map(document)


DATASETS: Final[dict[str, Callable[[int], ps.Dataset[Any]]]] = {
    "pack, a function, batch": lambda count: _documents(count).pack(16).map(same).batch(4),
    "pack, a function, batches of 1": lambda count: _documents(count).pack(16).map(shifted).batch(1),
    "whole documents, pack, a function": lambda count: (
        _numbers(count).map(whole_document).pack(16).map(shifted).batch(4)
    ),
    "pack, batch": lambda count: _documents(count).pack(16, how="split").batch(4),
    "filter, pack, random function": lambda count: (
        _rows(count).filter(is_kept).map(document_of).pack(16, fill=-1).random_map(noisy).batch(3, remainder="drop")
    ),
    "functions, batch": lambda count: _rows(count).random_map(noisy).batch(3),
    "batch, functions": lambda count: _rows(count).batch(3, remainder="pad", mask="mask").map(above).random_map(noisy),
    "a merge": lambda count: _rows(count).batch(2, merge=totals),
    "filter, batch": lambda count: _rows(count).filter(is_kept).batch(2),
    "filter, functions, batch": lambda count: _rows(count).filter(is_kept).random_map(noisy).batch(2),
    "failing, batch": lambda count: _rows(count).map(refuses_some, on_error="skip").random_map(noisy).batch(2),
    "bucket": lambda count: _rows(count).filter(is_kept).bucket(size_of, [8, 16, 40], rows=[4, 2, 1]),
    "combine, functions": lambda count: _rows(count).filter(is_kept).combine(Sized).random_map(noisy).batch(3),
    "stream, combine without held": lambda count: _stream(count).combine(Sums).random_map(noisy).batch(2),
    "window shuffle, functions": lambda count: _rows(count).window_shuffle(9).random_map(noisy).batch(3),
    "flat map, batch": lambda count: _rows(count).flat_map(copies).random_map(noisy).batch(2),
    "batches taken apart": lambda count: _rows(count).filter(is_kept).batch(4).unbatch().map(same).batch(3),
    "stream, functions": lambda count: _stream(count).random_map(noisy).batch(2),
    "stream, window shuffle, limit": lambda count: (
        _stream(count).window_shuffle(5).map(same).limit(4 * count // 5).batch(3)
    ),
    "mixture": lambda count: ps.mix(
        {"a": _rows(count // 2), "b": _rows(count // 3)}, {"a": 2, "b": 1}, stop="all"
    ).batch(2),
    "mixture of filters and streams": lambda count: (
        ps.mix({"a": _rows(count).filter(is_kept), "b": _stream(count // 2)}, {"a": 2, "b": 1}, stop="all")
        .map(same)
        .batch(2)
    ),
    "elements": lambda count: _rows(count).filter(is_kept).random_map(noisy),
}
"""Functions that make each dataset over a source of so many elements, by its name."""
