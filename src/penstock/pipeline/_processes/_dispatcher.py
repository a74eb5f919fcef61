"""The processes of a `ProcessExecutor`, and the dispatcher that gives them calls and survives their deaths.

A `ProcessExecutor` is a description; `open_processes` starts `RunningProcesses`, which own a `Dispatcher`. There, a
thread for each process (`Worker`) takes calls from one queue, pickles them, sends them to its process, waits for the
answer, and sets the call's future. When its process dies, the thread decides what becomes of the call and starts
another process.

Guarantees:
  - Each call is run by one process at a time. The exception that it raises arrives as itself, with the traceback of the
    process as a note.
  - When a process dies, its call fails within a second with a WorkerError that has pid and exit code; or, if the call
    is repeatable, another process runs it again, up to three times in all. Of a chunk, only the items that had been
    begun fail. Calls for a generator that the process kept fail, too; no others. A new process replaces the dead one.
  - All calls fail if a process can't be started, if an initializer raises, or if a process dies before it has started:
    the first of all, or three with the same number in a row.
  - Global random generators are seeded before the initializer runs, in each process differently.
  - `close` waits for the calls that were submitted; `kill` doesn't. After either all processes have ended and were
    waited for. Dropped without either, they are killed. They end with their parent, and print nothing on Ctrl-C.

Any thread may call any method.
"""

import multiprocessing
import os
import pickle
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, cast

from penstock._caught import Caught
from penstock._frozen import frozen
from penstock._os import DaemonThread, uninterrupted
from penstock._processes import (
    FUNCTION_SECONDS,
    GlobalSeeds,
    RestartPolicy,
    Starting,
    StartMethod,
    Supervisor,
    check_start_method,
    draw_seeds,
    unpack_error,
)
from penstock.errors import ClosedError, WorkerError
from penstock.pipeline._processes._chunks import Answer, ChunkCall, PackedOutcomes, Request, dump, keep, load, serve
from penstock.pipeline._stages import check_count

_MAX_ATTEMPTS: Final = 3
_PROGRESS_BYTES: Final = 1 << 16  # the capacity of a pipe; a chunk has fewer items
_RESTARTS: Final = RestartPolicy(limit=_MAX_ATTEMPTS, first_must_start=True)


@frozen
class ProcessExecutor:
    """Processes that a stage of a pipeline runs in: `pipe(op, executor=ProcessExecutor(4), concurrency=4)`.

    A value: the processes start and end with the pipeline. Stages that are given the same executor share them. `op`,
    items and results are pickled. An `op` is sent once to each process, and keeps its state there; a pass before which
    its state has changed here sends it again.

    A process that dies is replaced. Failures with a WorkerError are then the item that it worked on, and, since results
    travel together, the items that it had finished and whose results it hadn't sent; on a stage with `repeatable=True`
    all of them are tried again. A result that can't be pickled is a failure of its item. One that is pickled and can't
    be rebuilt here ends the pipeline, whatever `max_failures` is.

    Before the initializer, each process seeds its global generators of `random`, NumPy and torch: from one number that
    the pipeline draws from each of this process's generators when it starts, and from the process's number. So
    processes draw differently, and a program that seeds its generators gets the same draws in each process from run to
    run. Which process takes which item depends on time; for draws that don't depend on it, take seeds from the items.

    Args:
        max_workers: how many processes; at least 1. The stage's `concurrency` should be as large.
        start_method: "forkserver", where a clean process imports what is needed and forks itself, or "spawn"; None, the
            default, for the first on Linux. Both import the main module, whose functions then get the program's globals
            as they are when the pipeline starts, if these are plain: numbers, texts, paths, dates, dtypes, and small
            containers and objects of these.
        initializer: called in each process as it starts, with `initargs`.
        initargs: the initializer's arguments, as a tuple.

    Raises:
        UsageError: `max_workers` is less than 1 or no integer, or the start method is unknown.

    Example:
        >>> import math
        >>> from penstock.pipeline import PipelineBuilder, ProcessExecutor
        >>> builder = PipelineBuilder().add_source([4, 9])
        >>> builder = builder.pipe(math.sqrt, executor=ProcessExecutor(2), concurrency=2, output_order="input")
        >>> def main():
        ...     with builder.add_sink().build(num_threads=1).auto_stop() as pipeline:
        ...         print(list(pipeline))
        >>> main()  # in a script under `if __name__ == "__main__":`, since each process imports it
        [2.0, 3.0]
    """

    max_workers: int
    _: KW_ONLY
    start_method: StartMethod | None = None
    initializer: Callable[..., object] | None = None
    initargs: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        check_count("max_workers", self.max_workers)
        check_start_method(self.start_method)


def open_processes(
    executor: ProcessExecutor, name: str = "executor", *, seeds: GlobalSeeds | None = None
) -> "RunningProcesses":
    """Start an executor's processes.

    Args:
        executor: how many, and how.
        name: of the executor, in messages.
        seeds: of their global random generators; None draws them here.

    Returns:
        The processes, to be closed.

    Raises:
        UsageError: the initializer or its arguments can't be pickled.
    """
    setup = dump((executor.initializer, executor.initargs), "the initializer of a ProcessExecutor")
    drawn = draw_seeds() if seeds is None else seeds
    return RunningProcesses(Dispatcher(setup, drawn, executor.start_method, name), executor.max_workers)


class RunningProcesses:
    """An executor's processes while they run; a context manager, which is left by `close`, or, by an error, `kill`."""

    def __init__(self, dispatcher: "Dispatcher", max_workers: int) -> None:
        self._dispatcher = dispatcher
        dispatcher.end_with(self)
        try:
            for number in range(max_workers):
                dispatcher.start(number)
        except BaseException:
            self.kill()
            raise

    @property
    def is_broken(self) -> bool:
        """Whether every call fails, since processes can't be started."""
        return self._dispatcher.is_broken

    def submit(
        self, function: Callable[..., object], /, *args: object, repeatable: bool = False, at: "Worker | None" = None
    ) -> Future[object]:
        """Call a function in one of the processes, as soon as one is free.

        The function is pickled when it is first submitted, sent to each process once, and kept there.

        Args:
            function: the function.
            *args: its arguments.
            repeatable: whether it may be called again, in another process, where one died in it.
            at: the process that alone can do it; the call fails if that has died. Default None: any.

        Returns:
            The future of its result. It raises the function's exception; a WorkerError if the process died, or the
            result can't be pickled; a UsageError if function or arguments can't. Cancelling it drops the
            call if that has not begun.

        Raises:
            ClosedError: these processes are closed, or belong to the process that this one was forked from.
        """
        call = Call(function, args, repeatable=repeatable, at=at)
        self._dispatcher.put(call)
        return call.future

    def close(self) -> None:
        """Wait for the calls that were submitted, then end the processes; harmless when repeated."""
        self._dispatcher.finish(killed=False)

    def kill(self) -> None:
        """End the processes at once: calls that run fail with a ClosedError, those that wait are cancelled."""
        self._dispatcher.finish(killed=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if error is None:
            self.close()
        else:
            self.kill()


class DiedError(Exception):
    """The process died in a call.

    Attributes:
        death: how.
        begun: how many items of the call's chunk had been begun.
    """

    def __init__(self, death: "WorkerError", begun: int) -> None:
        super().__init__(death)
        self.death = death
        self.begun = begun


class Worker:
    """Owns a process.

    Args:
        supervisor: starts the process.
        number: of the process.
        name: of the process, in messages.
        setup: the pickled initializer and its arguments.

    Attributes:
        process: the process.
        calls: calls that only this process can do, since it keeps their generators; the dispatcher's.
        is_closed: whether it takes no more calls.
        may_restart: whether another process may be started once this one has died.
        death: how it died, if it did.
    """

    def __init__(self, supervisor: Supervisor, number: int, name: str, setup: bytes) -> None:
        self._supervisor = supervisor
        self._progress, theirs = multiprocessing.Pipe(duplex=False)
        try:
            self.process = supervisor.start(name, (setup, theirs), number=number)
        except BaseException:
            self._progress.close()
            raise
        finally:
            theirs.close()
        os.set_blocking(self._progress.fileno(), False)
        self.calls: deque[Any] = deque()
        self.is_closed = self.may_restart = False
        self.death: WorkerError | None = None
        self._is_ready = False
        self._known: dict[int, Any] = {}  # the functions that were sent

    def wait_until_ready(self) -> None:
        """Wait until the process takes calls.

        Raises:
            WorkerError: it died before.
            Exception: the initializer's.
        """
        answer = self._ask([])
        if answer is None:
            raise self.reap()
        if answer[0].error is not None:
            error = unpack_error(answer[0].error)
            raise error
        self._is_ready = True
        self._supervisor.has_started(self.process)

    def call(self, number: int, function: bytes, arguments: bytes) -> object:
        """Call a function in the process.

        Args:
            number: of the function.
            function: pickled.
            arguments: pickled.

        Returns:
            The result; the outcomes of a chunk as `PackedOutcomes`.

        Raises:
            Exception: the function's.
            WorkerError: function, arguments or result can't be rebuilt, or the result can't be pickled.
            DiedError: the process died.
        """
        new = number not in self._known
        if new:
            keep(self._known, number, None)
        answer = self._ask([pickle.dumps(Request(number, function if new else None)), arguments])
        begun = self._begun()
        if answer is None:
            raise DiedError(self.reap(), begun)
        head, result = answer
        if head.error is not None:
            error = unpack_error(head.error)
            raise error
        return PackedOutcomes(result) if head.packed else load(result, "the result of a call")

    def reap(self) -> "WorkerError":
        """Return how the process died, which it has or is about to."""
        self.death, self.may_restart = self._supervisor.reap(self.process, started=self._is_ready)
        return self.death

    def close(self, patience_seconds: float) -> None:
        """End the process; kill it if it takes longer."""
        self._supervisor.release(self.process, patience_seconds)
        self._progress.close()

    def _ask(self, frames: list[bytes]) -> tuple[Answer, bytes] | None:
        """Return the process's answer; None if it died before."""
        pipe = self.process.pipe
        try:
            for frame in frames:
                pipe.send_bytes(frame)
            self.process.wait()
            if not pipe.poll():
                return None
            answer: Answer = pickle.loads(pipe.recv_bytes())
            return answer, b"" if answer.error is not None else pipe.recv_bytes()
        except (EOFError, OSError):
            return None

    def _begun(self) -> int:
        """Return how many items were begun since the last call of this method."""
        with suppress(BlockingIOError):
            return len(os.read(self._progress.fileno(), _PROGRESS_BYTES))
        return 0


@dataclass(slots=True, eq=False)
class Call:
    """A call, until its future is done."""

    function: Callable[..., object]
    args: tuple[object, ...]
    _: KW_ONLY
    repeatable: bool
    at: Worker | None = None  # the process that alone can do it
    future: Future[object] = field(default_factory=Future[object])
    deaths: list[WorkerError] = field(default_factory=list[WorkerError])
    begun: bool = False

    @property
    def is_chunk(self) -> bool:
        """Whether the call is one for a list of items."""
        return isinstance(self.function, ChunkCall)

    def give_up(self, begun: int) -> None:
        """Fail the call in which processes die; for an item that was begun, as its outcome, so that others continue."""
        error = death = self.deaths[-1]
        if len(self.deaths) > 1:
            error = WorkerError(
                f"{'this item' if begun else 'what this call was given'} kills processes: {len(self.deaths)} of them "
                f"died in it; the last: {death}",
                exit_code=death.exit_code,
            )
            error.__cause__ = death
        if begun:
            self.future.set_result([(False, error)])
        else:
            self.future.set_exception(error)

    def begin(self) -> bool:
        """Return whether the call is still wanted; from now on it can't be cancelled."""
        self.begun = self.begun or self.future.set_running_or_notify_cancel()
        return self.begun


class Dispatcher:
    """Owns the processes, the threads and the calls. The threads keep it; `RunningProcesses` ends it when dropped."""

    def __init__(self, setup: bytes, seeds: GlobalSeeds, start_method: StartMethod | None, name: str) -> None:
        self.pid: Final = os.getpid()
        self._setup = setup
        self._supervisor = Supervisor(serve, seeds.child, policy=_RESTARTS, starting=Starting(start_method))
        self._name = name
        self._changed = threading.Condition()  # protects all below
        self._calls: deque[Call] = deque()
        self._threads: list[DaemonThread] = []
        self._functions: dict[int, tuple[int, object, bytes]] = {}  # by identity; kept here, so no other can have it
        self._num_functions = 0
        self._closed = self._killed = False
        self._broken: BaseException | None = None

    # -- for the owner

    @property
    def is_broken(self) -> bool:
        """Whether every call fails, since processes can't be started."""
        return self._broken is not None

    def start(self, number: int) -> None:
        """Start a process, and the thread that talks with it."""
        self._threads.append(DaemonThread(partial(_serve_calls, self, number), f"penstock {self._name} {number}"))

    def end_with(self, owner: object) -> None:
        """Kill all processes as soon as an object is dropped, or at the end of the program."""
        self._supervisor.end_with_program(self._abandon, owner)

    def put(self, call: Call) -> None:
        """Queue a call.

        Raises:
            ClosedError: the dispatcher is closed, or belongs to the process that this one was forked from.
        """
        if not self._supervisor.is_owned_here:
            raise ClosedError(f"these processes belong to process {self.pid}; this one was forked from it")
        if not self._is_queued(call):
            call.future.set_exception(self._broken if call.at is None else _gone(call.at))

    @uninterrupted
    def _is_queued(self, call: Call) -> bool:
        """Return whether a process can do a call, which is queued then.

        Raises:
            ClosedError: no more calls are accepted.
        """
        with self._changed:
            if self._closed:
                raise ClosedError("these processes are closed; start others")
            if self._broken is None and call.at is None:
                self._calls.append(call)
                self._changed.notify()
                return True
            if call.at is not None and not call.at.is_closed:
                call.at.calls.append(call)
                self._changed.notify_all()
                return True
        return False

    def finish(self, *, killed: bool) -> None:
        """Accept no more calls, and wait for the processes to end; if `killed`, end the calls that run."""
        self._refuse(killed=killed)
        self._join(None)
        self._supervisor.cancel_end_with_program()

    def _refuse(self, *, killed: bool) -> None:
        if not self._supervisor.is_owned_here:
            return
        for call in self._closed_queue(killed=killed):
            if call.begun:  # between two attempts
                call.future.set_exception(_killed())
            else:
                call.future.cancel()
        if self._killed:
            self._supervisor.kill()

    @uninterrupted
    def _closed_queue(self, *, killed: bool) -> list[Call]:
        """Return the calls to end, once the queue is closed and they are no longer in it."""
        with self._changed:
            self._closed = True
            self._killed = self._killed or killed
            dropped = list(self._calls) if self._killed else []
            if dropped:
                self._calls.clear()
            self._changed.notify_all()
            return dropped

    def _abandon(self) -> None:
        self._refuse(killed=True)
        self._join(FUNCTION_SECONDS)

    def _join(self, timeout: float | None) -> None:
        """Wait for the threads, which wait for their processes; for each at most so many seconds."""
        if self._supervisor.is_owned_here:
            for thread in self._threads:
                if not thread.is_current:  # a callback of a future may close
                    thread.wait(timeout)

    # -- for the threads

    def open_worker(self, number: int) -> Worker | None:
        """Return a process that is ready; None if calls need no other process, or can't have one."""
        while not self._killed and self._broken is None:
            worker: Worker | None = None
            with Caught() as caught:
                worker = Worker(self._supervisor, number, f"process {number} of {self._name}", self._setup)
                worker.wait_until_ready()
                return worker
            if worker is not None:
                self.close_worker(worker)
            if (worker is None or not worker.may_restart) and not self._killed:
                self._break(caught.error)
        return None

    def close_worker(self, worker: Worker) -> None:
        """End a process, and wait for it."""
        if worker.process.wait_for_end(0):
            worker.reap()
        worker.close(0 if self._killed else FUNCTION_SECONDS)
        with self._changed:
            worker.is_closed = True
        left: deque[Call] = worker.calls
        for call in left:
            if call.begin():
                call.future.set_exception(_gone(worker))

    def take(self, worker: Worker) -> Call | None:
        """Return the next call for a process; wait for it; None if there will be no other call."""
        with self._changed:
            while not (worker.calls or self._calls):
                if self._closed or self._broken is not None:
                    return None
                self._changed.wait()
            calls: deque[Call] = worker.calls or self._calls
            return calls.popleft()

    def put_back(self, call: Call) -> None:
        """Queue a call as the first one."""
        with self._changed:
            if not self._killed and self._broken is None:
                self._calls.appendleft(call)
                self._changed.notify()
                return
        call.future.set_exception(self._broken or _killed())

    def died(self, call: Call, death: WorkerError, begun: int) -> None:
        """Fail a call whose process died in it, or repeat it.

        Args:
            call: the call.
            death: how the process died.
            begun: how many items of a chunk had been begun.
        """
        call.deaths.append(death)
        if self._killed:
            call.future.set_exception(_killed())
        elif begun and not call.repeatable:
            lost = WorkerError(f"it was done, and its result lost, when {death}", exit_code=death.exit_code)
            call.future.set_result([*[(False, lost)] * (begun - 1), (False, death)])
        elif begun > 1:  # only the last one can have killed the process; it will be the first of another call
            call.deaths.clear()
            self._repeat(call, begun - 1)
        elif (call.repeatable or call.is_chunk) and len(call.deaths) < _MAX_ATTEMPTS:
            self._repeat(call, begun)
        else:
            call.give_up(begun)

    def _repeat(self, call: Call, most_items: int) -> None:
        if most_items:  # they are a chunk
            (items,) = cast("tuple[Sequence[object]]", call.args)
            call.args = (items[:most_items],)
        self.put_back(call)

    def pickled(self, function: object) -> tuple[int, bytes]:
        """Return the number of a function, and the function pickled."""
        with self._changed:
            found = self._functions.get(id(function))
        if found is not None:
            return found[0], found[2]
        pickled = dump(function, "the function of a call")
        with self._changed:
            self._num_functions += 1
            keep(self._functions, id(function), (self._num_functions, function, pickled))
            return self._num_functions, pickled

    def _break(self, error: BaseException | None) -> None:
        with self._changed:
            if self._broken is None:
                self._broken = error
            calls = list(self._calls)
            self._calls.clear()
            self._changed.notify_all()
        for call in calls:
            if call.begin():
                call.future.set_exception(self._broken)


def _serve_calls(dispatcher: Dispatcher, number: int) -> None:
    """Run a thread: it has a process, and replaces it when that dies."""
    worker = dispatcher.open_worker(number)
    try:
        while worker is not None and (call := dispatcher.take(worker)) is not None:
            if worker.process.wait_for_end(0):  # while it was idle
                if call.at is None:
                    dispatcher.put_back(call)
                else:
                    worker.calls.append(call)
                alive = False
            else:
                alive = not call.begin() or _run(dispatcher, worker, call)
            del call  # an idle thread keeps nothing
            if not alive:
                dispatcher.close_worker(worker)
                worker = dispatcher.open_worker(number)
    finally:
        if worker is not None:
            dispatcher.close_worker(worker)


def _run(dispatcher: Dispatcher, worker: Worker, call: Call) -> bool:
    """Return whether the process is alive, once it has done the call or died in it."""
    with Caught() as caught:
        function = dispatcher.pickled(call.function)
        result = worker.call(*function, dump(call.args, "what a call is given"))
        if isinstance(result, PackedOutcomes):
            result.worker = worker
        call.future.set_result(result)
    is_alive = caught.error is None or _is_alive_after(caught.taken(), dispatcher, call)
    del call  # the traceback of the exception, which the call may have now, refers to this frame
    return is_alive


def _is_alive_after(error: BaseException, dispatcher: Dispatcher, call: Call) -> bool:
    """Return whether the process of a call that raised is alive, once the call is repeated or has failed."""
    if isinstance(error, DiedError):
        dispatcher.died(call, error.death, error.begun)
        return False
    call.future.set_exception(error)
    return True


def _gone(worker: Worker) -> BaseException:
    return worker.death or _killed()


def _killed() -> ClosedError:
    return ClosedError("the processes were ended in the middle of this call")
