"""The generator of a random map is a pure function of the step's seed and the element's seed position."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Generator, Philox  # noqa: TID251 - the same generator, made as the promise states it

import penstock as ps
from penstock._graph._coordinates import SeedPosition, SeedPositions
from penstock._graph._rng import StepGenerator
from penstock.errors import UsageError
from tests.equivalence.definition import digest, digests
from tests.places import in_places
from tests.seeds import derive

COORDINATES = st.integers(0, 2**62)
PLACES = st.lists(st.tuples(COORDINATES, COORDINATES, COORDINATES), min_size=1, max_size=12)


def promised(seed: int, epoch: int, position: int, ordinal: int) -> Generator:
    """Return a generator over Philox with key (seed, derive(seed, "key")), counter (0, ordinal, position, epoch)."""
    key = np.array([seed, derive(seed, "key")], np.uint64)
    return Generator(Philox(key=key, counter=np.array([0, ordinal, position, epoch], np.uint64)))


def several_draws(rng: Generator) -> tuple[Any, ...]:
    """Return draws of several kinds; an odd number of 32-bit integers leaves half a word in the generator."""
    words = rng.integers(0, 2**32, size=3, dtype=np.uint32)
    return words.tobytes(), rng.random(), float(rng.standard_normal()), rng.permutation(5).tolist(), rng.bytes(3)


def blocks(positions: list[tuple[int, int, int]]) -> SeedPositions:
    """Return seed positions as a block."""
    return SeedPositions(*(np.array(column, np.int64) for column in zip(*positions, strict=True)))


@given(st.integers(0, 2**64 - 1), PLACES)
def test_streams_are_the_promised_ones(seed: int, places: list[tuple[int, int, int]]) -> None:
    """One at a time or as a block, an element's draws are those of a generator made for it alone."""
    expected = [several_draws(promised(seed, *place)) for place in places]
    generator = StepGenerator()
    assert [several_draws(rng) for rng in generator.streams(seed, blocks(places))] == expected
    assert [several_draws(generator.at(seed, SeedPosition(*place))) for place in places] == expected


def test_nothing_is_carried_over() -> None:
    """An element's unused random words, or a block that was abandoned, don't enter the next stream.

    One generator serves several steps, whose keys differ.
    """
    places = [(0, position, 0) for position in range(6)]
    for drawn in range(10):
        generator = StepGenerator()
        for rng, place in zip(generator.streams(5, blocks(places)), places, strict=True):
            assert several_draws(rng) == several_draws(promised(5, *place))
            rng.integers(0, 2**32, size=drawn, dtype=np.uint32)
            rng.random(drawn)
    generator = StepGenerator()
    for seed in (1, 2, 1, 2):
        assert several_draws(generator.at(seed, SeedPosition(0, 3, 0))) == several_draws(promised(seed, 0, 3, 0))
        next(generator.streams(seed, blocks(places))).random(3)
        (rng,) = generator.streams(3, blocks([(0, 1, 0)]))
        assert several_draws(rng) == several_draws(promised(3, 0, 1, 0))


def test_the_struct_is_as_expected_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the tested NumPy, a block takes the quick way and never sets the public state of one element.

    If NumPy's struct has another layout, its public state is assigned instead, with the same bytes.
    """
    places = [(epoch, position, ordinal) for epoch in (0, 1) for position in (0, 7, 2**62) for ordinal in (0, 3)]
    expected = [several_draws(promised(9, *place)) for place in places]
    with monkeypatch.context() as patch:
        patch.delattr(StepGenerator, "at")
        assert [several_draws(rng) for rng in StepGenerator().streams(9, blocks(places))] == expected

    def is_as_expected(*_: object) -> bool:
        return False

    monkeypatch.setattr("penstock._graph._rng._PhiloxStruct.is_as_expected", is_as_expected)
    assert [several_draws(rng) for rng in StepGenerator().streams(9, blocks(places))] == expected


@pytest.mark.parametrize("damage", ["counter", "drawn"])
def test_another_layout_is_noticed(monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    """If the public state doesn't show the stored words, the struct isn't written to again."""

    def store_counter(struct: Any, words: bytes) -> None:
        if damage == "counter":
            words = bytes(reversed(words))
        vars(struct)["_counter"][:] = words

    monkeypatch.setattr("penstock._graph._rng._PhiloxStruct.store_counter", store_counter)
    drawn = [several_draws(rng) for rng in StepGenerator().streams(9, blocks([(1, 2, 3)]))]
    assert drawn == [several_draws(promised(9, 1, 2, 3))]


def record(element: object, rng: Generator) -> dict[str, Any]:
    """Return an element with its draws."""
    return {"element": element, "draws": rng.integers(0, 2**32, size=3, dtype=np.uint32), "value": rng.random()}


def expected_record(element: object, epoch: int, position: int, ordinal: int) -> dict[str, Any]:
    """Return the result of `record` for an element of a dataset of seed 7, in a step named "mine"."""
    return record(element, promised(derive(7, "mine"), epoch, position, ordinal))


READ = ps.range(24, seed=7)
SHUFFLED = READ.shuffle()

# For each dataset: the (epoch, position, ordinal) of its elements' streams, by the rules in words.
PLACES_OF: dict[str, tuple[ps.Dataset, Callable[[int, int], tuple[int, int, int]]]] = {
    "read": (READ, lambda epoch, position: (epoch, position, 0)),
    "shuffle": (SHUFFLED, lambda epoch, position: (epoch, position, 0)),
    "slice": (READ[3:20:2], lambda epoch, position: (epoch, 3 + 2 * position, 0)),
    "shard": (READ.shard(1, 4), lambda epoch, position: (epoch, 1 + 4 * position, 0)),
    "repeat": (SHUFFLED.repeat(2), lambda epoch, position: (2 * epoch + position // 24, position % 24, 0)),
    "epoch": (SHUFFLED.epoch(5), lambda _, position: (5, position, 0)),
    "select": (READ.select([5, 5, 1]), lambda epoch, position: (epoch, position, 0)),
    "batch": (SHUFFLED.batch(5), lambda epoch, position: (epoch, 5 * position, 0)),
    "unbatch": (READ.batch(5).unbatch(), lambda epoch, position: (epoch, position // 5 * 5, position % 5)),
}


@pytest.mark.parametrize("name", PLACES_OF)
def test_random_maps_draw_by_seed_position(name: str) -> None:
    """Slices, shards and repeats keep the seed position below; a shuffle keeps the position; a row is added."""
    below, place = PLACES_OF[name]
    dataset = below.random_map(record, name="mine")
    for epoch in (0, 3):
        expected = [
            digest(expected_record(element, *place(epoch, position)))
            for position, element in enumerate(below.epoch(epoch))
        ]
        assert digests(dataset.epoch(epoch)) == expected
        with ps.Loader(dataset.epoch(epoch), num_workers=2 if epoch else 0) as loader:
            assert digests(loader) == expected


def test_the_last_position_has_a_stream() -> None:
    """The last position of the longest dataset has its own stream as well."""
    last = 2**62 - 1
    dataset = ps.range(2**62, seed=7).random_map(record, name="mine")
    assert digest(dataset[-1]) == digest(expected_record(last, 0, last, 0))
    assert digest(dataset.epoch(2**61)[last]) == digest(expected_record(last, 2**61, last, 0))


def spawning(number: int, rng: Generator) -> tuple[float, ...]:
    """Return draws of a generator and of those that it spawns, also of a copy's, and a seed of its seeds."""
    first, second = rng.spawn(2)
    own = rng.random(number % 3)
    (seed,) = rng.bit_generator.seed_seq.generate_state(1).tolist()
    (third,) = copy.deepcopy(rng).spawn(1)
    rng.bit_generator.random_raw()
    (fourth,) = copy.deepcopy(rng).spawn(1)
    return *(each.random() for each in (first, second, third, fourth, *rng.spawn(1))), rng.random(), *own, seed


@in_places("inline", "threads", "processes")
def test_spawned_generators_draw_by_seed_position(place: dict[str, Any]) -> None:
    """Their numbers depend on the element, and on what its function has drawn before; copies draw nothing of it."""
    dataset = ps.range(24, seed=3).shuffle().random_map(spawning)
    expected = [*dataset]
    assert [dataset[position] for position in range(24)] == expected
    assert len({value for values in expected for value in values}) == sum(map(len, expected))
    with ps.Loader(dataset, **place) as loader:
        assert [*loader] == expected


def test_a_generator_spawns_none_after_its_loader() -> None:
    """Nothing is left from which seeds could be drawn."""
    rng = StepGenerator().at(1, SeedPosition(0, 0, 0))
    copied = copy.deepcopy(rng)
    assert copied.random() == rng.random()
    for act in (lambda: rng.spawn(1), lambda: copied.spawn(1), lambda: rng.bit_generator.seed_seq.generate_state(1)):
        with pytest.raises(UsageError, match="in its calls"):
            act()
