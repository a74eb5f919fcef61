"""The loader equals the definition, byte for byte, for the whole algebra, in every place and after every resume.

A third of the datasets have async sources, which return the same records out of order, however far the loader reads
ahead.
"""

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

import penstock as ps
from tests.equivalence.asynchronous import KEYS_PER_READ, LIMITS, made_async
from tests.equivalence.decisions import DECISIONS, random_decisions
from tests.equivalence.definition import delivered, digest, digests, epoch_of, outcomes, raised
from tests.equivalence.graphs import batched, indexable, ordered
from tests.equivalence.joins import in_order, joined
from tests.equivalence.mixtures import grouped, ordered_mixtures, tables
from tests.profiles import IS_LONG


@st.composite
def elements_or_batches(draw: st.DrawFn, base: st.SearchStrategy[ps.Dataset]) -> ps.Dataset:
    """Draw a dataset, as it is or in batches."""
    dataset, size = draw(base), draw(st.sampled_from([None, 1, 3, 8]))
    return dataset if size is None else dataset.batch(size)


JOINED = elements_or_batches(joined())
INDEXABLE = st.one_of(batched(), indexable(), JOINED, JOINED, tables())
MIXTURES = ordered_mixtures().map(lambda mixture: mixture.dataset)
DATASETS = st.one_of(INDEXABLE, ordered(), *[elements_or_batches(in_order())] * 2, grouped(), MIXTURES)
SOURCES = st.none() | st.none() | KEYS_PER_READ
WORKERS = st.sampled_from([0, 1, 2, 3])
MANY = settings(max_examples=3 * settings().max_examples // 2 if IS_LONG else 20)


def with_source(dataset: ps.Dataset, keys: int | None) -> ps.Dataset:
    """Return the dataset, over async sources if they have a number of keys for each read."""
    return dataset if keys is None else made_async(dataset, keys)


@MANY
@given(DATASETS, SOURCES, WORKERS, LIMITS, DECISIONS)
def test_epochs_equal_the_definition(
    dataset: ps.Dataset, keys: int | None, workers: int, limits: ps.Limits, decisions: int | None
) -> None:
    """Every epoch of a loader has the bytes of the definition, in order."""
    loaded = with_source(dataset, keys)
    with random_decisions(decisions), ps.Loader(loaded, num_workers=workers, limits=limits) as loader:
        for epoch in range(3):
            expected = outcomes(epoch_of(dataset, epoch))
            assert outcomes(loader) == expected
            if raised(expected):
                break


@MANY
@given(INDEXABLE, SOURCES)
def test_indexing_and_iteration_equal_the_definition(dataset: ps.Dataset, keys: int | None) -> None:
    """A dataset's own indexing and iteration are epoch 0 of the definition."""
    expected, loaded = outcomes(epoch_of(dataset, 0)), with_source(dataset, keys)
    assert outcomes(loaded) == expected
    assert outcomes(loaded[position] for position in range(len(loaded))) == expected


@MANY
@given(DATASETS, *[st.tuples(SOURCES, WORKERS, LIMITS, DECISIONS)] * 2, st.data())
def test_resumes_exactly(
    dataset: ps.Dataset,
    first: tuple[int | None, int, ps.Limits, int | None],
    second: tuple[int | None, int, ps.Limits, int | None],
    data: st.DataObject,
) -> None:
    """A state after any batch resumes with the rest of that epoch and the next, for any workers and kind of source."""
    whole: list[Any] = [outcomes(epoch_of(dataset, epoch)) for epoch in range(3)]
    assume(not any(map(raised, whole)))
    flat = [batch for epoch in whole for batch in epoch]
    stop = data.draw(st.integers(0, len(whole[0]) + len(whole[1])))
    found: list[Any] = []
    keys, workers, limits, decisions = first
    with (
        random_decisions(decisions),
        ps.Loader(with_source(dataset, keys), num_workers=workers, limits=limits) as loader,
    ):
        while len(found) < stop:
            for batch in delivered(loader):
                found.append(digest(batch))
                if len(found) == stop:
                    break
        state = loader.state_dict()
    keys, workers, limits, decisions = second
    with (
        random_decisions(decisions),
        ps.Loader(with_source(dataset, keys), num_workers=workers, limits=limits) as loader,
    ):
        loader.load_state_dict(state, allow={"source"})
        while len(found) < len(flat):
            found += digests(loader)
    assert found == flat
