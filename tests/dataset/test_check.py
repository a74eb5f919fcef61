"""`check` names the step that isn't a function of its input, and accepts good datasets."""

import itertools
import random  # noqa: TID251 - the generator that no function should use
import sys
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import GraphError, UsageError
from tests.dataset.functions import Rotated, Squares, double, is_odd, noisy


def random_number(element: object) -> float:
    """Draw from a global generator, in a plain `map`."""
    del element
    return random.random()


def random_verdict(element: object) -> bool:
    """Decide by a global generator."""
    del element
    return random.random() < 0.5


class Counter:
    """A function that remembers the number of its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, number: int) -> int:
        """Return the number plus the calls so far."""
        self.calls += 1
        return number + self.calls


def normalise(array: Any) -> Any:
    """Change an array in place."""
    array -= array.mean()
    return array


CALLS = itertools.count()


class Dice(Squares):
    """A source that returns another record at each read."""

    def __getitem__(self, key: int) -> int:
        return key + random.getrandbits(40)


def with_noise(number: int, rng: object) -> float:
    """Ignore the generator of the step."""
    del rng
    return number + random.random()


def mixed(rows: list[int]) -> float:
    """Merge rows with a random weight."""
    return sum(rows) * random.random()


def random_size(element: object) -> int:
    """Draw the size of an element."""
    del element
    return random.randrange(99)


def two(number: int) -> list[float]:
    """Return two elements for one, the second of them random."""
    return [float(number), random.random()]


def tagged(record: dict[str, int]) -> dict[str, int]:
    """Count the calls in the record itself."""
    record["calls"] = record.get("calls", 0) + 1
    return record


NOT_PURE: dict[str, tuple[Callable[[], ps.Dataset], str]] = {
    "random map": (
        lambda: ps.range(20).shuffle().map(double).map(random_number).map(str),
        r"step 'random_number' in read\(Range\(0, 20, 1\)\)\.shuffle\(\)\.map\(double\)\.map\(random_number\) isn't a",
    ),
    "state": (lambda: ps.range(20).map(Counter()), r"step 'Counter' in .* isn't a function of its input"),
    "random_map": (lambda: ps.range(20).random_map(with_noise), "step 'with_noise' in .* isn't a function"),
    "below unbatch": (
        lambda: ps.range(20).batch(4).map(lambda b: b * random.random(), name="scale").unbatch().map(str),
        "step 'scale' in",
    ),
    "predicate": (
        lambda: ps.range(200).filter(random_verdict),
        r"step 'random_verdict' in .*\.filter\(random_verdict\)",
    ),
    "remedy": (
        lambda: ps.range(20).map(random_number),
        r"for epoch 0, position 0, key 0\. Batches would .* use random_map",
    ),
    "in place": (
        lambda: ps.read([np.arange(4.0) + number for number in range(9)]).map(normalise),
        r"step 'normalise' in read\(list\)\.map\(normalise\) changes its input in place, which is the source's own"
        r".* key 0 reads differently afterwards\. Return a new array, or copy the input",
    ),
    "merge": (lambda: ps.range(20).batch(4, merge=mixed), r"^read\(.*\.batch\(4, merge=mixed\) isn't a function"),
    "merge in order": (
        lambda: ps.range(20).filter(is_odd).batch(4, merge=mixed).map(str),
        r"\.filter\(is_odd\)\.batch\(4, merge=mixed\) isn't a function of its input",
    ),
    "flat_map": (lambda: ps.range(20).flat_map(two).map(str), "step 'two' in .* isn't a function of its input"),
    "above window": (lambda: ps.range(20).window_shuffle(9).map(random_number).map(str), "step 'random_number' in"),
    "above stream": (lambda: ps.stream(range(20)).map(random_number), r"step 'random_number' in stream\(.*\)\.map"),
    "length": (
        lambda: ps.range(99).map(np.atleast_1d).bucket(random_size, [50, 99], rows=4),
        r"^read\(.*\)\.bucket\(.*\) isn't a function of its input",
    ),
    "stream": (
        lambda: ps.stream(lambda: (random.random() for _ in range(9))).batch(3),
        r"^stream\(.*\) returned another element for epoch 0, position 0, key 0 when .* with a fixed seed",
    ),
    "in place above filter": (
        lambda: ps.read([{"x": number} for number in range(9)]).filter(bool).map(tagged),
        r"^read\(list\) returned another element for .* changes its input in place, return a new array there",
    ),
    "nan": (lambda: ps.range(20).map(changing_nan), "step 'changing_nan' in .* isn't a function of its input"),
    "source": (lambda: ps.read(Dice(9), seed=1).shuffle(), "returned two different records for key"),
}


def test_the_step_is_named() -> None:
    """The message has the step, its chain, the element and a remedy."""
    for make, message in NOT_PURE.values():
        with pytest.raises(GraphError, match=message):
            make().check(64)


class Thing:
    """An object without equality."""

    def __init__(self, number: int) -> None:
        self.number = number


class Tensor:
    """An array of another library, which has no truth value."""

    def __init__(self, number: int) -> None:
        self.array = np.full(3, number)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array

    def __eq__(self, other: object) -> Any:
        return self.array == np.asarray(other)

    def __hash__(self) -> int:
        raise TypeError("unhashable")


def nan_and_more(number: int) -> dict[str, Any]:
    """Return leaves that are hard to compare."""
    objects = np.array([number, "a", None], object)
    return {"nan": float("nan"), "nans": np.array([np.nan, number]), "objects": objects, "text": ("a", b"b", None)}


class Unequal:
    """An object whose comparison is an array."""

    def __eq__(self, other: object) -> Any:
        return np.zeros(2, bool)

    def __hash__(self) -> int:
        return 0


def unequal_to_themselves(number: int) -> list[object]:
    """Return leaves that don't equal themselves, or whose comparison fails."""
    spaced = np.empty(2, np.dtype([("small", "i1"), ("large", "i8")], align=True))  # with seven bytes of any value
    spaced.view(np.uint8)[:] = next(CALLS)
    spaced["small"], spaced["large"] = number, number
    ragged = np.array([np.arange(2), np.arange(3)], object)
    numbers = float("nan"), complex(0, float("nan")), Decimal("NaN")
    return [*numbers, np.array([None, float("nan")], object), ragged, spaced, Unequal()]


def changing_nan(number: int) -> object:
    """Return a table with a value that is NaN at every other call."""
    return np.array([[number, Decimal("NaN") if next(CALLS) % 2 else Decimal(1)], None], object)


def fails(number: int) -> int:
    """Fail at some numbers."""
    if number % 3 == 0:
        raise ValueError("corrupt")
    return number


GOOD: dict[str, ps.Dataset] = {
    "empty": ps.range(0).shuffle().map(double).batch(2),
    "random": ps.range(20).shuffle().random_map(noisy).random_map(noisy),
    "globals": ps.range(20).random_map(lambda n: (n, random.random()), globals=True, name="g"),  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType] - any callable
    "seed": ps.range(20).random_map(lambda n, seed: (n, seed), rng="seed", name="s"),  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType] - any callable
    "origin": ps.range(20).map_with_origin(lambda n, origin: (n, origin.seed)),
    "filter": ps.range(20).filter(is_odd).map(double).filter(is_odd),
    "skip": ps.range(20).map(fails, on_error="skip").map(double).batch(3),
    "substitute": ps.range(20, seed=1).map(fails, on_error=ps.Substitute(attempts=32)).map(double),
    "batch": ps.range(20).map(double).batch(3, remainder="pad").map(np.square).unbatch().map(str),
    "folds": ps.range(20).filter(is_odd).batch(3).map(np.square).unbatch().batch(2),
    "orders": ps.range(20).shuffle().repeat(3).shard(1, 2).split({"a": 0.5})["a"].subset(5).epoch(3),
    "own sampler": ps.range(20).reindex(Rotated(20)).map(double),
    "objects": ps.range(20).map(Thing),
    "tensors": ps.range(20).map(Tensor),
    "nan": ps.range(20).map(nan_and_more),
    "unequal": ps.range(20).map(unequal_to_themselves),
    "orders that are read in order": ps.mix(
        [ps.stream(range(20)).map(double), ps.range(20).window_shuffle(5)], [1, 2], seed=1
    ).batch(4),
    "objects that can't be copied": ps.stream(lambda: iter([threading.Lock(), (n for n in range(3))])),
    "packed": ps.range(9).map(np.arange).pack(8).batch(2),
    "zip in order": ps.zip([ps.range(301).filter(bool), ps.range(150).flat_map(lambda n: [n, n])]).batch(300),
    "no element": ps.range(20).repeat().filter(lambda number: number > 20),
    "list of arrays": ps.read([np.arange(4.0)]).map(lambda array: array - array.mean()),
}


def test_good_datasets_pass() -> None:
    """Datasets of any verbs and leaves pass if they draw from the step's generator only."""
    for name, dataset in GOOD.items():
        dataset.check(1 if name == "no element" else 20)  # each element of this one reads hundreds


def test_arrays_may_be_changed_in_place() -> None:
    """A source of arrays returns copies, so a function may write to them."""
    ps.read({"x": np.arange(12.0).reshape(4, 3)}).map(lambda record: normalise(record["x"])).check()


def test_check_computes_the_requested_elements() -> None:
    """A larger count finds rarer faults."""
    counts = itertools.count()
    dataset = ps.range(1000).map(lambda number: next(counts) if number == 999 else number, name="rare")
    dataset.check(8)
    with pytest.raises(GraphError, match=r"step 'rare' in .* position 999, key 999"):
        dataset.check(1000)
    with pytest.raises(UsageError, match=r"count must be at least 1 and at most .*; got count=0"):
        dataset.check(0)


def test_errors_of_functions_are_raised() -> None:
    """`check` raises the error of a function unchanged."""
    with pytest.raises(ValueError, match="corrupt"):
        ps.range(20).map(fails).check()


def labelled(number: int) -> dict[str, int]:
    """Return a label by the order of a set."""
    names = {f"class {each}" for each in range(50)}
    return {"number": number, "label": list(names).index(f"class {number}")}


def hashed(number: int) -> bool:
    """Decide by the hash of a text."""
    return hash(f"text {number}") % 2 == 0


class Names(Squares):
    """A source whose records come from a set."""

    def __getitem__(self, key: int) -> int:
        return labelled(key)["label"]


BY_HASH: dict[str, tuple[ps.Dataset, str]] = {
    "map": (ps.range(50).shuffle(seed=1).map(labelled).map(str), "step 'labelled' in"),
    "filter": (ps.range(50).filter(hashed).map(double), "step 'hashed' in"),
    "source": (ps.read(Names(50)).map(double), r"^read\(.*Names"),
    "merge": (ps.range(50).batch(50, merge=lambda rows: [*map(labelled, rows)]), r"^read\(.*\.batch\(50, merge="),
    "above window": (ps.range(50, seed=1).window_shuffle(9).map(labelled), "step 'labelled' in"),
}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no fork server")
@pytest.mark.parametrize("name", BY_HASH)
def test_the_hashes_of_texts_are_found(name: str) -> None:
    """They differ between the program and other processes, so the step and the usual reason are named."""
    dataset, step = BY_HASH[name]
    with pytest.raises(GraphError, match=rf"{step}.* returned another result in another process for .*PYTHONHASHSEED"):
        dataset.check(50)
