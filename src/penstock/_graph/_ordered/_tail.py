"""What stands above the outermost fold of an ordered dataset: a merge of the user's, and functions of whole batches.

Each depends on one batch's rows alone. So anyone may compute it, for several batches at once, while what folds goes on:
the stages below are opened without these steps then (`Opening.tail`), and give what they are to be computed from.
"""

from collections.abc import Mapping
from typing import TypeGuard

from penstock._frozen import frozen
from penstock._graph._apply import DROPPED, Context, after_error, apply_block
from penstock._graph._blocks import merge_block
from penstock._graph._evaluate import element_at
from penstock._graph._nodes import Batch, Element, Limit, Map, Node
from penstock._graph._ordered._chunk import Marks
from penstock._graph._ordered._leaf import is_leaf
from penstock._graph._ordered._places import MarkPlaces, Whence
from penstock.batching import Stack


@frozen(eq=False)
class Tail:
    """The steps.

    Attributes:
        merge: the batch whose rows are merged here; None where they come stacked, or there is none.
        above: the functions, innermost first.
    """

    merge: Batch | None
    above: tuple[Map, ...]

    def has(self, node: Node) -> bool:
        """Return whether a node is one of the functions."""
        return any(step is node for step in self.above)


def tail_of(node: Node) -> Tail | None:
    """Return the steps above an ordered node's outermost fold; None where there are none.

    A limit counts elements without looking at them, so what stands below it may be computed after it, unless it leaves
    elements out.
    """
    above: list[Map] = []
    is_limited = False
    while isinstance(node, Limit) or _is_above(node, is_limited=is_limited):
        if isinstance(node, Map):
            above.append(node)
        else:
            is_limited = True
        node = node.parent
    merge = node if isinstance(node, Batch) and not isinstance(node.merge, Stack) else None
    return Tail(merge, tuple(above[::-1])) if above or merge is not None else None


def _is_above(node: Node, *, is_limited: bool) -> TypeGuard[Map]:
    return isinstance(node, Map) and not is_leaf(node) and not (is_limited and node.on_error == "skip")


@frozen
class TailRun:
    """The steps, with what they need to know of the rank that computes them.

    Attributes:
        tail: the steps.
        size: how many rows this rank has of a full batch.
        leaves: as the steps see them.
    """

    tail: Tail
    size: int
    leaves: Mapping[int, Whence]

    def result(self, given: Element, marks: Marks, context: Context) -> Element:
        """Return a batch, or DROPPED.

        Args:
            given: a batch's rows, where they are merged here; else the batch as it comes from below.
            marks: the first row's.
            context: of the calling thread.
        """
        merge = self.tail.merge
        batch = given if merge is None else merge_block(merge, given, self.size)
        places = MarkPlaces(self.leaves, marks)
        for step in self.tail.above:
            (batch,) = apply_block(step, [batch], places, context, element_at)
            if batch is DROPPED:
                break
        return batch

    def around(self, death: Exception, marks: Marks, context: Context) -> Element:
        """Return what takes the place of a batch that processes die of: DROPPED, if one of the steps leaves it out.

        Nobody knows which of the functions it was that a process died in, so it is taken for that step's.

        Raises:
            Exception: the death, where all steps raise what fails.
        """
        skipping = next((step for step in reversed(self.tail.above) if step.on_error == "skip"), None)
        if skipping is None:
            raise death
        return after_error(skipping, death, MarkPlaces(self.leaves, marks).place(0), context, element_at)
