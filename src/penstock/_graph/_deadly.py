"""An element that processes die of is never computed: the outermost `on_error` on its way decides what becomes of it.

Nobody knows which step's function it was that a process died in, so it is taken for that step's.
"""

from penstock._graph._apply import Context, after_error, apply_one
from penstock._graph._evaluate import element_at, place_of
from penstock._graph._nodes import Element, Map, Mix, Node, Reindex, Substitute


def may_be_replaced(node: Node, epoch: int, position: int) -> bool:
    """Return whether a step on the way of an element has `on_error=Substitute()`."""
    match node:
        case Map(parent=parent, on_error=on_error):
            return isinstance(on_error, Substitute) or may_be_replaced(parent, epoch, position)
        case Reindex(parent=parent, sampler=sampler):
            return may_be_replaced(parent, *sampler(epoch, position))
        case Mix(parts=parts, rule=rule):
            number, part_epoch, part_position = rule(epoch, position)
            return may_be_replaced(parts[number], part_epoch, part_position)
        case _:
            return False


def element_around(node: Node, epoch: int, position: int, death: Exception, context: Context) -> Element:
    """Return what takes the place of an element, or raise `death`, where no step replaces what fails."""
    match node:
        case Map(parent=parent, on_error=on_error):
            place = place_of(parent, epoch, position)
            if isinstance(on_error, Substitute):
                return after_error(node, death, place, context, element_at)
            return apply_one(node, element_around(parent, epoch, position, death, context), place, context, element_at)
        case Reindex(parent=parent, sampler=sampler):
            return element_around(parent, *sampler(epoch, position), death, context)
        case Mix(parts=parts, rule=rule):
            number, part_epoch, part_position = rule(epoch, position)
            return element_around(parts[number], part_epoch, part_position, death, context)
        case _:
            raise death
