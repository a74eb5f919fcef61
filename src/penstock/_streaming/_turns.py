"""Parts that take turns, in order: `mix` and `interleave`.

The next element is from the part that is furthest behind: the one with the least taken measure over weight, of equal
ones the first. That is integers and one IEEE division, so it is the same on every machine. When the weights change, the
measures start again at 0. The generator `TakingTurns.in_order` is the definition.

An entry of the schedule whose parts have all ended is skipped: the next one begins early, as in `WeightedMixture`.

A token of the stage is (the number of elements so far, the parts' taken measures, the parts' tokens); the token of a
part that has ended is None. The entry that counts is no part of it, since the count and the ended parts determine it.
The measures are those after the last element. Whether they start again before the next one is known by comparing the
entries that count for the two.
"""

import heapq
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from penstock._caught import is_interrupt
from penstock._decisions import MIXTURE_ELEMENTS, decide
from penstock._graph import Element
from penstock._streaming._combine import CombineStage, Combining, PartInput, check_parts
from penstock._streaming._policy import CHUNK_SECONDS, MAX_MIXTURE_ELEMENTS
from penstock._streaming._stage import (
    LARGEST,
    Chunk,
    Lazy,
    LocatedElement,
    Provenance,
    Token,
    check_number,
    no_provenance,
    parts_of,
    within,
)
from penstock.errors import GraphError

Schedule: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""The weights of all parts from each count of elements on."""

Measure: TypeAlias = Callable[[Element], Any]


class Shares(NamedTuple):
    """The shares of the parts."""

    schedule: Schedule
    stop: Literal["first", "all"]
    """Whether the elements end with the first part that ends, or with the last."""
    measure: Measure | None = None
    """Returns the amount by which an element counts towards its part's share; None counts 1."""

    def entry(self, count: int, ended: Sequence[bool]) -> int | None:
        """Return the number of the schedule's entry for the next element; None at the end.

        Args:
            count: the number of elements before it.
            ended: whether each part is known to have ended.
        """
        first = sum(start <= count for start, _ in self.schedule) - 1
        for number in range(first, len(self.schedule)):
            ends = [end for end, weight in zip(ended, self.schedule[number][1], strict=True) if weight]
            if self.stop == "first" and any(ends):
                return None
            if not all(ends):
                return number
        return None

    def measured(self, element: Element) -> int:
        """Return the measure of an element."""
        if self.measure is None:
            return 1
        amount = self.measure(element)
        if type(amount) is int and amount >= 0:  # the usual case
            return amount
        if isinstance(amount, bool) or not hasattr(amount, "__index__") or amount.__index__() < 0:
            raise GraphError(f"measure must return a whole number of at least 0; got {amount!r}")
        return int(amount.__index__())


class TakingTurns(Combining):
    """The value of a step whose parts take turns by their shares."""

    __slots__ = ()

    @abstractmethod
    def shares(self, parts: int) -> Shares:
        """Return the shares of a number of parts."""

    def in_order(self, names: tuple[str, ...], parts: list[Iterator[LocatedElement]]) -> Iterator[LocatedElement]:
        """Yield the next element of the part with the least taken measure over weight; of equal parts, the first."""
        shares = self.shares(len(parts))
        ended = [False] * len(parts)
        taken = [0] * len(parts)
        count = last = 0
        while (entry := shares.entry(count, ended)) is not None:
            if entry != last:
                taken, last = [0] * len(parts), entry
            weights = shares.schedule[entry][1]
            left = [number for number, weight in enumerate(weights) if weight and not ended[number]]
            number = min(left, key=lambda each: (taken[each] / weights[each], each))
            try:
                element, location = next(parts[number])
            except StopIteration:
                ended[number] = True
                continue
            taken[number] += shares.measured(element)  # before the consumer gets the element, which it may change
            count += 1
            yield element, within(location, names[number])

    def start(self, parts: tuple[Token, ...]) -> Token:
        return (0, (0,) * len(parts), parts)

    def tokens(self, token: Token) -> Token:
        _, _, tokens = token
        return tokens

    def check_token(self, stage: CombineStage, token: Token) -> None:
        count, taken, tokens = parts_of(token, 3, of="a mixture")
        check_number(count, LARGEST, "a mixture")
        for amount in parts_of(taken, len(stage.parts), of="a mixture"):
            check_number(amount, LARGEST, "a part of a mixture")
        check_parts(stage, tokens, of="a mixture")

    def run(self, stage: CombineStage, token: Token) -> Iterator[Chunk]:
        shares = self.shares(len(stage.parts))
        tokens = list(self.tokens(token))
        inputs = [PartInput(part, at) for part, at in zip(stage.parts, tokens, strict=True)]
        turns = _Turns(shares, token)
        has_more = True
        while has_more:
            log: list[_Taken] = []
            most, began = decide(MIXTURE_ELEMENTS, MAX_MIXTURE_ELEMENTS), time.perf_counter()
            try:
                while has_more and len(log) < most and time.perf_counter() - began <= CHUNK_SECONDS:
                    has_more = _take(shares, inputs, turns, log)
            except BaseException as error:
                if is_interrupt(error):
                    raise
                yield _chunk(shares, token, log)
                raise
            yield _chunk(shares, token, log)
            newest = {part: (chunk, index) for part, chunk, index, _ in log}
            for part, (chunk, index) in newest.items():
                tokens[part] = None if chunk is None else chunk.afters[index]
            token = (turns.count, tuple(turns.taken), tuple(tokens))


class _Taken(NamedTuple):
    """An entry in a chunk's log: an element of a part, or, without a chunk, the end of a part."""

    part: int
    chunk: Chunk | None
    number: int = 0
    amount: int = 0


def _take(shares: Shares, inputs: list[PartInput], turns: "_Turns", log: list[_Taken]) -> bool:
    """Take one element; return False at the end."""
    while (part := turns.next()) is not None:
        source = inputs[part]
        if source.available():
            chunk, index = source.chunk, source.index
            amount = shares.measured(chunk.elements[index])
            source.index = index + 1
            turns.take(part, amount)
            log.append(_Taken(part, chunk, index, amount))
            return True
        turns.end(part)
        log.append(_Taken(part, None))
    return False


def _chunk(shares: Shares, token: Token, log: list[_Taken]) -> Chunk:
    """Return the elements of a log that began at a token."""
    found = [(number, entry.chunk, entry.number) for number, entry in enumerate(log) if entry.chunk is not None]
    elements = [chunk.elements[index] for _, chunk, index in found]

    def after(number: int) -> Token:
        return _replayed(shares, token, log[: found[number][0] + 1])

    def start(number: int) -> Token:
        # The log entries of parts that ended just before belong to this element.
        return _replayed(shares, token, log[: found[number - 1][0] + 1]) if number else token

    provenance = _gathered([(chunk.provenance, index) for _, chunk, index in found])
    return Chunk(elements, provenance, Lazy(len(found), start), Lazy(len(found), after))


def _replayed(shares: Shares, token: Token, log: list[_Taken]) -> Token:
    """Return the token after the entries of a log, which began at a token."""
    count, taken, tokens = token
    taken, tokens = list(taken), list(tokens)
    ended = [at is None for at in tokens]
    starts = {start for start, _ in shares.schedule}
    last = shares.entry(max(count - 1, 0), ended)
    may_change = True  # the entry that counts
    for part, chunk, index, amount in log:
        if chunk is None:
            tokens[part], ended[part], may_change = None, True, True
        else:
            if may_change or count in starts:
                before, last, may_change = last, shares.entry(count, ended), False
                taken = taken if last == before else [0] * len(taken)
            count += 1
            taken[part] += amount
            tokens[part] = chunk.afters[index]
    return (count, tuple(taken), tuple(tokens))


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


class _Turns:
    """The order of turns: the part of the next element, by weights and taken measures."""

    def __init__(self, shares: Shares, token: Token) -> None:
        self._shares = shares
        count, taken, tokens = token
        self.count: int = count
        self.taken: list[int] = list(taken)
        self._ended = [at is None for at in tokens]
        self._entry = shares.entry(max(self.count - 1, 0), self._ended)
        self._enter()

    def _enter(self) -> None:
        """Set the weights for the next element, and the progress of each part; measures of other weights start at 0."""
        before, self._entry = self._entry, self._shares.entry(self.count, self._ended)
        self._until = next((start for start, _ in self._shares.schedule if start > self.count), None)
        # A heap, whose least item is the part furthest behind, of equal ones the first.
        self._progress: list[tuple[float, int]] = []
        if self._entry is None:
            return
        if self._entry != before:
            self.taken = [0] * len(self.taken)
        self._weights = self._shares.schedule[self._entry][1]
        parts = enumerate(zip(self.taken, self._weights, self._ended, strict=True))
        self._progress = [(taken / weight, part) for part, (taken, weight, ended) in parts if weight and not ended]
        heapq.heapify(self._progress)

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
        self._enter()
