"""The last buffer: the loop puts items in, and the foreground takes them out, from any thread or any other loop.

Guarantees:
  - Items, ends of passes and the final end are taken in the order in which they were put, each once; the end stays.
    The failure that it came with is taken once.
  - At most `limit` items wait here, and at most `max_bytes` (but for one that is larger by itself).
  - `close` discards what waits, wakes the readers, and stays: they never take a closed pass for a complete one. An end
    of a pass that a reader would have met next is left to it.
  - A `take` that times out, or out of which a signal handler's exception comes, has taken nothing.

While there are items, taking one asks nobody and takes no lock; the loop is woken only if it waits for room. Both sides
say first that they wait, and look again then: so either one sees what the other has done, or the other sees the wish.

Python calls a signal's handler in the main thread: when a function begins, when a loop jumps back, and when a call of a
function that isn't written in Python has returned; not when a function of Python's returns. So a `for` removes an item,
which calls nothing from Python's view, and until the item has been returned either nothing is called, or what a handler
raises puts the item back. All code that passes an item on to the user keeps to this.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from itertools import repeat
from time import monotonic, perf_counter
from typing import Final

from penstock._os import Bell
from penstock.errors import PipelineFailure
from penstock.pipeline._channels._channel import Waiters
from penstock.pipeline._items import size_of
from penstock.pipeline._statistics import Probe


class Mark(Enum):
    """What `take` returns besides items."""

    END_OF_PASS = "the end of a pass"
    END = "the end of everything"
    CLOSED = "the pass was closed before its end"
    NOTHING = "nothing yet"


_END: Final = Mark.END
_END_OF_PASS: Final = Mark.END_OF_PASS
_CLOSED: Final = Mark.CLOSED
_NOTHING: Final = Mark.NOTHING
_REMOVE: Final[Callable[[deque[object]], object]] = deque[object].popleft
_SLOW_SECONDS: Final = 0.0001  # an item that takes as long is worth waking the loop for


class Outlet:
    """Owns the finished items.

    Attributes:
        limit: how many items and marks may wait.
        pace: seconds an item of the slowest stage.
        judge: returns the failure that the whole pass ends with where no stage has failed; None if there is none.
        closed_because: why it was closed, as the reader's error says it; empty as long as it wasn't.
        is_over: whether a reader has met the final end.
        unread_failure: what ended everything, until a reader raises it.
    """

    def __init__(
        self, buffer_size: int, max_bytes: int | None, probe: Probe | None, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.limit: int = buffer_size
        self.pace: float = 0.0
        self.judge: Callable[[], PipelineFailure | None] = _no_failure
        self.closed_because: str = ""
        self.is_over: bool = False
        self.unread_failure: PipelineFailure | None = None
        self._max_bytes = max_bytes
        self._probe = probe
        self._loop = loop
        self._items: deque[object] = deque()
        self._removed: Iterator[object] = map(_REMOVE, repeat(self._items))  # each step removes the first item
        self._accounts_always = probe is not None or max_bytes is not None
        self._accounts = True  # for the next item that is taken
        self._is_fresh = True  # nothing of the next pass was taken
        self._passes_begun = 0  # of which something was taken
        self._wants_reader = False  # a source waits for it
        self._sources = Waiters()  # the loop's
        self._wants_room = False  # the loop waits for it
        self._putters = Waiters()  # the loop's
        self._lock = threading.Lock()  # over what is below
        self._wakers: list[Callable[[], None]] = []  # of those who wait for an item
        self._bell: Bell | None = None  # that nobody uses now
        self._ended = False
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
        self._items.append(_END_OF_PASS)
        self._wake()

    async def wait_for_reader(self, passes: int) -> None:
        """Return once something of so many passes was taken."""
        while self._passes_begun < passes:
            self._wants_reader = True
            if self._passes_begun >= passes:  # it was taken meanwhile
                break
            await self._sources.wait()

    def end(self, failure: PipelineFailure | None) -> None:
        """Say that nothing comes any more, and why; what is said later changes nothing. From any thread."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self.unread_failure = self.judge() if failure is None else failure
            self._bell = None
        self._items.append(_END)
        self._wake()

    # -- the foreground's side

    def take_now(self) -> object:
        """Return the next item or mark, or that there is nothing."""
        item: object = _NOTHING
        try:
            for removed in self._removed:  # no handler is called before the item is returned, or in the next `try`
                item = removed
                break
        except IndexError:
            return _NOTHING
        if self._accounts or self._wants_room or item is _END or item is _END_OF_PASS or item is _CLOSED:
            try:
                self._account(item)
            except BaseException:
                self._items.appendleft(item)
                self._wake()
                raise
        return item

    def take_or_wake(self, wake: Callable[[], None]) -> object:
        """Return the next item or mark; or that there is nothing, and call `wake` once when there is."""
        found = self.take_now()
        if found is not _NOTHING:
            return found
        with self._lock:
            self._wakers.append(wake)
        try:
            if self._probe is not None:
                self._probe.looked(0, self.limit)
            found = self.take_now()
            if found is not _NOTHING:
                self.forget(wake)
        except BaseException:
            self.put_back(found)
            self.forget(wake)
            raise
        return found

    def put_back(self, item: object) -> None:
        """Have an item taken again, that a reader has taken and can't return; nothing, if it has taken nothing."""
        if item is _NOTHING:
            return
        self._items.appendleft(item)
        if self._max_bytes is not None and type(item) is not Mark:
            with self._lock:
                self._bytes += size_of(item)
        self._wake()

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
        if found is _NOTHING:
            found = self._take_when_rung(timeout)
        return found

    def _take_when_rung(self, timeout: float | None) -> object:
        started = perf_counter()
        until = None if timeout is None else monotonic() + timeout
        bell, self._bell = self._bell or Bell(), None  # unlike a lock, it hears of every Ctrl-C
        found: object = _NOTHING
        try:
            bell.clear()
            while (found := self.take_or_wake(bell.ring)) is _NOTHING:
                if not bell.wait(None if until is None else max(until - monotonic(), 0.0)):
                    break
                bell.clear()
            self.forget(bell.ring)
            if not self._ended:
                self._bell = bell
            if self._probe is not None:
                self._probe.waited_for_input(perf_counter() - started)
            late = None if found is not _NOTHING else TimeoutError(f"no item came within {timeout} s")
        except BaseException:
            self.put_back(found)
            self.forget(bell.ring)
            raise
        if late is not None:
            raise late
        return found

    def take_failure(self) -> PipelineFailure | None:
        """Return the failure that ended everything, once."""
        failure = self.unread_failure
        self.unread_failure = None
        return failure

    def close(self, why: str) -> None:
        """Discard what waits, and have readers meet that, and the first reason given. From any thread, and again.

        Where the next that a reader would meet is an end, it meets that first: nothing is discarded of that pass.
        """
        with self._lock:
            self.closed_because = self.closed_because or why
            self._ended = True
            self._bell = None
        kept: list[object] = []
        with suppress(IndexError):
            first = self._items.popleft()
            if first is _END or first is _END_OF_PASS:
                kept.append(first)
        self.limit = 0  # the loop puts in nothing more
        self._items.clear()
        self._items.extendleft([_CLOSED, *kept])
        self._wake()

    def close_unended(self, why: str) -> None:
        """Close it, unless it has ended or was closed."""
        if not self._ended:
            self.close(why)

    # -- both

    def _account(self, item: object) -> None:
        """Do what taking an item takes beyond the item itself."""
        if item is _END or item is _CLOSED:
            self._items.appendleft(item)  # it stays
            self._bell = None
            self.is_over = True
            self._wake()
            return
        size = 0 if self._max_bytes is None or item is _END_OF_PASS else size_of(item)
        freed = 0
        try:
            if size:
                with self._lock:
                    self._bytes -= size
                    freed = size
            if self._probe is not None and item is not _END_OF_PASS:
                self._probe.looked(len(self._items) + 1, self.limit)
                self._probe.done(1, 0, 0.0)
            if self._is_fresh or item is _END_OF_PASS:
                self._note_pass(item)
            if self._wants_room and len(self._items) <= self._low():
                self._wants_room = False
                self._call_loop(self._putters.wake_one)
        except BaseException:
            self._wants_room = self._wants_reader = (
                True  # the loop may not have been woken; it is when this is taken again
            )
            if freed:
                with self._lock:
                    self._bytes += freed
            raise

    def _note_pass(self, item: object) -> None:
        """Count a pass of which the first item or the end is taken."""
        self._passes_begun += self._is_fresh
        self._is_fresh = item is _END_OF_PASS
        self._accounts = self._is_fresh or self._accounts_always
        if self._wants_reader:
            self._wants_reader = False
            self._call_loop(self._sources.wake_all)

    def _call_loop(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(function)

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


def _no_failure() -> None:
    return None
