"""Iterators of user code, whose `__iter__` is called once.

`for`, `yield from`, `islice`, `chain` and `zip` call `iter` on an iterator that they get. A class that is its own
iterator often starts again in `__iter__`, so a pass that is read in parts would start again with each part.
"""

from collections.abc import Iterator
from itertools import repeat
from types import GeneratorType
from typing import TypeVar

T = TypeVar("T")


def only_next(iterator: Iterator[T]) -> Iterator[T]:
    """Return an iterator that gives what the next calls of `next` give, and calls nothing else of the other."""
    kind: type = type(iterator)
    return iterator if kind is GeneratorType else map(next, repeat(iterator))
