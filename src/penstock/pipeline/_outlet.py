"""The outlet: the last buffer, into which the loop puts finished items, and from which the foreground takes them.

The problem: the reader is in another thread than the loop, or in another loop, and a training loop reads an item per
step. Asking the loop for each item would cost two switches of thread, some ten microseconds. A queue with a lock would
make the reader wait for the loop's thread whenever that thread lost the GIL while it held the lock. And a reader must
be able to wait with a timeout, to be interrupted by Ctrl-C, or to wait in an event loop of its own, without losing an
item.

The solution: a `deque`, whose appends and pops are atomic. While there are items, a reader takes one with a single call
into C: it asks no other thread and takes no lock. Only a reader that finds nothing registers a waker under a lock; and
the loop is called only if it waits for room; if items are cheap, only once three quarters of the room are free.

Both sides sleep without missing each other's change because each announces first that it will wait, and then looks
again. The side that acts second sees the other's change: either the reader sees the item, or the loop sees the
registered waker.

Signal handlers decide the shape of the code. Python calls a handler in the main thread when a function written in
Python begins, when a loop jumps back, and after a call of a function written in C; it calls none when a Python function
returns. An exception raised there (KeyboardInterrupt, or a timeout of the user's) would lose an item that was removed
from the deque, but not yet returned. So `take_now` removes the item by one step of a `for` loop over an iterator
written in C, after which no handler is called until the next call. From there to the `return` to the user's code,
either nothing is called, or the call is inside a `try` whose `except` puts the item back. All code that passes an item
on to the user has to follow this rule, `_reading` and `Pipeline.get_item` included.

Rejected: `queue.SimpleQueue`, which has no limit, no end and no way to wait in another loop, and whose `get` is a call
of a C function, after which a handler's exception loses the item; and holding signals back during each read, since
`HeldInterrupts` takes about a hundred times as long as removing an item.

Guarantees:
  - Items, ends of passes and the final end are taken in the order in which they were put, each once; the final end
    stays. The failure that came with it is taken once.
  - At most `limit` items wait here, and at most `max_bytes`, except a single item that is larger by itself.
  - `close` discards the waiting items, wakes the readers, and stays in effect: a reader never takes a closed pass for a
    complete one. If the next thing to read is the end of a pass, the reader still gets it.
  - A `take` that times out, or from which a signal handler's exception is raised, takes nothing.
    Only a second such exception, raised while this code handles the first, may lose an item.
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
from penstock.pipeline._channels import Waiters
from penstock.pipeline._items import size_of
from penstock.pipeline._statistics import Probe
from penstock.pipeline._tuning import SLOW_ITEM_SECONDS


class Mark(Enum):
    """The values besides items that `take` returns."""

    END_OF_PASS = "the end of a pass"
    END = "the end of everything"
    CLOSED = "the pass was closed before its end"
    NOTHING = "nothing yet"


_END: Final = Mark.END
_END_OF_PASS: Final = Mark.END_OF_PASS
_CLOSED: Final = Mark.CLOSED
_NOTHING: Final = Mark.NOTHING
_REMOVE: Final[Callable[[deque[object]], object]] = deque[object].popleft


class Outlet:
    """Owns the finished items.

    Attributes:
        limit: how many items and marks may wait.
        slowest_seconds: the seconds per item of the slowest stage.
        failure_at_end: returns the failure that the whole pass ends with if no stage has failed; None if there is none.
        closed_because: the reason of the first `close`, as the text of the reader's error; empty until then.
        is_over: whether a reader has read the final end.
        unread_failure: the failure that ended everything, until a reader raises it.
    """

    def __init__(
        self, buffer_size: int, max_bytes: int | None, probe: Probe | None, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.limit: int = buffer_size
        self.slowest_seconds: float = 0.0
        self.failure_at_end: Callable[[], PipelineFailure | None] = _no_failure
        self.closed_because: str = ""
        self.is_over: bool = False
        self.unread_failure: PipelineFailure | None = None
        self._max_bytes = max_bytes
        self._probe = probe
        self._loop = loop
        self._items: deque[object] = deque()
        self._removals: Iterator[object] = map(_REMOVE, repeat(self._items))  # each step removes the first item
        self._accounts_always = probe is not None or max_bytes is not None
        self._accounts = True  # whether taking the next item needs `_account`
        self._is_at_start = True  # nothing of the pass was taken
        self._passes_begun = 0  # passes of which something was taken
        self._source_waits = False  # whether the source waits for a reader to begin a pass
        self._sources = Waiters()  # used on the loop
        self._loop_waits = False  # whether the loop waits for room
        self._putters = Waiters()  # used on the loop
        self._woken = 0  # putters that were woken for room, and have not looked yet
        self._lock = threading.Lock()  # protects the four attributes below
        self._wakers: list[Callable[[], None]] = []  # wake readers that wait for an item
        self._bell: Bell | None = None  # an unused one, kept for the next reader that waits
        self._ended = False
        self._bytes = 0

    # -- the loop's side

    def offer(self, item: object) -> bool:
        """Return False if there is no room for an item; otherwise put it, and return True."""
        if self._max_bytes is not None:
            return self._put_some([item], 0) == 1
        if len(self._items) >= self.limit:
            return False
        self._items.append(item)
        if self._wakers:
            self._wake()
        return True

    async def put(self, item: object) -> None:
        """Put an item as soon as there is room."""
        await self.put_all([item])

    async def put_all(self, items: list[object]) -> None:
        """Put items, each as soon as there is room."""
        start = self._put_some(items, 0)
        while start < len(items):
            await self._wait_until_low()
            start = self._put_some(items, start)
        if self._putters:
            self._wake_putters()

    async def wait_for_room(self) -> int:
        """Return for how many items there is room, after waiting until there is any."""
        while not self._has_room():
            await self._wait_until_low()
        if self._putters:
            self._putters.wake_one()  # another putter may need less room than this one
        return 1 if self._max_bytes is not None else max(self.limit - len(self._items), 1)

    async def end_pass(self) -> None:
        """Mark the end of a pass as soon as there is room, so that empty passes can't accumulate."""
        await self.wait_for_room()
        self._items.append(_END_OF_PASS)
        self._wake()

    async def wait_for_reader(self, passes: int) -> None:
        """Wait until readers have begun so many passes: taken their first item, or their end."""
        while self._passes_begun < passes:
            self._source_waits = True
            if self._passes_begun >= passes:  # taken since the check above
                break
            await self._sources.wait()

    def end(self, failure: PipelineFailure | None) -> None:
        """Mark the final end, with the failure that caused it, if any; later calls have no effect. Thread-safe."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self.unread_failure = self.failure_at_end() if failure is None else failure
            self.failure_at_end = _no_failure  # it refers to the failure, whose frames may refer to the outlet
            self._bell = None
        self._items.append(_END)
        self._wake()

    # -- the foreground's side

    def take_now(self) -> object:
        """Return the next item or mark; `Mark.NOTHING` if there is none."""
        item: object = _NOTHING
        try:
            for removed in self._removals:  # no handler is called from here to the return, or to the `try` below
                item = removed
                break
        except IndexError:
            return _NOTHING
        if self._accounts or self._loop_waits or item is _END or item is _END_OF_PASS or item is _CLOSED:
            try:
                self._account(item)
            except BaseException:
                self._items.appendleft(item)
                self._wake()
                raise
        return item

    def take_or_wake(self, wake: Callable[[], None]) -> object:
        """Return the next item or mark; if there is none, return `Mark.NOTHING`, and call `wake` when one arrives."""
        found = self.take_now()
        if found is not _NOTHING:
            return found
        with self._lock:
            self._wakers.append(wake)
        try:
            if self._probe is not None:
                self._probe.looked(0, self.limit)
            found = self.take_now()  # again, for an item that was put before the waker was registered
            if found is not _NOTHING:
                self.forget(wake)
        except BaseException:
            self.put_back(found)
            self.forget(wake)
            raise
        return found

    def put_back(self, item: object) -> None:
        """Put back an item or mark that a reader took and can't return; does nothing for `Mark.NOTHING`."""
        if item is _NOTHING:
            return
        self._items.appendleft(item)
        if self._max_bytes is not None and type(item) is not Mark:
            with self._lock:
                self._bytes += size_of(item)
        self._wake()

    def forget(self, wake: Callable[[], None]) -> None:
        """Remove a waker, if it is still registered."""
        with self._lock, suppress(ValueError):
            self._wakers.remove(wake)

    def take(self, timeout: float | None) -> object:
        """Return the next item or mark, after waiting for it.

        Raises:
            TimeoutError: there was none within `timeout` seconds.
        """
        found = self.take_now()
        if found is _NOTHING:
            found = self._take_when_rung(timeout)
        return found

    def _take_when_rung(self, timeout: float | None) -> object:
        started = perf_counter()
        until = None if timeout is None else monotonic() + timeout
        bell, self._bell = self._bell or Bell(), None  # a bell, since Ctrl-C interrupts it at once, unlike a lock
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
            try:
                raise late
            finally:
                del late  # its traceback refers to this frame, which would be a reference cycle
        return found

    def take_failure(self) -> PipelineFailure | None:
        """Return the failure that ended everything, at the first call; None afterwards."""
        failure = self.unread_failure
        self.unread_failure = None
        return failure

    def close(self, reason: str) -> None:
        """Discard the waiting items; readers get `Mark.CLOSED` from now on. Thread-safe; may be called again.

        If the next thing to read is an end, readers get it first, since nothing of its pass is discarded.

        Args:
            reason: the text of the readers' error; a later reason has no effect.
        """
        with self._lock:
            self.closed_because = self.closed_because or reason
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

    def close_unended(self, reason: str) -> None:
        """Close the outlet, unless it has ended or was closed."""
        if not self._ended:
            self.close(reason)

    # -- both sides

    def _account(self, item: object) -> None:
        """Update the bytes, the statistics and the passes for an item that is being taken, and wake the loop."""
        if item is _END or item is _CLOSED:
            self._items.appendleft(item)  # it stays for later reads
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
            if self._is_at_start or item is _END_OF_PASS:
                self._note_pass(item)
            if self._loop_waits and len(self._items) <= self._low_water():
                self._loop_waits = False
                self._call_loop(self._wake_putters)
        except BaseException:
            # The loop may not have been woken. Taking the item again, which is put back, wakes it.
            self._loop_waits = self._source_waits = True
            if freed:
                with self._lock:
                    self._bytes += freed
            raise

    def _note_pass(self, item: object) -> None:
        """Count a pass when its first item or its end is taken."""
        self._passes_begun += self._is_at_start
        self._is_at_start = item is _END_OF_PASS
        self._accounts = self._is_at_start or self._accounts_always
        if self._source_waits:
            self._source_waits = False
            self._call_loop(self._sources.wake_all)

    def _call_loop(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)

    def _wake(self) -> None:
        with self._lock:
            wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    def _put_some(self, items: list[object], start: int) -> int:
        """Return the index of the first item left, after putting those from `start` on for which there is room."""
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
        """Return whether there is room for an item; if so, count its bytes."""
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

    async def _wait_until_low(self) -> None:
        self._loop_waits = True
        if len(self._items) <= self._low_water() and (self._max_bytes is None or not self._items):
            self._loop_waits = False  # items were taken since the caller looked
            return
        try:
            await self._putters.wait()
        finally:
            self._woken = max(self._woken - 1, 0)

    def _wake_putters(self) -> None:
        """Wake a putter for each item for which there is room; one at least, unless a woken one has yet to look.

        The last of those that were woken wakes the next, or finds no room, and waits for the reader.
        """
        room = 0 if self._max_bytes is not None else self.limit - len(self._items) - self._woken
        for _ in range(min(room if self._woken else max(room, 1), len(self._putters))):
            self._woken += 1
            self._putters.wake_one()

    def _low_water(self) -> int:
        """Return the number of waiting items at which the loop is woken: a quarter of the room for cheap items."""
        is_slow = self.slowest_seconds > SLOW_ITEM_SECONDS
        return self.limit - 1 if is_slow or self._max_bytes is not None else self.limit // 4


def _no_failure() -> None:
    return None
