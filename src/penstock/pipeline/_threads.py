"""Threads for a stage's plain functions, and calls in them whose values reach the loop while the call still runs.

The problem: `loop.run_in_executor` returns the result of a whole call. A chunk of items whose first is ready in a
millisecond and whose last takes ten seconds would hold back all of them; and a cancelled `await` of it leaves the
function running, while the stage believes that it has ended.

The solution: a `ThreadCall` appends its values to a list that the loop reads. Normally the loop is woken once, at the
end of the call: that is the cheapest, and a chunk takes about a millisecond. A timer marks a call that runs longer as
slow: the stage takes back the items that the call has not begun (`Applied.take_rest`), and from then on the function
notifies the loop of every value. A stage that is cancelled sets its `StopFlag`, on which calls return after the current
item, and waits for the call's end: Python can't interrupt a function in a thread, and a cancelled stage must not leave
one running.

Two objects are the functions of such calls: `Applied` applies a stage's functions to a chunk of items, and `Pulled`
pulls values out of the iterators of items.

The threads are the pipeline's own and not those of `concurrent.futures`, because Python joins the latter when it ends:
a function that never returns would keep the program from ending. `ExecutorThreads` uses the threads of an executor that
the user made.

Guarantees:
  - A call that was started runs once, and the loop learns of its end once, whatever it raised.
  - `wait` returns when the call has ended, when it turns out slow, and, if it is slow, when there are new values. So a
    slow item never holds back the values before it. A quick call wakes the loop once.
  - A task that is cancelled while it waits for a call sets the call's stop flag, and is cancelled when the call has
    ended: nothing of a stage runs after the stage.
  - The threads are daemons: a function that never returns doesn't keep Python from ending.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from operator import length_hint
from queue import SimpleQueue
from time import perf_counter
from types import GeneratorType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock._caught import Caught
from penstock._only_next import only_next
from penstock._os import DaemonThread
from penstock.errors import WorkerError
from penstock.pipeline._items import SKIP, FatalError, without_own_frames
from penstock.pipeline._tuning import SLOW_CALL_SECONDS

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

PutValues = Callable[[list[object]], Awaitable[None]]


class StopFlag:
    """The request to a stage to stop: calls in threads return after the current item, and its tasks are cancelled."""

    __slots__ = ("is_set",)

    def __init__(self) -> None:
        self.is_set = False

    def cancels(self, error: BaseException | None) -> bool:
        """Return whether an exception is the cancellation of a task of the stage.

        User code may raise a CancelledError, too, or cancel its own task; that is an error like any other.
        """
        return self.is_set and isinstance(error, asyncio.CancelledError)


class Notifications:
    """Runs functions on the loop for threads. Those that come together wake the loop once, since a wake is a write."""

    __slots__ = ("_functions", "_is_scheduled", "_loop")

    def __init__(self) -> None:
        self._functions: deque[Callable[[], object]] = deque()
        self._is_scheduled = False
        self._loop = asyncio.get_running_loop()

    def send(self, function: Callable[[], object]) -> None:
        """Have a function run on the loop soon. Thread-safe."""
        self._functions.append(function)  # before the check: a run that has begun resets the flag first, and takes it
        if not self._is_scheduled:
            self._is_scheduled = True
            with suppress(RuntimeError):  # the loop was closed while a function was stuck
                self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        while self._functions:
            self._functions.popleft()()


class ThreadCall:
    """One call of a function in a thread; `function(call)` appends to the call's values.

    Attributes:
        values: the values that the function made and the loop has not taken.
        stop: whether the function should return early.
        slow: whether the call takes long, so that the function should call `notify` after each value. The stage may
            reset it; then the next `wait` measures again.
        done: whether the call has ended.
        error: the exception that ended the call; None if it returned.
    """

    __slots__ = ("_has_begun", "_notifications", "_waiter", "done", "error", "function", "slow", "stop", "values")

    def __init__(
        self, function: Callable[["ThreadCall"], None], stop: StopFlag, notifications: "Notifications", *, slow: bool
    ) -> None:
        self.function: Callable[[ThreadCall], None] | None = function
        self.stop = stop
        self.values: list[object] = []
        self.done = False
        self.error: BaseException | None = None
        self.slow = slow
        self._has_begun = False
        self._notifications = notifications
        self._waiter: asyncio.Future[None] | None = None

    # -- in the thread

    def run(self) -> None:
        """Run the function, and notify the loop of its end."""
        assert self.function is not None
        self._has_begun = True
        with Caught() as caught:
            self.function(self)
        self.function = None  # which has items
        if caught.error is not None:
            self.error = caught.taken()
        self._notifications.send(self._finish)

    def notify(self) -> None:
        """Notify the loop of a new value; needed only if the call is slow."""
        self._notifications.send(self._wake)

    def fail(self, error: BaseException) -> None:
        """End a call that never began with an error; one that has begun ends by itself."""
        if not self._has_begun:
            self.error = error
            self._notifications.send(self._finish)

    # -- on the loop

    async def forward_values(self, put: PutValues) -> None:
        """Put out the values as they are made, until the call has ended; if cancelled, stop it and wait for its end."""
        done = False
        try:
            while not done:
                await self.wait()
                done = self.done  # read before `put`, which may take a while: then these values are all
                await put(self.take_values())
        finally:
            if not self.done:
                self.stop.is_set = True
                await self.wait(until_done=True)

    async def wait(self, *, until_done: bool = False) -> None:
        """Wait until the call turns out slow, has new values, or has ended; with `until_done`, until it has ended."""
        cancelled: asyncio.CancelledError | None = None
        while not self.done:
            if self.slow and self.values and not until_done:
                break  # their notification came while nobody waited
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            was_slow = self.slow
            timer = None if until_done or was_slow else loop.call_later(SLOW_CALL_SECONDS, self._become_slow)
            try:
                await self._waiter
            except asyncio.CancelledError as error:
                self.stop.is_set = True
                cancelled = error
                until_done = True
            finally:
                if timer is not None:
                    timer.cancel()
            if (self.values or self.slow > was_slow) and cancelled is None and not until_done:
                break
        self._waiter = None
        if cancelled is not None:
            try:
                raise cancelled
            finally:
                del cancelled  # its traceback refers to this frame, which would be a reference cycle

    def take_values(self) -> list[object]:
        """Return the new values; each is returned once."""
        if self.done:
            values, self.values = self.values, []
            return values
        count = len(self.values)  # the thread may append meanwhile
        values = self.values[:count]
        del self.values[:count]
        return values

    def _become_slow(self) -> None:
        self.slow = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _finish(self) -> None:
        self.done = True
        self._wake()


class AnyThreads(Protocol):
    """Threads that run calls: the pipeline's own, or those of the user's executor."""

    def start(self, function: Callable[[ThreadCall], None], stop: StopFlag, *, slow: bool = False) -> ThreadCall:
        """Return a call that starts as soon as a thread is free, as `Threads` does."""
        ...


class ExecutorThreads:
    """The threads of a user's executor, which the user shuts down.

    An error of the executor itself is the `FatalError` of the call.
    """

    def __init__(self, executor: "Executor") -> None:
        self._executor = executor
        self._notifications = Notifications()

    def start(self, function: Callable[[ThreadCall], None], stop: StopFlag, *, slow: bool = False) -> ThreadCall:
        """Return a call that starts as soon as a thread of the executor is free."""
        call = ThreadCall(function, stop, self._notifications, slow=slow)

        def settle(submitted: "Future[None]") -> None:
            if submitted.cancelled():
                call.fail(_fatal(RuntimeError("the executor cancelled a call that had been sent to it")))
            elif (error := submitted.exception()) is not None:  # such as that of an initializer
                call.fail(_fatal(error))

        with Caught() as submitting:
            self._executor.submit(call.run).add_done_callback(settle)
        if submitting.error is not None:
            call.fail(_fatal(submitting.taken()))
        return call


def _fatal(error: BaseException) -> FatalError:
    fatal = FatalError()
    fatal.__cause__ = error
    return fatal


class Threads:
    """Owns up to `count` threads, each started when it is first needed. All methods are called on the loop."""

    def __init__(self, count: int, name: str, initializer: Callable[[], object] | None = None) -> None:
        """Start with no thread.

        Args:
            count: the largest number of threads.
            name: the prefix of the threads' names.
            initializer: called in each thread as it starts; its exception is the `FatalError` of all calls there.
        """
        self._initializer = initializer
        self._count = count
        self._name = name
        self._calls: SimpleQueue[ThreadCall | None] = SimpleQueue()
        self._threads: list[DaemonThread] = []
        self._running: list[ThreadCall] = []  # as long as another thread may be needed for one more call
        self._notifications = Notifications()

    def start(self, function: Callable[[ThreadCall], None], stop: StopFlag, *, slow: bool = False) -> ThreadCall:
        """Return a call that starts as soon as a thread is free.

        Args:
            function: called with the call; it appends to the call's `values`, calls `notify()` after each if the call
                is `slow`, and returns early if `stop` is set.
            stop: the stop flag of the stage.
            slow: whether the call is slow from its start: no timer then has to find out. Default False.

        Raises:
            WorkerError: a thread can't be started.
        """
        call = ThreadCall(function, stop, self._notifications, slow=slow)
        if len(self._threads) < self._count:
            self._running = [call, *(other for other in self._running if not other.done)]
            if len(self._threads) < len(self._running):
                self._start_thread()
        else:
            self._running = []
        self._calls.put(call)
        return call

    def _start_thread(self) -> None:
        name = f"{self._name}-{len(self._threads)}"
        with Caught() as caught:
            self._threads.append(DaemonThread(partial(_serve, self._calls, self._initializer), name))
        if caught.error is not None:
            raise WorkerError(
                f"thread {name} can't be started: {type(caught.error).__name__}: {caught.error}. Raise the limits of "
                "open files and of processes (ulimit -n, ulimit -u), or lower num_threads"
            ) from caught.error

    def close(self) -> None:
        """End the threads after all started calls; doesn't wait for that."""
        for _ in self._threads:
            self._calls.put(None)

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in one of the threads."""
        return any(thread.is_current for thread in self._threads)

    def join(self, timeout: float | None) -> None:
        """Wait until the threads have ended, for each at most `timeout` seconds."""
        for thread in self._threads:
            thread.wait(timeout)


def _serve(calls: "SimpleQueue[ThreadCall | None]", initializer: Callable[[], object] | None) -> None:
    with Caught() as initializing:
        if initializer is not None:
            initializer()
    while (call := calls.get()) is not None:
        if initializing.error is None:
            call.run()
        else:
            call.fail(_fatal(initializing.error))
        del call  # an idle thread must not keep the items of its last call alive
    initializing.error = None  # its frames refer to this one, a reference cycle


ItemFunction = Callable[[object], object]


class Failed(NamedTuple):
    """An item that a function failed on.

    Attributes:
        item: the function's argument.
        error: the exception that it raised.
        function: the number of the function, among those applied in one call, from 0. Default 0.
        is_fatal: whether the failure ends the pipeline whatever its limit is, since it is not the item's. Default
            False.
    """

    item: object
    error: BaseException
    function: int = 0
    is_fatal: bool = False


class Applied:
    """A call that applies functions to items, one item after the other, until one fails, it is slow, or stopped.

    The loop may take the items that were not begun, also while the call runs. Both sides take items from one iterator
    of a list, whose steps are atomic, so each item is either tried or taken.

    Attributes:
        tried: how many of the items were tried, including the one that failed.
        failed: the item that failed, which was the last one tried; None if none did. The stage resets it, since the
            frames of its exception refer to this object.
        seconds: how long the call took.
    """

    __slots__ = ("_functions", "_left", "_skipped", "failed", "seconds", "tried")

    def __init__(self, functions: tuple[ItemFunction, ...], items: list[object]) -> None:
        self._functions = functions
        self._left = iter(items)
        self._skipped = [0] * len(functions)  # how many items each function skipped, if another one follows
        self.tried = 0
        self.failed: Failed | None = None
        self.seconds = 0.0

    def __call__(self, call: ThreadCall) -> None:
        """Apply the functions; append the results of the last one to the call's values, except SKIP."""
        if call.stop.is_set:  # while the call waited for a thread
            return
        started = perf_counter()
        if len(self._functions) == 1:
            self._apply_one(call, self._functions[0])
        else:
            self._apply_all(call)
        self.seconds = perf_counter() - started

    def tried_by(self, function: int) -> int:
        """Return how many items reached a function, after the call: those that none before it skipped or failed on."""
        has_failed = self.failed is not None and self.failed.function < function
        return self.tried - sum(self._skipped[:function]) - has_failed

    def take_rest(self) -> list[object]:
        """Return the items that were not begun; the call then won't begin them."""
        return list(self._left)

    def _apply_one(self, call: ThreadCall, op: ItemFunction) -> None:
        append, stop = call.values.append, call.stop
        item: object = None
        with Caught() as caught:
            for item in self._left:
                self.tried += 1
                value = op(item)
                if value is not SKIP:
                    append(value)
                if call.slow or stop.is_set:
                    break
        del append  # the frames of an exception refer to this one, which would keep the results
        if caught.error is not None:
            self.failed = Failed(item, without_own_frames(caught.taken()))

    def _apply_all(self, call: ThreadCall) -> None:
        append, stop, functions = call.values.append, call.stop, self._functions
        value: object = None  # the argument of the next function, and so that of one that raises
        number = 0
        with Caught() as caught:
            for item in self._left:
                self.tried += 1
                value, number = item, 0
                for op in functions:
                    value = op(value)
                    if value is SKIP:
                        self._skipped[number] += 1
                        break
                    number += 1
                else:
                    append(value)
                if call.slow or stop.is_set:
                    break
        del append  # as in `_apply_one`
        if caught.error is not None:
            self.failed = Failed(value, without_own_frames(caught.taken()), number)


class Pulled:
    """A call that pulls values out of the iterators of items, one after the other.

    It returns when it has pulled as many values as there is room for, when an iterator fails, and if it is slow, at the
    end of an iterator. Called again, it continues. The loop may take the items that were not begun, as in `Applied`.

    Attributes:
        room: how many values the next call may pull.
        tried: of how many items iterators were opened, including one that failed.
        count: how many values the last call pulled.
        failed: the item that failed in the last call; None if none did. The stage resets it, as that of `Applied`.
        seconds: how long the last call took.
    """

    __slots__ = ("_closes_items", "_item", "_iterator", "_left", "_open", "count", "failed", "room", "seconds", "tried")

    def __init__(
        self, open_item: Callable[[object], Iterator[object]], items: list[object], *, closes_items: bool = True
    ) -> None:
        """Begin with no iterator.

        Args:
            open_item: returns an item's iterator, which is closed when it has ended or failed.
            items: the items.
            closes_items: whether an item that is a generator, and so its own iterator, is closed. Other items that are
                iterators are not. Default True.
        """
        self._open = open_item
        self._left = iter(items)
        self._closes_items = closes_items
        self._item: object = None
        self._iterator: Iterator[object] | None = None
        self.room = 0
        self.tried = 0
        self.count = 0
        self.failed: Failed | None = None
        self.seconds = 0.0

    @property
    def is_open(self) -> bool:
        """Whether an iterator was opened, and not closed."""
        return self._iterator is not None

    @property
    def has_more(self) -> bool:
        """Whether another call may pull a value."""
        return self.is_open or length_hint(self._left) > 0

    def take_rest(self) -> list[object]:
        """Return the items that were not begun; the call then won't begin them."""
        return list(self._left)

    def __call__(self, call: ThreadCall) -> None:
        """Pull the values, and append them to the call's values, except SKIP."""
        started = perf_counter()
        self.count, self.failed = 0, None
        with Caught() as caught:
            while (iterator := self._opened(call)) is not None and self._has_ended(iterator, call):
                self.close()
                if call.slow:
                    break
        if caught.error is not None:
            self.failed = Failed(self._item, without_own_frames(caught.taken()))
            self.close()
        self.seconds = perf_counter() - started

    def close(self, _: object = None) -> None:
        """Close the iterator; an exception that its `close` raises is ignored."""
        iterator, self._iterator = self._iterator, None
        kind: type = type(iterator)
        if iterator is not self._item or (self._closes_items and kind is GeneratorType):
            with Caught():
                close = getattr(iterator, "close", None)
                if callable(close):
                    close()

    def _opened(self, call: ThreadCall) -> Iterator[object] | None:
        """Return the iterator, after opening the next item's if there is none; None if there is none or on a stop."""
        if self._iterator is None and not call.stop.is_set:
            for item in self._left:
                self.tried += 1
                self._item = item
                self._iterator = self._open(item)
                break
        return None if call.stop.is_set else self._iterator

    def _has_ended(self, iterator: Iterator[object], call: ThreadCall) -> bool:
        """Return whether the iterator has ended, after pulling its values as long as there is room for them."""
        append, stop = call.values.append, call.stop
        for value in islice(only_next(iterator), self.room - self.count):
            self.count += 1
            if value is not SKIP:
                append(value)
                if call.slow:
                    call.notify()
            if stop.is_set:
                return False
        return self.count < self.room
