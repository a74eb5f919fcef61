"""Stages that pull items out of iterators: sources, functions that are generators, and items that are taken apart.

An iterator is pulled in a thread, as far as there is room behind, and closed in one whatever happens. So one without an
end gives its first value at once, and is never ahead by more than there is room.
"""

import asyncio
import itertools
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from time import perf_counter
from types import GeneratorType
from typing import Final, TypeGuard, cast

from penstock.concurrency._worker import is_cancelled
from penstock.pipeline._channels._channel import GATHER_SECONDS, MAX_ITEMS, Output
from penstock.pipeline._channels._order import InOrder
from penstock.pipeline._config import Source as Described
from penstock.pipeline._failures import FatalError, source_failure
from penstock.pipeline._items import SKIP
from penstock.pipeline._operations._calls import Failed, Pulled
from penstock.pipeline._operations._stage import Site, Stage
from penstock.pipeline._operations._threads import Halt, Put, Starts, Threads
from penstock.pipeline._statistics import Probe

_AT_HAND: Final = frozenset({list, tuple, str, bytes, range})
"""Types whose items are there, or made in no time, and whose iteration runs no code of the user's."""


async def pull(iterator: Iterator[object], output: Output, threads: Starts, halt: Halt, put: Put) -> Pulled:
    """Return what came of pulling as many items out of an iterator as there is room for; they are put out at once."""
    pulled = Pulled(iterator, await output.room())
    call = threads.start(pulled, halt)
    await call.pass_on(put)
    if call.error is not None:
        raise call.error
    return pulled


class Source:
    """The first stage: an iterable, sync or async, once or again and again.

    Args:
        name: the stage's.
        source: what is iterated over, and whether again and again.
        output: where items are put.
        threads: of which one pulls an iterable that is not async.
        wait_for_reader: returns once something of so many passes was read.
        probe: counts, if statistics are kept.
    """

    def __init__(
        self,
        name: str,
        source: Described,
        output: Output,
        threads: Threads,
        wait_for_reader: Callable[[int], Awaitable[None]],
        *,
        probe: Probe | None,
    ) -> None:
        self._name = name
        self._source = source
        self._output = output
        self._threads = threads
        self._wait_for_reader = wait_for_reader
        self._halt = Halt()
        self._probe = probe

    async def run(self) -> None:
        """Put out the items of one pass; or of one after the other, each begun when the one before it is being read."""
        for number in itertools.count():
            await self._wait_for_reader(number)
            iterable: object = self._source.source
            if _is_async(iterable):
                await self._pass_async(iterable)
            else:
                await self._pass(cast("Iterable[object]", iterable))
            if not self._source.continuous:
                break
            await self._output.end_pass()

    async def _pass(self, iterable: Iterable[object]) -> None:
        threads = self._threads
        iterator = await _opened(lambda: iter(iterable), threads, self._halt, self._name)
        try:
            while True:
                pulled = await pull(iterator, self._output, threads, self._halt, self._put)
                self._count(pulled)
                if pulled.error is not None:
                    raise source_failure(self._name, pulled.error)
                if pulled.ended:
                    break
        finally:
            if iterator is not iterable:
                await _close(iterator, threads)

    async def _pass_async(self, iterable: AsyncIterable[object]) -> None:
        try:
            iterator = aiter(iterable)
        except Exception as error:
            raise source_failure(self._name, error) from error
        try:
            await self._put_from(iterator)
        finally:
            close = getattr(iterator, "aclose", None)
            if close is not None and iterator is not iterable:
                await close()

    async def _put_from(self, iterator: AsyncIterator[object]) -> None:
        rested = perf_counter()
        while True:
            started = perf_counter()
            try:
                item = await anext(iterator)
            except StopAsyncIteration:
                return
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError) and is_cancelled():
                    raise
                raise source_failure(self._name, error) from error
            now = perf_counter()
            if self._probe is not None:
                self._probe.done(1, 0, now - started)
            if item is not SKIP and not self._output.offer(item):
                await self._put([item])
            if now - rested > GATHER_SECONDS:
                self._output.pace = now - started
                await asyncio.sleep(0)
                rested = perf_counter()

    async def _put(self, items: list[object]) -> None:
        if self._probe is None:
            await self._output.put_all(items)
        else:
            started = perf_counter()
            await self._output.put_all(items)
            self._probe.waited_for_output(perf_counter() - started)

    def _count(self, pulled: Pulled) -> None:
        if pulled.count:
            self._output.pace = pulled.seconds / pulled.count
        if self._probe is not None:
            self._probe.done(pulled.count, int(pulled.error is not None), pulled.seconds)


class GeneratorStage(Stage):
    """A generator function for each item, whose values are put out in turn."""

    def __init__(self, site: Site, op: Callable[[object], Iterable[object]], threads: Starts, *, ordered: bool) -> None:
        super().__init__(site)
        self._op = op
        self._threads = threads
        self._order = InOrder(site.concurrency, self._put) if ordered and site.concurrency > 1 else None

    async def _work(self) -> None:
        while items := await self._take(1):
            number = 0 if self._order is None else self._order.number()
            await self._run_one(items[0], number)
            if self._order is not None:
                await self._order.advance()

    async def _run_one(self, item: object, number: int = 0) -> None:
        failed: Failed | None
        try:
            failed = await self._pull_all(item, number)
        except FatalError as error:  # of the threads
            failed = Failed(0, item, error)
        if failed is not None:
            self.tolerance.judge(self.name, failed.item, failed.error)

    async def _pull_all(self, item: object, number: int) -> Failed | None:
        opened: list[Iterator[object]] = []
        call = self._threads.start(lambda _: opened.append(iter(self._op(item))), self._halt)
        await call.wait(until_done=True)
        if call.error is not None:
            await self._turn(number)
            return Failed(0, item, call.error)

        async def put(values: list[object]) -> None:
            if values:
                await self._turn(number)
                await self._put(values)

        iterator = opened.pop()
        seconds, count = 0.0, 0
        try:
            while self._failure is None:
                pulled = await pull(iterator, self.output, self._threads, self._halt, put)
                seconds, count = seconds + pulled.seconds, count + pulled.count
                if pulled.error is not None or pulled.ended:
                    await self._turn(number)
                    self.learn(1, seconds)
                    self.count(1, count, int(pulled.error is not None), seconds)
                    return None if pulled.error is None else Failed(0, item, pulled.error)
        finally:
            if iterator is not item or type(item) is GeneratorType:
                await _close(iterator, self._threads)
        return None

    async def _turn(self, number: int) -> None:
        if self._order is not None:
            await self._order.turn(number)


class DisaggregateStage(GeneratorStage):
    """The items of each item: of lists and the like on the loop itself, of everything else as a thread pulls them."""

    def __init__(self, site: Site, threads: Starts) -> None:
        super().__init__(site, cast("Callable[[object], Iterable[object]]", iter), threads, ordered=False)

    async def _work(self) -> None:
        most = MAX_ITEMS
        while items := await self._take(most):
            most = MAX_ITEMS if all(type(item) in _AT_HAND for item in items) else 1  # what is slow isn't hoarded
            held: list[list[object]] = []
            for item in items:
                if type(item) in _AT_HAND:
                    held.append(cast("list[object]", item))
                else:
                    await self._put_held(held)
                    held = []
                    await self._run_one(item)
            await self._put_held(held)
            await asyncio.sleep(0)

    async def _put_held(self, held: Sequence[Sequence[object]]) -> None:
        """Put out the items of lists, so many at a time."""
        started = perf_counter()
        count = 0
        values = (value for each in held for value in each if value is not SKIP)
        while chunk := [*islice(values, MAX_ITEMS)]:
            count += len(chunk)
            await self._put(chunk)
        if held:
            self.learn(len(held), perf_counter() - started)
            self.count(len(held), count, 0, perf_counter() - started)


def _is_async(iterable: object) -> TypeGuard[AsyncIterable[object]]:
    return isinstance(iterable, AsyncIterable)


async def _opened(open_: Callable[[], Iterator[object]], threads: Threads, halt: Halt, name: str) -> Iterator[object]:
    found: list[Iterator[object]] = []
    call = threads.start(lambda _: found.append(open_()), halt)
    await call.wait(until_done=True)
    if call.error is not None:
        raise source_failure(name, call.error)
    return found.pop()


async def _close(iterator: Iterator[object], threads: Starts) -> None:
    """Let a generator's `finally` run, in a thread; what it raises then is not the pipeline's."""
    close = getattr(iterator, "close", None)
    if callable(close):
        call = threads.start(lambda _: _ignore(close()), Halt())
        await call.wait(until_done=True)


def _ignore(_: object) -> None: ...
