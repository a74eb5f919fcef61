"""The stage that collects items into batches; it runs on the loop itself, one chunk of items at a time."""

import asyncio
from time import perf_counter
from typing import Any

from penstock._caught import Caught
from penstock.pipeline._failures import stage_failure
from penstock.pipeline._items import SKIP
from penstock.pipeline._operations._calls import Failed
from penstock.pipeline._operations._stage import RunningStage, StageSetup
from penstock.pipeline._ops import Item
from penstock.pipeline._stages import Aggregate, Aggregator
from penstock.pipeline._tuning import MAX_ITEMS


class AggregateStage(RunningStage):
    """Batches of items, collected by an aggregator; each pass has an aggregator of its own.

    It has one lane, since an aggregator takes items in order.
    """

    def __init__(self, setup: StageSetup, aggregate: Aggregate) -> None:
        super().__init__(setup)
        self._aggregate = aggregate
        self._aggregator: Aggregator[Any] | None = None  # made when the first item of a pass has come

    async def _work(self) -> None:
        while items := await self._take(MAX_ITEMS):
            aggregator = self._opened()
            while items:
                items = await self._add(aggregator, items)
            await asyncio.sleep(0)

    async def _add(self, aggregator: Aggregator[Any], items: list[Item]) -> list[Item]:
        """Return the items after the first that fails; the ones before it are added, and full batches put out."""
        started = perf_counter()
        batches: list[object] = []
        failed: Failed | None = None
        tried = 0
        for item in items:
            tried += 1
            with Caught() as caught:
                batch = aggregator.accumulate(item)
                if batch is not None and batch is not SKIP:
                    batches.append(batch)
            if caught.error is not None:
                failed = Failed(item, caught.error)
                break
        seconds = perf_counter() - started
        self.learn(tried, seconds)
        self.count(tried, len(batches), int(failed is not None), seconds)
        await self._put(batches)
        if failed is not None:
            self.drop_or_raise(failed)
        return items[tried:]

    def _rest(self) -> list[object]:
        aggregator = self._opened()
        self._aggregator = None
        batch: object = None
        with Caught() as caught:
            batch = None if self._aggregate.drop_last else aggregator.flush()
        if caught.error is not None:
            raise stage_failure(self.name, caught.error)
        if batch is None:
            return []
        self.count(0, 1, 0, 0.0)
        return [batch]

    def _opened(self) -> Aggregator[Any]:
        if self._aggregator is None:  # the first call in this pass
            with Caught() as caught:
                self._aggregator = self._aggregate.open()
            if caught.error is not None:
                raise stage_failure(self.name, caught.error)
            assert self._aggregator is not None
        return self._aggregator
