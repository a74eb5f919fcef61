"""Splittings, the values of `Split` nodes: each has the facts, the definition and the evaluation of one such step.

A step that makes several elements, here called pieces, of one parent element is one file in this package, and a verb
that adds a `Split` node with the value. No other file distinguishes these steps.

There are two kinds. The pieces of most are a list, which is made as a whole: a `ListSplitting`. Each piece is handed
out once, since a function above may write to it. A splitting whose pieces are copies makes each piece when it is
needed, and keeps the parent element.
"""

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from penstock._graph._apply import Context, ElementAt, Location, Locations, location_of
from penstock._graph._nodes import Element, Integers, Split, SplitFacts
from penstock._independent import copied
from penstock.errors import InternalError, UsageError

Prepared: TypeAlias = Any
"""A parent element as a splitting keeps it, to take pieces from: a list of them, or the element itself."""

_HANDED_OUT: Final = object()  # the place of a piece that an element was made of


class Splitting(SplitFacts):
    """The value of a split's node; a frozen dataclass of the verb's arguments inherits from it.

    Equal values make equal datasets, and a value is pickled for worker processes.
    """

    __slots__ = ()

    @abstractmethod
    def piece_at(self, step: Split, epoch: int, position: int, context: Context, element_at: ElementAt) -> Element:
        """Return the element at a position of an epoch: the definition."""

    @abstractmethod
    def prepared(
        self,
        step: Split,
        elements: list[Element],
        positions: Integers,
        locations: Locations,
        context: Context,
        element_at: ElementAt,
    ) -> Sequence[Prepared]:
        """Return the object, for each of some parent elements, from which `taken` takes its pieces.

        Args:
            step: the node.
            elements: the parent elements.
            positions: of the parent elements.
            locations: of the parent elements.
            context: of the calling thread.
            element_at: the definition.
        """

    @abstractmethod
    def taken(
        self,
        prepared: dict[int, Prepared],
        wanted: list[tuple[int, int]],
        positions: Integers,
        again: Callable[[int], Element],
    ) -> list[Element]:
        """Return a block's elements, which share no memory with each other and with the prepared parents.

        Args:
            prepared: the prepared parents, by their number in the block.
            wanted: for each element its parent's number and its ordinal.
            positions: of the elements.
            again: returns the block's element of some number by the definition, where no copy is exactly like it.
        """

    def has(self, prepared: Prepared, ordinals: list[int]) -> bool:
        """Return whether pieces can still be taken from a prepared parent. By default each can be, more than once."""
        del prepared, ordinals
        return True

    def has_more(self, prepared: Prepared) -> bool:
        """Return whether any piece can still be taken from a prepared parent. By default each can be."""
        del prepared
        return True

    def reads_pieces(self, step: Split) -> bool:
        """Return whether pieces are read from a source without the parent; `read` then returns elements."""
        del step
        return False

    def read(self, step: Split, epochs: Integers, positions: Integers) -> list[Element]:
        """Return a block of elements that are read from a source, where `reads_pieces`."""
        del step, epochs, positions
        raise InternalError(f"the pieces of {self.text} are not read from a source")


class ListSplitting(Splitting):
    """A splitting whose pieces are a list, which is made as a whole."""

    __slots__ = ()

    @abstractmethod
    def split(
        self, step: Split, element: Element, location: Callable[[], Location], context: Context, element_at: ElementAt
    ) -> list[Element]:
        """Return the pieces of one parent element, which share no memory: the definition."""

    @abstractmethod
    def split_into(
        self,
        lists: list[list[Element]],
        step: Split,
        elements: list[Element],
        locations: Locations,
        context: Context,
        element_at: ElementAt,
    ) -> None:
        """Add `split` of each element of a block to an empty list; after an error the list has those before it."""

    @abstractmethod
    def check_found(self, step: Split, parent: int, found: int) -> None:
        """Raise a GraphError if a parent element has another number of pieces than the step's positions assume.

        Args:
            step: the step.
            parent: the parent element's position.
            found: the number of its pieces.
        """

    def piece_at(self, step: Split, epoch: int, position: int, context: Context, element_at: ElementAt) -> Element:
        parent, ordinal = self.locate_one(step.parent, position)
        element = element_at(step.parent, epoch, parent, context)
        pieces = self.split(step, element, lambda: location_of(step.parent, epoch, parent), context, element_at)
        self.check_found(step, parent, len(pieces))
        return pieces[ordinal]

    def prepared(
        self,
        step: Split,
        elements: list[Element],
        positions: Integers,
        locations: Locations,
        context: Context,
        element_at: ElementAt,
    ) -> Sequence[list[Element]]:
        lists: list[list[Element]] = []
        self.split_into(lists, step, elements, locations, context, element_at)
        for position, pieces in zip(positions.tolist(), lists, strict=True):
            self.check_found(step, position, len(pieces))
        return lists

    def taken(
        self,
        prepared: dict[int, list[Element]],
        wanted: list[tuple[int, int]],
        positions: Integers,
        again: Callable[[int], Element],
    ) -> list[Element]:
        """Take pieces out of their lists, and mark them there; a repeated piece is a copy."""
        del positions
        first: dict[tuple[int, int], Element] = {}
        elements: list[Element] = []
        for place, each in enumerate(wanted):
            if each in first:
                elements.append(copied_or(first[each], partial(again, place)))
                continue
            number, ordinal = each
            first[each] = prepared[number][ordinal]
            prepared[number][ordinal] = _HANDED_OUT
            elements.append(first[each])
        return elements

    def has(self, prepared: list[Element], ordinals: list[int]) -> bool:
        return all(prepared[ordinal] is not _HANDED_OUT for ordinal in ordinals)

    def has_more(self, prepared: list[Element]) -> bool:
        return any(piece is not _HANDED_OUT for piece in prepared)


def copied_or(element: Element, again: Callable[[], Element]) -> Element:
    """Return an exact copy of an element; the result of `again`, if there is none."""
    with contextlib.suppress(UsageError):
        return copied(element, exactly=True)
    return again()


def splitting_of(node: Split) -> Splitting:
    """Return the value of a split's node."""
    if not isinstance(node.value, Splitting):
        raise InternalError(f"the value of a split has a definition; got {node.value!r}")
    return node.value


def list_splitting_of(node: Split) -> ListSplitting:
    """Return the value of a split that can be read in order."""
    if not isinstance(node.value, ListSplitting):
        raise InternalError(f"the pieces of {node.value.text} have positions")
    return node.value
