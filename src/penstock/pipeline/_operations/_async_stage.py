"""Stages whose operation is an async function or an async generator: its calls are awaited in the lanes themselves."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from time import perf_counter

from penstock.concurrency._worker import is_cancelled
from penstock.pipeline._channels._channel import GATHER_SECONDS, NOTHING
from penstock.pipeline._channels._order import InOrder
from penstock.pipeline._items import SKIP
from penstock.pipeline._operations._calls import Failed
from penstock.pipeline._operations._stage import Site, Stage


class AsyncStage(Stage):
    """An async function, applied to one item a lane. Lanes whose calls never wait let others run once a millisecond."""

    def __init__(self, site: Site, op: Callable[[object], Awaitable[object]], *, ordered: bool) -> None:
        super().__init__(site)
        self._op = op
        in_order = ordered and site.concurrency > 1
        self._order = InOrder(site.concurrency, self._deliver) if in_order else None

    async def _work(self) -> None:
        rested = perf_counter()
        spent, since = 0.0, 0  # seconds, items
        while (item := await self._next()) is not NOTHING:
            number = 0 if self._order is None else self._order.number()
            started = perf_counter()
            result = await self._call(item)
            now = perf_counter()
            spent, since = spent + now - started, since + 1
            if self._counts:
                failed = type(result) is Failed
                self.count(1, int(result is not SKIP and not failed), int(failed), now - started)
            if self._order is None:
                await self._deliver(result)
            else:
                await self._order.pass_on(number, result)
            if now - rested > GATHER_SECONDS:
                self.learn(since, spent)
                await asyncio.sleep(0)
                rested = perf_counter()
                spent, since = 0.0, 0

    async def _next(self) -> object:
        """Return an item; NOTHING at the end of the pass."""
        if self._probe is None and self._failure is None:
            item = self._input.take_now()
            if item is not NOTHING:
                if not self._idle:
                    self._grow()
                return item
        items = await self._take(1)
        return items[0] if items else NOTHING

    async def _call(self, item: object) -> object:
        try:
            return await self._op(item)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            return Failed(0, item, error)

    async def _deliver(self, result: object) -> None:
        if type(result) is Failed:
            self.tolerance.judge(self.name, result.item, result.error)
        elif result is not SKIP and not self.output.offer(result):
            await self._put([result])


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
            self.count(1, made, int(failed is not None), seconds)
            self.learn(1, seconds)
            if failed is not None:
                self.tolerance.judge(self.name, failed.item, failed.error)
            await asyncio.sleep(0)

    async def _run_one(self, item: object) -> tuple[int, Failed | None]:
        made = 0
        rested = perf_counter()
        try:
            async with aclosing(self._op(item)) as values:
                async for value in values:
                    if value is not SKIP:
                        made += 1
                        if not self.output.offer(value):
                            await self._put([value])
                    if perf_counter() - rested > GATHER_SECONDS:
                        await asyncio.sleep(0)
                        rested = perf_counter()
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            return made, Failed(0, item, error)
        return made, None
