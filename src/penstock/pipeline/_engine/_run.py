"""One run of a pipeline: a task for each node, from the first item to the last, or until it is cancelled.

Guarantees:
  - A node that ends tells what is behind it, and cancels what is above it and still runs. So a failure travels down
    behind the items that were computed before it, and nothing above works for nobody.
  - The run returns when no task of it is left, whether it ended, failed, or was cancelled at any await, or twice.
"""

import asyncio
from collections.abc import Sequence

from penstock.errors import InternalError, PipelineFailure
from penstock.pipeline._engine._open import Node


async def run(nodes: Sequence[Node]) -> None:
    """Run all nodes to their ends."""
    tasks: dict[int, asyncio.Task[None]] = {}
    try:
        async with asyncio.TaskGroup() as group:
            for node in nodes:
                tasks[id(node)] = group.create_task(_drive(node, tasks), name=node.name)
    finally:
        for node in nodes:  # those whose tasks were cancelled before their first step
            for end in node.ends:
                end.end(None)


async def _drive(node: Node, tasks: dict[int, asyncio.Task[None]]) -> None:
    failure: PipelineFailure | None = None
    try:
        await node.run()
        failure = node.failure()
    except PipelineFailure as error:
        failure = error
    except Exception as error:  # noqa: BLE001 - a bug of ours; whoever reads the pipeline must hear of it
        failure = PipelineFailure(f"stage {node.name!r} failed in Penstock itself", stage=node.name)
        failure.__cause__ = InternalError(f"{type(error).__name__}: {error}")
        failure.__cause__.__cause__ = error
    finally:
        for end in node.ends:
            end.end(failure)
        for above in node.above:
            tasks[id(above)].cancel()
