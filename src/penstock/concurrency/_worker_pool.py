"""A pool of stateful workers: a job goes to a free worker, and its result comes through a future.

Guarantees:
  - Inside the pool's scope each worker does one job at a time, and `assign` returns when a free worker has taken the
    job. Callers that wait for a worker get one in the order in which they called.
  - Cancelling `assign` means that the job was not taken and never will be.
  - Leaving the scope waits for the jobs that run, then stops every worker and waits for it. Outside of the scope
    nothing runs, and `assign` is a ClosedError.
  - The first exception that a worker does not catch (in its start, a job or its stop) puts the pool into *die mode*:
    every later `assign`, every waiting one, and leaving the scope raise that same exception. Jobs that run are
    finished, idle workers stop. It is printed nowhere, even if the job's future is never awaited.
  - Cancelling the scope cancels the jobs that run and their futures. Async methods are cancelled at their next await; a
    plain method in a thread is waited for; a process is killed, without its worker's stop. Workers that were started
    in the loop's thread or in one of their own are stopped.
  - The death of a process, busy or idle, counts as such an exception: a WorkerError with its exit code.
  - A user's exception arrives as itself, with a note of the worker and the job.

All methods must be called from the event loop's thread, by any of its tasks; the scope is entered and left by one.
"""

import asyncio
import traceback
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Literal, ParamSpec, Self, TypeVar, assert_never, overload

from penstock._caught import Caught
from penstock._processes import GlobalSeeds, StartMethod, draw_seeds
from penstock.concurrency._process_place import ProcessPlace, pickled_factory
from penstock.concurrency._task_place import TaskPlace
from penstock.concurrency._thread_place import ThreadPlace
from penstock.concurrency._worker import AsyncWorker, Place, Worker, is_cancelled
from penstock.errors import ClosedError, UsageError, WorkerError

Job = ParamSpec("Job")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Order(Generic[Job, Result]):
    """A job that a worker has taken, its number, and the future of its result."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    number: int
    result: asyncio.Future[Result]


@dataclass(slots=True, eq=False)
class _Seat(Generic[Job, Result]):
    """A worker as the pool sees it. Its inbox is pending while the worker is idle; None dismisses it."""

    number: int
    inbox: asyncio.Future[_Order[Job, Result] | None] | None = None
    death: BaseException | None = None  # of its process

    @property
    def idle(self) -> bool:
        """Whether the worker would take a job."""
        return self.inbox is not None and not self.inbox.done()


class WorkerPool(Generic[Job, Result]):
    """Stateful workers that take jobs as they become free; used as `async with`, once.

    Entering starts the workers without waiting for them: the first `assign` waits until one has started.

    Args:
        make_worker: called once for each worker, in its place, without arguments: often the worker's class.
        num_workers: how many workers; at least 1.
        place: where each worker runs. "task": in a task of this event loop, for workers that await. "thread": in a
            thread of its own, with an event loop of its own if its methods are async. "process": in a process of its
            own; then `make_worker`, jobs, results and exceptions are pickled, and the process ends with its parent. It
            seeds its global generators of `random`, NumPy and torch, from numbers that entering the pool draws from
            this process's, and from the worker's number.
        start_method: how processes are started: "spawn" (the default) or "forkserver". Both import the main module.

    Raises:
        UsageError: fewer than one worker, an unknown place or start method, or a `make_worker` that can't be pickled
            for a process.

    Example:
        >>> import asyncio
        >>> from penstock.concurrency import WorkerPool
        >>> class Squarer:
        ...     def start(self) -> None:
        ...         pass
        ...
        ...     def run(self, job: int) -> int:
        ...         return job * job
        ...
        ...     def stop(self) -> None:
        ...         pass
        >>> async def main() -> list[int]:
        ...     async with WorkerPool(Squarer, 2, place="thread") as pool:
        ...         futures = [await pool.assign(job) for job in range(5)]
        ...     return [future.result() for future in futures]
        >>> asyncio.run(main())
        [0, 1, 4, 9, 16]
    """

    # Given both at once, mypy takes the coroutine of an async `run` for the result.
    @overload
    def __init__(
        self,
        make_worker: Callable[[], AsyncWorker[Job, Result]],
        num_workers: int,
        *,
        place: Literal["task", "thread", "process"] = ...,
        start_method: StartMethod = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        make_worker: Callable[[], Worker[Job, Result]],
        num_workers: int,
        *,
        place: Literal["task", "thread", "process"] = ...,
        start_method: StartMethod = ...,
    ) -> None: ...
    def __init__(
        self,
        make_worker: Callable[[], Worker[Job, Result]],
        num_workers: int,
        *,
        place: Literal["task", "thread", "process"] = "task",
        start_method: StartMethod = "spawn",
    ) -> None:
        if num_workers < 1:
            raise UsageError(f"num_workers must be at least 1; got num_workers={num_workers}")
        if place not in ("task", "thread", "process"):
            raise UsageError(f"place must be 'task', 'thread' or 'process'; got place={place!r}")
        if start_method not in ("spawn", "forkserver"):
            raise UsageError(f"start_method must be 'spawn' or 'forkserver'; got start_method={start_method!r}")
        self._make_worker = make_worker
        self._factory = pickled_factory(make_worker) if place == "process" else b""
        self._place: Literal["task", "thread", "process"] = place
        self._start_method: StartMethod = start_method
        self._seats: list[_Seat[Job, Result]] = [_Seat(number) for number in range(num_workers)]
        self._tasks = asyncio.TaskGroup()
        self._seeds: GlobalSeeds | None = None  # of processes
        self._entered = False
        self._left = False
        self._closed = False  # no job gets a worker any more
        self._error: BaseException | None = None  # the first one: die mode
        self._traceback: TracebackType | None = None
        self._free: deque[_Seat[Job, Result]] = deque()
        self._waiting: deque[asyncio.Future[_Seat[Job, Result] | None]] = deque()  # None says to look again
        self._num_jobs = 0

    async def __aenter__(self) -> Self:
        """Start the workers.

        Returns:
            The pool.

        Raises:
            UsageError: the pool was entered before.
        """
        if self._entered:
            raise UsageError("a pool is entered once; make another one")
        self._entered = True
        self._seeds = draw_seeds() if self._place == "process" else None
        await self._tasks.__aenter__()
        for seat in self._seats:
            self._tasks.create_task(self._serve(seat))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the jobs that run, or cancel them if the scope is left by a cancellation; stop the workers.

        Raises:
            BaseException: the one that put the pool into die mode, but for a scope that is cancelled, and for one that
                is left by an exception raised from it.
        """
        self._dismiss()
        try:
            if error is None or isinstance(error, Exception):
                await self._tasks.__aexit__(None, None, None)
            else:
                await self._tasks.__aexit__(kind, error, trace)
        finally:
            self._left = True
        if self._error is not None and not _comes_from(error, self._error):
            self._raise()

    async def assign(self, *args: Job.args, **kwargs: Job.kwargs) -> asyncio.Future[Result]:
        """Give a job to a free worker; wait for one while all are busy. Cancelled, the job was not given.

        Args:
            *args: the job: the arguments of the worker's `run`.
            **kwargs: its arguments by name.

        Returns:
            The future of the job's result or exception. Cancelling it drops the result; the job runs on.

        Raises:
            BaseException: the first one that a worker raised, in die mode.
            ClosedError: outside of the pool's scope, also if that is left while this waits.

        Example:
            >>> import asyncio
            >>> from penstock.concurrency import WorkerPool
            >>> class Divider:
            ...     def start(self) -> None: ...
            ...     async def run(self, job: int) -> float:
            ...         return 1 / job
            ...
            ...     def stop(self) -> None: ...
            >>> async def main() -> None:
            ...     async with WorkerPool(Divider, 1) as pool:
            ...         await pool.assign(0)
            ...         await pool.assign(1)
            >>> asyncio.run(main())
            Traceback (most recent call last):
            ZeroDivisionError: division by zero
            In worker 0, job 0 of the pool
        """
        self._check_open()
        seat = self._free.popleft() if self._free else await self._wait_for_worker()
        if seat is None or seat.inbox is None or seat.inbox.done():
            self._check_open()  # the pool was closed, or died, between the worker's call and now
            raise ClosedError("the pool has no worker left")
        order: _Order[Job, Result] = _Order(args, kwargs, self._num_jobs, asyncio.get_running_loop().create_future())
        self._num_jobs += 1
        seat.inbox.set_result(order)
        return order.result

    # -- giving workers to callers

    async def _wait_for_worker(self) -> _Seat[Job, Result] | None:
        turn: asyncio.Future[_Seat[Job, Result] | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting = deque(other for other in self._waiting if other is not turn)
            elif (seat := turn.result()) is not None:
                self._offer(seat)
            raise

    def _offer(self, seat: _Seat[Job, Result]) -> None:
        """Give an idle worker to the caller that has waited longest, or keep it."""
        if not seat.idle:
            return  # dismissed meanwhile
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(seat)
                return
        self._free.append(seat)

    def _dismiss(self) -> None:
        """Accept no more jobs: idle workers stop, busy ones after their job, and waiting callers are refused."""
        self._closed = True
        self._free.clear()
        for seat in self._seats:
            if seat.inbox is not None and seat.idle:
                seat.inbox.set_result(None)
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)

    def _check_open(self) -> None:
        if not self._entered:
            raise ClosedError("the pool is not open; enter it first: async with pool")
        if self._error is not None and not self._left:
            self._raise()
        if self._closed:
            raise ClosedError("the pool's scope was left; nothing can be assigned any more")

    # -- die mode

    def _fail(self, error: BaseException, where: str) -> None:
        if error is self._error:
            return  # every call to a dead process raises the same error
        error.add_note(f"In {where} of the pool")
        if self._error is None:
            self._error, self._traceback = error, error.__traceback__
        self._dismiss()

    def _raise(self) -> None:
        assert self._error is not None
        raise self._error.with_traceback(self._traceback)  # else it would grow with every time that it is raised

    def _accept(self, error: BaseException, where: str) -> BaseException:
        """Return the error to report for a worker's exception; raise it if it is this task's own cancellation."""
        if isinstance(error, GeneratorExit) or (isinstance(error, asyncio.CancelledError) and is_cancelled()):
            raise error
        if isinstance(error, asyncio.CancelledError):
            reported = WorkerError("a worker raised CancelledError, though it was not cancelled")
            reported.__cause__ = error
            error = reported
        self._fail(error, where)
        return error

    # -- a worker's life

    async def _serve(self, seat: _Seat[Job, Result]) -> None:
        place = self._make_place(seat)
        try:
            await self._try(place.start, f"the start of worker {seat.number}")
            while place.started and await self._do_next(place, seat):
                pass
        finally:
            self._dismiss()  # a worker ends only if it has failed, or if all are stopped
            try:
                if place.started:
                    await self._try(place.stop, f"the stop of worker {seat.number}")
            finally:
                await place.close()

    async def _try(self, method: Callable[[], Awaitable[None]], where: str) -> None:
        with Caught() as caught:
            await method()
        if caught.error is None:
            return
        error = self._accept(caught.error, where)
        if self._error is not None and error is not self._error:  # no future reports it
            self._error.add_note(f"Later, in {where}: {''.join(traceback.format_exception_only(error)).rstrip()}")
        self._end_program(error)

    async def _do_next(self, place: Place[Job, Result], seat: _Seat[Job, Result]) -> bool:
        # False means that there will be no other job.
        order = await self._next_order(seat)
        if order is None:
            return False
        with Caught() as caught:
            result = await place.run(*order.args, **order.kwargs)
            if not order.result.done():  # otherwise it was cancelled
                order.result.set_result(result)
        if caught.error is not None:
            try:
                error = self._accept(caught.error, f"worker {seat.number}, job {order.number}")
            except asyncio.CancelledError:
                order.result.cancel()
                raise
            if not order.result.done():
                order.result.set_exception(error)
                order.result.exception()  # the pool reports it, even if the future is never awaited
            self._end_program(error)
        return True

    async def _next_order(self, seat: _Seat[Job, Result]) -> _Order[Job, Result] | None:
        if seat.death is not None:
            self._fail(seat.death, f"worker {seat.number}, which was idle,")
        if self._closed:
            return None
        inbox: asyncio.Future[_Order[Job, Result] | None] = asyncio.get_running_loop().create_future()
        seat.inbox = inbox
        self._offer(seat)
        try:
            return await inbox
        except asyncio.CancelledError:
            if not inbox.cancelled() and (order := inbox.result()) is not None:
                order.result.cancel()  # it was taken, and will not be begun
            raise

    def _end_program(self, error: BaseException) -> None:
        """Raise an exception that ends programs, if it was raised in the loop's own thread."""
        if self._place == "task" and isinstance(error, KeyboardInterrupt | SystemExit):
            raise error

    def _make_place(self, seat: _Seat[Job, Result]) -> Place[Job, Result]:
        name = f"worker {seat.number}"
        match self._place:
            case "task":
                return TaskPlace(self._make_worker)
            case "thread":
                return ThreadPlace(self._make_worker, f"penstock {name}")
            case "process":
                assert self._seeds is not None
                return ProcessPlace(
                    self._factory,
                    name,
                    start_method=self._start_method,
                    seeds=self._seeds.child(seat.number),
                    on_death=lambda error: self._on_death(seat, error),
                )
            case _:
                assert_never(self._place)

    def _on_death(self, seat: _Seat[Job, Result], error: BaseException) -> None:
        seat.death = error
        if seat.idle:  # otherwise the call that runs reports it
            self._fail(error, f"worker {seat.number}, which was idle,")


def _comes_from(error: BaseException | None, origin: BaseException) -> bool:
    """Return whether an exception is the origin, or was raised from it or while it was handled."""
    seen: set[int] = set()
    rest = [error]
    while rest:
        error = rest.pop()
        if error is origin:
            return True
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            rest += [error.__cause__, error.__context__]
    return False
