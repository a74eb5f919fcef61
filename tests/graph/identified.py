"""Functions of all kinds, whose identities are compared between processes; a program imports them, too."""

import ctypes
import enum
import functools
import logging
import os
import re
import sys
import threading
from collections import UserDict
from dataclasses import dataclass
from pathlib import Path
from string import Template
from struct import Struct
from typing import Any

import numpy as np

from penstock import PerWorker
from penstock._graph._code import code_identity as code_identity
from penstock._graph._code import is_lambda_or_local as is_lambda_or_local
from penstock._graph._key import key_identity as key_identity
from penstock.batching import Pad, Stack

SIZE = 224
MEANS = np.array([0.4, 0.5])
WORDS = {"cat", "dog", "fish", "bird"}
LOCK = threading.Lock()
LOGGER = logging.getLogger("identified")


class Mode(enum.Enum):
    """A choice."""

    FAST = "fast"
    FINE = "fine"


def helper(number: int) -> int:
    """Return a number changed by a global's value."""
    return number + SIZE


def calls_helper(number: int) -> Any:
    """Return a result of functions and values of the module, some of which call each other."""
    LOGGER.debug("%s", LOCK)
    return helper(number) * MEANS if str(number) in WORDS else again(number)


def again(number: int) -> Any:
    """Call the function that called this one."""
    return calls_helper(number) if number in {1, 2, 3} else Mode.FAST


def closing_over(*values: Any) -> Any:
    """Return a function that holds values."""

    def function(number: int) -> tuple[Any, ...]:
        return number, values

    return function


def nested_set(words: list[str]) -> list[str]:
    """Return a result of a set in nested code."""
    return [word for word in words if word in {"a", "b", "c", "d"}]


@dataclass(frozen=True)
class Resize:
    """A callable with fields."""

    size: int
    mode: Mode = Mode.FAST

    def __call__(self, number: int) -> int:
        """Return a number by the fields and another method."""
        return self.crop(number) * self.size

    def crop(self, number: int) -> int:
        """Return the number."""
        return number


class Plain:
    """A callable with attributes, of which some have no text."""

    def __init__(self, *values: Any) -> None:
        self.values = values
        self.lock = threading.Lock()

    def __call__(self, number: int) -> Any:
        """Return the attribute."""
        return number, self.values


KINDS: dict[str, Any] = {
    "builtin": len,
    "method of a builtin": "abc".join,
    "class": str,
    "ufunc": np.square,
    "function": helper,
    "function that calls": calls_helper,
    "partial": functools.partial(helper, number=3),
    "partial of arrays": functools.partial(np.add, np.arange(5)),
    "closure": closing_over(1, "a", WORDS, {"x": [1.5]}, Mode.FINE, Path("a"), re.compile("a+"), np.float32(1)),
    "closure over objects": closing_over(LOCK, LOGGER, object(), sys.__stderr__, Plain(3), helper, np.dtype("f4")),
    "closure over objects of the standard library": closing_over(
        os.environ, ctypes.CDLL(None), UserDict(a={"b", "c", "d"}), Struct("<I"), Template("a")
    ),
    "frozen dataclass": Resize(3),
    "method of a dataclass": Resize(3).crop,
    "object": Plain(3, {"a", "b", "c"}),
    "method of an object": Plain(3).__call__,
    "merges": closing_over(Pad(length=3), Stack()),
    "per worker": PerWorker(functools.partial(Plain, 4)),
    "cached": functools.lru_cache(helper),
    "nested": nested_set,
}


def identities() -> dict[str, list[str]]:
    """Return the identities of all these functions: with and without state, and in the key of a cache."""
    return {
        name: [code_identity(kind), code_identity(kind, with_state=False), key_identity(kind).digest]
        for name, kind in KINDS.items()
    }
