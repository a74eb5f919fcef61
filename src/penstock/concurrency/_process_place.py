"""A pool's worker in a process of its own; a thread beside the event loop talks with the process.

Guarantees:
  - The death of a process, busy or idle, is reported at once as a WorkerError with its exit code: the thread waits for
    the answer and for the end of the process together, and the loop watches an idle process.
  - A cancelled call kills the process, so no wait is without an end.
  - After `close` the process has ended and was waited for.
  - Ctrl-C, which a terminal sends to all processes, ends no worker, at no moment of its start either.
  - Jobs are pickled, and results unpickled, outside of the loop's thread.
"""

import asyncio
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, NoReturn, ParamSpec, TypeVar, cast

from penstock._caught import Caught
from penstock._processes import (
    GlobalSeeds,
    PackedError,
    RestartPolicy,
    Starting,
    StartMethod,
    Supervisor,
    unpack_raised,
)
from penstock.concurrency._process_child import RUN, START, STOP, Succeeded, serve
from penstock.concurrency._thread_place import ThreadPlace
from penstock.concurrency._worker import Worker
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock._processes import ChildProcess
    from penstock.errors import WorkerError

Job = ParamSpec("Job")
Result = TypeVar("Result")

_NO_RESTARTS: Final = RestartPolicy()


class ProcessPlace(Generic[Job, Result]):
    """Owns the thread, which owns the process.

    Args:
        factory: the pickled function that makes the worker.
        name: of the worker, for the thread's name and for messages.
        start_method: "spawn" or "forkserver".
        seeds: of the process's global random generators.
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
        """Stop the worker and wait for the end of its process; do nothing if a cancelled call has killed it."""
        if not self._supervisor.is_closing:
            self._ask(STOP)
            self._living().wait_for_end()

    def finish(self) -> None:
        """Make sure that the process has ended, and close what belongs to it."""
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
        outcome: Succeeded | PackedError = pickle.loads(answer)
        if isinstance(outcome, Succeeded):
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
