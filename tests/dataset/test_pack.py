"""Packing: each token of each document once, the definition's bytes, after any resume."""

from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from tests.dataset.packing import all_tokens, bare, documents
from tests.equivalence.combinations import INLINE, THREADS, check_resume
from tests.equivalence.decisions import DECISIONS, random_decisions
from tests.equivalence.definition import digests
from tests.profiles import fewer

How = Literal["best_fit", "split"]
LENGTHS = st.lists(st.integers(0, 12), max_size=60)
CAPACITIES = st.integers(1, 9)


def tokens_of(sequences: Any) -> Counter[int]:
    """Return all data tokens of the sequences."""
    found: Counter[int] = Counter()
    for sequence in sequences:
        found.update(sequence["tokens"][sequence["segment_ids"] > 0].tolist())
    return found


def with_labels(lengths: list[int]) -> ps.Dataset:
    """Return documents of two features of one length, and a leaf that is carried along."""
    return bare(lengths).map(lambda tokens: {"tokens": tokens, "labels": tokens.astype(np.float32), "id": len(tokens)})


@given(LENGTHS, CAPACITIES, st.sampled_from(["best_fit", "split"]), st.booleans())
def test_every_token_comes_once(lengths: list[int], capacity: int, how: How, is_planned: object) -> None:
    """Each token comes once, segments count up from 1, and positions count up within each."""
    sequences = list(bare(lengths).pack(capacity, how=how, lengths=lengths if is_planned else None))
    assert tokens_of(sequences) == all_tokens(lengths)
    for sequence in sequences:
        ids, positions, tokens = (sequence[name] for name in ("segment_ids", "positions", "tokens"))
        assert ids.dtype == positions.dtype == np.int32
        assert tokens.shape == ids.shape == positions.shape == (capacity,)
        used = int((ids > 0).sum())
        assert not any(array[used:].any() for array in (ids, positions, tokens))
        for segment in range(1, int(ids.max(initial=0)) + 1):
            assert np.array_equal(positions[ids == segment], np.arange(int((ids == segment).sum())))
            assert (np.diff(tokens[ids == segment]) == 1).all()


@given(LENGTHS, CAPACITIES)
def test_documents_that_fit_stay_whole(lengths: list[int], capacity: int) -> None:
    """With best fit, a document that fits is in one sequence, and a dropped one in none."""
    for planned in (None, lengths):
        sequences = list(bare(lengths).pack(capacity, long="drop", lengths=planned))
        expected = [token for document in documents(lengths) if len(document) <= capacity for token in document]
        assert tokens_of(sequences) == Counter(expected)
        owners = [set((s["tokens"][s["segment_ids"] > 0] // 1000).tolist()) for s in sequences]
        assert sum(map(len, owners)) == sum(0 < length <= capacity for length in lengths)


@given(LENGTHS)
def test_features_share_their_segments(lengths: list[int]) -> None:
    """Features of one length are side by side with their own padding, and carried leaves keep their order."""
    sequences = list(with_labels(lengths).pack(12, meta=["id"], fill={"labels": -1}))
    for sequence in sequences:
        assert list(sequence) == ["tokens", "segment_ids", "positions", "labels", "id"]
        used = sequence["segment_ids"] > 0
        assert np.array_equal(sequence["tokens"][used], sequence["labels"][used])
        assert (sequence["labels"][~used] == -1).all()
        assert not sequence["tokens"][~used].any()
        counts = np.bincount(sequence["segment_ids"][used])[1:].tolist()
        assert sequence["id"] == counts


def test_the_padding_is_the_zero_of_the_dtype() -> None:
    """Of texts it is the empty one."""
    for dtype, lengths in (("U4", None), ("S4", [1, 2, 3]), ("?", None), ("M8[s]", [1, 2, 3])):
        packed = ps.read([np.full(number + 1, 1, "i8").astype(dtype) for number in range(3)]).pack(4, lengths=lengths)
        assert digests(packed) == digests(ps.Loader(packed))
        ends = [sequence["tokens"][-1] for sequence in packed if sequence["segment_ids"][-1] == 0]
        assert ends
        assert all(end == np.zeros((), dtype) for end in ends)


@pytest.mark.parametrize("rows", [5, 16, 200])
def test_a_batch_of_sequences_is_filled_where_it_is_delivered(rows: int) -> None:
    """The sequences of a batch are in one piece of memory, also where their documents were read in several blocks.

    Small batches share it, up to 64 sequences.
    """
    dataset = bare([1 + number * 7 % 9 for number in range(2400)]).pack(8).batch(rows)
    with ps.Loader(dataset) as loader:
        batches = list(loader)
    assert digests(batches) == digests(dataset)
    memories = [{id(array.base) for array in batch.values()} for batch in batches[:-1]]
    assert all(len(memory) == 1 and memory != {id(None)} for memory in memories)
    counts = Counter(memory.pop() for memory in memories)
    assert set([*counts.values()][:-1]) == {max(64 // rows, 1)}


def labelled(lengths: list[int]) -> ps.Dataset:
    """Return documents of two features, whose dtypes have other byte orders."""
    return bare(lengths).map(lambda tokens: {"tokens": tokens.astype(">i4"), "labels": tokens.astype(np.float32)})


PLANNED: dict[str, Callable[[ps.Dataset, list[int]], ps.Dataset]] = {
    "in order": lambda documents_, lengths: documents_.pack(50, lengths=lengths),
    "shuffled": lambda documents_, lengths: documents_.pack(50, lengths=lengths).shuffle(),
    "of features": lambda documents_, lengths: documents_.pack(
        {"tokens": 50, "labels": 60}, lengths={"tokens": lengths, "labels": lengths}
    ),
    "mapped": lambda documents_, lengths: documents_.pack(50, lengths=lengths).map(lambda each: {**each, "more": 1}),
    "split": lambda documents_, lengths: documents_.pack(50, lengths=lengths, how="split", fill=7),
}


@pytest.mark.parametrize("rows", [3, 70])
@pytest.mark.parametrize("kind", PLANNED)
@pytest.mark.each_value
def test_planned_sequences_equal_the_definition_in_batches(kind: str, rows: int) -> None:
    """Batches of planned sequences have the definition's bytes, whatever is between, inline and from threads."""
    lengths = [number * 7 % 31 for number in range(1000)]
    dataset = PLANNED[kind](labelled(lengths), lengths).batch(rows)
    expected = digests(dataset)
    for settings in (INLINE, THREADS):
        with ps.Loader(dataset, **settings) as loader:
            assert digests(list(loader)) == expected


def test_planned_batches_may_differ_in_their_dtype() -> None:
    """A batch of sequences has the dtype of its own documents, also after batches of another one."""
    dataset = ps.read([np.arange(8, dtype="i4" if number < 12 else "f8") for number in range(24)])
    batches = dataset.pack(8, lengths=[8] * 24).batch(2)
    for settings in (INLINE, THREADS):
        with ps.Loader(batches, **settings) as loader:
            assert digests(list(loader)) == digests(batches)


def test_errors_name_the_document() -> None:
    """An unfit document is named, after the sequences that closed before it."""
    dataset = ps.read([np.zeros(4), np.zeros(4), np.zeros((2, 2)), np.zeros(4)]).pack(4)
    for each in (dataset, ps.Loader(dataset)):
        elements = iter(each)
        assert len(next(elements)["tokens"]) == len(next(elements)["tokens"]) == 4
        with pytest.raises(ps.errors.GraphError, match=r"one axis; .* shape \(2, 2\)") as caught:
            next(elements)
        assert "position 2" in caught.value.__notes__[0]


UNFIT: list[tuple[Callable[[], ps.Dataset], str]] = [
    (lambda: ps.range(3).pack(4), "arrays with one axis"),
    (lambda: ps.read([[1, 2]]).pack(4), r"a list\. Convert .* as in np\.asarray\(tokens, np\.int32\), or"),
    (lambda: ps.read(["a text"]).pack(4), r"a str\. Convert it in \.map, by a tokenizer and np\.asarray, or"),
    (lambda: ps.read([np.zeros(2), np.zeros(2, np.int8)]).pack(4), "one dtype"),
    (lambda: ps.read([np.zeros(2), [0.0, 1.0]]).pack(4), r"a list\. Convert"),
    (
        lambda: ps.read([np.zeros(2), np.ma.masked_array([0.0, 1.0], [True, False])]).pack(4),
        "no masked arrays",
    ),
    (lambda: ps.read([np.ma.masked_array([0.0, 1.0], [True, False])]).pack(4), "no masked arrays"),
    (lambda: ps.read([np.zeros(2)]).pack(4, meta=["url"]), "must be dicts"),
    (lambda: ps.read([{"a": np.zeros(2), "b": np.zeros(3)}]).pack(4), "must have one length"),
    (lambda: ps.read([{"a": np.zeros(2), "b": "text"}]).pack(4), "in meta="),
    (lambda: ps.read([{"a": np.zeros(2), "b": "text"}]).pack({"a": 4}), r"\['b'\] .* neither packed nor in meta="),
    (lambda: ps.read([{"a": np.zeros(2)}]).pack(4, meta=["b"]), r"must have the leaves \['b'\]"),
    (lambda: ps.read([{"positions": np.zeros(2)}]).pack(4), "which packing adds"),
    (lambda: ps.read([{"a": np.zeros(5)}]).pack({"a": 4}), "can't be split"),
    (lambda: ps.read([{"a": np.zeros(2)}, {"b": np.zeros(2)}]).pack(4), "same leaves"),
    (lambda: ps.read([np.zeros(2, np.uint8)]).pack(4, fill=-1), "fill must be a value of uint8"),
    (lambda: ps.read([np.zeros(2)]).pack(4, lengths=[3]), "position 0 has 2, the plan 3"),
    (lambda: ps.read([np.array([1, 2], object)]).pack(4), "takes arrays of numbers; a document has Python objects"),
    (lambda: ps.read([np.array([1, 2], object)]).pack(4, lengths=[2]), "a document has Python objects"),
    (lambda: bare([3]).pack(5, fill={"token": -100}), r"for leaves that are packed.*got fill for \['token'\]"),
]


def test_unfit_documents_are_errors() -> None:
    """The error of each kind of unfit document states its rule, also in a loader."""
    for made, message in UNFIT:
        with pytest.raises(ps.errors.UsageError, match=message):
            list(made())
        with ps.Loader(made()) as loader, pytest.raises(ps.errors.UsageError, match=message):
            list(loader)
    with pytest.raises(ps.errors.UsageError, match=r"got fill for \['id'\], which meta names"):
        with_labels([3, 2]).pack(5, meta=["id"], fill={"id": 0})


def test_planning_needs_a_fixed_order() -> None:
    """Lengths belong to positions, so a dataset with another order in each epoch is refused with a remedy."""
    documents_ = bare([1, 2, 3])
    with pytest.raises(ps.errors.GraphError, match="another order in every epoch"):
        documents_.shuffle().pack(4, lengths=[1, 2, 3])
    with pytest.raises(ps.errors.GraphError, match="in order"):
        documents_.filter(bool).pack(4, lengths=[1, 2, 3])
    assert len(documents_.shuffle().epoch(0).pack(6, lengths=[len(d) for d in documents_.shuffle().epoch(0)])) == 1


def test_sequences_of_one_cut_document_share_no_random_stream() -> None:
    """Sequences that begin with pieces of one document have random streams of their own, planned or not."""
    for lengths in (None, [64]):
        drawn = list(bare([64]).pack(8, lengths=lengths).random_map(lambda _, rng: rng.random()))
        assert len(drawn) == len(set(drawn)) == 8


@fewer()
@given(
    st.sampled_from(["best_fit", "split"]),
    st.lists(st.integers(0, 900), min_size=30, max_size=200),
    DECISIONS,
    st.integers(0, 30),
)
def test_many_documents_equal_the_definition(how: Any, lengths: list[int], decisions: int | None, stop: int) -> None:
    """Packing equals its definition where 64 sequences are open and some close to make room."""
    dataset = bare(lengths).pack(1000, how=how)
    expected = digests(dataset)
    with random_decisions(decisions):
        check_resume(dataset, (expected, expected), (INLINE, THREADS), stop)
