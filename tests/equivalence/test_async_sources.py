"""Loaders over async sources deliver the same bytes as over other sources, however far they read ahead."""

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

import penstock as ps
from tests.equivalence.asynchronous import KEYS_PER_READ, LIMITS, made_async
from tests.equivalence.decisions import DECISIONS, random_decisions
from tests.equivalence.definition import digest, digests, epoch_of, outcomes, raised
from tests.equivalence.graphs import batched, indexable, ordered
from tests.equivalence.mixtures import any_indexable, grouped, ordered_mixtures

MIXTURES = ordered_mixtures().map(lambda mixture: mixture.dataset)
DATASETS = st.one_of(batched(), indexable(), ordered(), any_indexable(), grouped(), MIXTURES)
WORKERS = st.sampled_from([0, 1, 2, 3])


@given(DATASETS, WORKERS, KEYS_PER_READ, LIMITS, DECISIONS)
def test_epochs_equal_the_definition(
    dataset: ps.Dataset, workers: int, keys: int, limits: ps.Limits, decisions: int | None
) -> None:
    """Every epoch has the bytes of the definition over the same records in memory."""
    asynchronous = made_async(dataset, keys)
    with random_decisions(decisions), ps.Loader(asynchronous, num_workers=workers, limits=limits) as loader:
        for epoch in range(2):
            expected = outcomes(epoch_of(dataset, epoch))
            assert outcomes(loader) == expected
            if raised(expected):
                break


@given(batched() | indexable(), KEYS_PER_READ)
def test_indexing_and_iteration_equal_the_definition(dataset: ps.Dataset, keys: int) -> None:
    """A dataset's own indexing and iteration equal those over the same records in memory."""
    expected = outcomes(epoch_of(dataset, 0))
    awaited = made_async(dataset, keys)
    assert outcomes(awaited) == expected
    assert outcomes(awaited[position] for position in range(len(awaited))) == expected


@given(DATASETS, WORKERS, LIMITS, DECISIONS, st.data())
def test_resumes_exactly(
    dataset: ps.Dataset, workers: int, limits: ps.Limits, decisions: int | None, data: st.DataObject
) -> None:
    """A state after any batch over records in memory resumes over async ones, and the other way round."""
    whole: list[Any] = [outcomes(epoch_of(dataset, epoch)) for epoch in range(2)]
    assume(not any(map(raised, whole)))
    stop = data.draw(st.integers(0, len(whole[0])))
    pair = [dataset, made_async(dataset, 1)]
    if data.draw(st.booleans()):
        pair.reverse()
    found: list[Any] = []
    with random_decisions(decisions), ps.Loader(pair[0], num_workers=workers, limits=limits) as loader:
        batches = iter(loader)
        found += [digest(next(batches)) for _ in range(stop)]
        state = loader.state_dict()
    with random_decisions(decisions), ps.Loader(pair[1], num_workers=workers, limits=limits) as loader:
        loader.load_state_dict(state, allow={"source"})
        while len(found) < len(whole[0] + whole[1]):
            found += digests(loader)
    assert found == whole[0] + whole[1]


@given(batched(), st.integers(1, 4), WORKERS, LIMITS, st.data())
def test_ranks_and_single_steps_equal_those_in_memory(
    dataset: ps.Dataset, ranks: int, workers: int, limits: ps.Limits, data: st.DataObject
) -> None:
    """A rank's batches, those after a seek, and `batch_at` equal those over records in memory."""
    shard = ps.Shard(data.draw(st.integers(0, ranks - 1)), ranks)
    try:
        expected = ps.Loader(dataset, shard=shard)
    except ps.errors.UsageError:
        assume(False)  # noqa: FBT003 - Hypothesis has it so
    steps = outcomes(expected)
    assume(steps and not raised(steps))
    step = data.draw(st.integers(0, len(steps) - 1))
    with ps.Loader(made_async(dataset, 1), shard=shard, num_workers=workers, limits=limits) as loader:
        assert digest(loader.batch_at(step)) == steps[step]
        loader.seek(step)
        assert outcomes(loader) == steps[step:]
