"""Documents are assigned to sequences, and sequences filled, exactly as a plain implementation of the rules does it."""

import re
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.batching import OpenBins, PackingPlan, assign_best_fit, plan_packing
from penstock.batching._pack import JoinedDocuments, Rows, fill_rows, open_documents
from penstock.errors import UsageError


class Stream(NamedTuple):
    """Documents to assign, and the arguments of the assignment."""

    lengths: NDArray[np.int64]
    capacity: list[int]
    bins: int
    max_documents: int


class Expected(NamedTuple):
    """The expected assignment of a stream."""

    bins: list[int]
    closed: list[int]
    closed_before: list[int]
    still_open: dict[int, tuple[list[int], int]]


@st.composite
def streams(draw: st.DrawFn, most_features: int = 3) -> Stream:
    """Draw documents of few lengths, so that ties and full bins are common."""
    capacity = draw(st.lists(st.integers(1, 12), min_size=1, max_size=most_features))
    document = st.tuples(*(st.integers(0, room) for room in capacity)).filter(any)
    documents = draw(st.lists(document, max_size=60))
    lengths = np.array(documents, np.int64).reshape(len(documents), len(capacity))
    return Stream(lengths, capacity, draw(st.integers(1, 6)), draw(st.integers(0, 4)))


def oracle(stream: Stream) -> Expected:
    """Assign by looking at every open bin, as the rules are written."""
    bins: list[int] = []
    closed: list[int] = []
    closed_before: list[int] = []
    still_open: dict[int, tuple[list[int], int]] = {}

    def close(number: int, before: int) -> None:
        del still_open[number]
        closed.append(number)
        closed_before.append(before)

    def is_done(room: list[int], documents: int) -> bool:
        return not any(room) or documents == stream.max_documents

    opened = 0
    for document, lengths in enumerate(stream.lengths.tolist()):
        fitting = [
            (sum(room), number)
            for number, (room, _) in still_open.items()
            if all(length <= left for length, left in zip(lengths, room, strict=True))
        ]
        number = min(fitting)[1] if fitting else opened
        room, documents = still_open.get(number, (stream.capacity, 0))
        left = [before - length for before, length in zip(room, lengths, strict=True)]
        if not fitting:
            opened += 1
            if len(still_open) == stream.bins and not is_done(left, 1):
                close(min((sum(other), old) for old, (other, _) in still_open.items())[1], document)
        still_open[number] = left, documents + 1
        bins.append(number)
        if is_done(left, documents + 1):
            close(number, document + 1)
    return Expected(bins, closed, closed_before, still_open)


def assigned(stream: Stream, open_bins: OpenBins | None = None) -> Any:
    """Return the assignment of a stream."""
    return assign_best_fit(
        stream.lengths, stream.capacity, bins=stream.bins, max_documents=stream.max_documents, open_bins=open_bins
    )


@given(streams())
def test_documents_are_assigned_by_the_rules(stream: Stream) -> None:
    """Bins, the order and time of closing, and the open bins are those of a search over all open bins."""
    result, expected = assigned(stream), oracle(stream)
    assert expected.bins == result.bins.tolist()
    assert expected.closed == result.closed.tolist()
    assert expected.closed_before == result.closed_before.tolist()
    numbers = sorted(expected.still_open)
    assert numbers == result.still_open.tolist()
    assert [expected.still_open[number][0] for number in numbers] == result.open_bins.room.tolist()
    assert [expected.still_open[number][1] for number in numbers] == result.open_bins.documents.tolist()


@given(streams(), st.data())
def test_a_stream_may_be_assigned_in_parts(stream: Stream, data: st.DataObject) -> None:
    """Two calls, the second with the first one's open bins, assign as a single call does."""
    cut = data.draw(st.integers(0, len(stream.lengths)))
    whole = assigned(stream)
    first = assigned(stream._replace(lengths=stream.lengths[:cut]))
    second = assigned(stream._replace(lengths=stream.lengths[cut:]), first.open_bins)
    # The second call numbers the bins from 0: those still open, then new ones.
    opened = int(first.bins.max(initial=-1)) + 1
    numbers = np.concatenate([first.still_open, opened + np.arange(len(stream.lengths))])
    assert whole.bins.tolist() == [*first.bins, *numbers[second.bins]]
    assert whole.closed.tolist() == [*first.closed, *numbers[second.closed]]
    assert whole.closed_before.tolist() == [*first.closed_before, *(second.closed_before + cut)]
    assert whole.still_open.tolist() == numbers[second.still_open].tolist()
    assert whole.open_bins.room.tolist() == second.open_bins.room.tolist()
    assert whole.open_bins.documents.tolist() == second.open_bins.documents.tolist()


def test_many_open_bins() -> None:
    """With a hundred bins and many documents the rules are the same."""
    lengths = (np.arange(1200, dtype=np.int64) ** 2 * 7919 % 1999 + 1).reshape(-1, 1)
    stream = Stream(lengths, [2048], 100, 0)
    expected = oracle(stream)
    result = assigned(stream)
    assert expected.bins == result.bins.tolist()
    assert expected.closed == result.closed.tolist()


WRONG_ASSIGNMENTS: list[tuple[dict[str, Any], str]] = [
    ({"lengths": [3, 7]}, "lengths must be in [0, capacity] and not all 0; got [7] for document 1 with capacity [6]"),
    ({"lengths": [3, 0]}, "lengths must be in [0, capacity] and not all 0; got [0] for document 1"),
    ({"lengths": [3, -1]}, "lengths must be in [0, capacity] and not all 0; got [-1] for document 1"),
    ({"lengths": [[3, 2]]}, "lengths must have a column for each of the 1 capacities; got shape (1, 2)"),
    ({"lengths": [0.5]}, "lengths must be integers; got dtype float64"),
    ({"capacity": 0}, "capacity must be at least 1"),
    ({"capacity": [2**61, 2**61]}, "capacity must be at least 1, and below 2**62 in all"),
    ({"bins": 0}, "bins must be in [1, 2**31); got bins=0"),
    ({"max_documents": -1}, "max_documents must be at least 0; got -1"),
    ({"open_bins": OpenBins(np.array([[0]]), np.array([1]))}, "open_bins must be at most `bins` bins with room"),
    ({"open_bins": OpenBins(np.array([[7]]), np.array([1]))}, "open_bins must be at most `bins` bins with room"),
    ({"open_bins": OpenBins(np.ones((3, 1), int), np.ones(3, int)), "bins": 2}, "open_bins must be at most `bins`"),
    ({"open_bins": OpenBins(np.array([1]), np.array([1]))}, "open_bins must be at most `bins` bins with room"),
]


def test_wrong_assignments_are_refused() -> None:
    """A wrong argument is named, with its value."""
    for arguments, message in WRONG_ASSIGNMENTS:
        given_arguments: dict[str, Any] = {"lengths": [3], "capacity": 6, **arguments}
        with pytest.raises(UsageError, match=re.escape(message)):
            assign_best_fit(**given_arguments)


class Block(NamedTuple):
    """Documents, and rows to fill from them."""

    documents: list[NDArray[Any]]
    rows: list[list[tuple[int, int, int]]]
    capacity: int
    padding: int

    def plan(self) -> PackingPlan:
        """Return the rows as a plan."""
        pieces = np.array([piece for row in self.rows for piece in row], np.int64).reshape(-1, 3)
        bounds = np.cumsum([0, *map(len, self.rows)])
        return PackingPlan(pieces[:, 0], pieces[:, 1], pieces[:, 2], bounds)


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """Draw rows of pieces, empty ones too, of documents of some dtype."""
    name: str = draw(st.sampled_from(["u1", "<u2", ">i4", "i8", "f4", "c16"]))
    dtype = np.dtype(name)
    sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
    documents = [(np.arange(size) * 3 + 20 * number + 1).astype(dtype) for number, size in enumerate(sizes)]
    capacity = draw(st.integers(0, 12))
    rows: list[list[tuple[int, int, int]]] = []
    for _ in range(draw(st.integers(0, 5))):
        row: list[tuple[int, int, int]] = []
        left = capacity
        for _ in range(draw(st.integers(0, 4))):
            document = draw(st.integers(0, len(documents) - 1))
            offset = draw(st.integers(0, sizes[document]))
            length = draw(st.integers(0, min(left, sizes[document] - offset)))
            left -= length
            row.append((document, offset, length))
        rows.append(row)
    return Block(documents, rows, capacity, draw(st.integers(0, 120)))


def expected_rows(block: Block) -> tuple[list[list[Any]], list[list[int]], list[list[int]]]:
    """Return tokens, segment ids and positions of each row, put together token by token."""
    tokens: list[list[Any]] = []
    segments: list[list[int]] = []
    positions: list[list[int]] = []
    for row in block.rows:
        found = [
            (block.documents[document][offset + place].item(), number, place)
            for number, (document, offset, length) in enumerate(row, 1)
            for place in range(length)
        ]
        found += [(block.padding, 0, 0)] * (block.capacity - len(found))
        tokens.append([token for token, _, _ in found])
        segments.append([number for _, number, _ in found])
        positions.append([place for _, _, place in found])
    return tokens, segments, positions


@given(
    block=blocks(),
    cut=st.integers(0, 5),
    joined=st.booleans(),
    with_segments=st.booleans(),
    with_positions=st.booleans(),
)
def test_rows_hold_their_pieces(
    *, block: Block, cut: int, joined: bool, with_segments: bool, with_positions: bool
) -> None:
    """Every token, segment id and position is that of its piece, or padding, also if rows are filled in two parts."""
    shape = (len(block.rows), block.capacity)
    out = np.full(shape, 99, block.documents[0].dtype)
    segment_ids = np.full(shape, 99, np.int32) if with_segments else None
    positions = np.full(shape, 99, np.int32) if with_positions else None
    documents: list[NDArray[Any]] | JoinedDocuments = block.documents
    if joined:
        tokens = np.concatenate(block.documents, dtype=out.dtype)
        documents = JoinedDocuments(tokens, np.cumsum([0, *map(len, block.documents)]))
    opened = open_documents(documents, out.dtype)
    assert opened.lengths.tolist() == [*map(len, block.documents)]
    for rows in (slice(min(cut, len(out)), None), slice(0, cut)):
        numbers = (None if array is None else array[rows] for array in (segment_ids, positions))
        fill_rows(block.plan(), opened, Rows(out[rows], *numbers), first=rows.start, padding=block.padding)
    expected, segments, places = expected_rows(block)
    assert expected == out.tolist()
    assert segment_ids is None or segments == segment_ids.tolist()
    assert positions is None or places == positions.tolist()


@pytest.mark.parametrize("tokens", [40, 40_000])
def test_documents_may_be_in_any_memory(tokens: int, tmp_path: Any) -> None:
    """Strided, reversed, read-only, unaligned and mapped documents are copied correctly, small or large."""
    plain = np.arange(tokens, dtype=np.int32)
    unaligned = np.zeros(4 * tokens + 1, np.uint8)[1:].view(np.int32)
    unaligned[:] = plain
    frozen = plain.copy()
    frozen.flags.writeable = False
    mapped = np.memmap(tmp_path / "tokens", np.int32, "w+", shape=(tokens,))
    mapped[:] = plain
    documents = [plain, np.repeat(plain, 2)[::2], plain[::-1], frozen, unaligned, mapped]
    plan = plan_packing([tokens] * len(documents), tokens)
    out = np.empty((len(documents), tokens), np.int32)
    fill_rows(plan, open_documents(documents, out.dtype), Rows(out))
    assert [document.tolist() for document in documents] == out.tolist()


PLAN = PackingPlan(np.array([0, 1]), np.array([0, 1]), np.array([2, 2]), np.array([0, 2]))
DOCUMENTS = [np.arange(2, dtype=np.int32), np.arange(3, dtype=np.int32)]
OUT = np.zeros((1, 4), np.int32)
READ_ONLY = np.zeros((1, 4), np.int32)
READ_ONLY.flags.writeable = False


WRONG_ROWS: list[tuple[dict[str, Any], str]] = [
    ({"documents": DOCUMENTS[:1]}, "piece 1 must belong to one of the 1 documents; it belongs to document 1"),
    (
        {"documents": [*DOCUMENTS[:1], DOCUMENTS[1][:2]]},
        "piece 1 must be inside its document, number 1 of length 2; its offset is 1 and its length 2",
    ),
    (
        {"documents": [DOCUMENTS[0], DOCUMENTS[1].astype(np.int64)]},
        "a document must be an array of one axis and dtype int32; document 1 is ndarray of dtype int64",
    ),
    (
        {"documents": [DOCUMENTS[0].reshape(1, 2), DOCUMENTS[1]]},
        "document 0 is ndarray of dtype int32 and shape (1, 2)",
    ),
    ({"documents": [[1, 2], DOCUMENTS[1]]}, "document 0 is list. Convert it"),
    ({"documents": [np.ma.masked_array(DOCUMENTS[0], [True, False]), DOCUMENTS[1]]}, "document 0 is MaskedArray"),
    ({"documents": JoinedDocuments(np.arange(5), np.array([0, 2, 5]))}, "tokens must be a C-contiguous array"),
    (
        {"documents": JoinedDocuments(np.arange(5, dtype=np.int32), np.array([0, 2, 6]))},
        "document 1 must be inside the 5 tokens; it spans 2 to 6",
    ),
    (
        {"documents": JoinedDocuments(np.arange(5, dtype=np.int32), np.array([3, 2, 5]))},
        "document 0 must be inside the 5 tokens; it spans 3 to 2",
    ),
    ({"documents": JoinedDocuments(np.arange(5, dtype=np.int32), np.array([], int))}, "starts must have one value"),
    ({"tokens": np.zeros((1, 3), np.int32)}, "the pieces of row 0 must have at most 3 tokens"),
    (
        {"tokens": np.zeros((2, 4), np.int32)},
        "tokens must be of a dtype without references, with at most a row for each of the 1",
    ),
    ({"tokens": np.zeros((1, 4), object)}, "tokens must be of a dtype without references"),
    ({"tokens": np.zeros((1, 8), np.int32)[:, ::2]}, "tokens must be C-contiguous, writable and of shape (1, 4)"),
    ({"tokens": READ_ONLY}, "tokens must be C-contiguous, writable and of shape (1, 4)"),
    ({"segment_ids": np.zeros((1, 4), np.int64)}, "segment_ids must be C-contiguous, writable and of shape (1, 4)"),
    ({"positions": np.zeros((1, 5), np.int32)}, "positions must be C-contiguous, writable and of shape (1, 4)"),
    ({"padding": 0.5}, "padding must be a value of dtype int32; got padding=0.5"),
    ({"padding": 2**31}, "padding must be a value of dtype int32; got padding=2147483648"),
    (
        {"padding": 1e39, "tokens": np.zeros((1, 4), np.float32)},
        "padding must be a value of dtype float32; got padding=1e+39",
    ),
]


def test_wrong_rows_are_refused() -> None:
    """A wrong argument is named, with its value, and nothing is written."""
    OUT[...] = 7
    for arguments, message in WRONG_ROWS:
        given_arguments: dict[str, Any] = {"documents": DOCUMENTS, "tokens": OUT, **arguments}
        documents, padding = given_arguments.pop("documents"), given_arguments.pop("padding", 0)
        with pytest.raises(UsageError, match=re.escape(message)):
            fill_rows(PLAN, open_documents(documents, np.dtype(np.int32)), Rows(**given_arguments), padding=padding)
        assert (OUT == 7).all()


def test_a_plan_of_several_features_fills_one_at_a_time() -> None:
    """Segments are numbered alike in all features, though a piece may be empty in one."""
    plan = plan_packing(np.array([[2, 1], [1, 0], [1, 2]]), (4, 3))
    with pytest.raises(UsageError, match=r"Pass plan.feature\(number\)"):
        fill_rows(plan, open_documents(DOCUMENTS, OUT.dtype), Rows(OUT))
    ids = [np.empty((1, capacity), np.int32) for capacity in (4, 3)]
    for feature, array in enumerate(ids):
        documents = [np.zeros(size, np.uint8) for size in ([2, 1, 1], [1, 0, 2])[feature]]
        rows = Rows(np.empty(array.shape, np.uint8), array)
        fill_rows(plan.feature(feature), open_documents(documents, rows.tokens.dtype), rows)
    assert [array.tolist() for array in ids] == [[[1, 1, 2, 3]], [[1, 3, 3]]]
