"""Mixtures that are read in order follow their schedules as those with positions do, and resume anywhere in them."""

from collections.abc import Iterator
from functools import partial
from itertools import islice, pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import StateError
from tests.dataset.functions import keep
from tests.equivalence.decisions import DECISIONS, random_decisions
from tests.profiles import in_short

NO_END = 1 << 60
PARTS = "abc"
Stop = Literal["first", "all"]
STOPS: st.SearchStrategy[Stop] = st.sampled_from(("first", "all"))
WEIGHTS = st.tuples(*[st.integers(0, 3)] * len(PARTS)).filter(any)
ONE_WEIGHT = st.sampled_from([(1, 0, 0), (0, 2, 0), (0, 0, 1)])
Schedule = dict[int, tuple[int, ...]]


class Scheduled(NamedTuple):
    """A mixture of parts of some lengths, whose elements are numbers that tell their part."""

    lengths: tuple[int, ...]
    schedule: Schedule

    def mixed(self, stop: Literal["first", "all", "never"], filtered: frozenset[str] = frozenset()) -> ps.Dataset:
        """Return the mixture, with some parts that can only be read in order."""
        parts: dict[str, ps.Dataset] = {}
        for number, (name, length) in enumerate(zip(PARTS, self.lengths, strict=True)):
            part = ps.range(100 * number, 100 * number + length)
            parts[name] = part.filter(keep) if name in filtered else part
        named = {at: dict(zip(PARTS, weights, strict=True)) for at, weights in self.schedule.items()}
        return ps.mix(parts, named, stop=stop)


@st.composite
def scheduled(draw: st.DrawFn, weights: st.SearchStrategy[tuple[int, ...]], least: int = 0) -> Scheduled:
    """Draw parts of a few elements, of which schedules with up to five changes read several to their ends."""
    lengths = draw(st.tuples(*[st.integers(least, 9)] * len(PARTS)))
    starts = [0, *sorted(draw(st.sets(st.integers(1, 25), max_size=5)))]
    return Scheduled(lengths, {start: draw(weights) for start in starts})


def walk(mixture: Scheduled, stop: Stop) -> Iterator[int]:
    """Yield the elements of a mixture, by a walk over its changes, as the oracle of those with positions does."""
    counts, finished, position = [0] * len(PARTS), set[int](), 0
    for (_, weights), (end, _) in pairwise([*sorted(mixture.schedule.items()), (NO_END, ())]):
        taken = [0] * len(PARTS)
        while position < end:
            members = [number for number in range(len(PARTS)) if weights[number] and number not in finished]
            if not members:
                break
            part = min(members, key=lambda number: (taken[number] / weights[number], number))
            if counts[part] == mixture.lengths[part]:
                if stop == "first":
                    return
                finished.add(part)
                continue
            yield 100 * part + counts[part]
            counts[part], taken[part], position = counts[part] + 1, taken[part] + 1, position + 1


FILTERED = st.frozensets(st.sampled_from(PARTS), min_size=1)


@in_short(15)
@given(scheduled(WEIGHTS), STOPS, FILTERED, DECISIONS)
@example(Scheduled((1, 2, 2), {0: (1, 0, 0), 2: (0, 1, 2), 4: (0, 0, 1)}), "all", frozenset("a"), None)
@example(Scheduled((0, 3, 4), {0: (0, 0, 1), 1: (0, 1, 1)}), "first", frozenset("a"), 2)  # in several chunks
def test_changes_whose_parts_have_ended_are_skipped(
    mixture: Scheduled, stop: Stop, filtered: frozenset[str], decisions: int | None
) -> None:
    """All other changes are followed, and the state after each element continues with the next one."""
    dataset = mixture.mixed(stop, filtered)
    expected = list(walk(mixture, stop))
    assert list(dataset) == expected
    with random_decisions(decisions), ps.Loader(dataset) as loader, ps.Loader(dataset) as resumed:
        for count, element in enumerate(loader, 1):
            assert element == expected[count - 1]
            resumed.load_state_dict(loader.state_dict())
            if count < len(expected):
                assert list(resumed) == expected[count:]


@in_short(15)
@given(scheduled(WEIGHTS), scheduled(ONE_WEIGHT, least=1), st.sampled_from(["first", "all", "never"]), FILTERED)
def test_a_mixture_with_positions_follows_its_schedule(
    mixture: Scheduled, single: Scheduled, stop: Literal["first", "all", "never"], filtered: frozenset[str]
) -> None:
    """With `stop="all"`, all elements of the parts of the last change are read, as in a mixture that is read in order.

    If each change has one part with a weight, both rules have the same order.
    """
    last = mixture.schedule[max(mixture.schedule)]
    found = list(mixture.mixed("all"))
    for number, weight in enumerate(last):
        own = [each for each in found if each // 100 == number]
        expected = list(range(100 * number, 100 * number + mixture.lengths[number]))
        assert own == (expected if weight else expected[: len(own)])
    assert list(single.mixed(stop, filtered).limit(60)) == list(single.mixed(stop).take(60))


def test_an_element_is_measured_before_the_consumer_writes_to_it() -> None:
    """A loop, or a function above, that writes to its elements leaves the order as it is."""
    parts = {sign: ps.range(8).map(lambda number: [number % 5 + 1]).map(partial(signed, sign)) for sign in "+-"}
    mixed = ps.mix(parts, measure=lambda element: element[0])
    with ps.Loader(mixed) as loader:
        expected = [tuple(element) for element in loader]
    found: list[Any] = []
    for element in mixed:
        found.append(tuple(element))
        element[0] = 0
    assert found == expected


def signed(sign: str, element: list[Any]) -> list[Any]:
    """Return the element with its part's sign."""
    return [*element, sign]


def test_ranks_change_their_weights_together() -> None:
    """A schedule counts the elements of all ranks; within an epoch, no other number of ranks continues in it."""
    parts = {"a": ps.range(300).filter(keep), "b": ps.range(1000, 1300).filter(keep)}
    dataset = ps.mix(parts, {0: {"a": 1}, 40: {"b": 1}}).batch(8)
    loaders: list[ps.Loader] = []
    for ranks in (1, 2, 4):
        loaders = [ps.Loader(dataset, shard=ps.Shard(rank, ranks, uneven=True)) for rank in range(ranks)]
        steps = [np.concatenate(batches) for batches in islice(zip(*loaders, strict=True), 8)]
        assert [len(step) for step in steps] == [8] * 8
        assert [sorted(set((step >= 1000).tolist())) for step in steps] == [[False]] * 5 + [[True]] * 3
    states = [loader.state_dict() for loader in loaders]
    other = ps.Loader(dataset, shard=ps.Shard(0, 2, uneven=True))
    with pytest.raises(StateError, match=r"a mix with a schedule .* on as many ranks as saved the states"):
        other.load_state_dict(states)
    constant = ps.mix(parts, {"a": 1, "b": 1}).batch(8)
    one, dealt = ps.Loader(constant), ps.Loader(constant, shard=ps.Shard(0, 2, uneven=True))
    next(iter(one))
    dealt.load_state_dict([one.state_dict()])
    next(iter(dealt))
    with pytest.raises(StateError, match=r"a mix with a schedule .* nor follow such a deal"):
        other.load_state_dict(dealt.state_dict())
