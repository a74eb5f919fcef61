"""Processes that run the calls of pipeline stages, and stay at it when one of them dies.

Guarantees:
  - Each call is run by one process at a time. What it raises arrives as itself, with the traceback there as a note.
  - When a process dies, the call that was in it is told within a second, as a WorkerError with pid and exit code; or it
    runs again elsewhere, if it is repeatable, up to three times in all. Of a chunk, those items alone are told that had
    been begun. Calls for a generator that the process kept fail, too, and no other one. A new process takes the
    place of the dead one.
  - The first of all processes that dies before it has started, one that can't be started, or an initializer that
    raises, is an error of all calls.
  - Global random generators are seeded before the initializer runs, each process's differently.
  - `close` waits for the calls that were submitted; `kill` doesn't. After either all processes have ended and were
    waited for. Dropped without either, they are killed. They end with their parent, and print nothing on Ctrl-C.

A thread for each process sends calls to it, pickles and unpickles. Any thread may call any method.
"""

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Final, cast

from penstock._caught import Caught
from penstock._os import DaemonThread, HeldInterrupts
from penstock._processes._child import ChildProcess, StartMethod
from penstock._processes._seeding import GlobalSeeds
from penstock.errors import ClosedError, WorkerError
from penstock.pipeline._processes._executor._chunks import ChunkCall, PackedOutcomes, dump
from penstock.pipeline._processes._executor._serve import keep
from penstock.pipeline._processes._executor._worker import DiedError, Worker

_MAX_ATTEMPTS: Final = 3
_PATIENCE_SECONDS: Final = 2.0  # what a process has to end by itself


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
        """Tell that processes die in it: of an item that was begun, as its outcome, so that others can go on."""
        told = death = self.deaths[-1]
        if len(self.deaths) > 1:
            told = WorkerError(
                f"{'this item' if begun else 'what this call was given'} kills processes: {len(self.deaths)} of them "
                f"died in it; the last: {death}",
                exit_code=death.exit_code,
            )
            told.__cause__ = death
        if begun:
            self.future.set_result([(False, told)])
        else:
            self.future.set_exception(told)

    def begin(self) -> bool:
        """Return whether anybody still wants it; from now on it can't be cancelled."""
        self.begun = self.begun or self.future.set_running_or_notify_cancel()
        return self.begun


class Crew:
    """What the threads share; they keep it, and not the `RunningProcesses`, whose end ends them."""

    def __init__(self, setup: bytes, seeds: GlobalSeeds, start_method: StartMethod | None, name: str) -> None:
        self.pid: Final = os.getpid()
        self._setup = setup
        self._seeds = seeds
        self._started: Counter[int] = Counter()  # processes, by their number; under the lock
        self._start_method: StartMethod | None = start_method
        self._name = name
        self._changed = threading.Condition()
        self._calls: deque[Call] = deque()
        self._processes: set[ChildProcess] = set()
        self._threads: list[DaemonThread] = []
        self._functions: dict[int, tuple[int, object, bytes]] = {}  # by identity, which they keep by being here
        self._num_functions = 0
        self._closed = self._killed = False
        self._proven = False  # a process has started
        self._broken: BaseException | None = None

    # -- the owner's side

    @property
    def is_broken(self) -> bool:
        """Whether every call fails, since processes can't be started."""
        return self._broken is not None

    def start(self, number: int) -> None:
        """Start a process, and the thread that talks with it."""
        self._threads.append(DaemonThread(partial(_serve_calls, self, number), f"penstock {self._name} {number}"))

    def put(self, call: Call) -> None:
        """Have a call done.

        Raises:
            ClosedError: by nobody here.
        """
        if os.getpid() != self.pid:
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
        """Take no more calls; killed, end those that run."""
        if os.getpid() != self.pid:
            return
        with HeldInterrupts(), self._changed:
            self._closed = True
            self._killed = self._killed or killed
            dropped = list(self._calls) if self._killed else []
            running = list(self._processes) if self._killed else []
            if dropped:
                self._calls.clear()
            self._changed.notify_all()
        for call in dropped:
            if call.begun:  # between two attempts
                call.future.set_exception(_killed())
            else:
                call.future.cancel()
        for process in running:
            process.kill()

    def abandon(self) -> None:
        """End everything: whoever owned it is gone."""
        self.finish(killed=True)
        self.join(_PATIENCE_SECONDS)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the threads, which wait for their processes; for each at most so many seconds."""
        if os.getpid() == self.pid:
            for thread in self._threads:
                if not thread.is_current:  # where a future's callback closes
                    thread.wait(timeout)

    # -- the threads' side

    def open_worker(self, number: int) -> Worker | None:
        """Return a process that is ready; None if there is no use in it any more."""
        for attempt in range(_MAX_ATTEMPTS):
            if self._killed or self._broken is not None:
                return None
            with self._changed:
                seeds = self._seeds.child(number, self._started[number])
                self._started[number] += 1
            worker: Worker | None = None
            with Caught() as caught:
                worker = Worker(f"process {number} of {self._name}", self._setup, seeds, self._start_method)
                self._enlist(worker.process)
                worker.wait_until_ready()
                self._proven = True
                return worker
            if worker is not None:
                self.close_worker(worker)
            if attempt == _MAX_ATTEMPTS - 1 or not self._proven or not isinstance(caught.error, WorkerError):
                self._break(caught.error)
        return None

    def _enlist(self, process: ChildProcess) -> None:
        with self._changed:
            self._processes.add(process)
            if self._killed:
                process.kill()

    def close_worker(self, worker: Worker) -> None:
        """End a process, and wait for it."""
        if worker.process.wait_for_end(0):
            worker.death = worker.process.death()
        worker.close(0 if self._killed else _PATIENCE_SECONDS)
        with self._changed:
            self._processes.discard(worker.process)
            worker.is_closed = True
        left: deque[Call] = worker.calls
        for call in left:
            if call.begin():
                call.future.set_exception(_gone(worker))

    def take(self, worker: Worker) -> Call | None:
        """Return the next call for a process, once there is one; None if none will come."""
        with self._changed:
            while not (worker.calls or self._calls):
                if self._closed or self._broken is not None:
                    return None
                self._changed.wait()
            calls: deque[Call] = worker.calls or self._calls
            return calls.popleft()

    def put_back(self, call: Call) -> None:
        """Have a call done first of all, by whoever is free."""
        with self._changed:
            if not self._killed and self._broken is None:
                self._calls.appendleft(call)
                self._changed.notify()
                return
        call.future.set_exception(self._broken or _killed())

    def died(self, call: Call, death: WorkerError, begun: int) -> None:
        """Tell a call that its process died in it, or have it done once more.

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
        elif begun > 1:  # those before the last aren't to blame; it will be the first of another call
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


def _serve_calls(crew: Crew, number: int) -> None:
    # The life of a thread: it has a process, and replaces it when it dies.
    worker = crew.open_worker(number)
    try:
        while worker is not None and (call := crew.take(worker)) is not None:
            if worker.process.wait_for_end(0):  # while it was idle
                if call.at is None:
                    crew.put_back(call)
                else:
                    worker.calls.append(call)
                alive = False
            else:
                alive = not call.begin() or _run(crew, worker, call)
            del call  # an idle thread keeps nothing
            if not alive:
                crew.close_worker(worker)
                worker = crew.open_worker(number)
    finally:
        if worker is not None:
            crew.close_worker(worker)


def _run(crew: Crew, worker: Worker, call: Call) -> bool:
    """Return whether the process is alive, once it has done the call or died in it."""
    with Caught() as caught:
        function = crew.pickled(call.function)
        result = worker.call(*function, dump(call.args, "what a call is given"))
        if isinstance(result, PackedOutcomes):
            result.worker = worker
        call.future.set_result(result)
    if isinstance(caught.error, DiedError):
        crew.died(call, caught.error.death, caught.error.begun)
        return False
    if caught.error is not None:
        call.future.set_exception(caught.error)
    return True


def _gone(worker: Worker) -> BaseException:
    return worker.death or _killed()


def _killed() -> ClosedError:
    return ClosedError("the processes were ended in the middle of this call")
