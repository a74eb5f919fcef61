"""The thread of a fold applies steps above it, where that is faster than to leave them to worker threads."""

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest

import penstock as ps
from penstock._runtime._fold_choice import AboveChoice
from tests.dataset.functions import double, keep

Chosen = Callable[[int], bool]

CHOICES: dict[str, Chosen] = {
    "in turns": lambda number: number // 3 % 2 == 1,
    "by fold": lambda _: True,
    "by workers": lambda _: False,
    "by fold later": lambda number: number >= 5,
}


def choose(monkeypatch: pytest.MonkeyPatch, chosen: Chosen) -> None:
    """Let the fold apply the steps above where `chosen` says so, by the number of the batch."""

    def changes(choice: AboveChoice, number: int) -> bool:
        choice.by_fold = chosen(number)
        return False

    monkeypatch.setattr(AboveChoice, "changes", changes)


def without_tens(batch: Any) -> Any:
    """Raise for some batches."""
    if batch[0] % 20 == 0:
        raise ValueError(int(batch[0]))
    return batch + 1


def noised(batch: Any, rng: np.random.Generator) -> Any:
    """Return a batch with a random number added."""
    return batch + rng.integers(0, 1 << 30)


FOLDED = ps.range(200, seed=3).filter(keep)
PACKED = ps.read([np.arange(number % 7 + 1) for number in range(150)]).pack(16)
DATASETS: dict[str, ps.Dataset] = {
    "a function of batches": FOLDED.batch(3).map(double),
    "functions of rows and of batches": FOLDED.map(double).batch(3).map(double),
    "a merge": FOLDED.batch(3, merge=np.array).map(double),
    "single elements": FOLDED.window_shuffle(8).map(double).map(double),
    "random numbers": FOLDED.batch(3).random_map(noised),
    "batches that are left out": FOLDED.batch(4).map(without_tens, on_error="skip"),
    "packed sequences": PACKED.map(lambda row: {**row, "more": row["tokens"] + 1}),
    "batches of sequences": PACKED.batch(4).map(lambda rows: {**rows, "more": rows["tokens"] + 1}),
}


def contents(batches: Iterator[Any]) -> list[Any]:
    """Return batches as nested lists."""

    def plain(batch: Any) -> Any:
        if not isinstance(batch, dict):
            return np.asarray(batch).tolist()
        return {name: plain(value) for name, value in cast("dict[str, Any]", batch).items()}

    return list(map(plain, batches))


@pytest.mark.each_value
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("name", DATASETS)
def test_batches_and_states_are_those_of_a_loader_without_workers(
    name: str, choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice changes no byte, in any epoch; the state is that of the delivered batch, whoever made it."""
    choose(monkeypatch, CHOICES[choice])
    dataset = DATASETS[name]
    inline = ps.Loader(dataset)
    whole = contents(iter(inline))
    with ps.Loader(dataset, num_workers=2, workers="threads") as loader:
        for number, (batch, expected) in enumerate(zip(loader, whole, strict=True)):
            assert contents(iter([batch])) == [expected]
            if number % (len(whole) // 7) == 0:
                resumed = ps.Loader(dataset)
                resumed.load_state_dict(loader.state_dict())
                assert contents(iter(resumed)) == whole[number + 1 :]
        assert contents(iter(loader)) == contents(iter(inline))


@pytest.mark.each_value
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("is_batched", [True, False])
def test_an_error_comes_after_the_batches_before_it(
    choice: str, *, is_batched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised unchanged, in the consumer's thread, and the next call makes the batch again."""
    choose(monkeypatch, CHOICES[choice])
    fails = [True]

    def failing(batch: Any) -> Any:
        if fails[0] and 60 in np.ravel(batch):
            raise KeyError(60)
        return batch

    shuffled = FOLDED.window_shuffle(8)
    whole = contents(iter(ps.Loader(shuffled.batch(4) if is_batched else shuffled)))
    number = next(number for number, batch in enumerate(whole) if 60 in np.ravel(batch))
    dataset = (shuffled.batch(4) if is_batched else shuffled).map(failing)
    with ps.Loader(dataset, num_workers=2, workers="threads") as loader:
        batches = iter(loader)
        found: list[Any] = []
        for _ in range(2):
            with pytest.raises(KeyError, match="60"):
                found.extend(np.asarray(batch).tolist() for batch in batches)
            assert found == whole[:number]
        fails[0] = False
        found.extend(np.asarray(batch).tolist() for batch in batches)
    assert found == whole


def test_the_thread_of_the_fold_calls_functions_without_a_state_of_each_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker calls one if the fold is chosen; the state of another function belongs to a worker's thread."""
    choose(monkeypatch, CHOICES["by fold"])
    names: set[str] = set()

    def function(batch: Any) -> Any:
        names.add(threading.current_thread().name.split("-")[1])
        return batch

    with ps.Loader(FOLDED.batch(4).map(function), num_workers=2, workers="threads") as loader:
        list(loader)
    assert names == {"fold"}
    names.clear()
    with ps.Loader(FOLDED.batch(4).map(ps.PerWorker(lambda: function)), num_workers=2, workers="threads") as loader:
        list(loader)
    assert names
    assert "fold" not in names
