"""The result of a row that crashes workers: it is never computed, and the outermost `on_error` above it decides.

Which step's function crashed the process is unknown. So the crash counts as an error of the outermost step whose
`on_error` is not "raise"; if the row has several zipped parts, of the first part with such a step.
"""

import numpy as np

from penstock._graph._apply import DROPPED, Context, Location, after_error, apply_one
from penstock._graph._blocks import BlockLocations
from penstock._graph._evaluate import element_at, keeps, zipped
from penstock._graph._nodes import Element, Filter, Map, Mix, Node, Reindex, Zip


def handles_errors(node: Node, epoch: int, position: int) -> bool:
    """Return whether a step between a node and the element's record replaces a failing element or leaves it out."""
    match node:
        case Map(parent=parent, on_error=on_error):
            return on_error != "raise" or handles_errors(parent, epoch, position)
        case Filter(parent=parent):
            return handles_errors(parent, epoch, position)
        case Reindex(parent=parent, sampler=sampler):
            return handles_errors(parent, *sampler(epoch, position))
        case Mix(parts=parts, rule=rule):
            number, part_epoch, part_position = rule(epoch, position)
            return handles_errors(parts[number], part_epoch, part_position)
        case Zip(parts=parts):
            return any(handles_errors(part, epoch, position) for part in parts)
        case _:
            return False


def element_after_crash(node: Node, epoch: int, position: int, death: Exception, context: Context) -> Element:
    """Return the element that replaces a crashing row, or DROPPED; raise `death` if every step raises its errors."""
    match node:
        case Map(parent=parent, on_error=on_error):
            location = _place(parent, epoch, position)
            if on_error != "raise":
                return after_error(node, death, location, context, element_at)
            below = element_after_crash(parent, epoch, position, death, context)
            return below if below is DROPPED else apply_one(node, below, location, context, element_at)
        case Filter(parent=parent):
            below = element_after_crash(parent, epoch, position, death, context)
            if below is DROPPED:
                return DROPPED
            location = _place(parent, epoch, position)
            return below if keeps(node, below, location) else DROPPED
        case Reindex(parent=parent, sampler=sampler):
            return element_after_crash(parent, *sampler(epoch, position), death, context)
        case Mix(parts=parts, rule=rule):
            number, part_epoch, part_position = rule(epoch, position)
            return element_after_crash(parts[number], part_epoch, part_position, death, context)
        case Zip(parts=parts):
            crashing_rows = next((part for part in parts if handles_errors(part, epoch, position)), parts[0])
            columns = [
                element_after_crash(part, epoch, position, death, context)
                if part is crashing_rows
                else element_at(part, epoch, position, context)
                for part in parts
            ]
            return zipped(node, columns)
        case _:
            raise death


def _place(node: Node, epoch: int, position: int) -> Location:
    """Return an element's location at a node that may leave elements out, for which `location_of` isn't defined."""
    return BlockLocations(node, np.array([epoch], np.int64), np.array([position], np.int64), None).at(0)
