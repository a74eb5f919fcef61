"""Elements from a store that keeps what was computed once; a store that fails only costs the time to compute again.

Elements are kept by their parent's position, so the parent's order is the same in every epoch, and no step below it is
random: the verbs see to that.
"""

import contextlib
import warnings
from collections.abc import Callable, Sequence
from functools import partial

from penstock._caught import raised_by_handler
from penstock._graph._nodes import Cache, Element
from penstock._storage._cache import MISSING, Missing
from penstock._storage._cache import Cache as ElementStore


def cached(step: Cache, positions: Sequence[int], compute: Callable[[list[int]], list[Element]]) -> list[Element]:
    """Return the elements at positions of a cache's parent, the store asked first.

    Args:
        step: the cache.
        positions: which elements.
        compute: returns those of the elements that the store doesn't hold, given their numbers in `positions`.
    """
    store: ElementStore = step.store
    elements = [_asked(step, partial(store.get, position)) for position in positions]
    absent = [number for number, element in enumerate(elements) if element is MISSING]
    if absent:
        for number, element in zip(absent, compute(absent), strict=True):
            elements[number] = element
            _asked(step, partial(store.put, positions[number], element))
    return elements


def _asked(step: Cache, ask: Callable[[], Element | Missing]) -> Element | Missing:
    """Return what the store says, or `MISSING` where it failed."""
    try:
        return ask()
    except Exception as error:
        if raised_by_handler(error):
            raise
        _tell(step, error)
        return MISSING


def _tell(step: Cache, error: Exception) -> None:
    """Warn that the store failed, which may slow everything down; Python shows a text once for each place."""
    with contextlib.suppress(Warning):  # raised where warnings are errors, and would lose the element
        warnings.warn(f"{step.verb} can't use its store: {type(error).__name__}", RuntimeWarning, stacklevel=2)
