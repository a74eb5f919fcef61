"""Steps that take consecutive elements together: `batch` merges them, `window_shuffle` puts them in a random order.

The generators `batched` and `window_shuffled` are the definitions.

A token of `batch` is that of the first row. A token of `window_shuffle` is (the window's start, the number of its
elements before). If that number is not 0, the token also has the window's `after`. To resume, the stage computes the
elements of the one window again.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from penstock._frozen import frozen
from penstock._graph import Batch, Element, WindowShuffle, merge_block, merge_rows, with_mask
from penstock._seeds import derive
from penstock._streaming._stage import (
    Chunk,
    Group,
    InputRef,
    Lazy,
    LocatedElement,
    Pending,
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
    one_each,
    parts_of,
    refuse,
)
from penstock.batching import Stack
from penstock.errors import StateError
from penstock.sampling import Permutation


def batched(step: Batch, below: Iterator[LocatedElement], size: int) -> Iterator[LocatedElement]:
    """Yield batches of `size` elements, each with the location of its first row."""
    while rows := list(itertools.islice(below, size)):
        if len(rows) == size or step.remainder != "drop":
            yield merge_rows(step, [element for element, _ in rows], size), rows[0][1]


class Rest(list[Element]):
    """Rows at the end or before an error that make no batch. Functions are still applied to them, and may raise."""


@frozen
class BatchStage:
    """Batches of `size` elements: the step's size, or one rank's part of it."""

    step: Batch
    size: int
    below: Stage
    merges: bool = True
    """Whether rows are merged here; else each batch is a list of rows, which workers merge."""
    gives_rest: bool = False
    """Whether rows before an error, or that are dropped at the end, are yielded as a `Rest`."""

    def start(self) -> Token:
        return self.below.start()

    def run(self, token: Token, /) -> Iterator[Chunk]:
        pending = Pending()
        try:
            yield from self._full(token, pending)
        except Exception:
            if pending.count and self.gives_rest:
                yield _rest(pending)
            raise
        if pending.count and self.step.remainder != "drop":
            yield self._merged(pending.take(pending.count))
        elif pending.count and self.gives_rest:
            yield _rest(pending)

    def _full(self, token: Token, pending: Pending) -> Iterator[Chunk]:
        for chunk in self.below.run(token):
            if chunk.stacked is not None and self._stacks and len(chunk.elements) == self.size and not pending.count:
                batch = with_mask(self.step, chunk.stacked, self.size, self.size)
                yield Chunk([batch], chunk.provenance[:1], chunk.starts[:1], chunk.afters[-1:], [chunk.provenance])
                continue
            pending.add(chunk)
            while pending.count >= self.size:
                yield self._merged(pending.take(self.size))

    def _merged(self, group: Group) -> Chunk:
        rows = group.elements
        return group.chunk(merge_block(self.step, rows, self.size) if self.merges else rows)

    @property
    def _stacks(self) -> bool:
        """Whether the stacked form of a chunk's elements is a batch, which it isn't where batches are lists of rows."""
        return self.merges and isinstance(self.step.merge, Stack)

    def reproduce(self, tokens: Sequence[Token], /) -> tuple[list[Element], Provenance]:
        return one_each(self, tokens)

    def check(self, token: Token, /) -> None:
        self.below.check(token)

    def points(self, token: Token, /) -> tuple[Point, ...]:
        return self.below.points(token)

    def is_exhausted(self, token: Token, /) -> bool:
        return self.below.is_exhausted(token)


def _rest(pending: Pending) -> Chunk:
    group = pending.take(pending.count)
    return group._replace(after=group.start).chunk(Rest(group.elements))  # reading continues before these rows


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
