"""Stages whose plain function or generator runs in an executor outside this interpreter, such as a pool of processes.

Items travel in chunks that take about two milliseconds, including the cost of sending them. A call that takes twice as
long returns after its current item, and the stage gives the other items back to its channel before it puts out the
results. So a slow item delays only the results that its call has made in these milliseconds. A stage waits for each
call that it has sent, even if the stage is cancelled, so that no call outlives it.

A generator in one of the pipeline's own processes runs in steps of the same length. A step starts when the values of
the step before have been put out; so an endless generator works, and it is never far ahead of the next stage. A
`ProcessPoolExecutor` can't send a second call to the same process, so there a generator is read to its end before its
first value is passed on.

If a process dies and items are repeatable, the generator starts again in another process, and the values that were put
out before are skipped.
"""

import asyncio
from collections.abc import Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from penstock._caught import Caught
from penstock.errors import WorkerError
from penstock.pipeline._items import SKIP, without_own_frames
from penstock.pipeline._processes._chunks import Outcome, Values
from penstock.pipeline._running_stage import InOrder, RunningStage, StageSetup
from penstock.pipeline._threads import Failed, ItemFunction
from penstock.pipeline._tuning import EXECUTOR_CHUNK_SECONDS, MAX_ATTEMPTS, chunk_size

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")


class Remote(Protocol):
    """The connection of a stage to its executor: it applies a function to a chunk of items there."""

    @property
    def repeatable(self) -> bool:
        """Whether an item may be computed again if its process died."""
        ...

    def send(self, op: ItemFunction, items: list[object], *, flatten: bool) -> "Future[list[Outcome]]":
        """Send a chunk of items; the future returns the outcome of each, in the same order.

        There are fewer outcomes than items, but one at least, if an item took long: those after it were not begun. With
        `flatten` the op is a generator, an outcome's value is `Values`, and only the last generator may not have ended.
        """
        ...

    def step(self, values: Values) -> "Future[list[Outcome]]":
        """Run the next step of a generator in the process that holds it; the future returns one outcome."""
        ...

    def close(self, values: Values) -> "Future[object]":
        """Close a generator in the process that holds it."""
        ...

    def explain(self, error: BaseException) -> BaseException:
        """Return the error of a whole chunk with a message that states the remedy."""
        ...


class ExecutorStage(RunningStage):
    """A plain function or generator function, applied to chunks in an executor."""

    def __init__(self, setup: StageSetup, op: ItemFunction, remote: Remote, *, ordered: bool, flatten: bool) -> None:
        super().__init__(setup)
        self._op = op
        self._remote = remote
        self._flatten = flatten
        self._order = InOrder.if_needed(setup, ordered=ordered)

    async def _work(self) -> None:
        while items := await self._take(chunk_size(EXECUTOR_CHUNK_SECONDS, self.item_seconds)):
            number = self._input.number
            results, outcomes = await self._results(items)
            tried = len(outcomes) or len(items)
            self.give_back(number + tried, items[tried:])  # now: one of them may have the turn that this lane awaits
            if self._flatten:
                last = self._generator(items[tried - 1], outcomes)
                await self._put_steps(number, tried, results, last)
            elif self._order is None:
                await self._protect(self._put_results(results))
            else:
                await self._order.deliver(number, results, self._put_results, tried)

    def _generator(self, item: object, outcomes: list[Outcome]) -> "_RemoteGenerator":
        return _RemoteGenerator(self._remote, self._op, item, outcomes[-1][1] if outcomes else None)

    async def _put_steps(self, number: int, tried: int, results: list[object], last: "_RemoteGenerator") -> None:
        """Put out the values of the generators of a chunk, and further values of the last one, until it ends."""
        try:
            if self._order is not None:
                await self._order.wait_for_turn(number)
            await self._protect(self._put_results(results))
            while last.has_more and self._failure is None:
                started = perf_counter()
                results = [each for each in await last.step() if each is not SKIP]
                failures = sum(type(each) is Failed for each in results)
                self.count(0, len(results) - failures, failures, perf_counter() - started)
                await self._protect(self._put_results(results))
        finally:
            await last.close()
        if self._order is not None:
            await self._order.end_turn(self._put_results, tried)

    async def _results(self, items: list[object]) -> tuple[list[object], list[Outcome]]:
        """Return the results of items, and the outcomes that hold them; no outcomes if the executor itself failed."""
        started = perf_counter()
        outcomes: list[Outcome] = []
        with Caught() as caught:
            outcomes = await _received(self._remote, self._remote.send(self._op, items, flatten=self._flatten))
        if isinstance(caught.error, asyncio.CancelledError):
            raise caught.taken()
        if caught.error is not None:  # an error of the executor itself
            explained = self._remote.explain(without_own_frames(caught.taken()))
            return [Failed(items[0] if len(items) == 1 else items, explained, is_fatal=True)], []
        results = [
            each
            for item, outcome in zip(items, outcomes, strict=False)
            for each in _results_of(item, outcome)
            if each is not SKIP
        ]
        seconds = perf_counter() - started
        failures = sum(type(each) is Failed for each in results)
        self.learn(len(outcomes), seconds)
        self.count(len(outcomes), len(results) - failures, failures, seconds)
        return results, outcomes


class _RemoteGenerator:
    """A generator in a process, after its first step."""

    def __init__(self, remote: Remote, op: ItemFunction, item: object, values: object) -> None:
        self._remote = remote
        self._op = op
        self._item = item
        self._values = values if isinstance(values, Values) else Values([])
        self._received = len(self._values.outcomes)
        self._attempts = 1
        self._skip = 0  # values that were received before the process died

    @property
    def has_more(self) -> bool:
        """Whether the generator has not ended."""
        return self._values.token is not None

    async def step(self) -> list[object]:
        """Return the results of the next step, which runs now."""
        held, self._values = self._values, Values([])
        with Caught() as caught:
            return self._results(await _received(self._remote, self._remote.step(held)))
        while isinstance(caught.error, WorkerError) and self._remote.repeatable and self._attempts < MAX_ATTEMPTS:
            self._attempts += 1
            self._skip = self._received
            with Caught() as caught:
                sent = self._remote.send(self._op, [self._item], flatten=True)
                return self._results(await _received(self._remote, sent))
        if isinstance(caught.error, asyncio.CancelledError):
            raise caught.taken()
        return [Failed(self._item, without_own_frames(caught.taken()))]

    def _results(self, outcomes: list[Outcome]) -> list[object]:
        (outcome,) = outcomes
        if isinstance(outcome[1], Values):
            self._values = outcome[1]
        results = [*_results_of(self._item, outcome)]
        skipped = min(self._skip, len(results))
        self._skip -= skipped
        self._received += len(results) - skipped
        return [each for number, each in enumerate(results) if number >= skipped or type(each) is Failed]

    async def close(self) -> None:
        """Close the generator, if it has not ended."""
        if self.has_more:
            with Caught() as caught:
                await _settled(self._remote.close(self._values))
            if isinstance(caught.error, asyncio.CancelledError):
                raise caught.taken()


def _results_of(item: object, outcome: Outcome) -> Iterable[object]:
    """Yield the results in an item's outcome: a value, the values of a generator, or a `Failed`."""
    succeeded, value = outcome
    if not succeeded:
        yield Failed(item, cast("BaseException", value))
    elif isinstance(value, Values):
        for inner in value.outcomes:
            yield from _results_of(item, inner)
    else:
        yield value


async def _received(remote: Remote, sent: "Future[list[Outcome]]") -> list[Outcome]:
    """Return the outcomes of a call; if this is cancelled, close the generator that the call has left open.

    Raises:
        CancelledError: this was cancelled.
    """
    try:
        return await _settled(sent)
    except asyncio.CancelledError:
        outcomes = [] if sent.cancelled() or sent.exception() is not None else sent.result()
        for _, value in outcomes[-1:]:
            if isinstance(value, Values) and value.token is not None:
                with Caught():  # its process may have been ended
                    await _settled(remote.close(value))
        raise


async def _settled(sent: "Future[T]") -> T:
    """Return the result of a call, after waiting for its end; raise a cancellation only after that.

    Raises:
        RuntimeError: the executor cancelled the call.
    """
    waiting = asyncio.wrap_future(sent)
    cancelled: asyncio.CancelledError | None = None
    while not waiting.done():
        try:
            await asyncio.wait([waiting])
        except asyncio.CancelledError as error:
            cancelled = error
            sent.cancel()
    if cancelled is not None:
        if not waiting.cancelled():
            waiting.exception()  # mark it as retrieved, or asyncio logs it
        raise cancelled
    if waiting.cancelled():
        raise RuntimeError("the executor cancelled a call that had been sent to it")
    return waiting.result()
