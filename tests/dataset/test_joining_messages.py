"""Errors of mixtures, tables and datasets that are read in order: each has the rule, the value and the remedy."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.errors import GraphError, NoLengthError, UsageError
from tests.dataset.functions import is_odd, noisy
from tests.messages import Case, anything, case, check_message

NUMBERS = ps.range(10)
ODD = NUMBERS.filter(is_odd)
ENDLESS = NUMBERS.repeat()
PARTS = {"web": NUMBERS, "code": NUMBERS}


def usage(call: Callable[[], object], *words: str) -> Case:
    """Return the case of a UsageError."""
    return case(call, UsageError, *words)


def graph(call: Callable[[], object], *words: str) -> Case:
    """Return the case of a GraphError."""
    return case(call, GraphError, *words)


VERBS: dict[str, Callable[..., object]] = {
    "mix": ps.mix,
    "concatenate": ps.concatenate,
    "interleave": ps.interleave,
    "zip": ps.zip,
}
NOT_PARTS: dict[str, tuple[object, str]] = {
    "a dataset": (NUMBERS, "parts must be a dict or a list of datasets; got Dataset"),
    "a number": (3, "parts must be a dict or a list of datasets; got int"),
    "nothing": ({}, "parts must have at least one dataset; got none"),
    "an empty list": ([], "parts must have at least one dataset; got none"),
    "a list of lists": ([[1]], "part '0' must be a Dataset; got list"),
    "a part that is none": ({"web": [1, 2]}, "part 'web' must be a Dataset; got list"),
    "a number for a name": ({3: NUMBERS}, 'a part\'s name must be a str of at least one character and no "/"; got 3'),
    "an empty name": ({"": NUMBERS}, "a part's name must be a str of at least one character and no \"/\"; got ''"),
    "a path for a name": ({"web/en": NUMBERS}, "and no \"/\"; got 'web/en'"),
}
JOINED: dict[str, Case] = {
    **{
        f"{verb}, {name}": usage(functools.partial(join, parts), words)
        for verb, join in VERBS.items()
        for name, (parts, words) in NOT_PARTS.items()
    },
    **{
        f"{verb}, seed": usage(functools.partial(join, PARTS, seed="7"), "seed must be a whole number; got seed='7'")
        for verb, join in VERBS.items()
    },
}

MIXED: dict[str, Case] = {
    "stop": usage(
        lambda: ps.mix(PARTS, stop=anything("last")), 'stop must be "first", "all" or "never"; got stop=\'last\''
    ),
    "measure": usage(lambda: ps.mix(PARTS, measure=anything(3)), "measure takes a function; got 3"),
    "weights in a list": usage(
        lambda: ps.mix(PARTS, anything([1, 2])), "weights must be a dict of a weight for each name", "got [1, 2]"
    ),
    "no weights": usage(lambda: ps.mix(PARTS, {}), "weights must be a dict of a weight for each name", "got {}"),
    "unknown part": usage(
        lambda: ps.mix(PARTS, {"web": 1, "books": 2}),
        "weights must name parts of the mixture, ['web', 'code']",
        "books",
    ),
    "all weights 0": usage(lambda: ps.mix(PARTS, {"web": 0}), "weight"),
    "negative weight": usage(lambda: ps.mix(PARTS, {"web": -1, "code": 2}), "weight", "-1"),
    "weight of text": usage(lambda: ps.mix(PARTS, anything({"web": "1"})), "weight", "'1'"),
    "not a number": usage(lambda: ps.mix(PARTS, {"web": float("nan")}), "weight", "nan"),
    "late schedule": usage(
        lambda: ps.mix(PARTS, {5: {"web": 1}}),
        "a schedule must have the weights from position 0 on; its positions are [5]",
    ),
    "negative position": usage(
        lambda: ps.mix(PARTS, {0: {"web": 1}, -5: {"web": 1}}), "a position of the schedule must be at least 0"
    ),
    "schedule of numbers": usage(
        lambda: ps.mix(PARTS, anything({0: 1})), "weights must be a dict of a weight for each name; got 1"
    ),
    "an empty part without end": graph(
        lambda: ps.mix({"web": NUMBERS, "none": ps.range(0)}, stop="never"),
        "stop=\"never\" repeats every part, and 'none' is empty. Leave it out.",
    ),
    "measure of text": graph(
        lambda: list(ps.mix(PARTS, measure=anything(str))), "measure must return a whole number of at least 0; got '0'"
    ),
    "negative measure": graph(
        lambda: list(ps.mix(PARTS, measure=lambda number: -1 - number)), "measure must return a whole number", "got -1"
    ),
    "a mixture read in order": graph(
        lambda: ps.mix({"web": NUMBERS, "odd": ODD}).shuffle(),
        "shuffle() needs a dataset whose elements have positions",
        "filter(is_odd) (part 'odd' of mix({web: …, odd: …})) can only be read in order. Use shuffle() before it.",
    ),
    "length of a mixture read in order": case(
        lambda: len(ps.mix(PARTS, measure=int)), NoLengthError, "mix({web: …, code: …}) can only be read in order"
    ),
    "length without end": case(lambda: len(ps.mix(PARTS, stop="never")), NoLengthError, "repeats without end"),
    "unequal": graph(
        lambda: ps.zip({"x": NUMBERS, "y": ps.range(3)}),
        "zip needs parts of equal lengths; got {'x': 10, 'y': 3}.",
        'Pass unequal="shortest" to end with the shortest.',
    ),
    "unequal, read in order": graph(
        lambda: list(ps.Loader(ps.zip({"x": NUMBERS, "y": ODD}))),
        "zip needs parts of equal lengths; ['x'] had elements left when another part had ended.",
        'Pass unequal="shortest"',
    ),
    "unequal, by the definition": graph(lambda: list(ps.zip([NUMBERS, ODD])), "zip needs parts of equal lengths"),
    "unequal=longest": usage(
        lambda: ps.zip([NUMBERS], unequal=anything("longest")),
        'unequal must be "error" or "shortest"; got unequal=\'longest\'',
    ),
}


class Twice:
    """A stream in place of the function that opens it."""

    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


class Unsaved(Twice):
    """A stream whose state is no JSON value."""

    def get_state(self) -> object:
        """Return a state that can't be saved."""
        return object()

    def set_state(self, state: object) -> None:
        """Do nothing."""


def numbers() -> list[int]:
    """Return the elements of a stream."""
    return [1, 2]


def pair(number: int) -> list[int]:
    """Return a number twice."""
    return [number, number]


STREAMS: dict[str, Case] = {
    "an iterator": usage(
        lambda: ps.stream(iter([1])),
        "a stream must be iterable any number of times; a list_iterator can be iterated over only once.",
        "Pass a function that makes it, such as stream(lambda: …).",
    ),
    "a generator": usage(lambda: ps.stream(number for number in [1]), "a generator can be iterated over only once"),
    "a number": usage(
        lambda: ps.stream(anything(3)), "stream takes an iterable, or a function that makes one; got int"
    ),
    "seed": usage(lambda: ps.stream([1], seed=anything(None)), "seed must be a whole number; got seed=None"),
    "indexed": graph(
        lambda: ps.stream([1])[0], "indexing needs a dataset whose elements have positions", "stream(list) can only"
    ),
    "length": case(lambda: len(ps.stream(Twice())), NoLengthError, "can only be read in order, so its number"),
    "shuffled": graph(lambda: ps.stream(numbers).shuffle(), "stream(numbers) can only be read in order."),
    "repeated as it is": graph(
        lambda: ps.stream([1]).repeat(reshuffle=False),
        "reshuffle=False needs positions. Use repeat before the step that has none.",
    ),
    "a state that is no JSON": graph(
        lambda: list(ps.Loader(ps.stream(Unsaved()))), "the state of a stream must be a JSON value", "Unsaved is not"
    ),
}

ABOVE_A_FILTER: dict[str, Case] = {
    f"{verb} above a filter": graph(call, f"{verb} needs a dataset whose elements have positions", f"Use {verb} before")
    for verb, call in {
        "sample()": lambda: ODD.sample([1]),
        "balance()": lambda: ODD.balance([1]),
        "windows()": lambda: ODD.windows(2, lengths=[1]),
        "cache()": lambda: ODD.cache(),
        "flat_map(…, counts=…)": lambda: ODD.flat_map(pair, counts=[2]),
    }.items()
}
WITHOUT_END: dict[str, Case] = {
    f"{verb} without end": graph(call, f"{verb} needs a dataset with an end", "Use take(n) first.")
    for verb, call in {
        "sample()": lambda: ENDLESS.sample([1]),
        "balance()": lambda: ENDLESS.balance([1]),
        "windows()": lambda: ENDLESS.windows(2, lengths=[1]),
        "cache()": lambda: ENDLESS.cache(),
        "flat_map(…, counts=…)": lambda: ENDLESS.flat_map(pair, counts=[2]),
    }.items()
}
ABOVE_A_SHUFFLE: dict[str, Case] = {
    f"{verb} above a shuffle": graph(
        call,
        f"{verb} relies on the positions of elements, and read(Range(0, 10, 1)).shuffle() has another order",
        "shuffle after it, or fix the order with epoch(0).",
    )
    for verb, call in {
        "windows()": lambda: NUMBERS.shuffle().windows(2, lengths=[1] * 10),
        "cache()": lambda: NUMBERS.shuffle().cache(),
        "flat_map(…, counts=…)": lambda: NUMBERS.shuffle().flat_map(pair, counts=[2] * 10),
    }.items()
}

TABLES: dict[str, Case] = {
    "too few weights": usage(
        lambda: NUMBERS.sample([1, 2]), "weights must be one for each of the 10 elements; got shape (2,)"
    ),
    "weights of 0": usage(lambda: NUMBERS.sample([0] * 10), "weight"),
    "negative weights": usage(lambda: NUMBERS.sample([-1] * 10), "weight", "-1"),
    "weights that are no numbers": usage(lambda: NUMBERS.sample(anything(["a"] * 10)), "weight"),
    "samples": usage(lambda: NUMBERS.sample([1] * 10, -1), "count must be at least 0", "got count=-1"),
    "too few labels": usage(
        lambda: NUMBERS.balance(["a", "b"]), "labels must be one for each of the 10 elements; got shape (2,)"
    ),
    "labels that are floats": usage(lambda: NUMBERS.balance(np.ones(10)), "labels must be", "float64"),
    "balanced": usage(lambda: NUMBERS.balance([1] * 10, anything(1.5)), "count must be a whole number; got count=1.5"),
    "too few counts": usage(
        lambda: NUMBERS.flat_map(pair, counts=[2]), "counts must be one for each of the 10 elements; got shape (1,)"
    ),
    "negative counts": usage(lambda: NUMBERS.flat_map(pair, counts=[-1] * 10), "count", "-1"),
    "counts that are floats": usage(lambda: NUMBERS.flat_map(pair, counts=anything(np.ones(10) / 2)), "count"),
    "flat_map": usage(lambda: NUMBERS.flat_map(anything(3)), "flat_map takes a function; got 3"),
    "no list": graph(
        lambda: list(NUMBERS.flat_map(anything(str))), "must return a list of elements", "'str'", "got a str"
    ),
    "no list, indexed": graph(
        lambda: NUMBERS.flat_map(anything(int), counts=[1] * 10)[0], "must return a list of elements; got a int."
    ),
    "other counts": graph(
        lambda: list(NUMBERS.flat_map(pair, counts=[1] * 10)),
        "step 'pair' made 2 elements of the one at position 0, where counts= says 1.",
        "Give the counts that the function makes, or leave counts= out and read in order.",
    ),
    "lengths": usage(
        lambda: NUMBERS.windows(2, lengths=[3]), "lengths must be one for each of the 10 elements; got shape (1,)"
    ),
    "negative lengths": usage(lambda: NUMBERS.windows(2, lengths=[-1] * 10), "length", "-1"),
    "windows of nothing": usage(lambda: NUMBERS.windows(0, lengths=[1] * 10), "length", "0"),
    "stride of 0": usage(lambda: NUMBERS.windows(2, 0, lengths=[1] * 10), "stride", "0"),
    "partial": usage(lambda: NUMBERS.windows(2, lengths=[1] * 10, partial=anything("keep")), "partial", "'keep'"),
    "mask of windows": usage(
        lambda: NUMBERS.windows(2, lengths=[1] * 10, mask=""), "name must be a str of at least one character"
    ),
}

CACHED: dict[str, Case] = {
    "random": graph(
        lambda: NUMBERS.random_map(noisy).cache(),
        "cache() would repeat the random numbers of step 'noisy' in every epoch. Put it before.",
    ),
    "a lambda on disk": graph(
        lambda: NUMBERS.map(lambda number: number).cache("cached"),
        "a cache on disk must distinguish versions of step",
        "which is a lambda or a local function.",
        'Define it in a module, or pass version="1" and change that with the code.',
    ),
    "size": usage(lambda: NUMBERS.cache(size=0), "size must be a number of bytes above 0", "got size=0"),
    "size of text": usage(lambda: NUMBERS.cache(size="much"), "or text such as \"2GiB\"; got size='much'"),
    "size of a bool": usage(lambda: NUMBERS.cache(size=True), "size must be a number of bytes", "got size=True"),
}

COUNTS: dict[str, Case] = {
    "limit(-1)": usage(lambda: ODD.limit(-1), "count must be at least 0 and at most 2**62; got count=-1"),
    "limit(1.0)": usage(lambda: ODD.limit(anything(1.0)), "count must be a whole number; got count=1.0"),
    "limit with positions": usage(lambda: NUMBERS.limit(-1), "count must be at least 0"),
    "limit of ranks": graph(
        lambda: list(ps.Loader(ODD.batch(2).limit(9), shard=ps.Shard(0, 2))),
        "all ranks must have the 9 elements of limit(9), so that they end on the same step",
        "this rank ran out of data after 0. Lower the limit, or use repeat() before it.",
    ),
    "window_shuffle(0)": usage(lambda: ODD.window_shuffle(0), "size must be at least 1", "got size=0"),
    "window_shuffle(True)": usage(
        lambda: ODD.window_shuffle(anything(True)),  # noqa: FBT003 - what may not be given
        "size must be a whole number; got size=True",
    ),
    "window_shuffle's name": usage(
        lambda: ODD.window_shuffle(3, name=""), "name must be a str of at least one character"
    ),
    "two of a name": graph(
        lambda: ODD.window_shuffle(3, name="mine").window_shuffle(3, name="mine"),
        "two steps can't share the name 'mine'; give one of them another name=",
    ),
    "rebatch(0)": usage(lambda: NUMBERS.batch(2).rebatch(0), "size must be at least 1", "got size=0"),
    "rebatch's remainder": usage(
        lambda: NUMBERS.batch(2).rebatch(3, remainder=anything("cut")),
        'remainder must be "keep", "drop" or "pad"; got remainder=\'cut\'',
    ),
    "rebatch of elements": usage(lambda: list(NUMBERS.rebatch(3)), "every leaf of a batch must have a row axis"),
    "repeat(0)": usage(lambda: ODD.repeat(0), "times must be at least 1", "got times=0"),
}

ALL = {
    "joined": JOINED,
    "mixed": MIXED,
    "streams": STREAMS,
    "above a filter": ABOVE_A_FILTER,
    "without end": WITHOUT_END,
    "above a shuffle": ABOVE_A_SHUFFLE,
    "tables": TABLES,
    "cached": CACHED,
    "counts": COUNTS,
}
CASES = {f"{table}: {name}": one for table, cases in ALL.items() for name, one in cases.items()}


@pytest.mark.parametrize("name", CASES)
def test_the_message_of_a_wrong_call(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has its class, and states the rule, the value and the remedy."""
    monkeypatch.chdir(tmp_path)  # a refused path must not leave a folder elsewhere
    check_message(CASES[name])
    assert not list(tmp_path.iterdir())
