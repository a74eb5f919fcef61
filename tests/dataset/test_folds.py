"""Packing, bucketing and combining: the definition's elements in every place, after any resume, on any ranks."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.batching import Pad
from tests.dataset.packing import all_tokens, bare
from tests.equivalence.combinations import INLINE, THREADS, check_resume
from tests.equivalence.combiners import Delayed, Filled, Neighbours, Running
from tests.equivalence.decisions import DECISIONS, random_decisions
from tests.equivalence.definition import digests, epoch_of
from tests.equivalence.functions import with_origin

Verb = Callable[[ps.Dataset], ps.Dataset]
LENGTHS = st.lists(st.integers(1, 12), max_size=60)
BOUNDARIES = [3, 7, 12]
PLACES: dict[str, dict[str, Any]] = {
    "inline": INLINE,
    "threads": THREADS,
    "processes": {"num_workers": 1, "workers": "processes"},
    "isolated": {"isolated": True},
}

FOLDS: list[Verb] = [
    lambda dataset: dataset.pack(7, long="drop", fill=-1),
    lambda dataset: dataset.filter(lambda tokens: len(tokens) % 4 != 1).pack(6),
    lambda dataset: dataset.map(lambda t: {"tokens": t, "n": len(t)}).pack(8, meta=["n"], fill={"tokens": 3}),
    lambda dataset: dataset.map(lambda t: {"a": t, "b": t[::2]}).pack({"a": 9, "b": 4}, long="drop"),
    lambda dataset: dataset.flat_map(lambda tokens: [tokens, tokens[1:], tokens[:1]]).pack(9),
    lambda dataset: dataset.pack(5, how="split", fill=9).random_map(lambda s, rng: {**s, "draw": rng.random()}),
    lambda dataset: dataset.pack(7).batch(4, remainder="pad", mask="is_data"),
    lambda dataset: dataset.bucket(len, BOUNDARIES, rows=[6, 3, 2], remainder="drop"),
    lambda dataset: dataset.map(lambda t: {"t": t}).bucket("t", BOUNDARIES, rows=3, pad=Pad(fill=-1, mask="m")),
    lambda dataset: dataset.bucket(len, BOUNDARIES, rows=2).random_map(lambda batch, rng: (batch, rng.random())),
    lambda dataset: dataset.window_shuffle(5).bucket(len, BOUNDARIES, rows=5).unbatch(),
    lambda dataset: dataset.combine(Filled).map_with_origin(with_origin),
    lambda dataset: dataset.combine(Delayed, name="below").combine(Neighbours),
    lambda dataset: dataset.map(len).combine(Running).random_map(lambda total, rng: (total, rng.random())),
]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_limit_below_the_batch_counts_on_every_rank(ranks: int) -> None:
    """In order each rank takes so many elements of its part; with positions they are counted over all ranks."""
    rows = ps.range(100)
    for dataset, each in ((rows.filter(lambda number: number >= 0), 8), (rows, 8 // ranks)):
        shards = [ps.Shard(rank, ranks, uneven=True) for rank in range(ranks)]
        loaders = [ps.Loader(dataset.limit(8).batch(8), shard=shard) for shard in shards]
        assert [sum(map(len, loader)) for loader in loaders] == [each] * ranks


@given(LENGTHS, st.sampled_from(FOLDS), DECISIONS, st.integers(0, 20))
def test_a_fold_equals_the_definition(lengths: list[int], fold: Verb, decisions: int | None, stop: int) -> None:
    """Two epochs are the definition's, byte for byte; a state of any element resumes with the others in threads."""
    dataset = fold(bare(lengths))
    epochs = (digests(epoch_of(dataset, 0)), digests(epoch_of(dataset, 1)))
    with random_decisions(decisions):
        check_resume(dataset, epochs, (INLINE, THREADS), stop)


@pytest.mark.each_value
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("make", [Filled, Neighbours, Running, Delayed])
def test_every_place_has_the_same_states(make: Any, place: str) -> None:
    """The state after each element of two epochs is an inline loader's, and the elements are the definition's."""
    dataset = ps.range(30, seed=1).filter(bool).combine(make).map_with_origin(with_origin)
    with ps.Loader(dataset) as inline, ps.Loader(dataset, **PLACES[place]) as loader:
        states = [loader.state_dict() for _ in range(2) for _ in loader]
        assert states == [inline.state_dict() for _ in range(2) for _ in inline]
    check_resume(dataset, (digests(epoch_of(dataset, 0)), digests(epoch_of(dataset, 1))), (INLINE, PLACES[place]), 3)


@pytest.mark.parametrize("how", ["best_fit", "split"])
@given(st.lists(st.integers(0, 900), min_size=30, max_size=300), DECISIONS, st.integers(0, 30))
def test_many_documents_equal_the_definition(how: Any, lengths: list[int], decisions: int | None, stop: int) -> None:
    """Packing equals its definition where 64 sequences are open and some close to make room."""
    dataset = bare(lengths).pack(1000, how=how)
    expected = digests(dataset)
    with random_decisions(decisions):
        check_resume(dataset, (expected, expected), (INLINE, THREADS), stop)


DEALT: dict[str, Verb] = {
    "pack": lambda dataset: dataset.pack(8).map(lambda s: s["tokens"][s["segment_ids"] > 0]).batch(4, merge=list),
    "bucket": lambda dataset: dataset.bucket(len, BOUNDARIES, rows=4),
    "combine": lambda dataset: dataset.filter(lambda _: True).combine(Delayed).batch(4, merge=list),
}


def tokens_of(batch: Any) -> list[int]:
    """Return the tokens of a batch of any of these datasets."""
    return [int(token) for row in batch for token in np.asarray(row).tolist() if token]


@pytest.mark.parametrize("name", DEALT)
@given(LENGTHS, st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.integers(0, 3))
def test_a_change_of_ranks_loses_no_element(name: str, lengths: list[int], old: int, new: int, steps: int) -> None:
    """Other ranks resume from all old states with each element once, those that a fold holds included."""
    dataset = DEALT[name](bare(lengths))
    seen: Counter[int] = Counter()
    states: list[Any] = []
    for rank in range(old):
        with ps.Loader(dataset, shard=ps.Shard(rank, old, uneven=True)) as loader:
            for _, batch in zip(range(steps), loader, strict=False):
                seen.update(tokens_of(batch))
            states.append(loader.state_dict())
    if any(state["epoch"] for state in states):
        return  # a rank has finished
    for rank in range(new):
        with ps.Loader(dataset, shard=ps.Shard(rank, new, uneven=True)) as loader:
            loader.load_state_dict(states if old != new else states[rank])
            for batch in loader if loader.epoch == 0 else ():
                seen.update(tokens_of(batch))
    assert seen == all_tokens(lengths)
