"""A weighted mixture is its definition, walked position by position, and keeps its promises about shares."""

import copy
import dataclasses
import itertools
import pickle
import tracemalloc
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sampling import MixtureRule, WeightedMixture, integer_weights
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


def named(mixture: WeightedMixture, count: int) -> list[tuple[str, int]]:
    """Return (name, position) of the first elements, at most `count`."""
    return [(mixture.names[component], place) for component, place in zip(*first_of(mixture, count), strict=True)]


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


@pytest.mark.parametrize("seed", [0, 7, 2**64 - 1])
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("weights", [(1, 1), (3, 1)])
def test_every_rank_has_its_share_of_every_component(weights: tuple[int, ...], ranks: int, seed: int) -> None:
    """Over 100,000 elements each rank's rows have each component within 1 %, for batches of 64 and of a row a rank."""
    components = np.array(first_of(weighted(weights, seed=seed), 100_000)[0])
    for rows in (64, ranks):
        rank = np.arange(100_000) % rows * ranks // rows
        for taken in (components[rank == number] for number in range(ranks)):
            for component, weight in enumerate(weights):
                share = len(taken) * weight / sum(weights)
                assert abs((taken == component).sum() - share) <= share / 100


@given(st.lists(st.integers(1, 20_000), min_size=2, max_size=5), seeds, st.integers(0, 10**9), st.integers(1, 12))
def test_batches_and_strides_hold_nearly_their_shares(weights: list[int], seed: int, start: int, stride: int) -> None:
    """Of 256 positions in a row no component is off its share by more than 16; at small distances, by more than 64."""
    mixture = weighted(integer_weights(weights) if sum(weights) < 2**16 else tuple(weights[:2]), seed=seed)
    exact = mixture.schedule[0][1]
    positions = start + stride * np.arange(256)
    counts = np.bincount(mixture.block(np.zeros_like(positions), positions)[0], minlength=len(exact))
    off = np.abs(counts - 256 * np.array(exact) / sum(exact))
    assert off.max() <= (16 if stride == 1 else 64)


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


@pytest.mark.parametrize("count", [3, 40, 3000])
def test_long_periods_are_the_walk_too(count: int) -> None:
    """With many members, where not every rotation is used, the block form is still the walk."""
    weights = integer_weights([1.0 + 1 / (3 + number) for number in range(count)])
    assert sum(weights) > 2**15 or count == 3
    mixture = weighted(weights, length=40_000)
    walked = [(component, place) for component, place, _ in itertools.islice(walk(mixture), 150_000)]
    components, places = first_of(mixture, 150_000)
    assert list(zip(components, places, strict=True)) == walked


@given(mixtures())
def test_a_change_loses_and_repeats_nothing(mixture: WeightedMixture) -> None:
    """Across all changes each component's elements come once each, in order; "all" gives the last weights' members."""
    components, places = first_of(mixture, 500)
    for component, length in enumerate(mixture.lengths):
        own = [place for number, place in zip(components, places, strict=True) if number == component]
        assert own == [place % length if mixture.endless else place for place in range(len(own))]
        if mixture.stop == "all" and mixture.schedule[-1][1][component]:
            assert len(own) == length


@given(mixtures(), st.integers(1, 200), st.data())
def test_extending_keeps_earlier_positions(mixture: WeightedMixture, later: int, data: st.DataObject) -> None:
    """A later change of weights alters no position before it, and the past at that position stays the same."""
    start = mixture.schedule[-1][0] + later
    schedule = (*mixture.schedule, (start, data.draw(weights_of(len(mixture.names)))))
    extended = dataclasses.replace(mixture, schedule=schedule)
    kept = min(start, len(mixture))
    assert first_of(extended, kept) == first_of(mixture, kept)
    assert extended.past(kept) == mixture.past(kept)
    assert len(extended) >= kept


@given(mixtures(), weights_of(1), st.data())
def test_a_later_component_keeps_earlier_positions(
    mixture: WeightedMixture, weight: tuple[int], data: st.DataObject
) -> None:
    """A component of weight 0 until a change, anywhere in the list, alters no position before that change."""
    place = data.draw(st.integers(0, len(mixture.names)))
    start = mixture.schedule[-1][0] + data.draw(st.integers(1, 100))

    def with_new(values: tuple[Any, ...], value: object) -> tuple[Any, ...]:
        return (*values[:place], value, *values[place:])

    schedule = [(at, with_new(weights, 0)) for at, weights in mixture.schedule]
    schedule.append((start, with_new(mixture.schedule[-1][1], *weight)))
    added = WeightedMixture(
        with_new(mixture.names, "new"),
        with_new(mixture.lengths, 30),
        schedule=tuple(schedule),
        stop=mixture.stop,
        seed=mixture.seed,
    )
    kept = min(start, len(mixture))
    assert named(added, kept) == named(mixture, kept)
    assert added.past(kept) == mixture.past(kept)


@given(weights_of(3), weights_of(1), seeds)
def test_adding_a_component_keeps_the_order_within_the_others(
    weights: tuple[int, ...], more: tuple[int], seed: int
) -> None:
    """A component that is added from the start changes the others' positions, but not their order."""
    before, after = weighted(weights, seed=seed), weighted((*weights, *more), seed=seed)
    for component in range(3):
        own = [pair for pair in named(before, 300) if pair[0] == before.names[component]]
        others = [pair for pair in named(after, 300) if pair[0] == before.names[component]]
        shared = min(len(own), len(others))
        assert own[:shared] == others[:shared]


@given(mixtures(), st.data())
def test_the_order_of_listing_does_not_matter(mixture: WeightedMixture, data: st.DataObject) -> None:
    """The same components listed in another order give the same elements, and have the same past."""
    order = data.draw(st.permutations(range(len(mixture.names))))
    relisted = WeightedMixture(
        tuple(mixture.names[number] for number in order),
        tuple(mixture.lengths[number] for number in order),
        schedule=tuple((start, tuple(weights[number] for number in order)) for start, weights in mixture.schedule),
        stop=mixture.stop,
        seed=mixture.seed,
    )
    assert len(relisted) == len(mixture)
    assert named(relisted, 300) == named(mixture, 300)
    assert relisted.past(min(len(mixture), 300)) == mixture.past(min(len(mixture), 300))


@given(mixtures())
def test_the_way_to_stop_changes_nothing_before_it(mixture: WeightedMixture) -> None:
    """Before the end of a mixture with stop="first", all ways to stop give the same elements."""
    first = dataclasses.replace(mixture, stop="first")
    everything = dataclasses.replace(mixture, stop="all")
    assert named(everything, len(first)) == named(first, len(first))
    assert len(everything) >= len(first)


@given(mixtures(), st.data())
def test_a_longer_component_keeps_earlier_positions(mixture: WeightedMixture, data: st.DataObject) -> None:
    """A longer component alters nothing before the position that would have needed the shorter one's next element."""
    lengths = tuple(length + data.draw(st.integers(0, 9)) for length in mixture.lengths)
    if mixture.stop == "never":
        return
    kept = len(dataclasses.replace(mixture, stop="first"))
    grown = dataclasses.replace(mixture, lengths=lengths)
    assert first_of(grown, kept) == first_of(mixture, kept)
    assert len(grown) >= kept


def test_seeds_differ() -> None:
    """Another seed is another order, with the same shares."""
    orders = {tuple(first_of(weighted((7, 5, 3, 2, 1), seed=seed), 600)[0]) for seed in range(50)}
    assert len(orders) == 50


def test_periods_differ() -> None:
    """The order within a period varies, so that every few positions, such as those of a rank, have all components."""
    components = np.array(first_of(even(4), 4000)[0]).reshape(1000, 4)
    for place in range(4):
        assert np.bincount(components[:, place], minlength=4).min() > 200


@given(mixtures(only="never"), st.integers(0, 2**20), st.integers(0, 500))
def test_passes_are_epochs_of_their_own(mixture: WeightedMixture, epoch: int, position: int) -> None:
    """A mixture that never stops repeats each component's elements in further epochs of it, and no epoch twice."""
    component, own_epoch, place = mixture(epoch, position)
    taken = int(mixture.counts(position)[component])
    passes = min(2**31, 2**62 // mixture.lengths[component])
    assert (own_epoch, place) == (
        epoch * passes + taken // mixture.lengths[component],
        taken % mixture.lengths[component],
    )
    assert taken // mixture.lengths[component] < passes


@pytest.mark.parametrize("stop", ["first", "all", "never"])
def test_components_without_end(stop: Any) -> None:
    """Components of 2**62 elements make as many positions, and the last one can be computed."""
    mixture = WeightedMixture(("a", "b"), (ENDLESS, ENDLESS), schedule=((0, (2, 1)),), stop=stop, seed=7)
    assert len(mixture) == ENDLESS
    last = np.array([ENDLESS - 1])
    answer = mixture.block(np.zeros_like(last), last)
    assert tuple(part.item() for part in answer) == mixture(0, ENDLESS - 1)
    assert int(mixture.counts(ENDLESS).sum()) == ENDLESS


def test_a_mixture_that_never_stops_repeats_no_epoch() -> None:
    """Its length is the position at which the first component would need more passes than an epoch has."""
    mixture = WeightedMixture(("a", "b"), (10, 3), schedule=((0, (1, 1)),), stop="never", seed=7)
    assert mixture.counts(len(mixture))[1] == 3 * 2**31
    component, epoch, place = mixture(0, len(mixture) - 2)
    assert epoch < 2**31
    assert place < mixture.lengths[component]


@given(mixtures())
def test_a_mixture_is_a_value(mixture: WeightedMixture) -> None:
    """Pickled and copied mixtures are equal to the first, hash alike and take no tables with them."""
    small = len(pickle.dumps(mixture))
    expected = named(mixture, 50)
    assert len(pickle.dumps(mixture)) == small
    for twin in (pickle.loads(pickle.dumps(mixture)), copy.deepcopy(mixture), eval(repr(mixture))):
        assert twin == mixture
        assert hash(twin) == hash(mixture)
        assert named(twin, 50) == expected


def test_a_mixture_is_a_rule() -> None:
    """It has the methods of the protocol."""
    assert isinstance(even(2), MixtureRule)


def test_weights_are_kept_without_common_divisors() -> None:
    """Weights in the same ratios make equal mixtures."""
    assert weighted((2, 4)) == weighted((1, 2))


@pytest.mark.parametrize("mixture", [even(2, length=5), even(3, length=0)])
def test_positions_outside_are_index_errors(mixture: WeightedMixture) -> None:
    """Each form raises IndexError for a position out of range."""
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
