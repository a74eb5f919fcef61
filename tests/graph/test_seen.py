"""Only the seen elements of a mixture count for a state, so that the mixture's future may change."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

import penstock as ps
from penstock.errors import StateError

Schedule = dict[int, tuple[int, ...]]
CHANGING: Schedule = {0: (1, 1, 0), 8: (1, 1, 2)}


def mix(schedule: Schedule, names: str = "abc", seed: int = 7, first: int = 0) -> ps.Dataset[str]:
    """Return a mixture of parts of 20."""
    starts = {name: ord(name) * 100 for name in names} | {names[0]: first or ord(names[0]) * 100}
    parts = {name: ps.range(start, start + 20).map(str, name=f"map {name}") for name, start in starts.items()}
    return ps.mix(parts, {at: dict(zip(names, each, strict=True)) for at, each in schedule.items()}, seed=seed)


def accepts(before: ps.Dataset[Any], after: ps.Dataset[Any], steps: int = 8) -> bool:
    """Return whether the state of one dataset after some steps can be loaded into another one."""
    loader = ps.Loader(before)
    assert len(list(itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), steps))) == steps
    try:
        ps.Loader(after).load_state_dict(loader.state_dict())
    except StateError:
        return False
    return True


OTHER_FUTURE = mix({0: (1, 1, 0), 8: (3, 1, 2)})
EPOCH = len(list(mix(CHANGING)))


@pytest.mark.parametrize("other", [OTHER_FUTURE, mix({0: (0, 1, 1, 0), 8: (1, 1, 1, 2)}, "dabc"), mix({0: (1, 1, 0)})])
def test_the_future_does_not_count(other: ps.Dataset[str]) -> None:
    """Another schedule from here on, or one more component, is accepted, also below steps that keep the order."""
    assert accepts(mix(CHANGING), other)
    assert accepts(mix(CHANGING).map(str).cache().batch(4, merge=list), other.map(str).batch(4, merge=list), 2)


@pytest.mark.parametrize(
    "other", [mix({0: (1, 2, 0), 8: (1, 1, 2)}), mix(CHANGING, seed=8), mix(CHANGING, "dba"), mix(CHANGING, "adc")]
)
def test_the_past_counts(other: ps.Dataset[str]) -> None:
    """Another past, seed or part of it is refused."""
    assert not accepts(mix(CHANGING), other)


@pytest.mark.parametrize("steps", [9, EPOCH + 8])
def test_beyond_the_past_everything_counts(steps: int) -> None:
    """After the change, and in later epochs, other futures are refused."""
    assert accepts(mix(CHANGING), mix(CHANGING), steps)
    assert not accepts(mix(CHANGING), OTHER_FUTURE, steps)


WRAPS: dict[str, Callable[[ps.Dataset[Any]], ps.Dataset[Any]]] = {
    "shuffle": lambda dataset: dataset.shuffle(),
    "filter": lambda dataset: dataset.filter(bool),
    "zip": lambda dataset: ps.zip(dataset, dataset, unequal="shortest"),
    "flat_map": lambda dataset: dataset.flat_map(lambda text: [text, text]),
}


@pytest.mark.parametrize("name", WRAPS)
def test_a_reordered_mixture_counts_as_a_whole(name: str) -> None:
    """If a step above a mixture changes the number or order of its elements, its future counts."""
    assert not accepts(WRAPS[name](mix(CHANGING)), WRAPS[name](OTHER_FUTURE))
