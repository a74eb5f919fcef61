"""The code that runs in the process of a pool's worker: it answers one request of the parent at a time.

Guarantees:
  - Every request is answered, by a value or by the exception that the worker raised, even if that can't be pickled.
  - The global random generators are seeded before the worker is made.
  - The process ignores Ctrl-C, which a terminal sends to all processes; the parent handles it.
  - When the parent has ended, the process ends at once, in the middle of a job, too.
"""

import asyncio
import inspect
import pickle
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock._caught import Caught
from penstock._processes import pack_error

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from penstock.concurrency._worker import Worker

START: Final = b"start"
RUN: Final = b"run"  # the pickled job follows
STOP: Final = b"stop"


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The answer of a method that returned; the answer of one that raised is a PackedError."""

    value: object


def serve(requests: "Connection[Any, Any]", factory: bytes) -> None:
    """Answer the parent's requests until it stops the worker or has ended.

    Args:
        requests: this process's end of the pipe.
        factory: the pickled function that makes the worker.
    """
    with suppress(EOFError, OSError), asyncio.Runner() as runner:
        _answer_all(requests, factory, runner)


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
        requests.send_bytes(_answer(methods[request]))


def _answer(method: Callable[[], object]) -> bytes:
    # A function of its own, so that an idle process keeps neither job nor result.
    answer: bytes | None = None
    with Caught() as calling:
        value = method()
        with Caught() as pickling:
            answer = pickle.dumps(Succeeded(value), protocol=pickle.HIGHEST_PROTOCOL)
        if pickling.error is not None:
            raise pickle.PicklingError(
                f"the results of workers in processes are pickled; got {type(value).__qualname__}, which can't be: "
                f"{pickling.error!r}. Return something else, or run the workers in place='thread'"
            ) from pickling.error
    if answer is not None:
        return answer
    assert calling.error is not None
    return pickle.dumps(pack_error(calling.error))


def _value(returned: Awaitable[object] | object, runner: asyncio.Runner) -> object:
    return runner.run(_await(returned)) if inspect.isawaitable(returned) else returned


async def _await(awaitable: Awaitable[object]) -> object:
    return await awaitable
