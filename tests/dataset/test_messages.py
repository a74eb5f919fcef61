"""Errors of datasets and their verbs: each has the rule, the value and the remedy."""

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.batching import Pad
from penstock.errors import GraphError, NoLengthError, SourceError, UsageError
from tests.dataset.functions import Squares, double, is_odd, noisy
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


VERBS: list[Callable[..., object]] = [ps.mix, ps.concatenate, ps.interleave, ps.zip]


NAME = 'a part\'s name must be a str of at least one character and no "/"'
NOT_PARTS: list[tuple[object, str]] = [
    (NUMBERS, "parts must be a dict or a list of datasets; got Dataset"),
    (3, "parts must be a dict or a list of datasets; got int"),
    ({}, "parts must have at least one dataset; got none"),
    ([], "parts must have at least one dataset; got none"),
    ([[1]], "part '0' must be a Dataset; got list. Make one with ps.read(…)."),
    ({"web": [1, 2]}, "part 'web' must be a Dataset; got list"),
    *(({name: NUMBERS}, f"{NAME}; got {name!r}") for name in (3, "", "web/en")),
]


JOINED: list[Case] = [
    *(
        usage(functools.partial(join, parts), words)
        for join, (parts, words) in zip(itertools.cycle(VERBS), NOT_PARTS, strict=False)
    ),
    *(usage(functools.partial(join, PARTS, seed="7"), "seed must be a whole number; got seed='7'") for join in VERBS),
]


MIXED: list[Case] = [
    usage(lambda: ps.mix(PARTS, stop=anything("last")), 'stop must be "first", "all" or "never"; got stop=\'last\''),
    usage(lambda: ps.mix(PARTS, measure=anything(3)), "measure takes a function; got 3"),
    *(
        usage(functools.partial(ps.mix, PARTS, anything(weights)), *words)
        for weights, words in (
            ([1, 2], ("weights must be a dict with a weight for each name", "got [1, 2]")),
            ({}, ("weights must be a dict with a weight for each name", "got {}")),
            ({0: 1}, ("weights must be a dict with a weight for each name; got 1",)),
            ({"web": 1, "books": 2}, ("weights must name parts of the mixture, ['web', 'code']", "books")),
            ({"web": 0}, ("weight",)),
            ({"web": -1, "code": 2}, ("weight", "-1")),
            ({"web": "1"}, ("weight", "'1'")),
            ({"web": float("nan")}, ("weight", "nan")),
            ({5: {"web": 1}}, ("a schedule must have the weights from position 0 on; its positions are [5]",)),
            ({0: {"web": 1}, -5: {"web": 1}}, ("schedule position must be at least 0",)),
        )
    ),
    graph(lambda: ps.mix({"web": NUMBERS.filter(bool), "none": ps.range(0)}, stop="never"), "part 'none' is empty"),
    graph(
        lambda: ps.mix({"web": NUMBERS, "none": ps.range(0)}, stop="never"),
        "stop=\"never\" repeats every part, and part 'none' is empty. Leave this part out.",
    ),
    graph(
        lambda: list(ps.mix(PARTS, measure=anything(str))), "measure must return a whole number of at least 0; got '0'"
    ),
    graph(
        lambda: list(ps.mix(PARTS, measure=lambda number: -1 - number)), "measure must return a whole number", "got -1"
    ),
    graph(
        lambda: ps.mix({"web": NUMBERS, "odd": ODD}).shuffle(),
        "shuffle() needs a dataset whose elements have positions",
        "filter(is_odd) (part 'odd' of mix({web: …, odd: …})) can only be read in order. Use shuffle() before it.",
    ),
    case(lambda: len(ps.mix(PARTS, measure=int)), NoLengthError, "mix({web: …, code: …}) can only be read in order"),
    case(lambda: len(ps.mix(PARTS, stop="never")), NoLengthError, "repeats without end"),
    graph(
        lambda: ps.zip({"x": NUMBERS, "y": ps.range(3)}),
        "zip needs parts of equal lengths; got {'x': 10, 'y': 3}.",
        'Pass unequal="shortest" to end with the shortest.',
    ),
    graph(
        lambda: list(ps.Loader(ps.zip({"x": NUMBERS, "y": ODD}))),
        "zip needs parts of equal lengths; ['x'] had elements left when another part had ended.",
        'Pass unequal="shortest"',
    ),
    graph(
        lambda: list(ps.zip({"x": ODD, "y": NUMBERS})),
        "zip needs parts of equal lengths; ['y'] had elements left when another part had ended.",
        'Pass unequal="shortest"',
    ),
    usage(
        lambda: ps.zip([NUMBERS], unequal=anything("longest")),
        'unequal must be "error" or "shortest"; got unequal=\'longest\'',
    ),
]


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


STREAMS: list[Case] = [
    usage(
        lambda: ps.stream(iter([1])),
        "a stream must be iterable any number of times; a list_iterator can be iterated over only once.",
        "Pass a function that makes it, such as stream(lambda: …).",
    ),
    usage(lambda: ps.stream(number for number in [1]), "a generator can be iterated over only once"),
    usage(lambda: ps.stream(anything(3)), "stream takes an iterable, or a function that makes one; got int"),
    usage(lambda: ps.stream([1], seed=anything(None)), "seed must be a whole number; got seed=None"),
    graph(lambda: ps.stream([1])[0], "indexing needs a dataset whose elements have positions", "stream(list) can only"),
    case(lambda: len(ps.stream(Twice())), NoLengthError, "can only be read in order, so its number"),
    graph(lambda: ps.stream(numbers).shuffle(), "stream(numbers) can only be read in order."),
    graph(
        lambda: ps.stream([1]).repeat(reshuffle=False),
        "reshuffle=False needs positions. Use repeat before the step that has none.",
    ),
    graph(
        lambda: list(ps.Loader(ps.stream(Unsaved()))), "the state of a stream must be a JSON value", "Unsaved is not"
    ),
]


BY_PARTS = "reads its parts in order, so {} would repeat each of them by itself, and not the whole. {}"
POSITIONS = "Give the parts positions, such as by filter(…, index=path), or repeat each of them."
NEVER = 'Pass stop="never" to mix, which repeats each part by itself.'
WITHOUT = "Or leave repeat() out, since a Loader begins the next epoch by itself."


REPEATED: list[Case] = [
    graph(
        ps.concatenate({"a": NUMBERS, "b": ODD}).batch(2).repeat,
        f"concatenate({{a: …, b: …}}) {BY_PARTS.format('repeat()', f'{POSITIONS} {WITHOUT}')}",
    ),
    graph(lambda: ps.mix([ODD, ODD]).repeat(2), BY_PARTS.format("repeat(2)", f"{NEVER} {WITHOUT}")),
    graph(
        lambda: ps.mix({"a": ps.zip(ODD, ODD), "b": NUMBERS}, stop="never"),
        BY_PARTS.format("mix(stop=\"never\") over part 'a'", POSITIONS),
    ),
]


OF_POSITIONS: dict[str, Callable[[ps.Dataset], object]] = {
    "shuffle()": lambda dataset: dataset.shuffle(),
    "shard()": lambda dataset: dataset.shard(0, 2),
    "skip()": lambda dataset: dataset.skip(3),
    "select()": lambda dataset: dataset.select([0]),
    "split()": lambda dataset: dataset.split({"a": 1}),
    "subset()": lambda dataset: dataset.subset(1),
    "sample()": lambda dataset: dataset.sample([1]),
    "balance()": lambda dataset: dataset.balance([1]),
    "windows()": lambda dataset: dataset.windows(2, lengths=[1]),
    "cache()": lambda dataset: dataset.cache(),
    "flat_map(…, counts=…)": lambda dataset: dataset.flat_map(pair, counts=[2]),
}
OF_AN_END: dict[str, Callable[[ps.Dataset], object]] = {
    **OF_POSITIONS,
    "repeat()": lambda dataset: dataset.repeat(2),
}
OF_AN_ORDER: dict[str, Callable[[ps.Dataset], object]] = {
    **OF_POSITIONS,
    "take()": lambda dataset: dataset.take(3),
    "epoch()": lambda dataset: dataset.epoch(0),
    "reindex()": lambda dataset: dataset.reindex(ps.sampling.Slice(0, 1, 1)),
}


ABOVE_A_FILTER: list[Case] = [
    graph(
        functools.partial(call, ODD),
        f"{verb} needs a dataset whose elements have positions, and read(Range(0, 10, 1))"
        ".filter(is_odd) can only be read in order.",
        f"{verb} before it.",
    )
    for verb, call in OF_AN_ORDER.items()
]


WITHOUT_END: list[Case] = [
    graph(
        functools.partial(call, ENDLESS),
        f"{verb} needs a dataset with an end, and read(Range(0, 10, 1)).repeat() has none. Use take(n) first.",
    )
    for verb, call in OF_AN_END.items()
]


ABOVE_A_SHUFFLE: list[Case] = [
    graph(
        call,
        f"{verb} relies on the positions of elements, and read(Range(0, 10, 1)).shuffle() has another order",
        "shuffle after it, or fix the order by reindex(FixedOrder(Shuffle(n, seed))), of penstock.sampling",
        "epoch(0) fixes random steps, too, also those above it.",
    )
    for verb, call in {
        "windows()": lambda: NUMBERS.shuffle().windows(2, lengths=[1] * 10),
        "cache()": lambda: NUMBERS.shuffle().cache(),
        "flat_map(…, counts=…)": lambda: NUMBERS.shuffle().flat_map(pair, counts=[2] * 10),
    }.items()
]


def frames(number: int) -> Any:
    """Return an array that is longer by one, or fail."""
    if not number:
        raise ValueError(number)
    return np.zeros(number + 1)


REPLACED = ps.range(9).map(frames, on_error=ps.Substitute())
SUBSTITUTE = "(on_error=Substitute()), its length must be the same; the log and loader.replaced() have"


TABLES: list[Case] = [
    usage(lambda: NUMBERS.sample([1, 2]), "weights must be one for each of the 10 elements; got shape (2,)"),
    usage(lambda: NUMBERS.sample([0] * 10), "weight"),
    usage(lambda: NUMBERS.sample([-1] * 10), "weight", "-1"),
    usage(lambda: NUMBERS.sample(anything(["a"] * 10)), "weight"),
    usage(lambda: NUMBERS.sample([1] * 10, -1), "count must be at least 0", "got count=-1"),
    usage(lambda: NUMBERS.balance(["a", "b"]), "labels must be one for each of the 10 elements; got shape (2,)"),
    usage(lambda: NUMBERS.balance(np.ones(10)), "labels must be", "float64"),
    usage(lambda: NUMBERS.balance([1] * 10, anything(1.5)), "count must be a whole number; got count=1.5"),
    usage(lambda: NUMBERS.flat_map(pair, counts=[2]), "counts must be one for each of the 10 elements; got shape (1,)"),
    usage(lambda: NUMBERS.flat_map(pair, counts=[-1] * 10), "count", "-1"),
    usage(lambda: NUMBERS.flat_map(pair, counts=anything(np.ones(10) / 2)), "count"),
    usage(lambda: NUMBERS.flat_map(anything(3)), "flat_map takes a function; got 3"),
    graph(lambda: list(NUMBERS.flat_map(anything(str))), "must return a list of elements", "'str'", "got a str"),
    graph(lambda: NUMBERS.flat_map(anything(int), counts=[1] * 10)[0], "must return a list of elements; got a int."),
    graph(
        lambda: list(NUMBERS.flat_map(pair, counts=[1] * 10)),
        "step 'pair' made 2 elements of the one at position 0, where counts= says 1.",
        "Give the counts that the function makes, or leave counts= out and read in order.",
    ),
    graph(lambda: REPLACED.pack(9, lengths=range(1, 10))[0], "of the dataset before pack(), in its order.", SUBSTITUTE),
    graph(lambda: list(REPLACED.bucket(len, [3, 9], rows=1, lengths=range(1, 10))), "before bucket()", SUBSTITUTE),
    graph(lambda: list(REPLACED.windows(1, lengths=range(1, 10))), "in a map above windows().", SUBSTITUTE),
    usage(lambda: NUMBERS.windows(2, lengths=[3]), "lengths must be one for each of the 10 elements; got shape (1,)"),
    usage(lambda: NUMBERS.windows(2, lengths=[-1] * 10), "length", "-1"),
    usage(lambda: NUMBERS.windows(0, lengths=[1] * 10), "length", "0"),
    usage(lambda: NUMBERS.windows(2, 0, lengths=[1] * 10), "stride", "0"),
    usage(lambda: NUMBERS.windows(2, lengths=[1] * 10, partial=anything("keep")), "partial", "'keep'"),
    usage(lambda: NUMBERS.windows(2, lengths=[1] * 10, mask=""), "name must be a str of at least one character"),
]


CACHED: list[Case] = [
    graph(
        lambda: NUMBERS.random_map(noisy).cache(),
        "cache() would repeat the random numbers of step 'noisy' in every epoch. Put it before.",
    ),
    graph(
        lambda: NUMBERS.map(lambda number: number).cache("cached"),
        "a cache on disk must distinguish versions of step",
        "which is a lambda or a local function.",
        'Define it in a module, or pass version="1" and change that with the code.',
    ),
    usage(lambda: NUMBERS.cache(size=0), "size must be a number of bytes above 0", "got size=0"),
    usage(lambda: NUMBERS.cache(size="much"), "or text such as \"2GiB\"; got size='much'"),
    usage(lambda: NUMBERS.cache(size=True), "size must be a number of bytes", "got size=True"),
    usage(
        lambda: NUMBERS.cache(Path("s3://bucket/cache")),
        "where must be the path of a local file or folder; got PosixPath('s3:/bucket/cache').",
        "Copy or mount what is there.",
    ),
    usage(lambda: NUMBERS.cache(anything(123)), "local file or folder; got 123. Pass a str"),
    usage(lambda: NUMBERS.cache(""), "got ''. Pass a str of at least one character"),
    usage(lambda: NUMBERS.cache("~/cache"), "~ isn't expanded: pass os.path.expanduser(path)."),
    usage(lambda: NUMBERS.filter(is_odd, index="~/a.index"), "index must be", "~ isn't expanded"),
    usage(lambda: NUMBERS.cache(version=anything(1)), "version must be a str; got version=1."),
]


COUNTS: list[Case] = [
    usage(lambda: ODD.limit(-1), "count must be at least 0 and at most 2**62; got count=-1"),
    usage(lambda: ODD.limit(anything(1.0)), "count must be a whole number; got count=1.0"),
    usage(lambda: NUMBERS.batch(anything(np.array([2]))), "size must be a whole number; got size="),
    usage(lambda: NUMBERS.limit(-1), "count must be at least 0"),
    graph(
        lambda: list(ps.Loader(ODD.batch(2).limit(9), shard=ps.Shard(0, 2))),
        "all ranks must have the 9 elements of limit(9), so that they end on the same step",
        "this rank ran out of data after 0. Lower the limit, or use repeat() before it.",
    ),
    usage(lambda: ODD.window_shuffle(0), "size must be at least 1", "got size=0"),
    usage(
        lambda: ODD.window_shuffle(anything(True)),  # noqa: FBT003 - what may not be given
        "size must be a whole number; got size=True",
    ),
    usage(lambda: ODD.window_shuffle(3, name=""), "name must be a str of at least one character"),
    graph(
        lambda: ODD.window_shuffle(3, name="mine").window_shuffle(3, name="mine"),
        "two steps can't share the name 'mine'; give one of them another name=",
    ),
    usage(lambda: NUMBERS.batch(2).rebatch(0), "size must be at least 1", "got size=0"),
    usage(
        lambda: NUMBERS.batch(2).rebatch(3, remainder=anything("cut")),
        'remainder must be "keep", "drop" or "pad"; got remainder=\'cut\'',
    ),
    usage(lambda: list(NUMBERS.rebatch(3)), "every leaf of a batch must have a row axis"),
    usage(lambda: ODD.repeat(0), "times must be at least 1", "got times=0"),
]


class NoLength:
    """A source without a length."""

    def __len__(self) -> int:
        raise TypeError("unknown length")

    def __getitem__(self, key: int) -> int:
        return key


SOURCES: list[Case] = [
    usage(
        lambda: ps.read(__file__),
        "test_messages.py' is unknown: it begins with b'",
        "Known are files that end in .array_record",
        "ps.read(ps.sources.Tokens(path, 1025, dtype='uint16'))",
    ),
    case(lambda: ps.read(Path("train")), SourceError, "Check the path"),
    usage(lambda: ps.read(iter([1])), "the list_iterator", "ps.read(list(it)) if it fits into memory"),
    usage(lambda: ps.read(Squares), "That is the class itself: create an instance of it."),
    usage(lambda: ps.read(None), "got None, a NoneType"),
    usage(lambda: ps.read(NoLength()), "len() of", "TypeError: unknown length"),
    usage(lambda: ps.read({"x": [1, 2], "y": [1]}), "all arrays must have one length", "x: 2, y: 1"),
    usage(lambda: ps.read({}), "must have at least one array"),
    usage(lambda: ps.read([1], seed=anything("7")), "seed must be a whole number; got seed='7'"),
    usage(lambda: ps.range(3, seed=anything(1.5)), "seed must be a whole number", "seed=1.5"),
    usage(lambda: ps.range(3, seed=True), "seed must be a whole number; got seed=True"),
    usage(lambda: ps.read(ps.sources.Range(0, 3, 0)), "step must not be 0; got step=0"),
    usage(lambda: ps.range(2**64), "all integers must fit into int64"),
]


ORDERS: list[Case] = [
    usage(lambda: NUMBERS.take(-1), "count must be at least 0 and at most 2**62; got count=-1"),
    usage(lambda: NUMBERS.take(anything(1.0)), "count must be a whole number; got count=1.0"),
    usage(lambda: NUMBERS.take(True), "count must be a whole number; got count=True"),  # noqa: FBT003 - what may not be given
    usage(lambda: NUMBERS.skip(-1), "count must be at least 0", "got count=-1"),
    usage(lambda: NUMBERS.shard(4, 4), "index must be in [0, count); got index=4, count=4"),
    usage(lambda: NUMBERS.shard(-1, 4), "index must be at least 0", "got index=-1"),
    usage(lambda: NUMBERS.shard(0, 0), "count must be at least 1", "got count=0"),
    usage(
        lambda: NUMBERS.select([3, 10]),
        "positions must be in [-10, 10); got 10",
        "as number 1 of them. Take only positions that the parent has.",
    ),
    usage(lambda: NUMBERS.select(anything([1.5])), "positions must be an int64 array", "float64"),
    usage(lambda: NUMBERS.select([True, False]), "a mask must have one bool for each of the 10"),
    usage(
        lambda: NUMBERS.split({"a": 0.7, "b": 0.4}),
        "fractions must add up to at most 1",
        "{'a': 0.7, 'b': 0.4}",
        "Make one smaller.",
    ),
    usage(lambda: NUMBERS.split([8, 2]), "that is 10.0. Divide numbers of elements by the length."),
    usage(lambda: NUMBERS.split({"a": 0}), "a fraction must be a number over 0; got a=0"),
    usage(lambda: NUMBERS.split({}), "a split must have at least one part"),
    usage(lambda: NUMBERS.split({"a": 1}, seed=anything("1")), "seed must be a whole number"),
    usage(lambda: NUMBERS.subset(11), "count must be at most the dataset's length; got count=11, length=10"),
    usage(lambda: NUMBERS.repeat(0), "times must be at least 1", "got times=0"),
    usage(
        lambda: NUMBERS.repeat(2**61), "length * times must be at most 2**62", "Pass times=None to repeat without end."
    ),
    usage(lambda: NUMBERS.epoch(-1), "number must be at least 0", "got number=-1"),
    usage(
        lambda: NUMBERS.reindex(anything([1, 2])),
        "sampler must have a length and be callable",
        "got [1, 2]",
        "Pass one such as penstock.sampling.Shuffle(length, seed).",
    ),
    usage(
        lambda: NUMBERS.reindex(ps.sampling.FixedOrder(ps.sampling.Slice(0, 1, 11))),
        "reindex() takes a sampler of keys below 10, the number of elements; the largest key of",
        "is 10. Pass one for len(dataset) elements.",
    ),
    usage(lambda: list(NUMBERS.reindex(ps.sampling.FixedOrder(OneNumber()))), "a sampler must return two integers"),
    usage(lambda: NUMBERS.reindex(anything(ps.sampling.Shuffle)), "sampler must have"),
    usage(lambda: NUMBERS[::0], "step must not be 0", "Omit it to take every element."),
]


ELEMENTS: list[Case] = [
    usage(lambda: NUMBERS.map(anything(3)), "map takes a function; got 3"),
    usage(lambda: NUMBERS.random_map(anything("flip")), "random_map takes a function; got 'flip'"),
    usage(
        lambda: NUMBERS.map(anything(divmod)), "one argument, the element; got divmod", "random_map passes a generator"
    ),
    usage(
        lambda: NUMBERS.random_map(abs, rng=anything("seed"), globals=True),
        "hands nothing to the function, so rng='seed' has no use",
    ),
    usage(
        lambda: NUMBERS.random_map(anything(abs)), "two arguments, the element and rng; got abs", "With globals=True it"
    ),
    usage(lambda: NUMBERS.map_with_origin(anything(None)), "map_with_origin takes a function"),
    usage(lambda: NUMBERS.filter(anything([])), "filter takes a function; got []"),
    usage(
        lambda: NUMBERS.map(double, on_error=anything("ignore")),
        'on_error must be "raise", "skip" or ps.Substitute(…); got on_error=\'ignore\'',
    ),
    usage(lambda: NUMBERS.map(double, on_error=anything(ps.Substitute)), "on_error must be"),
    usage(lambda: NUMBERS.map(double, on_error=anything(["skip"])), "got on_error=['skip']"),
    usage(lambda: NUMBERS.map(double, on_error=ps.Substitute(0)), "attempts must be at least 1"),
    usage(lambda: NUMBERS.map(double, on_error=ps.Substitute(budget=-1)), "budget must be at least 0"),
    usage(
        lambda: NUMBERS.random_map(noisy, rng=anything("numpy")),
        'rng must be "generator", "seed" or "jax"; got rng=\'numpy\'',
    ),
    usage(lambda: NUMBERS.map(double, name=anything(3)), "name must be a str of at least one character"),
    usage(lambda: NUMBERS.batch(0), "size must be at least 1 and at most 2**62; got size=0"),
    usage(lambda: NUMBERS.batch(anything("8")), "size must be a whole number; got size='8'"),
    usage(
        lambda: NUMBERS.batch(2, remainder=anything("cut")),
        'remainder must be "keep", "drop" or "pad"; got remainder=\'cut\'',
    ),
    usage(lambda: NUMBERS.batch(2, merge=anything("stack")), "merge takes a function; got 'stack'"),
    usage(lambda: NUMBERS.padded_batch(2, length=0), "length must be at least 1", "length=0"),
    usage(lambda: NUMBERS.padded_batch(2, mask=""), "mask must name the leaf to add; got mask=''"),
    usage(lambda: NUMBERS.padded_batch(-1), "size must be at least 1", "got size=-1"),
]


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


EVALUATED: list[Case] = [
    case(
        lambda: list(ps.read(Short(9))),
        SourceError,
        "the source says that its length is 9, but it raised",
        "IndexError for key 3",
        "must have a record for every key",
    ),
    case(
        lambda: list(ps.Loader(ps.read(Wrong(9)).batch(4))),
        SourceError,
        "must return one record for each of",
        "in the order of the keys",
    ),
    usage(
        lambda: ps.range(4).map(lambda number: np.zeros(2 + number % 2)).batch(4)[0],
        "a leaf must be of one dtype and shape in all rows",
        "(2,) in row 0 and float64 of shape (3,) in row 1",
        "pad it with .padded_batch(n)",
    ),
    usage(lambda: ps.read([1, 2.5]).batch(2)[0], "is int64 in row 0 and float64 in row 1"),
    usage(
        lambda: ps.read([{"a": 1}, {"b": 1}]).batch(2)[0],
        "must have one structure",
        "has the key 'a' in row 0 but not in row 1",
    ),
    usage(lambda: ps.read([[1], None]).batch(2)[0], "a single value (such as an array or None) in row 1", "by .filter"),
    usage(lambda: ps.range(2).map(lambda _: object()).batch(2)[0], "of row 0 is a object", "merge=…"),
    usage(lambda: list(ps.Loader(NUMBERS.reindex(OneNumber()).batch(3))), "a sampler must return two integers"),
    usage(lambda: list(NUMBERS.unbatch()), "every leaf of a batch must have a row axis"),
    graph(lambda: list(NUMBERS.batch(2, mask="m")), "mask='m' must name a new leaf of a dict", "omit the mask."),
    case(lambda: len(ODD), NoLengthError, "filter(is_odd) can only be read in order, so its number"),
    case(lambda: len(NUMBERS.map(double, on_error="skip")), NoLengthError, "on_error='skip')"),
    case(lambda: len(ENDLESS.batch(2)), NoLengthError, "repeats without end", "Use take(n) first."),
    case(lambda: len(ENDLESS.filter(bool)), NoLengthError, "repeats without end", "Use limit(n) first."),
    graph(lambda: ODD[0], "indexing needs a dataset whose elements have positions"),
    graph(lambda: ENDLESS[-1], "repeats without end", "got [-1]. Count from the start"),
]


def bucketed(**given: Any) -> object:
    """Return batches of buckets, with other arguments."""
    arguments: dict[str, Any] = {"size": len, "boundaries": [2, 4], "rows": 2, **given}
    return ps.range(3).bucket(**arguments)


PACKED: list[tuple[dict[str, Any], str]] = [
    ({"length": 0}, "length must be at least 1"),
    (
        {"length": 8, "lengths": [1, 1 << 62, 1]},
        "lengths must be cut into at most 2**36 pieces of length=8; got 4611686018427387904 at position 1. Correct",
    ),
    ({"length": {}}, "length must be a number"),
    ({"length": 4, "how": "first_fit"}, "how must be"),
    ({"length": 4, "long": "keep"}, "long must be"),
    ({"length": 4, "meta": "url"}, "meta must be a sequence"),
    ({"length": {"a": 4}, "meta": ["a"]}, "either packed or listed"),
    ({"length": {"a": 4}, "fill": {"b": 1}}, "fill must be for"),
    ({"length": {"a": 4}, "how": "split"}, "need one length"),
    ({"length": 4, "how": "split", "long": "drop"}, "no document is too long"),
    ({"length": 4, "lengths": [1, 2]}, "one value for each of the 3"),
    ({"length": 4, "lengths": [1, -2, 3]}, "not be negative; got -2 at position 1"),
    ({"length": 4, "lengths": [1.0, 2.0, 3.0]}, "whole numbers"),
    ({"length": 4, "lengths": np.array([1, 2**64 - 1, 3], np.uint64)}, f"below 2**63; got {2**64 - 1} at position 1"),
    ({"length": np.array([2])}, "length must be a whole number; got length=array([2])"),
    ({"length": 4, "lengths": {"a": [1, 2, 3]}}, "a dict if length is a dict"),
    ({"length": {"a": 4}, "lengths": {"b": [1, 2, 3]}}, "names that length has"),
]


BUCKETED: list[tuple[dict[str, Any], str]] = [
    ({"size": 3}, "takes a function"),
    ({"boundaries": []}, "boundaries must be at least one"),
    ({"boundaries": [4, 4]}, "ascending"),
    ({"rows": 0}, "rows must be at least 1"),
    ({"rows": [1, 2, 3]}, "one for each of the 2 buckets"),
    ({"rows": b"2", "boundaries": [4]}, "rows must be a whole number; got rows=b'2'"),
    ({"rows": 3.0}, "rows must be a whole number; got rows=3.0"),
    ({"boundaries": b"9"}, "boundaries must be at least one number, ascending; got boundaries=b'9'"),
    ({"boundaries": 9}, "boundaries must be at least one number, ascending; got boundaries=9"),
    ({"lengths": np.array([1, 2**64 - 1, 3], np.uint64)}, f"lengths must be below 2**63; got {2**64 - 1}"),
    ({"remainder": "pad"}, "remainder must be"),
    ({"pad": Pad(length=3)}, "Leave its length out"),
    ({"lengths": [1]}, "one value for each of the 3"),
    ({"lengths": [1, 9, 2]}, "got 9 at position 1"),
]


def of_size(size: Any) -> list[object]:
    """Return batches of buckets of elements that have this size."""
    return list(NUMBERS.bucket(lambda _: size, [4], rows=1))


FOLDED: list[Case] = [
    *(usage(functools.partial(ps.range(3).pack, **given), words) for given, words in PACKED),
    *(usage(functools.partial(bucketed, **given), words) for given, words in BUCKETED),
    usage(
        lambda: NUMBERS.combine(anything(3)), "combine takes a function that makes the object, such as its class; got 3"
    ),
    graph(lambda: list(ps.range(3).bucket("tokens", [4], rows=1)), "length of its leaf 'tokens'"),
    graph(lambda: list(ps.read([{"a": np.zeros(1)}]).bucket("tokens", [4], rows=1)), "dict of"),
    *(
        graph(functools.partial(of_size, size), f"size must return a whole number of at least 0; got {size!r}")
        for size in (-1, np.array([1]))
    ),
    graph(lambda: list(NUMBERS.bucket(anything(float), [4], rows=1)), "whole number of at least 0; got 0.0"),
]


BLOCKS: list[Case] = [
    *(
        usage(functools.partial(NUMBERS.shuffle, **{name: 3}), f"{name} is an argument of a shuffle by blocks")
        for name in ("live", "rows")
    ),
    usage(lambda: NUMBERS.shuffle(blocks=0), "blocks must be at least 1"),
    usage(lambda: NUMBERS.shuffle(blocks=2, live=0), "live must be an integer"),
    graph(lambda: NUMBERS.shuffle(blocks=True), "needs a source with blocks, and Range"),
    graph(lambda: NUMBERS.shuffle().shuffle(blocks=True), "shuffle() changes it"),
]


ALL: list[Case] = [
    *(*SOURCES, *ORDERS, *ELEMENTS, *EVALUATED, *FOLDED, *BLOCKS, *JOINED, *MIXED, *STREAMS, *REPEATED, *CACHED),
    *(*ABOVE_A_FILTER, *WITHOUT_END, *ABOVE_A_SHUFFLE, *TABLES, *COUNTS),
]


def test_the_message_of_a_wrong_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has its class, and states the rule, the value and the remedy."""
    monkeypatch.chdir(tmp_path)  # a refused path must not leave a folder elsewhere
    for one in ALL:
        check_message(one)
    assert not list(tmp_path.iterdir())
