"""What runs in the process of a worker: it answers one request at a time, and dies with its parent.

Guarantees:
  - Every request is answered, by a value or by what the worker raised, also where one of them can't be pickled.
  - When the parent has gone, however it went, the process ends at once, in the middle of a job too.
  - The global random generators are seeded before the worker is made.
  - Ctrl-C is the parent's to handle: it reaches all processes of a terminal, and the workers ignore it. One that is
    spawned starts with it blocked, and never notices it. One that is forked by Python's fork server may end by it
    until it has imported what it runs, in silence; from then on it ignores it.
"""

import asyncio
import contextlib
import inspect
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing import connection
from typing import TYPE_CHECKING, Any, Final

from penstock._caught import Caught
from penstock._processes._exceptions import pack_error
from penstock._processes._seeding import GlobalSeeds, seed_process

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from penstock.concurrency._worker import Worker

START: Final = b"start"
RUN: Final = b"run"  # the pickled job follows
STOP: Final = b"stop"


@dataclass(frozen=True, slots=True)
class Succeeded:
    """A method returned."""

    value: object


@dataclass(frozen=True, slots=True)
class Service:
    """What the process runs: it answers the parent's requests until the parent stops the worker or is gone.

    It is pickled to get there, and the process ignores Ctrl-C from its unpickling on, not from its call: in between
    Python does its own part of the start, and would print a traceback.

    Attributes:
        requests: the process's end of the pipe.
        factory: what makes the worker, pickled.
        seeds: of the process's global random generators.
    """

    requests: "Connection[Any, Any]"
    factory: bytes
    seeds: GlobalSeeds

    def __reduce__(self) -> "tuple[Callable[[Connection[Any, Any], bytes, GlobalSeeds], Service], tuple[object, ...]]":
        return _arrived, (self.requests, self.factory, self.seeds)

    def __call__(self) -> None:
        """Answer all requests."""
        seed_process(self.seeds)
        threading.Thread(target=_end_with_parent, name="penstock-parent-watch", daemon=True).start()
        with contextlib.suppress(EOFError, OSError), asyncio.Runner() as runner:
            _answer_all(self.requests, self.factory, runner)


def _arrived(requests: "Connection[Any, Any]", factory: bytes, seeds: GlobalSeeds) -> Service:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # forgets one that was blocked
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # as everything that a job starts expects it
    return Service(requests, factory, seeds)


def _answer_all(requests: "Connection[Any, Any]", factory: bytes, runner: asyncio.Runner) -> None:
    worker: Worker[..., Any] | None = None

    def start() -> None:
        nonlocal worker
        made: Worker[..., Any] = pickle.loads(factory)()
        _value(made.start(), runner)
        worker = made

    def run() -> object:
        assert worker is not None
        args, kwargs = pickle.loads(job)
        return _value(worker.run(*args, **kwargs), runner)

    def stop() -> None:
        if worker is not None:
            _value(worker.stop(), runner)

    job = b""
    methods: dict[bytes, Callable[[], object]] = {START: start, RUN: run, STOP: stop}
    request = b""
    while request != STOP:
        request = requests.recv_bytes()
        job = requests.recv_bytes() if request == RUN else b""
        requests.send_bytes(_outcome(methods[request]))


def _outcome(method: Callable[[], object]) -> bytes:
    # Job and result are let go of when this returns, not with the next request.
    outcome: bytes | None = None
    with Caught() as calling:
        value = method()
        with Caught() as pickling:
            outcome = pickle.dumps(Succeeded(value), protocol=pickle.HIGHEST_PROTOCOL)
        if pickling.error is not None:
            raise pickle.PicklingError(
                f"what a worker in a process returns is pickled; got {type(value).__qualname__}, which can't be: "
                f"{pickling.error!r}. Return something else, or run the workers in place='thread'"
            ) from pickling.error
    if outcome is not None:
        return outcome
    assert calling.error is not None
    return pickle.dumps(pack_error(calling.error))


def _value(returned: Awaitable[object] | object, runner: asyncio.Runner) -> object:
    return runner.run(_await(returned)) if inspect.isawaitable(returned) else returned


async def _await(awaitable: Awaitable[object]) -> object:
    return await awaitable


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    watched: list[int] = [parent.sentinel]
    with contextlib.suppress(OSError, AttributeError):  # not on every system, and not of one that has gone already
        # A process that the parent forked holds what the sentinel is made of, and may outlive it.
        watched.append(os.pidfd_open(parent.pid or 0))
    connection.wait(watched)
    os._exit(1)
