"""The loader equals the definition, byte for byte, for the whole algebra, in every place and after every resume."""

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

import penstock as ps
from tests.equivalence.decisions import DECISIONS, random_decisions
from tests.equivalence.definition import delivered, digest, digests, epoch_of, outcomes, raised
from tests.equivalence.graphs import batched, indexable, ordered
from tests.equivalence.joins import in_order, joined


@st.composite
def elements_or_batches(draw: st.DrawFn, base: st.SearchStrategy[ps.Dataset]) -> ps.Dataset:
    """Draw a dataset, as it is or in batches."""
    dataset, size = draw(base), draw(st.sampled_from([None, 1, 3, 8]))
    return dataset if size is None else dataset.batch(size)


JOINED = elements_or_batches(joined())
INDEXABLE = st.one_of(batched(), indexable(), JOINED, JOINED)
DATASETS = st.one_of(batched(), indexable(), ordered(), JOINED, *[elements_or_batches(in_order())] * 2)
WORKERS = st.sampled_from([0, 1, 2, 3])
MANY = settings(max_examples=2 * settings().max_examples)


@MANY
@given(DATASETS, WORKERS, DECISIONS)
def test_epochs_equal_the_definition(dataset: ps.Dataset, workers: int, decisions: int | None) -> None:
    """Every epoch of a loader has the bytes of the definition, in order."""
    with random_decisions(decisions), ps.Loader(dataset, num_workers=workers) as loader:
        for epoch in range(3):
            expected = outcomes(epoch_of(dataset, epoch))
            assert outcomes(loader) == expected
            if raised(expected):
                break


@MANY
@given(INDEXABLE)
def test_indexing_and_iteration_equal_the_definition(dataset: ps.Dataset) -> None:
    """A dataset's own indexing and iteration are epoch 0 of the definition."""
    expected = outcomes(epoch_of(dataset, 0))
    assert outcomes(dataset) == expected
    assert outcomes(dataset[position] for position in range(len(dataset))) == expected


@MANY
@given(DATASETS, st.tuples(WORKERS, WORKERS), st.tuples(DECISIONS, DECISIONS), st.data())
def test_resumes_exactly(
    dataset: ps.Dataset, workers: tuple[int, int], decisions: tuple[int | None, int | None], data: st.DataObject
) -> None:
    """A state after any batch resumes with the rest of that epoch and the next, for any number of workers."""
    whole: list[Any] = [outcomes(epoch_of(dataset, epoch)) for epoch in range(3)]
    assume(not any(map(raised, whole)))
    flat = [batch for epoch in whole for batch in epoch]
    stop = data.draw(st.integers(0, len(whole[0]) + len(whole[1])))
    with random_decisions(decisions[0]), ps.Loader(dataset, num_workers=workers[0]) as loader:
        found: list[Any] = []
        while len(found) < stop:
            for batch in delivered(loader):
                found.append(digest(batch))
                if len(found) == stop:
                    break
        state = loader.state_dict()
    with random_decisions(decisions[1]), ps.Loader(dataset, num_workers=workers[1]) as loader:
        loader.load_state_dict(state)
        while len(found) < len(flat):
            found += digests(loader)
    assert found == flat
