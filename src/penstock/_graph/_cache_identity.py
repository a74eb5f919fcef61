"""The identity under which a cache keeps elements: it stands for all that determines them."""

import hashlib
from collections.abc import Callable

from penstock._graph._code import code_identity
from penstock._graph._fingerprint import all_details, fingerprint
from penstock._graph._nodes import Batch, Filter, FlatMap, Map, Node, walk


def cache_identity(node: Node, version: str | None) -> str:
    """Return hexadecimal digits that stand for all that determines a node's elements.

    Args:
        node: what is kept.
        version: stands for the code of its functions; None reads the code itself.
    """
    parts = fingerprint(node)
    details = all_details(node)
    hasher = hashlib.blake2b(digest_size=16)
    codes = [f"version {version}"] if version is not None else code_identities(node)
    for text in (parts.source, parts.order, *codes, *details["source"], *details["order"]):
        hasher.update(f"{len(text)}:{text}".encode())
    return hasher.hexdigest()


def code_identities(node: Node) -> list[str]:
    """Return the identity of each function that determines a node's elements."""
    return [code_identity(function) for step in walk(node) for function in _functions(step)]


def _functions(step: Node) -> list[Callable[..., object]]:
    match step:
        case Map(function=function) | FlatMap(function=function) | Filter(predicate=function) | Batch(merge=function):
            return [function]
        case _:
            return []
