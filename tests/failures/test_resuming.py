"""Failures of saving and resuming that are known from other loaders, and that must not happen here."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest

import penstock as ps


def test_the_state_of_other_weights_or_parts_is_refused() -> None:
    """A mixture refuses a state with another past of weights or parts, and takes one with another future."""

    def loader(schedule: Any, names: str = "ab") -> ps.Loader:
        parts = {name: ps.range(1000 * ord(name), 1000 * ord(name) + 100).shuffle() for name in names}
        return ps.Loader(ps.mix(parts, schedule, stop="all").batch(8))

    saved = loader({0: {"a": 1, "b": 1}})
    begun = list(islice(saved, 3))
    state = saved.state_dict()
    for other in (loader({0: {"a": 2, "b": 1}}), loader({0: {"a": 1, "b": 1}, 20: {"a": 1}}), loader(None, "abc")):
        with pytest.raises(ps.errors.StateError, match="another"):
            other.load_state_dict(state)
    other = loader({0: {"a": 1, "b": 1}, 24: {"a": 1, "b": 2, "c": 3}}, "cab")
    other.load_state_dict(state)
    rows = np.concatenate([*begun, *other]).tolist()
    assert sorted(rows) == [1000 * ord(name) + number for name in "abc" for number in range(100)]


HOLDS: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "window": lambda dataset: dataset.window_shuffle(8),
    "rows": lambda dataset: dataset.batch(8).unbatch(),
    "flat_map": lambda dataset: dataset.flat_map(lambda number: [10 * number + copy for copy in range(8)]),
}


@pytest.mark.parametrize("name", HOLDS)
def test_weights_do_not_change_within_a_window(name: str) -> None:
    """No window resumes half with other weights: they change after the elements that were read, or it is an error."""

    def loader(schedule: Any) -> ps.Loader:
        parts = {"a": ps.range(20).filter(lambda _: True), "b": ps.range(100, 120).filter(lambda _: True)}
        return ps.Loader(HOLDS[name](ps.mix(parts, schedule, stop="all")).batch(4, merge=list))

    old = {0: {"a": 1, "b": 1}}
    saved = loader(old)
    begun = next(iter(saved))
    state = saved.state_dict()
    for position in (0, 4, 8):
        other = loader({**old, position: {"b": 5, "a": 1} if position else {"b": 1}})
        other.load_state_dict(state)
        if position == 0 or (position == 4 and name != "flat_map"):
            with pytest.raises(ps.errors.StateError, match=r"saved within .* which has other elements"):
                next(iter(other))
        else:
            found = [int(row) for batch in [begun, *other] for row in batch]
            assert sorted(found) == sorted(int(row) for batch in loader(old) for row in batch)
