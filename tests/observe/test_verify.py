"""`Loader.verify` measures the predictions of the report, and leaves the loader as it is."""

import threading
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import UsageError
from penstock.observe import WhatIf
from tests.observe.steps import SlowRecords, hold, wait
from tests.places import LINUX, PLACES

SECONDS = 0.09


def verified(
    dataset: ps.Dataset[Any], seconds: float = 0.0, measured_seconds: float = SECONDS, **options: Any
) -> dict[str, WhatIf]:
    """Return the verified predictions after an epoch; check that the next epoch is as without the call."""
    with ps.Loader(dataset, **options) as loader, ps.Loader(dataset, num_workers=16, workers="threads") as same:
        for _ in loader:
            threading.Event().wait(seconds)
        state = loader.state_dict()
        found = loader.verify(measured_seconds)
        assert loader.state_dict() == state
        same.load_state_dict(state)
        assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in same]
    return {each.change: each for each in found}


class Unsendable:
    """Numbers whose reading holds the interpreter's lock; a process can't get the source."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return 16

    def __getitem__(self, key: int) -> int:
        return hold(key)


def wait_rarely(number: int) -> int:
    """Return the number; one in 32 after a wait that is as long as many batches take."""
    threading.Event().wait(0.05 if number % 32 == 7 else 0.0003)
    return number


def large(number: int) -> Any:
    """Return a large array after a while; its batch isn't copied out of the loader's memory."""
    threading.Event().wait(0.008)
    return np.full(8192, number)


NUMBERS = ps.range(48, seed=7).shuffle()
RECORDS = ps.read(SlowRecords(), seed=7).shuffle().map(lambda record: record.pop("number"))
RARE, LARGE = ps.range(640).map(wait_rarely).batch(4), ps.range(240).map(large).batch(4)
THREADS = {"workers": "threads", "seconds": 0.001}


@pytest.mark.parametrize(
    ("change", "dataset", "least", "given"),
    [
        pytest.param("read costs nothing", RECORDS.batch(2), 1.3, PLACES["processes"], marks=LINUX),
        ("wait costs nothing", NUMBERS.map(wait).map(abs).batch(2), 1.3, PLACES["threads"]),
        ("wait costs nothing", NUMBERS.batch(2).map(wait), 1.3, {}),
        ("wait costs nothing", NUMBERS.filter(bool).map(wait).batch(2), 1.3, PLACES["threads"]),
        # How much processes gain depends on how many processors are free.
        pytest.param("processes", ps.range(16).map(hold).batch(2), 0, {**THREADS, "num_workers": 2}, marks=LINUX),
        ("more batches ahead", RARE, 1.2, {**THREADS, "measured_seconds": 0.6, "num_workers": 4, "prefetch": 2}),
        ("more memory", LARGE, 1.2, {**THREADS, "num_workers": 16, "memory": 800_000}),
    ],
)
def test_a_change_is_measured(change: str, dataset: ps.Dataset[Any], least: float, given: dict[str, Any]) -> None:
    """A step's results come from memory, or a throwaway loader has another argument: it is faster, as predicted."""
    gain = 0.0
    for _ in range(5):  # a busy machine may take the processor away meanwhile
        found = verified(dataset, **given)
        gain = (change in found and found[change].measured) or 0.0
        if gain > least:
            break
    assert gain > least


def test_a_worker_more_is_measured_beside_the_consumer() -> None:
    """The consumer of the throwaway loaders takes as long as the training, so a gain ends where the training does."""
    gains: list[dict[str | None, float]] = []
    while not gains or (min(gains[-1].values()) < 1.2 and len(gains) < 3):
        found = verified(NUMBERS.map(wait).batch(2), seconds=0.01).values()
        gains.append({each.step: each.measured or 0 for each in found if each.step in {None, "wait"}})
    assert gains[-1].keys() == {None, "wait"}
    assert min(gains[-1].values()) >= 1.2
    assert max(gains[-1].values()) < 20  # it would be some hundreds without the consumer


def test_a_fold_of_a_whole_epoch_is_measured_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """All work of a short epoch comes before its first batch; a throwaway loader that leaves elements out is silent."""
    dataset = ps.range(16).map(lambda number: number // (number != 7), name="refuse seven", on_error="skip")
    with ps.Loader(dataset.map(wait).window_shuffle(16).batch(2)) as loader:
        assert len(list(loader)) == 8
        assert [record.name for record in caplog.records] == ["penstock"]
        gains = {each.step: each.measured or 0.0 for each in loader.verify(0.01)}
    assert gains["wait"] >= 3
    assert len(caplog.records) == 1


def test_a_change_that_the_dataset_refuses_is_not_measured() -> None:
    """A dataset that can't be sent to a process has no gain by processes; the others are measured."""
    found: dict[str, WhatIf] = {}
    for _ in range(5):  # on a busy machine threads may not get what they need to be seen to hold the lock
        found = verified(ps.read(Unsendable()).batch(2), num_workers=2, workers="threads")
        if "processes" in found:
            break
    assert found["processes"].measured is None
    assert found["read costs nothing"].measured is not None


def test_a_merge_cannot_be_replayed() -> None:
    """The work of a batch with its rows isn't measured; the other predictions are."""
    found = verified(NUMBERS.map(wait).batch(2, merge=lambda rows: wait(wait(np.stack(rows)))))
    assert found["batch costs nothing"].measured is None
    assert found["wait costs nothing"].measured is not None


def test_a_cache_never_keeps_replayed_results() -> None:
    """A step below a cache isn't replayed, so the rest of the epoch, which the cache gets, has the right elements."""
    dataset = ps.range(48).map(wait).cache().batch(2)
    with ps.Loader(dataset) as loader, ps.Loader(ps.range(48).batch(2)) as expected:
        got = [batch.tolist() for _, batch in zip(range(8), loader, strict=False)]
        assert {each.step: each.measured for each in loader.verify(SECONDS)}["wait"] is None
        loader.seek(8)
        got += [batch.tolist() for batch in loader]
        assert got == [batch.tolist() for batch in expected]


def test_wrong_times_are_refused() -> None:
    """So is a call before anything is predicted, and one after the end."""
    wrong: list[Any] = [0, -1.0, float("nan"), float("inf"), "2", True]
    with ps.Loader(NUMBERS.batch(2)) as loader:
        with pytest.raises(UsageError, match="iterate over the loader first"):
            loader.verify()
        assert list(loader)
        for seconds in wrong:
            with pytest.raises(UsageError, match="seconds must be a number above 0"):
                loader.verify(seconds)
    with pytest.raises(ps.errors.ClosedError):
        loader.verify()
