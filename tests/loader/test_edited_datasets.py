"""A state in an edited dataset: refused, loaded with a warning, or loaded, as the how-to on resuming says."""

import argparse
import functools
import itertools
import json
import re
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.dataset.functions import is_even

NUMBERS = ps.range(100, seed=1)
EVEN = NUMBERS.filter(is_even)


def state_of(dataset: ps.Dataset[Any]) -> str:
    """Return the state after two batches."""
    loader = ps.Loader(dataset)
    batches: Iterator[Any] = iter(loader)
    assert len(list(itertools.islice(batches, 2))) == 2
    return json.dumps(loader.state_dict())


def without_details(state: str) -> str:
    """Return a state as earlier versions saved it."""
    plain = json.loads(state)
    plain["fingerprint"].pop("details", None)
    return json.dumps(plain)


def load(dataset: ps.Dataset[Any], state: str, allow: tuple[str, ...] = ()) -> str:
    """Load a state; return the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ps.Loader(dataset).load_state_dict(state, allow=allow)
    return " ".join(str(each.message) for each in caught)


def inner(size: int = 30, **arguments: Any) -> ps.Dataset[Any]:
    """Return numbers that were in batches below."""
    return NUMBERS.map(lambda number: {"x": number}, name="f").batch(size, **arguments).unbatch().batch(8)


ORDERS: dict[str, tuple[ps.Dataset[Any], ps.Dataset[Any]]] = {
    "size of an inner batch": (inner(34), inner(40)),
    "size of an inner batch, in order": (EVEN.batch(5).unbatch().batch(4), EVEN.batch(6).unbatch().batch(4)),
    "size of shuffled batches": (NUMBERS.batch(34).shuffle().unbatch(), NUMBERS.batch(40).shuffle().unbatch()),
    "an inner batch that drops": (inner(), inner(remainder="drop")),
    "an inner batch that pads": (inner(), inner(remainder="pad")),
    "a mask": (inner(remainder="pad"), inner(remainder="pad", mask="mask")),
    "a batch in a mixture": (
        ps.mix({"a": NUMBERS.batch(4), "b": NUMBERS.batch(4)}),
        ps.mix({"a": NUMBERS.batch(4), "b": NUMBERS.batch(5)}),
    ),
    "zip of tuples and of dicts": (ps.zip([NUMBERS, NUMBERS]), ps.zip({"0": NUMBERS, "1": NUMBERS})),
}


@pytest.mark.parametrize("name", ORDERS)
def test_another_order_is_refused(name: str) -> None:
    """The size of batches below another step, and the structure of a zip, are part of the order."""
    before, after = ORDERS[name]
    state = state_of(before)
    assert load(before, state) == ""
    with pytest.raises(ps.errors.StateError, match=r"another order.*allow=\{'order'\}"):
        load(after, state)
    assert load(after, state, ("order",)) == ""
    assert load(after, without_details(state)) == ""  # earlier versions didn't save these details


STEPS: dict[str, tuple[ps.Dataset[Any], str]] = {
    "another seed of a step": (
        NUMBERS.shuffle(seed=3).map(float).batch(8),
        r"another order: step 2 of 4, shuffle\(seed=3\), differs\. Load",
    ),
    "another source": (
        ps.range(50, seed=1).shuffle().map(abs).batch(8),
        r"another source and order: step 1 of 4, read\(Range\(0, 50, 1\)\), differs\. Load",
    ),
    "a step more": (
        NUMBERS.shuffle().map(float).map(abs).batch(8),
        r"another order: the state's dataset lacks step 4 of 5, map\(abs\)\. Load",
    ),
    "a step less": (
        NUMBERS.map(float).batch(8),
        r"another order: the state's dataset has one step more after step 1 of 3, read\(.*\)\. Load",
    ),
    "several": (
        NUMBERS.skip(4).shuffle().repeat().map(float).batch(8),
        r"another order: they differ from step 2 of 6, skip\(4\), on\. Load",
    ),
    "a function": (NUMBERS.shuffle().map(abs).batch(8), r"of the state: step 3 of 4, map\(abs\), differs$"),
}


@pytest.mark.parametrize("name", STEPS)
def test_the_step_that_differs_is_named(name: str) -> None:
    """The message names the step, or where one was added or removed; with a state of an older version it names none."""
    after, words = STEPS[name]
    state = state_of(NUMBERS.shuffle().map(float).batch(8))
    assert len(state) < 400
    old = json.loads(state)
    del old["fingerprint"]["steps"]
    found: list[str] = []
    for each in (state, json.dumps(old)):
        try:
            found.append(load(after, each))
        except ps.errors.StateError as error:
            found.append(str(error))
    assert re.search(words, found[0])
    assert found[1]
    assert "step" not in found[1]


def test_the_loaders_own_batch_may_change() -> None:
    """The size and the remainder of the batch that the loader cuts are no part of the order."""
    state = state_of(NUMBERS.batch(30).unbatch().map(float).batch(8))
    assert load(NUMBERS.batch(30).unbatch().map(float).batch(12, remainder="drop"), state) == ""
    state = state_of(EVEN.map(float).batch(8))
    assert load(EVEN.map(float).batch(12, remainder="drop"), state) == ""


def times(factor: Any) -> Callable[[Any], Any]:
    """Return a function that multiplies by the first of some factors."""
    return lambda number: number * factor[0]


def by_option(options: Any) -> Callable[[Any], Any]:
    """Return a function that multiplies by an option."""
    return lambda number: number * options.factor


class Scaled:
    """Multiplies by its factors."""

    def __init__(self, *factors: int) -> None:
        self.factors = list(factors)
        self.unused = factors

    def __call__(self, number: Any) -> Any:
        """Return a multiple of a number."""
        return number * self.factors[0]

    def method(self, number: Any) -> Any:
        """Return a multiple of a number."""
        return number * self.factors[0]


def scaled_by_default(factor: int) -> Callable[[Any], Any]:
    """Return a function whose default argument is a list."""

    def multiplied(number: Any, factors: Any = [factor]) -> Any:  # noqa: B006 - which is what is tested
        return number * factors[0]

    return multiplied


FUNCTIONS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "a list in a closure": lambda factor: times([factor]),
    "a large array in a closure": lambda factor: times(np.full(1_000_000, factor)),
    "a nested list": lambda factor: times([factor, [{"b": [factor]}]]),
    "a deque": lambda factor: times(deque([factor])),
    "an argument of a partial": lambda factor: functools.partial(np.multiply, np.full(1, factor)),
    "a default argument": scaled_by_default,
    "an attribute": Scaled,
    "an attribute of a bound method's object": lambda factor: Scaled(factor).method,
    "an option": lambda factor: by_option(argparse.Namespace(factor=factor)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_values_in_a_function_are_warned_of(name: str) -> None:
    """The values that a function holds are part of the state; a state of an earlier version has none."""

    def dataset(factor: int) -> ps.Dataset[Any]:
        return NUMBERS.map(FUNCTIONS[name](factor), name="f").batch(8)

    state = state_of(dataset(2))
    assert load(dataset(2), state) == ""
    assert "functions hold other values" in load(dataset(3), state)
    assert load(dataset(3), without_details(state)) == ""


def test_other_values_in_the_measure_of_a_mixture_are_warned_of() -> None:
    """A step with several parts has its functions' values in the state, too."""

    def dataset(factor: int) -> ps.Dataset[Any]:
        return ps.mix({"a": ps.range(1, 100), "b": NUMBERS}, measure=times([factor])).batch(8)

    state = state_of(dataset(2))
    assert load(dataset(2), state) == ""
    assert "functions hold other values" in load(dataset(3), state)


def test_another_opener_of_a_stream_is_warned_of() -> None:
    """The code of a stream's opener, and the values that it holds, are part of the state."""

    def stream(step: int) -> ps.Dataset[Any]:
        return ps.stream(lambda: iter(range(0, 900, step))).batch(8)

    same, second, state = stream(1), stream(2), state_of(stream(1))
    assert load(same, state) == ""
    assert "function that opens a stream" in load(second, state)
    assert "function that opens a stream" in load(ps.stream(lambda: [1, 2, 3]).batch(8), state)


RECORDS: dict[str, tuple[Any, Any]] = {
    "a list": (list(range(100)), list(range(100, 200))),
    "a tuple of texts": (tuple(map(str, range(100))), tuple(map(str, range(1, 101)))),
    "dicts": ([{"a": [k]} for k in range(100)], [{"a": [-k]} for k in range(100)]),
    "arrays": ([np.full(9, k) for k in range(100)], [np.full(9, k + 1) for k in range(100)]),
    "an array of objects": ({"x": np.array(["a"] * 100, object)}, {"x": np.array(["b"] * 100, object)}),
}


@pytest.mark.parametrize("name", RECORDS)
def test_other_records_are_warned_of(name: str) -> None:
    """Sampled records of lists, tuples and object arrays count; they may hold paths, so a difference is a warning."""
    before, after = RECORDS[name]
    state = state_of(ps.read(before).shuffle().batch(8))
    assert load(ps.read(before).shuffle().batch(8), state) == ""
    assert "records of the dataset's source differ" in load(ps.read(after).shuffle().batch(8), state)
    assert load(ps.read(after).shuffle().batch(8), without_details(state)) == ""


class Remembering:
    """A function that keeps its results."""

    def __init__(self) -> None:
        self.known: dict[int, int] = {}

    def __call__(self, number: int) -> int:
        """Return twice a number."""
        return self.known.setdefault(number, number * 2)


def test_a_function_may_change_the_values_that_it_holds() -> None:
    """The fingerprint keeps the values that the function held at the first loader, here and in other processes."""
    dataset = NUMBERS.map(Remembering()).batch(8)
    state = state_of(dataset)
    assert load(dataset, state) == ""
    assert load(NUMBERS.map(Remembering()).batch(8), state) == ""
    assert state_of(dataset) == state


def test_values_that_no_code_names_do_not_count() -> None:
    """An option that the code doesn't name, such as a folder for results, changes nothing; without values none do."""
    state = state_of(NUMBERS.map(by_option(argparse.Namespace(factor=2, out="a"))).batch(8))
    assert load(NUMBERS.map(by_option(argparse.Namespace(factor=2, out="b"))).batch(8), state) == ""
    assert "details" not in json.loads(state_of(NUMBERS.shuffle().map(float).batch(8)))["fingerprint"]


def test_large_values_are_sampled() -> None:
    """The fingerprint reads a bounded part of the values that a function holds."""
    many = [0] * 3_000_000
    large = np.zeros(1 << 27)
    nested = [[[[k] * 100 for k in range(100)] for _ in range(100)] for _ in range(10)]
    texts = {str(k): k for k in range(300_000)}
    words = set(texts)

    def function(number: int) -> Any:
        return number, many[0], large[0], nested[0], texts["0"], "0" in words

    began = time.process_time()
    state = state_of(NUMBERS.map(function).map(len).batch(8))
    assert "functions" in json.loads(state)["fingerprint"]["details"]
    assert time.process_time() - began < 1.5


def test_caches_tell_such_datasets_apart(tmp_path: Path) -> None:
    """A cache on disk returns a dataset's own elements, and not those of a similar dataset."""
    for size in (3, 4):
        assert len(ps.range(12).batch(size).cache(tmp_path)[0]) == size
    assert list(ps.read([1, 2]).map(str).cache(tmp_path)) == ["1", "2"]
    assert list(ps.read([3, 4]).map(str).cache(tmp_path)) == ["3", "4"]
    assert ps.zip([ps.range(2), ps.range(2)]).cache(tmp_path)[1] == (1, 1)
    assert ps.zip({"0": ps.range(2), "1": ps.range(2)}).cache(tmp_path)[1] == {"0": 1, "1": 1}
