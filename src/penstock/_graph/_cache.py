"""Reading elements through a cache's store. A store that fails costs time, and never an element.

The store's key is the parent's position. So the parent must have the same order in every epoch and no random step; the
verb `cache` checks both.
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
    """Return elements from a cache's store, and compute and store the others.

    Args:
        step: the cache.
        positions: of the elements, in the parent.
        compute: returns the elements that the store doesn't hold, given their numbers in `positions`.
    """
    store: ElementStore = step.store
    elements = [_call(step, partial(store.get, position)) for position in positions]
    absent = [number for number, element in enumerate(elements) if element is MISSING]
    if absent:
        for number, element in zip(absent, compute(absent), strict=True):
            elements[number] = element
            _call(step, partial(store.put, positions[number], element))
    return elements


def _call(step: Cache, method: Callable[[], Element | Missing]) -> Element | Missing:
    """Return the result of a method of the store, or `MISSING` if it failed."""
    try:
        return method()
    except Exception as error:
        if raised_by_handler(error):
            raise
        _warn(step, error)
        return MISSING


def _warn(step: Cache, error: Exception) -> None:
    """Warn that the store failed and elements are computed again; Python shows the same warning once."""
    with contextlib.suppress(Warning):  # where warnings are errors, this one would lose the element
        warnings.warn(f"{step.verb} can't use its store: {type(error).__name__}", RuntimeWarning, stacklevel=2)
