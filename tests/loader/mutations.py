"""Mutations of JSON values, and datasets of many kinds whose states are mutated."""

import copy
import itertools
import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

import penstock as ps
from tests.equivalence.combiners import Filled, Neighbours, Running
from tests.loader.iterables import Eager, Lazy

Make = Callable[[], "ps.Loader[Any]"]


def thirds(number: Any) -> bool:
    """Keep numbers that are no multiple of three."""
    return int(number) % 3 != 0


def few(number: Any) -> list[Any]:
    """Return a number up to three times."""
    return [number] * (int(number) % 4)


def length_of(document: Any) -> int:
    """Return a document's length."""
    return len(document)


def drops(number: int) -> int:
    """Return a number, or fail at some."""
    if number % 5 == 3:
        raise ValueError(number)
    return number


DOCUMENTS = [np.full(k % 7 + 1, k) for k in range(60)]
LENGTHS = [len(document) for document in DOCUMENTS]


def numbers(count: int = 60) -> ps.Dataset[int]:
    """Return some integers."""
    return ps.range(count, seed=1)


DATASETS: dict[str, Callable[[], ps.Dataset[Any]]] = {
    "indexable": lambda: numbers().shuffle().batch(8),
    "dropped": lambda: numbers().shuffle().batch(8, remainder="drop"),
    "repeated": lambda: numbers().shuffle().repeat(2).batch(8),
    "endless": lambda: numbers().shuffle().repeat().batch(8),
    "shuffled batches": lambda: numbers().batch(4).shuffle().map(np.asarray),
    "unbatched": lambda: numbers().batch(7).shuffle().unbatch().batch(4),
    "plain": lambda: numbers().shuffle(),
    "mixture": lambda: ps.mix({"a": numbers(), "b": numbers(30)}, {"a": 3, "b": 1}).batch(8),
    "concatenated": lambda: ps.concatenate([numbers(), numbers(30)]).shuffle().batch(8),
    "zipped": lambda: ps.zip([numbers(), numbers()]).batch(8),
    "windows": lambda: ps.read(DOCUMENTS).windows(3, lengths=LENGTHS, partial="pad").batch(4),
    "planned": lambda: ps.read(DOCUMENTS).pack(9, lengths=LENGTHS).batch(2),
    "filter": lambda: numbers().filter(thirds).batch(4),
    "filter, not batched": lambda: numbers().filter(thirds),
    "skipping": lambda: numbers().map(drops, on_error="skip").batch(4),
    "flat_map": lambda: numbers().flat_map(few).batch(4),
    "flat_map twice": lambda: numbers().flat_map(few).flat_map(few, name="again").batch(4),
    "window_shuffle": lambda: numbers().filter(thirds).window_shuffle(8).batch(4),
    "shuffled windows": lambda: numbers().flat_map(few).window_shuffle(5).window_shuffle(4, name="b").batch(4),
    "pack": lambda: ps.read(DOCUMENTS).pack(9).batch(2),
    "pack dropping": lambda: ps.read(DOCUMENTS).filter(len).pack(6, long="drop").batch(2),
    "split": lambda: ps.read(DOCUMENTS).pack(9, how="split").batch(2),
    "pack of windows": lambda: ps.read(DOCUMENTS).window_shuffle(6).pack(9).batch(2),
    "combine": lambda: numbers().filter(thirds).combine(Filled).map(lambda group: len(group["totals"])).batch(2),
    "combine of neighbours": lambda: numbers().window_shuffle(4).combine(Neighbours).batch(3),
    "combine without held": lambda: numbers().flat_map(few).combine(Running).batch(3),
    "bucket": lambda: ps.read(DOCUMENTS).bucket(length_of, [4, 8], rows=3),
    "bucket of rows": lambda: ps.read(DOCUMENTS).flat_map(lambda d: [d] * 2).bucket(length_of, [4, 8], rows=3),
    "limit": lambda: numbers().filter(thirds).batch(4).limit(5),
    "limit below": lambda: numbers().filter(thirds).limit(21).batch(4),
    "rebatched": lambda: numbers().filter(thirds).batch(5).rebatch(3),
    "rows of batches": lambda: numbers().filter(thirds).batch(5).unbatch().batch(4),
    "above a batch": lambda: numbers().filter(thirds).batch(2).window_shuffle(3),
    "in turn": lambda: ps.concatenate([numbers().filter(thirds), numbers(20).flat_map(few)]).batch(4),
    "zipped, in order": lambda: ps.zip([numbers().filter(thirds), numbers(30)], unequal="shortest").batch(4),
    "mixed in order": lambda: ps.mix({"a": numbers().filter(thirds), "b": numbers(30).flat_map(few)}).batch(4),
    "measured": lambda: ps.mix({"a": numbers(), "b": numbers(30)}, measure=lambda number: number % 3).batch(4),
    "stream": lambda: ps.stream(lambda: range(60)).batch(4),
    "stateful": lambda: ps.stream(Lazy()).batch(4),
    "stateful, repeated": lambda: ps.stream(Eager()).repeat(3).window_shuffle(4).batch(4),
    "streams mixed": lambda: ps.mix({"a": ps.stream(Lazy()), "b": numbers().filter(thirds)}).window_shuffle(3).batch(2),
}

SHAPES: dict[str, dict[str, Any]] = {
    "one rank": {},
    "a rank of two": {"shard": ps.Shard(1, 2, uneven=True)},
    "out of order": {"num_workers": 2, "workers": "threads", "ordered": False},
}


def states_of(dataset: ps.Dataset[Any], shape: dict[str, Any]) -> list[Any]:
    """Return states after some batches, and within the second epoch."""
    with ps.Loader(dataset, **shape) as loader:
        states, number = [loader.state_dict()], 0
        for epoch, count in enumerate((3, 9)):
            batches: Iterator[Any] = iter(loader)
            for _ in itertools.islice(batches, count if epoch else None):
                if number % 3 == 0:
                    states.append(loader.state_dict())
                number += 1
                if number >= 40:
                    break
        return plain(states)


@cache
def states_of_ranks(name: str) -> list[Any]:
    """Return the states of two ranks after a batch of each."""
    states: list[Any] = []
    for rank in range(2):
        with ps.Loader(DATASETS[name](), shard=ps.Shard(rank, 2, uneven=True)) as loader:
            next(iter(loader))
            states.append(loader.state_dict())
    return plain(states)


def dealt(name: str) -> list[Any]:
    """Return states after a change of ranks, which have rank segments."""
    loader = ps.Loader(DATASETS[name](), shard=ps.Shard(0, 1))
    loader.load_state_dict(states_of_ranks(name))
    batches: Iterator[Any] = iter(loader)
    states: list[Any] = [loader.state_dict()]
    states += [loader.state_dict() for _ in itertools.islice(batches, 3)]
    return plain(states)


def plain(states: list[Any]) -> list[Any]:
    """Return states as JSON returns them."""
    found: list[Any] = json.loads(json.dumps(states))
    return found


def nested(depth: int) -> Any:
    """Return a list within so many lists."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


_PLACES = (
    *("cursor", "cursor", "cursor", "legs", "legs", "ahead", "segments", "step", "epoch", "position", "rank"),
    "shape",
)
"""The parts of a state that say where it is; the cursor, with most structure, is mutated most often."""


def is_a(value: object, kind: type) -> bool:
    """Return whether a value is of a type."""
    return type(value) is kind


class Mutations:
    """Makes mutations.

    Args:
        chance: a generator of random numbers, with the methods of Python's.
    """

    def __init__(self, chance: Any) -> None:
        self._chance = chance

    def mutated(self, value: Any) -> Any:
        """Return a copy of a JSON value that differs in one to three places."""
        changed: Any = copy.deepcopy(value)
        for _ in range(self._chance.choice([1, 1, 1, 2, 3])):
            held: Any = changed[0] if is_a(changed, list) and changed else changed
            parts = [part for part in _PLACES if is_a(held, dict) and held.get(part) is not None]
            if parts and self._chance.random() < 0.7:
                part = self._chance.choice(parts)
                held[part] = self._changed(held[part])
            else:
                changed = self._changed(changed)
        return changed

    def _changed(self, value: Any) -> Any:
        chance = self._chance
        is_list = is_a(value, list)
        if not (is_list or is_a(value, dict)) or not value or chance.random() >= 0.93:
            return self._replaced(value)
        key: Any = chance.randrange(len(value)) if is_list else chance.choice([*value])
        action = chance.random()
        if action < 0.04:
            del value[key]
        elif action < 0.07 and is_list:
            value.insert(key, value[key])
        elif action < 0.09 and is_list:
            chance.shuffle(value)
        else:
            value[key] = self._changed(value[key])
        return value

    def _replaced(self, value: Any) -> Any:
        chance = self._chance
        if type(value) is int and chance.random() < 0.8:
            near = [
                *(value + 1, value - 1, value + 2, -value, value * 2 + 1, value + 7, 0, 1, 2, 3, 5, 1 << 20),
                *(1 << 61, 1 << 62, 1 << 63),
            ]
            return chance.choice(near)
        others: list[Callable[[], Any]] = [
            *(lambda: None, lambda: True, lambda: False, lambda: 0.5, lambda: float("nan"), lambda: float("inf")),
            *(lambda: "", lambda: "x", lambda: "{", lambda: '{"at": 5}', lambda: "[" * 5000, lambda: -1),
            *(lambda: 10**30, lambda: 10**5000, list, dict, lambda: {"a": 1}, lambda: nested(3)),
            *(lambda: nested(300), lambda: nested(20_000), lambda: [value], lambda: [value, value]),
            *(lambda: [0, None], lambda: [0, 0], lambda: [[0, 0], 1], lambda: float(1)),
        ]
        return chance.choice(others)()
