"""Stages whose plain function runs in an executor: a pool of threads or processes that stands outside the pipeline.

Items travel in chunks that take about two milliseconds with all that it costs to send them. A call that has been sent
is waited for, also by a stage that is cancelled.
"""

import asyncio
from collections.abc import Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol, cast

from penstock._caught import Caught
from penstock.pipeline._channels._channel import MOST_ITEMS
from penstock.pipeline._channels._order import InOrder
from penstock.pipeline._items import SKIP
from penstock.pipeline._operations._calls import Failed, Op
from penstock.pipeline._operations._stage import Site, Stage

if TYPE_CHECKING:
    from concurrent.futures import Future

_CHUNK_SECONDS: Final = 0.002

Outcome = tuple[bool, object]
"""Whether an item succeeded, and its value or what it raised."""


class Remote(Protocol):
    """Applies a function to a chunk of items elsewhere."""

    def send(self, op: Op, items: list[object], *, flatten: bool) -> "Future[list[Outcome]]":
        """Send a chunk; each item's outcome comes back in its place. With `flatten` the value is a list of values."""
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
            results = await self._results(items)
            if self._order is None:
                await self._protect(self._put_judged(results))
            else:
                await self._order.pass_on(number, results)

    def _chunk_size(self) -> int:
        return min(max(int(_CHUNK_SECONDS / self.cost), 1), MOST_ITEMS) if self.cost else 1

    async def _results(self, items: list[object]) -> list[object]:
        started = perf_counter()
        outcomes: list[Outcome] = []
        with Caught() as caught:
            outcomes = await _settled(self._remote.send(self._op, items, flatten=self._flatten))
        if isinstance(caught.error, asyncio.CancelledError):
            raise caught.error
        if caught.error is not None:  # of the executor itself
            explained = self._remote.explain(caught.error)
            return [Failed(-1, items[0] if len(items) == 1 else items, explained)]
        results = [each for item, outcome in zip(items, outcomes, strict=True) for each in self._each(item, outcome)]
        seconds = perf_counter() - started
        failures = sum(not succeeded for succeeded, _ in outcomes)
        self.learn(len(items), seconds)
        self.count(len(items), len(results) - failures, failures, seconds)
        return results

    def _each(self, item: object, outcome: Outcome) -> Iterable[object]:
        succeeded, value = outcome
        if not succeeded:
            return (Failed(0, item, cast("BaseException", value)),)
        values = cast("list[object]", value) if self._flatten else [value]
        return [each for each in values if each is not SKIP]


async def _settled(sent: "Future[list[Outcome]]") -> list[Outcome]:
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
