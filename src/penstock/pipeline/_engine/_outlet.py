"""The last buffer: the loop puts items in, and the foreground takes them out, from any thread or any other loop.

Guarantees:
  - Items, ends of passes and the final end are taken in the order in which they were put, each once; `take` raises
    what the end was at most once, and from then on only says that there is nothing more.
  - At most `buffer_size` items wait here, and at most `max_bytes` (but for one that is larger by itself).
  - A `take` that times out, or is interrupted while it waits, has taken nothing.
  - Taking never waits for the loop while there are items: nobody is asked, and the loop is woken only if it waits.
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
from penstock.pipeline._engine._channel import Waiters
from penstock.pipeline._engine._size import size_of
from penstock.pipeline._statistics._probe import Probe


class Mark(Enum):
    """What `take` returns besides items."""

    END_OF_PASS = "the end of a pass"
    END = "the end of everything"
    NOTHING = "nothing yet"


_END: Final = Mark.END
_SLOW_SECONDS: Final = 0.0001  # an item that takes as long is worth waking the loop for


class Outlet:
    """Owns the finished items.

    Attributes:
        limit: how many items may wait.
        pace: seconds an item of the slowest stage.
    """

    def __init__(
        self, buffer_size: int, max_bytes: int | None, probe: Probe | None, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.limit = buffer_size
        self.pace = 0.0
        self._max_bytes = max_bytes
        self._probe = probe
        self._loop = loop
        self._lock = threading.Lock()  # over all below
        self._items: deque[object] = deque()
        self._sizes: deque[int] = deque()
        self._count = 0  # of the items, without marks
        self._bytes = 0
        self._failure: PipelineFailure | None = None
        self._ended = False
        self._wants_room = False
        self._wakers: list[Callable[[], None]] = []  # of those who wait for an item
        self._putters = Waiters()  # the loop's

    # -- the loop's side

    def offer(self, item: object) -> bool:
        """Put an item if there is room; return whether there was."""
        return self._put_some([item], 0) == 1

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
        return 1 if self._max_bytes is not None else self.limit - self._count

    async def end_pass(self) -> None:
        """Say that a pass is over, once there is room for more: empty passes can't pile up."""
        await self.room()
        self._put_mark(Mark.END_OF_PASS)

    def end(self, failure: PipelineFailure | None) -> None:
        """Say that nothing comes any more, and why."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self._failure = failure
        self._put_mark(_END)

    # -- the foreground's side

    def take(self, timeout: float | None) -> object:
        """Take the next item or mark; waits for one.

        Raises:
            TimeoutError: there was none for so many seconds.
            PipelineFailure: how everything ended, once.
        """
        until = None if timeout is None else monotonic() + timeout
        started = 0.0 if self._probe is None else perf_counter()
        while True:
            woken = threading.Lock()
            woken.acquire()
            found = self.take_or_wake(woken.release)
            if found is not Mark.NOTHING:
                if self._probe is not None:
                    self._probe.waited_for_input(perf_counter() - started)
                return found
            left = -1 if until is None else max(until - monotonic(), 0)
            try:
                if not woken.acquire(timeout=left) and until is not None and monotonic() >= until:
                    raise TimeoutError(f"no item came within {timeout} s")
            finally:
                self.forget(woken.release)

    def take_or_wake(self, wake: Callable[[], None]) -> object:
        """Take the next item or mark; or if there is nothing, return that, and call `wake` once when there is.

        Raises:
            PipelineFailure: how everything ended, once.
        """
        with self._lock:
            if not self._items:
                self._wakers.append(wake)
                if self._probe is not None:
                    self._probe.looked(0, self.limit)
                return Mark.NOTHING
            if self._probe is not None:
                self._probe.looked(self._count, self.limit)
            item = self._items[0]
            if item is _END:
                failure, self._failure = self._failure, None
                if failure is not None:
                    raise failure
                return _END
            self._items.popleft()
            if not isinstance(item, Mark):
                self._count -= 1
                if self._sizes:
                    self._bytes -= self._sizes.popleft()
            asked = self._wants_room and self._count <= self._low()
            if asked:
                self._wants_room = False
        if self._probe is not None and type(item) is not Mark:
            self._probe.done(1, 0, 0.0)
        if asked:
            with suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(self._putters.wake_one)
        return item

    def forget(self, wake: Callable[[], None]) -> None:
        """Don't call `wake` any more."""
        with self._lock, suppress(ValueError):
            self._wakers.remove(wake)

    @property
    def has_ended(self) -> bool:
        """Whether everything is over, and nothing waits but the news of it."""
        with self._lock:
            return self._ended and len(self._items) == 1

    @property
    def failure(self) -> PipelineFailure | None:
        """The failure that nobody has read yet."""
        return self._failure

    # -- both

    def _put_some(self, items: list[object], start: int) -> int:
        """Put what there is room for; return how many of the items are in."""
        with self._lock:
            before = start
            while start < len(items) and self._fits(items[start]):
                self._items.append(items[start])
                self._count += 1
                start += 1
            wakers, self._wakers = (self._wakers, []) if start > before else ([], self._wakers)
        for wake in wakers:
            wake()
        return start

    def _put_mark(self, mark: Mark) -> None:
        with self._lock:
            self._items.append(mark)
            wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    def _fits(self, item: object) -> bool:
        if self._count >= self.limit:
            return False
        if self._max_bytes is not None:
            size = size_of(item)
            if self._count and self._bytes + size > self._max_bytes:
                return False
            self._sizes.append(size)
            self._bytes += size
        return True

    def _has_room(self) -> bool:
        with self._lock:
            return self._count < self.limit and (self._max_bytes is None or self._bytes < self._max_bytes)

    async def _wait_for_room(self) -> None:
        with self._lock:
            empty = self._count == 0 or (self._max_bytes is None and self._count <= self._low())
            self._wants_room = not empty
        if not empty:
            await self._putters.wait()

    def _low(self) -> int:
        """Return at how many items the loop is asked for more: cheap ones come in chunks."""
        return self.limit - 1 if self.pace > _SLOW_SECONDS or self._max_bytes is not None else self.limit // 2
