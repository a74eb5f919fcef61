"""The split `unbatch`: the rows of each batch. They have positions if the batches' numbers of rows are known."""

from collections.abc import Callable

from penstock._frozen import frozen
from penstock._graph._apply import Context, ElementAt, Location, Locations
from penstock._graph._gather import RowsPerBatch, rows_per_batch
from penstock._graph._nodes import Element, Integers, Node, Split
from penstock._graph._splitting import ListSplitting
from penstock.batching import independent_rows
from penstock.errors import GraphError, InternalError


@frozen
class Unbatch(ListSplitting):
    """The rows of each batch as elements again."""

    @property
    def text(self) -> str:
        return "unbatch()"

    @property
    def order_text(self) -> str:
        return "unbatch"

    @property
    def pieces_are_inputs(self) -> bool:
        return True

    def count(self, parent: Node) -> int | None:
        known = rows_per_batch(parent)
        return None if known is None else known.total

    def locate(self, parent: Node, positions: Integers) -> tuple[Integers, Integers]:
        size = _known(parent).size
        batches = positions // size
        return batches, positions - batches * size

    def locate_one(self, parent: Node, position: int) -> tuple[int, int]:
        return divmod(position, _known(parent).size)

    def split(
        self, step: Split, element: Element, location: Callable[[], Location], context: Context, element_at: ElementAt
    ) -> list[Element]:
        del step, location, context, element_at
        return independent_rows(element)

    def split_into(
        self,
        lists: list[list[Element]],
        step: Split,
        elements: list[Element],
        locations: Locations,
        context: Context,
        element_at: ElementAt,
    ) -> None:
        del step, locations, context, element_at
        lists.extend(map(independent_rows, elements))

    def check_found(self, step: Split, parent: int, found: int) -> None:
        known = _known(step.parent)
        expected = min(known.size, known.total - known.size * parent)
        if found != expected:
            raise GraphError(
                f"unbatch() found {found} rows in batch {parent} instead of {expected}: "
                "a function above batch() must keep the number of rows"
            )


def _known(parent: Node) -> RowsPerBatch:
    known = rows_per_batch(parent)
    if known is None:
        raise InternalError("rows of batches that are read in order have no positions")
    return known
