"""Steps that pass on elements one by one: `map`, `filter`, and the splits `flat_map` and `unbatch`.

A token of `map` and `filter` is the parent's.

A split makes several elements, here called rows, of one parent element. Their token is (the parent
element's start, the number of its rows before). If that number is not 0, the token also has the parent element's
`after`, so that a deal to other ranks keeps the element's other rows.
"""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from penstock._caught import CaughtFailure, add_note, is_interrupt
from penstock._decisions import FUNCTION_ELEMENTS, PARENT_ELEMENTS, Decision, decide
from penstock._frozen import frozen
from penstock._graph import (
    DROPPED,
    Context,
    Element,
    Filter,
    Integers,
    Location,
    Map,
    Split,
    apply_block,
    apply_into,
    element_at,
    list_splitting_of,
    nested_ordinals,
    row_location,
    whereabouts,
)
from penstock._streaming._empty_passes import empty_pieces_of
from penstock._streaming._policy import CHUNK_ELEMENTS, CHUNK_SECONDS, INPUT_ELEMENTS
from penstock._streaming._stage import (
    LARGEST,
    ORDINAL,
    Chunk,
    InputProgress,
    InputRef,
    Lazy,
    LocatedElement,
    Provenance,
    SameTokenStage,
    Stage,
    StreamedLocations,
    Token,
    check_enough,
    check_held,
    check_number,
    no_provenance,
    parts_of,
    refuse,
)


class _Pace:
    """The number of elements whose results are passed on together: as many as a function computes in 2 ms.

    A chunk may be a whole window, or all rows of an element. With all at once, the first result would wait for the last
    one, and all would be in memory together.
    """

    __slots__ = ("_at_once", "_decision", "_most")

    def __init__(self, decision: Decision, most: int) -> None:
        self._decision = decision
        self._most = most  # elements, and results
        self._at_once = 1

    def parts(self, chunk: Chunk) -> Iterator[Chunk]:
        """Yield the parts of a chunk; a chunk that isn't larger than one part is yielded itself."""
        start, count = 0, len(chunk.elements)
        while (stop := start + decide(self._decision, self._at_once)) < count:
            yield chunk.part(start, stop)
            start = stop
        yield chunk.part(start, count) if start else chunk

    def took(self, began: float, given: int, made: int) -> None:
        """Set the size of the next part, once one is computed.

        Args:
            began: when its computation began, by `time.perf_counter`.
            given: the number of its elements.
            made: the number of results.
        """
        if made > self._most or time.perf_counter() - began >= CHUNK_SECONDS:
            self._at_once = max(min(self._at_once, given) // 2, 1)
        elif given >= self._at_once:
            self._at_once = min(self._at_once * 2, self._most)


@frozen
class MapStage(SameTokenStage):
    """A function of each element."""

    step: Map
    below: Stage
    inputs: Mapping[int, InputRef]
    context: Context

    def run(self, token: Token, /) -> Iterator[Chunk]:
        pace = _Pace(FUNCTION_ELEMENTS, INPUT_ELEMENTS)
        is_paced = not hasattr(self.step.function, "apply_block")  # the cost of its calls may hardly depend on the size
        for chunk in self.below.run(token):
            for part in pace.parts(chunk) if is_paced else (chunk,):
                yield from self._applied(part, pace)

    def _applied(self, chunk: Chunk, pace: _Pace) -> Iterator[Chunk]:
        results: list[Element] = []
        began = time.perf_counter()
        with CaughtFailure() as caught:
            locations = StreamedLocations(self.inputs, chunk.provenance)
            self.context.times.begin(self.step)
            apply_into(results, self.step, chunk.elements, locations, self.context, element_at)
        self.context.times.lap(self.step, len(results))
        pace.took(began, len(chunk.elements), len(results))
        if caught.error is None:
            yield _without_dropped(chunk, results)
            return
        yield _without_dropped(chunk.part(0, len(results)), results)
        raise caught.taken()

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        elements, provenance = self.below.reproduce(tokens)
        locations = StreamedLocations(self.inputs, provenance)
        return apply_block(self.step, elements, locations, self.context, element_at), provenance


def _without_dropped(chunk: Chunk, results: list[Element]) -> Chunk:
    """Return the chunk with the results in place of its elements, without those that are DROPPED."""
    if not any(result is DROPPED for result in results):
        return chunk._replace(elements=results, stacked=None)
    kept = np.array([number for number, result in enumerate(results) if result is not DROPPED], np.int64)
    return chunk.pick(kept, [result for result in results if result is not DROPPED])


@frozen
class FilterStage(SameTokenStage):
    """The elements for which a predicate is true."""

    step: Filter
    below: Stage
    inputs: Mapping[int, InputRef]
    context: Context

    def run(self, token: Token, /) -> Iterator[Chunk]:
        pace = _Pace(FUNCTION_ELEMENTS, INPUT_ELEMENTS)
        for chunk in self.below.run(token):
            for part in pace.parts(chunk):
                yield from self._kept(part, pace)

    def _kept(self, chunk: Chunk, pace: _Pace) -> Iterator[Chunk]:
        locations = StreamedLocations(self.inputs, chunk.provenance)
        kept: list[int] = []
        began = time.perf_counter()
        self.context.times.begin(self.step)
        for index, element in enumerate(chunk.elements):
            try:
                if self.step.predicate(element):
                    kept.append(index)
            except BaseException as error:
                if is_interrupt(error):
                    raise
                add_note(error, whereabouts(self.step, locations.at(index)))
                self.context.filtered(self.step, len(kept), index - len(kept))
                yield _only(chunk, kept)
                raise
        self.context.times.lap(self.step, len(kept))
        self.context.filtered(self.step, len(kept), len(chunk.elements) - len(kept))
        pace.took(began, len(chunk.elements), len(kept))
        yield _only(chunk, kept)

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        # The tokens are of elements for which the predicate was true.
        return self.below.reproduce(tokens)


def _only(chunk: Chunk, kept: list[int]) -> Chunk:
    """Return the chunk of the elements with some numbers."""
    return chunk.pick(np.array(kept, np.int64), [chunk.elements[number] for number in kept])


def split(step: Split, below: Iterator[LocatedElement], context: Context) -> Iterator[LocatedElement]:
    """Yield the pieces of each element: the definition."""
    value, empty = list_splitting_of(step), empty_pieces_of(step)
    for element, location in below:
        pieces = value.split(step, element, partial(_same, location), context, element_at)
        if empty is not None:
            empty.read([pieces])
        for number, piece in enumerate(pieces):
            yield piece, row_location(location, number)


def _same(location: Location) -> Location:
    return location


@frozen
class RowsStage:
    """The rows of each parent element."""

    step: Split
    below: Stage
    inputs: Mapping[int, InputRef]
    context: Context

    def start(self) -> Token:
        return (self.below.start(), 0)

    def run(self, token: Token, /) -> Iterator[Chunk]:
        below, skip, *after = token
        pace, empty = _Pace(PARENT_ELEMENTS, CHUNK_ELEMENTS), empty_pieces_of(self.step)
        for chunk in self.below.run(below):
            for parents in pace.parts(chunk) if chunk.elements else ():
                if skip:
                    check_held(parents.afters[0], after[0], "an element with several rows")
                began = time.perf_counter()
                lists: list[list[Element]] = []
                with CaughtFailure() as caught:
                    self.context.times.begin(self.step)
                    self._split(lists, parents.elements, parents.provenance)
                rows = sum(map(len, lists))
                self.context.times.lap(self.step, rows)
                pace.took(began, len(parents.elements), rows)
                if empty is not None:
                    empty.read(lists)  # elements before those that are too many were in other parts
                if lists and skip:
                    check_enough(skip, len(lists[0]), "an element with several rows")
                if lists:
                    yield _chunk_of_rows(lists, skip, parents)
                    skip = 0
                if caught.error is not None:
                    raise caught.taken()

    def _split(self, lists: list[list[Element]], elements: list[Element], provenance: Provenance) -> None:
        """Add the rows of each element to an empty list; after an error the list has those before it."""
        locations = StreamedLocations(self.inputs, provenance)
        list_splitting_of(self.step).split_into(lists, self.step, elements, locations, self.context, element_at)

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        if not tokens:
            return [], no_provenance()
        places = [(parent, row) for parent, row, *_ in tokens]
        parents = list(dict.fromkeys(parent for parent, _ in places))  # each parent is computed once
        elements, provenance = self.below.reproduce(parents)
        lists: list[list[Element]] = []
        self._split(lists, elements, provenance)
        split = dict(zip(parents, zip(lists, provenance, strict=True), strict=True))
        found: list[Element] = []
        found_provenance: list[Provenance] = []
        for parent, row in places:
            rows, mark = split[parent]
            check_enough(row, len(rows), "an element with several rows")
            found.append(rows[row])
            found_provenance.append(_provenance_of_rows(mark[None], np.zeros(1, np.int64), np.array([row], np.int64)))
        return found, np.concatenate(found_provenance)

    def check(self, token: Token, /) -> None:
        start, *more = parts_of(token, 2, 3, of=self.step.value.text)
        self.below.check(start)
        skip = check_number(more[0], LARGEST, self.step.value.text)
        if bool(skip) != (len(more) > 1):
            refuse(token, f"{self.step.value.text} has the end of an element some of whose rows were delivered")
        if skip:
            self.below.check(more[1])

    def progress(self, token: Token, /) -> tuple[InputProgress, ...]:
        return self.below.progress(self.read_to(token))

    def read_to(self, token: Token) -> Token:
        """Return the parent's token behind the last element that was read."""
        below, delivered, *after = token
        return after[0] if delivered else below

    def is_exhausted(self, token: Token, /) -> bool:
        below, delivered, *_ = token
        return delivered == 0 and self.below.is_exhausted(below)


def _chunk_of_rows(lists: list[list[Element]], skip: int, parents: Chunk) -> Chunk:
    """Return the chunk of the rows of some parents, without the first `skip` rows of the first parent."""
    elements = list(itertools.chain.from_iterable(lists))[skip:]
    counts = np.array([len(rows) for rows in lists], np.int64)
    bounds = np.cumsum(counts)
    which = np.repeat(np.arange(len(lists)), counts)[skip:]
    rows = np.arange(skip, skip + len(elements)) - (bounds - counts)[which]

    def before(number: int) -> Token:
        parent, row = which.item(number), rows.item(number)
        start = parents.starts[parent]
        return (start, row, parents.afters[parent]) if row else (start, 0)

    def after(number: int) -> Token:
        parent, row = which.item(number), rows.item(number) + 1
        after_it = parents.afters[parent]
        return (after_it, 0) if row == len(lists[parent]) else (parents.starts[parent], row, after_it)

    provenance = _provenance_of_rows(parents.provenance, which, rows)
    return Chunk(elements, provenance, Lazy(len(elements), before), Lazy(len(elements), after))


def _provenance_of_rows(parents: Provenance, which: Integers, rows: Integers) -> Provenance:
    """Return the provenance of rows, given that of the parents, and each row's parent and number in it."""
    provenance: Provenance = parents[which]
    provenance[:, ORDINAL] = nested_ordinals(provenance[:, ORDINAL], rows)
    return provenance
