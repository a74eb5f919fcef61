"""Functions that write to all of an element in place, so that elements which share memory are told apart."""

from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from penstock._tensors import is_tensor
from tests.equivalence.kinds import is_dict, is_list_or_tuple

Element = Any


class Thing:
    """An object of a class of the user's own."""

    def __init__(self, inside: Element) -> None:
        self.inside = inside


class Slotted:
    """An object without a dict of attributes."""

    __slots__ = ("inside",)

    def __init__(self, inside: Element) -> None:
        self.inside = inside


@dataclass
class Counted:
    """A dataclass whose constructor changes its fields, so that a second call is seen."""

    inside: Element
    calls: Any = 0

    def __post_init__(self) -> None:
        self.calls += 1


def has_values(part: object) -> bool:
    """Return whether a part of an element is an array, a row of an array of structures, or a tensor."""
    return isinstance(part, np.ndarray | np.void) or is_tensor(part)


def is_set(part: object) -> TypeGuard[set[Any]]:
    """Return whether a part of an element is a set."""
    return isinstance(part, set)


def write_to(part: Element) -> None:
    """Change all that can be changed in an element."""
    if has_values(part):
        _write_to_values(part)
    elif is_dict(part):
        write_to(list(part.values()))
        part["written"] = part.get("written", 0) + 1
    elif is_list_or_tuple(part):
        for each in part:
            write_to(each)
        if isinstance(part, list):
            part.append(len(part))
    elif isinstance(part, Thing | Slotted | Counted):
        write_to(part.inside)
        part.inside = [part.inside]
    else:
        _write_to_leaf(part)


def _write_to_leaf(part: object) -> None:
    if isinstance(part, bytearray):
        part[0] += 1
    elif is_set(part):
        part.add(len(part) + 100)


def _write_to_values(part: Any) -> None:
    if is_tensor(part):
        part.add_(1)
    elif part.dtype.hasobject:
        write_to(part.tolist())
    elif part.flags.writeable and part.dtype.names:
        for name in part.dtype.names:
            part[name] += 1
    elif part.flags.writeable:
        part += 1


def shown(part: Element) -> str:
    """Return a text with the types and values of an element."""
    kind = type(part).__name__
    if has_values(part):
        values = part.tolist()
        return f"{kind}({part.dtype}, {shown(values) if part.dtype == object else values!r})"
    if is_dict(part):
        return f"{kind}({', '.join(f'{key}: {shown(value)}' for key, value in part.items())})"
    if is_list_or_tuple(part):
        return f"{kind}({', '.join(map(shown, part))})"
    if isinstance(part, Thing | Slotted | Counted):
        return f"{kind}({shown(part.inside)}, {getattr(part, 'calls', '')})"
    return repr(part)


def written(element: Element) -> str:
    """Write to an element, and return the text of what it is then."""
    write_to(element)
    return shown(element)
