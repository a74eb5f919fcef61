"""Random datasets for property tests: chains of verbs over small sources, of every size that has caused a bug."""

import contextlib
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import numpy as np
from hypothesis import strategies as st

import penstock as ps
from tests.equivalence.functions import (
    add_one,
    fails_sometimes,
    jitter,
    keeps_two_of_three,
    totals,
    with_origin,
    with_seed,
    writes_or_fails,
)
from tests.equivalence.verbs import FORMS, RefusedError, UnsuitableError, put

T = TypeVar("T")

_MAX_DESCRIBED = 400  # elements of an epoch

SIZES = st.sampled_from([0, 1, 2, 3, 5, 7, 8, 9, 13, 16, 17, 31, 32, 33, 64, 65, 97])
SEEDS = st.integers(-(2**63), 2**63)


@st.composite
def sources(draw: st.DrawFn) -> ps.Dataset:
    """Draw a small source and a seed."""
    size = draw(SIZES)
    seed = draw(SEEDS)
    match draw(st.integers(0, 2)):
        case 0:
            return ps.range(size, seed=seed)
        case 1:
            arrays = {"x": np.arange(size * 3, dtype=np.float32).reshape(size, 3), "y": np.arange(size, dtype=np.int16)}
            return ps.read(arrays, seed=seed)
        case _:
            records: list[dict[str, Any]] = [{"number": number, "text": str(number)} for number in range(size)]
            return ps.read(records, seed=seed).map(
                lambda record: {"number": record["number"], "half": record["number"] / 2}, name="halve"
            )


@st.composite
def reordered(draw: st.DrawFn, dataset: ps.Dataset) -> ps.Dataset:
    """Draw one verb that changes the order or the choice of elements of an indexable dataset."""
    size = len(dataset)
    match draw(st.integers(0, 9)):
        case 0 | 1 | 2:
            blocks = draw(st.sampled_from([False, False, 1, 3]))
            return dataset.shuffle(blocks=blocks, live=2 if blocks else None, rows=4 if blocks else None)
        case 3:
            start, stop = draw(st.integers(-size - 1, size + 1)), draw(st.integers(-size - 1, size + 1))
            return dataset[start : stop : draw(st.sampled_from([None, 1, 2, -1, -3]))]
        case 4:
            count = draw(st.integers(1, 4))
            return dataset.shard(draw(st.integers(0, count - 1)), count)
        case 5:
            return dataset.split({"train": 0.7, "val": 0.3}, seed=draw(SEEDS))[draw(st.sampled_from(["train", "val"]))]
        case 6:
            return dataset.repeat(draw(st.integers(1, 3)), reshuffle=draw(st.booleans()))
        case 7 if size:
            return dataset.select(draw(st.lists(st.integers(-size, size - 1), max_size=12)))
        case 8:
            return dataset.subset(draw(st.integers(0, size)))
        case _:
            return dataset.epoch(draw(st.integers(0, 5)))


@st.composite
def mapped(draw: st.DrawFn, dataset: ps.Dataset) -> ps.Dataset:
    """Draw one verb that changes elements."""
    match draw(st.integers(0, 4)):
        case 0:
            return dataset.map(add_one)
        case 1:
            return dataset.random_map(jitter)
        case 2:
            return dataset.random_map(with_seed, rng="seed")
        case 3:
            return dataset.map_with_origin(with_origin)
        case _:
            return dataset.map(fails_sometimes, on_error=ps.Substitute(attempts=64))


@st.composite
def indexable(draw: st.DrawFn) -> ps.Dataset:
    """Draw a dataset whose elements have positions, before any batch."""
    dataset = draw(sources())
    for _ in range(draw(st.integers(0, 4))):
        step = reordered if draw(st.booleans()) else mapped
        following = draw(step(dataset))
        dataset = following if len(following) <= 400 else dataset
    return dataset


Remainder = Literal["keep", "drop", "pad"]
REMAINDERS: st.SearchStrategy[Remainder] = st.sampled_from(("keep", "drop", "pad"))


@st.composite
def batched(draw: st.DrawFn) -> ps.Dataset:
    """Draw a dataset of batches whose size divides by 1, 2, 3 and 4 ranks or is small."""
    dataset = draw(indexable())
    merge = draw(st.sampled_from([None, None, totals]))
    dataset = dataset.batch(draw(st.sampled_from([1, 2, 3, 4, 5, 12, 24])), remainder=draw(REMAINDERS), merge=merge)
    for _ in range(draw(st.integers(0, 2))):
        match draw(st.integers(0, 4)):
            case 0:
                dataset = dataset.map(add_one)
            case 1:
                dataset = dataset.random_map(jitter)
            case 2:
                dataset = draw(reordered(dataset))
            case 3:
                dataset = dataset.map_with_origin(with_origin)
            case _:
                pass
    return dataset


@st.composite
def changed(draw: st.DrawFn, dataset: ps.Dataset, number: int) -> ps.Dataset:
    """Draw a function of each element of a dataset that is read in order; it may skip elements, or write to them."""
    match draw(st.integers(0, 3)):
        case 0:
            return dataset.map(add_one)
        case 1:
            return dataset.random_map(jitter)
        case 2:
            return dataset.map(writes_or_fails, name=f"writes {number}", on_error="skip")
        case _:
            return dataset.map(fails_sometimes, name=f"fails {number}", on_error="skip")


@st.composite
def ordered(draw: st.DrawFn) -> ps.Dataset:
    """Draw a dataset that can only be read in order: filters and folds over an indexable one."""
    dataset = draw(indexable())
    dataset = (
        dataset.filter(keeps_two_of_three)
        if draw(st.booleans())
        else dataset.map(fails_sometimes, name="fails", on_error="skip")
    )
    batches = 0
    for number in range(draw(st.integers(0, 4))):
        match draw(st.integers(0, 4)):
            case 0:
                dataset = draw(changed(dataset, number))
            case 1:
                dataset = dataset.filter(keeps_two_of_three)
            case 2:
                merge = draw(st.sampled_from([None, totals]))
                dataset = dataset.batch(draw(st.integers(1, 5)), remainder=draw(REMAINDERS), merge=merge)
                batches += 1
            case 3:
                dataset = dataset.limit(draw(st.integers(1, 40)))
            case _ if batches:
                dataset = dataset.unbatch()
                batches -= 1
            case _:
                pass
    return dataset


@st.composite
def described(draw: st.DrawFn) -> ps.Dataset:
    """Draw any verbs one above the other, joins and batches included, over a source or a filter."""
    dataset = draw(sources())

    def pick(options: Sequence[T]) -> T:
        return draw(st.sampled_from(options))

    count = len(dataset)
    for name in draw(st.lists(st.sampled_from(sorted(FORMS)), max_size=5)):
        # A form may need at least one element.
        with contextlib.suppress(RefusedError, *(() if count else (UnsuitableError,))):
            following, epochs = put(name, dataset, pick)
            if max(map(len, epochs)) <= _MAX_DESCRIBED:
                dataset, count = following, min(map(len, epochs))
    return dataset
