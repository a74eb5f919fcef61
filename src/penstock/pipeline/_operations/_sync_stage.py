"""Stages whose op is a plain function: threads apply it to chunks, together with the ops of cheap stages behind it.

A chunk has as many items as take a millisecond, so an item that takes that long travels alone. If the next stages have
plain functions too, a free lane and no waiting items, and an item takes less than `FUSED_SECONDS` in all of them
together, one call applies all their functions: the stages are fused, and an item passes the loop once instead of once
per stage. As soon as they take longer, each stage works by itself, at the same time as the others.
"""

from typing import Self

from penstock.pipeline._channels import InOrder, Waiters
from penstock.pipeline._failures import FatalError, stage_failure
from penstock.pipeline._operations._calls import Applied, Op
from penstock.pipeline._operations._stage import RunningStage, StageSetup
from penstock.pipeline._operations._threads import Threads
from penstock.pipeline._tuning import CHUNK_SECONDS, FUSED_SECONDS, chunk_size


class SyncStage(RunningStage):
    """A plain function, applied to one chunk of items per lane.

    Attributes:
        op: the function.
        threads: the threads that apply it.
        following: the next stage, if it is a plain function on the same threads.
    """

    def __init__(self, setup: StageSetup, op: Op, threads: Threads, *, ordered: bool) -> None:
        super().__init__(setup)
        self.op = op
        self.threads = threads
        self._order = InOrder.if_needed(setup.concurrency, self._put_results, ordered=ordered)
        self.following: Self | None = None
        self._busy = 0  # calls that apply the function, of this stage and of the stages before it
        self._waiting = Waiters()

    async def _work(self) -> None:
        while items := await self._take(chunk_size(CHUNK_SECONDS, self.item_seconds)):
            if self._order is None:
                await self._protect(self._apply(items))
            else:
                number = self._order.next_number()
                await self._order.deliver(number, await self._results(items))

    # -- in order of completion

    async def _apply(self, items: list[object]) -> None:
        while items and self._failure is None:
            stages = await self._enter()
            try:
                items = await self._apply_some(stages, items)
            finally:
                for stage in stages:
                    stage.leave()

    async def _apply_some(self, stages: list[Self], items: list[object]) -> list[object]:
        """Return the items that are left after the functions of the stages were applied to some."""
        made = 0

        async def put(values: list[object]) -> None:
            nonlocal made
            made += len(values)
            if self._probe is None:
                await stages[-1].output.put_all(values)
            elif values:
                await self._put_timed(values)  # a stage with a probe is not fused, so this is the last one

        applied = Applied(tuple(stage.op for stage in stages), items)
        call = self.threads.start(applied, self._stop)
        await call.forward_values(put)
        if call.error is not None:
            raise self._call_failure(call.error)
        for stage in stages:
            stage.learn(applied.tried, applied.seconds / len(stages))
            stage.count(applied.tried, made, int(applied.failed is not None), applied.seconds / len(stages))
        if applied.failed is not None:
            stages[applied.failed.function].drop_or_raise(applied.failed)
        return items[applied.tried :]

    # -- in the order of the items

    async def _results(self, items: list[object]) -> list[object]:
        """Return the results of items, with a `Failed` in the place of each item that failed."""
        results: list[object] = []
        while items and self._failure is None:
            applied = Applied((self.op,), items)
            call = self.threads.start(applied, self._stop)
            while not call.done:  # a slow call ends after the current item
                await call.wait()
            if call.error is not None:
                raise self._call_failure(call.error)
            values = call.take_values()
            results.extend(values)
            self.learn(applied.tried, applied.seconds)
            self.count(applied.tried, len(values), int(applied.failed is not None), applied.seconds)
            if applied.failed is not None:
                results.append(applied.failed)
            items = items[applied.tried :]
        return results

    def _call_failure(self, error: BaseException) -> BaseException:
        """Return the exception to raise for a call that could not be made."""
        cause = error.__cause__ if isinstance(error, FatalError) else None
        return error if cause is None else stage_failure(self.name, cause)

    # -- fused stages

    async def _enter(self) -> list[Self]:
        """Return the stages for the next call: this one and the fused ones behind it; each counts the call as its own.

        `leave` has to be called for each.
        """
        while self._busy >= self.concurrency:
            await self._waiting.wait()
        self._busy += 1
        stages = [self]
        if self._probe is None and self.item_seconds:
            seconds = self.item_seconds
            while (following := stages[-1].following) is not None and following.enter(FUSED_SECONDS - seconds):
                seconds += following.item_seconds
                stages.append(following)
        return stages

    def enter(self, max_seconds: float) -> bool:
        """Return whether a stage before this one may apply its function, too, if an item takes at most so long.

        If so, that counts as a call of this stage, until `leave`.
        """
        may = (
            0.0 < self.item_seconds <= max_seconds
            and self._in_pass
            and self._order is None
            and self._failure is None
            and self._busy < self.concurrency
            and self._input.is_idle()
        )
        self._busy += may
        return may

    def leave(self) -> None:
        """End a call of this stage's function."""
        self._busy -= 1
        self._waiting.wake_one()
