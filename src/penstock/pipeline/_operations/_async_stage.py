"""Stages whose op is an async function or an async generator; the lanes await it themselves."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from time import perf_counter

from penstock.concurrency._worker import is_cancelled
from penstock.pipeline._channels import NOTHING, InOrder
from penstock.pipeline._items import SKIP
from penstock.pipeline._operations._calls import Failed
from penstock.pipeline._operations._stage import RunningStage, StageSetup
from penstock.pipeline._tuning import CHUNK_SECONDS


class AsyncStage(RunningStage):
    """An async function, applied to one item per lane.

    A lane whose calls return without waiting lets other tasks run once per millisecond.
    """

    def __init__(self, setup: StageSetup, op: Callable[[object], Awaitable[object]], *, ordered: bool) -> None:
        super().__init__(setup)
        self._op = op
        self._order = InOrder.if_needed(setup.concurrency, self._deliver, ordered=ordered)

    async def _work(self) -> None:
        yielded = perf_counter()  # when the lane last let other tasks run
        seconds, items = 0.0, 0  # in calls since then
        while (item := await self._next()) is not NOTHING:
            number = 0 if self._order is None else self._order.next_number()
            started = perf_counter()
            result = await self._call(item)
            now = perf_counter()
            seconds, items = seconds + now - started, items + 1
            if self._counts:
                failed = type(result) is Failed
                self.count(1, int(result is not SKIP and not failed), int(failed), now - started)
            if self._order is None:
                await self._deliver(result)
            else:
                await self._order.deliver(number, result)
            if now - yielded > CHUNK_SECONDS:
                self.learn(items, seconds)
                await asyncio.sleep(0)
                yielded = perf_counter()
                seconds, items = 0.0, 0

    async def _next(self) -> object:
        """Return the next item, or NOTHING at the end of the pass."""
        if self._probe is None and self._failure is None:
            item = self._input.take_now()
            if item is not NOTHING:
                if not self._idle:
                    self._start_lanes()
                return item
        items = await self._take(1)
        return items[0] if items else NOTHING

    async def _call(self, item: object) -> object:
        try:
            return await self._op(item)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            return Failed(item, error)

    async def _deliver(self, result: object) -> None:
        if type(result) is Failed:
            self.drop_or_raise(result)
        elif result is not SKIP and not self.output.offer(result):
            await self._put([result])


class AsyncGeneratorStage(RunningStage):
    """An async generator for each item; its values are put out as they are made, and it is closed in every case."""

    def __init__(self, setup: StageSetup, op: Callable[[object], AsyncGenerator[object, None]]) -> None:
        super().__init__(setup)
        self._op = op

    async def _work(self) -> None:
        while items := await self._take(1):
            started = perf_counter()
            made, failed = await self._run_one(items[0])
            seconds = perf_counter() - started
            self.count(1, made, int(failed is not None), seconds)
            self.learn(1, seconds)
            if failed is not None:
                self.drop_or_raise(failed)
            await asyncio.sleep(0)

    async def _run_one(self, item: object) -> tuple[int, Failed | None]:
        made = 0
        yielded = perf_counter()
        try:
            async with aclosing(self._op(item)) as values:
                async for value in values:
                    if value is not SKIP:
                        made += 1
                        if not self.output.offer(value):
                            await self._put([value])
                    if perf_counter() - yielded > CHUNK_SECONDS:
                        await asyncio.sleep(0)
                        yielded = perf_counter()
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            return made, Failed(item, error)
        return made, None
