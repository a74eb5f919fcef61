"""Descriptors of a loader are closed when the last reference to it goes, without the collector's help."""

import gc
import os
from typing import Any

import pytest

import penstock as ps

PLACES: list[dict[str, Any]] = [
    {},
    {"num_workers": 2, "workers": "threads"},
    {"num_workers": 2, "workers": "processes"},
    {"isolated": True},
]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts what Linux shows")
@pytest.mark.parametrize("steps", [3, 1_000], ids=["left early", "whole"])
@pytest.mark.parametrize("place", PLACES, ids=["inline", "threads", "processes", "isolated"])
def test_dropped_loaders_leave_no_descriptors(place: dict[str, Any], steps: int) -> None:
    """Loaders that are made, used and dropped without a close, one after the other, keep nothing open."""

    def use() -> int:
        loader = ps.Loader(ps.range(64, seed=1).batch(4), **place)
        for _ in zip(range(steps), loader, strict=False):
            pass
        del loader
        return len(os.listdir("/proc/self/fd"))

    use()  # what is made once
    gc.collect()
    gc.disable()
    try:
        first = use()
        assert [use() for _ in range(3)] == [first] * 3
    finally:
        gc.enable()
