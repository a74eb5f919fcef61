"""What stands above the folds of an ordered dataset, as a job: the rows of some batches are given, the rest is done."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock._caught import Caught
from penstock._graph._apply import Context
from penstock._graph._nodes import Element
from penstock._graph._ordered._build import whences_of
from penstock._graph._ordered._chunk import Marks
from penstock._graph._ordered._tail import TailRun, tail_of
from penstock._plan._plan import Plan
from penstock._runtime._jobs import ComeTo, Learned
from penstock._runtime._parcels import pack
from penstock._runtime._trouble import NO_TROUBLE, Trouble
from penstock.errors import InternalError, UsageError
from penstock.transport._memory import Lease, Region

if TYPE_CHECKING:
    from penstock._runtime._ahead._arrivals import BlockRecords
    from penstock.transport._encoding._pickles import Pickled


class Given(NamedTuple):
    """What a batch is made of."""

    content: Element
    """Its rows; or the batch as it comes from below, where its rows are stacked there."""
    marks: Marks
    """The first row's."""


class TailTask(NamedTuple):
    """What makes a `TailJob` in a process, which then takes what is given."""

    steps: int

    def job(self, plan: Plan) -> "TailJob":
        """Return the job."""
        return TailJob(tail_run(plan), self.steps, Learned())


class TailJob:
    """Some consecutive batches, made in one piece: that is the merge of a job whose only block has no rows."""

    blocks = 1
    has_merge = True
    joins = True
    row_bytes = 0
    hands_on = True
    was_first = False

    def __init__(self, run: TailRun, steps: int, learned: Learned, given: Sequence[Given] = ()) -> None:
        """Describe a job.

        Args:
            run: what is computed.
            steps: how many batches it makes.
            learned: what is known of them.
            given: what each is made of; nothing where that follows.
        """
        self.steps = steps
        self.failed = False
        self.trouble: Trouble = NO_TROUBLE
        self.arriving: list[BlockRecords] | None = None
        self.memory_bytes = 0
        self._parcel: Pickled | None = None
        self._run = run
        self._learned = learned
        self._given: Sequence[Given] = given
        self._results: list[Element] = []

    def pack(self) -> bool:
        """Have the job computed by processes; return whether what is given can be sent to one."""
        self.memory_bytes = max(int(self.row_count * self._learned.merged_row_bytes), 1)
        with Caught(Exception) as caught:
            self._parcel = pack(list(self._given))
        self._given = ()
        if caught.error is not None:  # whoever runs the job tells of it, and the consumer computes it
            self._parcel = pack(f"what a batch is made of can't be sent to a worker process: {caught.error}")
        return caught.error is None

    def take_parcel(self) -> "Pickled | None":
        """Return what is given, for processes, and let go of it."""
        parcel, self._parcel = self._parcel, None
        return parcel

    @property
    def row_count(self) -> int:
        """How many batches it makes: their rows are none of its own."""
        return self.steps

    def use(self, lease: Lease | Region) -> None:
        """Take memory lent to it, in which its batches will lie."""

    def extent(self, block: int) -> tuple[None, None]:
        """Return nothing: what is read in order has no steps yet."""
        del block
        return None, None

    def among(self, elements: Iterable[tuple[int, ...]]) -> set[tuple[int, ...]]:
        """Return none: nothing of it is computed from a position."""
        del elements
        return set()

    def run_block(self, block: int, context: Context, come_to: ComeTo | None = None) -> int:
        """Do nothing: there are no rows."""
        del block, context, come_to
        return 0

    def try_row(self, step: int, row: int, context: Context) -> None:
        """Do nothing, likewise."""

    def take_given(self, given: "list[Given] | str") -> None:
        """Take what was given to the job in another process.

        Raises:
            UsageError: it could not be sent.
        """
        if isinstance(given, str):
            raise UsageError(given)
        self._given = given

    def run_merge(self, context: Context, come_to: ComeTo | None = None) -> None:
        self._results = []
        for step, given in enumerate(self._given):
            if come_to is not None:
                come_to(step, None)
            self._results.append(self._run.result(*given, context))

    def elements(self, block: int) -> object:
        """Return nothing: there are no rows."""
        del block
        return None

    def take_elements(self, block: int, elements: object, /) -> None:
        """Take nothing, likewise."""

    def merged(self) -> list[Element]:
        """Return the batches."""
        return self._results

    def take_merged(self, merged: list[Element]) -> None:
        """Take the batches that another process made."""
        self._results = merged

    def batches(self) -> list[Element]:
        """Return the batches, of which some may be DROPPED, and let go of them; where one failed, those before it."""
        results, self._results = self._results, []
        return results

    def task(self) -> TailTask:
        """Return the job as a value."""
        return TailTask(self.steps)


def tail_run(plan: Plan) -> TailRun:
    """Return the steps above the folds of a plan that has some, as its rank computes them."""
    tail = tail_of(plan.node)
    if tail is None:
        raise InternalError("there are steps above the folds")
    return TailRun(tail, plan.batch_size // plan.shard.count, whences_of(plan.node))
