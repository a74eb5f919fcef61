"""Empty passes of a repeat without end: an error, in place of a wait that never ends.

The problem: filters and `on_error="skip"` may leave out every element. An epoch that has an end is then empty, which a
loader names. In a repeat without end, the reader would read pass after pass for ever.

The solution: each block input counts the elements that were left out since one was kept. After `EMPTY_PASSES` passes,
and at least `EMPTY_ELEMENTS` elements, the reading raises an error that names the steps. A `flat_map` holds nothing, so
the elements of which it made nothing count in the same way (`EmptyPieces`).

One empty pass is not enough: a random map below a filter draws other numbers in each pass, a sampler may choose other
elements, and one of several ranks reads only its part. The elements that count are those of one rank, so that several
ranks read more passes before the error. A dataset of a few elements has many empty passes by chance, such as one
element that is drawn again until a filter accepts it; hence the least number of elements.

A resumed loader counts from the same element as one that wasn't stopped, since a token is the number after an element
that was kept. After a seek to a position, or a change of the number of ranks, the count begins there.

Rejected: a count above folds, since a fold may need many passes for one element, as a large batch of a short dataset
does. So a fold that returns nothing is not noticed. Neither is a filter above a stream, whose passes have no length.
Also a look at the output whenever a pass begins: nothing above the inputs knows passes, since each input repeats by
itself, and only the state of a user's fold could tell a pass that was in vain from one that the fold still holds.
"""

from collections.abc import Sequence, Sized
from typing import NoReturn

from penstock._graph import (
    Combine,
    Filter,
    Integers,
    Map,
    Node,
    Reindex,
    Split,
    is_endless,
    is_indexable,
    length,
    verb_text,
    walk,
)
from penstock._streaming._policy import EMPTY_ELEMENTS, EMPTY_PASSES
from penstock.errors import GraphError
from penstock.sampling import Repeat, WeightedMixture


class EmptyPasses:
    """Counts the elements of a block input that were left out one after the other.

    Args:
        node: the block input.
        pass_length: the number of elements of a pass.
    """

    def __init__(self, node: Node, pass_length: int) -> None:
        self._node = node
        self._pass_length = pass_length
        self._limit = _limit(pass_length)
        self._first: int | None = None  # the first number of the elements that were left out one after the other
        self._number = 0

    def read(self, number: int) -> None:
        """Note the number of the element that is read next; the one before it was left out unless `keep` was called.

        Raises:
            GraphError: the elements that were left out are whole passes.
        """
        self._number = number
        if self._first is None or number < self._first:
            self._first = number
        if number - self._first < self._limit:
            return
        steps = " and ".join(reversed(list(map(verb_text, _leaving_out(self._node)))))
        raise GraphError(
            f"a repeat without end needs a pass that has elements; {steps} left out {self._limit:,} elements in a row, "
            f"in passes of {self._pass_length:,}. Correct the predicate, or the function that fails, or give repeat a "
            "number of passes"
        )

    def keep(self, number: int | None = None) -> None:
        """Note that the element of a number was kept; None stands for the one that was read last."""
        self._first = 1 + (self._number if number is None else number)

    def read_block(self, start: int, stop: int, kept: Integers | None) -> None:
        """Note a block, given the indices of the elements that were kept; None stands for all.

        Raises:
            GraphError: as for `read`.
        """
        self.read(start)
        if kept is None or len(kept):
            self.read(start if kept is None else start + int(kept[0]))
            self.keep(stop - 1 if kept is None else start + int(kept[-1]))
        self.read(stop)


class EmptyPieces:
    """Counts the elements of which a split made nothing, one after the other.

    Args:
        step: the split.
        pass_length: the number of elements of a pass.
    """

    def __init__(self, step: Split, pass_length: int) -> None:
        self._step = step
        self._pass_length = pass_length
        self._limit = _limit(pass_length)
        self._empty = 0

    def read(self, pieces: Sequence[Sized]) -> None:
        """Note the pieces of each of the next elements.

        Raises:
            GraphError: the elements without pieces are whole passes.
        """
        for each in pieces:
            self._empty = 0 if len(each) else self._empty + 1
            if self._empty == self._limit:
                self._fail()

    def _fail(self) -> NoReturn:
        raise GraphError(
            f"a repeat without end needs a pass that has elements; {verb_text(self._step)} made nothing of "
            f"{self._limit:,} elements in a row, in passes of {self._pass_length:,}. Correct the function, or give "
            "repeat a number of passes"
        )


def empty_passes_of(node: Node) -> EmptyPasses | None:
    """Return the counter of a block input; None if it leaves nothing out, or has an end."""
    if is_indexable(node) or not is_endless(node):
        return None
    pass_length = _pass_length(node)
    return None if pass_length is None else EmptyPasses(node, pass_length)


def empty_pieces_of(step: Split) -> EmptyPieces | None:
    """Return the counter of a split; None if what it reads has an end, or passes whose length isn't known."""
    pass_length = _pass_length(step.parent) if is_endless(step) else None
    return None if pass_length is None else EmptyPieces(step, pass_length)


def _limit(pass_length: int) -> int:
    return max(EMPTY_PASSES * pass_length, EMPTY_ELEMENTS)


def _pass_length(node: Node) -> int | None:
    """Return the number of elements of a pass of an endless block input; None if no step below makes passes."""
    while isinstance(node, Map | Filter) and not is_indexable(node):
        node = node.parent
    if not is_indexable(node):
        return None
    while isinstance(node, Reindex) and _passes(node) and is_endless(node.parent):
        node = node.parent  # `mix(stop="never")` repeats a part that already repeats, of which no pass ends
    total = length(node) or 0
    lengths = [total // passes for step in walk(node) if (passes := _passes(step))]
    return max(*lengths, 1) if lengths else None


def _passes(step: Node) -> int:
    """Return in how many parts a step divides an epoch without end, each with all elements below; 0 for other steps."""
    if isinstance(step, Reindex):
        return step.sampler.passes if isinstance(step.sampler, Repeat) and step.sampler.endless else 0
    rule = step.value.rule if isinstance(step, Combine) else None
    if not isinstance(rule, WeightedMixture) or not rule.endless:
        return 0
    size = sum(rule.lengths)
    while size < len(rule) and (rule.counts(size) < rule.lengths).any():
        size = min(2 * size, len(rule))
    return len(rule) // size


def _leaving_out(node: Node) -> list[Node]:
    """Return the steps of a block input that may leave out elements, the highest first."""
    found: list[Node] = []
    while isinstance(node, Map | Filter) and not is_indexable(node):
        if isinstance(node, Filter) or node.on_error == "skip":
            found.append(node)
        node = node.parent
    return found
