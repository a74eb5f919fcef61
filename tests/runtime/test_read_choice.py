"""The choice of who computes the elements below a fold: the workers, or the thread of the fold."""

from types import SimpleNamespace

import pytest

from penstock._runtime._read_choice import ReadChoice

MICROSECOND = 1e-6


def shares(by_workers: float, by_fold: float, monkeypatch: pytest.MonkeyPatch, elements: int) -> list[bool]:
    """Return for blocks of elements whether the fold's thread computes them, given the times of an element."""
    now = [0.0]
    monkeypatch.setattr("penstock._runtime._read_choice.time", SimpleNamespace(perf_counter=lambda: now[0]))
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


@pytest.mark.parametrize(("by_workers", "by_fold", "share"), [(9, 6, 1.0), (6, 9, 0.0), (20, 3, 1.0), (30, 180, 0.0)])
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
