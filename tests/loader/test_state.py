"""A loader's state: small, plain, exact, and the same for any workers."""

import json
from typing import Any

import pytest

import penstock as ps
from tests.dataset.functions import is_even


def numbers(size: int = 4, length: int = 40, *, seed: int = 3) -> ps.Dataset:
    """Return batches of shuffled numbers."""
    return ps.range(length, seed=seed).shuffle().batch(size)


def is_plain(value: object) -> bool:
    """Return whether a value consists of the types that JSON returns."""
    text = json.dumps(value)
    return repr(json.loads(text)) == repr(value)


@pytest.mark.parametrize("dataset", [numbers(), ps.range(40).filter(is_even).batch(4), ps.range(9).shuffle()])
def test_states_are_fresh_plain_values(dataset: ps.Dataset) -> None:
    """A state is made of dicts, lists, ints and strings, survives JSON, and shares nothing with the loader."""
    loader = ps.Loader(dataset)
    next(iter(loader))
    state = loader.state_dict()
    assert is_plain(state)
    state["segments"].clear()
    state["fingerprint"].clear()
    assert loader.state_dict()["segments"]
    assert loader.state_dict()["fingerprint"]


def test_states_stay_below_a_kilobyte() -> None:
    """After many abandoned epochs, resumes and changed batch sizes of a huge dataset, a state is small."""
    length = 2**60
    loader = ps.Loader(ps.range(length).shuffle().batch(3))
    for count in range(60):
        batches = iter(loader)
        for _ in range(count % 3 + 1):
            next(batches)
        loader.seek(loader.step + 10**15)
        state = loader.state_dict()
        loader = ps.Loader(ps.range(length).shuffle().batch(3 + count % 7))
        loader.load_state_dict(state)
        assert len(json.dumps(state)) < 1000


def test_a_state_from_before_a_break_can_be_saved() -> None:
    """A state of an abandoned epoch's step resumes the rest of that epoch."""
    loader = ps.Loader(numbers())
    first = next(iter(loader)).tolist()
    next(iter(loader))
    other = ps.Loader(numbers())
    other.load_state_dict(loader.state_dict(step=0))
    assert [batch.tolist() for batch in other] == [batch.tolist() for batch in numbers()]
    assert other.batch_at(0).tolist() == first


def test_seeking_back_over_a_break_forgets_it() -> None:
    """The whole epoch is read, and later steps are unknown, since they will have other batches."""
    dataset = ps.range(80, seed=1).shuffle().filter(is_even).batch(4)
    loader, other = ps.Loader(dataset), ps.Loader(dataset)
    expected = [batch.tolist() for batch in dataset]
    next(iter(loader))
    assert len(list(loader)) == 10
    loader.seek(0)
    for step in range(1, 10):
        with pytest.raises(ps.errors.StateError, match=r"only the last delivered steps are known: 0 to 0"):
            loader.batch_at(step)
    found = iter(loader)
    assert [next(found).tolist() for _ in range(3)] == expected[:3]
    other.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in other] == expected[3:]


MOVES: dict[str, list[dict[str, int] | None]] = {
    "an epoch is left earlier than before": [{"step": 2}, None, None],
    "a step begins at another position": [{"step": 2}, {"position": 40}],
    "a step before the other position": [{"position": 60}, None, {"step": 2}],
}


@pytest.mark.parametrize("name", MOVES)
def test_another_way_from_a_step_on_forgets_the_later_steps(name: str) -> None:
    """They have other elements than before, or will have them. None is a new iterator, which delivers one batch."""
    loader: Any = ps.Loader(ps.range(80, seed=1).shuffle().filter(is_even).batch(4))
    list(zip(range(5), loader, strict=False))
    for move in MOVES[name]:
        if move is None:
            next(iter(loader))
        else:
            loader.seek(**move)
    with pytest.raises(ps.errors.StateError, match="only the last delivered steps are known"):
        loader.batch_at(5)


class Counting:
    """A source of numbers that counts its reads."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.reads = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> int:
        self.reads += 1
        return key


@pytest.mark.parametrize("step", [10, 10**9])
def test_loading_a_state_reads_nothing(step: int) -> None:
    """At any step of a huge dataset, a resumed loader equals one after `seek`, and reads only its batch."""
    source = Counting(2**40)
    dataset = ps.read(source, seed=5).shuffle().batch(8)
    sought = ps.Loader(dataset)
    sought.seek(step)
    resumed = ps.Loader(dataset)
    resumed.load_state_dict(sought.state_dict())
    assert source.reads == 0
    batch = next(iter(resumed))
    assert source.reads == 8
    assert batch.tolist() == next(iter(sought)).tolist() == dataset[step].tolist() == resumed.batch_at(step).tolist()
    assert (resumed.step, resumed.position) == (step, 8 * step)


@pytest.mark.parametrize("dataset", [numbers(), ps.range(79).filter(is_even).batch(4)])
@pytest.mark.parametrize("arguments", [{}, {"num_workers": 2, "ordered": False}])
def test_steps_done_counts_the_steps_behind(dataset: ps.Dataset, arguments: dict[str, Any]) -> None:
    """It is 0 before the first batch, one more after each, also over epochs, and the same in a loader that resumes."""
    with ps.Loader(dataset, **arguments) as loader, ps.Loader(dataset, **arguments) as other:
        counts = [loader.steps_done, *(loader.steps_done for _ in range(2) for _ in loader)]
        assert counts == list(range(21))
        other.load_state_dict(loader.state_dict())
        assert other.steps_done == 20
