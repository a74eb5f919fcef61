"""Without workers, several batches are read at once only if that takes little time."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import penstock as ps

ROWS, BATCH = 2000, 4


class Timed:
    """Numbers that are read straight into a batch; each advances a fake clock by some seconds."""

    fixed_shape = True

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = 0.0
        self.reads: list[int] = []

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, key: int) -> np.int64:
        return self.read([key])[0]

    def read(self, keys: Any) -> list[np.int64]:
        """Return the records."""
        self.now += self.seconds * len(keys)
        return [np.int64(key) for key in keys]

    def read_into(self, keys: Any, out: Any) -> None:
        """Write the records."""
        self.reads.append(len(keys))
        out[:] = self.read(keys)

    def clock(self) -> float:
        """Return the time."""
        return self.now


@pytest.mark.parametrize(("seconds", "most_batches"), [(0.0, ROWS // BATCH), (0.002, 1)])
def test_slow_sources_are_read_batch_by_batch(
    seconds: float, most_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that takes 8 ms for a batch is read one batch at a time, a fast one many at a time."""
    source = Timed(seconds)
    monkeypatch.setattr("penstock._runtime._streams.time", SimpleNamespace(perf_counter=source.clock))
    found = [number for batch in ps.Loader(ps.read(source).batch(BATCH)) for number in batch.tolist()]
    assert found == list(range(ROWS))
    assert source.reads
    assert max(source.reads) <= BATCH * most_batches
    assert (max(source.reads) > BATCH) == (most_batches > 1)
