"""Streams with a state resume exactly, however the iterable was used before."""

import itertools
import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.loader.iterables import COUNT, ITERABLES, Continuing, Counter, CountsPasses, Lazy
from tests.places import in_places


def _hugging_face(name: str) -> Any:
    """Return a Hugging Face `IterableDataset` of 4 shards, with some of its steps."""
    datasets: Any = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    base = datasets.Dataset.from_dict({"x": list(range(COUNT))}).to_iterable_dataset(num_shards=4)
    steps: dict[str, Callable[[], Any]] = {
        "hf": lambda: base,
        "hf map": lambda: base.map(_negative),
        "hf batched map": lambda: base.map(_all_negative, batched=True, batch_size=5),
        "hf filter": lambda: base.filter(_is_even),
        "hf shuffled shards": lambda: base.shuffle(seed=1, buffer_size=1),
        "hf shuffle buffer": lambda: base.shuffle(seed=1, buffer_size=8),
        "hf interleaved": lambda: datasets.interleave_datasets([base, base.map(_negative)], [0.6, 0.4], seed=3),
        "hf take": lambda: base.take(30),
        "hf repeated": lambda: base.repeat(2),
    }
    return steps[name]()


def _negative(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": -row["x"]}


def _all_negative(rows: dict[str, Any]) -> dict[str, Any]:
    return {"x": [-x for x in rows["x"]]}


def _is_even(row: dict[str, Any]) -> bool:
    return int(row["x"]) % 2 == 0


def made(name: str) -> Any:
    """Return a new iterable of a kind."""
    return ITERABLES[name]() if name in ITERABLES else _hugging_face(name)


def peeked(name: str) -> Any:
    """Return an iterable after a read of its first element."""
    iterable = made(name)
    next(iter(iterable))
    return iterable


def read_twice(name: str) -> Any:
    """Return an iterable after a whole pass and a part of another."""
    iterable = made(name)
    assert list(iterable)
    elements: Iterator[Any] = iter(iterable)
    assert list(itertools.islice(elements, 20))
    return iterable


def resumed_before(name: str) -> Any:
    """Return an iterable that a loader resumed in its first epoch."""
    iterable = made(name)
    loader = ps.Loader(batched(iterable))
    batches: Iterator[Any] = iter(loader)
    assert list(itertools.islice(batches, 5))
    loader.load_state_dict(loader.state_dict())
    next(iter(loader))
    return iterable


def batched(iterable: Any) -> ps.Dataset[Any]:
    """Return the dataset of an iterable's elements, batched."""
    return ps.stream(iterable).map(str).batch(3)


def batches_and_states(dataset: ps.Dataset[Any], epochs: int = 2) -> tuple[list[Any], list[str]]:
    """Return the batches of some epochs, and the state after each batch."""
    loader = ps.Loader(dataset)
    batches: list[Any] = []
    states: list[str] = []
    for _ in range(epochs):
        for batch in loader:
            batches.append(batch)
            states.append(json.dumps(loader.state_dict()))
    return batches, states


def rest(dataset: ps.Dataset[Any], state: str, count: int) -> list[Any]:
    """Return so many batches that follow a state."""
    loader = ps.Loader(dataset)
    loader.load_state_dict(state)
    passes: Iterator[Any] = itertools.chain.from_iterable(iter(lambda: list(loader), None))
    return list(itertools.islice(passes, count))


USES = (made, peeked, read_twice, resumed_before)
SHORT = ("hf batched map", "hf filter", "hf interleaved")
LONG = ("hf map", "hf shuffled shards", "hf take", "hf repeated")


@pytest.mark.parametrize(
    ("name", "use"),
    [
        *itertools.product(ITERABLES, USES),
        *itertools.product(["hf"], (peeked, read_twice, resumed_before)),
        *itertools.product(SHORT, [resumed_before]),
        *(pytest.param(name, resumed_before, marks=pytest.mark.long) for name in LONG),
    ],
)
def test_a_stream_with_a_state_resumes_exactly(name: str, use: Callable[[str], Any]) -> None:
    """After any batch of two epochs, a new or a used iterable continues with the same batches."""
    expected, _ = batches_and_states(batched(made(name)))
    found, states = batches_and_states(batched(use(name)))
    assert found == expected
    used = use(name)
    numbers = (4, 12, len(states) - 4) if "hf" in name else (0, 1, 4, 5, 6, 11, 12, 13, len(states) - 2)
    with warnings.catch_warnings(action="error"):  # an iterable with a state is not read again
        for number in numbers:
            following = found[number + 1 :][:10]
            for iterable in (made(name), used):
                assert rest(batched(iterable), states[number], len(following)) == following


@in_places("inline", "threads")
@pytest.mark.parametrize("name", ["lazy", "hf"])
def test_states_of_streams_count_delivered_batches(name: str, place: dict[str, Any]) -> None:
    """A state counts delivered batches, though workers read ahead of them."""
    expected, _ = batches_and_states(batched(made(name)))
    with ps.Loader(batched(peeked(name)), **place) as loader:
        seen = list(itertools.islice(loader, 5))
        state = json.dumps(loader.state_dict())
    assert seen == expected[:5]
    assert rest(batched(made(name)), state, 6) == expected[5:11]


class OwnIterator(Counter):
    """An iterable that is its own iterator; `__iter__` starts again, or where it was set."""

    _start = 0

    def __iter__(self) -> "OwnIterator":
        self._at, self._start = self._start, 0
        return self

    def set_state(self, state: int) -> None:
        """Start the next pass there."""
        self._start = state


def test_an_iterable_that_is_its_own_iterator_begins_once() -> None:
    """A pass calls `__iter__` once, and a resumed one does so, too; a repeated stream resumes in the state's pass."""
    made_of: list[Callable[[], ps.Dataset[Any]]] = [
        lambda: ps.stream(OwnIterator).batch(3),
        lambda: ps.stream(peeked("shuffled")).repeat(3).batch(3),
    ]
    for make in made_of:
        expected, states = batches_and_states(make(), 1)
        assert len(np.concatenate(expected)) % COUNT == 0
        for number in (3, 11, *range(12, len(states) - 1, 8)):
            found = rest(make(), states[number], len(expected) - number - 1)
            assert [batch.tolist() for batch in found] == [batch.tolist() for batch in expected[number + 1 :]]


def test_a_shuffle_buffer_is_filled_again() -> None:
    """A state without the shuffle buffer's elements isn't used: elements are read again, with a warning."""
    expected, states = batches_and_states(batched(made("hf shuffle buffer")))
    with pytest.warns(UserWarning, match="leaves out what its shuffle buffer holds, so 15 elements are read again"):
        found = rest(batched(peeked("hf shuffle buffer")), states[4], len(expected) - 5)
    assert found == expected[5:]


class CountsLazily(Lazy):
    """An iterable that counts its passes; each pass has other elements."""

    passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += not self._start
        for number in super().__iter__():
            yield number + 100 * self.passes

    def state_dict(self) -> dict[str, Any]:
        """Return the pass, and the number of elements so far."""
        return {**super().state_dict(), "passes": self.passes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Start the next pass there."""
        super().load_state_dict(state)
        self.passes = state["passes"]


def test_an_iterables_own_count_is_in_the_state() -> None:
    """From a pass's second element on, the state has the iterable's own count."""
    used = CountsLazily()
    assert list(used)
    dataset = ps.stream(used).batch(2)
    found, states = batches_and_states(dataset, 1)
    assert found[0].tolist() == [201, 202]
    for number in (0, 3, 12):
        resumed = rest(ps.stream(CountsLazily()).batch(2), states[number], len(found) - number - 1)
        assert [batch.tolist() for batch in resumed] == [batch.tolist() for batch in found[number + 1 :]]


def test_a_state_that_the_user_loaded_is_kept() -> None:
    """A pass begins where the user's `load_state_dict` put the iterable."""
    iterable = Lazy()
    iterable.load_state_dict({"at": 30})
    assert list(ps.stream(iterable)) == list(range(31, COUNT + 1))


@in_places("inline", "threads")
@pytest.mark.parametrize("left_after", [0, 1, 5, None])
def test_an_iterable_that_continues_begins_each_pass_at_its_first_state(
    left_after: int | None, place: dict[str, Any]
) -> None:
    """Wherever a pass was left, a new loader begins where the first one did, and the state of any batch resumes."""
    iterable = Continuing()
    assert next(iter(iterable)) == 1
    expected = [[*map(str, range(at, min(at + 3, COUNT + 1)))] for at in range(2, COUNT + 1, 3)]
    with ps.Loader(batched(iterable), **place) as loader:
        assert list(itertools.islice(loader, left_after)) == expected[:left_after]
        state = loader.state_dict()
    found, _ = batches_and_states(batched(iterable))
    assert found == 2 * expected
    assert rest(batched(iterable), json.dumps(state), 3) == (expected[left_after or 0 :] + expected)[:3]


def test_an_iterable_whose_passes_differ_keeps_its_own_count() -> None:
    """After a pass that was left, the next passes are the iterable's own, complete, however its state is examined."""
    iterable = CountsPasses()
    assert next(iter(ps.Loader(ps.stream(iterable).batch(3)))).tolist() == [101, 102, 103]
    for number in (2, 3, 4):
        elements = np.concatenate(list(ps.stream(iterable).batch(3)))
        assert elements.tolist() == [*range(100 * number + 1, 100 * number + COUNT + 1)]
