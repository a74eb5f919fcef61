"""Ops of every kind, an aggregator and an executor, all of which can be pickled; and a config of given stages."""

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

from penstock.pipeline import Merge, PipelineConfig, Sink, Source


def plain(item: int) -> int:
    """Return the item."""
    return item


def counting(item: int) -> Iterator[int]:
    """Yield the item."""
    yield item


async def awaited(item: int) -> int:
    """Return the item."""
    return item


async def streamed(item: int) -> AsyncIterator[int]:
    """Yield the item."""
    yield item


@functools.wraps(plain)
def wrapped(item: int) -> int:
    """Return the item."""
    return plain(item)


class Called:
    """A callable class that also has `__getitem__`."""

    def __call__(self, item: int) -> int:
        """Return the item."""
        return item

    def __getitem__(self, item: int) -> int:
        return item


class CalledAsync:
    """A class whose `__call__` and methods are async."""

    async def __call__(self, item: int) -> int:
        """Return the item."""
        return item

    async def method(self, item: int) -> int:
        """Return the item."""
        return item

    @staticmethod
    async def static(item: int) -> int:
        """Return the item."""
        return item

    @classmethod
    def made(cls, item: int) -> Iterator[int]:
        """Yield the item."""
        yield item


class CalledStream:
    """A class whose `__call__` is an async generator."""

    @staticmethod
    async def __call__(item: int) -> AsyncIterator[int]:
        """Yield the item."""
        yield item


class Sums:
    """An aggregator whose batches are sums of at least ten."""

    def __init__(self) -> None:
        self.held: list[int] = []

    def accumulate(self, item: int, /) -> int | None:
        """Add a number."""
        self.held.append(item)
        return self.flush() if sum(self.held) >= 10 else None

    def flush(self) -> int | None:
        """Return the sum of the rest."""
        total, self.held = sum(self.held), []
        return total or None


class Total:
    """A class that is called with an item."""

    def __init__(self, item: int) -> None:
        self.item = item


class Workers:
    """An executor that is a value: it has a number of processes."""

    max_workers = 2


def config(*stages: Any, source: Source | Merge | None = None) -> PipelineConfig:
    """Return a pipeline of these stages."""
    return PipelineConfig(source or Source([1, 2]), stages, Sink())
