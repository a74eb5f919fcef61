"""An element that processes die of is never computed: the outermost `on_error` on its way decides what becomes of it.

Nobody knows which step's function it was that a process died in, so it is taken for that step's. Of parts that are
zipped, it is taken for the first one's that has such a step.
"""

import numpy as np

from penstock._graph._apply import DROPPED, Context, Place, after_error, apply_one
from penstock._graph._blocks import BlockPlaces
from penstock._graph._evaluate import element_at, keeps, zipped
from penstock._graph._nodes import Element, Filter, Map, Mix, Node, Reindex, Zip


def may_be_left(node: Node, epoch: int, position: int) -> bool:
    """Return whether a step on the way of an element replaces what fails, or leaves it out."""
    match node:
        case Map(parent=parent, on_error=on_error):
            return on_error != "raise" or may_be_left(parent, epoch, position)
        case Filter(parent=parent):
            return may_be_left(parent, epoch, position)
        case Reindex(parent=parent, sampler=sampler):
            return may_be_left(parent, *sampler(epoch, position))
        case Mix(parts=parts, rule=rule):
            number, part_epoch, part_position = rule(epoch, position)
            return may_be_left(parts[number], part_epoch, part_position)
        case Zip(parts=parts):
            return any(may_be_left(part, epoch, position) for part in parts)
        case _:
            return False


def element_around(node: Node, epoch: int, position: int, death: Exception, context: Context) -> Element:
    """Return what takes the place of an element, or DROPPED; raise `death` where every step raises what fails."""
    match node:
        case Map(parent=parent, on_error=on_error):
            place = _place(parent, epoch, position)
            if on_error != "raise":
                return after_error(node, death, place, context, element_at)
            below = element_around(parent, epoch, position, death, context)
            return below if below is DROPPED else apply_one(node, below, place, context, element_at)
        case Filter(parent=parent):
            below = element_around(parent, epoch, position, death, context)
            if below is DROPPED:
                return DROPPED
            place = _place(parent, epoch, position)
            return below if keeps(node, below, place) else DROPPED
        case Reindex(parent=parent, sampler=sampler):
            return element_around(parent, *sampler(epoch, position), death, context)
        case Mix(parts=parts, rule=rule):
            number, part_epoch, part_position = rule(epoch, position)
            return element_around(parts[number], part_epoch, part_position, death, context)
        case Zip(parts=parts):
            deadly = next((part for part in parts if may_be_left(part, epoch, position)), parts[0])
            columns = [
                element_around(part, epoch, position, death, context)
                if part is deadly
                else element_at(part, epoch, position, context)
                for part in parts
            ]
            return zipped(node, columns)
        case _:
            raise death


def _place(node: Node, epoch: int, position: int) -> Place:
    """Return where an element stands at a node that may leave elements out, where `place_of` isn't defined."""
    return BlockPlaces(node, np.array([epoch], np.int64), np.array([position], np.int64), None).place(0)
