"""The last buffer: the loop puts items in, and the foreground takes them out, from any thread or any other loop.

Guarantees:
  - Items, ends of passes and the final end are taken in the order in which they were put, each once; the end stays.
    The failure that it came with is taken once.
  - At most `limit` items wait here, and at most `max_bytes` (but for one that is larger by itself).
  - A `take` that times out, or is interrupted while it waits, has taken nothing.

While there are items, taking one asks nobody and takes no lock; the loop is woken only if it waits for room. Both sides
say first that they wait, and look again then: so either one sees what the other has done, or the other sees the wish.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from time import monotonic, perf_counter
from typing import Final

from penstock.errors import PipelineFailure
from penstock.pipeline._channels._channel import Waiters
from penstock.pipeline._channels._size import size_of
from penstock.pipeline._statistics._probe import Probe
from penstock.transport._bell import Bell


class Mark(Enum):
    """What `take` returns besides items."""

    END_OF_PASS = "the end of a pass"
    END = "the end of everything"
    NOTHING = "nothing yet"


_END: Final = Mark.END
_NOTHING: Final = Mark.NOTHING
_SLOW_SECONDS: Final = 0.0001  # an item that takes as long is worth waking the loop for


class Outlet:
    """Owns the finished items.

    Attributes:
        limit: how many items and marks may wait.
        pace: seconds an item of the slowest stage.
    """

    def __init__(
        self, buffer_size: int, max_bytes: int | None, probe: Probe | None, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.limit = buffer_size
        self.pace: float = 0.0
        self._max_bytes = max_bytes
        self._probe = probe
        self._loop = loop
        self._items: deque[object] = deque()
        self._wants_room = False  # the loop waits for it
        self._putters = Waiters()  # the loop's
        self._lock = threading.Lock()  # over what is below
        self._wakers: list[Callable[[], None]] = []  # of those who wait for an item
        self._bell: Bell | None = None  # that nobody uses now
        self._ended = False
        self._failure: PipelineFailure | None = None
        self._bytes = 0

    # -- the loop's side

    def offer(self, item: object) -> bool:
        """Return whether there was room for an item; if so, it is put."""
        if self._max_bytes is not None:
            return self._put_some([item], 0) == 1
        if len(self._items) >= self.limit:
            return False
        self._items.append(item)
        if self._wakers:
            self._wake()
        return True

    async def put(self, item: object) -> None:
        """Put an item when there is room."""
        await self.put_all([item])

    async def put_all(self, items: list[object]) -> None:
        """Put items, as room comes."""
        start = self._put_some(items, 0)
        while start < len(items):
            await self._wait_for_room()
            start = self._put_some(items, start)
        if self._putters:
            self._putters.wake_one()

    async def room(self) -> int:
        """Return for how many items there is room, once there is any."""
        while not self._has_room():
            await self._wait_for_room()
        if self._putters:
            self._putters.wake_one()  # who may need less
        return 1 if self._max_bytes is not None else max(self.limit - len(self._items), 1)

    async def end_pass(self) -> None:
        """Say that a pass is over, once there is room for more: empty passes can't pile up."""
        await self.room()
        self._items.append(Mark.END_OF_PASS)
        self._wake()

    def end(self, failure: PipelineFailure | None) -> None:
        """Say that nothing comes any more, and why; what is said later changes nothing. From any thread."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self._failure = failure
            self._bell = None
        self._items.append(_END)
        self._wake()

    # -- the foreground's side

    def take_now(self) -> object:
        """Return the next item or mark, or that there is nothing."""
        try:
            item = self._items.popleft()
        except IndexError:
            return _NOTHING
        if self._probe is not None or self._max_bytes is not None or item is _END:
            self._account(item)
        if self._wants_room and len(self._items) <= self._low():
            self._wants_room = False
            with suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(self._putters.wake_one)
        return item

    def take_or_wake(self, wake: Callable[[], None]) -> object:
        """Return the next item or mark; or that there is nothing, and call `wake` once when there is."""
        found = self.take_now()
        if found is not _NOTHING:
            return found
        with self._lock:
            self._wakers.append(wake)
        if self._probe is not None:
            self._probe.looked(0, self.limit)
        found = self.take_now()
        if found is not _NOTHING:
            self.forget(wake)
        return found

    def forget(self, wake: Callable[[], None]) -> None:
        """Don't call `wake` any more."""
        with self._lock, suppress(ValueError):
            self._wakers.remove(wake)

    def take(self, timeout: float | None) -> object:
        """Return the next item or mark, when there is one.

        Raises:
            TimeoutError: there was none for so many seconds.
        """
        found = self.take_now()
        if found is not _NOTHING:
            return found
        started = perf_counter()
        bell, self._bell = self._bell or Bell(), None  # unlike a lock, it hears of every Ctrl-C
        try:
            found = self._take_when_rung(bell, None if timeout is None else monotonic() + timeout)
        finally:
            self.forget(bell.ring)
        if not self._ended:
            self._bell = bell
        if self._probe is not None:
            self._probe.waited_for_input(perf_counter() - started)
        if found is _NOTHING:
            raise TimeoutError(f"no item came within {timeout} s")
        return found

    def _take_when_rung(self, bell: Bell, until: float | None) -> object:
        bell.clear()
        while (found := self.take_or_wake(bell.ring)) is _NOTHING:
            if not bell.wait(None if until is None else max(until - monotonic(), 0.0)):
                break
            bell.clear()
        return found

    def take_failure(self) -> PipelineFailure | None:
        """Return the failure that ended everything, once."""
        with self._lock:
            failure, self._failure = self._failure, None
        return failure

    @property
    def failure(self) -> PipelineFailure | None:
        """The failure that nobody has read yet."""
        return self._failure

    # -- both

    def _account(self, item: object) -> None:
        """Do what taking an item takes beyond the item itself."""
        if item is _END:
            self._items.appendleft(_END)  # it stays
            self._bell = None
            self._wake()
        elif type(item) is not Mark:
            if self._max_bytes is not None:
                with self._lock:
                    self._bytes -= size_of(item)
            if self._probe is not None:
                self._probe.looked(len(self._items) + 1, self.limit)
                self._probe.done(1, 0, 0.0)

    def _wake(self) -> None:
        with self._lock:
            wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    def _put_some(self, items: list[object], start: int) -> int:
        """Return how many of the items are in, after what there was room for was put."""
        before = start
        if self._max_bytes is None:
            count = max(self.limit - len(self._items), 0)
            self._items.extend(items[start : start + count])
            start = min(start + count, len(items))
        else:
            while start < len(items) and self._fits(items[start]):
                self._items.append(items[start])
                start += 1
        if start > before and self._wakers:
            self._wake()
        return start

    def _fits(self, item: object) -> bool:
        assert self._max_bytes is not None
        size = size_of(item)
        with self._lock:
            if self._items and (len(self._items) >= self.limit or self._bytes + size > self._max_bytes):
                return False
            self._bytes += size
        return True

    def _has_room(self) -> bool:
        if self._max_bytes is not None and self._bytes >= self._max_bytes:
            return False
        return len(self._items) < self.limit

    async def _wait_for_room(self) -> None:
        self._wants_room = True
        if len(self._items) <= self._low() and (self._max_bytes is None or not self._items):
            self._wants_room = False  # it came meanwhile
        else:
            await self._putters.wait()

    def _low(self) -> int:
        """Return at how many items the loop is asked for more: cheap ones come in chunks."""
        return self.limit - 1 if self.pace > _SLOW_SECONDS or self._max_bytes is not None else self.limit // 4
