"""Only the seen elements of a mixture count for a state, so that the mixture's future may change."""

import itertools
from collections.abc import Callable
from typing import Any

import penstock as ps
from penstock.errors import StateError

Schedule = dict[int, tuple[int, ...]]
CHANGING: Schedule = {0: (1, 1, 0), 8: (1, 1, 2)}


def mix(schedule: Schedule, names: str = "abc", seed: int = 7) -> ps.Dataset[str]:
    """Return a mixture of parts of 20."""
    starts = {name: ord(name) * 100 for name in names}
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


def test_the_future_does_not_count() -> None:
    """Another schedule from here on, or one more component, is accepted, also below steps that keep the order.

    After the change, and in later epochs, everything counts.
    """
    for other in (OTHER_FUTURE, mix({0: (0, 1, 1, 0), 8: (1, 1, 1, 2)}, "dabc"), mix({0: (1, 1, 0)})):
        assert accepts(mix(CHANGING), other)
        assert accepts(mix(CHANGING).map(str).cache().batch(4, merge=list), other.map(str).batch(4, merge=list), 2)
        assert accepts(mix(CHANGING).batch(4, merge=list).cache(), other.batch(4, merge=list).cache(), 2)
    assert not accepts(mix(CHANGING).batch(4, merge=list).cache(), OTHER_FUTURE.batch(4, merge=list).cache(), 3)
    for steps in (9, len(list(mix(CHANGING))) + 8):
        assert accepts(mix(CHANGING), mix(CHANGING), steps)
        assert not accepts(mix(CHANGING), OTHER_FUTURE, steps)


WRAPS: list[Callable[[ps.Dataset[Any]], ps.Dataset[Any]]] = [
    lambda dataset: dataset.shuffle(),
    lambda dataset: dataset.filter(bool),
    lambda dataset: ps.zip(dataset, dataset, unequal="shortest"),
    lambda dataset: dataset.flat_map(lambda text: [text, text]),
]


def test_the_past_and_what_is_reordered_counts() -> None:
    """Another past, seed or part of it is refused.

    If a step above a mixture changes the number or order of its elements, its future counts.
    """
    for other in (mix({0: (1, 2, 0), 8: (1, 1, 2)}), mix(CHANGING, seed=8), mix(CHANGING, "dba"), mix(CHANGING, "adc")):
        assert not accepts(mix(CHANGING), other)
    for wrap in WRAPS:
        assert not accepts(wrap(mix(CHANGING)), wrap(OTHER_FUTURE))
