"""The split `flat_map`: the elements of the list that a function makes of each element.

They have positions if the numbers of elements are given. The function is applied like that of a `map` to lists.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeGuard

from penstock._frozen import frozen
from penstock._graph._apply import Context, ElementAt, Location, Locations, apply_into, apply_one
from penstock._graph._fingerprint import array_text
from penstock._graph._length import length
from penstock._graph._nodes import Element, Integers, Map, Node, Split
from penstock._graph._splitting import ListSplitting
from penstock._independent import independent
from penstock.errors import GraphError, InternalError
from penstock.sampling import Ragged


@frozen
class FlatMap(ListSplitting):
    """The elements of the list that `function` makes of each element; `counts` are the lengths of the lists."""

    function: Callable[[Element], Sequence[Element]]
    name: str
    counts: Ragged | None = None

    @property
    def text(self) -> str:
        return f"flat_map({self.name})"

    @property
    def order_text(self) -> str:
        return f"flat_map {'' if self.counts is None else array_text(self.counts.counts)}"

    @property
    def functions(self) -> Sequence[tuple[str, Callable[..., Any]]]:
        return ((f"flat_map {self.name}", self.function),)

    @property
    def step_name(self) -> str:
        return self.name

    @property
    def is_by_position(self) -> bool:
        return self.counts is not None

    @property
    def positions_remedy(self) -> str:
        return "Or pass the lengths of the lists: flat_map(…, counts=…)."

    def count(self, parent: Node) -> int | None:
        return None if self.counts is None or length(parent) is None else len(self.counts)

    def locate(self, parent: Node, positions: Integers) -> tuple[Integers, Integers]:
        del parent
        return self._known.locate(positions)

    def locate_one(self, parent: Node, position: int) -> tuple[int, int]:
        del parent
        return self._known.locate_one(position)

    @property
    def _known(self) -> Ragged:
        if self.counts is None:
            raise InternalError("elements of lists of unknown lengths have no positions")
        return self.counts

    def split(
        self, step: Split, element: Element, location: Callable[[], Location], context: Context, element_at: ElementAt
    ) -> list[Element]:
        """Return the elements that the function makes of one element.

        Raises:
            GraphError: the function didn't return a list.
        """
        pieces: list[Element] = apply_one(self._as_map(step), element, location(), context, element_at)
        return pieces

    def split_into(
        self,
        lists: list[list[Element]],
        step: Split,
        elements: list[Element],
        locations: Locations,
        context: Context,
        element_at: ElementAt,
    ) -> None:
        apply_into(lists, self._as_map(step), elements, locations, context, element_at)

    def _as_map(self, step: Split) -> Map:
        """Return the step as a map to lists, which has the same errors, notes and retries."""
        return Map(step.parent, self._listed, self.name, seed=0)

    def _listed(self, element: Element) -> list[Element]:
        """Return the list for an element. A generator runs here, so that its errors are those of the function."""
        made: object = self.function(element)
        if not _is_iterable(made):
            raise GraphError(
                f"the function of step {self.name!r} must return a list of elements; got a {type(made).__name__}. "
                "Return [element] for a single one, and [] for none."
            )
        return independent(list(made))  # a function above may write to its input

    def check_found(self, step: Split, parent: int, found: int) -> None:
        del step
        expected = int(self._known.counts[parent])
        if found != expected:
            raise GraphError(
                f"step {self.name!r} made {found} elements of the one at position {parent}, where counts= says "
                f"{expected}. Give the counts that the function makes, or leave counts= out and read in order."
            )


def _is_iterable(made: object) -> TypeGuard[Iterable[Element]]:
    """Return whether a function returned a list, or another iterable of elements."""
    return type(made) is list or (hasattr(made, "__iter__") and not isinstance(made, str | bytes | dict))
