"""The supervisor of child processes: it starts them, limits restarts, and makes sure that every one of them ends.

The problem. Five owners run the user's code in child processes: the workers of a loader, the helper of an isolated
loader, the process of a pipeline, the processes of an executor, and the workers of a pool. Such processes crash, hang,
fail to start, or are killed by the system. And an owner is closed, dropped, interrupted or forked at any moment, also
while it starts a process; or the program ends. The two helpers have one protocol (`_helper`), the other processes have
protocols of their own, and a death means something else for each owner. Four things are the same for all: no process is
left behind; none is started after the end; each process draws other random numbers than the one before it; and
processes that fail to start are not started for ever.

The solution. The owner keeps the protocol, and the supervisor keeps the processes. A thread of the owner calls `start`,
which registers the process before anyone else can miss it, then waits for messages and for the end of the process in
one wait (`ChildProcess.wait`, over its pipe and its pidfd). When the process has died, the thread calls `reap`, which
learns the exit code and returns whether the owner's `RestartPolicy` allows another process; does what the death means
for its work, such as giving the blocks of the dead process to others; and calls `release`, which closes and forgets the
process. `kill` and `close` may be called by any thread, and let no process start afterwards.

Rejected:
  - A thread of the supervisor that watches all processes. Each message would pass through it, and an owner that is slow
    with one death would delay the next. Owners have a thread for each process in any case, which sends and receives.
  - A handler of SIGCHLD. It runs in the main thread only, belongs to the program, and says nothing about processes that
    the fork server has forked.
  - Restarting inside of `start` or `reap`. The owner must take back the work of the dead process before its successor
    claims any; and what a death means (a crashing row, a call that is repeated) only the owner knows.
  - `concurrent.futures` and `multiprocessing.Pool`: there, one death breaks all processes, or loses a call.

Invariants:
  - A process is registered before `start` returns it, and until `release` or `close` has waited for it.
  - After `kill` or `close` has returned, `start` raises ClosedError; a process that was being started then is killed.
  - At most one living process has a number, since the owner calls `release` before it starts the next one.
  - The seeds of a process follow from its number, and from how many processes had the number before it.
  - In a fork of the program, nothing that is called here touches the program's processes.
"""

import os
import threading
from collections import Counter
from collections.abc import Callable
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock._frozen import frozen
from penstock._os import uninterrupted
from penstock._processes._begin import begin_process
from penstock._processes._child import ChildProcess, StartMethod, follow_reloads, open_spare
from penstock._processes._main_globals import MainGlobals
from penstock._processes._patience import FIRST_RESTART_SECONDS, LONGEST_RESTART_SECONDS, RestartPolicy
from penstock._processes._seeding import GlobalSeeds
from penstock.errors import ClosedError, WorkerError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_MAX_DOUBLINGS: Final = 30


@frozen
class Starting:
    """The way in which processes are started; all attributes but the last are arguments of `ChildProcess`.

    Attributes:
        method: "forkserver", "spawn", or None for the first where there is one.
        threads: how many threads BLAS, OpenCV and torch have in each process; None leaves them alone.
        imports_main: whether processes import the program's main module.
        keeps_spare: whether the fork server keeps a process forked ahead, so that restarts take less time.
    """

    method: StartMethod | None = None
    threads: int | None = None
    imports_main: bool = True
    keeps_spare: bool = False


class Death(NamedTuple):
    """The death of a process, for its owner.

    Attributes:
        error: the WorkerError to raise or to log.
        may_restart: whether the policy allows another process with its number.
    """

    error: WorkerError
    may_restart: bool


class Supervisor:
    """Owns the child processes of one owner. Any thread may call any method.

    Args:
        target: runs in each process, once its signals, its seeds and the script's globals are set up, with its end of
            the pipe and the arguments of `start`.
        seeds: returns the seeds of a process's global generators, for its number and for how many processes had that
            number before it.
        policy: limits restarts.
        starting: how processes are started.
    """

    def __init__(
        self,
        target: Callable[..., None],
        seeds: Callable[[int, int], GlobalSeeds],
        *,
        policy: RestartPolicy,
        starting: Starting,
    ) -> None:
        self._target = target
        self._seeds = seeds
        self._policy = policy
        self._starting = starting
        self._pid = os.getpid()
        self._closing = threading.Event()
        self._lock = threading.RLock()  # protects all below; the garbage collector may close an owner while it is held
        self._numbers: dict[ChildProcess, int] = {}  # of the registered processes
        self._deaths: dict[ChildProcess, Death] = {}  # of those that were reaped
        self._lives = Counter[int]()  # processes started, by number
        self._points = Counter[int]()
        self._fruitless = Counter[int]()  # deaths in a row without work done, by number
        self._any_started = False
        self._finalizer: Finalize | None = None
        self._main_globals = MainGlobals() if starting.imports_main else None
        follow_reloads(starting.method)
        self._spare = open_spare(starting.method, starting.threads) if starting.keeps_spare else None

    @property
    def is_owned_here(self) -> bool:
        """Whether this process made the supervisor, and is no fork of the one that did."""
        return os.getpid() == self._pid

    @property
    def is_closing(self) -> bool:
        """Whether no process is started any more."""
        return self._closing.is_set()

    def end_with_program(self, end: Callable[[], object], owner: object = None) -> None:
        """Have a function called at the end of the program, or as soon as an object was dropped; `close` cancels it.

        It runs before `multiprocessing` ends its processes; a finalizer of `weakref` would find them closed.
        """
        self._finalizer = Finalize(owner, end, exitpriority=0)

    def cancel_end_with_program(self) -> None:
        """Take back `end_with_program`; harmless when repeated."""
        if self._finalizer is not None:
            self._finalizer.cancel()

    def start(self, name: str, arguments: tuple[object, ...], *, number: int = 0) -> ChildProcess:
        """Start a process; wait before, if the policy says so.

        Args:
            name: of the process, in messages.
            arguments: pickled for the target.
            number: of the process; its predecessor with this number must have been released.

        Raises:
            ClosedError: no process is started any more.
        """
        with self._lock:
            delay = self._delay(number)
        if self._closing.wait(delay) if delay else self._closing.is_set():
            raise _closed()
        with self._lock:
            seeds = self._seeds(number, self._lives[number])
            self._lives[number] += 1
        child = self._registered(name, (self._main_globals, seeds, self._target, *arguments), number)
        if child is None:
            raise _closed()
        return child

    @uninterrupted  # between its start and its registration nobody could end the process
    def _registered(self, name: str, arguments: tuple[object, ...], number: int) -> ChildProcess | None:
        child = ChildProcess(
            _run,
            arguments,
            name=name,
            start_method=self._starting.method,
            threads=self._starting.threads,
            imports_main=self._starting.imports_main,
        )
        with self._lock:
            if not self._closing.is_set():
                self._numbers[child] = number
                return child
        child.close()
        return None

    def has_started(self, child: ChildProcess) -> None:
        """Note that a process got as far as its own work."""
        with self._lock:
            self._any_started = True
            self._points[self._numbers.get(child, 0)] = 0

    def reap(self, child: ChildProcess, *, started: bool, hung: bool = False, has_worked: bool = True) -> Death:
        """Wait for the exit of a process that is dying, and count the death; `release` is still to be called.

        Called again for the same process, it returns the same.

        Args:
            child: the process; it is killed if it doesn't end within half a second.
            started: whether it got as far as its own work.
            hung: whether the owner killed it since it hung.
            has_worked: whether a process with its number has ever done any work.
        """
        error = child.death(started=started)
        with self._lock:
            if child not in self._deaths:
                number, policy = self._numbers.get(child, 0), self._policy
                self._any_started = self._any_started or started
                # An exit code is unknown if the fork server was killed; it may never have given the process its work.
                was_killed = (error.exit_code is None or error.exit_code < 0) and not hung
                points = policy.killed_start if was_killed else policy.failed_start
                self._points[number] = 0 if started else self._points[number] + points
                self._fruitless[number] = 0 if has_worked else self._fruitless[number] + 1
                limit = policy.limit if self._any_started or not policy.first_must_start else 1
                self._deaths[child] = Death(error, started or self._points[number] < limit)
            return self._deaths[child]

    def release(self, child: ChildProcess, patience_seconds: float = 0.0) -> None:
        """End a process, close it and forget it; harmless when repeated.

        Args:
            child: the process.
            patience_seconds: how long it has to end by itself, once it has got an empty message; at 0 it is killed.
        """
        if patience_seconds:
            child.end(patience_seconds)
        else:
            child.close()
        with self._lock:
            self._numbers.pop(child, None)
            self._deaths.pop(child, None)

    def refuse(self) -> None:
        """Let no process start from now on."""
        if self.is_owned_here:
            with self._lock:
                self._closing.set()
            if self._spare is not None:
                self._spare.close()

    def kill(self) -> None:
        """Kill all processes, and let no other one start; the owner's threads release them."""
        if not self.is_owned_here:
            return
        self.refuse()
        with self._lock:
            children = list(self._numbers)
        for child in children:
            child.kill()

    def close(self) -> None:
        """Kill and release the processes that are still registered; harmless when repeated.

        No other thread may wait for one of them at that time: an owner whose threads do calls `kill`, and waits for
        the threads.
        """
        if not self.is_owned_here:
            return
        self.refuse()
        with self._lock:
            children = list(self._numbers)
        for child in children:
            self.release(child)
        self.cancel_end_with_program()

    def _delay(self, number: int) -> float:
        prompt = self._policy.prompt_restarts
        return 0.0 if prompt is None else restart_delay(self._fruitless[number], prompt)


def restart_delay(fruitless: int, prompt_restarts: int) -> float:
    """Return how many seconds to wait before a restart, after so many deaths in a row without any work done."""
    if fruitless <= prompt_restarts:
        return 0.0
    doublings = min(fruitless - prompt_restarts - 1, _MAX_DOUBLINGS)
    return min(FIRST_RESTART_SECONDS * 2.0**doublings, LONGEST_RESTART_SECONDS)


def _run(
    pipe: "Connection[Any, Any]",
    _main_globals: None,  # they are set now, before what may need them was unpickled
    seeds: GlobalSeeds,
    target: Callable[..., None],
    *arguments: object,
) -> None:
    begin_process(seeds)
    target(pipe, *arguments)


def _closed() -> ClosedError:
    return ClosedError("no process is started any more: the owner of the processes was closed")
