"""A weighted mixture is its definition, walked position by position, and keeps its promises about shares."""

import copy
import itertools
import pickle
import tracemalloc
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sampling import MixtureRule, WeightedMixture, integer_weights
from tests.profiles import in_short
from tests.sampling.mixture_oracle import walk

ENDLESS = 2**62
NAMES = ("web", "books", "code", "math", "law")
seeds = st.integers(0, 2**64 - 1)
Stop = Literal["first", "all", "never"]
stops: st.SearchStrategy[Stop] = st.sampled_from(("first", "all", "never"))


def weights_of(components: int, largest: int = 7) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw weights that are not all 0."""
    return st.tuples(*[st.integers(0, largest)] * components).filter(any)


@st.composite
def mixtures(draw: st.DrawFn, *, only: Stop | None = None) -> WeightedMixture:
    """Draw a mixture of up to five short components with up to four stretches."""
    components = draw(st.integers(1, 5))
    stop = draw(stops) if only is None else only
    lengths = draw(st.tuples(*[st.integers(1 if stop == "never" else 0, 40)] * components))
    starts = [0, *sorted(draw(st.sets(st.integers(1, 80), max_size=3)))]
    schedule = tuple((start, draw(weights_of(components))) for start in starts)
    names = tuple(draw(st.permutations(NAMES))[:components])
    return WeightedMixture(names, lengths, schedule=schedule, stop=stop, seed=draw(seeds))


def even(components: int, *, length: int = ENDLESS, seed: int = 7) -> WeightedMixture:
    """Return a mixture of equal weights."""
    return weighted((1,) * components, length=length, seed=seed)


def weighted(weights: tuple[int, ...], *, length: int = ENDLESS, seed: int = 7) -> WeightedMixture:
    """Return a mixture of components of one length that stops at the first to finish."""
    names = tuple(f"component {number}" for number in range(len(weights)))
    return WeightedMixture(names, (length,) * len(weights), schedule=((0, weights),), stop="first", seed=seed)


def first_of(mixture: WeightedMixture, count: int) -> tuple[list[int], list[int]]:
    """Return components and positions of the first elements of epoch 0, at most `count`."""
    positions = np.arange(min(count, len(mixture)))
    components, _, places = mixture.block(np.zeros_like(positions), positions)
    return components.tolist(), places.tolist()


@in_short(15)
@given(mixtures())
def test_a_mixture_is_the_walk_over_its_positions(mixture: WeightedMixture) -> None:
    """Length, elements, counts and past are those of a walk over all elements, for every stop."""
    walked = list(itertools.islice(walk(mixture), 400))
    if mixture.stop == "never":
        assert mixture.endless
        assert len(mixture) >= 2**31
    else:
        assert len(mixture) == len(walked)
    answers = [mixture(0, position) for position in range(len(walked))]
    counts = [0] * len(mixture.names)
    for position, (component, place, change) in enumerate(walked):
        length = mixture.lengths[component] if mixture.endless else ENDLESS
        assert answers[position] == (component, place // length, place % length)
        assert mixture.counts(position).tolist() == counts
        counts[component] += 1
        assert [start for start, _ in mixture.past(position + 1)] == [
            start for start, _ in mixture.schedule[: change + 1]
        ]
    assert mixture.counts(len(walked)).tolist() == counts


@given(mixtures(), st.data())
def test_scalar_and_block_forms_agree(mixture: WeightedMixture, data: st.DataObject) -> None:
    """A block holds the scalar form's answers, whether its epochs are the same or mixed, and leaves its input alone."""
    positions = st.one_of(st.integers(0, max(min(len(mixture), 200) - 1, 0)), st.integers(0, max(len(mixture) - 1, 0)))
    epochs = st.sampled_from(data.draw(st.sampled_from([[0], [7], [0, 5, 2**30]])))
    pairs = data.draw(st.lists(st.tuples(epochs, positions), max_size=30 if len(mixture) else 0))
    epoch_block = np.array([epoch for epoch, _ in pairs], np.int64)
    position_block = np.array([position for _, position in pairs], np.int64)
    kept = epoch_block.copy(), position_block.copy()
    answers = mixture.block(epoch_block, position_block)
    assert all(answer.dtype == np.int64 for answer in answers)
    assert list(zip(*(answer.tolist() for answer in answers), strict=True)) == [mixture(*pair) for pair in pairs]
    assert np.array_equal(kept[0], epoch_block)
    assert np.array_equal(kept[1], position_block)


@given(weights_of(4, largest=30), seeds, st.integers(0, 2**40))
def test_each_period_holds_the_exact_shares(weights: tuple[int, ...], seed: int, number: int) -> None:
    """Any period, also far away, has each component as often as its reduced weight says, with consecutive positions."""
    mixture = weighted(weights, seed=seed)
    exact = mixture.schedule[0][1]
    period = sum(exact)
    positions = np.arange(number * period, (number + 1) * period)
    components, _, places = mixture.block(np.zeros_like(positions), positions)
    assert np.bincount(components, minlength=4).tolist() == list(exact)
    for component, weight in enumerate(exact):
        assert places[components == component].tolist() == list(range(number * weight, (number + 1) * weight))


def test_every_rank_has_its_share_of_every_component() -> None:
    """Over 100,000 elements each rank's rows have each component within 1 %, for batches of 64 and of a row a rank."""
    for weights, ranks, seed in (((1, 1), 2, 0), ((3, 1), 4, 7), ((1, 1), 8, 2**64 - 1), ((3, 1), 8, 7)):
        components = np.array(first_of(weighted(weights, seed=seed), 100_000)[0])
        for rows in (64, ranks):
            rank = np.arange(100_000) % rows * ranks // rows
            for taken in (components[rank == number] for number in range(ranks)):
                for component, weight in enumerate(weights):
                    share = len(taken) * weight / sum(weights)
                    assert abs((taken == component).sum() - share) <= share / 100


def test_500_components_take_little_memory() -> None:
    """The tables of 500 components with the longest period take less than 4 MB while they are made, 1 MB after."""
    weights = integer_weights([1 + 1 / (2 + number) for number in range(500)])
    assert sum(weights) == 2**16
    mixture = weighted(weights)
    positions = np.random.Generator(np.random.PCG64(1)).integers(0, 2**50, 4096)
    epochs = np.zeros_like(positions)
    tracemalloc.start()
    try:
        components, _, _ = mixture.block(epochs, positions)
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2**20
    assert most < 2**22
    assert len(np.unique(components)) > 490


@pytest.mark.parametrize("count", [40, 3000])
def test_long_periods_are_the_walk_too(count: int) -> None:
    """With many members, where not every rotation is used, the block form is still the walk."""
    weights = integer_weights([1.0 + 1 / (3 + number) for number in range(count)])
    assert sum(weights) > 2**15
    mixture = weighted(weights, length=40_000)
    walked = [(component, place) for component, place, _ in itertools.islice(walk(mixture), 80_000)]
    components, places = first_of(mixture, 80_000)
    assert list(zip(components, places, strict=True)) == walked


@given(mixtures(only="never"), st.integers(0, 2**20), st.integers(0, 500))
def test_passes_are_epochs_of_their_own(mixture: WeightedMixture, epoch: int, position: int) -> None:
    """A mixture that never stops repeats each component's elements in further epochs of it, and no epoch twice.

    Its length is the position at which the first component would need more passes than an epoch has.
    """
    component, own_epoch, place = mixture(epoch, position)
    taken = int(mixture.counts(position)[component])
    passes = [min(2**31, 2**62 // length) for length in mixture.lengths]
    length = mixture.lengths[component]
    assert (own_epoch, place) == (epoch * passes[component] + taken // length, taken % length)
    counts = mixture.counts(len(mixture)).tolist()
    assert all(count <= most * own for count, most, own in zip(counts, passes, mixture.lengths, strict=True))
    assert any(count == most * own for count, most, own in zip(counts, passes, mixture.lengths, strict=True))


@pytest.mark.parametrize("stop", ["first", "all", "never"])
def test_components_without_end(stop: Any) -> None:
    """Components of 2**62 elements make as many positions, and the last one can be computed."""
    mixture = WeightedMixture(("a", "b"), (ENDLESS, ENDLESS), schedule=((0, (2, 1)),), stop=stop, seed=7)
    assert len(mixture) == ENDLESS
    last = np.array([ENDLESS - 1])
    answer = mixture.block(np.zeros_like(last), last)
    assert tuple(part.item() for part in answer) == mixture(0, ENDLESS - 1)
    assert int(mixture.counts(ENDLESS).sum()) == ENDLESS


@in_short(15)
@given(mixtures())
def test_a_mixture_is_a_value(mixture: WeightedMixture) -> None:
    """Pickled and copied mixtures are equal to the first, hash alike and take no tables with them."""
    small = len(pickle.dumps(mixture))
    expected = first_of(mixture, 50)
    assert len(pickle.dumps(mixture)) == small
    for twin in (pickle.loads(pickle.dumps(mixture)), copy.deepcopy(mixture), eval(repr(mixture))):
        assert twin == mixture
        assert hash(twin) == hash(mixture)
        assert first_of(twin, 50) == expected
    assert isinstance(mixture, MixtureRule)
    assert weighted((2, 4)) == weighted((1, 2))


def test_positions_outside_are_index_errors() -> None:
    """Each form raises IndexError for a position out of range."""
    for mixture in (even(2, length=5), even(3, length=0)):
        for position in (-1, len(mixture), 2**63 - 1):
            with pytest.raises(IndexError, match="position must be in"):
                mixture(0, position)
            with pytest.raises(IndexError, match="position must be in"):
                mixture.block(np.zeros(1, np.int64), np.array([position]))
        for position in (-1, len(mixture) + 1):
            with pytest.raises(IndexError, match="position must be in"):
                mixture.counts(position)
            with pytest.raises(IndexError, match="position must be in"):
                mixture.past(position)
        nothing = np.array([], np.int64)
        assert [part.shape for part in mixture.block(nothing, nothing)] == [(0,)] * 3
