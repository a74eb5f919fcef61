"""The stages of `map` and `filter` above a step that is read in order. A token is the parent's."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from penstock._caught import Caught
from penstock._frozen import frozen
from penstock._graph import DROPPED, Context, Element, Filter, Map, apply_block, apply_into, element_at, whereabouts
from penstock._streaming._chunk import Chunk, Provenance, Token
from penstock._streaming._locations import InputRef, StreamedLocations
from penstock._streaming._stage import Point, Stage


@frozen
class MapStage:
    """A function of each element."""

    step: Map
    below: Stage
    inputs: Mapping[int, InputRef]
    context: Context

    def start(self) -> Token:
        return self.below.start()

    def run(self, token: Token, /) -> Iterator[Chunk]:
        for chunk in self.below.run(token):
            results: list[Element] = []
            with Caught(Exception) as caught:
                locations = StreamedLocations(self.inputs, chunk.provenance)
                apply_into(results, self.step, chunk.elements, locations, self.context, element_at)
            if caught.error is None:
                yield _kept(chunk, results)
                continue
            yield _kept(chunk.part(0, len(results)), results)
            raise caught.taken()

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        elements, provenance = self.below.reproduce(tokens)
        locations = StreamedLocations(self.inputs, provenance)
        return apply_block(self.step, elements, locations, self.context, element_at), provenance

    def check(self, token: Token, /) -> None:
        self.below.check(token)

    def points(self, token: Token, /) -> tuple[Point, ...]:
        return self.below.points(token)

    def is_exhausted(self, token: Token, /) -> bool:
        return self.below.is_exhausted(token)


def _kept(chunk: Chunk, results: list[Element]) -> Chunk:
    if not any(result is DROPPED for result in results):
        return chunk._replace(elements=results, stacked=None)
    kept = np.array([number for number, result in enumerate(results) if result is not DROPPED], np.int64)
    return chunk.pick(kept, [result for result in results if result is not DROPPED])


@frozen
class FilterStage:
    """The elements for which a predicate is true."""

    step: Filter
    below: Stage
    inputs: Mapping[int, InputRef]
    context: Context

    def start(self) -> Token:
        return self.below.start()

    def run(self, token: Token, /) -> Iterator[Chunk]:
        for chunk in self.below.run(token):
            locations = StreamedLocations(self.inputs, chunk.provenance)
            kept: list[int] = []
            for index, element in enumerate(chunk.elements):
                try:
                    if self.step.predicate(element):
                        kept.append(index)
                except Exception as error:
                    error.add_note(whereabouts(self.step, locations.at(index)))
                    self.context.filtered(self.step, len(kept), index - len(kept))
                    yield _picked(chunk, kept)
                    raise
            self.context.filtered(self.step, len(kept), len(chunk.elements) - len(kept))
            yield _picked(chunk, kept)

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        # The tokens are of elements for which the predicate was true.
        return self.below.reproduce(tokens)

    def check(self, token: Token, /) -> None:
        self.below.check(token)

    def points(self, token: Token, /) -> tuple[Point, ...]:
        return self.below.points(token)

    def is_exhausted(self, token: Token, /) -> bool:
        return self.below.is_exhausted(token)


def _picked(chunk: Chunk, kept: list[int]) -> Chunk:
    return chunk.pick(np.array(kept, np.int64), [chunk.elements[number] for number in kept])
