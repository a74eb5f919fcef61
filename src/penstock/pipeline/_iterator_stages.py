"""Stages that pull items out of iterators: sources, generator functions, and the elements of items.

The problem: an iterator may be endless, may wait for a server in each step, may be one list of a million cheap items,
or may hold a file that only its `finally` closes. Reading an endless one to its end first would never give a value, and
reading the others so would hold all their items in memory. Asking a thread for one item at a time would cost a switch
of threads per item.

The solution: a thread pulls as many items as the next stage has room for, in one call (`Pulled`). The room of a channel
follows time, so such a call takes about a millisecond if items are cheap, and pulls a single item if they are slow. If
a call turns out slow, its items reach the loop one by one (see `_threads`). An iterator is always closed in a thread,
whether it ended, failed or was stopped; only an iterator that the user passed as the source is the user's to close.

A source pulls in a thread of its own: one that waits for data must not occupy a thread that functions need.

A list, a tuple or another type in `_AT_HAND` runs no user code when it is iterated over, and is read on the loop: as a
source, too, since a call in a thread for the few items that a slow stage has room for delays that stage's idle lanes.

Rejected: one `next` per call, as above; and a fixed number of items per call, which delays the first item of a slow
iterator by the time of all of them.
"""

import asyncio
import itertools
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from time import perf_counter
from types import GeneratorType
from typing import Final, TypeGuard, cast

from penstock._caught import Caught
from penstock.pipeline._channels import Output
from penstock.pipeline._config import Source
from penstock.pipeline._items import SKIP, FatalError, stage_failure
from penstock.pipeline._running_stage import InOrder, RunningStage, StageSetup
from penstock.pipeline._statistics import Probe
from penstock.pipeline._threads import AnyThreads, Failed, Pulled, PutValues, StopFlag, Threads
from penstock.pipeline._tuning import CHUNK_SECONDS, MAX_ITEMS

_AT_HAND: Final = frozenset({list, tuple, str, bytes, range})


async def pull(
    iterator: Iterator[object], output: Output, threads: AnyThreads, stop: StopFlag, put: PutValues
) -> Pulled:
    """Return the outcome of pulling as many items as the output has room for; put them out as they are pulled."""
    pulled = Pulled(iterator, await output.wait_for_room())
    call = threads.start(pulled, stop)
    await call.forward_values(put)
    if call.error is not None:
        raise call.error
    return pulled


class RunningSource:
    """The first stage of a running pipeline: it iterates over a sync or async iterable, once or again and again.

    Args:
        name: the stage's name.
        source: the iterable, and whether it is continuous.
        output: the output into which it puts the items.
        threads: one of them pulls an iterable that is not async.
        wait_for_reader: waits until readers have begun so many passes.
        probe: counts for the statistics; None if there are none.

    Attributes:
        stop: set when the source is cancelled.
    """

    def __init__(
        self,
        name: str,
        source: Source,
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
        self.stop = StopFlag()
        self._probe = probe

    async def run(self) -> None:
        """Put out the items of one pass; if continuous, of one pass after the other.

        A further pass starts when a reader has taken something of the pass before it.
        """
        for passes in itertools.count():
            await self._wait_for_reader(passes)
            iterable: object = self._source.source
            if _is_async(iterable):
                await self._read_async(iterable)
            elif type(iterable) in _AT_HAND:
                await self._read_at_hand(cast("Sequence[object]", iterable))
            else:
                await self._read(cast("Iterable[object]", iterable))
            if not self._source.continuous:
                break
            await self._output.end_pass()

    async def _read(self, iterable: Iterable[object]) -> None:
        threads = self._threads
        opened: list[Iterator[object]] = []
        call = threads.start(lambda _: opened.append(iter(iterable)), self.stop)
        await call.wait(until_done=True)
        if call.error is not None:
            raise stage_failure(self._name, call.error)
        iterator = opened.pop()
        try:
            while True:
                pulled = await pull(iterator, self._output, threads, self.stop, self._put)
                self._count(pulled)
                if pulled.error is not None:
                    raise stage_failure(self._name, pulled.error)
                if pulled.ended:
                    break
        finally:
            if iterator is not iterable:
                await _close(iterator, threads)

    async def _read_at_hand(self, items: Sequence[object]) -> None:
        iterator = iter(items)
        while True:
            room = await self._output.wait_for_room()
            started = perf_counter()
            pulled = [*islice(iterator, room)]
            if self._probe is not None:
                self._probe.done(len(pulled), 0, perf_counter() - started)
            kept = [item for item in pulled if item is not SKIP]
            await self._put(kept)
            if len(pulled) < room:
                break
            if len(kept) < len(pulled):
                await asyncio.sleep(0)  # there is room still, so that the next wait for it may return at once

    async def _read_async(self, iterable: AsyncIterable[object]) -> None:
        try:
            iterator = aiter(iterable)
        except BaseException as error:  # awaits nothing, so a CancelledError comes from the iterable
            raise stage_failure(self._name, error) from error
        try:
            await self._put_from(iterator)
        finally:
            close = getattr(iterator, "aclose", None)
            if close is not None and iterator is not iterable:
                with Caught():  # as that of a plain iterator, an exception of the closing is ignored
                    await close()
        if self.stop.is_set:  # the iterator has swallowed the cancellation
            raise asyncio.CancelledError

    async def _put_from(self, iterator: AsyncIterator[object]) -> None:
        yielded = perf_counter()  # when the source last let other tasks run
        while True:
            started = perf_counter()
            try:
                item = await anext(iterator)
            except StopAsyncIteration:
                return
            except BaseException as error:
                self._raise_failure(error)
                raise
            if self.stop.is_set:
                return
            now = perf_counter()
            if self._probe is not None:
                self._probe.done(1, 0, now - started)
            if item is not SKIP and not self._output.offer(item):
                await self._put([item])
            if now - yielded > CHUNK_SECONDS:
                self._output.slowest_seconds = now - started
                await asyncio.sleep(0)
                yielded = perf_counter()

    def _raise_failure(self, error: BaseException) -> None:
        # Returns if the exception is the cancellation of the source.
        if not self.stop.cancels(error):
            raise stage_failure(self._name, error) from error

    async def _put(self, items: list[object]) -> None:
        if self._probe is None:
            await self._output.put_all(items)
        else:
            started = perf_counter()
            await self._output.put_all(items)
            self._probe.waited_for_output(perf_counter() - started)

    def _count(self, pulled: Pulled) -> None:
        if pulled.count:
            self._output.slowest_seconds = pulled.seconds / pulled.count
        if self._probe is not None:
            self._probe.done(pulled.count, int(pulled.error is not None), pulled.seconds)


class GeneratorStage(RunningStage):
    """A generator function for each item, whose values are put out as they are made."""

    def __init__(
        self, setup: StageSetup, op: Callable[[object], Iterable[object]], threads: AnyThreads, *, ordered: bool
    ) -> None:
        super().__init__(setup)
        self._op = op
        self._threads = threads
        self._order = InOrder.if_needed(setup, self._put, ordered=ordered)

    async def _work(self) -> None:
        while items := await self._take(1):
            await self._run_one(items[0], self._input.number)
            if self._order is not None:
                await self._order.end_turn()

    async def _run_one(self, item: object, number: int = 0) -> None:
        failed: Failed | None
        try:
            failed = await self._pull_all(item, number)
        except FatalError as error:  # an error of the threads
            failed = Failed(item, error)
        if failed is not None:
            self.drop_or_raise(failed)

    async def _pull_all(self, item: object, number: int) -> Failed | None:
        opened: list[Iterator[object]] = []
        call = self._threads.start(lambda _: opened.append(iter(self._op(item))), self.stop)
        await call.wait(until_done=True)
        if call.error is not None:
            await self._wait_for_turn(number)
            return Failed(item, call.error)

        async def put(values: list[object]) -> None:
            if values:
                await self._wait_for_turn(number)
                await self._put(values)

        iterator = opened.pop()
        seconds, count = 0.0, 0
        try:
            while self._failure is None:
                pulled = await pull(iterator, self.output, self._threads, self.stop, put)
                seconds, count = seconds + pulled.seconds, count + pulled.count
                if pulled.error is not None or pulled.ended:
                    await self._wait_for_turn(number)
                    self.learn(1, seconds)
                    self.count(1, count, int(pulled.error is not None), seconds)
                    return None if pulled.error is None else Failed(item, pulled.error)
        finally:
            if iterator is not item or type(item) is GeneratorType:
                await _close(iterator, self._threads)
        return None

    async def _wait_for_turn(self, number: int) -> None:
        if self._order is not None:
            await self._order.wait_for_turn(number)


class DisaggregateStage(GeneratorStage):
    """The elements of each item: the loop reads those of lists and the like, a thread pulls those of others."""

    def __init__(self, setup: StageSetup, threads: AnyThreads) -> None:
        super().__init__(setup, cast("Callable[[object], Iterable[object]]", iter), threads, ordered=False)

    async def _work(self) -> None:
        max_items = MAX_ITEMS
        while items := await self._take(max_items):
            max_items = MAX_ITEMS if all(type(item) in _AT_HAND for item in items) else 1  # don't hold slow items back
            held: list[list[object]] = []
            for item in items:
                if type(item) in _AT_HAND:
                    held.append(cast("list[object]", item))
                else:
                    await self._put_elements(held)
                    held = []
                    await self._run_one(item)
            await self._put_elements(held)
            await asyncio.sleep(0)

    async def _put_elements(self, held: Sequence[Sequence[object]]) -> None:
        """Put out the elements of lists, in chunks."""
        if not held:
            return
        seconds, count, more = 0.0, 0, True
        values = (value for each in held for value in each if value is not SKIP)
        while more:
            started = perf_counter()
            chunk = [*islice(values, MAX_ITEMS)]
            seconds += perf_counter() - started
            count += len(chunk)
            await self._put(chunk)
            more = len(chunk) == MAX_ITEMS
        self.learn(len(held), seconds)
        self.count(len(held), count, 0, seconds)


def _is_async(iterable: object) -> TypeGuard[AsyncIterable[object]]:
    return isinstance(iterable, AsyncIterable)


async def _close(iterator: Iterator[object], threads: AnyThreads) -> None:
    """Run a generator's `finally` in a thread; an exception that it raises is ignored."""
    close = getattr(iterator, "close", None)
    if callable(close):
        call = threads.start(lambda _: _ignore(close()), StopFlag())
        await call.wait(until_done=True)


def _ignore(_: object) -> None: ...
