"""Batches that processes compute equal the definition, byte for byte, whichever of them are killed, and when."""

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from tests.equivalence.definition import digest, epoch_of, outcomes, raised
from tests.equivalence.graphs import batched, indexable
from tests.workers.processes.killing import kill_a_worker

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")
EXAMPLES = settings().max_examples // 6  # starting processes takes a second


@settings(max_examples=EXAMPLES)
@given(batched() | indexable(), st.integers(1, 3), st.lists(st.integers(0, 12), max_size=3), st.data())
def test_epochs_equal_the_definition(dataset: ps.Dataset, workers: int, kills: list[int], data: st.DataObject) -> None:
    """Every epoch has the bytes and the error that the definition gives, and so has what a saved state gives."""
    whole: list[Any] = [outcomes(epoch_of(dataset, epoch)) for epoch in range(2)]
    stop = data.draw(st.integers(0, max(len(whole[0]) - 1, 0)))
    with ps.Loader(dataset, num_workers=workers, workers="processes") as loader:
        for expected in whole:
            batches = _killing(iter(loader), kills)
            assert outcomes(batches) == expected
            if raised(expected) or not expected:
                return
        loader.seek(0)
        batches = iter(loader)
        found = [digest(next(batches)) for _ in range(stop)]
        state = loader.state_dict()
    with ps.Loader(dataset, num_workers=1) as resumed:
        resumed.load_state_dict(state)
        assert found + outcomes(resumed) == whole[0]


def _killing(batches: Any, kills: list[int]) -> Any:
    """Yield batches; kill a process before those whose numbers are given."""
    for number, batch in enumerate(batches):
        if number in kills:
            kill_a_worker()
        yield batch
