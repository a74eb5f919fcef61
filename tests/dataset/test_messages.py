"""Errors of the verbs: each has the rule, the value and the remedy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import GraphError, NoLengthError, SourceError, UsageError
from tests.dataset.functions import Squares, double, is_odd, noisy
from tests.messages import Case, anything, case, check_message

NUMBERS = ps.range(10)
ODD = NUMBERS.filter(is_odd)
ENDLESS = NUMBERS.repeat()


class NoLength:
    """A source without a length."""

    def __len__(self) -> int:
        raise TypeError("unknown length")

    def __getitem__(self, key: int) -> int:
        return key


SOURCES: dict[str, Case] = {
    "str": case(
        lambda: ps.read(__file__),
        UsageError,
        "test_messages.py' is unknown: it begins with b'",
        "Known are files that end in .npy",
        "ps.read(ps.sources.Tokens(path, 1025, dtype='uint16'))",
    ),
    "path": case(lambda: ps.read(Path("train")), SourceError, "Check the path"),
    "generator": case(
        lambda: ps.read(iter([1])), UsageError, "a list_iterator", "ps.read(list(it)) if it fits into memory"
    ),
    "class": case(lambda: ps.read(Squares), UsageError, "That is the class itself: create an instance of it."),
    "None": case(lambda: ps.read(None), UsageError, "got None, a NoneType"),
    "no length": case(lambda: ps.read(NoLength()), UsageError, "len() of", "TypeError: unknown length"),
    "ragged": case(
        lambda: ps.read({"x": [1, 2], "y": [1]}), UsageError, "all arrays must have one length", "x: 2, y: 1"
    ),
    "no arrays": case(lambda: ps.read({}), UsageError, "must have at least one array"),
    "seed of text": case(
        lambda: ps.read([1], seed=anything("7")), UsageError, "seed must be a whole number; got seed='7'"
    ),
    "seed of a float": case(
        lambda: ps.range(3, seed=anything(1.5)), UsageError, "seed must be a whole number", "seed=1.5"
    ),
    "seed of a bool": case(lambda: ps.range(3, seed=True), UsageError, "seed must be a whole number; got seed=True"),
    "step of 0": case(lambda: ps.read(ps.sources.Range(0, 3, 0)), UsageError, "step must not be 0; got step=0"),
    "too large": case(lambda: ps.range(2**64), UsageError, "all integers must fit into int64"),
}

ORDERS: dict[str, Case] = {
    "take(-1)": case(lambda: NUMBERS.take(-1), UsageError, "count must be at least 0 and at most 2**62; got count=-1"),
    "take(1.0)": case(lambda: NUMBERS.take(anything(1.0)), UsageError, "count must be a whole number; got count=1.0"),
    "take(True)": case(lambda: NUMBERS.take(True), UsageError, "count must be a whole number; got count=True"),  # noqa: FBT003 - what may not be given
    "skip(-1)": case(lambda: NUMBERS.skip(-1), UsageError, "count must be at least 0", "got count=-1"),
    "shard(4, 4)": case(lambda: NUMBERS.shard(4, 4), UsageError, "index must be in [0, count); got index=4, count=4"),
    "shard(-1, 4)": case(lambda: NUMBERS.shard(-1, 4), UsageError, "index must be at least 0", "got index=-1"),
    "shard(0, 0)": case(lambda: NUMBERS.shard(0, 0), UsageError, "count must be at least 1", "got count=0"),
    "select past the end": case(
        lambda: NUMBERS.select([3, 10]),
        UsageError,
        "positions must be in [-10, 10); got 10",
        "as number 1 of them. Take only positions that the parent has.",
    ),
    "select floats": case(
        lambda: NUMBERS.select(anything([1.5])), UsageError, "positions must be an int64 array", "float64"
    ),
    "short mask": case(
        lambda: NUMBERS.select([True, False]), UsageError, "a mask must have one bool for each of the 10"
    ),
    "split over 1": case(
        lambda: NUMBERS.split({"a": 0.7, "b": 0.4}),
        UsageError,
        "fractions must add up to at most 1",
        "{'a': 0.7, 'b': 0.4}",
        "Make one smaller.",
    ),
    "split of 0": case(lambda: NUMBERS.split({"a": 0}), UsageError, "a fraction must be a number over 0; got a=0"),
    "split of none": case(lambda: NUMBERS.split({}), UsageError, "a split must have at least one part"),
    "split's seed": case(
        lambda: NUMBERS.split({"a": 1}, seed=anything("1")), UsageError, "seed must be a whole number"
    ),
    "subset": case(
        lambda: NUMBERS.subset(11), UsageError, "count must be at most the dataset's length; got count=11, length=10"
    ),
    "repeat(0)": case(lambda: NUMBERS.repeat(0), UsageError, "times must be at least 1", "got times=0"),
    "repeat too often": case(
        lambda: NUMBERS.repeat(2**61),
        UsageError,
        "length * times must be at most 2**62",
        "Pass times=None to repeat without end.",
    ),
    "epoch(-1)": case(lambda: NUMBERS.epoch(-1), UsageError, "number must be at least 0", "got number=-1"),
    "reindex a list": case(
        lambda: NUMBERS.reindex(anything([1, 2])),
        UsageError,
        "sampler must have a length and be callable",
        "got [1, 2]",
        "Pass one such as penstock.sampling.Shuffle(length, seed).",
    ),
    "reindex a class": case(lambda: NUMBERS.reindex(anything(ps.sampling.Shuffle)), UsageError, "sampler must have"),
    "[::0]": case(lambda: NUMBERS[::0], UsageError, "step must not be 0", "Omit it to take every element."),
}

ORDERED: dict[str, Case] = {
    verb: case(
        call,
        GraphError,
        f"{verb} needs a dataset whose elements have positions, and read(Range(0, 10, 1))"
        ".filter(is_odd) can only be read in order.",
        f"Use {verb.removesuffix('()')}",
    )
    for verb, call in {
        "shuffle()": lambda: ODD.shuffle(),
        "shard()": lambda: ODD.shard(0, 2),
        "take()": lambda: ODD.take(3),
        "skip()": lambda: ODD.skip(3),
        "select()": lambda: ODD.select([0]),
        "split()": lambda: ODD.split({"a": 1}),
        "subset()": lambda: ODD.subset(1),
        "epoch()": lambda: ODD.epoch(0),
        "reindex()": lambda: ODD.reindex(ps.sampling.Slice(0, 1, 1)),
    }.items()
}

WITHOUT_END: dict[str, Case] = {
    verb: case(
        call,
        GraphError,
        f"{verb} needs a dataset with an end, and read(Range(0, 10, 1)).repeat() has none. Use take(n) first.",
    )
    for verb, call in {
        "shuffle()": lambda: ENDLESS.shuffle(),
        "shard()": lambda: ENDLESS.shard(0, 2),
        "skip()": lambda: ENDLESS.skip(3),
        "select()": lambda: ENDLESS.select([0]),
        "split()": lambda: ENDLESS.split({"a": 1}),
        "subset()": lambda: ENDLESS.subset(1),
        "repeat()": lambda: ENDLESS.repeat(2),
    }.items()
}

ELEMENTS: dict[str, Case] = {
    "map": case(lambda: NUMBERS.map(anything(3)), UsageError, "map takes a function; got 3"),
    "random_map": case(
        lambda: NUMBERS.random_map(anything("flip")), UsageError, "random_map takes a function; got 'flip'"
    ),
    "map_with_origin": case(
        lambda: NUMBERS.map_with_origin(anything(None)), UsageError, "map_with_origin takes a function"
    ),
    "filter": case(lambda: NUMBERS.filter(anything([])), UsageError, "filter takes a function; got []"),
    "on_error": case(
        lambda: NUMBERS.map(double, on_error=anything("ignore")),
        UsageError,
        'on_error must be "raise", "skip" or ps.Substitute(…); got on_error=\'ignore\'',
    ),
    "on_error of a class": case(
        lambda: NUMBERS.map(double, on_error=anything(ps.Substitute)), UsageError, "on_error must be"
    ),
    "on_error of a list": case(
        lambda: NUMBERS.map(double, on_error=anything(["skip"])), UsageError, "got on_error=['skip']"
    ),
    "attempts": case(lambda: NUMBERS.map(double, on_error=ps.Substitute(0)), UsageError, "attempts must be at least 1"),
    "budget": case(
        lambda: NUMBERS.map(double, on_error=ps.Substitute(budget=-1)), UsageError, "budget must be at least 0"
    ),
    "rng": case(
        lambda: NUMBERS.random_map(noisy, rng=anything("numpy")),
        UsageError,
        'rng must be "generator", "seed" or "jax"; got rng=\'numpy\'',
    ),
    "name": case(
        lambda: NUMBERS.map(double, name=anything(3)), UsageError, "name must be a str of at least one character"
    ),
    "batch(0)": case(lambda: NUMBERS.batch(0), UsageError, "size must be at least 1 and at most 2**62; got size=0"),
    "batch of text": case(
        lambda: NUMBERS.batch(anything("8")), UsageError, "size must be a whole number; got size='8'"
    ),
    "remainder": case(
        lambda: NUMBERS.batch(2, remainder=anything("cut")),
        UsageError,
        'remainder must be "keep", "drop" or "pad"; got remainder=\'cut\'',
    ),
    "merge": case(lambda: NUMBERS.batch(2, merge=anything("stack")), UsageError, "merge takes a function; got 'stack'"),
    "padded length": case(
        lambda: NUMBERS.padded_batch(2, length=0), UsageError, "length must be at least 1", "length=0"
    ),
    "padded mask": case(
        lambda: NUMBERS.padded_batch(2, mask=""), UsageError, "mask must name the leaf to add; got mask=''"
    ),
    "padded_batch(-1)": case(lambda: NUMBERS.padded_batch(-1), UsageError, "size must be at least 1", "got size=-1"),
}


class Short(Squares):
    """A source with fewer records than its length says."""

    def __getitem__(self, key: int) -> int:
        return [0, 1, 4][key]


class Wrong(Squares):
    """A source whose `read` returns another number of records than requested."""

    def read(self, keys: Any) -> list[int]:
        """Return one record too many."""
        return [0] * (len(keys) + 1)


class OneNumber:
    """A sampler that forgets the epoch."""

    def __len__(self) -> int:
        return 3

    def __call__(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the position alone."""
        del epoch
        return anything(position)  # type: ignore[no-any-return]  # what may not be returned


EVALUATED: dict[str, Case] = {
    "short source": case(
        lambda: list(ps.read(Short(9))),
        SourceError,
        "the source says that its length is 9, but it raised",
        "IndexError for key 3",
        "must have a record for every key",
    ),
    "wrong number": case(
        lambda: list(ps.Loader(ps.read(Wrong(9)).batch(4))),
        SourceError,
        "must return one record for each of",
        "in the order of the keys",
    ),
    "shapes": case(
        lambda: ps.range(4).map(lambda number: np.zeros(2 + number % 2)).batch(4)[0],
        UsageError,
        "a leaf must be of one dtype and shape in all rows",
        "(2,) in row 0 and float64 of shape (3,) in row 1",
        "pad it with .padded_batch(n)",
    ),
    "dtypes": case(lambda: ps.read([1, 2.5]).batch(2)[0], UsageError, "is int64 in row 0 and float64 in row 1"),
    "structures": case(
        lambda: ps.read([{"a": 1}, {"b": 1}]).batch(2)[0],
        UsageError,
        "must have one structure",
        "has the key 'a' in row 0 but not in row 1",
    ),
    "objects": case(
        lambda: ps.range(2).map(lambda _: object()).batch(2)[0], UsageError, "of row 0 is a object", "merge=…"
    ),
    "sampler": case(
        lambda: list(ps.Loader(NUMBERS.reindex(OneNumber()).batch(3))), UsageError, "a sampler must return two integers"
    ),
    "unbatch": case(lambda: list(NUMBERS.unbatch()), UsageError, "every leaf of a batch must have a row axis"),
    "mask": case(lambda: list(NUMBERS.batch(2, mask="m")), GraphError, "mask='m' must name a new leaf of a dict"),
    "len of filter": case(lambda: len(ODD), NoLengthError, "filter(is_odd) can only be read in order, so its number"),
    "len of skip": case(lambda: len(NUMBERS.map(double, on_error="skip")), NoLengthError, "on_error='skip')"),
    "len of endless": case(lambda: len(ENDLESS.batch(2)), NoLengthError, "repeats without end", "Use take(n) first."),
    "index of filter": case(lambda: ODD[0], GraphError, "indexing needs a dataset whose elements have positions"),
    "negative index of endless": case(
        lambda: ENDLESS[-1], GraphError, "repeats without end", "got [-1]. Count from the start"
    ),
}

TABLES = {
    "sources": SOURCES,
    "orders": ORDERS,
    "ordered": ORDERED,
    "without end": WITHOUT_END,
    "elements": ELEMENTS,
    "evaluated": EVALUATED,
}
CASES = {f"{table}: {name}": case for table, cases in TABLES.items() for name, case in cases.items()}


@pytest.mark.parametrize("name", CASES)
def test_the_message_of_a_wrong_call(name: str) -> None:
    """The error has its class, and states the rule, the value and the remedy."""
    check_message(CASES[name])
