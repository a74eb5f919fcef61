"""Elements that nested steps make of one element have random streams of their own, at any depth."""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import penstock as ps


def three(element: Any) -> list[Any]:
    """Return the element three times."""
    return [element] * 3


def digest(seeds: Iterable[int]) -> str:
    """Return a digest of seeds."""
    words = [(seed & ((1 << 64) - 1)).to_bytes(8, "little") for seed in seeds]
    return hashlib.blake2b(b"".join(words), digest_size=8).hexdigest()


def nested(depth: int, *, counted: bool, times: int = 3) -> ps.Dataset:
    """Return a dataset with a number of steps, each of which makes some elements of one."""
    dataset = ps.range(5, seed=3)
    for level in range(depth):
        counts = [times] * (5 * times**level) if counted else None
        dataset = dataset.flat_map(lambda element: [element] * times, name=f"f{level}", counts=counts)
    return dataset


def seeded(dataset: ps.Dataset) -> ps.Dataset:
    """Return the seeds of the elements' streams."""
    return dataset.random_map(lambda _, seed: seed, rng="seed", name="s")


DOCUMENTS = [np.arange(7), np.arange(40), np.arange(5)]


FROZEN: list[tuple[ps.Dataset, str]] = [
    *((nested(1, counted=counted), "aeee06df27f9e5c9") for counted in (False, True)),
    *((nested(2, counted=counted), "35f92c6378176761") for counted in (False, True)),
    *((nested(3, counted=counted), "df3633e602bf4a4c") for counted in (False, True)),
    (ps.range(30, seed=3).batch(4).unbatch().batch(4).unbatch(), "0626e2c4690466cc"),
    (ps.read([np.arange(7), np.arange(4)], seed=3).windows(3, 2, lengths=[7, 4]).flat_map(three), "f96fd4c3ae857d75"),
    (ps.read(DOCUMENTS, seed=3).pack(8).flat_map(three), "40742915ea6e569c"),
    (ps.read(DOCUMENTS, seed=3).pack(8, lengths=[7, 40, 5]).flat_map(three), "0982f0339bdb523c"),
]


def test_the_seeds_of_shallow_datasets_are_frozen() -> None:
    """Up to three nested steps have the seeds that they had in every version."""
    for dataset, expected in FROZEN:
        assert digest(seeded(dataset)) == expected


@pytest.mark.parametrize(("depth", "counted"), [(4, True), (5, False), (6, True)])
def test_streams_are_distinct_at_any_depth(depth: int, *, counted: bool) -> None:
    """No two elements share a seed or an address; the loader's draws equal the definition's."""
    elements = nested(depth, counted=counted, times=2)
    dataset = seeded(elements)
    expected = list(dataset)
    assert len(set(expected)) == 5 * 2**depth
    origins = elements.map_with_origin(lambda _, origin: (origin.epoch, origin.position, origin.ordinal))
    assert len(set(origins)) == 5 * 2**depth
    with ps.Loader(dataset, num_workers=2 * counted) as loader:
        assert list(loader) == expected


def test_batches_in_batches_are_taken_apart_at_any_depth() -> None:
    """Rows of nested batches have streams of their own, too."""
    dataset: ps.Dataset = ps.range(3**5, seed=3)
    for _ in range(4):
        dataset = dataset.batch(3)
    for _ in range(4):
        dataset = dataset.unbatch()
    expected = list(seeded(dataset))
    assert len(set(expected)) == 3**5
    assert list(ps.Loader(seeded(dataset.filter(lambda element: isinstance(element, np.generic))))) == expected
