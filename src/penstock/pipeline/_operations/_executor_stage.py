"""Stages whose plain function runs in an executor: a pool of threads or processes that stands outside the pipeline.

Items travel in chunks that take about two milliseconds with all that it costs to send them. A call that has been sent
is waited for, also by a stage that is cancelled. Generators in processes of ours are pulled in steps as long, each when
the values of the one before have been put out. A pool of processes of the user's can't be asked for a certain one of
them, so a generator is read to its end there before its values go on.
"""

import asyncio
from collections.abc import Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

from penstock._caught import Caught
from penstock.errors import WorkerError
from penstock.pipeline._channels._channel import MAX_ITEMS
from penstock.pipeline._channels._order import InOrder
from penstock.pipeline._items import SKIP
from penstock.pipeline._operations._calls import Failed, Op
from penstock.pipeline._operations._stage import Site, Stage
from penstock.pipeline._processes._executor._chunks import Outcome, Values

if TYPE_CHECKING:
    from concurrent.futures import Future

_CHUNK_SECONDS: Final = 0.002
_MAX_ATTEMPTS: Final = 3

T = TypeVar("T")


class Remote(Protocol):
    """Applies a function to a chunk of items elsewhere."""

    @property
    def repeatable(self) -> bool:
        """Whether an item may be done again where its process died."""
        ...

    def send(self, op: Op, items: list[object], *, flatten: bool) -> "Future[list[Outcome]]":
        """Send a chunk; each item's outcome comes back in its place.

        With `flatten` an outcome's value is `Values`; behind one of a generator that goes on, no item was begun.
        """
        ...

    def step(self, values: Values) -> "Future[list[Outcome]]":
        """Have the next step of a generator done where it is kept; gives its outcome."""
        ...

    def close(self, values: Values) -> "Future[object]":
        """Have a generator closed where it is kept."""
        ...

    def explain(self, error: BaseException) -> BaseException:
        """Return what a chunk failed with as a whole, in words that say what to do."""
        ...


class ExecutorStage(Stage):
    """A plain function or generator function, applied to chunks in an executor."""

    def __init__(self, site: Site, op: Op, remote: Remote, *, ordered: bool, flatten: bool) -> None:
        super().__init__(site)
        self._op = op
        self._remote = remote
        self._flatten = flatten
        self._order = InOrder(site.concurrency, self._put_judged) if ordered and site.concurrency > 1 else None

    async def _work(self) -> None:
        while items := await self._take(self._chunk_size()):
            number = 0 if self._order is None else self._order.number()
            if self._flatten:
                await self._generate(items, number)
                continue
            results, _ = await self._results(items)
            if self._order is None:
                await self._protect(self._put_judged(results))
            else:
                await self._order.pass_on(number, results)

    def _chunk_size(self) -> int:
        return min(max(int(_CHUNK_SECONDS / self.cost), 1), MAX_ITEMS) if self.cost else 1

    async def _generate(self, items: list[object], number: int) -> None:
        """Put out what the generators of a chunk yield, one after the other."""
        while items and self._failure is None:
            results, outcomes = await self._results(items)
            values = outcomes[-1][1] if outcomes else None
            steps = _Steps(self._remote, self._op, items[len(outcomes) - 1], values)
            try:
                if self._order is not None:
                    await self._order.turn(number)
                await self._protect(self._put_judged(results))
                while steps.goes_on and self._failure is None:
                    started = perf_counter()
                    results = [each for each in await steps.next() if each is not SKIP]
                    failures = sum(type(each) is Failed for each in results)
                    self.count(0, len(results) - failures, failures, perf_counter() - started)
                    await self._protect(self._put_judged(results))
            finally:
                await steps.close()
            items = items[len(outcomes) :] if outcomes else []
        if self._order is not None:
            await self._order.advance()

    async def _results(self, items: list[object]) -> tuple[list[object], list[Outcome]]:
        """Return the results of items, and the outcomes that they came in: none, where the executor itself failed."""
        started = perf_counter()
        outcomes: list[Outcome] = []
        with Caught() as caught:
            outcomes = await _settled(self._remote.send(self._op, items, flatten=self._flatten))
        if isinstance(caught.error, asyncio.CancelledError):
            raise caught.error
        if caught.error is not None:  # of the executor itself
            explained = self._remote.explain(caught.error)
            return [Failed(-1, items[0] if len(items) == 1 else items, explained)], []
        results = [
            each
            for item, outcome in zip(items, outcomes, strict=False)
            for each in _each(item, outcome)
            if each is not SKIP
        ]
        seconds = perf_counter() - started
        failures = sum(type(each) is Failed for each in results)
        self.learn(len(outcomes), seconds)
        self.count(len(outcomes), len(results) - failures, failures, seconds)
        return results, outcomes


class _Steps:
    """What is left of a generator in a process after its first step.

    Where the process dies and items are repeatable, the generator begins again in another one, and as many values as
    were put out before are skipped.
    """

    def __init__(self, remote: Remote, op: Op, item: object, values: object) -> None:
        self._remote = remote
        self._op = op
        self._item = item
        self._values = values if isinstance(values, Values) else Values([])
        self._given = len(self._values.outcomes)
        self._attempts = 1
        self._skip = 0  # values that were put out before the process died

    @property
    def goes_on(self) -> bool:
        """Whether the generator may yield more."""
        return self._values.token is not None

    async def next(self) -> list[object]:
        """Return the results of the next step."""
        kept, self._values = self._values, Values([])
        with Caught() as caught:
            return self._results(await _settled(self._remote.step(kept)))
        while isinstance(caught.error, WorkerError) and self._remote.repeatable and self._attempts < _MAX_ATTEMPTS:
            self._attempts += 1
            self._skip = self._given
            with Caught() as caught:
                return self._results(await _settled(self._remote.send(self._op, [self._item], flatten=True)))
        if isinstance(caught.error, asyncio.CancelledError):
            raise caught.taken()
        return [Failed(0, self._item, caught.taken())]

    def _results(self, outcomes: list[Outcome]) -> list[object]:
        (outcome,) = outcomes
        if isinstance(outcome[1], Values):
            self._values = outcome[1]
        results = [*_each(self._item, outcome)]
        skipped = min(self._skip, len(results))
        self._skip -= skipped
        self._given += len(results) - skipped
        return [each for index, each in enumerate(results) if index >= skipped or type(each) is Failed]

    async def close(self) -> None:
        """Close the generator, if it has not ended."""
        if self.goes_on:
            with Caught() as caught:
                await _settled(self._remote.close(self._values))
            if isinstance(caught.error, asyncio.CancelledError):
                raise caught.taken()


def _each(item: object, outcome: Outcome) -> Iterable[object]:
    succeeded, value = outcome
    if not succeeded:
        yield Failed(0, item, cast("BaseException", value))
    elif isinstance(value, Values):
        for inner in value.outcomes:
            yield from _each(item, inner)
    else:
        yield value


async def _settled(sent: "Future[T]") -> T:
    """Return what a call gives. Cancelled meanwhile, that is raised when the call has ended.

    Raises:
        RuntimeError: somebody else cancelled the call.
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
            waiting.exception()  # nobody will ask for it
        raise cancelled
    if waiting.cancelled():
        raise RuntimeError("the executor cancelled a call that had been sent to it")
    return waiting.result()
