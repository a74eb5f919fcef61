"""The fold `bucket`: batches of elements of about one size.

A token of the stage is (the parent's token, for each bucket the starts of the elements that wait in it). To resume, the
stage computes the waiting elements again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from penstock._caught import add_note
from penstock._frozen import frozen
from penstock._graph import Element, Location, Remainder, function_name
from penstock._streaming._fold import Folding, FoldStage
from penstock._streaming._stage import (
    Chunk,
    Lazy,
    LocatedElement,
    Provenance,
    Token,
    is_compound,
    known,
    no_provenance,
    parts_of,
    refuse,
    where_read,
)
from penstock.batching import Bucketing
from penstock.errors import StateError, UsageError

_Refs: TypeAlias = list[tuple[Sequence[Token], int]]


class _Waiting(NamedTuple):
    """The elements that wait in a bucket."""

    elements: list[Element]
    provenance: list[Provenance]
    starts: _Refs
    """The start of each element, as a sequence of tokens and an index."""

    def rest(self, count: int) -> "_Waiting":
        """Return the elements after the first `count`."""
        return _Waiting(self.elements[count:], self.provenance[count:], self.starts[count:])


@frozen
class Bucket(Folding):
    """Elements of about one size merged into batches, in the order in which they are read."""

    bucketing: Bucketing

    @property
    def text(self) -> str:
        return f"bucket({function_name(self.bucketing.size)}, {list(self.bucketing.boundaries)})"

    @property
    def order_text(self) -> str:
        return f"bucket {self.bucketing.boundaries} {self.bucketing.rows} {self.bucketing.keep_short}"

    @property
    def functions(self) -> Sequence[tuple[str, Callable[..., Any]]]:
        return (("size", self.bucketing.size), *(("merge", merge) for merge in self.bucketing.merge))

    @property
    def rows(self) -> tuple[int, ...]:
        return self.bucketing.rows

    @property
    def remainder(self) -> Remainder:
        return "keep" if self.bucketing.keep_short else "drop"

    def check_ranks(self, count: int) -> None:
        for boundary, rows in zip(self.bucketing.boundaries, self.rows, strict=True):
            if rows % count:
                raise UsageError(
                    "the rows of every bucket must divide by the number of ranks; got "
                    f"{rows} rows in the bucket up to {boundary} on {count} ranks. Choose others."
                )

    def of_rank(self, ranks: int) -> Self:
        return replace(self, bucketing=replace(self.bucketing, rows=tuple(count // ranks for count in self.rows)))

    def keeping_all(self) -> Self:
        return replace(self, bucketing=replace(self.bucketing, keep_short=True))

    @property
    def positions_remedy(self) -> str:
        return "Or plan it from the elements' lengths: lengths=."

    def start(self, below: Token) -> Token:
        return (below, ((),) * len(self.rows))

    def in_order(self, below: Iterator[LocatedElement]) -> Iterator[LocatedElement]:
        waiting: list[list[LocatedElement]] = [[] for _ in self.rows]
        for element, location in below:
            number = self._bucket(element, known(location))
            waiting[number].append((element, location))
            if len(waiting[number]) == self.rows[number]:
                yield self._merged(number, waiting[number])
                waiting[number] = []
        for number, rows in enumerate(waiting):
            if rows and self.bucketing.keep_short:
                yield self._merged(number, rows)

    def _merged(self, number: int, rows: list[LocatedElement]) -> LocatedElement:
        """Return a batch, with the location of its first row."""
        return self.bucketing.merge[number]([element for element, _ in rows]), rows[0][1]

    def _bucket(self, element: Element, location: Callable[..., Location], *where: object) -> int:
        """Return the number of an element's bucket; an error gets a note with `location(*where)`."""
        try:
            return self.bucketing.bucket(element)
        except Exception as error:
            add_note(error, where_read("bucket()", location(*where)))
            raise

    def run(self, stage: FoldStage, token: Token) -> Iterator[Chunk]:
        waiting, rows = self._reopened(stage, token[1]), self.rows
        at: tuple[Sequence[Token], int] = (token, 0)
        last: Sequence[Token] = (token,)
        for number in range(len(waiting)):  # after a deal, more may wait than a batch has
            while len(waiting[number].elements) >= rows[number]:
                chunk = self._taken(waiting, number, at, last)
                last = chunk.afters
                yield chunk
        for below in stage.below.run(token[0]):
            for index, element in enumerate(below.elements):
                number = self._bucket(element, stage.location, below.provenance, index)
                bucket = waiting[number]
                bucket.elements.append(element)
                bucket.provenance.append(below.provenance[index : index + 1])
                bucket.starts.append((below.starts, index))
                at = (below.afters, index)
                if len(bucket.elements) >= rows[number]:
                    chunk = self._taken(waiting, number, at, last)
                    last = chunk.afters
                    yield chunk
        for number in range(len(waiting)):
            if waiting[number].elements and self.bucketing.keep_short:
                chunk = self._taken(waiting, number, at, last)
                last = chunk.afters
                yield chunk

    def _taken(
        self, waiting: list[_Waiting], number: int, at: tuple[Sequence[Token], int], last: Sequence[Token]
    ) -> Chunk:
        """Return a batch of a bucket, and remove its elements from the bucket."""
        count = self.rows[number]
        elements, provenance = waiting[number].elements[:count], np.concatenate(waiting[number].provenance[:count])
        batch = self.bucketing.merge[number](elements)
        waiting[number] = waiting[number].rest(count)
        held = [tuple(bucket.starts) for bucket in waiting]

        def after(_: int) -> Token:
            tokens, index = at
            return (tokens[index], tuple(tuple(starts[location] for starts, location in refs) for refs in held))

        return Chunk([batch], provenance[:1], Lazy(1, lambda _: last[0]), Lazy(1, after), [provenance])

    def _reopened(self, stage: FoldStage, held: tuple[tuple[Token, ...], ...]) -> list[_Waiting]:
        """Return the elements that wait in each bucket, computed again."""
        tokens = [token for bucket in held for token in bucket]
        elements, provenance = stage.below.reproduce(tokens) if tokens else ([], no_provenance())
        waiting: list[_Waiting] = []
        first = 0
        for number, bucket in enumerate(held):
            stop = first + len(bucket)
            for row in range(first, stop):
                if self._bucket(elements[row], stage.location, provenance, row) != number:
                    raise StateError(
                        f"the state has an element in bucket {number} that belongs in another bucket in this dataset. "
                        "Load it into the dataset that it was saved from."
                    )
            rows = [provenance[row : row + 1] for row in range(first, stop)]
            waiting.append(_Waiting(elements[first:stop], rows, [(tokens, row) for row in range(first, stop)]))
            first = stop
        return waiting

    def check_token(self, stage: FoldStage, token: Token) -> None:
        start, held = parts_of(token, 2, of="bucket()")
        stage.below.check(start)
        for waiting in parts_of(held, len(self.rows), of="bucket()"):
            if not is_compound(waiting):
                refuse(waiting, "bucket() has a list of the tokens of waiting elements")
            for at in waiting:
                stage.below.check(at)

    def is_exhausted(self, stage: FoldStage, token: Token) -> bool:
        may_follow = any(token[1]) if self.bucketing.keep_short else self._has_full(token[1])
        return not may_follow and stage.below.is_exhausted(token[0])

    def _has_full(self, held: tuple[tuple[Token, ...], ...]) -> bool:
        return any(len(bucket) >= rows for bucket, rows in zip(held, self.rows, strict=True))
