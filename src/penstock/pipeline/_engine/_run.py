"""One run of a pipeline: a task for each node, from the first item to the last, or until it is cancelled.

Guarantees:
  - A node that ends tells what is behind it, and cancels what is above it and still runs. So a failure travels down
    behind the items that were computed before it, and nothing above works for nobody.
  - The run returns when no task of it is left, whether it ended, failed, or was cancelled at any await, or twice.
"""

import asyncio
from collections.abc import Sequence

from penstock._caught import Caught
from penstock.errors import InternalError, PipelineFailure, WorkerError
from penstock.pipeline._engine._open import Node
from penstock.pipeline._failures import source_failure


async def run(nodes: Sequence[Node]) -> None:
    """Run all nodes to their ends."""
    tasks: dict[int, asyncio.Task[None]] = {}
    try:
        async with asyncio.TaskGroup() as group:
            for node in nodes:
                tasks[id(node)] = group.create_task(_drive(node, tasks), name=node.name)
    finally:
        tasks.clear()  # a task keeps what cancelled it, whose traceback holds a frame that holds these
        for node in nodes:  # those whose tasks were cancelled before their first step
            for end in node.ends:
                end.end(None)


async def _drive(node: Node, tasks: dict[int, asyncio.Task[None]]) -> None:
    failure: PipelineFailure | None = None
    with Caught() as caught:
        await node.run()
        failure = node.failure()
    if isinstance(caught.error, PipelineFailure):
        failure = caught.error
    elif isinstance(caught.error, WorkerError):
        failure = source_failure(node.name, caught.error)  # a thread that could not start
    elif caught.error is not None and not isinstance(caught.error, asyncio.CancelledError):
        failure = _bug(node.name, caught.error)  # the reader of the pipeline must hear of it
    for end in node.ends:
        end.end(failure)
    for above in node.above:
        tasks[id(above)].cancel()
    if isinstance(caught.error, asyncio.CancelledError):
        raise caught.taken()


def _bug(stage: str, error: BaseException) -> PipelineFailure:
    failure = PipelineFailure(f"stage {stage!r} failed in Penstock itself", stage=stage)
    failure.__cause__ = InternalError(f"{type(error).__name__}: {error}")
    failure.__cause__.__cause__ = error
    return failure
