"""The sending of a stage's items to an executor: to our own processes, or to the user's pool.

Guarantees:
  - Each item has an outcome of its own, whatever becomes of the processes. An item that had not been begun when its
    process died is done by another one.
  - In each process of a pool of the user's, the first call seeds the global random generators.
  - An object that can't be pickled never breaks a pool: it is an error of the call that it belongs to.
  - A pool of the user's whose process died is a WorkerError that names the stage.
"""

import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from penstock._caught import Caught
from penstock._processes import GlobalSeeds, draw_seeds, seed_pool_process
from penstock.errors import WorkerError
from penstock.pipeline._processes._chunks import (
    ChunkCall,
    Op,
    Outcome,
    PackedOutcomes,
    Values,
    as_exception,
    close_generator,
    dump,
    load,
    run_chunk,
    step_generator,
)
from penstock.pipeline._processes._dispatcher import ProcessExecutor, RunningProcesses, open_processes
from penstock.pipeline._stages import StageExecutor, Submits

if TYPE_CHECKING:
    from penstock.pipeline._processes._dispatcher import Worker


class Executors:
    """Owns the processes that the stages of a pipeline run in: those of one `ProcessExecutor` are shared by its stages.

    Its methods are called by one thread.

    Args:
        seeds: of the global random generators of all processes; None draws them when the first executor is needed.
    """

    def __init__(self, seeds: GlobalSeeds | None = None) -> None:
        self._seeds = seeds
        self._running: dict[int, tuple[ProcessExecutor, RunningProcesses]] = {}  # by identity, kept by being here
        self._stages: dict[str, RemoteStage] = {}  # by name; each pass has the same

    def remote(self, executor: StageExecutor, name: str, *, repeatable: bool = False) -> "RemoteStage":
        """Return the sender of a stage's items to its executor; start the processes, if they are ours.

        Args:
            executor: the stage's.
            name: of the stage; it names the same stage in each pass.
            repeatable: whether an item may be done again where its process died.

        Returns:
            The sender, which is the same one in each pass if the processes are ours.

        Raises:
            UsageError: an initializer can't be pickled.
        """
        if isinstance(executor, ThreadPoolExecutor):
            return RemoteStage(executor, name)
        if self._seeds is None:
            self._seeds = draw_seeds()
        if not isinstance(executor, ProcessExecutor):
            return RemoteStage(cast("Submits", executor), name, seeds=self._seeds)
        known = self._running.get(id(executor))
        if known is not None and known[1].is_broken:  # in an earlier pass; this one tries again
            known[1].kill()
        if known is None or known[1].is_broken:
            number = len(self._running) if known is None else [*self._running].index(id(executor))
            running = open_processes(executor, f"executor of stage {name!r}", seeds=self._seeds.child(number))
            self._running[id(executor)] = executor, running
        processes = self._running[id(executor)][1]
        stage = self._stages.get(name)
        if stage is None or not stage.sends_to(processes):
            stage = self._stages[name] = RemoteStage(processes, name, repeatable=repeatable)
        stage.begin_pass()
        return stage

    def close(self) -> None:
        """End our own processes, and drop the calls that they still run."""
        for _, running in self._running.values():
            running.kill()
        self._running.clear()
        self._stages.clear()


class RemoteStage:
    """Sends a stage's items to an executor.

    Args:
        executor: processes of ours, or a pool of the user's.
        name: of the stage, for errors.
        repeatable: whether items may be done again where a process of ours died.
        seeds: of the global random generators in processes of the user's pool; None where it has none.
    """

    def __init__(
        self,
        executor: RunningProcesses | Submits,
        name: str,
        *,
        repeatable: bool = False,
        seeds: GlobalSeeds | None = None,
    ) -> None:
        self._executor = executor
        self._name = name
        self.repeatable: bool = repeatable
        self._seeds = seeds
        self._call: ChunkCall | None = None
        self._is_current = False  # whether the call has the function as it is in this pass

    def sends_to(self, executor: object) -> bool:
        """Return whether this is the executor."""
        return self._executor is executor

    def begin_pass(self) -> None:
        """Have the function sent again if it has changed since the last pass."""
        self._is_current = False

    def send(self, op: Op, items: Sequence[object], *, flatten: bool) -> Future[list[Outcome]]:
        """Call a function for items, in the executor.

        Args:
            op: the function; always the same.
            items: the items; at most 60,000.
            flatten: whether it returns generators, whose results are `Values`.

        Returns:
            The future of the outcomes, one for each item up to one that takes long, or whose generator has not ended,
            or that killed a process. It raises the exception that prevents the call. Cancelling it cancels a call that
            has not begun.
        """
        if self._call is None or not self._is_current:
            in_steps = isinstance(self._executor, RunningProcesses)
            made = ChunkCall(op, self._name, flatten=flatten, in_steps=in_steps)
            if self._call is None or not self._call.equals(made):
                self._call = made
            self._is_current = True
        return _Sending(partial(self._submit, op, items, self._call, flatten=flatten)).outcomes

    def step(self, values: Values) -> "Future[list[Outcome]]":
        """Request the next step of a generator from the process that keeps it.

        Returns:
            The future of its outcome, as `send` gives it; it can't be cancelled. It raises a WorkerError if the process
            died.
        """
        outcomes: Future[list[Outcome]] = Future()
        outcomes.set_running_or_notify_cancel()

        def finish(submitted: Future[Any]) -> None:
            error = submitted.exception()  # not raised here, as in `_receive`
            if error is None:
                with Caught() as caught:
                    result: PackedOutcomes = submitted.result()
                    outcomes.set_result(result.unpack())
                error = None if caught.error is None else caught.taken()
            if error is not None:
                outcomes.set_exception(as_exception(error))

        self._submit_at(step_generator, values).add_done_callback(finish)
        return outcomes

    def close(self, values: Values) -> "Future[object]":
        """Close a generator in the process that keeps it.

        Returns:
            The future that is done when it is closed, or its process is dead; it can't be cancelled.
        """
        closed: Future[object] = Future()
        closed.set_running_or_notify_cancel()
        self._submit_at(close_generator, values).add_done_callback(lambda _: closed.set_result(None))
        return closed

    def _submit_at(self, function: Callable[[int], object], values: Values) -> Future[Any]:
        assert isinstance(self._executor, RunningProcesses)
        return self._executor.submit(function, values.token, at=cast("Worker", values.worker))

    def explain(self, error: BaseException) -> BaseException:
        """Return the error to raise for an exception of the executor."""
        return explain_death(error, self._name)

    def _submit(self, op: Op, items: Sequence[object], call: ChunkCall, *, flatten: bool) -> Future[Any]:
        if isinstance(self._executor, RunningProcesses):
            return self._executor.submit(call, items, repeatable=self.repeatable)
        if isinstance(self._executor, ProcessPoolExecutor):
            packed = cast("bytes", PackedItems(items, self._name))
            return self._executor.submit(run_in_process, call, packed, self._seeds)
        # On threads nothing is pickled, and pools of others' have ways of their own to do that.
        return self._executor.submit(partial(run_in_pool, flatten=flatten, seeds=self._seeds), op, items, os.getpid())


class PackedItems:
    """Items on their way: pickled when the pool sends them, off the caller's thread, and read by `run_in_process`."""

    def __init__(self, items: Sequence[object], name: str) -> None:
        self._items = items
        self._name = name

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (dump(self._items, f"the items of stage {self._name!r}"),)


def run_in_process(call: ChunkCall, items: bytes, seeds: GlobalSeeds | None) -> PackedOutcomes:
    """Return the outcomes of a chunk in a process of a `ProcessPoolExecutor`.

    Args:
        call: the stage's function.
        items: the `PackedItems`, as they arrive.
        seeds: of the pool's processes.
    """
    if seeds is not None:
        seed_pool_process(seeds)
    return call(cast("Sequence[object]", load(items, "the items of a stage")))


def run_in_pool(
    op: Op, items: Sequence[object], home: int, *, flatten: bool, seeds: GlobalSeeds | None
) -> list[Outcome]:
    """Return the outcomes of a chunk in a pool of any kind.

    Args:
        op: the stage's function.
        items: the items.
        home: the process that sent this; there, nothing is seeded.
        flatten: whether it returns generators.
        seeds: of the pool's processes.
    """
    if seeds is not None and os.getpid() != home:
        seed_pool_process(seeds)
    return run_chunk(op, items, flatten=flatten)


def explain_death(error: BaseException, name: str) -> BaseException:
    """Return the error to raise for an exception of a pool: if it is broken, a WorkerError that names the stage."""
    if not isinstance(error, BrokenExecutor):
        return error
    explained = WorkerError(
        f"a process of the executor of stage {name!r} died, and with it the calls of the whole pool ({error}). Memory "
        "that ran out and crashes in native code are the usual causes. With executor=ProcessExecutor(...) the pipeline "
        "says how a process died, and replaces it"
    )
    explained.__cause__ = error
    return explained


class _Outcomes(Future[list[Outcome]]):
    """The future of a chunk's outcomes. Cancelling it cancels the call if that has not begun, and does nothing else."""

    call: "weakref.ref[Future[Any]] | None" = None  # a future keeps its callbacks, so each would hold the other one

    def cancel(self) -> bool:
        """Return whether the call is cancelled; then so is this."""
        call = None if self.call is None else self.call()
        if call is not None:
            with Caught(Exception):  # of an executor of the user's
                call.cancel()  # its callback cancels this
        return self.cancelled()

    def follow(self) -> None:
        """Become cancelled, as the call is."""
        super().cancel()


class _Sending:
    """A chunk that is being sent.

    Attributes:
        outcomes: the future of its outcomes.
    """

    def __init__(self, submit: Callable[[], Future[Any]]) -> None:
        self.outcomes = _Outcomes()
        with Caught() as submitting:
            submitted = submit()
            self.outcomes.call = weakref.ref(submitted)
            submitted.add_done_callback(self._receive)
        if submitting.error is not None:
            self._fail(submitting.taken())

    def _receive(self, submitted: Future[Any]) -> None:
        if submitted.cancelled():
            self.outcomes.follow()
            return
        error = submitted.exception()  # not raised here, as its traceback would refer to this call, and so to itself
        if error is not None:
            self._fail(error)
            return
        outcomes: list[Outcome] = []
        with Caught() as caught:
            result: PackedOutcomes | list[Outcome] = submitted.result()
            outcomes = result.unpack() if isinstance(result, PackedOutcomes) else result
        if caught.error is not None:
            self._fail(caught.taken())
        elif self.outcomes.set_running_or_notify_cancel():
            self.outcomes.set_result(outcomes)

    def _fail(self, error: BaseException) -> None:
        if self.outcomes.set_running_or_notify_cancel():
            self.outcomes.set_exception(as_exception(error))
