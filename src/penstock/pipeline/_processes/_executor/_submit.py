"""A stage runs in other processes: ours, or those of a user's pool such as `concurrent.futures.ProcessPoolExecutor`.

Guarantees:
  - The first call in each process seeds its global generators, each process differently.
  - Nothing that can't be pickled breaks the pool: it is an error of the call that it belongs to.
  - A pool whose process died is a WorkerError that names the stage.
"""

from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any, cast

from penstock.concurrency._worker import Caught
from penstock.errors import WorkerError
from penstock.pipeline._processes._executor._chunks import ChunkCall, Outcome, PackedOutcomes, as_exception, dump, load
from penstock.pipeline._processes._executor._running import RunningProcesses


class PackedItems:
    """Items on their way: pickled when the pool sends them, off the caller's thread, and read by `run_in_process`."""

    def __init__(self, items: Sequence[object], name: str) -> None:
        self._items = items
        self._name = name

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (dump(self._items, f"the items of stage {self._name!r}"),)

    def __bytes__(self) -> bytes:
        return dump(self._items, f"the items of stage {self._name!r}")


def run_in_process(call: ChunkCall, items: PackedItems | bytes) -> PackedOutcomes:
    """Do what a stage asks of a process of a pool that isn't ours.

    Args:
        call: the stage's function.
        items: the items, which arrive as bytes.

    Returns:
        The outcomes of the items that were begun.
    """
    with Caught() as caught:
        return call(cast("Sequence[object]", load(bytes(items), "the items of a stage")))
    return PackedOutcomes.of([(False, as_exception(caught.error))])


def submit_chunk(
    executor: Executor | RunningProcesses,
    call: ChunkCall,
    items: Sequence[object],
    *,
    name: str,
    repeatable: bool = False,
) -> Future[list[Outcome]]:
    """Call a stage's function for items in other processes.

    Args:
        executor: ours, or a pool of the user's. Results are unpickled in its own threads.
        call: the function, made once for the stage.
        items: what to call it with; at most 60,000.
        name: of the stage, for errors.
        repeatable: whether items may be done again where a process died; a pool of the user's is broken then, though.

    Returns:
        The future of the outcomes of the first items: at least of one, at most of all; any of them may be a failure.
        The others were not begun, and may be submitted again. It raises a WorkerError if the pool is broken or a
        process died before an item was begun, and what else keeps a call from being made. Cancelling it cancels the
        call if that has not begun.
    """
    outcomes: Future[list[Outcome]] = Future()
    with Caught() as submitting:
        made: Future[Any] = (
            executor.submit(call, items, repeatable=repeatable)
            if isinstance(executor, RunningProcesses)
            else executor.submit(run_in_process, call, PackedItems(items, name))
        )
        outcomes.add_done_callback(lambda done: made.cancel() if done.cancelled() else None)
        made.add_done_callback(lambda done: _pass_on(done, outcomes, name))
    if submitting.error is not None:
        outcomes.set_exception(explain_death(submitting.error, name))
    return outcomes


def explain_death(error: BaseException, name: str) -> BaseException:
    """Return what a pool raised, as the error to tell: a WorkerError that names the stage, if the pool is broken."""
    if not isinstance(error, BrokenExecutor):
        return error
    told = WorkerError(
        f"a process of the executor of stage {name!r} died, and with it the calls of the whole pool ({error}). Memory "
        "that ran out and crashes in native code are the usual causes. With ProcessExecutor(...) the pipeline says how "
        "it died, and goes on with other processes"
    )
    told.__cause__ = error
    return told


def _pass_on(done: Future[Any], outcomes: Future[list[Outcome]], name: str) -> None:
    if done.cancelled():
        outcomes.cancel()
    if not outcomes.set_running_or_notify_cancel():
        return
    with Caught() as caught:
        result: PackedOutcomes | list[Outcome] = done.result()
        outcomes.set_result(result.unpack() if isinstance(result, PackedOutcomes) else result)
    if caught.error is not None:
        outcomes.set_exception(explain_death(caught.error, name))
