"""The tokens after each sequence that a block of documents closes, made on request.

Most are never requested, so a block keeps a log of the pieces and the sequences that they went to, as arrays. A request
for a token replays the log from the last requested token on; the pieces of sequences that stay open are shared by both.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._streaming._chunk import Token
from penstock.batching import Pieces

Integers: TypeAlias = NDArray[np.int64]
OpenTokens: TypeAlias = list[tuple[Token, ...]]
"""For each open sequence, oldest first, the start of the document, the offset and the length of each piece."""


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
    """The log of one block of documents, from which the tokens after its sequences are made.

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
        self._closed = -1  # number of closed sequences that were replayed; -1 before the first request
        self._token: Token = None

    @property
    def was_requested(self) -> bool:
        """Whether a token was requested."""
        return self._closed >= 0

    def _rewind(self) -> None:
        self._document, self._offset, self._length = as_lists(self._block.pieces)
        self._sequence = self._block.sequence.tolist()
        self._closes, self._closed_before = self._block.closed.tolist(), self._block.closed_before.tolist()
        self._open = dict(enumerate(self._opened()))  # in the order of opening
        self._pieces = 0  # number of pieces that were replayed
        self._closed = 0

    def after(self, number: int) -> Token:
        """Return the token after the block's closed sequence `number`."""
        if not 0 <= self._closed <= number + 1:
            self._rewind()
        if self._closed <= number:
            if number - self._closed < _FEW:
                for closing in range(self._closed, number + 1):
                    self._take(self._closed_before[closing])
                    self._open.pop(self._closes[closing])
            else:
                self._take_lasting(self._closed_before[number], number)
                for closing in range(self._closed, number + 1):
                    self._open.pop(self._closes[closing], None)
            self._closed = number + 1
            self._token = (*self._next().token(), tuple(self._open.values()))
        return self._token

    def end(self) -> OpenTokens:
        """Return the open sequences at the block's end, if a token was requested."""
        if self._closes:
            self.after(len(self._closes) - 1)
        self._take(len(self._sequence))
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
