"""Faults of every kind in loaders of every kind don't change what the loaders deliver."""

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import penstock as ps
from tests.equivalence.definition import epoch_of
from tests.faults import rounds, subjects
from tests.faults.chance import Chance
from tests.faults.datasets import TRAPPED_KINDS
from tests.faults.findings import (
    BATCHES,
    CHANGED,
    LOST,
    REPEATED,
    Findings,
    briefs,
    compare,
    first_difference,
    is_raised,
)
from tests.faults.pace import Pace, at_once
from tests.faults.places import ABANDON, FAULTS, KILL, RESTART, STOP_AND_KILL
from tests.faults.work import TORCH_KIND, WORKING_KINDS, working_dataset

OFTEN = (KILL, STOP_AND_KILL, ABANDON)  # `scripts/soak` injects all kinds, thousands of times
OFTEN_WORKING = ("batched, working", "joined, working", "in order, working")
pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")


def often(values: Sequence[str], among: Sequence[str]) -> list[Any]:
    """Return the values, of which the short profile tries a few."""
    return [pytest.param(value, marks=() if value in among else pytest.mark.long) for value in values]


def run(number: int, faults: int, kinds: Sequence[str] = TRAPPED_KINDS) -> Findings:
    """Return the findings of a round."""
    findings = Findings()
    rounds.run_round(0, number, findings, lambda: None, faults, kinds)
    return findings


@pytest.mark.parametrize("fault", often(FAULTS, OFTEN))
def test_faults_lose_change_and_repeat_nothing(fault: str) -> None:
    """A round of faults, mostly of one kind, changes no batch and leaves no resource behind."""
    findings = run(FAULTS.index(fault), 3)
    assert findings.bad == []
    assert findings.total(fault) > 0


@pytest.mark.parametrize("kind", often(WORKING_KINDS, OFTEN_WORKING))
def test_functions_that_take_time_change_nothing(kind: str) -> None:
    """Slow functions and a slow consumer on some ranks change no batch of a random dataset."""
    findings = run(WORKING_KINDS.index(kind), 1, (kind,))
    assert findings.bad == []
    assert findings.total(BATCHES) > 0


@pytest.mark.parametrize("kind", often([kind for kind in WORKING_KINDS if kind != TORCH_KIND], OFTEN_WORKING))
def test_a_seed_gives_the_same_dataset_again(kind: str) -> None:
    """The random graph, and its batches, depend on the seed alone."""
    one, other = (working_dataset(kind, Chance(5, kind)) for _ in range(2))
    with at_once():
        assert briefs(epoch_of(one, 0)) == briefs(epoch_of(other, 0))


def test_functions_take_time_unless_the_definition_is_computed() -> None:
    """Each kind of work takes at least its time, but none while the definition is computed."""
    for kind in ("numpy", "python", "wait", "mixed"):
        pace = Pace(kind, 0.01)
        began = time.perf_counter()
        pace.spend()
        assert time.perf_counter() - began >= 0.009
    with at_once():
        began = time.perf_counter()
        Pace("wait", 60.0).spend()
        assert time.perf_counter() - began < 30


def test_the_first_difference_is_described() -> None:
    """The message shows the first differing batch from the difference on, and counts an error as a batch."""

    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("corrupt")

    outcomes = briefs(failing())
    assert is_raised(outcomes)
    assert not is_raised(outcomes[:1])
    assert first_difference(outcomes, briefs([1])).startswith("batch 1 should be ('error', 'ValueError', 'corrupt')")
    assert first_difference(briefs([1, 2]), briefs([1, 3])).startswith("batch 1 should be (<class 'int'>, 2)")


def test_a_wrong_epoch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round finds another batch and a missing one in the definition."""

    def other_epoch(dataset: ps.Dataset[Any], epoch: int) -> Iterator[Any]:
        _, _, *others = [*epoch_of(dataset, epoch), None, None]
        return iter(["another", *others[:-2]])

    monkeypatch.setattr(subjects, "epoch_of", other_epoch)
    findings = run(FAULTS.index(RESTART), 1, ("in order, working",))
    assert not findings.are_fine
    assert findings.total(CHANGED) > 0


def test_lost_repeated_and_changed_batches_are_counted() -> None:
    """`compare` counts missing, repeated, different and misplaced batches."""
    wrongs: dict[str, dict[str, int]] = {
        "abcd": {},
        "abc": {LOST: 1},
        "abbcd": {REPEATED: 1},
        "abxd": {CHANGED: 1},
        "abx": {CHANGED: 1, LOST: 1},
        "abbd": {REPEATED: 1, LOST: 1},
    }
    for found, wrong in wrongs.items():
        assert compare("abcd", found, in_order=True) == compare("abcd", found[::-1], in_order=False) == wrong
    assert compare("abcd", "bacd", in_order=True) == {CHANGED: 2}
