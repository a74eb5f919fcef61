"""With workers, records of async sources are requested ahead, within a bound."""

import asyncio
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock as ps
from tests.equivalence.decisions import random_decisions
from tests.loader.asynchronous.server import Noted, OverHttp, Squares, dataset_of, serving
from tests.places import LINUX
from tests.profiles import IS_LONG


class Noting:
    """A source of numbers that records the keys of each call."""

    def __init__(self, length: int, keys_per_read: int | None) -> None:
        self.length = length
        self.calls: list[list[int]] = []
        if keys_per_read is not None:
            self.keys_per_read = keys_per_read

    def __len__(self) -> int:
        return self.length

    async def read(self, keys: NDArray[np.int64]) -> list[Any]:
        """Return the keys."""
        self.calls.append(keys.tolist())
        await asyncio.sleep(0)
        return list(keys)


@pytest.mark.parametrize(
    ("kind", "window", "workers"), [("indexed", 1, 2), ("ordered", 7, 1), ("indexed", 100, 2), ("ordered", 100, 2)]
)
def test_requests_at_a_server_reach_the_window_and_never_exceed_it(kind: str, window: int, workers: int) -> None:
    """`read_ahead` requests are open at once, however few workers there are and small batches."""
    expected = [batch.tolist() for batch in dataset_of([number**2 for number in range(300)], kind)]
    with serving(together=window) as server:
        dataset = dataset_of(OverHttp(server.port, 300), kind)
        with ps.Loader(dataset, num_workers=workers, limits=ps.Limits(read_ahead=window)) as loader:
            assert [batch.tolist() for batch in loader] == expected
        assert server.most == window
        assert sorted(server.answered) == list(range(300))


@LINUX
@pytest.mark.parametrize(("kind", "window", "workers"), [("indexed", 60, 2), ("ordered", 64, 1)])
def test_requests_of_processes_reach_the_window_and_never_exceed_it(kind: str, window: int, workers: int) -> None:
    """Processes share `read_ahead`, once the first batches have shown how large elements are."""
    expected = [batch.tolist() for batch in dataset_of([number**2 for number in range(300)], kind)]
    most = window * 2 // 3  # records of the first batches have arrived, and wait for others of their block
    first = [int(key) for batch in islice(dataset_of(list(range(300)), kind), 6) for key in batch]
    with serving(together=most, at_once=first) as server:
        dataset = dataset_of(OverHttp(server.port, 300), kind)
        limits = ps.Limits(read_ahead=window)
        with ps.Loader(dataset, num_workers=workers, workers="processes", limits=limits) as loader:
            assert [batch.tolist() for batch in loader] == expected
        assert most <= server.most <= window
        assert sorted(server.answered) == list(range(300))


@LINUX
def test_a_seek_drops_the_blocks_that_a_process_has_claimed(tmp_path: Path) -> None:
    """Records that were requested for batches before a seek are not computed after it."""
    noted = Noted(tmp_path)
    with ps.Loader(ps.read(noted).map(noted.compute).batch(4), num_workers=1, workers="processes") as loader:
        batches = iter(loader)
        assert next(batches).tolist() == [0, 1, 2, 3]
        with noted.gate.open("wb"):  # the process computes the number, and has claimed further blocks
            loader.seek(200)
        assert next(iter(loader)).tolist() == [800, 801, 802, 803]
        loader.close()
        assert {number for number in noted.not_computed() if number < 800}


def test_reading_ahead_is_bounded() -> None:
    """Without a consumer, only the records of the jobs in progress and of the window are requested."""
    source = Noting(10_000, None)
    loader = ps.Loader(dataset_of(source, "indexed"), num_workers=2, prefetch=2, limits=ps.Limits(read_ahead=50))
    batches = iter(loader)
    for taken in range(1, 20):
        next(batches)
        # At most two jobs ahead, each of batches that take 20 milliseconds together, and the window.
        assert len(source.calls) <= 4 * 64 * (taken + 3) + 50
    assert len(source.calls) < 10_000
    loader.close()


@pytest.mark.parametrize(
    ("kind", "keys_per_read", "most"),
    [("indexed", None, 1), ("ordered", 1, 1), ("indexed", 4, 4), ("ordered", 4, 4), ("indexed", 1000, 20)],
)
def test_each_record_is_requested_once(kind: str, keys_per_read: int | None, most: int) -> None:
    """A call gets as many keys as the source wants, within the window, and each key is in one call."""
    source = Noting(200, keys_per_read)
    with ps.Loader(dataset_of(source, kind), num_workers=2, limits=ps.Limits(read_ahead=20)) as loader:
        assert sum(len(batch) for batch in loader) == 200
    assert sorted(key for keys in source.calls for key in keys) == list(range(200))
    assert max(map(len, source.calls)) <= most


def test_cached_records_are_not_requested_again() -> None:
    """Below a cache, the source is read only for elements that the cache lacks."""
    source = Noting(30, None)
    dataset = ps.read(source).map(int).cache().batch(4)
    with ps.Loader(dataset, num_workers=2) as loader:
        first = [batch.tolist() for batch in loader]
        assert [batch.tolist() for batch in loader] == first
    assert sorted(key for keys in source.calls for key in keys) == list(range(30))


@pytest.mark.parametrize("kind", ["indexed", "ordered"])
def test_explain_says_that_sources_are_read_ahead(kind: str) -> None:
    """The plan of a dataset over an async source names the limit."""
    plan = dict(dataset_of(Noting(8, None), kind).explain().sections)["plan"]
    assert "async sources are read ahead of the workers: Limits(read_ahead=…)" in plan
    assert "read_ahead" not in str(dataset_of(list(range(8)), kind).explain())


class Failing:
    """A source of squares that fails at the second request for each key, as a busy server may."""

    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()

    def __len__(self) -> int:
        return 8

    async def read(self, keys: NDArray[np.int64]) -> list[int]:
        """Return squares, or fail."""
        await asyncio.sleep(0)
        for key in keys.tolist():
            self.asked[key] += 1
            if self.asked[key] == 2:
                raise ValueError("busy")
        return [key * key for key in keys.tolist()]


def test_a_failed_request_for_a_repeated_key_is_repeated() -> None:
    """The worker itself reads a record whose request failed; no other record replaces it."""
    source = Failing()
    keys = [3, 3, 3, 5, 3, 5]
    with ps.Loader(ps.read(source).select(keys).batch(6), num_workers=1, workers="threads") as loader:
        assert [batch.tolist() for batch in loader] == [[key * key for key in keys]]
    assert source.asked == {3: 5, 5: 3}


@pytest.mark.longer
@pytest.mark.parametrize("seed", range(40 if IS_LONG else 5))
def test_repeated_keys_give_their_records(seed: int) -> None:
    """Keys drawn with replacement give their records, whether requested ahead or read by a worker."""
    dataset = ps.read(Squares(), seed=seed).sample([1.0] * 2, 64)
    expected = list(dataset)
    with (
        random_decisions(seed),
        ps.Loader(dataset, num_workers=3, workers="threads", prefetch=1, isolated=seed == 1) as loader,
    ):
        assert list(loader) == expected
