"""The time of work in a worker process, by which jobs are cut, has no waits for a processor."""

from types import SimpleNamespace

import pytest

from penstock._runtime._processors import Stopwatch, Worked

MODULE = "penstock._runtime._processors"


def test_only_waits_for_a_processor_are_left_out() -> None:
    """They are known where the thread gave up its processor for nothing else."""
    assert Worked(0.004, 0.001, 0, are_counted=True).own_seconds == 0.001  # others had the processor for the rest
    assert Worked(0.004, 0.001, 1, are_counted=True).own_seconds == 0.004  # it waited, perhaps for all the rest
    assert Worked(0.004, 0.001, 0, are_counted=False).own_seconds == 0.004  # it isn't known whether it waited
    assert Worked(0.001, 0.002, 0, are_counted=True).own_seconds == 0.001  # two clocks differ


@pytest.mark.parametrize("waits", [0, 2])
def test_a_stopwatch_measures_the_work_since_it_was_made(waits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier waits of the thread only show that the system counts them."""
    now, cpu, counted = [5.0], [2.0], [7]
    clocks = SimpleNamespace(perf_counter=lambda: now[0], thread_time=lambda: cpu[0])
    monkeypatch.setattr(f"{MODULE}.time", clocks)
    monkeypatch.setattr(f"{MODULE}._waits", lambda: counted[0])
    stopwatch = Stopwatch()
    now[0], cpu[0], counted[0] = 8.0, 3.0, 7 + waits
    worked = stopwatch.worked()
    assert worked == Worked(3.0, 1.0, waits, are_counted=True)
    assert worked.own_seconds == (3.0 if waits else 1.0)
