"""The open sequences while documents are packed, block by block.

The definition (`Pack.in_order`) assigns one piece at a time. Here a block of documents is cut into
pieces in one call, the pieces are assigned to sequences by the native best fit (`batching._pack`) or by arithmetic
("split"), and each closed sequence is filled from arrays of piece, offset and length. Pieces of sequences that stay
open are kept for the next block, with the documents that they are of and the tokens of those.

Where a batch is above (`batched`), its sequences are filled into memory of whole batches, those of the next block
after those of the last one: then a batch is rows of the filled memory, and nothing is copied.

Most tokens after sequences are never requested, so a block keeps a log of the pieces and the sequences that they went
to, as arrays (`TokenLog`). A request for a token replays the log from the last requested token on; the pieces of
sequences that stay open are shared by both.
"""

import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, SupportsIndex, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from penstock._graph import Element, nested_ordinals
from penstock._streaming._stage import (
    ORDINAL,
    Chunk,
    Lazy,
    Picked,
    Provenance,
    Token,
    are_light,
    check_enough,
    is_compound,
    no_provenance,
)
from penstock.batching import (
    Columns,
    Documents,
    Form,
    OpenBins,
    Packing,
    PackingPlan,
    Pieces,
    assign_best_fit,
    concat_then_split,
    documents_of,
    empty_columns,
    fill_columns,
    form_of,
    kept,
    lengths_of,
    max_rows,
    meta_columns,
    plan_of_sequences,
    row_bytes,
    rows_of,
    shown,
    together,
    whole_pieces,
)
from penstock.errors import GraphError, StateError

Integers: TypeAlias = NDArray[np.int64]
Reproduce: TypeAlias = Callable[[Sequence[Token]], tuple[list[Element], Provenance]]


class Intake(NamedTuple):
    """A block of documents to pack."""

    elements: Sequence[Element]
    provenance: Provenance
    starts: Sequence[Token]
    afters: Sequence[Token]
    consumed: int = 0
    """The number of values of the first document that are in sequences already."""

    def one(self, number: int) -> "Intake":
        """Return a block of one of the documents."""
        cut = slice(number, number + 1)
        consumed = self.consumed if number == 0 else 0
        return Intake(self.elements[cut], self.provenance[cut], self.starts[cut], self.afters[cut], consumed)


OpenTokens: TypeAlias = list[tuple[Token, ...]]
"""For each open sequence, oldest first, the start of the document, the offset and the length of each piece."""


_SHARED_BYTES: Final = 1 << 26  # memory of a batch; a larger one is copied, since an epoch may end long before its end
_FEW: Final = 4  # sequences; if more close between two tokens, the pieces of those are left out


class Next(NamedTuple):
    """The next document: `tokens[number]` is its start, and, if it is cut, `afters[number]` its after."""

    tokens: Sequence[Token]
    number: int
    consumed: int = 0
    afters: Sequence[Token] = ()

    def token(self) -> tuple[Token, ...]:
        """Return the first three parts of the stage's token: the place at which reading continues."""
        return (self.tokens[self.number], self.consumed, self.afters[self.number] if self.consumed else None)


class Assigned(NamedTuple):
    """The sequences of the pieces of a block's documents."""

    pieces: Pieces
    sequence: Integers
    """The sequence of each piece."""
    closed: Integers
    """The numbers of the sequences that closed, in order."""
    closed_before: Integers
    """For each of these, the number of pieces that were assigned before it closed."""
    fates: Integers
    """For each sequence, its number among those open at the end, or -1 - its number among the closed ones."""


class TokenLog:
    """The log of one block of documents, from which the tokens after its sequences are made, in any thread.

    Args:
        before: the next document before the block.
        opened: returns the sequences that were open before the block, which have the first numbers.
        block: the pieces of the block, and their sequences.
        tokens: the starts and the afters of the block's documents.
    """

    def __init__(
        self,
        before: Next,
        opened: Callable[[], OpenTokens],
        block: Assigned,
        tokens: tuple[Sequence[Token], Sequence[Token]],
    ) -> None:
        self._before = before
        self._opened = opened
        self._block = block
        self._starts, self._afters = tokens
        self._lock = threading.Lock()
        # The number of closed sequences that were replayed; -1 before the first request, and after an interrupted one.
        self._closed = -1
        self._token: Token = None

    @property
    def was_requested(self) -> bool:
        """Whether a token was requested."""
        return self._closed >= 0

    def _rewind(self) -> None:
        self._closed = -1
        self._document, self._offset, self._length = as_lists(self._block.pieces)
        self._sequence = self._block.sequence.tolist()
        self._closes, self._closed_before = self._block.closed.tolist(), self._block.closed_before.tolist()
        self._open = dict(enumerate(self._opened()))  # in the order of opening
        self._pieces = 0  # number of pieces that were replayed
        self._closed = 0

    def after(self, number: int) -> Token:
        """Return the token after the block's closed sequence `number`."""
        with self._lock:
            return self._after(number)

    def _after(self, number: int) -> Token:
        if not 0 <= self._closed <= number + 1:
            self._rewind()
        closed = self._closed
        if closed <= number:
            self._closed = -1
            if number - closed < _FEW:
                for closing in range(closed, number + 1):
                    self._take(self._closed_before[closing])
                    self._open.pop(self._closes[closing])
            else:
                self._take_lasting(self._closed_before[number], number)
                for closing in range(closed, number + 1):
                    self._open.pop(self._closes[closing], None)
            self._token = (*self._next().token(), tuple(self._open.values()))
            self._closed = number + 1
        return self._token

    def end(self) -> OpenTokens:
        """Return the open sequences at the block's end, if a token was requested."""
        with self._lock:
            if self._closed < 0:
                self._rewind()
            if self._closes:
                self._after(len(self._closes) - 1)
            closed, self._closed = self._closed, -1
            self._take(len(self._sequence))
            self._closed = closed
            return list(self._open.values())

    def _take(self, stop: int) -> None:
        """Add the pieces up to `stop` to their sequences."""
        cut = slice(self._pieces, stop)
        self._add(self._sequence[cut], self._document[cut], self._offset[cut], self._length[cut])
        self._pieces = stop

    def _take_lasting(self, stop: int, number: int) -> None:
        """Add the pieces up to `stop` whose sequences stay open until the closed sequence `number` has closed."""
        block, cut = self._block, slice(self._pieces, stop)
        fates = block.fates[block.sequence[cut]]
        lasting = np.flatnonzero((fates >= 0) | (fates < -1 - number)) + self._pieces
        pieces = Pieces(*(column[lasting] for column in block.pieces))
        self._add(block.sequence[lasting].tolist(), *as_lists(pieces))
        self._pieces = stop

    def _add(self, sequences: list[int], documents: list[int], offsets: list[int], lengths: list[Token]) -> None:
        opened, starts = self._open, self._starts
        for number, document, offset, length in zip(sequences, documents, offsets, lengths, strict=True):
            opened[number] = (*opened.get(number, ()), starts[document], offset, length)

    def _next(self) -> Next:
        """Return the next document."""
        document, pieces = self._document, self._pieces
        if pieces == 0:
            return self._before
        last = document[pieces - 1]
        if pieces < len(document) and document[pieces] == last:
            return Next(self._starts, last, self._offset[pieces], self._afters)
        return Next(self._afters, last)


def as_lists(pieces: Pieces) -> tuple[list[int], list[int], list[Token]]:
    """Return the columns of pieces as lists; several lengths of a piece are a tuple."""
    lengths: list[Token] = pieces.length.tolist()
    if pieces.length.ndim == 2:
        lengths = [tuple(row) for row in lengths]
    return pieces.document.tolist(), pieces.offset.tolist(), lengths


class _Open(NamedTuple):
    """Open sequences: their documents, and the pieces of these in the order of assignment."""

    elements: Sequence[Element]
    provenance: Provenance
    starts: list[tuple[Sequence[Token], int]]
    """The start of each document, as a sequence of tokens and an index."""
    pieces: Pieces
    sequence: Integers
    """The open sequence of each piece; 0 is the oldest."""
    bins: OpenBins

    def tokens(self) -> Callable[[], OpenTokens]:
        """Return a function that returns the pieces of each sequence, for a token, and keeps no document."""
        return functools.partial(_open_tokens, len(self.bins.documents), self.starts, self.pieces, self.sequence)


def _open_tokens(
    sequences: int, starts: list[tuple[Sequence[Token], int]], pieces: Pieces, sequence: Integers
) -> OpenTokens:
    found: list[tuple[Token, ...]] = [()] * sequences
    document, offset, length = as_lists(pieces)
    for number, at, *place in zip(sequence.tolist(), document, offset, length, strict=True):
        tokens, index = starts[at]
        found[number] += (tokens[index], *place)
    return found


class _Placed(NamedTuple):
    """Assigned pieces. Sequences are numbered from 0, and those that were open before come first."""

    pieces: Pieces
    sequence: Integers
    closed: Integers
    closed_before: Integers
    still_open: Integers
    bins: OpenBins


class Packer:
    """The open sequences, and the tokens of their documents.

    Args:
        packing: the verb's arguments.
        reproduce: computes the documents of open sequences again.
        token: the stage's token at which to begin.
        batched: the number of sequences of a batch above, which then are rows of one array; 0 if there is no batch.
    """

    def __init__(self, packing: Packing, reproduce: Reproduce, token: Token, batched: int) -> None:
        self._packing = packing
        self._batched = batched
        self._memory: _Memory | None = None
        self._open = _reopened(packing, reproduce, token[3])
        self._form = form_of(packing, self._open.elements[0]) if self._open.elements else None
        self._next = Next(token[:1], 0, token[1], token[2:3])
        self._log: TokenLog | None = None
        self._are_light = True  # whether tokens of documents are
        self._last: Callable[[], Token] = lambda: token

    def pack(self, intake: Intake) -> Iterator[Chunk]:
        """Pack documents, and return the sequences that close.

        Raises:
            GraphError: a document can't be packed; then none of the block is packed.
        """
        held = self._open
        form = form_of(self._packing, shown(intake.elements, [0])[0]) if self._form is None else self._form
        read = together([held.elements, intake.elements])
        documents = documents_of(form, read)
        lengths = lengths_of(self._packing, form, documents)[len(held.elements) :]
        placed = _place(self._packing, lengths, intake.consumed, held)
        self._form = form
        return self._close(form, intake, _Read(read, documents), placed)

    def flush(self) -> Iterator[Chunk]:
        """Return the open sequences, oldest first, after the last document."""
        if self._form is None:
            return iter(())
        held, none = self._open, np.empty(0, np.int64)
        everything = np.arange(len(held.bins.documents))
        nothing = Pieces(none, none, held.pieces.length[:0])
        bins = OpenBins(held.bins.room[:0], none)
        placed = _Placed(nothing, none, everything, np.zeros_like(everything), none, bins)
        read = _Read(held.elements, documents_of(self._form, held.elements))
        return self._close(self._form, Intake([], no_provenance(), (), ()), read, placed)

    def _close(self, form: Form, intake: Intake, read: "_Read", placed: _Placed) -> Iterator[Chunk]:
        """Return the sequences that closed, and keep the others open."""
        held = self._open
        fates = _fates(placed)
        log = self._begin_log(intake, placed, fates)
        self._are_light = self._are_light and are_light(intake.starts) and are_light(intake.afters)
        provenance = np.concatenate([held.provenance, intake.provenance])
        new = placed.pieces._replace(document=placed.pieces.document + len(held.elements))
        pieces = Pieces(*map(np.concatenate, zip(held.pieces, new, strict=True)))
        fate = fates[np.concatenate([held.sequence, placed.sequence])]
        stays = fate >= 0
        of_documents = read.elements, provenance, held.starts, intake.starts
        open_pieces = Pieces(*(part[stays] for part in pieces))
        self._open = _kept_open(of_documents, open_pieces, fate[stays], placed.bins)
        count = len(placed.closed)
        plan = plan_of_sequences(Pieces(*(part[~stays] for part in pieces)), -1 - fate[~stays], count)
        before = self._last
        if count:
            self._last = lambda: log.after(count - 1)

        def token(number: int) -> Token:
            return log.after(number - 1) if number else before()

        tokens = Lazy(count + 1, token, are_light=self._are_light)
        closed = _Closed(form, plan, read, provenance, _located(self._packing, plan, provenance), tokens)
        memory = self._memory = _Memory(self._packing, form, self._batched) if self._memory is None else self._memory
        return (_chunk(self._packing, closed, span, memory.take(span)) for span in memory.spans(count))

    def _begin_log(self, intake: Intake, placed: _Placed, fates: Integers) -> TokenLog:
        """Return the log from which the tokens of this block's sequences are made."""
        opened = self._open.tokens()
        if self._log is not None and self._log.was_requested:
            opened = functools.partial(list[tuple[Token, ...]], self._log.end())  # shares the tokens that were made
        block = Assigned(placed.pieces, placed.sequence, placed.closed, placed.closed_before, fates)
        self._log = TokenLog(self._next, opened, block, (intake.starts, intake.afters))
        if len(placed.sequence):
            self._next = Next(intake.afters, int(placed.pieces.document[-1]))
        return self._log


class _Read(NamedTuple):
    """Documents of a block, those of open sequences first."""

    elements: Sequence[Element]
    documents: list[Documents]
    """Of each feature, with their memory."""


class _Closed(NamedTuple):
    """The sequences of a block that closed."""

    form: Form
    plan: PackingPlan
    read: _Read
    provenance: Provenance
    """Of the documents."""
    located: Provenance
    """Of the sequences."""
    tokens: Sequence[Token]
    """Those before each sequence, and after the last one."""


class _Memory:
    """The memory into which sequences are filled: several in one piece, and whole batches if a batch is above.

    Args:
        packing: the verb's arguments.
        form: the form of the documents.
        batched: as for `Packer`.
    """

    def __init__(self, packing: Packing, form: Form, batched: int) -> None:
        self._new = functools.partial(empty_columns, packing, form)
        self._most = max_rows(packing, form)
        self._shares = 0 < batched * row_bytes(packing, form) <= _SHARED_BYTES and not packing.meta
        if self._shares:
            self._most = max(self._most // batched, 1) * batched
        self._columns: Columns | None = None  # those with free rows
        self._row = 0  # the first free one

    def spans(self, count: int) -> Iterator[tuple[int, int]]:
        """Yield the spans of `count` sequences each of which is filled at once: `take` comes before the next."""
        first = 0
        while first < count:
            stop = min(first + self._most - self._row, count)
            yield first, stop
            first = stop

    def take(self, span: tuple[int, int]) -> tuple[Columns, int]:
        """Return the arrays into which sequences [first, stop) are filled, and the row of the first one."""
        count = span[1] - span[0]
        columns, row = self._columns, self._row
        if columns is None:
            columns = self._new(self._most if self._shares else count)
        self._row = (row + count) % self._most if self._shares else 0
        self._columns = columns if self._row else None
        return columns, row


def _chunk(packing: Packing, closed: _Closed, span: tuple[int, int], memory: tuple[Columns, int]) -> Chunk:
    """Return the sequences [first, stop) of those that closed, filled into rows of some arrays."""
    (first, stop), (columns, row) = span, memory
    count = stop - first
    form, plan, read, provenance, located, tokens = closed
    own = {name: column[row : row + count] for name, column in columns.items()}
    fill_columns(packing, form, (plan, first), read.documents, own)
    bounds = plan.bounds[first : stop + 1]
    rows = Lazy(count, lambda index: provenance[plan.document[bounds[index] : bounds[index + 1]]])
    starts, afters = Picked(tokens, range(first, stop)), Picked(tokens, range(first + 1, stop + 1))
    if packing.meta:
        chosen = kept(read.elements, plan.document[bounds[0] : bounds[-1]].tolist())  # their meta leaves are delivered
        elements = rows_of(own | meta_columns(packing, bounds - bounds[0], chosen))
        return Chunk(elements, located[first:stop], starts, afters, rows)
    # A batch of rows of the arrays never reads them as elements.
    return Chunk(cast("list[Element]", _Rows(own, count)), located[first:stop], starts, afters, rows, columns, row)


def _located(packing: Packing, plan: PackingPlan, provenance: Provenance) -> Provenance:
    """Return the provenance of a plan's sequences."""
    firsts = plan.bounds[:-1]
    located = provenance[plan.document[firsts]]
    # A document that is cut begins several sequences, which must not share their random streams.
    located[:, ORDINAL] = nested_ordinals(located[:, ORDINAL], plan.offset[firsts] // packing.features[0][1])
    return located


class _Rows(Sequence[Element]):
    """The sequences of a chunk, made from its columns on first use."""

    def __init__(self, columns: dict[str, Any], count: int) -> None:
        self._columns = columns
        self._count = count

    def __len__(self) -> int:
        return self._count

    @functools.cached_property
    def _rows(self) -> list[Element]:
        return rows_of(self._columns)

    def __getitem__(self, index: SupportsIndex | slice) -> Element:
        return self._rows[index]

    def __iter__(self) -> Iterator[Element]:
        return iter(self._rows)


def _fates(placed: _Placed) -> Integers:
    """Return each sequence's number among the open ones, or -1 - its number among the closed ones."""
    fates = np.empty(len(placed.closed) + len(placed.still_open), np.int64)
    fates[placed.still_open] = np.arange(len(placed.still_open))
    fates[placed.closed] = -1 - np.arange(len(placed.closed))
    return fates


def _place(packing: Packing, lengths: Integers, consumed: int, held: _Open) -> _Placed:
    """Assign the pieces of documents; `consumed` values of the first document are in sequences already."""
    capacity = packing.capacity
    if consumed:
        check_enough(consumed, int(lengths[0].min()), "a document that is cut")
        lengths = lengths.copy()
        lengths[0] -= consumed
    if packing.how == "best_fit":
        pieces = whole_pieces(lengths, capacity, packing.long)
        found = assign_best_fit(pieces.length, capacity, bins=packing.bins, open_bins=held.bins)
        placed = _Placed(pieces, *found)
    else:
        room = packing.features[0][1]
        used = int(held.pieces.length.sum())
        cut = concat_then_split(lengths, room, room=room - used)
        full, left = divmod(used + int(lengths.sum()), room)
        closed = np.arange(full)
        still_open = np.array([full] if left else [], np.int64)
        bins = OpenBins(np.full((len(still_open), 1), room - left), np.ones_like(still_open))
        placed = _Placed(
            Pieces(*cut[:3]), cut.sequence, closed, np.searchsorted(cut.sequence, closed, "right"), still_open, bins
        )
    if consumed:
        placed.pieces.offset[placed.pieces.document == 0] += consumed
    return placed


def _kept_open(
    documents: tuple[Sequence[Element], Provenance, list[tuple[Sequence[Token], int]], Sequence[Token]],
    pieces: Pieces,
    sequence: Integers,
    bins: OpenBins,
) -> _Open:
    """Return the open sequences of some pieces, with the documents of these pieces only.

    Args:
        documents: they and their provenance, references to the starts of the first ones, and the others' starts.
        pieces: of these documents.
        sequence: the open sequence of each piece.
        bins: the sequences' rooms.
    """
    read, provenance, old, new = documents
    used, numbers = np.unique(pieces.document, return_inverse=True)
    chosen: list[int] = used.tolist()
    few = int(np.searchsorted(used, len(old)))
    starts = [old[number] for number in chosen[:few]]
    starts += zip(itertools.repeat(new), (used[few:] - len(old)).tolist(), strict=False)
    own = pieces._replace(document=numbers.reshape(-1).astype(np.int64))
    return _Open(kept(read, chosen), provenance[used], starts, own, sequence, bins)


def _check_opened(packing: Packing, opened: OpenTokens, documents: Mapping[Token, Element]) -> None:
    """Raise if a token's pieces aren't parts of the documents as they are now.

    Raises:
        StateError: a document has changed.
    """
    if not documents:
        return
    try:
        form = form_of(packing, next(iter(documents.values())))
        lengths = lengths_of(packing, form, documents_of(form, list(documents.values())))
    except GraphError as error:
        raise StateError(f"the state holds documents that can't be packed in this dataset: {error}") from error
    known = dict(zip(documents, lengths.reshape(len(documents), -1).tolist(), strict=True))
    for pieces in opened:
        for start, offset, length in zip(*(pieces[part::3] for part in range(3)), strict=True):
            parts = length if is_compound(length) else (length,)
            if any(offset + part > whole for part, whole in zip(parts, known[start], strict=False)):
                raise StateError(
                    f"the state has packed values {offset} to {offset + max(parts)} of a document that has "
                    f"{known[start]} in this dataset. Load it into the dataset that it was saved from."
                )


def _reopened(packing: Packing, reproduce: Reproduce, opened: OpenTokens) -> _Open:
    """Return the open sequences in a token, with their documents computed again."""
    starts: list[Token] = list(dict.fromkeys(start for pieces in opened for start in pieces[::3]))
    elements, provenance = reproduce(starts) if starts else ([], no_provenance())
    _check_opened(packing, opened, dict(zip(starts, elements, strict=True)))
    numbers = {start: number for number, start in enumerate(starts)}
    flat = [
        (numbers[start], offset, length)
        for pieces in opened
        for start, offset, length in zip(*(pieces[part::3] for part in range(3)), strict=True)
    ]
    rooms = np.array(packing.capacity, np.int64).reshape(-1)
    lengths = np.array([length for *_, length in flat], np.int64).reshape(-1, len(rooms))
    counts = np.array([len(pieces) // 3 for pieces in opened], np.int64)
    sequence = np.repeat(np.arange(len(counts)), counts)
    room = np.tile(rooms, (len(counts), 1))
    np.subtract.at(room, sequence, lengths)
    document, offset = (np.array([piece[part] for piece in flat], np.int64) for part in (0, 1))
    length = lengths[:, 0] if packing.is_shared else lengths
    places: list[tuple[Sequence[Token], int]] = [(starts, number) for number in range(len(starts))]
    return _Open(elements, provenance, places, Pieces(document, offset, length), sequence, OpenBins(room, counts))
