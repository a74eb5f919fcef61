"""Faults of every kind are injected into loaders of every kind, and what they yield stays what the definition says."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

import penstock as ps
from tests.equivalence.definition import epoch_of
from tests.faults import rounds
from tests.faults.findings import CHANGED, LOST, REPEATED, Findings, compare
from tests.faults.places import FAULTS, KILL, KILL_HELPER, KILL_PROGRAM, RESTART, STOP_AND_KILL

OFTEN = (KILL, KILL_HELPER, KILL_PROGRAM, STOP_AND_KILL, RESTART)
pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")


def nothing() -> None:
    """Show no progress."""


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=() if fault in OFTEN else pytest.mark.long) for fault in FAULTS]
)
def test_nothing_is_lost_changed_repeated_or_left_behind(fault: str) -> None:
    """A round that favours a kind of fault, among others."""
    findings = Findings()
    rounds.run_round(0, FAULTS.index(fault), findings, nothing, faults=3)
    assert findings.bad == []
    assert findings.total(fault) > 0


def test_a_wrong_epoch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the definition had another batch than the loader yields, and one less, both are found."""

    def other_epoch(dataset: ps.Dataset[Any], epoch: int) -> Iterator[Any]:
        _, _, *others = epoch_of(dataset, epoch)
        return iter(["another", *others])

    monkeypatch.setattr(rounds, "epoch_of", other_epoch)
    findings = Findings()
    rounds.run_round(0, FAULTS.index(RESTART), findings, nothing, faults=1)
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
def test_what_is_wrong_is_told_apart(found: str, wrong: dict[str, int]) -> None:
    """Batches that are missing, that come again, that are others, and that come elsewhere."""
    assert compare("abcd", found, in_order=True) == wrong
    if found != "bacd":
        assert compare("abcd", found[::-1], in_order=False) == wrong
