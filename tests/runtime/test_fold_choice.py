"""The choices of who computes the elements below a fold and the steps above it: workers, or the thread of the fold."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from penstock._runtime._fold_choice import AboveChoice, ReadChoice

MICROSECOND = 1e-6
MILLISECOND = 1e-3


def shares(by_workers: float, by_fold: float, monkeypatch: pytest.MonkeyPatch, elements: int) -> list[bool]:
    """Return for blocks of elements whether the fold's thread computes them, given the times of an element."""
    now = [0.0]
    monkeypatch.setattr("penstock._runtime._fold_choice.time", SimpleNamespace(perf_counter=lambda: now[0]))
    choice = ReadChoice()
    found: list[bool] = []
    choice.begin(0)
    for number in range(100, elements, 100):
        found.append(choice.by_fold)
        now[0] += 100 * (by_fold if choice.by_fold else by_workers) + 1.0
        choice.waited_seconds += 1.0  # for room: it is no time of the elements
        before = choice.by_fold
        assert choice.changes(number) == (choice.by_fold != before)
    return found


@pytest.mark.parametrize(("by_workers", "by_fold", "share"), [(9, 6, 1.0), (6, 9, 0.0), (30, 180, 0.0)])
def test_the_faster_one_computes_nearly_all(
    by_workers: float, by_fold: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once both were tried, the other one computes in few turns."""
    found = shares(by_workers * MICROSECOND, by_fold * MICROSECOND, monkeypatch, 1_000_000)
    late = found[len(found) // 4 :]
    assert abs(sum(late) / len(late) - share) < 0.05
    assert len({*late}) == 2  # the other one is tried again


def test_slow_elements_are_left_to_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the fold doesn't even try them, since it would have one at a time."""
    assert not any(shares(0.001, 0.0005, monkeypatch, 100_000))


@dataclass(frozen=True)
class Steps:
    """Steps above a fold, and the fold's time of a batch."""

    above: float | None
    """The time of the steps above, as workers measure it."""
    by_workers: float
    """The time of a batch in the fold's thread, where workers apply the steps above."""
    by_fold: float


def applied(steps: Callable[[int], Steps], monkeypatch: pytest.MonkeyPatch, batches: int) -> list[bool]:
    """Return for each batch whether the fold's thread applies the steps above it."""
    now, known = [0.0], [steps(0)]
    monkeypatch.setattr("penstock._runtime._fold_choice.time", SimpleNamespace(perf_counter=lambda: now[0]))
    choice = AboveChoice(ReadChoice(), lambda: known[0].above)
    found: list[bool] = []
    choice.begin(0)
    for number in range(1, batches):
        found.append(choice.by_fold)
        here = steps(number)
        known[0] = known[0] if choice.by_fold else here  # only workers measure it
        now[0] += here.by_fold if choice.by_fold else here.by_workers
        choice.changes(number)
    return found


def test_steps_that_take_less_than_passing_a_batch_on_are_applied_by_the_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    """No trial is needed; a slow turn, as on a busy machine, lets workers apply them for one turn."""
    cheap = Steps(5 * MICROSECOND, MILLISECOND, MILLISECOND)
    found = applied(lambda _: cheap, monkeypatch, 1000)
    assert not any(found[:10])
    assert all(found[11:])
    busy = Steps(5 * MICROSECOND, 30 * MILLISECOND, 30 * MILLISECOND)
    late = applied(lambda number: busy if number == 500 else cheap, monkeypatch, 1000)
    assert late.count(False) <= found.count(False) + 2 * 10


@pytest.mark.parametrize(("by_fold", "share"), [(0.6, 1.0), (1.2, 0.0)])
def test_trials_decide_about_steps_that_take_a_part_of_the_time(
    by_fold: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faster of the two applies nearly all."""
    steps = Steps(MILLISECOND / 5, MILLISECOND, by_fold * MILLISECOND)
    found = applied(lambda _: steps, monkeypatch, 20_000)[5_000:]
    assert abs(sum(found) / len(found) - share) < 0.05


@pytest.mark.parametrize("above", [None, 2 * MILLISECOND])
def test_steps_that_take_long_are_left_to_the_workers(above: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the fold would apply them to one batch at a time, so it tries none; nor one of an unknown time."""
    assert not any(applied(lambda _: Steps(above, MILLISECOND, 3 * MILLISECOND), monkeypatch, 2000))


def test_steps_that_become_slow_are_left_to_the_workers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One turn shows it, and workers then measure the new time."""
    cheap, slow = Steps(5 * MICROSECOND, MILLISECOND, MILLISECOND), Steps(0.05, MILLISECOND, 0.051)
    found = applied(lambda number: cheap if number < 500 else slow, monkeypatch, 1000)
    assert all(found[400:500])
    assert sum(found[500:]) <= 2


def test_the_steps_above_are_chosen_after_the_elements_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a turn shows the difference of one choice."""
    now = [0.0]
    monkeypatch.setattr("penstock._runtime._fold_choice.time", SimpleNamespace(perf_counter=lambda: now[0]))
    below = ReadChoice()
    above = AboveChoice(below, lambda: MICROSECOND)
    below.begin(0)
    above.begin(0)
    settled: list[bool] = []
    for number in range(1, 200):
        now[0] += MILLISECOND
        below.changes(100 * number)
        above.changes(number)
        assert below.is_settled or not above.by_fold
        settled.append(below.is_settled)
    assert not settled[0]
    assert settled[-1]
    assert above.by_fold
