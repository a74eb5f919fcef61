"""The benchmark of this door, which has contestants with JAX where that is installed."""

import importlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bench import Bench
from benchmarks.command import without_goals
from benchmarks.macro import jax_feed
from benchmarks.measure import measure
from benchmarks.report import table
from benchmarks.scenario import Contestant

pytest.importorskip("jax")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Surroundings with JAX's contestants alone; Grain needn't be installed."""
    feed: Any = importlib.import_module("benchmarks.rivals.jax")
    with ExitStack() as scope:

        def rivals(scenario: str, work: object) -> tuple[Contestant, ...]:
            contestants: tuple[Contestant, ...] = feed.CONTESTANTS[scenario](work, scope)
            return contestants

        yield Bench(tmp_path, scope, smoke=True, rivals=rivals)


def test_all_ways_give_the_same_rows(bench: Bench) -> None:
    """By hand, by a thread and by ours, the rows of an epoch are those of the definition, in its order."""
    scenario = without_goals(jax_feed.build(bench))
    results = measure(scenario, rounds=1, smoke=True, progress=lambda _: None)
    named = {result.contestant.name: result for result in results}
    assert sum(name.startswith("penstock.jax") for name in named) == 4
    for size in ("small batches", "large batches"):
        assert len({result.digest for name, result in named.items() if name.endswith(size)}) == 1
    printed = table(scenario, results, ())
    assert all(name in printed for name in named)
    assert "left out" not in printed
