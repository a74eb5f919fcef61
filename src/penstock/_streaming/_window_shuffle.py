"""The fold `window_shuffle`: windows of consecutive elements, each in a random order.

`window_shuffled` is the definition. A token of the stage is (the window's start, the number of its elements before). If
that number is not 0, the token also has the window's `after`. To resume, the stage computes the elements of the one
window again.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Self

import numpy as np

from penstock._frozen import frozen
from penstock._graph import Element, RandomStream
from penstock._seeds import derive
from penstock._streaming._fold import Folding, OpenedBelow
from penstock._streaming._stage import (
    Chunk,
    Group,
    InputRef,
    Lazy,
    LocatedElement,
    Point,
    Provenance,
    Stage,
    StreamedLocations,
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

    def in_order(self, below: Iterator[LocatedElement]) -> Iterator[LocatedElement]:
        return window_shuffled(self, below)

    def open(self, below: OpenedBelow) -> Stage:
        return WindowShuffleStage(self, below.stage, below.inputs)


def window_shuffled(step: WindowShuffle, below: Iterator[LocatedElement]) -> Iterator[LocatedElement]:
    """Yield the elements of each window in its order, which derives from the address of the first one."""
    while window := list(itertools.islice(below, step.size)):
        order = window_order(step, len(window), window[0][1].address)
        yield from (window[number] for number in order.tolist())


def window_order(step: WindowShuffle, count: int, address: tuple[int, int, int]) -> "np.typing.NDArray[np.int64]":
    """Return the order of a window's elements: a permutation that derives from the first element's address."""
    return Permutation(count, derive(step.seed, *address)).block(np.arange(count, dtype=np.int64))


@frozen
class WindowShuffleStage:
    """Windows in a random order that derives from the seed position of the window's first element."""

    step: WindowShuffle
    below: Stage
    inputs: Mapping[int, InputRef]

    def start(self) -> Token:
        return (self.below.start(), 0)

    def run(self, token: Token, /) -> Iterator[Chunk]:
        skip = token[1]
        for window in groups(self.below.run(token[0]), self.step.size):
            if skip:
                check_held(window.after, token[2], f"a window of {self.step.size}")
                check_enough(skip, len(window.elements), f"a window of {self.step.size}")
            chunk = self._shuffled(window)
            yield chunk.part(skip, len(chunk.elements))
            skip = 0

    def _shuffled(self, window: Group) -> Chunk:
        count = len(window.elements)
        first = StreamedLocations(self.inputs, window.provenance[:1]).at(0)
        order = window_order(self.step, count, first.address)

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

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        shuffled: dict[Token, Chunk] = {}
        for token in tokens:
            window = next(groups(self.below.run(token[0]), self.step.size), None)
            if window is None:
                raise StateError(f"the state has a token of a window of {self.step.size} after the last one")
            shuffled[token[0]] = self._shuffled(window)
        for token in tokens:
            check_enough(token[1], len(shuffled[token[0]].elements), f"a window of {self.step.size}")
        elements = [shuffled[token[0]].elements[token[1]] for token in tokens]
        provenance = [shuffled[token[0]].provenance[token[1] : token[1] + 1] for token in tokens]
        return elements, np.concatenate(provenance) if provenance else no_provenance()

    def check(self, token: Token, /) -> None:
        start, *more = parts_of(token, 2, 3, of="window_shuffle()")
        self.below.check(start)
        skip = check_number(more[0], self.step.size - 1, "window_shuffle()")
        if bool(skip) != (len(more) > 1):
            refuse(token, "window_shuffle() has the end of a window some of whose elements were delivered")
        if skip:
            self.below.check(more[1])

    def points(self, token: Token, /) -> tuple[Point, ...]:
        return self.below.points(token[2] if token[1] else token[0])

    def is_exhausted(self, token: Token, /) -> bool:
        return token[1] == 0 and self.below.is_exhausted(token[0])
