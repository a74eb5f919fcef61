"""Bounded channels between the stages of one event loop, and branches: paths that divide and flows that join.

The problem: a channel should be long for cheap items, so that they move in large chunks, and short for expensive ones,
so that few of them wait in memory; and one stage's items may be a thousand times as expensive as another's. A number
given by the user would be wrong for most stages.

The solution: the limit follows time. If the user gives no limit, a channel holds as many items as pass in a millisecond
(see `_tuning`). The time is that of the slowest stage before or after the channel, since a fast stage behind a slow one
gathers nothing. Besides, each lane of the next stage that has no item adds room for one more, since such an item won't
wait; so a thousand lanes that become free together get a thousand items at once. Bytes count too: a limit that follows
time is lower for large items.

A stage takes cheap items in chunks. If an item takes long after all, the stage gives the rest of its chunk back, so
that its other lanes can take them; in threads, it does so while that item is still computed. Items that were given back
are taken before others, and keep their numbers.

The end of a pass is not an item in the queue but a boundary: `_passes` holds how many of the items belong to each pass.
So `take` never returns items of two passes, and several lanes see the same end without one of them consuming it.

A router puts items into a `PathSwitch`, which has a channel for each path. The paths end in `JoinInput`s, which share
one output, and its end: a `Join`. `RoundRobin` moves the items of several channels into one output in turn.

`asyncio.Queue` was not used: it has no end, no limit that changes, no limit in bytes, and moves one item per call.

Guarantees:
  - Items leave in the order in which they came, each once. All takers see the end of a pass after every item of that
    pass; the next pass starts with `start_next_pass`. All takers see the end of the channel after everything that was
    put.
  - The channel never holds more than `limit` items and ends of passes, plus one item for each free lane unless the user
    set the limit; and never more bytes than allowed, except a single item that is larger by itself. Items that were
    given back don't count. Waiting putters and takers are served in order.
  - Cancelling a `put` or a `take` at any await loses no item, and leaves no other waiter asleep.

Everything here runs on the loop's thread.
"""

import asyncio
import bisect
from collections import deque
from collections.abc import Sequence
from enum import Enum
from operator import itemgetter
from typing import Final, Protocol, cast

from penstock.errors import PipelineFailure
from penstock.pipeline._items import size_of
from penstock.pipeline._tuning import CHUNK_SECONDS, MAX_CHANNEL_BYTES, MAX_ITEMS, MIN_ITEMS


class Nothing(Enum):
    """The type of NOTHING: any value may be an item, so the absence of one needs a value of its own."""

    NOTHING = "nothing"


NOTHING: Final = Nothing.NOTHING


class Output(Protocol):
    """The destination of a stage's items: a channel, or the outlet that the foreground reads."""

    @property
    def slowest_seconds(self) -> float:
        """The seconds per item of the slowest stage before this output."""
        ...

    @slowest_seconds.setter
    def slowest_seconds(self, seconds: float) -> None: ...

    def offer(self, item: object) -> bool:
        """Return False if there is no room for an item; otherwise put it, and return True."""
        ...

    async def put(self, item: object) -> None:
        """Put an item as soon as there is room."""

    async def put_all(self, items: list[object]) -> None:
        """Put items, each as soon as there is room."""

    async def wait_for_room(self) -> int:
        """Return for how many items there is room, after waiting until there is any."""
        ...

    async def end_pass(self) -> None:
        """Mark the end of a pass."""

    def end(self, failure: PipelineFailure | None) -> None:
        """Mark the end of all passes, with the failure that caused it, if any."""


class Waiters(deque["asyncio.Future[None]"]):
    """Tasks that wait for the same condition, woken in the order in which they came."""

    async def wait(self) -> None:
        """Wait to be woken. A task that is cancelled just after it was woken passes the wake-up to the next one.

        Raises:
            CancelledError: the waiting task was cancelled.
        """
        future = asyncio.get_running_loop().create_future()
        self.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():
                self.wake_one()
            elif future in self:
                self.remove(future)
            raise

    def wake_one(self) -> None:
        """Wake the task that has waited longest."""
        while self:
            future = self.popleft()
            if not future.done():
                future.set_result(None)
                return

    def wake_all(self) -> None:
        """Wake all waiting tasks."""
        while self:
            self.wake_one()


class Channel:
    """Owns the items between two stages.

    Attributes:
        limit: how many items and ends of passes may wait at present.
        free_lanes: how many lanes of the next stage have no item; that stage sets it.
        slowest_seconds: the seconds per item of the slowest stage before the channel.
        failure: the failure that ended the channel; None if there is none.
        number: the number of the first item that was last taken; the items of all passes are counted from 0.
    """

    def __init__(self, *, max_items: int | None = None, max_bytes: int | None = None) -> None:
        self.limit = MIN_ITEMS if max_items is None else max_items
        self.free_lanes = 0
        self.slowest_seconds = 0.0
        self.failure: PipelineFailure | None = None
        self.number = 0
        self._is_fixed = max_items is not None
        self._max_bytes = max_bytes
        self._items: deque[object] = deque()
        self._next_number = 0  # of the first of the items
        self._returned: list[tuple[int, list[object]]] = []  # given back, with the number of the first, in order
        self._sizes: deque[int] = deque()  # the sizes of the items, if `max_bytes` is given
        self._bytes = 0
        self._passes: deque[int] = deque([0])  # how many of the items belong to each pass; the last one is open
        self._ended = False
        self._putters = Waiters()
        self._takers = Waiters()
        self._woken = 0  # takers that were woken for items, and have not looked yet
        self._take_size = 1  # how many items the latest taker takes at most

    def __len__(self) -> int:
        return len(self._items) + sum(len(items) for _, items in self._returned)

    # -- the producer's side

    def offer(self, item: object) -> bool:
        """Return False if there is no room for an item; otherwise put it, and return True."""
        if len(self._items) + len(self._passes) > self.limit and self._room() <= 0:
            return False
        if self._max_bytes is not None:
            size = size_of(item)
            if self._items and self._bytes + size > self._max_bytes:
                return False
            self._sizes.append(size)
            self._bytes += size
        self._items.append(item)
        self._passes[-1] += 1
        if self._takers:
            self._wake_takers()
        return True

    async def put(self, item: object) -> None:
        """Put an item as soon as there is room."""
        while not self.offer(item):
            await self._putters.wait()
        if self._putters and self._has_room():
            self._putters.wake_one()

    async def put_all(self, items: list[object]) -> None:
        """Put items, each as soon as there is room, after those of the tasks that wait already."""
        start = 0
        if self._putters:  # a merged flow without an end would otherwise take all room, and another one would get none
            await self._putters.wait()
        while start < len(items):
            count = self._room()
            if count > 0 and self._max_bytes is None:
                part = items[start : start + count]
                self._items.extend(part)
                self._passes[-1] += len(part)
                start += len(part)
                self._wake_takers()
            elif count > 0 and self.offer(items[start]):
                start += 1
            else:
                await self._putters.wait()
        if self._putters and self._has_room():
            self._putters.wake_one()

    async def wait_for_room(self) -> int:
        """Return for how many items there is room, after waiting until there is any."""
        while not self._has_room():
            await self._putters.wait()
        if self._putters:
            self._putters.wake_one()  # another putter may need less room than this one
        return 1 if self._max_bytes is not None else self._room()

    async def end_pass(self) -> None:
        """Mark the end of a pass; it takes the room of an item, so that empty passes can't accumulate."""
        while not self._has_room():
            await self._putters.wait()
        self._passes.append(0)
        self._takers.wake_all()

    def end(self, failure: PipelineFailure | None) -> None:
        """Mark the end of all passes, with the failure that caused it, if any; later calls have no effect."""
        if self._ended:
            return
        self._ended = True
        self.failure = failure
        self._takers.wake_all()

    # -- the consumer's side

    async def take(self, max_items: int) -> list[object]:
        """Return up to `max_items` items of one pass, after waiting for the first; none at the end of the pass."""
        while not self._passes[0]:
            if self.is_pass_over:
                return []
            try:
                await self._takers.wait()
            finally:
                self._woken = max(self._woken - 1, 0)
        self._take_size = max_items
        items = self._take_returned(max_items) if self._returned else self._take_items(max_items)
        if self._takers:
            self._wake_takers()
        return items

    def _take_items(self, max_items: int) -> list[object]:
        count = min(max_items, self._passes[0])
        self._passes[0] -= count
        self.number, self._next_number = self._next_number, self._next_number + count
        if count == len(self._items):
            items = [*self._items]
            self._items.clear()
        else:
            items = [self._items.popleft() for _ in range(count)]
        if self._sizes:
            self._bytes -= sum(self._sizes.popleft() for _ in range(count))
        if self._putters:
            self._putters.wake_one()
        return items

    def _take_returned(self, max_items: int) -> list[object]:
        self.number, items = self._returned.pop(0)
        taken, rest = items[:max_items], items[max_items:]
        if rest:
            self._returned.insert(0, (self.number + len(taken), rest))
        self._passes[0] -= len(taken)
        return taken

    def give_back(self, number: int, items: list[object]) -> None:
        """Give back items that were taken and not used; `number` is that of the first."""
        if items:
            bisect.insort(self._returned, (number, items), key=itemgetter(0))
            self._passes[0] += len(items)
            self._wake_takers()

    def take_now(self) -> object:
        """Return an item of the pass, or NOTHING if `take(1)` has to do it; the faster form of that."""
        if not self._passes[0] or self._returned:
            return NOTHING
        self._passes[0] -= 1
        self.number = self._next_number
        self._next_number += 1
        if self._sizes:
            self._bytes -= self._sizes.popleft()
        item = self._items.popleft()
        if self._putters:
            self._putters.wake_one()
        if self._takers:
            self._wake_takers()
        return item

    def _wake_takers(self) -> None:
        """Wake as many takers as the items suffice for, so that lanes with an item each begin together."""
        while self._takers and len(self) > self._woken * self._take_size:
            self._woken += 1
            self._takers.wake_one()

    def start_next_pass(self) -> bool:
        """Return False if no pass follows the one whose end was seen; otherwise start it, and return True."""
        if len(self._passes) == 1:
            return False
        self._passes.popleft()
        self._putters.wake_one()
        return True

    @property
    def is_pass_over(self) -> bool:
        """Whether a pass has ended, and all its items were taken."""
        return not self._passes[0] and (len(self._passes) > 1 or self._ended)

    @property
    def has_failed(self) -> bool:
        """Whether the channel ended with a failure, and everything before it was taken."""
        return self.failure is not None and len(self._passes) == 1 and not self._passes[0]

    # -- both sides

    def adapt_limit(self, item_seconds: float) -> None:
        """Set the limit for a next stage that needs `item_seconds` per item, unless the user set one."""
        if self._is_fixed:
            return
        limit = int(CHUNK_SECONDS / max(item_seconds, self.slowest_seconds, 1e-9))
        if self._items:
            limit = min(limit, MAX_CHANNEL_BYTES // max(size_of(self._items[0]), 1))
        limit = min(max(limit, MIN_ITEMS), MAX_ITEMS)
        grown = limit > self.limit
        self.limit = limit
        if grown:
            self._putters.wake_one()

    def is_idle(self) -> bool:
        """Return whether no item waits, and no pass has ended."""
        return not self._passes[0] and len(self._passes) == 1 and not self._ended

    def _has_room(self) -> bool:
        if self._max_bytes is not None and self._bytes >= self._max_bytes:
            return False
        return self._room() > 0

    def _room(self) -> int:
        """Return for how many more items there is room, ignoring bytes; below 0 if the limit was lowered."""
        return self.limit + 1 - len(self._items) - len(self._passes) + (0 if self._is_fixed else self.free_lanes)


class PathSwitch:
    """The entrances of several paths as one output, into which a router puts pairs of a path's number and an item.

    Items enter in the order in which they are put: one whose path is full holds back those after it.

    Args:
        paths: the entrances.
        join: the shared end of the paths.
    """

    def __init__(self, paths: Sequence[Output], join: "Join") -> None:
        self._paths = paths
        self._join = join

    def offer(self, item: object) -> bool:
        """Return False if there is no room in an item's path; otherwise put it there, and return True."""
        number, routed = cast("tuple[int, object]", item)
        return self._paths[number].offer(routed)

    async def put(self, item: object) -> None:
        """Put an item into its path as soon as there is room."""
        number, routed = cast("tuple[int, object]", item)
        await self._paths[number].put(routed)

    async def put_all(self, items: list[object]) -> None:
        """Put items into their paths, each as soon as there is room."""
        for item in items:
            if not self.offer(item):
                await self.put(item)

    async def wait_for_room(self) -> int:
        """Return for how many items each path has room, after waiting until all have some."""
        return min([await each.wait_for_room() for each in self._paths])

    async def end_pass(self) -> None:
        """Mark the end of a pass in all paths at once, since an empty path waits here for the end of the others."""
        async with asyncio.TaskGroup() as paths:
            for each in self._paths:
                paths.create_task(each.end_pass())

    def end(self, failure: PipelineFailure | None) -> None:
        """Mark the end of all passes in all paths; a failure is read after the items of all paths."""
        self._join.share(failure)
        for each in self._paths:
            each.end(failure)

    @property
    def slowest_seconds(self) -> float:
        """The seconds per item of the slowest stage before this output."""
        return max(each.slowest_seconds for each in self._paths)

    @slowest_seconds.setter
    def slowest_seconds(self, seconds: float) -> None:
        for each in self._paths:
            each.slowest_seconds = seconds


class Join:
    """The shared end of several flows into one output: a pass ends when all flows have ended it, as does the output.

    A failure of one flow ends the output at once, since another flow may have no end. A failure from before all flows
    ends the output when all of them have ended, after the items that they still hold.

    Attributes:
        is_broken: whether the failure of one flow has ended the output, so that nothing needs the other flows.
    """

    def __init__(self, output: Output, count: int) -> None:
        self.is_broken = False
        self._output = output
        self._count = count
        self._shared: PipelineFailure | None = None
        self._waiting = 0
        self._ended = 0
        self._passes = 0
        self._next_pass = Waiters()

    async def end_pass(self) -> None:
        """Mark the end of a pass for one flow, and wait until all flows have ended it."""
        self._waiting += 1
        if self._waiting == self._count:
            await self._output.end_pass()
            self._waiting = 0
            self._passes += 1
            self._next_pass.wake_all()
        else:
            this_pass = self._passes
            while this_pass == self._passes:
                await self._next_pass.wait()

    def share(self, failure: PipelineFailure | None) -> None:
        """Note the failure with which all flows are about to end."""
        self._shared = failure

    def end(self, failure: PipelineFailure | None) -> None:
        """Mark the end of one flow; a failure of its own ends the output at once."""
        self._ended += 1
        is_own = failure is not None and failure is not self._shared
        self.is_broken = self.is_broken or is_own
        if is_own or self._ended == self._count:
            self._output.end(failure)


class JoinInput:
    """The output of one of several joined flows: its items go into the shared output as they arrive."""

    def __init__(self, output: Output, join: Join) -> None:
        self._output = output
        self._join = join

    def offer(self, item: object) -> bool:
        """Return False if there is no room for an item; otherwise put it, and return True."""
        return self._output.offer(item)

    async def put(self, item: object) -> None:
        """Put an item as soon as there is room."""
        await self._output.put(item)

    async def put_all(self, items: list[object]) -> None:
        """Put items, each as soon as there is room."""
        await self._output.put_all(items)

    async def wait_for_room(self) -> int:
        """Return for how many items there is room, after waiting until there is any."""
        return await self._output.wait_for_room()

    async def end_pass(self) -> None:
        """Mark the end of a pass for this flow, and wait until all flows have ended it."""
        await self._join.end_pass()

    def end(self, failure: PipelineFailure | None) -> None:
        """Mark the end of this flow."""
        self._join.end(failure)

    @property
    def slowest_seconds(self) -> float:
        """The seconds per item of the slowest stage before this output."""
        return self._output.slowest_seconds

    @slowest_seconds.setter
    def slowest_seconds(self, seconds: float) -> None:
        self._output.slowest_seconds = seconds


class RoundRobin:
    """Moves items of several channels into an output, one of each in turn, leaving out those that have ended.

    With a single channel it just moves its items.
    """

    def __init__(self, inputs: Sequence[Channel], output: Output) -> None:
        self._inputs = inputs
        self._output = output
        self._failure: PipelineFailure | None = None

    async def run(self) -> None:
        """Move items until all inputs have ended, or one has failed."""
        while True:
            remaining = list(self._inputs)
            while remaining:
                for each in list(remaining):
                    if await self._move_one(each):
                        continue
                    if each.has_failed:  # reported in its turn, so that the items before it are the same in every run
                        self._failure = each.failure
                        return
                    remaining.remove(each)
            started = [each.start_next_pass() for each in self._inputs]
            if not all(started):
                break
            await self._output.end_pass()

    def failure(self) -> PipelineFailure | None:
        """Return the failure of an input, once its turn has come; None if there is none."""
        return self._failure

    async def _move_one(self, channel: Channel) -> bool:
        items = await channel.take(1)
        if items:
            self._output.slowest_seconds = max(self._output.slowest_seconds, channel.slowest_seconds)
            await self._output.put_all(items)
        return bool(items)
