"""A pool's worker in a thread of its own, with an event loop if any of its methods is async.

Guarantees:
  - The worker is made, started, run and stopped in that thread, so it may hold objects that only their thread may use.
  - Its event loop runs only during calls: tasks that a worker leaves behind continue during its next async call.
  - A call that is cancelled cancels an async method at its next await; a plain one is waited for.
  - After `close` the thread has ended.
"""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, ParamSpec, TypeVar

from penstock._caught import Caught
from penstock._os import DaemonThread
from penstock.concurrency._worker import Worker, for_a_future

Job = ParamSpec("Job")
Result = TypeVar("Result")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class _Call:
    """A function for the thread, and the future for which its caller waits."""

    run: Callable[[], None]
    settled: asyncio.Future[None]


class ThreadPlace(Generic[Job, Result]):
    """Owns the thread. It is a daemon, so that a pool whose loop was dropped never keeps Python from ending.

    Args:
        make_worker: called in the thread.
        name: the thread's.
        interrupt: called in the loop's thread when a call is cancelled, so that a plain one may end early.
        finish: called in the worker's thread at its end.
    """

    def __init__(
        self,
        make_worker: Callable[[], Worker[Job, Result]],
        name: str,
        *,
        interrupt: Callable[[], None] | None = None,
        finish: Callable[[], None] | None = None,
    ) -> None:
        self._make_worker = make_worker
        self._worker: Worker[Job, Result] | None = None
        self._interrupt = interrupt
        self._finish = finish
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._name = name
        self._thread: DaemonThread | None = None
        self._ended: asyncio.Future[None] | None = None
        self._runner = asyncio.Runner()  # makes its loop when it is first used
        self._lock = threading.Lock()  # over the two below
        self._interrupted = False
        self._running: asyncio.Task[object] | None = None  # in the thread's loop

    @property
    def started(self) -> bool:
        """Whether the worker's `start` has succeeded."""
        return self._worker is not None

    async def start(self) -> None:
        """Start the thread; make the worker there and start it."""
        self._ended = asyncio.get_running_loop().create_future()
        self._thread = DaemonThread(self._serve, self._name)
        await self._call(self._start)

    async def run(self, *args: Job.args, **kwargs: Job.kwargs) -> Result:
        """Return the result of a job that the worker does."""
        worker = self._worker
        assert worker is not None
        return await self._call(lambda: self._value(worker.run(*args, **kwargs)))

    async def stop(self) -> None:
        """Stop the worker."""
        worker = self._worker
        assert worker is not None
        await self._call(lambda: self._value(worker.stop()))

    async def close(self) -> None:
        """End the thread."""
        if self._ended is None:
            return
        self._calls.put(None)
        try:
            await self._wait(self._ended)
        finally:
            if self._thread is not None:
                self._thread.wait(None)  # it has nothing left to do

    # -- in the loop's thread

    async def _call(self, function: Callable[[], Value]) -> Value:
        values: list[Value] = []
        self._interrupted = False  # the thread is idle
        settled = asyncio.get_running_loop().create_future()
        self._calls.put(_Call(lambda: values.append(function()), settled))
        await self._wait(settled)
        settled.result()
        return values.pop()

    async def _wait(self, settled: asyncio.Future[None]) -> None:
        """Wait, also through cancellations: these go to the thread, and are raised once its call has ended."""
        cancelled: asyncio.CancelledError | None = None
        while not settled.done():
            try:
                await asyncio.wait([settled])
            except asyncio.CancelledError as error:
                cancelled = error
                self._cancel_call()
        if cancelled is not None:
            settled.exception()  # retrieved, so that asyncio doesn't report it
            raise cancelled

    def _cancel_call(self) -> None:
        with self._lock:
            self._interrupted = True
            if self._running is not None:
                self._running.get_loop().call_soon_threadsafe(self._running.cancel)
        if self._interrupt is not None:
            self._interrupt()

    # -- in the worker's thread

    def _serve(self) -> None:
        assert self._ended is not None
        while (call := self._calls.get()) is not None:
            with Caught() as caught:
                call.run()
            _tell(call.settled, caught.error)
            del call, caught  # an idle worker keeps nothing of its last job
        try:
            with Caught():  # the worker left its loop in a state that can't be tidied; no caller waits for the error
                self._runner.close()
            if self._finish is not None:
                self._finish()
        finally:
            _tell(self._ended, None)

    def _start(self) -> None:
        worker = self._make_worker()
        self._value(worker.start())
        self._worker = worker

    def _value(self, returned: Awaitable[Value] | Value) -> Value:
        return self._runner.run(self._await(returned)) if inspect.isawaitable(returned) else returned

    async def _await(self, awaitable: Awaitable[Value]) -> Value:
        with self._lock:
            self._running = asyncio.current_task()
            if self._interrupted and self._running is not None:
                self._running.cancel()
        try:
            return await awaitable
        finally:
            with self._lock:
                self._running = None


def _tell(settled: asyncio.Future[None], error: BaseException | None) -> None:
    with suppress(RuntimeError):  # the loop was closed while the pool's scope was open
        settled.get_loop().call_soon_threadsafe(_settle, settled, error)


def _settle(settled: asyncio.Future[None], error: BaseException | None) -> None:
    if error is None:
        settled.set_result(None)
    else:
        settled.set_exception(for_a_future(error))
