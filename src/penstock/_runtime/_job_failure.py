"""What went wrong with a job in processes, beyond that it failed."""

from penstock._frozen import frozen
from penstock.errors import WorkerError


@frozen
class JobFailure:
    """What the consumer is told of it.

    Attributes:
        death: the last of the deaths that processes died of it, where they were too many.
        step: of which of the job's steps they died, counted from 0. What comes before was computed by some process.
        row: of which row of that step, or which of the positions, if it was one.
        is_suspect: whether any process died of it, maybe of a row that comes after one that raises.
        complaint: what a process raised where it failed; empty where that isn't known.
        note: the complaint as bytes, a `ToldError`'s own where one was raised; empty where it wasn't that alone.
        is_passing: whether nothing raised; the job only needs more memory, or memory of another kind.
    """

    death: WorkerError | None = None
    step: int = 0
    row: int | None = None
    is_suspect: bool = False
    complaint: str = ""
    note: bytes = b""
    is_passing: bool = False


class ToldError(Exception):
    """What a job raises in a process to tell the consumer in its own words why a block failed.

    Attributes:
        note: for the consumer.
    """

    def __init__(self, note: bytes) -> None:
        super().__init__("a block failed")
        self.note = note


NO_FAILURE = JobFailure()
