"""Small batches that are in one memory are sent together, and the consumer's process divides them."""

import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from tests.equivalence.definition import digest
from tests.equivalence.kinds import is_numpy
from tests.loader.isolated.loaders import isolated, most_in_flight, same
from tests.loader.isolated.parts import growing, mixed, of_a_kind, of_two_dtypes, without_box
from tests.profiles import IS_LONG

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="a helper's shared memory is Linux's"),
    pytest.mark.each_value,
]
EXAMPLES = max(settings().max_examples // 8, 1)  # starting processes takes a second


def layouts(batch: dict[str, Any]) -> list[tuple[tuple[int, ...], bool]]:
    """Return the strides of a batch's arrays, and whether they may be written to."""
    return [(leaf.strides, leaf.flags.writeable) for leaf in batch.values() if is_numpy(leaf)]


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(
    st.integers(0, 1000 if IS_LONG else 400),
    st.integers(1, 40),
    st.sampled_from(["keep", "drop", "pad"]),
    st.sampled_from(["threads", "processes"]),
    st.integers(1, 3),
    st.integers(0, 80),
    st.booleans(),
)
def test_equals_the_definition(
    total: int,
    size: int,
    remainder: Any,
    workers: Any,
    num_workers: int,
    stop: int,
    copy: bool,  # noqa: FBT001 - drawn
) -> None:
    """Batches equal an inline loader's over an epoch, after an abandoned one, and from its state on."""
    dataset = ps.range(total, seed=1).shuffle().map(mixed).batch(size, remainder=remainder)
    with ps.Loader(dataset) as inline, isolated(dataset, num_workers, workers=workers, copy=copy) as loader:
        assert all(same(found, right) for found, right in zip(loader, inline, strict=True))
        for _ in zip(range(stop), zip(loader, inline, strict=True), strict=False):
            pass
        state = loader.state_dict()
        assert state == inline.state_dict()
        assert all(same(found, right) for found, right in zip(loader, inline, strict=True))
        loader.load_state_dict(state)
        inline.load_state_dict(state)
        assert all(same(found, right) for found, right in zip(loader, inline, strict=True))


def test_results_of_functions_arrive_as_processes_wrote_them() -> None:
    """Jobs of one kind, of several, and with texts, which aren't in the memory, arrive with their orders of axes."""
    dataset = ps.range(4000).map(partial(np.full, 2_500)).batch(4, remainder="keep").map(of_a_kind)
    with ps.Loader(dataset) as inline, isolated(dataset, 2, workers="processes") as loader:
        expected = [(digest(batch), layouts(batch)) for batch in inline]
        for _ in range(2):
            assert [(digest(batch), layouts(batch)) for batch in loader] == expected


@pytest.mark.parametrize("function", [growing, of_two_dtypes])
def test_results_of_functions_take_no_more_memory_than_they_have(function: Callable[[Any], Any]) -> None:
    """Where `memory=` bounds a loader, batches are copied, without the room that a worker kept for larger ones."""
    dataset = ps.range(2000).batch(4).map(function)
    with isolated(dataset, 2, workers="processes", memory=40_000_000) as loader:
        assert [int(batch[0]) for batch in loader] == list(range(0, 2000, 4))


@pytest.mark.parametrize(("workers", "above"), [("threads", False), ("processes", False), ("processes", True)])
def test_batches_of_a_job_share_memory(workers: Any, *, above: bool) -> None:
    """Large leaves of a job's batches are in one memory, small ones in none, and a write changes one batch."""
    dataset = ps.range(1600).map(mixed).batch(8)
    dataset = dataset.map(without_box) if above else dataset
    with warnings.catch_warnings(), isolated(dataset, 1, workers=workers) as loader:
        warnings.simplefilter("ignore")  # about kept batches
        assert len(list(loader)) == 200
        kept = [batch for batch, _ in zip(loader, range(100), strict=False)]
        together = {batch["image"].__array_interface__["data"][0] >> 23 for batch in kept}
        assert len(together) < len(kept) / 2
        assert all(batch["label"].base is None for batch in kept)
        for batch in kept:
            batch["image"][...] = 255 - batch["image"]
    assert all((batch["image"][:, 0] == 255 - batch["label"] % 251).all() for batch in kept)


def test_memory_of_small_batches_is_bounded() -> None:
    """Messages hold many small batches, but at most 64 MB of all 90 MB are in flight."""
    with isolated(ps.range(4500).map(mixed).batch(8), 2, workers="processes", prefetch=8) as loader:
        for _ in range(2):
            assert most_in_flight(loader) < 1.1 * 64_000_000  # memory comes in pages


def test_kept_small_leaves_use_no_shared_memory() -> None:
    """Small leaves may all be kept: they refer to none of the 80 MB of shared memory that an epoch takes."""
    dataset = ps.range(4000).map(mixed).batch(8)
    with isolated(dataset, 2, workers="threads") as loader, warnings.catch_warnings(action="error"):
        labels = [batch["label"] for batch in loader]
        assert most_in_flight(loader) < 1.1 * 64_000_000  # memory comes in pages
    assert np.concatenate(labels).tolist() == [*range(4000)]
