"""The fold `window_shuffle`: windows of consecutive elements, each in a random order.

A token of the stage is (the window's start, the number of its elements before). If
that number is not 0, the token also has the window's `after`. To resume, the stage computes the elements of the one
window again.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Self

import numpy as np

from penstock._frozen import frozen
from penstock._graph import Element, RandomStream
from penstock._seeds import derive
from penstock._streaming._fold import Folding, FoldStage
from penstock._streaming._stage import (
    Chunk,
    Group,
    Lazy,
    LocatedElement,
    Provenance,
    Token,
    check_enough,
    check_held,
    check_number,
    groups,
    no_provenance,
    parts_of,
    refuse,
)
from penstock.errors import StateError
from penstock.sampling import Permutation


@frozen
class WindowShuffle(Folding):
    """Windows of `size` consecutive elements, each in a random order of its own."""

    size: int
    name: str
    seed: int

    @property
    def text(self) -> str:
        return f"window_shuffle({self.size})"

    @property
    def order_text(self) -> str:
        return f"window_shuffle {self.size} {self.seed}"

    @property
    def random(self) -> RandomStream:
        return RandomStream(self.name, self.seed)

    def with_seed(self, seed: int) -> Self:
        return replace(self, seed=seed)

    @property
    def passes_all(self) -> bool:
        return True

    @property
    def state_text(self) -> str:
        return f"the place in a window; up to {self.size:,} elements are computed again"

    def start(self, below: Token) -> Token:
        return (below, 0)

    def in_order(self, below: Iterator[LocatedElement]) -> Iterator[LocatedElement]:
        while window := list(itertools.islice(below, self.size)):
            order = self._order(len(window), window[0][1].address)
            yield from (window[number] for number in order.tolist())

    def _order(self, count: int, address: tuple[int, int, int]) -> "np.typing.NDArray[np.int64]":
        """Return the order of a window's elements: a permutation that derives from the first element's address."""
        return Permutation(count, derive(self.seed, *address)).block(np.arange(count, dtype=np.int64))

    def run(self, stage: FoldStage, token: Token) -> Iterator[Chunk]:
        start, skip, *after = token
        for window in groups(stage.below.run(start), self.size):
            if skip:
                check_held(window.after, after[0], f"a window of {self.size}")
                check_enough(skip, len(window.elements), f"a window of {self.size}")
            chunk = self._shuffled(stage, window)
            yield chunk.part(skip, len(chunk.elements))
            skip = 0

    def _shuffled(self, stage: FoldStage, window: Group) -> Chunk:
        count = len(window.elements)
        order = self._order(count, stage.location(window.provenance, 0).address)

        def token(number: int) -> Token:
            if number == count:
                return (window.after, 0)
            return (window.start, number, window.after) if number else (window.start, 0)

        numbers: list[int] = order.tolist()
        elements = [window.elements[number] for number in numbers]
        rows = window.rows()
        rows = None if rows is None else [rows[number] for number in numbers]
        afters = Lazy(count, lambda index: token(index + 1))
        return Chunk(elements, window.provenance[order], Lazy(count, token), afters, rows)

    def reproduce(self, stage: FoldStage, tokens: Sequence[Token]) -> tuple[list[Element], Provenance]:
        shuffled: dict[Token, Chunk] = {}
        places = [(start, number) for start, number, *_ in tokens]
        for start in dict.fromkeys(start for start, _ in places):
            window = next(groups(stage.below.run(start), self.size), None)
            if window is None:
                raise StateError(f"the state has a token of a window of {self.size} after the last one")
            shuffled[start] = self._shuffled(stage, window)
        for start, number in places:
            check_enough(number, len(shuffled[start].elements), f"a window of {self.size}")
        elements = [shuffled[start].elements[number] for start, number in places]
        provenance = [shuffled[start].provenance[number : number + 1] for start, number in places]
        return elements, np.concatenate(provenance) if provenance else no_provenance()

    def check_token(self, stage: FoldStage, token: Token) -> None:
        start, *more = parts_of(token, 2, 3, of="window_shuffle()")
        stage.below.check(start)
        skip = check_number(more[0], self.size - 1, "window_shuffle()")
        if bool(skip) != (len(more) > 1):
            refuse(token, "window_shuffle() has the end of a window some of whose elements were delivered")
        if skip:
            stage.below.check(more[1])

    def read_to(self, token: Token) -> Token:
        start, delivered, *after = token
        return after[0] if delivered else start
