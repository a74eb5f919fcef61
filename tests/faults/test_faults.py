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
from tests.faults.places import ABANDON, FAULTS, KILL, KILL_HELPER, KILL_PROGRAM, RESTART, STOP_AND_KILL
from tests.faults.work import TORCH_KIND, WORKING_KINDS, working_dataset

OFTEN = (KILL, KILL_HELPER, KILL_PROGRAM, STOP_AND_KILL, RESTART, ABANDON)
pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")


def nothing() -> None:
    """Show no progress."""


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=() if fault in OFTEN else pytest.mark.long) for fault in FAULTS]
)
def test_faults_lose_change_and_repeat_nothing(fault: str) -> None:
    """A round of faults, mostly of one kind, changes no batch and leaves no resource behind."""
    findings = Findings()
    rounds.run_round(0, FAULTS.index(fault), findings, nothing, faults=3)
    assert findings.bad == []
    assert findings.total(fault) > 0


@pytest.mark.parametrize("kind", WORKING_KINDS)
def test_functions_that_take_time_change_nothing(kind: str) -> None:
    """Slow functions and a slow consumer on some ranks change no batch of a random dataset."""
    findings = Findings()
    rounds.run_round(0, WORKING_KINDS.index(kind), findings, nothing, faults=1, kinds=(kind,))
    assert findings.bad == []
    assert findings.total(BATCHES) > 0


@pytest.mark.parametrize("kind", [kind for kind in WORKING_KINDS if kind != TORCH_KIND])
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


@pytest.mark.parametrize("kinds", [TRAPPED_KINDS, WORKING_KINDS])
def test_a_wrong_epoch_is_noticed(monkeypatch: pytest.MonkeyPatch, kinds: Sequence[str]) -> None:
    """A round finds another batch and a missing one in the definition."""

    def other_epoch(dataset: ps.Dataset[Any], epoch: int) -> Iterator[Any]:
        _, _, *others = [*epoch_of(dataset, epoch), None, None]
        return iter(["another", *others[:-2]])

    monkeypatch.setattr(subjects, "epoch_of", other_epoch)
    findings = Findings()
    rounds.run_round(0, FAULTS.index(RESTART), findings, nothing, faults=1, kinds=kinds)
    assert not findings.are_fine
    assert findings.total(CHANGED) > 0


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ("abcd", {}),
        ("abc", {LOST: 1}),
        ("abbcd", {REPEATED: 1}),
        ("abxd", {CHANGED: 1}),
        ("abx", {CHANGED: 1, LOST: 1}),
        ("abbd", {REPEATED: 1, LOST: 1}),
        ("bacd", {CHANGED: 2}),
    ],
)
def test_lost_repeated_and_changed_batches_are_counted(found: str, wrong: dict[str, int]) -> None:
    """`compare` counts missing, repeated, different and misplaced batches."""
    assert compare("abcd", found, in_order=True) == wrong
    if found != "bacd":
        assert compare("abcd", found[::-1], in_order=False) == wrong
