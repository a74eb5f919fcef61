"""The digest that keys a cache: it changes with everything that determines the cached elements."""

import hashlib
from collections.abc import Callable

from penstock._graph._code import code_identity
from penstock._graph._fingerprint import all_details, fingerprint
from penstock._graph._nodes import Batch, Filter, FlatMap, Map, Node, walk


def cache_identity(node: Node, version: str | None) -> str:
    """Return 32 hexadecimal digits that identify a node's elements.

    Args:
        node: the cached node.
        version: replaces the code of the node's functions; None includes their code.
    """
    parts = fingerprint(node)
    details = all_details(node)
    hasher = hashlib.blake2b(digest_size=16)
    codes = [f"version {version}"] if version is not None else code_identities(node)
    for text in (parts.source, parts.order, *codes, *details["source"], *details["order"]):
        hasher.update(f"{len(text)}:{text}".encode())
    return hasher.hexdigest()


def code_identities(node: Node) -> list[str]:
    """Return the code identity of each function below and at a node."""
    return [code_identity(function) for step in walk(node) for function in _functions(step)]


def _functions(step: Node) -> list[Callable[..., object]]:
    match step:
        case Map(function=function) | FlatMap(function=function) | Filter(predicate=function) | Batch(merge=function):
            return [function]
        case _:
            return []
