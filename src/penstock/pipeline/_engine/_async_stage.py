"""Stages whose operation is an async function or an async generator: its calls are awaited in the lanes themselves."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from time import perf_counter

from penstock.pipeline._engine._calls import Failed
from penstock.pipeline._engine._channel import NOTHING
from penstock.pipeline._engine._failures import is_cancelled
from penstock.pipeline._engine._order import InOrder
from penstock.pipeline._engine._stage import GATHER_SECONDS, Site, Stage
from penstock.pipeline._items import SKIP


class AsyncStage(Stage):
    """An async function, applied to one item a lane. Lanes whose calls never wait let others run once a millisecond."""

    def __init__(self, site: Site, op: Callable[[object], Awaitable[object]], *, ordered: bool) -> None:
        super().__init__(site)
        self._op = op
        in_order = ordered and site.concurrency > 1
        self._order = InOrder(site.concurrency, self._deliver) if in_order else None

    async def _work(self) -> None:
        order, output, source = self._order, self._output, self._input
        rested = finished = perf_counter()
        spent, since = 0.0, 0  # seconds, items
        while True:
            item = source.take_now() if self._failure is None and self._probe is None else NOTHING
            if item is NOTHING:
                items = await self._take(1)
                if not items:
                    return
                item = items[0]
                finished = perf_counter()
            elif len(self._lanes) < self.concurrency and len(source):
                self._grow()
            number = 0 if order is None else order.number()
            started = finished
            result: object
            try:
                result = await self._op(item)
            except BaseException as error:  # noqa: BLE001 - judged below, or in its turn
                if isinstance(error, asyncio.CancelledError) and is_cancelled():
                    raise
                result = Failed(0, item, error)
            finished = perf_counter()
            spent, since = spent + finished - started, since + 1
            if self._counts:
                failed = type(result) is Failed
                self._count(1, int(result is not SKIP and not failed), int(failed), finished - started)
            if order is not None:
                await order.pass_on(number, result)
            elif type(result) is Failed:
                self._tolerance.judge(self.name, result.item, result.error)
            elif result is not SKIP and not output.offer(result):
                await self._put([result])
            if finished - rested > GATHER_SECONDS:
                self._learn(since, spent)
                await asyncio.sleep(0)
                rested = finished = perf_counter()
                spent, since = 0.0, 0

    async def _deliver(self, result: object) -> None:
        if type(result) is Failed:
            self._tolerance.judge(self.name, result.item, result.error)
        elif result is not SKIP and not self._output.offer(result):
            await self._output.put(result)


class AsyncGeneratorStage(Stage):
    """An async generator for each item, whose values are put out as they come; it is closed whatever happens."""

    def __init__(self, site: Site, op: Callable[[object], AsyncGenerator[object, None]]) -> None:
        super().__init__(site)
        self._op = op

    async def _work(self) -> None:
        while items := await self._take(1):
            started = perf_counter()
            made, failed = await self._run_one(items[0])
            seconds = perf_counter() - started
            self._count(1, made, int(failed is not None), seconds)
            self._learn(1, seconds)
            if failed is not None:
                self._tolerance.judge(self.name, failed.item, failed.error)
            await asyncio.sleep(0)

    async def _run_one(self, item: object) -> tuple[int, Failed | None]:
        made = 0
        rested = perf_counter()
        try:
            async with aclosing(self._op(item)) as values:
                async for value in values:
                    if value is not SKIP:
                        made += 1
                        if not self._output.offer(value):
                            await self._put([value])
                    if perf_counter() - rested > GATHER_SECONDS:
                        await asyncio.sleep(0)
                        rested = perf_counter()
        except BaseException as error:  # noqa: BLE001 - judged by the lane
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            return made, Failed(0, item, error)
        return made, None
