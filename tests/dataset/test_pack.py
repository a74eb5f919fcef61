"""Packing: each token of each document once, the definition's bytes, after any resume."""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from tests.dataset.packing import all_tokens, bare, documents
from tests.equivalence.definition import digests, outcomes

if TYPE_CHECKING:
    from numpy.typing import NDArray

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


def with_targets(lengths: list[int]) -> ps.Dataset:
    """Return documents of two features whose lengths differ."""
    return bare(lengths).map(lambda tokens: {"inputs": tokens, "targets": tokens[: (len(tokens) + 1) // 2].copy()})


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


@given(LENGTHS, st.booleans())
def test_features_may_have_their_own_lengths(lengths: list[int], is_planned: object) -> None:
    """Features of differing lengths have segments of their own, with the same document numbers."""
    dataset = with_targets(lengths)
    table = {"inputs": lengths, "targets": [(length + 1) // 2 for length in lengths]} if is_planned else None
    for sequence in dataset.pack({"inputs": 12, "targets": 7}, lengths=table):
        assert "segment_ids" not in sequence
        for segment in range(1, sequence["inputs_segment_ids"].max() + 1):
            inputs: NDArray[np.int64] = sequence["inputs"][sequence["inputs_segment_ids"] == segment]
            targets: NDArray[np.int64] = sequence["targets"][sequence["targets_segment_ids"] == segment]
            assert np.array_equal(inputs[: len(targets)], targets)


@given(LENGTHS, CAPACITIES, st.integers(0, 2))
def test_planned_packs_are_indexable(lengths: list[int], capacity: int, workers: int) -> None:
    """A planned pack has positions and can be shuffled, and a loader delivers the definition's bytes."""
    dataset = bare(lengths).pack(capacity, lengths=np.array(lengths, np.uint16)).shuffle()
    with ps.Loader(dataset, num_workers=workers) as loader:
        assert outcomes(loader) == outcomes(dataset[position] for position in range(len(dataset)))
    assert sorted(map(repr, digests(dataset))) == sorted(
        map(repr, digests(bare(lengths).pack(capacity, lengths=lengths)))
    )


@pytest.mark.parametrize("dtype", ["U4", "S4", "?", "M8[s]"])
@pytest.mark.parametrize("planned", [False, True])
def test_the_padding_is_the_zero_of_the_dtype(dtype: str, *, planned: bool) -> None:
    """Of texts it is the empty one."""
    texts = ps.range(3).map(lambda number: np.full(number + 1, 1, "i8").astype(dtype))
    packed = texts.pack(4, lengths=[1, 2, 3] if planned else None)
    assert digests(packed) == digests(ps.Loader(packed))
    assert all(sequence["tokens"][-1] == np.zeros((), dtype) for sequence in packed if sequence["segment_ids"][-1] == 0)


def test_sequences_have_little_padding() -> None:
    """Documents of mixed lengths leave at most 2 % of padding, and planned ones hardly any."""
    spread = ps.range(2000).random_map(lambda _, rng: int(np.clip(rng.lognormal(5.9, 1), 1, 20_000)))
    lengths: list[int] = list(spread)
    for planned, least in ((None, 0.98), (lengths, 0.995)):
        sequences = list(bare(lengths).pack(2048, lengths=planned))
        assert sum(lengths) / (2048 * len(sequences)) > least - (0.02 if planned is None else 0)


def test_a_batch_of_sequences_is_filled_where_it_is_delivered() -> None:
    """The sequences of a batch are in one piece of memory, also where their documents were read in several blocks."""
    dataset = bare([1 + number * 7 % 9 for number in range(6000)]).pack(8).batch(16)
    with ps.Loader(dataset) as loader:
        batches = list(loader)
    assert digests(batches) == digests(dataset)
    memories = [{id(array.base) for array in batch.values()} for batch in batches[:-1]]
    assert all(len(memory) == 1 and memory != {id(None)} for memory in memories)


def test_pieces_of_a_document_draw_their_own_randomness() -> None:
    """Sequences that begin with pieces of one document have random streams of their own."""
    dataset = bare([40]).pack(8).random_map(lambda _, rng: rng.random())
    draws = list(dataset)
    assert len(set(draws)) == len(draws) == 5


def test_errors_name_the_document() -> None:
    """An unfit document is named, after the sequences that closed before it."""
    dataset = ps.read([np.zeros(4), np.zeros(4), np.zeros((2, 2)), np.zeros(4)]).pack(4)
    for each in (dataset, ps.Loader(dataset)):
        elements = iter(each)
        assert len(next(elements)["tokens"]) == len(next(elements)["tokens"]) == 4
        with pytest.raises(ps.errors.GraphError, match=r"one axis; .* shape \(2, 2\)") as caught:
            next(elements)
        assert "position 2" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: ps.range(3).pack(4), "arrays with one axis"),
        (lambda: ps.read([[1, 2]]).pack(4), r"a list\. Convert .* as in np\.asarray\(tokens, np\.int32\), or"),
        (lambda: ps.read(["a text"]).pack(4), r"a str\. Convert it in \.map, by a tokenizer and np\.asarray, or"),
        (lambda: ps.read([np.zeros(2), np.zeros(2, np.int8)]).pack(4), "one dtype"),
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
    ],
)
def test_unfit_documents_are_errors(made: Callable[[], ps.Dataset], message: str) -> None:
    """The error of each kind of unfit document states its rule, also in a loader."""
    dataset = made()
    with pytest.raises(ps.errors.UsageError, match=message):
        list(dataset)
    with ps.Loader(dataset) as loader, pytest.raises(ps.errors.UsageError, match=message):
        list(loader)


def test_planning_needs_a_fixed_order() -> None:
    """Lengths belong to positions, so a dataset with another order in each epoch is refused with a remedy."""
    documents_ = bare([1, 2, 3])
    with pytest.raises(ps.errors.GraphError, match="another order in every epoch"):
        documents_.shuffle().pack(4, lengths=[1, 2, 3])
    with pytest.raises(ps.errors.GraphError, match="in order"):
        documents_.filter(bool).pack(4, lengths=[1, 2, 3])
    assert len(documents_.shuffle().epoch(0).pack(6, lengths=[len(d) for d in documents_.shuffle().epoch(0)])) == 1


def test_sequences_of_one_cut_document_share_no_random_stream() -> None:
    """Planned sequences that begin with pieces of one long document draw different random numbers."""
    documents = ps.read([np.arange(64)], seed=3)
    sequences = documents.pack(8, lengths=[64]).random_map(lambda sequence, rng: (len(sequence), rng.random()))
    drawn = [number for _, number in sequences]
    assert len(drawn) == len(set(drawn)) == 8


def test_fill_is_for_leaves_that_are_packed() -> None:
    """A misspelt name is refused when the leaves are known, that of a meta leaf at once."""
    dataset = with_labels([3, 2])
    with pytest.raises(
        ps.errors.GraphError, match=r"fill must be for leaves that are packed, .*got fill for \['label'\]"
    ):
        list(dataset.pack(5, meta=["id"], fill={"label": -100}))
    with pytest.raises(ps.errors.GraphError, match=r"got fill for \['token'\]"):
        list(bare([3]).pack(5, fill={"token": -100}))
    with pytest.raises(ps.errors.UsageError, match=r"got fill for \['id'\], which meta names"):
        dataset.pack(5, meta=["id"], fill={"id": 0})


def test_documents_of_python_objects_are_refused() -> None:
    """The reason is the same on each path."""
    documents = ps.read([np.array([1, 2], object)] * 2)
    for packed in (documents.pack(4), documents.pack(4, lengths=[2, 2])):
        with pytest.raises(ps.errors.GraphError, match=r"takes arrays of numbers; a document has Python objects"):
            list(packed)
