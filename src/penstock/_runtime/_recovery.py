"""Recovery from failed jobs: the rules that all streams of jobs share.

A job fails in the workers for one of three reasons, and each has its remedy:
  - It only needs more memory, or another layout. Workers compute it again, `MAX_REPEATED` times at most (`may_repeat`).
  - A row crashes worker processes. If a step of the dataset below has `on_error=`, it replaces the row or leaves it
    out, and workers compute the rest again (`leave_to_steps`). Otherwise an error names the row.
  - Anything else: the consumer computes the batches one by one, so the user's exception is raised in its thread. If
    workers crashed at the job, it computes row by row, so that it raises before it reaches a row that crashes.
"""

from penstock._decisions import REPEATED_JOBS, decide
from penstock._graph import Node, handles_errors
from penstock._runtime._jobs import JobFailure
from penstock._runtime._policy import MAX_REPEATED
from penstock._runtime._scheduler import Client


def may_repeat(failure: JobFailure, attempts: int) -> bool:
    """Return whether workers should compute a failed job again, after so many attempts since the last batch."""
    return failure.is_passing and attempts < decide(REPEATED_JOBS, MAX_REPEATED)


def leave_to_steps(client: Client, node: Node, at: tuple[int, ...] | None, error: Exception) -> None:
    """Record that an element crashes workers, so that a step of the dataset replaces it or leaves it out.

    Args:
        client: the client whose jobs have the element.
        node: the node below which steps may handle the error.
        at: the element, as in `Context.crashing_rows`; None where no single element is at fault.
        error: the error for the element.

    Raises:
        Exception: the error, if no step has `on_error=` for it, or if the element was recorded already: then its
            replacement crashes, too.
    """
    if at is None or at in client.crashing_rows or not handles_errors(node, *at[:2]):
        try:
            raise error
        finally:
            del error  # otherwise its traceback would keep it and the stream
    client.crashing_rows[at] = error
