"""Elements from a store that keeps what was computed once; a store that fails only costs the time to compute again.

Elements are kept by their parent's position, so the parent's order is the same in every epoch, and no step below it is
random: the verbs see to that.
"""

import contextlib
import hashlib
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from penstock._graph._code import code_identity
from penstock._graph._fingerprint import fingerprint
from penstock._graph._nodes import Batch, Cache, Element, Filter, FlatMap, Map, Node, walk
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
    except Exception as error:  # noqa: BLE001 - whatever the store raises, the element is there or can be computed
        _tell(step, error)
        return MISSING


def _tell(step: Cache, error: Exception) -> None:
    """Warn that the store failed, which may slow everything down; Python shows a text once for each place."""
    with contextlib.suppress(Warning):  # raised where warnings are errors, and would lose the element
        warnings.warn(f"{step.verb} can't use its store: {type(error).__name__}", RuntimeWarning, stacklevel=2)


def cache_identity(node: Node, version: str | None) -> str:
    """Return hexadecimal digits that stand for all that determines a node's elements.

    Args:
        node: what is kept.
        version: stands for the code of its functions; None reads the code itself.
    """
    parts = fingerprint(node)
    hasher = hashlib.blake2b(digest_size=16)
    codes = [f"version {version}"] if version is not None else code_identities(node)
    for text in (parts.source, parts.order, *codes):
        hasher.update(f"{len(text)}:{text}".encode())
    return hasher.hexdigest()


def code_identities(node: Node) -> list[str]:
    """Return the identity of each function that determines a node's elements."""
    return [code_identity(function) for step in walk(node) for function in _functions(step)]


def _functions(step: Node) -> list[Callable[..., Any]]:
    match step:
        case Map(function=function) | FlatMap(function=function) | Filter(predicate=function) | Batch(merge=function):
            return [function]
        case _:
            return []
