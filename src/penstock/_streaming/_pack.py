"""The fold `pack`: documents packed into sequences in the order in which they are read.

The definition is plain Python, one document at a time. The stage packs blocks of documents (`_packer`).

A token of the stage has four entries, the first three of the next document, whose values are packed next:
  - the document's start;
  - the number of its values that are packed already: 0, unless the document is cut;
  - its `after`, if it is cut; else None;
  - the open sequences, oldest first. Each is a tuple with three entries for each of its pieces: the document's start,
    the offset of the piece and its length.

For example, in `(34, 0, None, ((0, 0, 4, 1, 0, 3), (32, 0, 7)))` document 34 of the input is next. One open sequence
has the first 4 values of document 0 and the first 3 of document 1, another one the first 7 of document 32. So a state
has positions only, and a resume computes the documents of open sequences again.

Documents are taken in blocks of about 1,024 (`_intakes`), since assigning and filling have a cost for each call. If one
of a block can't be packed, the documents of the block are packed one by one, so that the sequences before it come
first.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from penstock._caught import add_note, ends_generator
from penstock._decisions import PACK_DOCUMENTS, decide
from penstock._frozen import frozen
from penstock._graph import Element, Location, row_seed_position
from penstock._streaming._fold import Folding, FoldStage
from penstock._streaming._packer import Intake, Packer
from penstock._streaming._policy import CHUNK_SECONDS, PACKED_BYTES, PACKED_DOCUMENTS
from penstock._streaming._stage import (
    LARGEST,
    Chunk,
    Lazy,
    LocatedElement,
    Token,
    are_light,
    check_held,
    check_number,
    is_compound,
    parts_of,
    refuse,
    where_read,
)
from penstock.batching import (
    Form,
    Packing,
    array_bytes,
    documents_of,
    extra_names,
    form_of,
    lengths_of,
    padding_token,
    together,
)
from penstock.errors import GraphError


@frozen
class Pack(Folding):
    """Documents packed into sequences of a fixed length, in the order in which they are read."""

    packing: Packing

    @property
    def text(self) -> str:
        lengths = dict(self.packing.features)
        return f"pack({lengths.get('', lengths)}, how={self.packing.how!r})"

    @property
    def order_text(self) -> str:
        return f"pack {self.packing!r}"

    @property
    def positions_remedy(self) -> str:
        return "Or plan it from the elements' lengths: lengths=."

    def start(self, below: Token) -> Token:
        return (below, 0, None, ())

    def in_order(self, below: Iterator[LocatedElement]) -> Iterator[LocatedElement]:
        packing = self.packing
        rooms = tuple(room for _, room in packing.features)
        form: Form | None = None
        opened: list[_Sequence] = []
        place_piece = _best_fit if packing.how == "best_fit" else _end_to_end
        for document, location in below:
            try:
                form = form or form_of(packing, document)
                lengths = tuple(np.atleast_1d(lengths_of(packing, form, documents_of(form, [document]))[0]).tolist())
            except GraphError as error:
                add_note(error, where_read("pack()", location))
                raise
            for piece in _pieces(packing, document, location, lengths):
                for sequence in place_piece(packing, rooms, opened, piece):
                    yield _filled(packing, form, sequence)
        for sequence in opened:
            if form is not None:
                yield _filled(packing, form, sequence)

    def run(self, stage: FoldStage, token: Token) -> Iterator[Chunk]:
        start, consumed, after, _ = token
        packer = Packer(self.packing, stage.below.reproduce, token, stage.batched)
        error: BaseException | None = None
        try:
            for number, intake in enumerate(_intakes(stage.below.run(start), consumed)):
                if consumed and not number:
                    check_held(intake.afters[0], after, "a document that is cut")
                try:
                    chunks = packer.pack(intake)
                except GraphError:
                    yield from self._one_by_one(stage, packer, intake)
                else:
                    yield from chunks
        except _BrokenError as broken:
            error = broken.error
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback has this frame, and so the loader
        yield from packer.flush()

    def _one_by_one(self, stage: FoldStage, packer: Packer, intake: Intake) -> Iterator[Chunk]:
        """Yield the sequences that close before a document that can't be packed, and raise its error."""
        for number in range(len(intake.elements)):
            try:
                chunks = packer.pack(intake.one(number))
            except GraphError as error:
                add_note(error, where_read("pack()", stage.location(intake.provenance, number)))
                raise
            yield from chunks

    def check_token(self, stage: FoldStage, token: Token) -> None:
        start, consumed, after, held = parts_of(token, 4, of="pack()")
        stage.below.check(start)
        check_number(consumed, LARGEST, "pack()")
        if bool(consumed) != (after is not None):
            refuse(token, "pack() has the end of a document that is cut")
        if consumed:
            stage.below.check(after)
        packing = self.packing
        most = packing.bins if packing.how == "best_fit" else 1
        if not is_compound(held) or len(held) > most:
            refuse(held, f"pack() has at most {most} open sequences")
        for pieces in held:
            if not is_compound(pieces) or not pieces or len(pieces) % 3:
                refuse(pieces, "an open sequence has three values for each of its pieces")
            for number in range(0, len(pieces), 3):
                stage.below.check(pieces[number])
            self._check_lengths(pieces)

    def _check_lengths(self, pieces: tuple[Token, ...]) -> None:
        """Raise a StateError for pieces that don't fit into a sequence."""
        packing = self.packing
        rooms = [room for _, room in packing.features]
        rooms = rooms[:1] if packing.is_shared else rooms
        for offset, length in zip(pieces[1::3], pieces[2::3], strict=True):
            check_number(offset, LARGEST, "a piece of a document")
            lengths = (length,) if packing.is_shared else parts_of(length, len(rooms), of="a piece of a document")
            rooms = [
                room - check_number(one, max(room, 0), "a piece of a document")
                for one, room in zip(lengths, rooms, strict=True)
            ]

    def read_to(self, token: Token) -> Token:
        start, consumed, after, _ = token
        return after if consumed else start


@frozen
class _Piece:
    """Consecutive tokens of a document."""

    document: Element
    location: Location
    offset: int
    lengths: tuple[int, ...]
    """One length for all features, or one for each."""


@dataclass(slots=True, eq=False, repr=False)
class _Sequence:
    """An open sequence."""

    room: tuple[int, ...]
    pieces: list[_Piece] = field(default_factory=list)

    def fits(self, piece: _Piece) -> bool:
        return all(length <= room for length, room in zip(piece.lengths, self.room, strict=True))

    def add(self, piece: _Piece) -> None:
        self.pieces.append(piece)
        self.room = tuple(room - length for length, room in zip(piece.lengths, self.room, strict=True))


def _pieces(packing: Packing, document: Element, location: Location, lengths: tuple[int, ...]) -> Iterator[_Piece]:
    """Yield the pieces of a document: for "best_fit" those that fit into a sequence, for "split" the whole document."""
    rooms = [room for _, room in packing.features]
    if not any(lengths):
        return
    if packing.how == "split" or all(length <= room for length, room in zip(lengths, rooms, strict=True)):
        yield _Piece(document, location, 0, lengths)
    elif packing.long == "split":
        for offset in range(0, lengths[0], rooms[0]):
            yield _Piece(document, location, offset, (min(rooms[0], lengths[0] - offset),))


def _best_fit(packing: Packing, rooms: tuple[int, ...], opened: list[_Sequence], piece: _Piece) -> Iterator[_Sequence]:
    """Put a piece into the sequence that it fills best, of equal ones the oldest, and yield sequences that close."""
    fitting = [sequence for sequence in opened if sequence.fits(piece)]
    if fitting:
        chosen = min(fitting, key=lambda sequence: sum(sequence.room))
    else:
        chosen = _Sequence(rooms)
        if len(opened) == packing.bins and piece.lengths != rooms:
            fullest = min(opened, key=lambda sequence: sum(sequence.room))
            opened.remove(fullest)
            yield fullest
        opened.append(chosen)
    chosen.add(piece)
    if not any(chosen.room):
        opened.remove(chosen)
        yield chosen


def _end_to_end(
    packing: Packing, rooms: tuple[int, ...], opened: list[_Sequence], piece: _Piece
) -> Iterator[_Sequence]:
    """Append a document to the last one, cut where sequences end, and yield the full sequences."""
    del packing
    left = piece.lengths[0]
    while left:
        if not opened:
            opened.append(_Sequence(rooms))
        length = min(left, opened[0].room[0])
        opened[0].add(replace(piece, offset=piece.lengths[0] - left, lengths=(length,)))
        left -= length
        if opened[0].room == (0,):
            yield opened.pop()


def _filled(packing: Packing, form: Form, sequence: _Sequence) -> LocatedElement:
    """Return a sequence's arrays, and the location of its first piece."""
    element: dict[str, Any] = {}
    extras = extra_names(packing, form.features)
    for number, (name, dtype) in enumerate(zip(form.features, form.dtypes, strict=True)):
        column = 0 if packing.is_shared else number
        room = packing.features[column][1]
        element[name] = np.full(room, padding_token(packing.padding(name), dtype), dtype)
        ids, positions = np.zeros(room, np.int32), np.zeros(room, np.int32)
        at = 0
        for segment, piece in enumerate(sequence.pieces, start=1):
            length = piece.lengths[column]
            tokens = piece.document if form.leaves == 0 else piece.document[name]
            element[name][at : at + length] = tokens[piece.offset : piece.offset + length]
            ids[at : at + length] = segment
            positions[at : at + length] = range(length)
            at += length
        if number < len(extras):
            element |= zip(extras[number], (ids, positions), strict=True)
    for name in packing.meta:
        element[name] = [piece.document[name] for piece in sequence.pieces]
    first = sequence.pieces[0]
    cut = first.offset // packing.features[0][1]
    return element, replace(first.location, seed=row_seed_position(first.location.seed, cut))


class _BrokenError(Exception):
    """Carries an error of the stage below past the packing of the documents before it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


def _intakes(chunks: Iterator[Chunk], consumed: int) -> Iterator[Intake]:
    """Yield blocks of documents, of as many as are read in 2 ms."""
    held: list[Chunk] = []
    count = size_bytes = 0
    most, began = decide(PACK_DOCUMENTS, PACKED_DOCUMENTS), time.perf_counter()
    try:
        for chunk in chunks:
            held.append(chunk)
            count += len(chunk.elements)
            size_bytes += array_bytes(chunk.elements)
            is_large = count >= most or size_bytes >= PACKED_BYTES
            if count and (is_large or time.perf_counter() - began > CHUNK_SECONDS):
                yield _joined(held, consumed)
                held, count, size_bytes, consumed = [], 0, 0, 0
                most, began = decide(PACK_DOCUMENTS, PACKED_DOCUMENTS), time.perf_counter()
    except BaseException as error:
        if ends_generator(error):
            raise
        if count:
            yield _joined(held, consumed)
        raise _BrokenError(error) from error
    if count:
        yield _joined(held, consumed)


def _joined(chunks: list[Chunk], consumed: int) -> Intake:
    if len(chunks) == 1:
        return Intake(*chunks[0][:4], consumed)
    elements = together([chunk.elements for chunk in chunks])
    provenance = np.concatenate([chunk.provenance for chunk in chunks])
    starts, afters = _tokens([chunk.starts for chunk in chunks]), _tokens([chunk.afters for chunk in chunks])
    return Intake(elements, provenance, starts, afters, consumed)


def _tokens(parts: list[Sequence[Token]]) -> Sequence[Token]:
    """Return several sequences of tokens as one: a range if they are consecutive ranges, as those of an input are."""
    ranges = [part for part in parts if isinstance(part, range) and part.step == 1]
    if len(ranges) == len(parts) and all(one.stop == other.start for one, other in itertools.pairwise(ranges)):
        return range(ranges[0].start, ranges[-1].stop)
    which = [(part, index) for part in parts for index in range(len(part))]

    def token(number: int) -> Token:
        part, index = which[number]
        return part[index]

    return Lazy(len(which), token, are_light=all(map(are_light, parts)))
