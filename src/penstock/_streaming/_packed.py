"""The definition of `pack` where documents are read in order: plain Python, one document at a time."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from penstock._frozen import frozen
from penstock._graph import Element, Location, Pack, row_seed_position
from penstock.batching import Form, Packing, extra_names, form_of, lengths_of
from penstock.errors import GraphError

LocatedElement = tuple[Element, Location]


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


def packed(step: Pack, below: Iterator[LocatedElement]) -> Iterator[LocatedElement]:
    """Yield packed sequences, each with the location of its first piece."""
    packing = step.packing
    rooms = tuple(room for _, room in packing.features)
    form: Form | None = None
    opened: list[_Sequence] = []
    place_piece = _best_fit if packing.how == "best_fit" else _end_to_end
    for document, location in below:
        try:
            form = form or form_of(packing, document)
            lengths = tuple(np.atleast_1d(lengths_of(packing, form, [document])[0]).tolist())
        except GraphError as error:
            error.add_note(where_read("pack()", location))
            raise
        for piece in _pieces(packing, document, location, lengths):
            for sequence in place_piece(packing, rooms, opened, piece):
                yield _filled(packing, form, sequence)
    for sequence in opened:
        if form is not None:
            yield _filled(packing, form, sequence)


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
        element[name] = np.full(room, packing.padding(name), dtype)
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


def where_read(verb: str, location: Location) -> str:
    """Return the note of an error about an element."""
    return f"in {verb} at epoch {location.seed.epoch}, position {location.seed.position}, key {location.key}"
