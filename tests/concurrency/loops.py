"""Event loops to test on, and a check that a loop logs no error."""

import asyncio
import functools
import gc
import importlib.util
import inspect
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Concatenate, ParamSpec, TypeVar

import pytest

from penstock.concurrency import NativeJob, NativeThreadPool

T = TypeVar("T")
P = ParamSpec("P")

LOOPS = ["asyncio", "uvloop"]
IN_PLACES = pytest.mark.parametrize("place", ["task", "thread", "process"])


def run_on(loop: str, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end on a new loop of that kind, and check that the loop has logged no error."""
    complaints: list[dict[str, Any]] = []

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        return await main()

    with asyncio.Runner(loop_factory=_factory(loop)) as runner:
        result = runner.run(watched())
        gc.collect()  # futures complain when they are dropped
    assert not complaints
    return result


def on_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test on a new loop of asyncio, which must log no error."""

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        run_on("asyncio", lambda: test(*arguments, **named))

    return run


def on_loops(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[Concatenate[str, P], None]:
    """Run an async test on a new loop of each kind, which must log no error."""

    @functools.wraps(test)
    def run(loop: str, *arguments: P.args, **named: P.kwargs) -> None:
        run_on(loop, lambda: test(*arguments, **named))

    own = inspect.Parameter("loop", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [own, *inspect.signature(test).parameters.values()]
    run.__dict__["__signature__"] = inspect.Signature(parameters)  # from which pytest has the names of fixtures
    on_each: Callable[Concatenate[str, P], None] = pytest.mark.parametrize("loop", LOOPS)(run)
    return on_each


def _factory(loop: str) -> Callable[[], asyncio.AbstractEventLoop]:
    if loop == "asyncio":
        return asyncio.new_event_loop
    if importlib.util.find_spec("uvloop") is None:
        pytest.skip("uvloop is not installed")
    new_event_loop: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return new_event_loop


async def in_another_thread(main: Coroutine[Any, Any, object]) -> None:
    """Run a coroutine to its end in a thread, on a new loop of the kind that runs here."""
    kind = type(asyncio.get_running_loop())

    def run() -> None:
        with asyncio.Runner(loop_factory=kind) as runner:
            runner.run(main)

    await asyncio.to_thread(run)


def run_jobs(*jobs: NativeJob[Any]) -> list[Any]:
    """Return the jobs' results, or their exceptions."""

    async def run() -> list[Any]:
        async with NativeThreadPool(2) as pool:
            futures = [pool.submit(job) for job in jobs]
            await asyncio.wait(futures) if futures else None
        return [future.exception() or future.result() for future in futures]

    return asyncio.run(run())


async def settle(turns: int = 10) -> None:
    """Let all callbacks run that are ready, and those that they make ready."""
    for _ in range(turns):
        await asyncio.sleep(0)


def ready(result: T) -> asyncio.Future[T]:
    """Return a completed future with that result."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    future.set_result(result)
    return future


class Steps:
    """Runs a coroutine, and cancels it at its n-th wait, or some turns of the loop later."""

    def __init__(self, coroutine: Coroutine[Any, Any, object], cancel_at: int, turns: int = 0) -> None:
        self._coroutine = coroutine
        self._cancel_at = cancel_at
        self._turns = turns
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        sent: Any = None
        error: BaseException | None = None
        while True:
            try:
                waited = self._coroutine.send(sent) if error is None else self._coroutine.throw(error)
            except StopIteration as stop:
                return stop.value
            self.waits += 1
            if self.waits == self._cancel_at:
                self._cancel_later(asyncio.current_task(), self._turns)
            sent, error = None, None
            try:
                sent = yield waited
            except BaseException as thrown:  # noqa: BLE001 - handed to the coroutine, whose it is
                error = thrown

    def _cancel_later(self, task: asyncio.Task[Any] | None, turns: int) -> None:
        assert task is not None
        if turns == 0:
            task.cancel()
        else:
            task.get_loop().call_soon(self._cancel_later, task, turns - 1)
