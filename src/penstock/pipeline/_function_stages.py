"""Stages that call a function for each item: a plain one on threads, an async one on the loop, an aggregator.

Plain functions: threads apply them to chunks. A chunk has as many items as take a millisecond, so an item that takes
that long travels alone. If the next stages have plain functions too, a free lane and no waiting items, and an item
takes less than `FUSED_SECONDS` in all of them together, one call applies all their functions: the stages are fused, and
an item passes the loop once instead of once per stage. As soon as they take longer, each stage works by itself, at the
same time as the others.

Async functions and async generators: the lanes await them. Aggregators: they run on the loop, on a chunk of items at a
time.

A router is the op of an ordinary stage: a plain router runs on the threads, is applied to chunks, and is fused with
cheap functions before it; an async router is awaited. Its results are pairs of a path's number and the item, which a
`PathSwitch` puts into the paths.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, closing
from time import perf_counter
from typing import Any, Self

from penstock._caught import Caught
from penstock.errors import UsageError
from penstock.pipeline._channels import NOTHING, Waiters
from penstock.pipeline._items import SKIP, FatalError, short_repr, stage_failure, without_own_frames
from penstock.pipeline._ops import Item, Kind
from penstock.pipeline._running_stage import InOrder, RunningStage, StageSetup
from penstock.pipeline._stages import Aggregate, Aggregator
from penstock.pipeline._threads import AnyThreads, Applied, Failed, ItemFunction
from penstock.pipeline._tuning import CHUNK_SECONDS, FUSED_SECONDS, MAX_ITEMS, chunk_size


class SyncStage(RunningStage):
    """A plain function, applied to one chunk of items per lane.

    Attributes:
        op: the function.
        threads: the threads that apply it.
        following: the next stage, if it is a plain function on the same threads.
    """

    def __init__(self, setup: StageSetup, op: ItemFunction, threads: AnyThreads, *, ordered: bool) -> None:
        super().__init__(setup)
        self.op = op
        self.threads = threads
        self._order = InOrder.if_needed(setup, ordered=ordered)
        self.following: Self | None = None
        self._busy = 0  # calls that apply the function, of this stage and of the stages before it
        self._waiting = Waiters()

    async def _work(self) -> None:
        while items := await self._take(chunk_size(CHUNK_SECONDS, self.item_seconds)):
            number = self._input.number
            if self._order is None:
                await self._protect(self._apply(number, items))
            else:
                await self._apply_in_order(self._order, number, items)

    # -- in order of completion

    async def _apply(self, number: int, items: list[object]) -> None:
        """Apply the functions of this stage, and of those fused with it; `number` is that of the first item."""
        made = 0

        async def put(values: list[object]) -> None:
            nonlocal made
            made += len(values)
            self.give_back_rest(call, applied, number + len(items))
            if self._probe is None:
                await stages[-1].output.put_all(values)
            elif values:
                await self._put_timed(values)  # a stage with a probe is not fused, so this is the last one

        stages = await self._enter()
        applied = Applied(tuple(stage.op for stage in stages), items)
        try:
            call = self.threads.start(applied, self.stop, slow=len(items) == 1)
            await call.forward_values(put)
            if call.error is not None:
                raise self.call_failure(call)
            seconds = applied.seconds / len(stages)
            for number, stage in enumerate(stages):
                stage.learn(applied.tried, seconds)
                stage.count(applied.tried_by(number), made, int(applied.failed is not None), seconds)
            if applied.failed is not None:
                stages[applied.failed.function].drop_or_raise(applied.failed)
        finally:
            applied.failed = None
            for stage in stages:
                stage.leave()

    # -- in the order of the items

    async def _apply_in_order(self, order: InOrder, number: int, items: list[object]) -> None:
        """Apply the function; `number` is that of the first item."""
        results: list[object] = []
        made = 0
        has_turn = False

        async def put(values: list[object]) -> None:
            nonlocal has_turn, made
            made += len(values)
            results.extend(values)
            self.give_back_rest(call, applied, number + len(items))
            if values and not (call.done or has_turn):  # the call is slow; its results needn't wait for the rest
                await order.wait_for_turn(number)
                has_turn = True
            if has_turn:
                await self._put(results[:])
                results.clear()

        applied = Applied((self.op,), items)
        call = self.threads.start(applied, self.stop, slow=len(items) == 1)
        try:
            await call.forward_values(put)
            if call.error is not None:
                raise self.call_failure(call)
            self.learn(applied.tried, applied.seconds)
            self.count(applied.tried, made, int(applied.failed is not None), applied.seconds)
            if applied.failed is not None:
                results.append(applied.failed)
        finally:
            applied.failed = None
        if has_turn:
            await self._put_results(results)
            await order.end_turn(self._put_results, applied.tried)
        else:
            await order.deliver(number, results, self._put_results, applied.tried)

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


class AsyncStage(RunningStage):
    """An async function, applied to one item per lane.

    A lane whose calls return without waiting lets other tasks run once per millisecond. A lane that finds that another
    one ran during its call has waited, and need not.
    """

    def __init__(self, setup: StageSetup, op: Callable[[object], Awaitable[object]], *, ordered: bool) -> None:
        super().__init__(setup)
        self._op = op
        self._order = InOrder.if_needed(setup, ordered=ordered)
        self._late = InOrder(0, setup.input)  # of results that found no room, by the order of their end
        self._num_late = 0
        self._latest: object = None  # the lane that ran last
        self._learned = 0.0  # when `learn` was last called
        self._seconds, self._items = 0.0, 0  # in calls since then

    async def _work(self) -> None:
        lane = asyncio.current_task()
        yielded = perf_counter()  # when the lane last let other tasks run
        self._learned = self._learned or yielded
        while (item := await self._next()) is not NOTHING:
            number = self._input.number
            started = perf_counter()
            if self._latest is not lane:
                self._latest, yielded = lane, started
            result = await self._call(item)
            now = perf_counter()
            if self._latest is not lane:
                self._latest, yielded = lane, now
            self._seconds += now - started
            self._items += 1
            if now - self._learned > CHUNK_SECONDS:
                self.learn(self._items, self._seconds)
                self._learned, self._seconds, self._items = now, 0.0, 0
            if self._counts:
                failed = type(result) is Failed
                self.count(1, int(result is not SKIP and not failed), int(failed), now - started)
            if self._order is None:
                await self._deliver(result)
            else:
                await self._order.deliver(number, result, self._deliver)
            if now - yielded > CHUNK_SECONDS:
                await asyncio.sleep(0)
                yielded = perf_counter()

    async def _next(self) -> object:
        """Return the next item, or NOTHING at the end of the pass."""
        if self._probe is None and self._failure is None:
            item = self._input.take_now()
            if item is not NOTHING:
                if not self._idle:
                    self._start_lanes()
                return item
            if self._input.is_pass_over:
                return NOTHING
        items = await self._take(1)
        return items[0] if items else NOTHING

    async def _call(self, item: object) -> object:
        try:
            result = await self._op(item)
        except BaseException as error:
            if self.stop.cancels(error):
                raise
            if not self.stop.is_set:
                return Failed(item, without_own_frames(error))
            raise asyncio.CancelledError from error
        if self.stop.is_set:  # the op has swallowed the cancellation
            raise asyncio.CancelledError
        return result

    async def _deliver(self, result: object) -> None:
        if type(result) is Failed:
            self.drop_or_raise(result)
        elif result is not SKIP and (self._late.is_delivering or not self.output.offer(result)):
            started = perf_counter()
            self._num_late += 1
            await self._late.deliver(self._num_late - 1, result, self._put_late)
            if self._probe is not None:
                self._probe.waited_for_output(perf_counter() - started)

    async def _put_late(self, result: object) -> None:
        if not self.output.offer(result):
            await self._protect(self.output.put(result))


class AsyncGeneratorStage(RunningStage):
    """An async generator for each item. Each value is sent on as soon as it is made; the generator is always closed."""

    def __init__(self, setup: StageSetup, op: Callable[[object], AsyncGenerator[object, None]]) -> None:
        super().__init__(setup)
        self._op = op

    async def _work(self) -> None:
        while items := await self._take(1):
            failed = await self._run_one(items[0])
            if self.stop.is_set:  # the generator has swallowed the cancellation
                raise asyncio.CancelledError
            if failed is not None:
                self.drop_or_raise(failed)
            await asyncio.sleep(0)

    async def _run_one(self, item: object) -> Failed | None:
        made, seconds = 0, 0.0
        yielded = started = perf_counter()
        with Caught() as caught:
            async with aclosing(self._op(item)) as values:
                async for value in values:
                    if self.stop.is_set:
                        break
                    now = perf_counter()
                    seconds += now - started
                    if value is not SKIP:
                        made += 1
                        if not self.output.offer(value):
                            await self._put([value])
                    if now - yielded > CHUNK_SECONDS:
                        await asyncio.sleep(0)
                        yielded = perf_counter()
                    started = perf_counter()
        if self.stop.cancels(caught.error):
            raise caught.taken()
        seconds += perf_counter() - started
        self.count(1, made, int(caught.error is not None), seconds)
        self.learn(1, seconds)
        return None if caught.error is None else Failed(item, without_own_frames(caught.taken()))


class AggregateStage(RunningStage):
    """Batches of items, collected by an aggregator; each pass has an aggregator of its own.

    It has one lane, since an aggregator takes items in order.
    """

    def __init__(self, setup: StageSetup, aggregate: Aggregate) -> None:
        super().__init__(setup)
        self._aggregate = aggregate
        self._aggregator: Aggregator[Any] | None = None  # made at the first item of a pass

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
        failed: list[Failed] = []
        tried = 0
        for item in items:
            tried += 1
            with Caught() as caught:
                batch = aggregator.accumulate(item)
                if batch is not None and batch is not SKIP:
                    batches.append(batch)
            if caught.error is not None:
                failed.append(Failed(item, without_own_frames(caught.taken())))
                break
        seconds = perf_counter() - started
        self.learn(tried, seconds)
        self.count(tried, len(batches), len(failed), seconds)
        await self._put(batches)
        while failed:
            self.drop_or_raise(failed.pop())  # and not kept here, since its exception refers to this frame
        return items[tried:]

    def _rest(self) -> list[object]:
        aggregator = self._opened()
        self._aggregator = None
        batch: object = None
        with Caught() as caught:
            batch = None if self._aggregate.drop_last else aggregator.flush()
        if caught.error is not None:
            raise stage_failure(self.name, caught.taken())
        if batch is None or batch is SKIP:
            return []
        self.count(0, 1, 0, 0.0)
        return [batch]

    def _opened(self) -> Aggregator[Any]:
        if self._aggregator is None:  # the first call in this pass
            with Caught() as caught:
                self._aggregator = self._aggregate.open()
            if caught.error is not None:
                raise stage_failure(self.name, caught.taken())
            assert self._aggregator is not None
        return self._aggregator


Choice = tuple[int, object]
"""The number of a path, and the item that takes it."""


class Router:
    """A plain function that chooses one of `paths` paths for each item."""

    def __init__(self, router: Callable[[object], object], paths: int) -> None:
        self._router = router
        self._paths = paths

    def __call__(self, item: object) -> Choice:
        """Return the path of an item."""
        return _checked(self._router(item), item, self._paths)


class AsyncRouter:
    """An async function that chooses one of `paths` paths for each item."""

    def __init__(self, router: Callable[[object], Awaitable[object]], paths: int) -> None:
        self._router = router
        self._paths = paths

    async def __call__(self, item: object) -> Choice:
        """Return the path of an item."""
        return _checked(await self._router(item), item, self._paths)


def _checked(number: object, item: object, paths: int) -> Choice:
    if isinstance(number, int) and 0 <= number < paths:
        return number, item
    raise FatalError from UsageError(
        f"a router returns the number of a path, an int from 0 to {paths - 1}; got {number!r:.200} for "
        f"{short_repr(item)}. Return such a number, or add a path"
    )


def skipping_none(op: Callable[[Item], Item], kind: Kind) -> Callable[[Item], Item]:
    """Return a function of the same kind, with SKIP in place of each None result; it can be pickled if `op` can."""
    match kind:
        case "sync" | "lookup":
            return _Function(op)
        case "async":
            return _AsyncFunction(op)
        case "generator":
            return _Generator(op)
        case "async generator":
            return _AsyncGenerator(op)


class _Function:
    def __init__(self, op: Callable[[object], object]) -> None:
        self._op = op

    def __call__(self, item: object) -> object:
        value = self._op(item)
        return SKIP if value is None else value


class _AsyncFunction:
    def __init__(self, op: Callable[[object], Awaitable[object]]) -> None:
        self._op = op

    async def __call__(self, item: object) -> object:
        value = await self._op(item)
        return SKIP if value is None else value


class _Generator:
    def __init__(self, op: Callable[[object], Generator[object]]) -> None:
        self._op = op

    def __call__(self, item: object) -> Generator[object]:
        with closing(self._op(item)) as values:
            for value in values:
                yield SKIP if value is None else value


class _AsyncGenerator:
    def __init__(self, op: Callable[[object], AsyncGenerator[object]]) -> None:
        self._op = op

    async def __call__(self, item: object) -> AsyncGenerator[object]:
        async with aclosing(self._op(item)) as values:
            async for value in values:
                yield SKIP if value is None else value
