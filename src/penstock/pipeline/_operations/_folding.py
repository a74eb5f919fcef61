"""Stages that put items together: they run on the loop itself, chunk by chunk."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

from penstock._caught import Caught
from penstock.pipeline._channels._channel import MAX_ITEMS
from penstock.pipeline._failures import source_failure
from penstock.pipeline._items import SKIP
from penstock.pipeline._operations._calls import Failed
from penstock.pipeline._operations._stage import Site, Stage
from penstock.pipeline._ops import Item
from penstock.pipeline._stages import Aggregate, Aggregator


class FoldStage(Stage):
    """A stage of one lane, whose items give any number of values each."""

    @abstractmethod
    def _add(self, item: Item) -> Iterable[object]:
        """Return the values that are complete with this item."""

    def _prepare(self) -> None:
        """Make what the pass needs, before its first item; failing at that ends the pipeline."""

    async def _work(self) -> None:
        while items := await self._take(MAX_ITEMS):
            self._prepare()
            while items:
                items = await self._fold(items)
            await asyncio.sleep(0)

    async def _fold(self, items: list[object]) -> list[object]:
        """Return the items behind the first that failed; those before it are folded."""
        started = perf_counter()
        values: list[object] = []
        failed = None
        used = 0
        for item in items:
            used += 1
            failed = _attempt(self._add, item, values)
            if failed is not None:
                break
        seconds = perf_counter() - started
        self.learn(used, seconds)
        self.count(used, len(values), int(failed is not None), seconds)
        await self._put(values)
        if failed is not None:
            self.tolerance.judge(self.name, failed.item, failed.error)
        return items[used:]


class AggregateStage(FoldStage):
    """Batches, as an aggregator makes them; each pass has one of its own."""

    def __init__(self, site: Site, aggregate: Aggregate) -> None:
        super().__init__(site)
        self._aggregate = aggregate
        self._aggregator: Aggregator[Any] | None = None

    def _add(self, item: Item) -> Iterable[object]:
        assert self._aggregator is not None
        batch = self._aggregator.accumulate(item)
        return () if batch is None else (batch,)

    def _rest(self) -> list[object]:
        self._prepare()
        aggregator, self._aggregator = self._aggregator, None
        assert aggregator is not None
        batch: object = None
        with Caught() as caught:
            batch = None if self._aggregate.drop_last else aggregator.flush()
        if caught.error is not None:
            raise source_failure(self.name, caught.error)
        if batch is None:
            return []
        self.count(0, 1, 0, 0.0)
        return [batch]

    def _prepare(self) -> None:
        if self._aggregator is None:
            with Caught() as caught:
                self._aggregator = self._aggregate.open()
            if caught.error is not None:
                raise source_failure(self.name, caught.error)


def _attempt(step: Callable[[object], Iterable[object]], item: object, values: list[object]) -> Failed | None:
    with Caught() as caught:
        values.extend(value for value in step(item) if value is not SKIP)
    return None if caught.error is None else Failed(0, item, caught.error)
