"""Steps with several parts that are read in order: `mix` and `interleave`, `concatenate`, `zip`.

*Mixtures*: the next element is from the part that is furthest behind: the one with the least taken measure over weight,
of equal ones the first. That is integers and one IEEE division, so it is the same on every machine. When the weights
change, the measures start again at 0. The generator `mixed` is the definition. A token is (the number of elements so
far, the parts' taken measures, the parts' tokens); the token of a part that has ended is None.

A token of `concatenate` and `zip` has one token for each part; that of a part of `concatenate` that was read is None.
"""

import heapq
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from penstock._decisions import MIXTURE_ELEMENTS, decide
from penstock._frozen import frozen
from penstock._graph import Element, StreamingMix, Zip, zipped_element
from penstock._streaming._stage import (
    LARGEST,
    Chunk,
    Lazy,
    LocatedElement,
    Pending,
    Point,
    Provenance,
    Stage,
    Token,
    check_number,
    no_provenance,
    one_each,
    parts_of,
    within,
)
from penstock.errors import GraphError

_AT_ONCE: Final = 64  # elements of a chunk

_END: Final = Point(LARGEST)
"""The progress of an input that was read to its end."""


class _Taken(NamedTuple):
    """An entry in a chunk's log: an element of a part, or, without a chunk, the end of a part."""

    part: int
    chunk: Chunk | None
    number: int = 0
    amount: int = 0


def mixed(step: StreamingMix, parts: list[Iterator[LocatedElement]]) -> Iterator[LocatedElement]:
    """Yield the next element of the part with the least taken measure over weight; of equal parts, the first."""
    ended = [False] * len(parts)
    taken = [0] * len(parts)
    count = 0
    while True:
        weights = [weights for start, weights in step.schedule if start <= count][-1]
        if any(start == count for start, _ in step.schedule):
            taken = [0] * len(parts)
        left = [number for number, weight in enumerate(weights) if weight and not ended[number]]
        if not left or (step.stop == "first" and len(left) < sum(weight > 0 for weight in weights)):
            return
        number = min(left, key=lambda each: (taken[each] / weights[each], each))
        try:
            element, location = next(parts[number])
        except StopIteration:
            ended[number] = True
            continue
        yield element, within(location, step.names[number])
        taken[number] += measured(step, element)
        count += 1


def measured(step: StreamingMix, element: Element) -> int:
    """Return the measure of an element."""
    if step.measure is None:
        return 1
    amount = step.measure(element)
    if type(amount) is int and amount >= 0:  # the usual case
        return amount
    if isinstance(amount, bool) or not hasattr(amount, "__index__") or amount.__index__() < 0:
        raise GraphError(f"measure must return a whole number of at least 0; got {amount!r}")
    return amount.__index__()


@frozen
class StreamingMixStage:
    """Elements of several parts in the ratio of their weights."""

    step: StreamingMix
    parts: tuple[Stage, ...]

    def start(self) -> Token:
        return (0, (0,) * len(self.parts), tuple(part.start() for part in self.parts))

    def run(self, token: Token, /) -> Iterator[Chunk]:
        inputs = [_Input(part, at) for part, at in zip(self.parts, token[2], strict=True)]
        turns = Turns(self.step, token)
        tokens = list(token[2])
        has_more = True
        while has_more:
            log: list[_Taken] = []
            most = decide(MIXTURE_ELEMENTS, _AT_ONCE)
            try:
                while has_more and len(log) < most:
                    has_more = self._take(inputs, turns, log)
            except Exception:
                yield self._chunk(token, log)
                raise
            yield self._chunk(token, log)
            newest = {part: (chunk, index) for part, chunk, index, _ in log}
            for part, (chunk, index) in newest.items():
                tokens[part] = None if chunk is None else chunk.afters[index]
            token = (turns.count, tuple(turns.taken), tuple(tokens))

    def _take(self, inputs: "list[_Input]", turns: "Turns", log: list[_Taken]) -> bool:
        """Take one element; return False at the end."""
        while (part := turns.next()) is not None:
            chunk = inputs[part].chunk()
            if chunk is None:
                turns.end(part)
                log.append(_Taken(part, None))
            else:
                index = inputs[part].index
                amount = measured(self.step, chunk.elements[index])
                inputs[part].index = index + 1
                turns.take(part, amount)
                log.append(_Taken(part, chunk, index, amount))
                return True
        return False

    def _chunk(self, token: Token, log: list[_Taken]) -> Chunk:
        """Return the elements of a log that began at a token."""
        found = [(number, entry.chunk, entry.number) for number, entry in enumerate(log) if entry.chunk is not None]
        elements = [chunk.elements[index] for _, chunk, index in found]

        def after(number: int) -> Token:
            return self._replayed(token, log[: found[number][0] + 1])

        def start(number: int) -> Token:
            # The log entries of parts that ended just before belong to this element.
            return self._replayed(token, log[: found[number - 1][0] + 1]) if number else token

        provenance = _gathered([(chunk.provenance, index) for _, chunk, index in found])
        return Chunk(elements, provenance, Lazy(len(found), start), Lazy(len(found), after))

    def _replayed(self, token: Token, log: list[_Taken]) -> Token:
        """Return the token after the entries of a log, which began at a token."""
        count, taken, tokens = token[0], list(token[1]), list(token[2])
        starts = {start for start, _ in self.step.schedule}
        for part, chunk, index, amount in log:
            if count in starts:  # the weights change here
                taken = [0] * len(taken)
            if chunk is None:
                tokens[part] = None
            else:
                count += 1
                taken[part] += amount
                tokens[part] = chunk.afters[index]
        return (count, tuple(taken), tuple(tokens))

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        return one_each(self, tokens)

    def check(self, token: Token, /) -> None:
        count, taken, tokens = parts_of(token, 3, of="a mixture")
        check_number(count, LARGEST, "a mixture")
        for amount in parts_of(taken, len(self.parts), of="a mixture"):
            check_number(amount, LARGEST, "a part of a mixture")
        for part, at in zip(self.parts, parts_of(tokens, len(self.parts), of="a mixture"), strict=True):
            if at is not None:
                part.check(at)

    def points(self, token: Token, /) -> tuple[Point, ...]:
        return _points(self.parts, token[2])

    def is_exhausted(self, token: Token, /) -> bool:
        return all(at is None or part.is_exhausted(at) for part, at in zip(self.parts, token[2], strict=True))


def _gathered(places: list[tuple[Provenance, int]]) -> Provenance:
    """Return rows of several arrays, with one indexing operation for each array."""
    gathered = np.empty((len(places), no_provenance().shape[1]), np.int64)
    rows_of: dict[int, tuple[Provenance, list[int], list[int]]] = {}
    for row, (provenance, index) in enumerate(places):
        _, rows, indices = rows_of.setdefault(id(provenance), (provenance, [], []))
        rows.append(row)
        indices.append(index)
    for provenance, rows, indices in rows_of.values():
        if len(rows) == 1:  # indexing with a list costs several times as much
            gathered[rows[0]] = provenance[indices[0]]
        else:
            gathered[rows] = provenance[indices]
    return gathered


class Turns:
    """The order of turns: the part of the next element, by weights and taken measures."""

    def __init__(self, step: StreamingMix, token: Token) -> None:
        self._step = step
        self.count: int = token[0]
        self.taken: list[int] = list(token[1])
        self._ended = [at is None for at in token[2]]
        self._enter()

    def _enter(self) -> None:
        """Set the weights for this count; where they change, the measures start at 0."""
        schedule = self._step.schedule
        if any(start == self.count for start, _ in schedule):
            self.taken = [0] * len(self.taken)
        self._weights = [weights for start, weights in schedule if start <= self.count][-1]
        self._until = next((start for start, _ in schedule if start > self.count), None)
        self._refresh()

    def _refresh(self) -> None:
        """Compute the progress of each part that has a weight and more elements."""
        pairs = list(zip(self._weights, self._ended, strict=True))
        progress = zip(self.taken, pairs, strict=True)
        # A heap, whose least item is the part furthest behind, of equal ones the first.
        self._progress = [
            (taken / weight, part) for part, (taken, (weight, ended)) in enumerate(progress) if weight and not ended
        ]
        heapq.heapify(self._progress)
        if self._step.stop == "first" and any(weight > 0 and ended for weight, ended in pairs):
            self._progress = []

    def next(self) -> int | None:
        """Return the number of the part that is next, or None at the end."""
        if self.count == self._until:
            self._enter()
        return self._progress[0][1] if self._progress else None

    def take(self, part: int, amount: int) -> None:
        """Count an element of the part that is next."""
        self.count += 1
        self.taken[part] = taken = self.taken[part] + amount
        heapq.heapreplace(self._progress, (taken / self._weights[part], part))

    def end(self, part: int) -> None:
        """Note that a part has ended."""
        self._ended[part] = True
        self._refresh()


class _Input:
    """The elements of one part."""

    def __init__(self, stage: Stage, token: Token) -> None:
        self._chunks = iter(()) if token is None else stage.run(token)
        self._chunk: Chunk | None = None
        self.index = 0

    def chunk(self) -> Chunk | None:
        """Return the chunk in which `index` is the next element, read if necessary; None at the end."""
        while self._chunk is None or self.index >= len(self._chunk.elements):
            self._chunk, self.index = next(self._chunks, None), 0
            if self._chunk is None:
                return None
        return self._chunk


@frozen
class ChainStage:
    """All of the first part, then all of the second, and so on."""

    parts: tuple[Stage, ...]

    def start(self) -> Token:
        return tuple(part.start() for part in self.parts)

    def run(self, token: Token, /) -> Iterator[Chunk]:
        for number, (part, at) in enumerate(zip(self.parts, token, strict=True)):
            if at is not None:
                for chunk in part.run(at):
                    yield chunk.wrapped(partial(_within_parts, (None,) * number, token[number + 1 :]))

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        return one_each(self, tokens)

    def check(self, token: Token, /) -> None:
        for part, at in zip(self.parts, parts_of(token, len(self.parts), of="concatenate()"), strict=True):
            if at is not None:
                part.check(at)

    def points(self, token: Token, /) -> tuple[Point, ...]:
        return _points(self.parts, token)

    def is_exhausted(self, token: Token, /) -> bool:
        return all(at is None or part.is_exhausted(at) for part, at in zip(self.parts, token, strict=True))


def zipped(step: Zip, parts: list[Iterator[LocatedElement]]) -> Iterator[LocatedElement]:
    """Yield one element of each part as one element, with the location of the first part's: the definition."""
    while True:
        following = [next(part, None) for part in parts]
        row = [one for one in following if one is not None]
        if len(row) < len(parts):
            if step.unequal == "error" and row:
                raise GraphError("zip needs parts of equal lengths")
            return
        yield zipped_element(step, [element for element, _ in row]), within(row[0][1], step.names[0])


@frozen
class ZipStage:
    """One element of each part, as a tuple or dict."""

    step: Zip
    parts: tuple[Stage, ...]

    def start(self) -> Token:
        return tuple(part.start() for part in self.parts)

    def run(self, token: Token, /) -> Iterator[Chunk]:
        streams = [part.run(at) for part, at in zip(self.parts, token, strict=True)]
        pending = [Pending() for _ in self.parts]
        while True:
            for stream, held in zip(streams, pending, strict=True):
                while not held.count and (chunk := next(stream, None)) is not None:
                    held.add(chunk)
            count = min(held.count for held in pending)
            if count == 0:
                self._check_end(pending)
                return
            for _ in range(count):
                taken = [held.take(1) for held in pending]
                element = zipped_element(self.step, [one.elements[0] for one in taken])
                start, after = tuple(one.start for one in taken), tuple(one.after for one in taken)
                yield Chunk([element], taken[0].provenance, (start,), (after,))

    def _check_end(self, pending: list[Pending]) -> None:
        longer = [name for name, held in zip(self.step.names, pending, strict=True) if held.count]
        if longer and self.step.unequal == "error":
            raise GraphError(
                f"zip needs parts of equal lengths; {longer} had elements left when another part had ended. Pass "
                'unequal="shortest" to end with the shortest.'
            )

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        parts = [part.reproduce([token[number] for token in tokens]) for number, part in enumerate(self.parts)]
        elements = [
            zipped_element(self.step, list(row)) for row in zip(*(elements for elements, _ in parts), strict=True)
        ]
        return elements, parts[0][1]

    def check(self, token: Token, /) -> None:
        for part, at in zip(self.parts, parts_of(token, len(self.parts), of="zip()"), strict=True):
            part.check(at)

    def points(self, token: Token, /) -> tuple[Point, ...]:
        return _points(self.parts, token)

    def is_exhausted(self, token: Token, /) -> bool:
        return any(part.is_exhausted(at) for part, at in zip(self.parts, token, strict=True))


def _within_parts(before: tuple[Token, ...], behind: tuple[Token, ...], token: Token) -> Token:
    return (*before, token, *behind)


def _points(parts: tuple[Stage, ...], tokens: tuple[Token, ...]) -> tuple[Point, ...]:
    """Return the progress of the inputs of all parts; the token of a part that has ended is None."""
    found: list[Point] = []
    for part, at in zip(parts, tokens, strict=True):
        found += part.points(at) if at is not None else (_END,) * len(part.points(part.start()))
    return tuple(found)
