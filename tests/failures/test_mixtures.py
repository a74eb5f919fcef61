"""Failures of mixtures that are known from other loaders: threads, memory, and caches of parts."""

import threading
import tracemalloc
from itertools import islice
from typing import Any

import numpy as np
import psutil

import penstock as ps


def test_five_hundred_parts_need_no_threads_of_their_own() -> None:
    """A mixture of 500 parts uses its loader's threads only, and memory that doesn't grow with the steps."""
    names, workers = [f"part {number}" for number in range(500)], 2
    parts = {name: ps.range(400).shuffle().filter(lambda number: number % 5) for name in names}
    dataset = ps.mix(parts, {name: 1 + number % 3 for number, name in enumerate(names)}, stop="all").batch(4)
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
