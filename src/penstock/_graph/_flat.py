"""The lists that the function of a `flat_map` step returns, checked against the known counts."""

from penstock._graph._apply import Context, ElementAt, Location, Locations, apply_into, apply_one
from penstock._graph._nodes import Element, FlatMap, Map
from penstock.errors import GraphError


def flat_elements(
    step: FlatMap, element: Element, location: Location, context: Context, element_at: ElementAt
) -> list[Element]:
    """Return the elements that the step makes of one element of its parent.

    Raises:
        GraphError: the function didn't return a list.
    """
    return _as_list(step, apply_one(_as_map(step), element, location, context, element_at))


def flat_into(
    lists: list[list[Element]],
    step: FlatMap,
    elements: list[Element],
    locations: Locations,
    context: Context,
    element_at: ElementAt,
) -> None:
    """Add `flat_elements` of every element of a block to an empty list; after an error the list has those before it."""
    made: list[Element] = []
    try:
        apply_into(made, _as_map(step), elements, locations, context, element_at)
    finally:
        lists.extend(_as_list(step, each) for each in made)


def check_made(step: FlatMap, parent: int, found: int) -> None:
    """Raise a GraphError if the step made another number of elements than its counts say for the parent's position."""
    if step.counts is None:
        return
    expected = int(step.counts.counts[parent])
    if found != expected:
        raise GraphError(
            f"step {step.name!r} made {found} elements of the one at position {parent}, where counts= says {expected}. "
            "Give the counts that the function makes, or leave counts= out and read in order."
        )


def _as_map(step: FlatMap) -> Map:
    """Return the step as a map to lists, which has the same errors, notes and retries."""
    return Map(step.parent, step.function, step.name, seed=0)


def _as_list(step: FlatMap, made: Element) -> list[Element]:
    kind = type(made).__name__
    if isinstance(made, str | bytes | dict) or not hasattr(made, "__iter__"):
        raise GraphError(
            f"the function of step {step.name!r} must return a list of elements; got a {kind}. "
            "Return [element] for a single one, and [] for none."
        )
    return list(made)
