"""A loader's descriptors are closed when its last reference is dropped, without the collector's help."""

import gc
import os
from typing import Any

import pytest

import penstock as ps
from tests.places import in_places

pytestmark = pytest.mark.each_value


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts what Linux shows")
@pytest.mark.parametrize("steps", [3, 1_000], ids=["left early", "whole"])
@in_places("inline", "threads", "processes", "isolated")
def test_dropped_loaders_leave_no_descriptors(place: dict[str, Any], steps: int) -> None:
    """Loaders that are made, read and dropped without `close`, one after the other, leave no descriptor open."""

    def use() -> int:
        loader = ps.Loader(ps.range(64, seed=1).batch(4), **place)
        for _ in zip(range(steps), loader, strict=False):
            pass
        del loader
        return len(os.listdir("/proc/self/fd"))

    use()  # for descriptors that are opened once
    gc.collect()
    gc.disable()
    try:
        first = use()
        assert [use() for _ in range(3)] == [first] * 3
    finally:
        gc.enable()
