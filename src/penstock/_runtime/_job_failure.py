"""The reasons why a job failed in worker processes."""

from penstock._frozen import frozen
from penstock.errors import WorkerError


@frozen
class JobFailure:
    """The reasons, as the consumer gets them.

    Attributes:
        death: the last crash, where the job crashed too many processes.
        step: the job's step that crashed, counted from 0. The steps before it were computed by some process.
        row: the row of that step, or the position, that crashed; None where the step as a whole did.
        is_suspect: whether any process crashed at it, perhaps at a row after one that raises.
        complaint: the exception of the process, in words; empty where it isn't known.
        note: the complaint as bytes, or the note of a `ToldError`; empty where the job failed for another reason.
        is_passing: whether nothing raised, and the job only needs more memory, or memory of another layout.
    """

    death: WorkerError | None = None
    step: int = 0
    row: int | None = None
    is_suspect: bool = False
    complaint: str = ""
    note: bytes = b""
    is_passing: bool = False


class ToldError(Exception):
    """Raised by a job in a process, to give the consumer the reason in the job's own words.

    Attributes:
        note: for the consumer.
    """

    def __init__(self, note: bytes) -> None:
        super().__init__("a block failed")
        self.note = note


NO_FAILURE = JobFailure()
