"""A running stage: its lanes, its passes, the order of its results, its failures and its statistics.

All stages that call an op derive from `RunningStage`.

The problem: a stage has a concurrency, a bound on the calls under way at the same time. Users choose it for a server's
limit, for GPU memory, or for a library that isn't thread-safe. So it must hold exactly, in both orders and across
passes; and yet as many calls as allowed must run whenever items wait.

The solution: a stage is up to `concurrency` lanes, each a task that takes items, calls the op, puts out the results,
and takes the next ones. A lane has one call at a time, so the bound holds without a semaphore, and a lane that waits
for room takes no further items. Lanes start as they are needed: a lane that takes an item while no other is idle starts
more, up to twice as many each time. So a stage with a concurrency of 1,000 that never has two calls under way runs two
tasks.

In the order of the items, and wherever results find no room, one lane at a time puts out results, also those of the
others (`InOrder`). The others wait, and each result that was put out wakes one of them, not all.

Rejected: one task per item with a semaphore, which makes a task for each cheap item, and keeps results that wait for
room beside calls that run, without a bound on both together; and starting all lanes at once, which wakes a thousand
tasks at each end of a pass.

Guarantees:
  - At most `concurrency` lanes run; each has at most one call of the op under way.
  - While an item waits and fewer calls are under way, another lane is about to take it.
  - A pass is over when all its lanes have ended; items of the next pass are taken after that.
  - If a failure ends the stage, the results that other lanes have computed are still put out; their calls that are
    under way are cancelled if they are async, and return after the current item if they run in threads.
  - If the stage is cancelled, it ends when nothing of it runs any more.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from time import perf_counter
from traceback import clear_frames
from typing import Any, NamedTuple, Self, TypeVar

from penstock._caught import Caught
from penstock.errors import PipelineFailure
from penstock.pipeline._channels import Channel, Output, Waiters
from penstock.pipeline._items import FailureLimit, FatalError, clear_callers, stage_failure, without_own_frames
from penstock.pipeline._statistics import Probe
from penstock.pipeline._threads import Applied, Failed, Pulled, StopFlag, ThreadCall

T = TypeVar("T")
Deliver = Callable[[Any], Awaitable[None]]


class InOrder:
    """An order for a stage's results, by their numbers: one lane at a time delivers them.

    A lane either passes its result to `deliver`, or waits for its turn, delivers by itself, and ends its turn. Each
    names the stage's function that delivers a result; kept here, it would close a reference cycle with the stage, which
    has items.

    Guarantee: at most `window` results, and one for each lane, wait for an earlier one.

    Args:
        window: how many results may wait before lanes do. With 0, a lane that adds one takes no further item before one
            is delivered.
        channel: the one from which the lanes take items.
    """

    def __init__(self, window: int, channel: Channel) -> None:
        self._window = window
        self._channel = channel
        self._turn = 0  # the number of the result that is delivered next
        self._early: dict[int, tuple[object, int]] = {}  # results that wait for an earlier one, and how many numbers
        self._turns: dict[int, asyncio.Future[None]] = {}  # lanes that wait for their turn, by number
        self._blocked = Waiters()  # lanes that wait because too many results do
        self.is_delivering = False  # whether a lane delivers at present

    @classmethod
    def if_needed(cls, setup: "StageSetup", *, ordered: bool) -> Self | None:
        """Return the order of the items for a stage's results; None if it needs none, or if a single lane keeps it."""
        return cls(setup.concurrency, setup.input) if ordered and setup.concurrency > 1 else None

    async def deliver(self, number: int, result: object, by: Deliver, count: int = 1) -> None:
        """Deliver a result now, or keep it until all earlier ones are delivered; return when the lane may go on.

        At the end of a pass a lane has no further item to take, so it needn't wait.

        Args:
            number: the number of the result.
            result: the result.
            by: delivers a result.
            count: how many numbers it has, from `number` on.

        Raises:
            Exception: the exception of the delivery, in the lane that delivers.
        """
        self._early[number] = (result, count)
        if number == self._turn and not self.is_delivering:
            await self._deliver_ready(by)
        elif len(self._early) > self._window and not self._channel.is_pass_over:
            await self._blocked.wait()

    def take_failed(self) -> "list[Failed]":
        """Return the failures that wait for a result that never comes, and keep no result.

        Those in lists of results are left out: they come from threads and processes, where no caller's frame keeps one.
        """
        failed = [result for result, _ in self._early.values() if type(result) is Failed]
        self._early.clear()
        return failed

    async def wait_for_turn(self, number: int) -> None:
        """Wait until the result is the next to be delivered; the lane then delivers it, and calls `end_turn`."""
        if number != self._turn:
            turn = self._turns[number] = asyncio.get_running_loop().create_future()
            try:
                await turn
            finally:
                self._turns.pop(number, None)

    async def end_turn(self, by: Deliver, count: int) -> None:
        """End the turn of the lane that has delivered the results of `count` numbers by itself.

        Args:
            by: delivers a result.
            count: how many numbers.
        """
        self._start_next_turn(count)
        await self._deliver_ready(by)
        await asyncio.sleep(0)

    def _start_next_turn(self, count: int) -> None:
        self._turn += count
        turn = self._turns.get(self._turn)
        if turn is not None and not turn.done():
            turn.set_result(None)
        if len(self._blocked) > len(self._early) - self._window:
            self._blocked.wake_one()

    async def _deliver_ready(self, by: Deliver) -> None:
        self.is_delivering = True
        try:
            while self._turn in self._early:
                result, count = self._early.pop(self._turn)
                await by(result)
                self._start_next_turn(count)
        finally:
            self.is_delivering = False


class StageSetup(NamedTuple):
    """The connections of a stage to the rest of its pipeline.

    Attributes:
        name: the stage's name, unique in its pipeline.
        concurrency: how many calls may be under way.
        input: the channel from which it takes items.
        output: the output into which it puts its results.
        failure_limit: decides whether an item that failed is dropped.
        probe: counts for the statistics; None if there are none.
    """

    name: str
    concurrency: int
    input: Channel
    output: Output
    failure_limit: FailureLimit
    probe: Probe | None


class RunningStage(ABC):
    """Owns the lanes of a stage while it runs.

    Attributes:
        item_seconds: the recent mean of the seconds per item in a call of the op; 0 until the first call.
        stop: set when the stage is cancelled, or has failed. A lane that finds it set after a call on the loop ends,
            since the op has swallowed the lane's cancellation.
    """

    def __init__(self, setup: StageSetup) -> None:
        self.name, self.concurrency, self._input, self.output, self.failure_limit, self._probe = setup
        self.item_seconds = 0.0
        self.stop = StopFlag()
        self._lanes: set[asyncio.Task[None]] = set()
        self._idle = 0  # lanes without an item: they wait for one, or were only just started
        self._protected: set[asyncio.Task[None]] = set()  # lanes that hold results
        self._failure: BaseException | None = None
        self._group = asyncio.TaskGroup()
        self._order: InOrder | None = None
        self._in_pass = False
        self._counts = self._probe is not None or self.failure_limit.is_rate
        self._input.free_lanes = self.concurrency

    async def run(self) -> None:
        """Work until the input ends."""
        while True:
            try:
                async with asyncio.TaskGroup() as self._group:
                    self._in_pass = True
                    self._start_lanes()
            finally:  # a lane that was cancelled before its first step is a task whose exception's frame holds `self`
                self._lanes.clear()
                for failed in [] if self._order is None else self._order.take_failed():
                    clear_callers(failed.error)
            self._in_pass = False
            self._idle = 0
            self._input.free_lanes = self.concurrency
            if self._failure is not None:
                raise self._taken_failure()
            await self._put(self._rest())
            if not self._input.start_next_pass():
                break
            await self.output.end_pass()
        if self._input.failure is None and not self.failure_limit.is_shared:
            failure = self.failure_limit.failure_at_end()
            if failure is not None:
                raise failure

    def _taken_failure(self) -> BaseException:
        """Return the stage's failure, and keep it no longer: the frames of its cause may refer to the stage."""
        assert self._failure is not None
        failure, self._failure = self._failure, None
        return failure

    @abstractmethod
    async def _work(self) -> None:
        """Run one lane: take items and put out the results, until `_take` returns no items."""

    def _rest(self) -> list[object]:
        """Return the values that are left at the end of a pass."""
        return []

    # -- lanes

    def _start_lanes(self) -> None:
        """Start lanes for the items that wait, and one that waits for the next item; call it if no lane is idle."""
        lanes = len(self._lanes)
        if lanes < self.concurrency and self._failure is None:
            for _ in range(min(self.concurrency - lanes, len(self._input) + 1, max(lanes, 1))):
                lane = self._group.create_task(self._run_lane(), name=self.name)
                self._lanes.add(lane)
                self._idle += 1

    async def _run_lane(self) -> None:
        """Run one lane; its failure becomes the stage's, which is raised when all lanes have ended."""
        self._idle -= 1
        self._input.free_lanes -= 1
        with Caught() as caught:
            await self._work()
        self._input.free_lanes += 1
        lane = asyncio.current_task()
        assert lane is not None
        self._lanes.discard(lane)
        if self.stop.cancels(caught.error):
            clear_frames(caught.taken().__traceback__)  # a task group's frame holds the error, which holds the frame
            return
        if caught.error is not None:
            self._fail(caught.taken())

    def _fail(self, error: BaseException) -> None:
        """End the stage with the exception of a lane, unless another lane has failed before."""
        if isinstance(error, asyncio.CancelledError):  # user code has cancelled the lane
            error = stage_failure(self.name, error)
        elif isinstance(error, PipelineFailure):
            without_own_frames(error)
        if self._failure is not None:
            clear_callers(error.__cause__)
        else:
            self._failure = error
            self.stop.is_set = True
            for other in self._lanes - self._protected:
                other.cancel()

    # -- called by the lanes

    async def _take(self, max_items: int) -> list[object]:
        """Return up to `max_items` items; none at the end of the pass, or if the stage has failed."""
        if self._failure is not None:
            return []
        if self._probe is None:
            items = await self._take_as_idle(max_items)
        else:
            self._probe.looked(min(len(self._input), self._input.limit), self._input.limit)
            started = perf_counter()
            items = await self._take_as_idle(max_items)
            self._probe.waited_for_input(perf_counter() - started)
        if items and not self._idle:  # without items the pass is over, and a new lane would belong to the next pass
            self._start_lanes()
        return items

    async def _take_as_idle(self, max_items: int) -> list[object]:
        self._idle += 1
        self._input.free_lanes += 1
        try:
            return await self._input.take(max_items)
        finally:
            self._idle -= 1
            self._input.free_lanes -= 1

    def give_back(self, number: int, items: list[object]) -> None:
        """Give items that were taken and not begun back to the channel; `number` is that of the first."""
        if items:
            self._input.give_back(number, items)
            if not self._idle:  # at the end of a pass other lanes may have ended
                self._start_lanes()

    def give_back_rest(self, call: ThreadCall, work: Applied | Pulled, end: int) -> None:
        """Give the items that a slow call has not begun back; `end` is the number after the last of them."""
        if not (work.tried or call.done):
            call.slow = False  # it waits for a thread, and its time has not begun
        elif rest := work.take_rest():
            self.give_back(end - len(rest), rest)

    def call_failure(self, call: ThreadCall) -> BaseException:
        """Return the exception to raise for a call that could not be made, and that keeps it no longer."""
        error, call.error = call.error, None
        assert error is not None
        cause = error.__cause__ if isinstance(error, FatalError) else None
        return error if cause is None else stage_failure(self.name, cause)

    async def _put(self, values: list[object]) -> None:
        """Put out values, even if another lane fails meanwhile."""
        if len(values) == 1 and self.output.offer(values[0]):
            return
        if values:
            await self._protect(self._put_timed(values))

    async def _put_results(self, results: list[object]) -> None:
        """Put out results in order; each failure among them is counted when its turn comes."""
        start = 0
        for index, result in enumerate(results):
            if type(result) is Failed:
                await self._put(results[start:index])
                start = index + 1
                self.drop_or_raise(result)
        await self._put(results[start:])

    def drop_or_raise(self, failed: Failed) -> None:
        """Drop an item that this stage failed on, or raise the failure that ends the pipeline."""
        self.failure_limit.drop_or_raise(self.name, failed.item, failed.error, is_fatal=failed.is_fatal)

    async def _protect(self, work: Awaitable[T]) -> T:
        """Return the result of work that puts out results; another lane's failure doesn't cancel it."""
        lane = asyncio.current_task()
        assert lane is not None
        if lane in self._protected:
            return await work
        self._protected.add(lane)
        try:
            return await work
        finally:
            self._protected.discard(lane)

    async def _put_timed(self, values: list[object]) -> None:
        if self._probe is None:
            await self.output.put_all(values)
            return
        started = perf_counter()
        await self.output.put_all(values)
        self._probe.waited_for_output(perf_counter() - started)

    def learn(self, items: int, seconds: float) -> None:
        """Update the seconds per item after a call, on which the sizes of chunks and channels depend."""
        if not items:  # the stage was stopped before the call began one
            return
        latest = seconds / items
        self.item_seconds = latest if self.item_seconds == 0.0 else (self.item_seconds + latest) / 2
        self.output.slowest_seconds = max(self._input.slowest_seconds, self.item_seconds / self.concurrency)
        self._input.adapt_limit(self.item_seconds / self.concurrency)

    def count(self, tried: int, made: int, failures: int, seconds: float) -> None:
        """Count the items that a call tried, the values it made, and the items it failed on."""
        self.failure_limit.items += tried
        if self._probe is not None:
            self._probe.done(made, failures, seconds)
