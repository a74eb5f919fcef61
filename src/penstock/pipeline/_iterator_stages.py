"""Stages that pull items out of iterators: sources, generator functions, and the elements of items.

The problem: an iterator may be endless, may wait for a server in each step, may be one list of a million cheap items,
or may hold a file that only its `finally` closes. Reading an endless one to its end first would never give a value, and
reading the others so would hold all their items in memory. Asking a thread for one item at a time would cost a switch
of threads per item.

The solution: a thread pulls as many items as the next stage has room for, in one call (`Pulled`). The room of a channel
follows time, so such a call takes about a millisecond if items are cheap, and pulls a single item if they are slow. If
a call turns out slow, its items reach the loop one by one (see `_threads`). A lane of generators takes a chunk of
items, as one of plain functions does: one call opens, pulls and closes their generators, one after the other. An
iterator is always closed in a thread, whether it ended, failed or was stopped; only an iterator that the user passed as
the source is the user's to close.

A source pulls in a thread of its own: one that waits for data must not occupy a thread that functions need.

A list, a tuple or another type in `_AT_HAND` runs no user code when it is iterated over, and is read on the loop: as a
source, too, since a call in a thread for the few items that a slow stage has room for delays that stage's idle lanes.

Rejected: one `next` per call, as above; one generator per call, which costs a hundred times as much as a cheap one; and
a fixed number of items per call, which delays the first item of a slow iterator by the time of all of them.
"""

import asyncio
import itertools
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from time import perf_counter
from typing import Final, TypeGuard, cast

from penstock._caught import Caught
from penstock.pipeline._channels import Output
from penstock.pipeline._config import Source
from penstock.pipeline._items import SKIP, stage_failure
from penstock.pipeline._running_stage import InOrder, RunningStage, StageSetup
from penstock.pipeline._statistics import Probe
from penstock.pipeline._threads import AnyThreads, Pulled, StopFlag, Threads
from penstock.pipeline._tuning import CHUNK_SECONDS, MAX_ITEMS, chunk_size

_ITERATOR_OF: Final = cast("Callable[[object], Iterator[object]]", iter)
_AT_HAND: Final = frozenset({list, tuple, str, bytes, range})


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
            elif _is_at_hand(iterable):
                await self._read_at_hand(cast("Sequence[object]", iterable))
            else:
                await self._read(cast("Iterable[object]", iterable))
            if not self._source.continuous:
                break
            await self._output.end_pass()

    async def _read(self, iterable: Iterable[object]) -> None:
        pulled = Pulled(_ITERATOR_OF, [iterable], closes_items=False)
        try:
            while pulled.has_more:
                pulled.room = await self._output.wait_for_room()
                call = self._threads.start(pulled, self.stop)
                await call.forward_values(self._put)
                if call.error is not None:
                    raise call.error
                self._count(pulled)
                if pulled.failed is not None:
                    raise stage_failure(self._name, pulled.failed.error)
        finally:
            pulled.failed = None
            await _close(pulled, self._threads)

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
        if not self.stop.is_set:
            raise stage_failure(self._name, error) from error
        if not self.stop.cancels(error):  # the iterator has replaced the cancellation by an exception of its own
            raise asyncio.CancelledError from error

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
            self._probe.done(pulled.count, int(pulled.failed is not None), pulled.seconds)


class GeneratorStage(RunningStage):
    """A generator function, applied to one chunk of items per lane. The values are put out as they are made."""

    def __init__(
        self, setup: StageSetup, op: Callable[[object], Iterator[object]], threads: AnyThreads, *, ordered: bool
    ) -> None:
        super().__init__(setup)
        self._op = op
        self._threads = threads
        self._order = InOrder.if_needed(setup, ordered=ordered)

    async def _work(self) -> None:
        while items := await self._take(chunk_size(CHUNK_SECONDS, self.item_seconds)):
            work = self._pull(items, self._input.number)
            await (self._protect(work) if self._order is None else work)

    async def _pull(self, items: list[object], number: int = 0) -> None:
        """Put out the values of items; `number` is that of the first, if results are ordered."""
        pulled = Pulled(self._op, items)
        seconds = 0.0

        async def put(values: list[object]) -> None:
            if self.concurrency > 1:  # a single lane goes on with them, in order
                self.give_back_rest(call, pulled, number + len(items))
            if values:
                await self._wait_for_turn(number)
                await self._put(values)

        try:
            while pulled.has_more and self._failure is None:
                tried = pulled.tried
                pulled.room = await self._wait_for_room()
                call = self._threads.start(pulled, self.stop)
                await call.forward_values(put)
                if call.error is not None:
                    raise self.call_failure(call)
                seconds += pulled.seconds
                self.count(pulled.tried - tried, pulled.count, int(pulled.failed is not None), pulled.seconds)
                if pulled.failed is not None:
                    await self._wait_for_turn(number)
                    self.drop_or_raise(pulled.failed)
        finally:
            pulled.failed = None
            await _close(pulled, self._threads)
        self.learn(pulled.tried, seconds)
        await self._end_turn(number, pulled.tried)

    async def _wait_for_room(self) -> int:
        started = perf_counter()
        room = await self.output.wait_for_room()
        if self._probe is not None:
            self._probe.waited_for_output(perf_counter() - started)
        return room

    async def _wait_for_turn(self, number: int) -> None:
        if self._order is not None:
            await self._order.wait_for_turn(number)

    async def _end_turn(self, number: int, count: int) -> None:
        if self._order is not None:
            await self._order.wait_for_turn(number)
            await self._order.end_turn(self._put, count)


class DisaggregateStage(GeneratorStage):
    """The elements of each item: the loop reads those of lists and the like, a thread pulls those of others."""

    def __init__(self, setup: StageSetup, threads: AnyThreads) -> None:
        super().__init__(setup, _ITERATOR_OF, threads, ordered=False)

    async def _work(self) -> None:
        while items := await self._take(chunk_size(CHUNK_SECONDS, self.item_seconds)):
            for is_at_hand, some in groupby(items, _is_at_hand):
                if is_at_hand:
                    await self._put_elements(cast("list[Sequence[object]]", [*some]))
                else:
                    await self._pull([*some])
            await asyncio.sleep(0)

    async def _put_elements(self, held: list[Sequence[object]]) -> None:
        """Put out the elements of lists, in chunks."""
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


def _is_at_hand(item: object) -> bool:
    return type(item) in _AT_HAND


def _is_async(iterable: object) -> TypeGuard[AsyncIterable[object]]:
    return isinstance(iterable, AsyncIterable)


async def _close(pulled: Pulled, threads: AnyThreads) -> None:
    """Run the `finally` of a generator that has not ended, in a thread."""
    if pulled.is_open:
        call = threads.start(pulled.close, StopFlag())
        await call.wait(until_done=True)
