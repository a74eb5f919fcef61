"""A worker that lives in one process of its own; a thread beside the loop talks with it.

Guarantees:
  - A process that dies, busy or idle, is told at once as a WorkerError with its exit code: its end is an event that is
    waited for beside its answer.
  - A call that is cancelled kills the process, so nothing is waited for that can't be cancelled.
  - After `close` the process has ended and was waited for.
  - Ctrl-C, which a terminal sends to all processes, ends none that is spawned, at no moment of its start either.
  - Jobs are pickled, and results unpickled, outside the loop's thread.

Linux gives a descriptor of the process (a pidfd), through which a signal can't reach another one that got its number.
"""

import asyncio
import os
import pickle
import signal
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from multiprocessing import connection, get_context
from typing import TYPE_CHECKING, Final, Generic, Literal, NoReturn, ParamSpec, TypeVar, cast

from penstock._caught import Caught
from penstock._processes._child_ends import death_of, interrupts_blocked
from penstock._processes._exceptions import PackedError, unpack_raised
from penstock._processes._seeding import GlobalSeeds
from penstock.concurrency._process_child import RUN, START, STOP, Service, Succeeded
from penstock.concurrency._thread_place import ThreadPlace
from penstock.concurrency._worker import Worker
from penstock.errors import UsageError, WorkerError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

Job = ParamSpec("Job")
Result = TypeVar("Result")

StartMethod = Literal["spawn", "forkserver"]

_DYING_SECONDS: Final = 0.5  # what a process that closed its pipe has to end by itself, with its own exit code


class ProcessPlace(Generic[Job, Result]):
    """Owns the thread, which owns the process.

    Args:
        factory: what makes the worker, pickled.
        name: of the process and of the thread: which worker it is.
        start_method: how the process is started.
        seeds: of the process's global random generators.
        on_death: called in the loop's thread with a WorkerError when the process ends before it was told to.
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
        self._watched: int | None = None  # the descriptor that the loop looks at

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
        """End the process, by killing it if it runs still."""
        self._unwatch()
        await self._thread.close()

    def _died(self) -> None:
        self._unwatch()
        # Its exit code is known in a moment; the thread has it if a job was running, and then tells it too.
        self._on_death(self._process.death())

    def _unwatch(self) -> None:
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = None


class _Process(Generic[Job, Result]):
    """The worker as the thread sees it: its methods ask the process and wait for the answer."""

    def __init__(self, factory: bytes, name: str, start_method: StartMethod, seeds: GlobalSeeds) -> None:
        self._factory = factory
        self._seeds = seeds
        self._name = name
        self._context = get_context("spawn") if start_method == "spawn" else get_context("forkserver")
        # The fork server may be started by this, and all of the program's processes that it forks would be deaf.
        self._starting = interrupts_blocked if start_method == "spawn" else nullcontext
        self._requests: Connection[bytes, bytes] | None = None
        self._started = False  # the worker's start has returned
        self._lock = threading.Lock()  # over the four below: the loop's thread kills, and asks for the exit code
        self._process: BaseProcess | None = None
        self._pidfd: int | None = None
        self._killed = False
        self._death: WorkerError | None = None

    # -- in the place's thread

    def start(self) -> None:
        """Start the process, and the worker in it."""
        ours, theirs = cast(  # nothing else on this system
            "tuple[Connection[bytes, bytes], Connection[bytes, bytes]]", self._context.Pipe()
        )
        self._requests = ours
        # A daemon, so that a pool whose loop was dropped never keeps Python from ending.
        process = self._context.Process(
            target=Service(theirs, self._factory, self._seeds), name=self._name, daemon=True
        )
        try:
            with self._starting():
                process.start()
        finally:
            theirs.close()
        with self._lock:
            self._process = process
            with suppress(OSError, AttributeError):  # not on every system; the sentinel remains
                self._pidfd = os.pidfd_open(process.pid or 0)
            if self._killed:
                process.kill()
        self._ask(START)
        self._started = True

    def run(self, *args: Job.args, **kwargs: Job.kwargs) -> Result:
        """Return the result of a job that the process does."""
        pickled = b""
        with Caught() as pickling:
            pickled = pickle.dumps((args, kwargs), protocol=pickle.HIGHEST_PROTOCOL)
        pickling.pass_interrupt()
        if pickling.error is not None:
            _refuse("a job", _signature(args, kwargs), pickling.error)
        return cast("Result", self._ask(RUN, pickled))

    def stop(self) -> None:
        """Stop the worker and wait for the end of its process; nothing if a call was cancelled by killing it."""
        if not self._killed:
            self._ask(STOP)
            if self._process is not None:
                self._process.join()

    def finish(self) -> None:
        """Make sure that the process has ended, and close what belongs to it."""
        self.kill()
        with self._lock:
            if self._process is not None:
                self._process.join()
                with suppress(ValueError):  # its exit code was taken by someone else: it counts as running for ever
                    self._process.close()
                self._process = None
            if self._pidfd is not None:
                os.close(self._pidfd)
                self._pidfd = None
        if self._requests is not None:
            self._requests.close()

    def _ask(self, request: bytes, argument: bytes | None = None) -> object:
        assert self._requests is not None
        try:
            self._requests.send_bytes(request)
            if argument is not None:
                self._requests.send_bytes(argument)
            connection.wait([self._requests, self.fileno()])
            answer = self._requests.recv_bytes() if self._requests.poll() else b""
        except (EOFError, OSError):
            answer = b""
        if not answer:
            raise self.death()
        outcome: Succeeded | PackedError = pickle.loads(answer)
        if isinstance(outcome, Succeeded):
            return outcome.value
        raise unpack_raised(outcome)

    # -- in either thread

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the process has ended."""
        assert self._process is not None
        return self._process.sentinel if self._pidfd is None else self._pidfd

    def kill(self) -> None:
        """Kill the process, now or as soon as it starts."""
        with self._lock:
            self._killed = True
            if self._pidfd is not None:
                with suppress(ProcessLookupError):  # it was waited for
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            elif self._process is not None:
                self._process.kill()

    def death(self) -> WorkerError:
        """Return why the process is dead, which it is or will be in a moment; the same exception each time."""
        with self._lock:
            if self._death is None:
                assert self._process is not None
                if not connection.wait([self.fileno()], _DYING_SECONDS):
                    self._process.kill()
                self._process.join()
                # There is no exit code if someone else has waited for all children of this process.
                self._death = death_of(
                    f"process of {self._name}", self._process.pid, self._process.exitcode, started=self._started
                )
            return self._death


def pickled_factory(make_worker: Callable[[], Worker[Job, Result]]) -> bytes:
    """Return what a process needs to make a worker; raise a UsageError where it can't be pickled."""
    pickled = b""
    with Caught() as pickling:
        pickled = pickle.dumps(make_worker)
    pickling.pass_interrupt()
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
