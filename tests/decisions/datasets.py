"""Datasets of small elements, with every verb that passes elements on in chunks, jobs or messages."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from tests.dataset.functions import same
from tests.equivalence.combiners import Filled, Running
from tests.equivalence.functions import (
    add_one,
    copies,
    fails_sometimes,
    jitter,
    keeps_two_of_three,
    totals,
    weight_of,
)
from tests.equivalence.joins import Counter


def document(number: int) -> dict[str, NDArray[np.int32]]:
    """Return a document of a few tokens."""
    return {"tokens": np.full(1 + number * 7919 % 23, number, np.int32)}


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


def size_of(element: dict[str, Any]) -> int:
    """Return the size that decides a row's bucket."""
    return 3 + weight_of(element)


def _numbers(count: int) -> ps.Dataset[Any]:
    return ps.range(count, seed=count).shuffle()


def _rows(count: int) -> ps.Dataset[Any]:
    return _numbers(count).map(row)


def _kept(count: int) -> ps.Dataset[Any]:
    return _rows(count).filter(keeps_two_of_three)


def _stream(count: int) -> ps.Dataset[Any]:
    return ps.stream(partial(Counter, count), seed=1).map(row)


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
        _documents(count).filter(keeps_two_of_three).pack(16, fill=-1).random_map(noisy).batch(3, remainder="drop")
    ),
    "functions, batch": lambda count: _rows(count).random_map(noisy).batch(3),
    "batch, functions": lambda count: (
        _rows(count).batch(3, remainder="pad", mask="mask").map(add_one).random_map(noisy)
    ),
    "a merge": lambda count: _rows(count).batch(2, merge=totals),
    "filter, batch": lambda count: _kept(count).batch(2),
    "filter, functions, batch": lambda count: _kept(count).random_map(noisy).batch(2),
    "failing, batch": lambda count: _rows(count).map(fails_sometimes, on_error="skip").random_map(noisy).batch(2),
    "bucket": lambda count: _kept(count).bucket(size_of, [4, 6, 9], rows=[4, 2, 1]),
    "combine, functions": lambda count: _kept(count).combine(Filled).random_map(noisy).batch(1),
    "stream, combine without held": lambda count: _stream(count).combine(Running).random_map(jitter).batch(2),
    "window shuffle, functions": lambda count: _rows(count).window_shuffle(9).random_map(noisy).batch(3),
    "flat map, batch": lambda count: _rows(count).flat_map(copies).random_map(noisy).batch(2),
    "batches taken apart": lambda count: _kept(count).batch(4).unbatch().map(same).batch(3),
    "stream, functions": lambda count: _stream(count).random_map(noisy).batch(2),
    "stream, window shuffle, limit": lambda count: (
        _stream(count).window_shuffle(5).map(same).limit(4 * count // 5).batch(3)
    ),
    "mixture": lambda count: ps.mix(
        {"a": _rows(count // 2), "b": _rows(count // 3)}, {"a": 2, "b": 1}, stop="all"
    ).batch(2),
    "mixture of filters and streams": lambda count: (
        ps.mix({"a": _kept(count), "b": _stream(count // 2)}, {"a": 2, "b": 1}, stop="all").map(same).batch(2)
    ),
    "elements": lambda count: _kept(count).random_map(noisy),
}
"""Functions that make each dataset over a source of so many elements, by its name."""
