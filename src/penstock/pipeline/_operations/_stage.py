"""What all stages with an operation share: lanes that work at the same time, passes, failures, statistics.

Guarantees:
  - At most `concurrency` lanes run; each has at most one call of the operation under way.
  - While an item waits and fewer calls are under way, another lane is on its way to it: a lane that takes an item while
    no other lane is free starts more, up to twice as many each time.
  - A pass is over when all its lanes are: the next one's items are taken after that.
  - When an item's failure ends the stage, what other lanes have computed is still put out; calls that are under way
    are cancelled where they are async, and end after the item at hand where they are in threads.
  - When the stage is cancelled, it ends when nothing of it runs any more.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from time import perf_counter
from typing import NamedTuple

from penstock._caught import Caught
from penstock.pipeline._channels._channel import Channel, Output
from penstock.pipeline._failures import Tolerance
from penstock.pipeline._operations._calls import Failed
from penstock.pipeline._operations._threads import Halt
from penstock.pipeline._statistics import Probe


class Site(NamedTuple):
    """Where a stage stands.

    Attributes:
        name: the stage's, unique in its pipeline.
        concurrency: how many calls may be under way.
        input: where it takes items.
        output: where it puts them.
        tolerance: what may fail.
        probe: counts, if statistics are kept.
    """

    name: str
    concurrency: int
    input: Channel
    output: Output
    tolerance: Tolerance
    probe: Probe | None


class Stage(ABC):
    """Owns the lanes of a stage while it runs.

    Attributes:
        cost: seconds that an item takes, lately.
    """

    def __init__(self, site: Site) -> None:
        self.name, self.concurrency, self._input, self.output, self.tolerance, self._probe = site
        self.cost = 0.0
        self._halt = Halt()
        self._lanes: set[asyncio.Task[None]] = set()
        self._idle = 0  # of those, which have no item: they wait for one, or were only just started
        self._protected: set[asyncio.Task[None]] = set()  # of those, which hold results
        self._failure: BaseException | None = None
        self._group = asyncio.TaskGroup()
        self._in_pass = False
        self._counts = self._probe is not None or self.tolerance.is_rate
        self._input.free = self.concurrency

    async def run(self) -> None:
        """Work until the input ends."""
        while True:
            async with asyncio.TaskGroup() as self._group:
                self._in_pass = True
                self._grow()
            self._in_pass = False
            self._idle = 0
            self._input.free = self.concurrency
            if self._failure is not None:
                raise self._failure
            await self._put(self._rest())
            if not self._input.next_pass():
                break
            await self.output.end_pass()
        if self._input.failure is None and not self.tolerance.is_shared:
            failure = self.tolerance.verdict()
            if failure is not None:
                raise failure

    @abstractmethod
    async def _work(self) -> None:
        """Be a lane: take items and put out what comes of them, until `_take` gives none."""

    def _rest(self) -> list[object]:
        """Return what is left at the end of a pass."""
        return []

    # -- lanes

    def _grow(self) -> None:
        """Start lanes for the items that wait, and one that waits for the next item; no lane is idle now."""
        lanes = len(self._lanes)
        if lanes < self.concurrency and self._failure is None:
            for _ in range(min(self.concurrency - lanes, len(self._input) + 1, max(lanes, 1))):
                lane = self._group.create_task(self._guarded(), name=self.name)
                self._lanes.add(lane)
                lane.add_done_callback(self._lanes.discard)
                self._idle += 1

    async def _guarded(self) -> None:
        """Be a lane whose failure is the stage's, raised when all lanes have ended."""
        self._idle -= 1
        self._input.free -= 1
        with Caught() as caught:
            await self._work()
        self._input.free += 1
        if isinstance(caught.error, asyncio.CancelledError):
            raise caught.error
        if caught.error is not None and self._failure is None:
            self._failure = caught.error
            self._halt.on = True
            for other in self._lanes - self._protected:
                other.cancel()

    # -- for the lanes

    async def _take(self, most: int) -> list[object]:
        """Return up to so many items; none at the end of the pass, or when the stage has failed."""
        if self._failure is not None:
            return []
        if self._probe is None:
            items = await self._take_idly(most)
        else:
            self._probe.looked(min(len(self._input), self._input.limit), self._input.limit)
            started = perf_counter()
            items = await self._take_idly(most)
            self._probe.waited_for_input(perf_counter() - started)
        if items and not self._idle:  # a lane that finds none at a pass's end must not start lanes for the next pass
            self._grow()
        return items

    async def _take_idly(self, most: int) -> list[object]:
        self._idle += 1
        self._input.free += 1
        try:
            return await self._input.take(most)
        finally:
            self._idle -= 1
            self._input.free -= 1

    async def _put(self, values: list[object]) -> None:
        """Put out values, also when another lane fails meanwhile."""
        if len(values) == 1 and self.output.offer(values[0]):
            return
        if values:
            await self._protect(self._put_slowly(values))

    async def _put_judged(self, results: list[object]) -> None:
        """Put out results, and judge those that failed when it is their turn."""
        start = 0
        for index, result in enumerate(results):
            if type(result) is Failed:
                await self._put(results[start:index])
                start = index + 1
                self.tolerance.judge(self.name, result.item, result.error, fatal=result.step < 0)
        await self._put(results[start:])

    async def _protect(self, work: Awaitable[None]) -> None:
        lane = asyncio.current_task()
        assert lane is not None
        self._protected.add(lane)
        try:
            await work
        finally:
            self._protected.discard(lane)

    async def _put_slowly(self, values: list[object]) -> None:
        if self._probe is None:
            await self.output.put_all(values)
            return
        started = perf_counter()
        await self.output.put_all(values)
        self._probe.waited_for_output(perf_counter() - started)

    def learn(self, items: int, seconds: float) -> None:
        """Note how long items took, which chooses sizes."""
        cost = seconds / items
        self.cost = cost if self.cost == 0.0 else (self.cost + cost) / 2
        self.output.pace = max(self._input.pace, self.cost / self.concurrency)
        self._input.adapt(self.cost / self.concurrency)

    def count(self, tried: int, made: int, failures: int, seconds: float) -> None:
        """Count items that were tried, what was made of them, and how many failed."""
        self.tolerance.items += tried
        if self._probe is not None:
            self._probe.done(made, failures, seconds)
