"""A process of a named pool keeps its last results, as many as it may, for the same work of other programs."""

import importlib
from collections import Counter
from typing import Any

import numpy as np
import pytest

from penstock._pickles import Part

pytest.importorskip("ray")
worker: Any = importlib.import_module("penstock.ray._worker")
sending: Any = importlib.import_module("penstock.ray._sent")


def requested(kept: Any, work: object, calls: "Counter[object]", *, digest: str = "one", is_whole: bool = True) -> Any:
    """Return the result of some work of eight bytes; count it if it is computed."""

    def compute() -> Any:
        calls[work] += 1
        return worker.Computed((Part(0, np.zeros(8, np.uint8)),), 1, 0.001, "host", is_whole=is_whole)

    return kept.result(sending.Sent("key", "host", "version", None, digest, 24), work, compute)


def test_the_last_results_are_kept() -> None:
    """Three results of eight bytes are within 24 bytes; the fourth takes the place of the first."""
    kept, calls = worker.Kept(), Counter[object]()
    first = [requested(kept, number, calls) for number in range(4)]
    again = [requested(kept, number, calls) for number in (3, 2, 1)]
    assert [*map(id, again)] == [*map(id, first[:0:-1])]
    requested(kept, 0, calls)
    assert calls == {0: 2, 1: 1, 2: 1, 3: 1}


def test_only_equal_work_has_the_same_result() -> None:
    """Another dataset, a result with an exception, and a pool without a name compute each time."""
    kept, calls = worker.Kept(), Counter[object]()
    for digest in ("one", "other", ""):
        for _ in range(2):
            requested(kept, 0, calls, digest=digest)
    for _ in range(2):
        requested(kept, 1, calls, is_whole=False)
    assert calls == {0: 1 + 1 + 2, 1: 2}
