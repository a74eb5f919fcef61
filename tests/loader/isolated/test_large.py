"""Large batches are computed in memory that the consumer reads, and stay unchanged while it refers to them."""

import os
import warnings
from functools import partial
from mmap import PAGESIZE
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import UsageError
from tests.loader.isolated.loaders import assert_same, isolated, most_in_flight, same
from tests.loader.isolated.parts import named, row_of
from tests.profiles import IS_LONG
from tests.workers.processes import functions
from tests.workers.processes.killing import kill_a_worker

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="a helper's shared memory is Linux's"),
    pytest.mark.each_value,
]
EXAMPLES = max(settings().max_examples // 8, 1)  # starting processes takes a second
ROWS = 12  # of 100 kB
BATCH_BYTES = ROWS * 100_000
KILLS = {5, 20} if IS_LONG else {5}  # a helper that takes the place of another starts workers of its own
MOST_BYTES = 16_000_000  # in flight: small batches share jobs, as many as their time allows, up to this


def rows(count: int, seed: int = 1) -> ps.Dataset:
    """Return large rows in a random order."""
    return ps.range(count, seed=seed).shuffle().map(functions.large_row)


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(
    st.sampled_from(["threads", "processes"]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.lists(st.integers(0, 5), min_size=1, max_size=8),
    st.integers(0, 30),
)
def test_kept_batches_stay_unchanged(
    workers: Any, num_workers: int, prefetch: int, keeps: list[int], stop: int
) -> None:
    """Batches that are kept, each for some steps, equal the definition's to the end, also of an abandoned epoch."""
    dataset = rows(300).batch(ROWS)
    kept: list[tuple[int, Any, Any]] = []  # until which step; the batch; the expected batch
    with warnings.catch_warnings(), isolated(dataset, num_workers, workers=workers, prefetch=prefetch) as loader:
        warnings.simplefilter("ignore")  # about kept batches
        with ps.Loader(dataset) as inline:
            for epoch in range(2):
                for step, (batch, expected) in enumerate(zip(loader, inline, strict=True), epoch * 25):
                    if step == stop:
                        break
                    kept.append((step + keeps[step % len(keeps)], batch, expected))
                    assert all(np.array_equal(each, right) for until, each, right in kept if until <= step)
                    kept = [one for one in kept if one[0] > step]
    assert all(np.array_equal(each, right) for _, each, right in kept)


@pytest.mark.parametrize("workers", ["threads", "processes"])
@pytest.mark.parametrize("prefetch", [1, 3])
def test_isolation_takes_no_more_memory(workers: Any, prefetch: int, capfd: pytest.CaptureFixture[str]) -> None:
    """A helper has no more bytes in flight than a plain loader may, when the size of a batch is known."""
    dataset = rows(300).batch(ROWS)
    for is_isolated in (False, True):
        with ps.Loader(dataset, num_workers=2, workers=workers, prefetch=prefetch, isolated=is_isolated) as loader:
            assert sum(map(len, loader)) == 300
            assert BATCH_BYTES <= most_in_flight(loader) <= 1.01 * MOST_BYTES  # memory comes in pages
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_small_batches_share_a_bound(workers: Any) -> None:
    """Batches below 1 MB take at most 24 MB in all, however many share a job."""
    dataset = ps.range(1000).map(partial(row_of, 50_000)).batch(10)
    with ps.Loader(dataset, num_workers=2, workers=workers) as loader:
        most = max(most_in_flight(loader) for _ in range(2))
    assert most <= 1.01 * 24_000_000


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_views_of_a_batch_arrive(workers: Any) -> None:
    """A function's results arrive, whether or not they are views of the batch's memory."""
    dataset = rows(96).batch(ROWS).map(named)
    with ps.Loader(dataset) as inline, isolated(dataset, 2, workers=workers) as loader:
        for _ in range(2):
            assert all(same(found, expected) for found, expected in zip(loader, inline, strict=True))


@pytest.mark.parametrize("oldest", [True, False], ids=["the helper", "a worker of its"])
def test_kept_batches_survive_a_kill(oldest: bool, caplog: pytest.LogCaptureFixture) -> None:  # noqa: FBT001 - a case
    """Kept batches stay unchanged when a process is killed, later batches come, and the helper's crash is logged."""
    dataset = rows(300).batch(ROWS)
    expected, found = list(ps.Loader(dataset)), list[Any]()
    with warnings.catch_warnings(), isolated(dataset, 2, workers="processes") as loader:
        warnings.simplefilter("ignore")  # about kept batches
        for number, batch in enumerate(loader):
            if number in KILLS:
                assert kill_a_worker(oldest=oldest)
            found.append(batch if number in {4, 5, 19, 20} else batch.copy())
        restarts = loader.stats()["worker_restarts"]
    crashes = [record.message for record in caplog.records if "another one takes its place" in record.message]
    assert 1 <= restarts <= len(KILLS)  # the second kill may come when all batches have arrived
    assert len(crashes) == (restarts if oldest else 0)
    assert all("SIGKILL" in crash for crash in crashes)
    assert_same(found, expected)


@pytest.mark.parametrize(
    ("workers", "prefetch", "size"), [("threads", 1, 100_000), ("processes", 2, 100_000), ("threads", 2, 1_000)]
)
def test_all_batches_may_be_kept(workers: Any, prefetch: int, size: int) -> None:
    """A consumer that keeps every batch gets the rest, of large ones with one warning, and they outlive the loader."""
    dataset = ps.range(300).map(partial(row_of, size)).batch(ROWS)
    with (
        warnings.catch_warnings(record=True) as warned,
        isolated(dataset, 2, workers=workers, prefetch=prefetch) as loader,
    ):
        warnings.simplefilter("always")
        kept = [[*loader] for _ in range(2)]
        assert size < 100_000 or loader.stats()["bytes_in_flight"] > 0
    assert [each.filename for each in warned] == [__file__] * (size == 100_000)
    assert all("are kept by the training loop" in str(each.message) for each in warned)
    for batches in kept:
        assert [batch[:, -1].tolist() for batch in batches] == [
            [number % 251 for number in range(start, start + ROWS)] for start in range(0, 300, ROWS)
        ]


def test_copies_use_no_shared_memory() -> None:
    """With `copy=True` nothing is warned of, and memory for a few batches is enough."""
    with warnings.catch_warnings(), isolated(rows(180).batch(20), copy=True, memory="8MB") as loader:
        warnings.simplefilter("error")
        assert_same(list(loader), list(rows(180).batch(20)))


def test_memory_is_bounded() -> None:
    """Kept batches beyond `memory` are an error; the iterator continues when they are dropped."""
    dataset = rows(180).batch(20)
    with isolated(dataset, memory="8MB") as loader, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = iter(loader)
        kept: list[Any] = []
        with pytest.raises(UsageError, match="memory=8000000 is too small"):
            kept.extend(batches)
        count = len(kept)
        assert 1 <= count <= 4
        kept.clear()
        assert_same([batch.copy() for batch in batches], list(dataset)[count:])


def test_memory_has_room_for_a_batch() -> None:
    """The error has both sizes, that of the bound in whole pages, and the argument to change."""
    bound = 1_000_000 // PAGESIZE * PAGESIZE
    with (
        isolated(rows(40).batch(20), memory="1MB") as loader,
        pytest.raises(UsageError, match=rf"one of which \d{{7}} bytes are more than the {bound} that memory= allows"),
    ):
        next(iter(loader))
