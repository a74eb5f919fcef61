"""The places where a pool's workers run: a task of the pool's event loop, a thread, or a process.

Guarantees of a thread:
  - The worker is made, started, run and stopped in that thread, so it may hold objects that only one thread may use.
  - Its event loop runs only during calls: tasks that a worker leaves behind continue during its next async call.
  - Cancelling a call cancels an async method at its next await, and waits for a plain one.
  - After `close` the thread has ended.

Guarantees of a process, with which a thread beside the event loop talks:
  - Every request is answered, by a value or by the exception that the worker raised, even if that can't be pickled.
  - The death of a process, busy or idle, is reported at once as a WorkerError with its exit code: the thread waits for
    the answer and for the end of the process together, and the loop watches an idle process.
  - A cancelled call kills the process, so every wait has an end.
  - After `close` the process has ended and was waited for.
  - Ctrl-C, which a terminal sends to all processes, never ends a worker, not even while it starts: the process ignores
    it, and the parent handles it.
  - When the parent has ended, the process ends at once, in the middle of a job, too.
  - The global random generators are seeded before the worker is made.
  - Jobs are pickled, and results unpickled, outside of the loop's thread.
"""

import asyncio
import inspect
import pickle
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, ParamSpec, TypeVar, cast

from penstock._caught import Caught, CaughtFailure
from penstock._os import DaemonThread
from penstock._pickles import dumps
from penstock._processes import (
    GlobalSeeds,
    PackedError,
    RestartPolicy,
    Starting,
    StartMethod,
    Supervisor,
    pack_error,
    unpack_raised,
)
from penstock.concurrency._worker import Worker, for_a_future
from penstock.errors import UsageError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from penstock._processes import ChildProcess
    from penstock.errors import WorkerError


Job = ParamSpec("Job")
Result = TypeVar("Result")
Value = TypeVar("Value")

_START: Final = b"start"
_RUN: Final = b"run"  # the pickled job follows
_STOP: Final = b"stop"
_NO_RESTARTS: Final = RestartPolicy()


class TaskPlace(Generic[Job, Result]):
    """Calls the worker's methods in the task of the caller; cancelling that task cancels an async method."""

    def __init__(self, make_worker: Callable[[], Worker[Job, Result]]) -> None:
        self._make_worker = make_worker
        self._worker: Worker[Job, Result] | None = None

    @property
    def started(self) -> bool:
        """Whether the worker's `start` has succeeded."""
        return self._worker is not None

    async def start(self) -> None:
        """Make the worker and start it."""
        worker = self._make_worker()
        await _awaited_value(worker.start())
        self._worker = worker

    async def run(self, *args: Job.args, **kwargs: Job.kwargs) -> Result:
        """Return the result of a job that the worker does."""
        assert self._worker is not None
        return await _awaited_value(self._worker.run(*args, **kwargs))

    async def stop(self) -> None:
        """Stop the worker."""
        assert self._worker is not None
        await _awaited_value(self._worker.stop())

    async def close(self) -> None:
        """Forget the worker."""
        self._worker = None


async def _awaited_value(returned: Awaitable[Value] | Value) -> Value:
    if isinstance(returned, Awaitable):
        return await cast("Awaitable[Value]", returned)
    return returned


@dataclass(frozen=True, slots=True)
class _Call:
    """A function for the thread, and the future for which its caller waits."""

    run: Callable[[], None]
    settled: asyncio.Future[None]


class ThreadPlace(Generic[Job, Result]):
    """Owns the thread. It is a daemon, so that a pool whose loop was dropped never keeps Python from ending.

    Args:
        make_worker: called in the thread.
        name: the name of the thread.
        interrupt: called in the loop's thread when a call is cancelled, so that a plain method may end early.
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
        self._runner = asyncio.Runner()  # it makes its loop when it is first used
        self._lock = threading.Lock()  # protects the two attributes below
        self._interrupted = False
        self._running: asyncio.Task[object] | None = None  # the call's task in the thread's loop

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
                self._thread.wait(None)  # it ends at once

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
        """Wait for the call; pass a cancellation on to the thread, and raise it after the call has ended."""
        cancelled: asyncio.CancelledError | None = None
        while not settled.done():
            try:
                await asyncio.wait([settled])
            except asyncio.CancelledError as error:
                cancelled = error
                self._cancel_call()
        if cancelled is not None:
            settled.exception()  # marks it as retrieved, so that asyncio doesn't report it
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
            _settle_in_loop(call.settled, caught.error)
            del call, caught  # an idle worker keeps nothing of its last job
        try:
            with Caught():  # the worker left its loop in a state that can't be tidied; no caller waits for the error
                self._runner.close()
            if self._finish is not None:
                self._finish()
        finally:
            _settle_in_loop(self._ended, None)

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


def _settle_in_loop(settled: asyncio.Future[None], error: BaseException | None) -> None:
    with suppress(RuntimeError):  # the loop was closed while the pool's scope was open
        settled.get_loop().call_soon_threadsafe(_settle, settled, error)


def _settle(settled: asyncio.Future[None], error: BaseException | None) -> None:
    if error is None:
        settled.set_result(None)
    else:
        settled.set_exception(for_a_future(error))


@dataclass(frozen=True, slots=True)
class _Succeeded:
    """The answer of a method that returned; the answer of one that raised is a PackedError."""

    value: object


class ProcessPlace(Generic[Job, Result]):
    """Owns the thread, which owns the process.

    Args:
        factory: the pickled function that makes the worker.
        name: the name of the worker, for the thread's name and for messages.
        start_method: "spawn" or "forkserver".
        seeds: the seeds of the process's global random generators.
        on_death: called in the loop's thread with a WorkerError if the process ends without having been stopped.
    """

    def __init__(
        self,
        factory: bytes,
        name: str,
        *,
        start_method: StartMethod,
        seeds: GlobalSeeds,
        on_death: Callable[[BaseException], None],
    ) -> None:
        self._process = _Process[Job, Result](factory, name, start_method, seeds)
        self._thread = ThreadPlace[Job, Result](
            lambda: self._process, name, interrupt=self._process.kill, finish=self._process.finish
        )
        self._on_death = on_death
        self._watched: int | None = None  # the descriptor that the loop watches

    @property
    def started(self) -> bool:
        """Whether the worker's `start` has succeeded."""
        return self._thread.started

    async def start(self) -> None:
        """Start the process, make the worker there and start it."""
        await self._thread.start()
        self._watched = self._process.fileno()
        asyncio.get_running_loop().add_reader(self._watched, self._died)

    async def run(self, *args: Job.args, **kwargs: Job.kwargs) -> Result:
        """Return the result of a job that the worker does."""
        return await self._thread.run(*args, **kwargs)

    async def stop(self) -> None:
        """Stop the worker; return when its process has ended."""
        self._unwatch()
        await self._thread.stop()

    async def close(self) -> None:
        """End the process; kill it if it still runs."""
        self._unwatch()
        await self._thread.close()

    def _died(self) -> None:
        self._unwatch()
        # If a job was running, the thread learns of the death, too, and gets the same exception.
        self._on_death(self._process.death())

    def _unwatch(self) -> None:
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = None


class _Process(Generic[Job, Result]):
    """The worker as the thread sees it: its methods send requests to the process and wait for the answers."""

    def __init__(self, factory: bytes, name: str, start_method: StartMethod, seeds: GlobalSeeds) -> None:
        self._factory = factory
        self._name = name
        self._supervisor = Supervisor(
            serve, lambda _number, _started: seeds, policy=_NO_RESTARTS, starting=Starting(start_method)
        )
        self._child: ChildProcess | None = None
        self._started = False  # whether the worker's start has returned

    # -- in the place's thread

    def start(self) -> None:
        """Start the process, and the worker in it."""
        self._child = self._supervisor.start(f"process of {self._name}", (self._factory,))
        self._ask(_START)
        self._started = True

    def run(self, *args: Job.args, **kwargs: Job.kwargs) -> Result:
        """Return the result of a job that the process does."""
        pickled = b""
        with CaughtFailure() as pickling:
            pickled = dumps((args, kwargs))
        if pickling.error is not None:
            _refuse("a job", _signature(args, kwargs), pickling.error)
        return cast("Result", self._ask(_RUN, pickled))

    def stop(self) -> None:
        """Stop the worker and wait for the end of its process; do nothing if a cancelled call has killed it."""
        if not self._supervisor.is_closing:
            self._ask(_STOP)
            self._living().wait_for_end()

    def finish(self) -> None:
        """Make sure that the process has ended, and close its pipe."""
        self._supervisor.close()

    def _ask(self, request: bytes, argument: bytes | None = None) -> object:
        child = self._living()
        try:
            child.pipe.send_bytes(request)
            if argument is not None:
                child.pipe.send_bytes(argument)
            child.wait()
            answer = child.pipe.recv_bytes() if child.pipe.poll() else b""
        except (EOFError, OSError):
            answer = b""
        if not answer:
            raise self.death()
        outcome: _Succeeded | PackedError = pickle.loads(answer)
        if isinstance(outcome, _Succeeded):
            return outcome.value
        raise unpack_raised(outcome)

    # -- in either thread

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the process has ended."""
        return self._living().fileno()

    def kill(self) -> None:
        """Kill the process, now or as soon as it starts."""
        self._supervisor.kill()

    def death(self) -> "WorkerError":
        """Return why the process died; the same exception each time."""
        return self._supervisor.reap(self._living(), started=self._started).error

    def _living(self) -> "ChildProcess":
        assert self._child is not None
        return self._child


def pickled_factory(make_worker: Callable[[], Worker[Job, Result]]) -> bytes:
    """Return the pickled function that makes a worker; raise a UsageError if it can't be pickled."""
    pickled = b""
    with CaughtFailure() as pickling:
        pickled = pickle.dumps(make_worker)
    if pickling.error is not None:
        _refuse("make_worker", repr(make_worker), pickling.error)
    return pickled


def _signature(args: tuple[object, ...], kwargs: dict[str, object]) -> str:
    return ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])


def _refuse(what: str, value: str, cause: BaseException) -> NoReturn:
    raise UsageError(
        f"{what} must be picklable where workers are processes; got {value:.200}. Define it at the top of a module, "
        f"or run the workers in place='thread'"
    ) from cause


def serve(requests: "Connection[Any, Any]", factory: bytes) -> None:
    """Answer the parent's requests until it stops the worker or has ended.

    Args:
        requests: this process's end of the pipe.
        factory: the pickled function that makes the worker.
    """
    with suppress(EOFError, OSError), asyncio.Runner() as runner:
        _answer_requests(requests, factory, runner)


def _answer_requests(requests: "Connection[Any, Any]", factory: bytes, runner: asyncio.Runner) -> None:
    worker: Worker[..., Any] | None = None

    def start() -> None:
        nonlocal worker
        made: Worker[..., Any] = pickle.loads(factory)()
        _returned(made.start(), runner)
        worker = made

    def run() -> object:
        assert worker is not None
        args, kwargs = pickle.loads(job)
        return _returned(worker.run(*args, **kwargs), runner)

    def stop() -> None:
        if worker is not None:
            _returned(worker.stop(), runner)

    job = b""
    methods: dict[bytes, Callable[[], object]] = {_START: start, _RUN: run, _STOP: stop}
    request = b""
    while request != _STOP:
        request = requests.recv_bytes()
        job = requests.recv_bytes() if request == _RUN else b""
        requests.send_bytes(_answer(methods[request]))


def _answer(method: Callable[[], object]) -> bytes:
    # This is a separate function, so that an idle process keeps neither job nor result.
    answer: bytes | None = None
    with Caught() as calling:
        value = method()
        with Caught() as pickling:
            answer = dumps(_Succeeded(value))
        if pickling.error is not None:
            raise pickle.PicklingError(
                f"the results of workers in processes are pickled; got {type(value).__qualname__}, which can't be: "
                f"{pickling.error!r}. Return another type, or run the workers in place='thread'"
            ) from pickling.error
    if answer is not None:
        return answer
    assert calling.error is not None
    return pickle.dumps(pack_error(calling.error))


def _returned(returned: Awaitable[object] | object, runner: asyncio.Runner) -> object:
    return runner.run(_await(returned)) if inspect.isawaitable(returned) else returned


async def _await(awaitable: Awaitable[object]) -> object:
    return await awaitable
