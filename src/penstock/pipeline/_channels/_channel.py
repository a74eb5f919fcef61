"""What waits between two stages: items in order, the ends of passes, and at last an end or a failure.

Guarantees:
  - Items leave in the order in which they came, each once. The end of a pass is seen by all who take, after every item
    of that pass; the next pass begins when `next_pass` says so. `end` is seen after everything that was put.
  - There are never more than `limit` items and marks, besides those that `free` lanes are about to take, and never more
    bytes than allowed (but for one item that is larger by itself). Those who wait for room or for items get them in the
    order in which they came.
  - Cancelling a `put` or a `take` at any await neither loses an item nor leaves another waiter asleep.

Where the user gives no limit, it follows the time that an item takes: as many items as pass in a millisecond, so that
cheap items move in large chunks while of those that took long to make, hardly any waits. The pace of a channel is that
of the slowest stage before it: a quick step behind a slow one gathers nothing. A lane of the stage behind that has
nothing to do makes room for one more, since its item doesn't wait: so a thousand lanes that become free at the same
time get a thousand items at once. The channel and the lanes together never hold more than `limit` and one item a lane.

Everything here runs on the loop's thread.
"""

import asyncio
from collections import deque
from enum import Enum
from typing import Final, Protocol

from penstock.errors import PipelineFailure
from penstock.pipeline._items import size_of

_MIN_ITEMS: Final = 2
MAX_ITEMS: Final = 1024
GATHER_SECONDS: Final = 0.001  # a chunk is what passes in this time
_GATHER_BYTES: Final = 16 << 20


class Nothing(Enum):
    """The type of NOTHING: any value may be an item."""

    NOTHING = "nothing"


NOTHING: Final = Nothing.NOTHING


class Output(Protocol):
    """Where a stage puts its items: a channel, or the outlet that the foreground reads."""

    @property
    def pace(self) -> float:
        """Seconds an item of the slowest stage so far."""
        ...

    @pace.setter
    def pace(self, pace: float) -> None: ...

    def offer(self, item: object) -> bool:
        """Return whether there was room for an item; if so, it is put."""
        ...

    async def put(self, item: object) -> None:
        """Put an item when there is room."""

    async def put_all(self, items: list[object]) -> None:
        """Put items, as room comes."""

    async def room(self) -> int:
        """Return for how many items there is room, once there is any."""
        ...

    async def end_pass(self) -> None:
        """Say that a pass is over."""

    def end(self, failure: PipelineFailure | None) -> None:
        """Say that nothing comes any more, and why."""


class Waiters(deque["asyncio.Future[None]"]):
    """Those who wait for the same thing, first come, first served."""

    async def wait(self) -> None:
        """Wait to be woken. Whoever is woken and cancelled at once wakes the next.

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
        """Wake who has waited longest."""
        while self:
            future = self.popleft()
            if not future.done():
                future.set_result(None)
                return

    def wake_all(self) -> None:
        """Wake everybody."""
        while self:
            self.wake_one()


class Channel:
    """Owns the items between two stages.

    Attributes:
        limit: how many items and marks may wait at present.
        free: how many lanes of the stage behind have no item; the stage keeps it.
        failure: why it ended; None for a plain end.
    """

    def __init__(self, *, max_items: int | None = None, max_bytes: int | None = None) -> None:
        self.limit = _MIN_ITEMS if max_items is None else max_items
        self.free = 0
        self.failure: PipelineFailure | None = None
        self.pace = 0.0
        self._fixed = max_items is not None
        self._max_bytes = max_bytes
        self._items: deque[object] = deque()
        self._sizes: deque[int] = deque()  # of those, where there is a limit
        self._bytes = 0
        self._passes: deque[int] = deque([0])  # how many of the items belong to each pass; the last one is open
        self._ended = False
        self._putters = Waiters()
        self._takers = Waiters()

    def __len__(self) -> int:
        return len(self._items)

    # -- the producer's side

    def offer(self, item: object) -> bool:
        """Return whether there was room for an item; if so, it is put."""
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
            self._takers.wake_one()
        return True

    async def put(self, item: object) -> None:
        """Put an item when there is room."""
        while not self.offer(item):
            await self._putters.wait()
        if self._putters and self._has_room():
            self._putters.wake_one()

    async def put_all(self, items: list[object]) -> None:
        """Put items, as room comes."""
        start = 0
        while start < len(items):
            count = self._room()
            if count > 0 and self._max_bytes is None:
                part = items[start : start + count]
                self._items.extend(part)
                self._passes[-1] += len(part)
                start += len(part)
                self._takers.wake_one()
            elif count > 0 and self.offer(items[start]):
                start += 1
            else:
                await self._putters.wait()
        if self._putters and self._has_room():
            self._putters.wake_one()

    async def room(self) -> int:
        """Return for how many items there is room, once there is any."""
        while not self._has_room():
            await self._putters.wait()
        if self._putters:
            self._putters.wake_one()  # who may need less
        return 1 if self._max_bytes is not None else self._room()

    async def end_pass(self) -> None:
        """Say that a pass is over; the mark takes the room of an item, so that empty passes can't pile up."""
        while not self._has_room():
            await self._putters.wait()
        self._passes.append(0)
        self._takers.wake_all()

    def end(self, failure: PipelineFailure | None) -> None:
        """Say that nothing comes any more, and why; what is said later changes nothing."""
        if self._ended:
            return
        self._ended = True
        self.failure = failure
        self._takers.wake_all()

    # -- the consumer's side

    async def take(self, most: int) -> list[object]:
        """Return what is there, once there is anything: up to `most` items of one pass; none at its end."""
        while not self._passes[0]:
            if len(self._passes) > 1 or self._ended:
                return []
            await self._takers.wait()
        count = min(most, self._passes[0])
        self._passes[0] -= count
        if count == len(self._items):
            items = [*self._items]
            self._items.clear()
        else:
            items = [self._items.popleft() for _ in range(count)]
        if self._sizes:
            self._bytes -= sum(self._sizes.popleft() for _ in range(count))
        if self._putters:
            self._putters.wake_one()
        if self._items and self._takers:
            self._takers.wake_one()
        return items

    def take_now(self) -> object:
        """Return an item of the pass if there is one, else NOTHING."""
        if not self._passes[0]:
            return NOTHING
        self._passes[0] -= 1
        if self._sizes:
            self._bytes -= self._sizes.popleft()
        item = self._items.popleft()
        if self._putters:
            self._putters.wake_one()
        if self._takers and self._items:
            self._takers.wake_one()
        return item

    def next_pass(self) -> bool:
        """Return whether there is another pass after the one whose end was seen; it begins then."""
        if len(self._passes) == 1:
            return False
        self._passes.popleft()
        self._putters.wake_one()
        return True

    @property
    def is_broken(self) -> bool:
        """Whether it ended with a failure, and everything before that was taken."""
        return self.failure is not None and len(self._passes) == 1 and not self._passes[0]

    # -- both

    def adapt(self, pace: float) -> None:
        """Choose the limit anew: the stage that takes from here needs `pace` seconds an item."""
        if self._fixed:
            return
        limit = int(GATHER_SECONDS / max(pace, self.pace, 1e-9))
        if self._items:
            limit = min(limit, _GATHER_BYTES // max(size_of(self._items[0]), 1))
        limit = min(max(limit, _MIN_ITEMS), MAX_ITEMS)
        grown = limit > self.limit
        self.limit = limit
        if grown:
            self._putters.wake_one()

    def is_idle(self) -> bool:
        """Return whether nothing waits here, and nothing has ended."""
        return not self._items and len(self._passes) == 1 and not self._ended

    def _has_room(self) -> bool:
        if self._max_bytes is not None and self._bytes >= self._max_bytes:
            return False
        return self._room() > 0

    def _room(self) -> int:
        """Return for how many more items there is room, apart from their bytes; below 0 where the limit was lowered."""
        return self.limit + 1 - len(self._items) - len(self._passes) + (0 if self._fixed else self.free)
