"""One run of a pipeline: a task for each stage, from the first item to the last, or until the run is cancelled.

The problem: three things end a run, and they travel in opposite directions. When the items run out, the end has to
follow them down to the reader. When a stage fails, the items computed before it have to arrive first, and the stages
before it should stop at once, since nobody takes their items. When the user stops, everything should stop at once.

The solution: downstream, a stage's end is the end of its outputs: it comes after all items, with the failure, if there
is one. Upstream, a task that ends cancels the tasks from which it took items. A stop cancels all of them.

An `asyncio.TaskGroup` alone doesn't do this: at the first exception it cancels all tasks, also those that still carry
the items computed before the failure. So a task of the group never raises a failure; it passes it on as a value.

Guarantees:
  - A task that ends passes its failure, or none, to its outputs, and cancels the tasks upstream that still run.
  - `run` returns when none of its tasks is left, whether it ended, failed, or was cancelled at any await, or twice.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock._caught import Caught
from penstock.errors import InternalError, PipelineFailure, WorkerError
from penstock.pipeline._failures import stage_failure


class EndedOutput(Protocol):
    """An output that can be ended: a channel, the outlet, or a branch."""

    def end(self, failure: PipelineFailure | None) -> None:
        """Mark the end of all passes, with the failure that caused it, if any."""


@dataclass(slots=True)
class StageTask:
    """A stage, a source or a merge, which runs as a task of its own.

    Attributes:
        name: the name of the task.
        run: the coroutine function that runs; an exception that it raises ends the pipeline.
        input_failure: returns the failure that ended the input; None if there is none.
        outputs: the outputs that are ended when the task ends.
        upstream: the tasks from which it takes items, directly or not; they are cancelled when it ends.
    """

    name: str
    run: Callable[[], Awaitable[None]]
    input_failure: Callable[[], PipelineFailure | None]
    outputs: Sequence[EndedOutput]
    upstream: "list[StageTask]" = field(default_factory=list)


async def run(stages: Sequence[StageTask]) -> None:
    """Run all stages to their ends."""
    tasks: dict[int, asyncio.Task[None]] = {}
    try:
        async with asyncio.TaskGroup() as group:
            for stage in stages:
                tasks[id(stage)] = group.create_task(_drive(stage, tasks), name=stage.name)
    finally:
        tasks.clear()  # a task keeps the traceback of its cancellation, whose frames hold this dict: a reference cycle
        for stage in stages:  # for tasks that were cancelled before their first step; a second end has no effect
            for output in stage.outputs:
                output.end(None)


async def _drive(stage: StageTask, tasks: dict[int, asyncio.Task[None]]) -> None:
    failure: PipelineFailure | None = None
    with Caught() as caught:
        await stage.run()
        failure = stage.input_failure()
    if isinstance(caught.error, PipelineFailure):
        failure = caught.error
    elif isinstance(caught.error, WorkerError):
        failure = stage_failure(stage.name, caught.error)  # a thread that can't be started
    elif caught.error is not None and not isinstance(caught.error, asyncio.CancelledError):
        failure = _internal_failure(stage.name, caught.error)
    for output in stage.outputs:
        output.end(failure)
    for other in stage.upstream:
        tasks[id(other)].cancel()
    if isinstance(caught.error, asyncio.CancelledError):
        raise caught.taken()


def _internal_failure(stage: str, error: BaseException) -> PipelineFailure:
    failure = PipelineFailure(f"stage {stage!r} failed in Penstock itself", stage=stage)
    failure.__cause__ = InternalError(f"{type(error).__name__}: {error}")
    failure.__cause__.__cause__ = error
    return failure
