"""The whole algebra equals its definition, byte for byte, in every place and after every resume."""

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

import penstock as ps
from tests.equivalence.decisions import DECISIONS, random_decisions
from tests.equivalence.definition import digest, digests, epoch_of, outcomes, raised
from tests.equivalence.joins import in_order, joined

WORKERS = st.sampled_from([0, 1, 3])


@given(joined(), WORKERS, st.sampled_from([None, 1, 3, 8]), DECISIONS)
def test_joins_equal_the_definition(
    dataset: ps.Dataset, workers: int, batch: int | None, decisions: int | None
) -> None:
    """Indexing, iterating and loading equal the definition, for every join and table."""
    dataset = dataset if batch is None else dataset.batch(batch)
    expected = outcomes(epoch_of(dataset, 0))
    assert outcomes(dataset[position] for position in range(len(dataset))) == expected
    with random_decisions(decisions), ps.Loader(dataset, num_workers=workers) as loader:
        assert outcomes(loader) == expected
        if not raised(expected):
            assert outcomes(loader) == outcomes(epoch_of(dataset, 1))


@given(in_order(), WORKERS, st.sampled_from([None, 1, 3]), DECISIONS)
def test_reading_in_order_equals_the_definition(
    dataset: ps.Dataset, workers: int, batch: int | None, decisions: int | None
) -> None:
    """Stages equal the plain generators, for every step that is read in order."""
    dataset = dataset if batch is None else dataset.batch(batch)
    with random_decisions(decisions), ps.Loader(dataset, num_workers=workers) as loader:
        for epoch in range(2):
            expected = outcomes(epoch_of(dataset, epoch))
            assert outcomes(loader) == expected
            if raised(expected):
                break


@given(in_order(), st.tuples(WORKERS, WORKERS), st.sampled_from([None, 1, 3]), DECISIONS, st.data())
def test_resumes_exactly(
    dataset: ps.Dataset, workers: tuple[int, int], batch: int | None, decisions: int | None, data: st.DataObject
) -> None:
    """A state after any element resumes with the rest of that epoch and the next, for any number of workers."""
    dataset = dataset if batch is None else dataset.batch(batch)
    whole: list[Any] = [outcomes(epoch_of(dataset, epoch)) for epoch in range(2)]
    assume(not any(map(raised, whole)))
    flat = [element for epoch in whole for element in epoch]
    stop = data.draw(st.integers(0, len(whole[0])))
    with random_decisions(decisions), ps.Loader(dataset, num_workers=workers[0]) as loader:
        found: list[Any] = []
        for element in loader:
            found.append(digest(element))
            if len(found) >= stop:
                break
        state = loader.state_dict()
    with random_decisions(decisions), ps.Loader(dataset, num_workers=workers[1]) as loader:
        loader.load_state_dict(state)
        for _ in range(4):
            if len(found) < len(flat):
                found += digests(loader)
    assert found == flat
