"""The fold `bucket`: batches of elements of about one size.

`bucketed` is the definition, in plain Python, one element at a time.

A token of the stage is (the parent's token, for each bucket the starts of the elements that wait in it). To resume, the
stage computes the waiting elements again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from penstock._frozen import frozen
from penstock._graph import Element, Location, Remainder, function_name
from penstock._streaming._fold import Folding, OpenedBelow
from penstock._streaming._stage import (
    Chunk,
    InputRef,
    Lazy,
    LocatedElement,
    Point,
    Provenance,
    Stage,
    StreamedLocations,
    Token,
    is_compound,
    known,
    no_provenance,
    one_each,
    parts_of,
    refuse,
    where_read,
)
from penstock.batching import Bucketing
from penstock.errors import StateError, UsageError

_Refs: TypeAlias = list[tuple[Sequence[Token], int]]


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

    def in_order(self, below: Iterator[LocatedElement]) -> Iterator[LocatedElement]:
        return bucketed(self, below)

    def open(self, below: OpenedBelow) -> Stage:
        return BucketStage(self, below.stage, below.inputs)


def bucketed(step: Bucket, below: Iterator[LocatedElement]) -> Iterator[LocatedElement]:
    """Yield a batch when a bucket is full, and at the end the short ones, each with the location of its first row."""
    bucketing = step.bucketing
    waiting: list[list[LocatedElement]] = [[] for _ in bucketing.boundaries]
    for element, location in below:
        number = bucket_of(step, element, known(location))
        waiting[number].append((element, location))
        if len(waiting[number]) == bucketing.rows[number]:
            yield _merged(step, number, waiting[number])
            waiting[number] = []
    for number, rows in enumerate(waiting):
        if rows and bucketing.keep_short:
            yield _merged(step, number, rows)


def _merged(step: Bucket, number: int, rows: list[LocatedElement]) -> LocatedElement:
    return step.bucketing.merge[number]([element for element, _ in rows]), rows[0][1]


def bucket_of(step: Bucket, element: Element, location: Callable[[], Location]) -> int:
    """Return the number of an element's bucket; an error gets a note with the element's location."""
    try:
        return step.bucketing.bucket(element)
    except Exception as error:
        error.add_note(where_read("bucket()", location()))
        raise


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
class BucketStage:
    """Batches of a bucket's elements."""

    step: Bucket
    below: Stage
    inputs: Mapping[int, InputRef]

    def start(self) -> Token:
        return (self.below.start(), ((),) * len(self.step.rows))

    def run(self, token: Token, /) -> Iterator[Chunk]:
        waiting, rows = self._reopened(token[1]), self.step.rows
        at: tuple[Sequence[Token], int] = (token, 0)
        last: Sequence[Token] = (token,)
        for number in range(len(waiting)):  # after a deal, more may wait than a batch has
            while len(waiting[number].elements) >= rows[number]:
                chunk = self._taken(waiting, number, at, last)
                last = chunk.afters
                yield chunk
        for below in self.below.run(token[0]):
            for index, element in enumerate(below.elements):
                number = self._bucket(element, below.provenance, index)
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
            if waiting[number].elements and self.step.bucketing.keep_short:
                chunk = self._taken(waiting, number, at, last)
                last = chunk.afters
                yield chunk

    def _bucket(self, element: Element, provenance: Provenance, index: int) -> int:
        return bucket_of(self.step, element, lambda: StreamedLocations(self.inputs, provenance).at(index))

    def _taken(
        self, waiting: list[_Waiting], number: int, at: tuple[Sequence[Token], int], last: Sequence[Token]
    ) -> Chunk:
        """Return a batch of a bucket, and remove its elements from the bucket."""
        count = self.step.rows[number]
        elements, provenance = waiting[number].elements[:count], np.concatenate(waiting[number].provenance[:count])
        batch = self.step.bucketing.merge[number](elements)
        waiting[number] = waiting[number].rest(count)
        held = [tuple(bucket.starts) for bucket in waiting]

        def after(_: int) -> Token:
            tokens, index = at
            return (tokens[index], tuple(tuple(starts[location] for starts, location in refs) for refs in held))

        return Chunk([batch], provenance[:1], Lazy(1, lambda _: last[0]), Lazy(1, after), [provenance])

    def _reopened(self, held: tuple[tuple[Token, ...], ...]) -> list[_Waiting]:
        """Return the elements that wait in each bucket, computed again."""
        tokens = [token for bucket in held for token in bucket]
        elements, provenance = self.below.reproduce(tokens) if tokens else ([], no_provenance())
        waiting: list[_Waiting] = []
        first = 0
        for number, bucket in enumerate(held):
            stop = first + len(bucket)
            for row in range(first, stop):
                if self._bucket(elements[row], provenance, row) != number:
                    raise StateError(
                        f"the state has an element in bucket {number} that belongs in another bucket in this dataset. "
                        "Load it into the dataset that it was saved from."
                    )
            rows = [provenance[row : row + 1] for row in range(first, stop)]
            waiting.append(_Waiting(elements[first:stop], rows, [(tokens, row) for row in range(first, stop)]))
            first = stop
        return waiting

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        return one_each(self, tokens)

    def check(self, token: Token, /) -> None:
        start, held = parts_of(token, 2, of="bucket()")
        self.below.check(start)
        for waiting in parts_of(held, len(self.step.rows), of="bucket()"):
            if not is_compound(waiting):
                refuse(waiting, "bucket() has a list of the tokens of waiting elements")
            for at in waiting:
                self.below.check(at)

    def points(self, token: Token, /) -> tuple[Point, ...]:
        return self.below.points(token[0])

    def is_exhausted(self, token: Token, /) -> bool:
        may_follow = any(token[1]) if self.step.bucketing.keep_short else self._has_full(token[1])
        return not may_follow and self.below.is_exhausted(token[0])

    def _has_full(self, held: tuple[tuple[Token, ...], ...]) -> bool:
        return any(len(bucket) >= rows for bucket, rows in zip(held, self.step.rows, strict=True))
