"""Functions of elements for the tests' datasets, at module level so that processes find them."""

import dataclasses
import zlib
from typing import Any, cast

import numpy as np

import penstock as ps
from tests.equivalence.kinds import is_dict, is_list_or_tuple
from tests.trees import is_array, leaves_of, map_leaves


def add_one(element: Any) -> Any:
    """Return a new element with every number one larger, and every text a little longer."""
    if is_dict(element):
        return {key: add_one(value) for key, value in element.items()}
    if is_list_or_tuple(element):
        return tuple(map(add_one, element))
    return f"{element}+1" if isinstance(element, str) else element + 1


def jitter(element: Any, rng: np.random.Generator) -> Any:
    """Return the element with noise that is exact in float64, from several kinds of draws."""
    return {"element": element, "noise": rng.random(), "draw": int(rng.integers(1 << 40)), "few": rng.random(3)}


def with_seed(element: Any, seed: int) -> Any:
    """Return the element with its derived seed."""
    return {"element": element, "seed": seed >> 1}


def with_origin(element: Any, origin: ps.Origin) -> Any:
    """Return the element with its origin."""
    fields = dataclasses.asdict(origin)
    fields.pop("component")
    index = -1 if origin.index is None else origin.index
    return {"element": element, "origin": {**fields, "seed": fields["seed"] >> 1, "index": index}}


def flat_sum(element: Any) -> int:
    """Return a number that depends on all of an element's content."""
    if is_dict(element):
        return sum(flat_sum(value) for value in element.values())
    if isinstance(element, str):
        return zlib.crc32(element.encode()) % 1_000_003
    if is_list_or_tuple(element):
        return sum(flat_sum(value) for value in element)
    return int(np.sum(np.asarray(element, np.float64)) * 1000) * 7919 % 1_000_003


def keeps_two_of_three(element: Any) -> bool:
    """Return a pseudo-random but pure verdict."""
    return flat_sum(element) % 3 != 0


def fails_sometimes(element: Any) -> Any:
    """Raise for about a quarter of all elements, always the same ones."""
    if flat_sum(element) % 4 == 1:
        raise ValueError("corrupt")
    return element


def writes_or_fails(element: Any) -> Any:
    """Write to an element's arrays, and then raise for about a quarter of all elements."""
    fails = flat_sum(element) % 4 == 1
    for leaf in leaves_of(element):
        if is_array(leaf) and leaf.dtype.kind in "iuf":
            np.add(leaf, 1, out=leaf, casting="unsafe")
    if fails:
        raise ValueError("corrupt")
    return element


def turned(element: Any) -> Any:
    """Return an element with its arrays in another order in memory, and a number that follows from the order before."""
    steps = [
        step * (1 + axis)
        for leaf in leaves_of(element)
        if is_array(leaf)
        for axis, (step, length) in enumerate(zip(leaf.strides, leaf.shape, strict=True))
        if length > 1
    ]
    return {"element": map_leaves(_turned, element), "steps": sum(steps)}


def _turned(leaf: Any) -> Any:
    if not is_array(leaf) or not leaf.ndim:
        return leaf
    return leaf[::-1].copy()[::-1] if leaf.ndim == 1 else np.asfortranarray(leaf)


def totals(elements: list[Any]) -> Any:
    """Merge a batch into something other than a stack."""
    return {"totals": np.array([flat_sum(element) for element in elements], np.int64)}


def copies(element: Any) -> list[Any]:
    """Return none to three elements made of one."""
    return [{"of": element, "copy": number} for number in range(flat_sum(element) % 4)]


def twice(element: Any) -> list[Any]:
    """Return two elements made of one."""
    return [element, add_one(element)]


def as_frames(element: Any) -> Any:
    """Return three rows made of an element of any kind, which can be stacked, and split again."""
    return flat_sum(element) + np.arange(3)


def as_document(element: Any) -> Any:
    """Return one to four rows made of an element."""
    return flat_sum(element) + np.arange(1 + flat_sum(element) % 4)


def as_inner(element: Any) -> Any:
    """Return the element that functions like `jitter` wrapped: a batch has its own number of rows again."""
    return as_inner(cast("dict[str, Any]", element)["element"]) if _wraps(element) else element


def _wraps(element: Any) -> bool:
    return isinstance(element, dict) and "element" in element


def size_of(element: Any) -> int:
    """Return the number of rows of an element's first leaf."""
    return len(leaves_of(element)[0])


def weight_of(element: Any) -> int:
    """Return an element's weight, from 0 to 6."""
    return flat_sum(element) % 7
