"""A pool of stateful workers: a job goes to a free worker, and its result comes through a future.

Guarantees:
  - Inside the pool's scope each worker does one job at a time, and `assign` returns when a free worker has taken the
    job. Callers that wait for a worker get one in the order in which they called.
  - Cancelling `assign` means that the job was not taken and never will be.
  - Leaving the scope waits for the jobs that run, then stops every worker and waits for it. Outside of the scope
    nothing runs, and `assign` is a ClosedError.
  - The first exception that a worker does not catch (in its start, a job or its stop) puts the pool into *die mode*:
    every later `assign`, every waiting one, and leaving the scope raise that same exception. Jobs that run are
    finished, idle workers stop. The exception is printed nowhere, even if the job's future is never awaited.
  - Cancelling the scope cancels the jobs that run and their futures. Async methods are cancelled at their next await; a
    plain method in a thread is waited for; a process is killed, without its worker's stop. Workers in tasks and
    threads are stopped if they were started.
  - The death of a process, busy or idle, counts as such an exception: a WorkerError with its exit code.
  - A user's exception arrives as itself, with a note of the worker and the job.

All methods must be called from the event loop's thread, by any of its tasks; one task enters and leaves the scope. An
`assign` from another loop is refused, since it would not wake a worker.
"""

import asyncio
import traceback
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Generic, Literal, ParamSpec, Self, TypeVar, assert_never, overload

from penstock._caught import Caught, add_note
from penstock._processes import GlobalSeeds, StartMethod, draw_seeds
from penstock.concurrency._places import ProcessPlace, TaskPlace, ThreadPlace, pickled_factory
from penstock.concurrency._worker import AsyncWorker, Place, Worker, for_a_future, is_own_cancellation, running_loop
from penstock.errors import ClosedError, UsageError, WorkerError

Job = ParamSpec("Job")
Result = TypeVar("Result")
_ENDING: Final = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)


@dataclass(frozen=True, slots=True)
class _Assignment(Generic[Job, Result]):
    """A job that a worker has taken, its number, and the future of its result."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    number: int
    result: asyncio.Future[Result]


@dataclass(slots=True, eq=False)
class _Member(Generic[Job, Result]):
    """A worker as the pool sees it. Its inbox is pending while the worker is idle; None dismisses it."""

    number: int
    inbox: asyncio.Future[_Assignment[Job, Result] | None] | None = None
    task: asyncio.Task[None] | None = None  # in which it is served
    death: BaseException | None = None  # the error of its process, if that died

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
            own; then `make_worker`, jobs, results and exceptions are pickled, and the process ends with its parent. Its
            global generators of `random`, NumPy and torch are seeded from numbers that are drawn from this process's
            generators when the pool is entered, and from the worker's number.
        start_method: how processes are started: "spawn" (the default) or "forkserver". Both import the main module,
            whose functions then get the program's globals as they are when the worker starts, if these are plain:
            numbers, texts, paths, dates, dtypes, and small containers and objects of these.

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
        self._members: list[_Member[Job, Result]] = [_Member(number) for number in range(num_workers)]
        self._tasks = asyncio.TaskGroup()
        self._seeds: GlobalSeeds | None = None  # for worker processes
        self._entered = False
        self._loop: asyncio.AbstractEventLoop | None = None  # in which the scope was entered
        self._left = False
        self._closed = False  # no job gets a worker any more
        self._error: BaseException | None = None  # the first one: die mode
        self._traceback: TracebackType | None = None
        self._free: deque[_Member[Job, Result]] = deque()
        self._waiting: deque[asyncio.Future[_Member[Job, Result] | None]] = deque()  # None: look again
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
        self._loop = asyncio.get_running_loop()
        self._seeds = draw_seeds() if self._place == "process" else None
        await self._tasks.__aenter__()
        for member in self._members:
            self._tasks.create_task(self._serve(member))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the jobs that run, or cancel them if the scope is left by a cancellation; stop the workers.

        Raises:
            BaseException: the exception that put the pool into die mode, unless the scope is cancelled, or left by that
                exception or one that was raised from it.
        """
        self._dismiss()
        try:
            if isinstance(error, _ENDING):
                await self._tasks.__aexit__(kind, error, trace)
            else:
                await self._tasks.__aexit__(None, None, None)
        finally:
            self._left = True
        if self._error is not None and not _comes_from(error, self._error):
            self._raise()

    async def assign(self, *args: Job.args, **kwargs: Job.kwargs) -> asyncio.Future[Result]:
        """Give a job to a free worker, after waiting for one if all are busy. If cancelled, the job was not given.

        Args:
            *args: the job: the arguments of the worker's `run`.
            **kwargs: its arguments by name.

        Returns:
            The future of the job's result or exception. Cancelling it drops the result; the job continues.

        Raises:
            BaseException: the first exception that a worker raised; the pool is in die mode.
            ClosedError: the call is outside of the pool's scope, or the scope is left while it waits.
            UsageError: the call is from another event loop than the one that entered the scope.

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
        member = self._free.popleft() if self._free else await self._wait_for_worker()
        if member is None or member.inbox is None or member.inbox.done():
            self._check_open()  # the pool was closed, or died, between the worker's call and now
            raise ClosedError("the pool has no worker left")
        assignment: _Assignment[Job, Result] = _Assignment(
            args, kwargs, self._num_jobs, asyncio.get_running_loop().create_future()
        )
        self._num_jobs += 1
        member.inbox.set_result(assignment)
        return assignment.result

    # -- giving workers to callers

    async def _wait_for_worker(self) -> _Member[Job, Result] | None:
        turn: asyncio.Future[_Member[Job, Result] | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting = deque(other for other in self._waiting if other is not turn)
            elif (member := turn.result()) is not None:
                self._offer(member)
            raise

    def _offer(self, member: _Member[Job, Result]) -> None:
        """Give an idle worker to the caller that has waited longest, or keep it."""
        if not member.idle:
            return  # dismissed meanwhile
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(member)
                return
        self._free.append(member)

    def _dismiss(self) -> None:
        """Accept no more jobs: idle workers stop, busy ones after their job, and waiting callers are refused."""
        self._closed = True
        self._free.clear()
        for member in self._members:
            if member.inbox is not None and member.idle:
                member.inbox.set_result(None)
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)

    def _check_open(self) -> None:
        if not self._entered:
            raise ClosedError("the pool is not open; enter it first: async with pool")
        if not self._left and running_loop() is not self._loop:
            raise UsageError(
                "jobs must be assigned by the event loop that entered the pool's scope; got another one, such as "
                "that of a pipeline, or none. Enter a pool in that loop, or call asyncio.run_coroutine_threadsafe"
            )
        if self._error is not None and not self._left:
            self._raise()
        if self._closed:
            raise ClosedError("the pool's scope was left; nothing can be assigned any more")

    # -- die mode

    def _fail(self, error: BaseException, where: str) -> None:
        if error is self._error:
            return  # every call to a dead process raises the same error
        add_note(error, f"In {where} of the pool")
        if self._error is None:
            self._error, self._traceback = error, error.__traceback__
        self._dismiss()

    def _raise(self) -> None:
        assert self._error is not None
        raise self._error.with_traceback(self._traceback)  # otherwise each raise would lengthen its traceback

    def _accept(self, member: _Member[Job, Result], error: BaseException, where: str) -> BaseException:
        """Return the error to report for a worker's exception; raise it if it ends this task, and isn't the worker's.

        A GeneratorExit outside of the task closes the coroutine, since its loop was dropped.
        """
        if (isinstance(error, GeneratorExit) and member.task is not _current_task()) or is_own_cancellation(error):
            raise error
        if isinstance(error, asyncio.CancelledError):
            reported = WorkerError("a worker raised CancelledError, though it was not cancelled")
            reported.__cause__ = error
            error = reported
        error = for_a_future(error)
        self._fail(error, where)
        return error

    # -- a worker's life

    async def _serve(self, member: _Member[Job, Result]) -> None:
        place = self._make_place(member)
        member.task = asyncio.current_task()
        try:
            await self._try(member, place.start, f"the start of worker {member.number}")
            while place.started and await self._do_next(place, member):
                pass
        finally:
            self._dismiss()  # a worker ends only if it has failed, or if all are stopped
            try:
                if place.started:
                    await self._try(member, place.stop, f"the stop of worker {member.number}")
            finally:
                await place.close()

    async def _try(self, member: _Member[Job, Result], method: Callable[[], Awaitable[None]], where: str) -> None:
        with Caught() as caught:
            await method()
        if caught.error is None:
            return
        error = self._accept(member, caught.error, where)
        if self._error is not None and error is not self._error:  # no future reports it
            add_note(self._error, f"Later, in {where}: {''.join(traceback.format_exception_only(error)).rstrip()}")
        self._end_program(error)

    async def _do_next(self, place: Place[Job, Result], member: _Member[Job, Result]) -> bool:
        # Returns False if no job will follow.
        assignment = await self._next_assignment(member)
        if assignment is None:
            return False
        with Caught() as caught:
            result = await place.run(*assignment.args, **assignment.kwargs)
            if not assignment.result.done():  # otherwise it was cancelled
                assignment.result.set_result(result)
        if caught.error is not None:
            try:
                error = self._accept(member, caught.error, f"worker {member.number}, job {assignment.number}")
            except asyncio.CancelledError:
                assignment.result.cancel()
                raise
            if not assignment.result.done():
                assignment.result.set_exception(error)
                assignment.result.exception()  # the pool reports it, even if the future is never awaited
            self._end_program(error)
        return True

    async def _next_assignment(self, member: _Member[Job, Result]) -> _Assignment[Job, Result] | None:
        if member.death is not None:
            self._fail(member.death, f"worker {member.number}, which was idle,")
        if self._closed:
            return None
        inbox: asyncio.Future[_Assignment[Job, Result] | None] = asyncio.get_running_loop().create_future()
        member.inbox = inbox
        self._offer(member)
        try:
            return await inbox
        except asyncio.CancelledError:
            if not inbox.cancelled() and (assignment := inbox.result()) is not None:
                assignment.result.cancel()  # the job was taken, and will not be started
            raise

    def _end_program(self, error: BaseException) -> None:
        """Raise an exception that ends programs, if it was raised in the loop's own thread."""
        if self._place == "task" and isinstance(error, KeyboardInterrupt | SystemExit):
            raise error

    def _make_place(self, member: _Member[Job, Result]) -> Place[Job, Result]:
        name = f"worker {member.number}"
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
                    seeds=self._seeds.child(member.number),
                    on_death=lambda error: self._on_death(member, error),
                )
            case _:
                assert_never(self._place)

    def _on_death(self, member: _Member[Job, Result], error: BaseException) -> None:
        member.death = error
        if member.idle:  # a busy one's call reports it
            self._fail(error, f"worker {member.number}, which was idle,")


def _current_task() -> "asyncio.Task[Any] | None":
    """Return the task that runs now; None outside of one."""
    with suppress(RuntimeError):  # no loop runs
        return asyncio.current_task()
    return None


def _comes_from(error: BaseException | None, origin: BaseException) -> bool:
    """Return whether an exception is the origin, was raised from it, or was raised while it was handled."""
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
