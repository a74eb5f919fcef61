"""Failures of mixtures that are known from other loaders: threads, memory, shares, and parts that end."""

import threading
import tracemalloc
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import psutil
import pytest

import penstock as ps

KINDS = pytest.mark.parametrize(("ordered", "workers"), [(False, 2), (True, 0)])


def test_five_hundred_parts_need_no_threads_of_their_own() -> None:
    """A mixture of 500 parts uses its loader's threads only, and memory that doesn't grow with the steps."""
    names, workers = [f"part {number}" for number in range(500)], 2
    parts = {name: ps.range(400).shuffle().filter(lambda number: number % 5) for name in names}
    dataset = ps.mix(parts, {name: 1 + number % 3 for number, name in enumerate(names)}, stop="all").batch(16)
    process, threads = psutil.Process(), threading.active_count()
    native = process.num_threads()
    with ps.Loader(dataset, num_workers=workers) as loader:
        batches = iter(loader)
        tracemalloc.start()
        assert sum(1 for _ in islice(batches, 270)) == 270  # more than the steps that a loader remembers
        before, _ = tracemalloc.get_traced_memory()
        assert sum(1 for _ in islice(batches, 130)) == 130
        after, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert threading.active_count() <= threads + workers + 1
        assert process.num_threads() <= native + workers + 1
    assert after - before < 500_000
    assert peak < 12_000_000


def test_a_part_may_have_weight_0() -> None:
    """A part of weight 0 gives no element until the schedule raises its weight."""
    parts = {"now": ps.range(50), "later": ps.range(50, 100)}
    assert list(ps.mix(parts, {"now": 1, "later": 0})) == list(range(50))
    mixed = ps.mix(parts, {0: {"now": 1}, 20: {"now": 1, "later": 1}}, stop="all")
    assert list(mixed[:20]) == list(range(20))
    assert sorted(mixed) == list(range(100))


@KINDS
def test_stop_decides_where_a_mixture_ends(workers: int, *, ordered: bool) -> None:
    """Only `stop="first"` leaves out the rest of a mixture; with "all" every element comes once."""
    short, long = ps.range(10), ps.range(10, 110)
    if ordered:
        short, long = short.filter(lambda _: True), long.filter(lambda _: True)
    found: dict[str, list[int]] = {}
    for stop in ("first", "all"):
        mixed = ps.mix({"short": short, "long": long}, stop=stop)
        with ps.Loader(mixed.batch(7), num_workers=workers) as loader:
            found[stop] = np.concatenate(list(loader)).tolist()
    assert sorted(found["all"]) == list(range(110))
    assert found["first"] == found["all"][: len(found["first"])]
    assert set(range(10)) <= set(found["first"])
    assert len(found["first"]) <= 21
    with ps.Loader(ps.mix({"short": short, "long": long}, stop="never").batch(10), num_workers=workers) as loader:
        counts = Counter[int](np.concatenate(list(islice(loader, 40))).tolist())
    assert {counts[number] for number in range(10)} == {20}
    assert {counts[number] for number in range(10, 110)} == {2}


def test_a_cache_keeps_every_element() -> None:
    """Elements that don't fit a cache, or that an abandoned epoch missed, come in every epoch."""
    computed: list[int] = []

    def decode(number: int) -> Any:
        computed.append(number)
        return np.full(100, number)

    parts = {"short": ps.range(5), "long": ps.range(5, 40)}
    dataset = ps.mix({name: part.map(decode).cache(size=8_000) for name, part in parts.items()}, stop="all")
    for _ in range(3):
        assert sorted(int(element[0]) for element in dataset) == list(range(40))
    with ps.Loader(dataset.batch(4)) as loader:
        next(iter(loader))  # an epoch that is abandoned
        for _ in range(2):
            assert sorted(np.concatenate(list(loader))[:, 0].tolist()) == list(range(40))
    assert len(computed) < 5 * 40


def test_another_part_changes_no_part() -> None:
    """Another part changes no part's elements, order or random numbers."""
    parts = {name: ps.range(40, seed=3).shuffle().random_map(noisy) for name in "ab"}
    two = ps.mix(parts, stop="all")
    three = ps.mix({"new": parts["a"], **parts}, {"new": 5, "a": 1, "b": 2}, stop="all")
    for name in "ab":
        alone = list(ps.mix({name: parts[name]}))
        assert [element for element in two if element in alone] == alone
        assert [element for element in three if element in alone] == alone


def noisy(number: int, rng: np.random.Generator) -> tuple[int, float]:
    """Return the number and a random one."""
    return number, rng.random()
