"""Batches that processes compute equal the definition, byte for byte, whichever processes are killed, and when."""

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from tests.equivalence.asynchronous import KEYS_PER_READ, made_async
from tests.equivalence.decisions import DECISIONS, random_decisions
from tests.equivalence.definition import digest, epoch_of, outcomes, raised
from tests.equivalence.graphs import batched, indexable, ordered
from tests.equivalence.joins import in_order
from tests.places import PLACES
from tests.workers.processes.killing import kill_a_worker

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")
KILLED = ("processes", "isolated", "isolated threads", "isolated processes")
EXAMPLES = settings().max_examples // 4  # starting processes takes a second


@settings(max_examples=EXAMPLES)
@given(
    batched() | indexable() | ordered() | in_order(),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.integers(0, 12),
    st.dictionaries(st.integers(0, 12), st.booleans(), max_size=4),
    st.tuples(st.sampled_from(KILLED), st.sampled_from(["inline", "thread", *KILLED])),
    DECISIONS,
    st.none() | KEYS_PER_READ,
)
def test_epochs_equal_the_definition(
    dataset: ps.Dataset,
    numbers: tuple[int, int],
    stop: int,
    kills: dict[int, bool],
    places: tuple[str, str],
    decisions: int | None,
    keys: int | None,
) -> None:
    """Every epoch, and every resume from a state, has the bytes and the error of the definition."""
    workers, batch_workers = numbers
    whole: list[Any] = [outcomes(epoch_of(dataset, epoch)) for epoch in range(2)]
    stop = min(stop, len(whole[0]) - raised(whole[0]))
    place: dict[str, Any] = {**PLACES[places[0]], "limits": ps.Limits(num_batch_workers=batch_workers)}
    if places[0] == "processes":
        place["num_workers"] = workers
    if keys is not None:
        dataset = made_async(dataset, keys)
    with random_decisions(decisions), ps.Loader(dataset, **place) as loader:
        batches = _killing(iter(loader), kills)
        found = [digest(next(batches)) for _ in range(stop)]
        state = loader.state_dict()
        assert found + outcomes(batches) == whole[0]
        if not raised(whole[0]):
            assert outcomes(_killing(iter(loader), kills)) == whole[1]
    if stop == len(whole[0]):
        return  # the state is the next epoch's start
    with random_decisions(decisions), ps.Loader(dataset, **PLACES[places[1]]) as resumed:
        resumed.load_state_dict(state)
        assert found + outcomes(_killing(iter(resumed), kills)) == whole[0]


def _killing(batches: Any, kills: dict[int, bool]) -> Any:
    """Yield batches; kill the oldest or the newest process before the batches with given numbers."""
    for number, batch in enumerate(batches):
        if number in kills:
            kill_a_worker(oldest=kills[number])
        yield batch
