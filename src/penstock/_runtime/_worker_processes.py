"""Worker processes, which run blocks claimed from a shared slot ring; a thread of the parent watches each process.

Guarantees:
  - Each process has a number, which no other living process has. When a process dies, other processes get its block at
    once, or the block is finished in its name if the scheduler gives it up; then another process replaces it.
  - A process that is at the same block for longer than the timeout is killed, and counts as dead.
  - All workers fail if processes with one number die again and again before they have started: two that ended by
    themselves, or ten that were killed. If processes had started and died before they had finished any block, the next
    ones are started later and later.
  - A process gets only the descriptors that it requests, so nothing piles up in the pipe to a busy one.
  - An exception in a thread that watches a process, whatever raised it, is raised to the consumer.
  - `close` returns when all processes have ended and were waited for; one that is inside a function of the dataset is
    killed after `FUNCTION_SECONDS`. Processes end with their parent, and print nothing on Ctrl-C.

A process that hangs is sent a signal, upon which it writes the stacks of its threads to a `StackFile`, and dies. The
handler is that of `faulthandler`, which needs no lock and no thread, so it works inside of any call. After it the
system's own action for the signal follows and ends the process; so, once it has ended, everything is written.
"""

import errno
import faulthandler
import logging
import os
import pickle
import re
import resource
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing import reduction
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from penstock._caught import Caught
from penstock._frozen import frozen
from penstock._os import DaemonThread
from penstock._processes import (
    FUNCTION_SECONDS,
    GlobalSeeds,
    PackedError,
    Starting,
    Supervisor,
    check_guard,
    receive_descriptors,
    unpack_error,
    uses_server,
)
from penstock._ring import SlotRing
from penstock._runtime._policy import WORKER_RESTARTS
from penstock.errors import ClosedError, InternalError, WorkerError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from penstock._processes import ChildProcess

# Hardly used by other libraries: the first real-time signals are the C library's. Systems without them have no workers.
STACK_SIGNAL: Final[int] = getattr(signal, "SIGRTMIN", signal.SIGTERM) + 12
_MAX_BYTES: Final = 100_000
_MAX_CHARACTERS: Final = 8_000
_NO_DESCRIPTORS: Final = {errno.EMFILE, errno.ENFILE}
_DESCRIPTORS_EACH: Final = 6
_DESCRIPTORS: Final = b"descriptors"
_RELEASED: Final = b"released"
_logger = logging.getLogger("penstock")


class ProcessOwner(Protocol):
    """The part of the scheduler that the watching threads use; they call all methods."""

    def prepared(self, number: int, report: int | None) -> None:
        """Record that a process is about to claim its first block, and the number that it reports, if any."""
        ...

    def busy_since(self, number: int) -> float | None:
        """Return the time, by `monotonic`, at which a process began its block; None if it is idle."""
        ...

    def has_worked(self, number: int) -> bool:
        """Return whether a process with this number has ever finished a block."""
        ...

    def died(self, number: int, pid: int, death: WorkerError) -> tuple[int, int] | None:
        """Record the death of a process; return the slot and the block that no process should try again, if any."""
        ...

    def fail(self, error: BaseException) -> None:
        """Record that no process can work."""
        ...


@frozen
class ProcessMain:
    """The function that each process runs, and what it needs.

    Attributes:
        target: called with the pipe of the process, its number, and `Inherited` descriptors.
        descriptors: the descriptors that the process inherits. With a timeout, that of a `StackFile` follows them.
        timeout: how many seconds a process may be at the same block; None for no limit.
    """

    target: Callable[..., None]
    descriptors: tuple[int, ...]
    timeout: float | None = None


class Prepared(NamedTuple):
    """The message of a process that is about to claim its first block.

    Attributes:
        report: the number that `worker_init` returned; None if it returned none.
    """

    report: int | None


class StackFile:
    """Owns the memory to which a process, and later its successors, write their stacks."""

    def __init__(self) -> None:
        self._memory = os.fdopen(os.memfd_create("penstock-stack"), "r+b", buffering=0)

    def fileno(self) -> int:
        """Return the descriptor of the memory; processes get copies of it."""
        return self._memory.fileno()

    def take(self) -> str:
        """Return the stacks that the process has written, that of the main thread first, and clear the memory."""
        self._memory.seek(0)  # also the offset at which the next process writes
        written = self._memory.read(_MAX_BYTES).decode(errors="replace")
        self._memory.seek(0)
        self._memory.truncate()
        stacks = written.strip().split("\n\n")
        return "\n\n".join(re.sub(r"0x[0-9a-f]+ ", "", stack) for stack in reversed(stacks))[:_MAX_CHARACTERS]

    def close(self) -> None:
        """Free the memory."""
        self._memory.close()


def answer_with_stack(descriptor: int) -> None:
    """Make this process write to a `StackFile` and die when it receives the signal."""
    faulthandler.register(STACK_SIGNAL, descriptor, all_threads=True, chain=True)


class WorkerProcesses:
    """Owns the processes, and a thread for each.

    Args:
        ring: the ring in which blocks are claimed; it is in shared memory.
        count: the number of processes, at least 1.
        main: the function that each process runs.
        owner: decides whether the block of a dead process is given up.
        seeds: the seeds of global random generators, from which each process derives its own.
        starting: how processes are started.
    """

    def __init__(
        self,
        ring: SlotRing,
        count: int,
        *,
        main: ProcessMain,
        owner: ProcessOwner,
        seeds: GlobalSeeds,
        starting: Starting,
    ) -> None:
        self._ring = ring
        self._count = count
        self._main = main
        self._owner = owner
        if not uses_server(starting.method):
            check_guard()  # in this thread: those that start processes run no statement of the script
        self._supervisor = Supervisor(main.target, seeds.child, policy=WORKER_RESTARTS, starting=starting)
        self._lock = threading.Lock()
        self._shared: dict[
            int, int
        ] = {}  # descriptors by the numbers under which processes request them; protected by the lock
        self._newest: dict[int, ChildProcess] = {}  # prepared, by number; an ended one until another replaces it
        self._begun = threading.Condition()  # notified when `_newest` grows, or will not grow any more
        self._threads: list[DaemonThread] = []
        self._supervisor.end_with_program(self.close)
        try:
            for number in range(count):
                self._threads.append(DaemonThread(partial(self._watch, number), f"penstock-{number}"))
        except BaseException as error:
            self._explain(error)
            self.close()
            raise

    def share(self, number: int, descriptor: int) -> None:
        """Send a descriptor to processes that request it by a number, until `unshare`."""
        with self._lock:
            self._shared[number] = descriptor

    def unshare(self, number: int) -> None:
        """Send a descriptor to no process any more; it may be closed then."""
        with self._lock:
            self._shared.pop(number, None)

    def newest(self) -> "list[ChildProcess]":
        """Return the newest prepared process with each number; wait for the first ones, unless they can't start."""
        with self._begun:
            self._begun.wait_for(lambda: len(self._newest) == self._count or self._supervisor.is_closing)
            return [self._newest[number] for number in sorted(self._newest)]

    def close(self) -> None:
        """End the processes."""
        self._refuse()
        self._ring.stop()
        deadline = monotonic() + FUNCTION_SECONDS
        for thread in self._threads:
            if not thread.is_current and not thread.wait(max(deadline - monotonic(), 0.0)):
                self._supervisor.kill()
                thread.wait(None)
        self._supervisor.cancel_end_with_program()
        if not any(thread.is_current for thread in self._threads):
            # The owner refers to this object, too: no thread needs it now, and the cycle would keep descriptors open.
            vars(self).pop("_owner", None)

    # -- in the threads

    def _watch(self, number: int) -> None:
        stack: StackFile | None = None
        with Caught() as caught:
            stack = None if self._main.timeout is None else StackFile()
            while self._start_and_watch(number, stack):
                pass
        if caught.error is not None:  # of a filter of the log, perhaps; the consumer would wait for ever
            self._give_up(caught.taken())
        if stack is not None:
            stack.close()

    def _start_and_watch(self, number: int, stack: StackFile | None) -> bool:
        """Start a process and watch it until it has died; return whether another one replaces it."""
        child = self._start(number, stack)
        if child is None:
            return False
        try:
            return self._watch_to_end(number, child, stack)
        except BaseException:
            self._supervisor.release(child)
            raise

    def _watch_to_end(self, number: int, child: "ChildProcess", stack: StackFile | None) -> bool:
        started, hung = self._listen(number, child)
        if hung:
            child.kill(STACK_SIGNAL)
            child.wait_for_end(FUNCTION_SECONDS)
        has_worked = self._owner.has_worked(number)
        death, may_restart = self._supervisor.reap(child, started=started, hung=hung, has_worked=has_worked)
        self._supervisor.release(child)
        if self._supervisor.is_closing:
            return False
        if hung and stack is not None:
            death = self._hanging(number, child.pid, stack, death)
        if not may_restart:
            self._owner.fail(death)
            self._refuse()
            return False
        _logger.warning("another process replaces one that died: %s", death)
        self._take_back(number, child.pid, death)
        return True

    def _hanging(self, number: int, pid: int, stack: StackFile, death: WorkerError) -> WorkerError:
        where = stack.take() or "(no stack: it did not respond to a signal)"
        return WorkerError(
            f"the process of worker {number} (pid {pid}) was killed because it was at the same work for longer than "
            f"timeout={self._main.timeout} seconds. Raise the timeout if the work takes longer. It was here:\n{where}",
            exit_code=death.exit_code,
        )

    def _start(self, number: int, stack: StackFile | None) -> "ChildProcess | None":
        descriptors = self._main.descriptors if stack is None else (*self._main.descriptors, stack.fileno())
        with Caught() as caught:
            arguments = (number, Inherited(descriptors))
            return self._supervisor.start(f"process of worker {number}", arguments, number=number)
        self._not_started(caught.taken())
        return None

    def _not_started(self, error: BaseException) -> None:
        if not (isinstance(error, ClosedError) and self._supervisor.is_closing):
            self._give_up(error)

    def _listen(self, number: int, child: "ChildProcess") -> tuple[bool, bool]:
        """Answer the messages of a process until its end; return whether it had started, and whether it hangs."""
        has_started = False
        try:
            while True:
                if not self._await(number, child):
                    return has_started, True
                if not child.pipe.poll():
                    break  # it has ended, and there is no message left
                self._answer(number, child, pickle.loads(child.pipe.recv_bytes()))
                has_started = True
        except (EOFError, OSError) as error:  # it was killed, perhaps in the middle of a message
            if isinstance(error, OSError) and error.errno in _NO_DESCRIPTORS:
                self._give_up(error)
        return has_started, False

    def _answer(self, number: int, child: "ChildProcess", message: object) -> None:
        if isinstance(message, list):
            self._send(child, cast("list[int]", message))
        elif isinstance(message, Prepared):
            child.wait_until_started()  # here, since only one thread may wait for it
            with self._begun:
                self._newest[number] = child
                self._begun.notify_all()
            self._owner.prepared(number, message.report)
        elif isinstance(message, PackedError):
            self._give_up(unpack_error(message))

    def _give_up(self, error: BaseException) -> None:
        """Report the error because of which no process can be started."""
        self._explain(error)
        self._owner.fail(error)
        self._refuse()

    def _refuse(self) -> None:
        """Let no process start from now on."""
        self._supervisor.refuse()
        with self._begun:
            self._begun.notify_all()

    def _explain(self, error: BaseException) -> None:
        # ETOOMANYREFS: too many descriptors are on their way between processes, which passes once they have arrived.
        if isinstance(error, OSError) and error.errno in {*_NO_DESCRIPTORS, errno.ETOOMANYREFS}:
            files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            error.add_note(
                f"{self._count} worker processes take about {_DESCRIPTORS_EACH * self._count} descriptors, and a large "
                f"batch that you keep takes one; this program may have {files} open: raise the limit (ulimit -n), keep "
                "fewer batches or pass copy=True, or take fewer workers"
            )

    def _send(self, child: "ChildProcess", numbers: list[int]) -> None:
        with self._lock:
            descriptors = [self._shared[number] for number in numbers if number in self._shared]
            is_complete = len(descriptors) == len(numbers)
            with _link(child.pipe) as link:  # without an answer the process would wait for ever
                socket.send_fds(link, [_DESCRIPTORS if is_complete else _RELEASED], descriptors)

    def _await(self, number: int, child: "ChildProcess") -> bool:
        """Wait until a process has sent a message or ended; return False if it hangs."""
        timeout = self._main.timeout
        if timeout is None:
            return child.wait()
        left = timeout
        while not child.wait(left):
            since = self._owner.busy_since(number)
            left = timeout if since is None else since + timeout - monotonic()
            if left <= 0:
                return False
        return True

    def _take_back(self, number: int, pid: int, death: WorkerError) -> None:
        """Free the claim of a process that has ended; finish its block in its name if the scheduler gives it up."""
        with Caught():  # `finish` raises if the process had finished the block, and ended before its record said so
            given_up = self._owner.died(number, pid, death)
            if given_up is not None:
                self._ring.finish(*given_up, number)
        self._ring.release_worker(number)


class Inherited:
    """Descriptors among the arguments of a process.

    Attributes:
        taken: the descriptors; the process gets copies, which it closes.
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
    """The other side of `WorkerProcesses.share`, in a worker process."""

    def __init__(self, pipe: "Connection[Any, Any]") -> None:
        self._pipe = pipe

    def ask(self, numbers: list[int]) -> list[int]:
        """Request descriptors, and wait for all of them; the caller closes them."""
        self._pipe.send_bytes(pickle.dumps(numbers))
        with _link(self._pipe) as link:
            message, descriptors = receive_descriptors(link, len(_DESCRIPTORS))
        if not message:
            raise EOFError  # the program has ended
        if len(descriptors) < len(numbers):  # the system drops those for which this process has no room
            for descriptor in descriptors:
                os.close(descriptor)
            if message == _RELEASED:
                raise InternalError(f"a worker process requested memory {numbers}, of which a part was released")
            raise OSError(
                errno.EMFILE, f"a worker process could open only {len(descriptors)} of {len(numbers)} regions"
            )
        return descriptors


def _link(pipe: "Connection[Any, Any]") -> socket.socket:
    """Return a copy of a pipe's descriptor that carries descriptors; the caller closes it."""
    return socket.fromfd(pipe.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)
