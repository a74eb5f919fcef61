"""The dispatcher of an executor: it gives the calls of pipeline stages to processes, and survives their deaths.

A thread for each process takes calls from one queue, pickles them, sends them to its process, waits for the answer, and
sets the call's future. When its process dies, the thread decides what becomes of the call and starts another process.

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

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Final, cast

from penstock._caught import Caught
from penstock._os import DaemonThread, HeldInterrupts
from penstock._processes import FUNCTION_SECONDS, GlobalSeeds, RestartPolicy, Starting, StartMethod, Supervisor
from penstock.errors import ClosedError, WorkerError
from penstock.pipeline._processes._chunks import ChunkCall, PackedOutcomes, dump
from penstock.pipeline._processes._serve import keep, serve
from penstock.pipeline._processes._worker import DiedError, Worker

_MAX_ATTEMPTS: Final = 3
_RESTARTS: Final = RestartPolicy(limit=_MAX_ATTEMPTS, first_must_start=True)


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
        with HeldInterrupts(), self._changed:
            if self._closed:
                raise ClosedError("these processes are closed; start others")
            if self._broken is None and call.at is None:
                self._calls.append(call)
                self._changed.notify()
                return
            if call.at is not None and not call.at.is_closed:
                call.at.calls.append(call)
                self._changed.notify_all()
                return
        call.future.set_exception(self._broken if call.at is None else _gone(call.at))

    def finish(self, *, killed: bool) -> None:
        """Accept no more calls, and wait for the processes to end; if `killed`, end the calls that run."""
        self._refuse(killed=killed)
        self._join(None)
        self._supervisor.cancel_end_with_program()

    def _refuse(self, *, killed: bool) -> None:
        if not self._supervisor.is_owned_here:
            return
        with HeldInterrupts(), self._changed:
            self._closed = True
            self._killed = self._killed or killed
            dropped = list(self._calls) if self._killed else []
            if dropped:
                self._calls.clear()
            self._changed.notify_all()
        for call in dropped:
            if call.begun:  # between two attempts
                call.future.set_exception(_killed())
            else:
                call.future.cancel()
        if self._killed:
            self._supervisor.kill()

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
    if isinstance(caught.error, DiedError):
        dispatcher.died(call, caught.error.death, caught.error.begun)
        return False
    if caught.error is not None:
        call.future.set_exception(caught.error)
    return True


def _gone(worker: Worker) -> BaseException:
    return worker.death or _killed()


def _killed() -> ClosedError:
    return ClosedError("the processes were ended in the middle of this call")
