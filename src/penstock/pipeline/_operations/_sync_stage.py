"""Stages whose operation is a plain function: threads apply it to chunks, fused with those behind while it is cheap.

A chunk is as many items as take a millisecond, so that an item of that length or more travels alone. Where the stages
behind are plain functions too, have nothing waiting and a lane to spare, and an item takes all of them together less
than `_CHEAP_SECONDS`, one call applies them all: their items touch the loop once. As soon as they take longer, each
stage works for itself, at the same time as the others.
"""

from typing import Final, Self

from penstock.pipeline._channels._channel import GATHER_SECONDS, MAX_ITEMS, Waiters
from penstock.pipeline._channels._order import InOrder
from penstock.pipeline._failures import FatalError, source_failure
from penstock.pipeline._operations._calls import Applied, Op
from penstock.pipeline._operations._stage import Site, Stage
from penstock.pipeline._operations._threads import Threads

_CHEAP_SECONDS: Final = 0.0001


class SyncStage(Stage):
    """A plain function, applied to a chunk of items a lane.

    Attributes:
        op: the function.
        threads: that apply it.
        following: the stage behind, if it is a plain function on the same threads.
    """

    def __init__(self, site: Site, op: Op, threads: Threads, *, ordered: bool) -> None:
        super().__init__(site)
        self.op = op
        self.threads = threads
        in_order = ordered and site.concurrency > 1
        self._order = InOrder(site.concurrency, self._put_judged) if in_order else None
        self.following: Self | None = None
        self._busy = 0  # calls that apply the function: own ones, and those of the stages in front
        self._waiting = Waiters()

    async def _work(self) -> None:
        while items := await self._take(self._chunk_size()):
            if self._order is None:
                await self._protect(self._apply(items))
            else:
                number = self._order.number()
                await self._order.pass_on(number, await self._results(items))

    def _chunk_size(self) -> int:
        return min(max(int(GATHER_SECONDS / max(self.cost, 1e-9)), 1), MAX_ITEMS) if self.cost else 1

    # -- as they complete

    async def _apply(self, items: list[object]) -> None:
        while items and self._failure is None:
            stages = await self._enter()
            try:
                items = await self._apply_some(stages, items)
            finally:
                for stage in stages:
                    stage.leave()

    async def _apply_some(self, stages: list[Self], items: list[object]) -> list[object]:
        """Return the items that are left after the functions of stages were applied to some."""
        made = 0

        async def put(values: list[object]) -> None:
            nonlocal made
            made += len(values)
            if self._probe is None:
                await stages[-1].output.put_all(values)
            elif values:
                await self._put_slowly(values)  # what is counted is not fused

        applied = Applied(tuple(stage.op for stage in stages), items)
        call = self.threads.start(applied, self._halt)
        await call.pass_on(put)
        if call.error is not None:
            raise self._broken(call.error)
        for stage in stages:
            stage.learn(applied.used, applied.seconds / len(stages))
            stage.count(applied.used, made, int(applied.failed is not None), applied.seconds / len(stages))
        if applied.failed is not None:
            stage = stages[applied.failed.step]
            stage.tolerance.judge(stage.name, applied.failed.item, applied.failed.error)
        return items[applied.used :]

    # -- in order

    async def _results(self, items: list[object]) -> list[object]:
        """Return the values of items, and in their places those that failed."""
        results: list[object] = []
        while items and self._failure is None:
            applied = Applied((self.op,), items)
            call = self.threads.start(applied, self._halt)
            while not call.done:  # when it turns out slow, it ends after the item at hand
                await call.wait()
            if call.error is not None:
                raise self._broken(call.error)
            values = call.take()
            results.extend(values)
            self.learn(applied.used, applied.seconds)
            self.count(applied.used, len(values), int(applied.failed is not None), applied.seconds)
            if applied.failed is not None:
                results.append(applied.failed)
            items = items[applied.used :]
        return results

    def _broken(self, error: BaseException) -> BaseException:
        """Return what to raise for a call that could not be made."""
        cause = error.__cause__ if isinstance(error, FatalError) else None
        return error if cause is None else source_failure(self.name, cause)

    # -- fused

    async def _enter(self) -> list[Self]:
        """Return this stage, and those behind that are applied in the same call; a place in each is taken."""
        while self._busy >= self.concurrency:
            await self._waiting.wait()
        self._busy += 1
        stages = [self]
        if self._probe is None and self.cost:
            cost = self.cost
            while (following := stages[-1].following) is not None and following.enter(_CHEAP_SECONDS - cost):
                cost += following.cost
                stages.append(following)
        return stages

    def enter(self, seconds: float) -> bool:
        """Return whether the stage in front may apply this one's function too, if an item takes at most so long."""
        may = (
            0.0 < self.cost <= seconds
            and self._in_pass
            and self._order is None
            and self._failure is None
            and self._busy < self.concurrency
            and self._input.is_idle()
        )
        self._busy += may
        return may

    def leave(self) -> None:
        """Give back a place in this stage."""
        self._busy -= 1
        self._waiting.wake_one()
