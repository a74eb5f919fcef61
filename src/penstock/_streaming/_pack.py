"""The stage of `pack`: documents packed into sequences in the order in which they are read.

A token of the stage is (a document's start, the number of its values that are in closed or open sequences, its `after`
if that number is not 0, the open sequences, oldest first). The document is the one that is cut, or else the one after
the last packed document. An open sequence is a tuple with three entries for each of its pieces: the document's start,
the offset and the length. So a state has positions only, and a resume computes the documents of open sequences again.

Documents are taken in blocks of up to 256 (`_intakes`), since assigning and filling have a cost for each call. If one
of a block can't be packed, the documents of the block are packed one by one, so that the sequences before it come
first.
"""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from penstock._decisions import PACK_DOCUMENTS, decide
from penstock._frozen import frozen
from penstock._graph import Element, Pack
from penstock._streaming._chunk import Chunk, Lazy, Provenance, Token, is_compound
from penstock._streaming._locations import InputRef, StreamedLocations
from penstock._streaming._packed import where_read
from penstock._streaming._packer import Intake, Packer
from penstock._streaming._stage import (
    LARGEST,
    Point,
    Stage,
    check_held,
    check_number,
    one_each,
    parts_of,
    refuse,
)
from penstock.errors import GraphError

_DOCUMENTS: Final = 256  # of a block: assigning and filling cost a fraction of a millisecond for each call
_SECONDS: Final = 0.002  # of reading, after which a block is closed with fewer


@frozen
class PackStage:
    """Documents packed into sequences."""

    step: Pack
    below: Stage
    inputs: Mapping[int, InputRef]
    batched: int = 0
    """The number of sequences of a batch directly above; 0 if there is none."""

    def start(self) -> Token:
        return (self.below.start(), 0, None, ())

    def run(self, token: Token, /) -> Iterator[Chunk]:
        packer = Packer(self.step.packing, self.below.reproduce, token, self.batched)
        try:
            for number, intake in enumerate(_intakes(self.below.run(token[0]), token[1])):
                if token[1] and not number:
                    check_held(intake.afters[0], token[2], "a document that is cut")
                try:
                    chunks = packer.pack(intake)
                except GraphError:
                    yield from self._one_by_one(packer, intake)
                else:
                    yield from chunks
        except _BrokenError as broken:
            raise broken.error from broken.error.__cause__
        yield from packer.flush()

    def _one_by_one(self, packer: Packer, intake: Intake) -> Iterator[Chunk]:
        """Yield the sequences that close before a document that can't be packed, and raise its error."""
        for number in range(len(intake.elements)):
            try:
                chunks = packer.pack(intake.one(number))
            except GraphError as error:
                error.add_note(where_read("pack()", StreamedLocations(self.inputs, intake.provenance).at(number)))
                raise
            yield from chunks

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        return one_each(self, tokens)

    def check(self, token: Token, /) -> None:
        start, consumed, after, held = parts_of(token, 4, of="pack()")
        self.below.check(start)
        check_number(consumed, LARGEST, "pack()")
        if bool(consumed) != (after is not None):
            refuse(token, "pack() has the end of a document that is cut")
        if consumed:
            self.below.check(after)
        packing = self.step.packing
        most = packing.bins if packing.how == "best_fit" else 1
        if not is_compound(held) or len(held) > most:
            refuse(held, f"pack() has at most {most} open sequences")
        for pieces in held:
            if not is_compound(pieces) or not pieces or len(pieces) % 3:
                refuse(pieces, "an open sequence has three values for each of its pieces")
            for number in range(0, len(pieces), 3):
                self.below.check(pieces[number])
            self._check_lengths(pieces)

    def _check_lengths(self, pieces: tuple[Token, ...]) -> None:
        """Raise a StateError for pieces that don't fit into a sequence."""
        packing = self.step.packing
        rooms = [room for _, room in packing.features]
        rooms = rooms[:1] if packing.is_shared else rooms
        for offset, length in zip(pieces[1::3], pieces[2::3], strict=True):
            check_number(offset, LARGEST, "a piece of a document")
            lengths = (length,) if packing.is_shared else parts_of(length, len(rooms), of="a piece of a document")
            rooms = [
                room - check_number(one, max(room, 0), "a piece of a document")
                for one, room in zip(lengths, rooms, strict=True)
            ]

    def points(self, token: Token, /) -> tuple[Point, ...]:
        return self.below.points(token[2] if token[1] else token[0])

    def is_exhausted(self, token: Token, /) -> bool:
        return not token[1] and not token[3] and self.below.is_exhausted(token[0])


class _BrokenError(Exception):
    """Carries an error of the stage below past the packing of the documents before it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _intakes(chunks: Iterator[Chunk], consumed: int) -> Iterator[Intake]:
    """Yield blocks of documents, of as many as are read in 2 ms."""
    held: list[Chunk] = []
    count = 0
    most, began = decide(PACK_DOCUMENTS, _DOCUMENTS), time.perf_counter()
    try:
        for chunk in chunks:
            held.append(chunk)
            count += len(chunk.elements)
            if count >= most or (count and time.perf_counter() - began > _SECONDS):
                yield _joined(held, consumed)
                held, count, consumed = [], 0, 0
                most, began = decide(PACK_DOCUMENTS, _DOCUMENTS), time.perf_counter()
    except Exception as error:
        if count:
            yield _joined(held, consumed)
        raise _BrokenError(error) from error
    if count:
        yield _joined(held, consumed)


def _joined(chunks: list[Chunk], consumed: int) -> Intake:
    if len(chunks) == 1:
        return Intake(*chunks[0][:4], consumed)
    elements = list(itertools.chain.from_iterable(chunk.elements for chunk in chunks))
    which = [(chunk, index) for chunk in chunks for index in range(len(chunk.elements))]

    def start(number: int) -> Token:
        chunk, index = which[number]
        return chunk.starts[index]

    def after(number: int) -> Token:
        chunk, index = which[number]
        return chunk.afters[index]

    provenance = np.concatenate([chunk.provenance for chunk in chunks])
    return Intake(elements, provenance, Lazy(len(which), start), Lazy(len(which), after), consumed)
