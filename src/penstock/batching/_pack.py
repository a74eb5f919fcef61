"""Packing: the sequence of each document, and the tokens of sequences; the wrapper of the native packer.

`assign_best_fit` is pure, and can process a stream in parts: the open bins of one call are an argument of the next.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock import _native
from penstock._tree import is_array, is_masked
from penstock.batching._grouping import (
    Integers,
    Long,
    PackingPlan,
    Pieces,
    as_int64,
    check_capacity,
    concat_then_split,
    plan_of_sequences,
    split_documents,
)
from penstock.batching._leaf import number_as
from penstock.errors import UsageError

Capacity: TypeAlias = int | Sequence[int]
How: TypeAlias = Literal["best_fit", "split"]

# Sequences of 2,048 tokens with documents of lognormal lengths (mean 600, sigma 1, long ones split) are 98.0 % full
# with 4 open bins, 99.0 % with 8, 99.5 % with 32 or 64, and at most 99.6 % with any number. With sigma 0.7 and 64 bins
# they are 98.7 % full.
STREAMING_BINS: Final = 64

# A plan can look ahead: with 1,024 bins these sequences are 99.93 % full, and 99.82 % with sigma 0.7.
PLANNED_BINS: Final = 1024

_MAX_BINS: Final = 2**31 - 1


class OpenBins(NamedTuple):
    """Sequences that may still get documents, oldest first.

    Attributes:
        room: int64 (bins, features), the number of free tokens of each.
        documents: int64 (bins,), the number of documents of each.
    """

    room: NDArray[np.int64]
    documents: NDArray[np.int64]


class Assignment(NamedTuple):
    """The bins of documents. Bins are numbered from 0: first those that were open before, oldest first, then new ones.

    Attributes:
        bins: int64 (documents,), each document's bin.
        closed: int64 (closed,), the bins that closed, in the order of closing.
        closed_before: int64 (closed,), the number of documents that were assigned before the bin closed. A full bin
            closes right after its last document; a bin that makes room for another one closes right before the document
            that opens the other.
        still_open: int64 (open,), the bins that are open after the last document, oldest first.
        open_bins: the contents of the bins in `still_open`; an argument of the next call, which numbers them from 0.
    """

    bins: NDArray[np.int64]
    closed: NDArray[np.int64]
    closed_before: NDArray[np.int64]
    still_open: NDArray[np.int64]
    open_bins: OpenBins


class JoinedDocuments(NamedTuple):
    """Documents in one array: document i is `tokens[starts[i]:starts[i + 1]]`.

    Attributes:
        tokens: one axis, C-contiguous.
        starts: int64 (documents + 1,), never decreasing.
    """

    tokens: NDArray[Any]
    starts: NDArray[np.int64]


def assign_best_fit(
    lengths: Integers,
    capacity: Capacity,
    *,
    bins: int = STREAMING_BINS,
    max_documents: int = 0,
    open_bins: OpenBins | None = None,
) -> Assignment:
    """Return the bin of each document, assigned one after another, with at most `bins` bins open at a time.

    A document fits into a bin that has room for every feature. Among the open bins that it fits into, it is assigned to
    the one with the least room, the sum over features; ties go to the oldest bin. If it fits into none, it opens a new
    bin; if `bins` are open already, the one with the least room closes first, and again ties go to the oldest. A bin
    that is full in all features, or has `max_documents`, closes at once. A new bin that its first document fills closes
    no other bin. (Best fit: Johnson, 1974. The bound on open bins, and the choice of the bin that closes, are those of
    bounded-space bin packing: Csirik and Johnson, 1990.)

    With 64 bins a document takes about 60 ns, and each call as long as 300 documents more, so pass many documents at
    once. A call with a thousand documents or more releases the GIL.

    Args:
        lengths: (documents,), or (documents, features) if documents have several lengths: each in [0, capacity],
            and at least one length of a document above 0. Split or drop longer documents before, and drop empty ones
            (`split_documents`).
        capacity: the capacity of a bin, at least 1; one for each feature.
        bins: the largest number of open bins, from 1 to 2**31 - 1.
        max_documents: the largest number of documents of a bin; 0 for any number.
        open_bins: the bins that are open already: `open_bins` of the last call's result. Default: none.

    Raises:
        UsageError: an argument is invalid.

    Example:
        >>> first = assign_best_fit([3, 2, 2], 5)
        >>> first.bins.tolist(), first.closed.tolist(), first.still_open.tolist()
        ([0, 0, 1], [0], [1])
        >>> assign_best_fit([3], 5, open_bins=first.open_bins).closed.tolist()
        [0]
    """
    rooms = _rooms(capacity)
    table = as_int64("lengths", lengths)
    table = table.reshape(-1, 1) if table.ndim == 1 else table
    if rooms.ndim != 1 or rooms.size < 1 or rooms.min() < 1 or rooms.sum(dtype=np.float64) >= 2**62:
        raise UsageError(
            f"capacity must be at least 1, and below 2**62 in all; got {capacity!r}. Pass numbers of tokens."
        )
    if table.ndim != 2 or table.shape[1] != rooms.size:
        raise UsageError(
            f"lengths must have a column for each of the {rooms.size} capacities; got shape {np.shape(lengths)}. "
            "Give one length per document and feature."
        )
    if not 1 <= bins <= _MAX_BINS:
        raise UsageError(f"bins must be in [1, 2**31); got bins={bins!r}. Omit it for the default.")
    if max_documents < 0:
        raise UsageError(f"max_documents must be at least 0; got {max_documents!r}. Pass 0 for any number.")
    packer = _native.BestFit(rooms, bins, max_documents)
    if open_bins is not None:
        _open(packer, open_bins)
    return _assign(packer, table, rooms)


def _rooms(capacity: Capacity) -> NDArray[np.int64]:
    return as_int64("capacity", [capacity] if isinstance(capacity, (int, np.integer)) else capacity)


def _open(packer: _native.BestFit, open_bins: OpenBins) -> None:
    try:
        packer.open(as_int64("room", open_bins.room), as_int64("documents", open_bins.documents))
    except (TypeError, ValueError):
        raise UsageError(
            "open_bins must be at most `bins` bins with room, within the capacity, for another document; got room "
            f"{open_bins.room!r} and documents {open_bins.documents!r}. Pass those of the last call with the "
            "same arguments."
        ) from None


def _assign(packer: _native.BestFit, lengths: NDArray[np.int64], capacity: NDArray[np.int64]) -> Assignment:
    bins, closed, closed_before = (np.empty(len(lengths), np.int64) for _ in range(3))
    try:
        count = packer.assign(lengths, bins, closed, closed_before)
    except IndexError:
        document = int(((lengths < 0) | (lengths > capacity)).any(axis=1).argmax())
        if (lengths >= 0).all() and (lengths <= capacity).all():
            document = int((lengths == 0).all(axis=1).argmax())
        raise UsageError(
            f"lengths must be in [0, capacity] and not all 0; got {lengths[document].tolist()} for document {document} "
            f"with capacity {capacity.tolist()}. Split or drop long documents before, and drop empty ones."
        ) from None
    still_open, documents = (np.empty(len(packer), np.int64) for _ in range(2))
    room = np.empty((len(packer), len(capacity)), np.int64)
    packer.read(still_open, documents, room)
    # Copies, so that a few closed bins don't keep memory for all documents.
    return Assignment(bins, closed[:count].copy(), closed_before[:count].copy(), still_open, OpenBins(room, documents))


def plan_packing(
    lengths: Integers,
    capacity: Capacity,
    *,
    how: How = "best_fit",
    bins: int = PLANNED_BINS,
    long: Long = "split",
    max_documents: int = 0,
) -> PackingPlan:
    """Return the whole packing of documents whose lengths are known.

    "best_fit" keeps documents whole. It sorts each `bins` consecutive documents by length, longest first, and assigns
    them as `assign_best_fit` does, which leaves hardly any room free. In a sequence the documents keep their order, and
    sequences are in the order of their first documents. "split" concatenates documents and cuts every `capacity`
    tokens, so that only the last sequence has free room.

    Args:
        lengths: (documents,), or (documents, features) if documents have several lengths; none negative. Empty
            documents are left out.
        capacity: the capacity of a sequence, at least 1; one for each feature.
        how: "best_fit" or "split", which takes one length per document.
        bins: for "best_fit", the number of sequences open at once, and of documents sorted together. A larger number
            leaves less room free, and combines documents that are further apart. Default: 1,024.
        long: for "best_fit", the handling of documents over the capacity: "split" cuts them every `capacity` tokens, if
            they have one length; "drop" leaves them out.
        max_documents: for "best_fit", the largest number of pieces of a sequence; 0 for any number.

    Raises:
        UsageError: an argument is invalid.

    Example:
        >>> plan = plan_packing([5, 3, 2, 4], 6)
        >>> [plan.document[first:last].tolist() for first, last in zip(plan.bounds, plan.bounds[1:])]
        [[0], [1], [2, 3]]
        >>> plan_packing([5, 3, 2, 4], 6, how="split").length.tolist()
        [5, 1, 2, 2, 2, 2]
    """
    if how == "split":
        if not isinstance(capacity, (int, np.integer)):
            raise UsageError(f"how='split' takes one capacity; got {capacity!r}. Use how='best_fit' for features.")
        placed = concat_then_split(lengths, capacity)
        count = int(placed.sequence[-1]) + 1 if len(placed.sequence) else 0
        return plan_of_sequences(Pieces(*placed[:3]), placed.sequence, count)
    if how != "best_fit":
        raise UsageError(f"how must be 'best_fit' or 'split'; got how={how!r}. Choose one of them.")
    pieces = whole_pieces(lengths, capacity, long)
    order = _longest_first(pieces.length, bins)
    assigned = assign_best_fit(pieces.length[order], capacity, bins=bins, max_documents=max_documents).bins
    count = int(assigned.max(initial=-1)) + 1
    sequence = np.empty_like(assigned)
    sequence[order] = assigned
    return plan_of_sequences(pieces, _by_first_piece(sequence, count), count)


def whole_pieces(lengths: Integers, capacity: Capacity, long: Long) -> Pieces:
    """Return the pieces of documents, none longer than `capacity`; their lengths have the same axes as `lengths`.

    Raises:
        UsageError: as for `plan_packing`.
    """
    if isinstance(capacity, (int, np.integer)) and np.ndim(lengths) == 1:
        return split_documents(lengths, capacity, long=long)
    table = as_int64("lengths", lengths)
    rooms = _rooms(capacity)
    if table.ndim != 2 or table.shape[1:] != rooms.shape or (table.size and table.min() < 0):
        raise UsageError(
            f"lengths must have a column for each capacity, and no negative value; got shape {table.shape} with "
            f"capacity {capacity!r}. Give one length per document and feature."
        )
    for room in rooms.tolist():
        check_capacity(room)
    fits = (table <= rooms).all(axis=1)
    if long == "split" and not fits.all():
        first = int(fits.argmin())
        raise UsageError(
            f"a document with several lengths cannot be split; document {first} has {table[first].tolist()} with "
            f"capacity {rooms.tolist()}. Pass long='drop', or shorten it in .map."
        )
    document = np.flatnonzero(fits & table.any(axis=1))
    return Pieces(document, np.zeros_like(document), table[document])


def _longest_first(lengths: NDArray[np.int64], window: int) -> NDArray[np.int64]:
    """Return the order that sorts each `window` consecutive documents by length, longest first; it is stable."""
    needed = lengths if lengths.ndim == 1 else lengths.sum(axis=1)
    window = max(1, min(window, len(needed)))
    whole = len(needed) // window * window
    order = np.argsort(-needed[:whole].reshape(-1, window), axis=1, kind="stable")
    order += np.arange(0, whole, window)[:, np.newaxis]
    rest = whole + np.argsort(-needed[whole:], kind="stable")
    return np.concatenate([order.reshape(-1), rest])


def _by_first_piece(sequence: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return each piece's sequence, with the sequences renumbered in the order of their first pieces."""
    first = np.empty(count, np.int64)
    first[sequence[::-1]] = np.arange(len(sequence) - 1, -1, -1)  # of equal indices, the last one counts
    number = np.empty(count, np.int64)
    number[np.argsort(first)] = np.arange(count)
    return number[sequence]


class Documents(NamedTuple):
    """Documents of one dtype, with their memory, from which rows are filled.

    Attributes:
        opened: the memory.
        dtype: the dtype of all tokens.
        lengths: int64 (documents,), the number of tokens of each.
    """

    opened: _native.Documents
    dtype: np.dtype[Any]
    lengths: NDArray[np.int64]


def open_documents(documents: Sequence[NDArray[Any]] | JoinedDocuments, dtype: np.dtype[Any]) -> Documents:
    """Return documents as `fill_rows` takes them; each array is looked at once.

    Args:
        documents: arrays with one axis, or all in one array. Their memory must stay where it is.
        dtype: the dtype of all of them.

    Raises:
        UsageError: one of them is no such array.

    Example:
        >>> open_documents([np.arange(2), np.arange(3)], np.dtype(int)).lengths.tolist()
        [2, 3]
    """
    if isinstance(documents, JoinedDocuments):
        opened = _opened_joined(documents, dtype)
    else:
        opened = _opened_separate(documents if isinstance(documents, list) else list(documents), dtype)
    lengths = np.empty(len(opened), np.int64)
    opened.lengths(lengths)
    return Documents(opened, dtype, lengths)


class Rows(NamedTuple):
    """Arrays with a row for each sequence, all (rows, capacity) and C-contiguous.

    Attributes:
        tokens: of any dtype without references.
        segment_ids: int32, to be filled with the number of each token's piece in its row, from 1, and 0 for padding.
            Empty pieces count.
        positions: int32, to be filled with each token's place in its piece, from 0, and 0 for padding.
    """

    tokens: NDArray[Any]
    segment_ids: NDArray[np.int32] | None = None
    positions: NDArray[np.int32] | None = None


def fill_rows(plan: PackingPlan, documents: Documents, out: Rows, *, first: int = 0, padding: float = 0) -> None:
    """Write sequences of a plan into rows.

    No token is converted. Every value of the rows is overwritten. Copies of large blocks release the GIL.

    Args:
        plan: the plan; its documents are indices into `documents`.
        documents: those of `open_documents`, with the dtype of the rows' tokens. They must not overlap the rows.
        out: the rows.
        first: the sequence of the first row; the next ones follow.
        padding: the token after the last piece of a row; a value of the dtype.

    Raises:
        UsageError: an argument is invalid, a piece is not inside its document, or a row's pieces are longer than the
            row. Then nothing was written.

    Example:
        >>> plan = plan_packing([2, 3, 1], 4)
        >>> documents = open_documents([np.arange(n, dtype=np.uint16) + 7 for n in (2, 3, 1)], np.dtype(np.uint16))
        >>> out = Rows(np.empty((2, 4), np.uint16), np.empty((2, 4), np.int32))
        >>> fill_rows(plan, documents, out)
        >>> out.tokens.tolist(), out.segment_ids.tolist()
        ([[7, 8, 0, 0], [7, 8, 9, 7]], [[1, 1, 0, 0], [1, 1, 1, 2]])
    """
    _check_rows(plan, first, out)
    dtype = out.tokens.dtype
    token = padding_token(padding, dtype)
    if documents.dtype != dtype:
        raise UsageError(
            f"documents must have the dtype of out, {dtype}; got {documents.dtype}. Create out with their dtype."
        )
    bounds = plan.bounds[first : first + len(out.tokens) + 1]
    pieces = plan.document, plan.offset, plan.length, bounds
    try:
        _native.fill_rows(documents.opened, *pieces, out.tokens, token, *out[1:])
    except UsageError:
        raise
    except (IndexError, ValueError) as error:
        raise UsageError(f"{error}. Pass the documents of the plan, and rows of its capacity.") from None


def documents_taken(documents: JoinedDocuments, numbers: NDArray[np.int64]) -> JoinedDocuments:
    """Return some documents, in memory of their own.

    Example:
        >>> documents_taken(JoinedDocuments(np.arange(4), np.array([0, 1, 2, 4])), np.array([2, 0])).tokens.tolist()
        [2, 3, 0]
    """
    lengths = np.diff(documents.starts)[numbers]
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    tokens = np.empty(int(starts[-1]), documents.tokens.dtype)
    # All of them are the pieces of one row.
    pieces = numbers, np.zeros_like(numbers), lengths, np.array([0, len(numbers)])
    padding = padding_token(0, tokens.dtype)
    _native.fill_rows(_opened_joined(documents, tokens.dtype), *pieces, tokens.reshape(1, -1), padding, None, None)
    return JoinedDocuments(tokens, starts)


def _opened_separate(documents: list[NDArray[Any]], dtype: np.dtype[Any]) -> _native.Documents:
    opened = _native.Documents(documents, dtype, np.ndarray, np.memmap)
    if len(opened) == len(documents):
        return opened
    contiguous = [_contiguous(document, number, dtype) for number, document in enumerate(documents)]
    return _native.Documents(contiguous, dtype, np.ndarray, np.memmap)


def _opened_joined(documents: JoinedDocuments, dtype: np.dtype[Any]) -> _native.Documents:
    tokens = documents.tokens
    if tokens.dtype != dtype or tokens.ndim != 1 or not tokens.flags.c_contiguous:
        raise UsageError(
            f"tokens must be a C-contiguous array of one axis and dtype {dtype}; got dtype {tokens.dtype} and shape "
            f"{tokens.shape}. Convert them."
        )
    try:
        return _native.Documents(tokens, as_int64("starts", documents.starts))
    except UsageError:
        raise
    except (IndexError, ValueError) as error:
        raise UsageError(f"{error}. Pass the bounds of each document.") from None


def _contiguous(document: object, number: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    if not is_array(document) or is_masked(document) or document.dtype != dtype or document.ndim != 1:
        form = f" of dtype {document.dtype} and shape {document.shape}" if is_array(document) else ""
        raise UsageError(
            f"a document must be an array of one axis and dtype {dtype}; document {number} is "
            f"{type(document).__qualname__}{form}. Convert it."
        )
    return np.ascontiguousarray(np.asarray(document))


def _check_rows(plan: PackingPlan, first: int, out: Rows) -> None:
    tokens = out.tokens
    if plan.length.ndim != 1:
        raise UsageError(
            "rows are filled with one feature of a plan; got a plan with several. Pass plan.feature(number)."
        )
    if tokens.dtype.hasobject or tokens.ndim != 2 or not 0 <= first <= len(plan) - len(tokens):
        raise UsageError(
            f"tokens must be of a dtype without references, with at most a row for each of the {len(plan)} sequences "
            f"from {first} on; got dtype {tokens.dtype} and shape {tokens.shape}. Make it "
            "numpy.empty((rows, capacity), dtype)."
        )
    for name, array in zip(Rows._fields, out, strict=True):
        if array is None:
            continue
        right = array is tokens or (array.dtype == np.int32 and array.dtype.isnative and array.shape == tokens.shape)
        if not (right and array.flags.c_contiguous and array.flags.writeable):
            raise UsageError(
                f"{name} must be C-contiguous, writable and of shape {tokens.shape}, as tokens, and ids and positions "
                f"int32; got dtype {array.dtype}, shape {array.shape}. Make it numpy.empty({tokens.shape}, …)."
            )


def padding_token(padding: float, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the padding as an array of one token; only floats may be rounded.

    Raises:
        UsageError: it is no value of the dtype.
    """
    token = number_as(padding, dtype)
    if token is None:
        raise UsageError(f"padding must be a value of dtype {dtype}; got padding={padding!r}. Choose another.")
    return token
