"""A consumer that keeps its batches gets the next ones, also where folds are slower than the consumer."""

import threading
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

import penstock as ps

BATCHES = 12
LATE_SECONDS = 0.02  # usually enough for the consumer to begin its wait


def late_rows() -> Generator[Any]:
    """Yield rows, each after the consumer usually began to wait for it."""
    for number in range(BATCHES):
        threading.Event().wait(LATE_SECONDS)
        yield np.full(1 << 18, number, np.int32)


def sums(rows: list[Any]) -> Any:
    """Merge rows into memory of the batch's own."""
    return np.stack(rows) * 2


@pytest.mark.parametrize("prefetch", [1, 2])
def test_a_late_batch_gets_memory_while_all_others_are_kept(prefetch: int) -> None:
    """The consumer keeps the memory of every merged batch, so the next job leases more."""
    dataset = ps.stream(late_rows).batch(1, merge=sums)
    with (
        ps.Loader(dataset, num_workers=2, workers="processes", prefetch=prefetch) as loader,
        pytest.warns(UserWarning, match="batches are kept"),
    ):
        kept = list(loader)
    assert [int(batch[0, 0]) for batch in kept] == [2 * number for number in range(BATCHES)]
