"""Processes that run tasks claimed from a shared slot ring, each watched by a thread of the parent.

Guarantees:
  - Each process has a number, and at most one living process has it. When one dies, its block is given to others at
    once, or finished in its name where the employer says so; then another process takes its place.
  - One that is at the same work for longer than it may be is killed, and is dead like any other.
  - Processes that die again and again before they have started are an error of the whole crew. After those that had
    started, and died before they had finished any block, the next ones are started later and later.
  - Nothing is sent to a process but what it asks for, so nothing piles up before one that is busy.
  - `close` returns when all processes have ended and were waited for; those that are inside a function of the dataset
    are killed after `_PATIENCE_SECONDS`. They end with their parent, and print nothing on Ctrl-C.
"""

import errno
import itertools
import logging
import pickle
import resource
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing import reduction
from multiprocessing.util import Finalize
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock._caught import Caught
from penstock._frozen import frozen
from penstock._os import DaemonThread
from penstock._processes._child import ChildProcess, StartMethod, open_spare, uses_server
from penstock._processes._exceptions import PackedError, unpack_error
from penstock._processes._main_module import check_guard, is_imported
from penstock._processes._seeding import GlobalSeeds
from penstock._ring import SlotRing
from penstock._workers._stack import STACK_SIGNAL, StackFile
from penstock.errors import WorkerError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_MAX_TROUBLE: Final = 10  # so many in a row that were killed at their start, or two that failed by themselves or hung
_FAILURE: Final = 5
_AT_ONCE: Final = 3  # so many that did nothing have others take their place at once
_FIRST_WAIT_SECONDS: Final = 0.05
_LONGEST_WAIT_SECONDS: Final = 5.0
_PATIENCE_SECONDS: Final = 2.0
_NO_DESCRIPTORS: Final = {errno.EMFILE, errno.ENFILE}
_DESCRIPTORS_EACH: Final = 6
_logger = logging.getLogger("penstock")


class Employer(Protocol):
    """Who has work done by processes; all methods are called on the threads that watch them."""

    def busy_since(self, number: int) -> float | None:
        """Return since when, by `monotonic`, a process is at what it is at; None if it is at nothing."""
        ...

    def has_worked(self, number: int) -> bool:
        """Return whether a process has ever finished a block."""
        ...

    def died(self, number: int, pid: int, death: WorkerError) -> tuple[int, int] | None:
        """Learn that a process died; return the slot and the block that nobody shall try again, if it was at such."""
        ...

    def fail(self, error: BaseException) -> None:
        """Learn that no process can work."""
        ...


@frozen
class Work:
    """What runs in each process.

    Attributes:
        target: called with the process's pipe, its number, the seeds of its generators, and `Inherited` descriptors.
        descriptors: that it inherits.
        timeout: how many seconds it may be at the same thing; None for any time. Its last descriptor is a `StackFile`'s
            where this is given.
    """

    target: Callable[..., None]
    descriptors: tuple[int, ...]
    timeout: float | None = None


@frozen
class Starting:
    """How the processes are started.

    Attributes:
        seeds: of the global random generators of all; each process derives its own from them.
        method: "forkserver", "spawn", or None for the first where there is one.
        threads: how many threads BLAS, OpenCV and torch have in each; None leaves them alone.
    """

    seeds: GlobalSeeds
    method: StartMethod | None = None
    threads: int | None = 1


class WorkerProcesses:
    """Owns the processes and the threads.

    Args:
        ring: where tasks are claimed; it lies in shared memory.
        count: how many processes, at least 1.
        work: what they do.
        employer: who is told.
        starting: how they are started.
    """

    def __init__(self, ring: SlotRing, count: int, work: Work, employer: Employer, starting: Starting) -> None:
        self._ring = ring
        self._count = count
        self._work = work
        self._employer = employer
        self._starting = starting
        if not uses_server(starting.method):
            check_guard()
        self._imports_main = is_imported()  # asked here, since threads start the processes
        self._lock = threading.Lock()  # over the three below
        self._children: dict[int, ChildProcess] = {}
        self._shared: dict[int, int] = {}  # descriptors by the numbers that processes know them by
        self._closing = threading.Event()
        self._spare = open_spare(starting.method, starting.threads)  # who dies is replaced at once
        # Before `multiprocessing` ends its processes at the end of the program, and finds them closed.
        self._threads: list[DaemonThread] = []
        self._finalizer = Finalize(None, self.close, exitpriority=0)
        try:
            for number in range(count):
                self._threads.append(DaemonThread(partial(self._watch, number), f"penstock-{number}"))
        except OSError as error:
            self._explain(error)
            self.close()
            raise

    def share(self, number: int, descriptor: int) -> None:
        """Have a descriptor ready for processes that ask for it by a number, until `unshare`."""
        with self._lock:
            self._shared[number] = descriptor

    def unshare(self, number: int) -> None:
        """Give it to no process any more; it may be closed then."""
        with self._lock:
            self._shared.pop(number, None)

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            self._closing.set()
        self._ring.stop()
        deadline = monotonic() + _PATIENCE_SECONDS
        for number, thread in enumerate(self._threads):
            if not thread.is_current and not thread.wait(max(deadline - monotonic(), 0.0)):
                self._kill(number)
                thread.wait(None)
        if self._spare is not None:
            self._spare.close()
        self._finalizer.cancel()
        if not any(thread.is_current for thread in self._threads):
            # Its owner has it, too: no thread asks for it now, and the cycle would keep descriptors open.
            vars(self).pop("_employer", None)

    def _kill(self, number: int) -> None:
        with self._lock:
            child = self._children.get(number)
            if child is not None:
                child.kill()

    # -- in the threads

    def _watch(self, number: int) -> None:
        stack: StackFile | None = None
        try:
            stack = None if self._work.timeout is None else StackFile()
            self._employ(number, stack)
        except OSError as error:
            self._give_up(error)
        finally:
            if stack is not None:
                stack.close()

    def _employ(self, number: int, stack: StackFile | None) -> None:
        trouble = fruitless = 0
        for life in itertools.count():
            child = self._start(number, life, stack, fruitless)
            if child is None:
                return
            if not self._adopt(number, child):
                child.close()
                return
            has_started, hangs = self._listen(number, child)
            if hangs:
                child.kill(STACK_SIGNAL)
                child.wait_for_end(_PATIENCE_SECONDS)
            with self._lock:
                closing = self._closing.is_set()
                death = child.death(started=has_started)
                del self._children[number]
                child.close()
            if closing:
                return
            was_killed = death.exit_code is not None and death.exit_code < 0
            trouble = 0 if has_started else trouble + (1 if was_killed and not hangs else _FAILURE)
            if hangs and stack is not None:
                death = self._hanging(number, child.pid, stack, death)
            if trouble >= _MAX_TROUBLE:
                self._employer.fail(death)
                return
            _logger.warning("another process takes the place of one that died: %s", death)
            fruitless = 0 if self._employer.has_worked(number) else fruitless + 1
            self._take_back(number, child.pid, death)

    def _hanging(self, number: int, pid: int, stack: StackFile, death: WorkerError) -> WorkerError:
        where = stack.take() or "(no stack: it could not even take a signal)"
        return WorkerError(
            f"the process of worker {number} (pid {pid}) was killed since it was at the same work for longer than "
            f"timeout={self._work.timeout} seconds. It was here:\n{where}",
            exit_code=death.exit_code,
        )

    def _start(self, number: int, life: int, stack: StackFile | None, fruitless: int) -> ChildProcess | None:
        if self._closing.wait(waited_seconds(fruitless)):
            return None
        descriptors = self._work.descriptors if stack is None else (*self._work.descriptors, stack.fileno())
        with Caught() as caught:
            return ChildProcess(
                self._work.target,
                (number, self._starting.seeds.child(number, life), Inherited(descriptors)),
                name=f"process of worker {number}",
                start_method=self._starting.method,
                threads=self._starting.threads,
                imports_main=self._imports_main,
            )
        self._give_up(caught.taken())
        return None

    def _adopt(self, number: int, child: ChildProcess) -> bool:
        with self._lock:
            if self._closing.is_set():
                return False
            self._children[number] = child
            return True

    def _listen(self, number: int, child: ChildProcess) -> tuple[bool, bool]:
        """Pass on what a process tells until its end; return whether it had started, and whether it hangs."""
        has_started = False
        try:
            while True:
                if not self._await(number, child):
                    return has_started, True
                if not child.pipe.poll():
                    break  # it has ended, and told all
                message = pickle.loads(child.pipe.recv_bytes())
                if isinstance(message, int):
                    self._send(child, message)
                elif isinstance(message, PackedError):
                    self._give_up(unpack_error(message))
                has_started = True
        except (EOFError, OSError) as error:  # killed, in the middle of a message perhaps
            if isinstance(error, OSError) and error.errno in _NO_DESCRIPTORS:
                self._give_up(error)
        return has_started, False

    def _give_up(self, error: BaseException) -> None:
        """Tell the employer why no process can be started."""
        self._explain(error)
        self._employer.fail(error)
        with self._lock:
            self._closing.set()

    def _explain(self, error: BaseException) -> None:
        if isinstance(error, OSError) and error.errno in _NO_DESCRIPTORS:
            files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            error.add_note(
                f"{self._count} worker processes take about {_DESCRIPTORS_EACH * self._count} descriptors, and this "
                f"program may have {files} open: raise the limit (ulimit -n), or take fewer workers"
            )

    def _send(self, child: ChildProcess, number: int) -> None:
        with self._lock:
            descriptor = self._shared.get(number)
            if descriptor is not None:  # else it was asked for just before all was closed
                reduction.send_handle(child.pipe, descriptor, 0)  # whose it will be matters to Windows alone

    def _await(self, number: int, child: ChildProcess) -> bool:
        """Wait until a process has told something or ended; return False if it hangs."""
        timeout = self._work.timeout
        if timeout is None:
            return child.wait()
        left = timeout
        while not child.wait(left):
            since = self._employer.busy_since(number)
            left = timeout if since is None else since + timeout - monotonic()
            if left <= 0:
                return False
        return True

    def _take_back(self, number: int, pid: int, death: WorkerError) -> None:
        with Caught():  # it may have finished the block, and died before it said so
            condemned = self._employer.died(number, pid, death)
            if condemned is not None:
                self._ring.finish(*condemned, number)
        self._ring.release_worker(number)


def waited_seconds(fruitless: int) -> float:
    """Return how long to wait before the next process is started, after so many in a row that did nothing."""
    if fruitless <= _AT_ONCE:
        return 0.0
    return min(_FIRST_WAIT_SECONDS * 2.0 ** min(fruitless - _AT_ONCE - 1, 30), _LONGEST_WAIT_SECONDS)


class Inherited:
    """Descriptors among a process's arguments.

    Attributes:
        taken: the descriptors; in the process its own copies, which it closes.
    """

    def __init__(self, descriptors: tuple[int, ...]) -> None:
        self.taken = descriptors

    def __reduce__(self) -> tuple[object, ...]:
        return _arrived, tuple(map(reduction.DupFd, self.taken))


class _Handle(Protocol):
    def detach(self) -> int: ...


def _arrived(*handles: _Handle) -> Inherited:
    return Inherited(tuple(handle.detach() for handle in handles))


class SharedDescriptors:
    """A process's side of `WorkerProcesses.share`."""

    def __init__(self, pipe: "Connection[Any, Any]") -> None:
        self._pipe = pipe

    def ask(self, number: int) -> int:
        """Return a descriptor, which the caller closes; waits for it."""
        self._pipe.send_bytes(pickle.dumps(number))
        return reduction.recv_handle(self._pipe)
