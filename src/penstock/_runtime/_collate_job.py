"""A collate job: the steps above the folds, for batches whose rows a fold has made.

Its blocks apply the functions of rows, where there are some; its merge does the rest. For processes the given rows are
in the job's spill memory: one pickle for each block, or one for the merge.
"""

import bisect
import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock._caught import Caught
from penstock._graph import Context, Element
from penstock._memory import Lease, Region
from penstock._pickles import Pickled, dump_by_value
from penstock._plan._plan import Plan
from penstock._runtime._job_failure import NO_FAILURE, JobFailure
from penstock._runtime._jobs import ComeTo, Learned
from penstock._runtime._pickle_buffers import joined
from penstock._streaming import CollateRun, Provenance, Rest
from penstock.errors import InternalError, UsageError

if TYPE_CHECKING:
    from penstock._runtime._io_prefetch import BlockRecords


class Given(NamedTuple):
    """The content of a batch."""

    content: Element
    """Its rows; or the batch as it comes from below, where its rows are stacked there."""
    provenance: Provenance
    """As `TailRun.result` takes them."""


class Cut(NamedTuple):
    """How a job is cut.

    Attributes:
        firsts: the marks of the batches' first rows.
        bounds: at which of the job's rows each batch begins, and the last one ends; all 0 where no function takes rows.
        block_rows: how many rows a block has.
        ends_in_rest: whether the last one's rows make no batch.
        places: where in the spill memory what is given lies, of each block; or of the merge, where there are no rows.
    """

    firsts: Provenance
    bounds: tuple[int, ...]
    block_rows: int
    ends_in_rest: bool
    places: tuple[slice, ...] = ()


class CollateTask(NamedTuple):
    """The description of a `CollateJob` for a process, which then takes the given content."""

    cut: Cut

    def job(self, plan: Plan) -> "CollateJob":
        """Return the job."""
        return CollateJob(collate_run(plan), self.cut, Learned())


class CollateJob:
    """Some consecutive batches."""

    has_merge = True
    joins = True
    row_bytes = 0
    hands_on = True
    was_first = False

    def __init__(self, run: CollateRun, cut: Cut, learned: Learned, given: Sequence[Given] = ()) -> None:
        """Describe a job.

        Args:
            run: what is computed.
            cut: how.
            learned: what is known of the batches.
            given: what each is made of; nothing where that follows.
        """
        self.cut = cut
        self.steps = len(cut.firsts)
        self.blocks = max(-(-cut.bounds[-1] // cut.block_rows), 1)
        self.failed = False
        self.failure: JobFailure = NO_FAILURE
        self.arriving: list[BlockRecords] | None = None
        self.memory_bytes = 0
        self._run = run
        self._learned = learned
        self._parcel: Pickled | None = None
        self._given: list[Element] = [each.content for each in given]
        self._blocks: list[tuple[list[Element], Provenance]] = []
        if self.has_rows and given:
            rows = list(itertools.chain.from_iterable(self._given))
            provenance = np.concatenate([each.provenance for each in given])
            spans = [slice(*self._bounds_of(block)) for block in range(self.blocks)]
            self._given, self._blocks = [], [(rows[span], provenance[span]) for span in spans]
        self._rows: list[list[Element]] = [[] for _ in range(self.blocks)]
        self._results: list[Element] = []

    @property
    def has_rows(self) -> bool:
        """Whether functions take its rows."""
        return self.cut.bounds[-1] > 0

    def pack(self) -> bool:
        """Have the job computed by processes; return whether what is given can be sent to one."""
        self.memory_bytes = max(int(self.row_count * self._learned.merged_row_bytes), 1)
        parts: list[object] = [*self._blocks] if self.has_rows else [self._given]
        with Caught(Exception) as caught:
            self._parcel, places = joined(list(map(dump_by_value, parts)))
            self.cut = self.cut._replace(places=tuple(places))
        self._given, self._blocks = [], []
        if caught.error is not None:  # the worker reports it, and the consumer computes the batch
            why = f"what a batch is made of can't be sent to a worker process: {caught.error}"
            self._parcel, (place,) = joined([dump_by_value(why)])
            self.cut = self.cut._replace(places=(place,) * len(parts))
        return caught.error is None

    def take_parcel(self) -> "Pickled | None":
        """Return the given rows, for processes, and release them."""
        parcel, self._parcel = self._parcel, None
        return parcel

    @property
    def row_count(self) -> int:
        """How many batches it makes: their memory is planned as a whole."""
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

    def _bounds_of(self, block: int) -> tuple[int, int]:
        start = block * self.cut.block_rows
        return start, min(start + self.cut.block_rows, self.cut.bounds[-1])

    def run_block(self, block: int, context: Context, come_to: ComeTo | None = None) -> int:
        """Apply the functions of rows to one block, row by row if there is a `come_to`; return how many it has."""
        if not self.has_rows:
            return 0
        rows, provenance = self._blocks[block]
        made = self._rows[block] = []
        if come_to is None:
            self._run.rows_into(made, rows, provenance, context)
            return len(rows)
        start, _ = self._bounds_of(block)
        for index in range(len(rows)):
            step = self._step_of(start + index)
            come_to(step, start + index - self.cut.bounds[step])
            self._run.rows_into(made, rows[index : index + 1], provenance[index : index + 1], context)
        return len(rows)

    def _step_of(self, row: int) -> int:
        return bisect.bisect_right(self.cut.bounds, row) - 1

    def try_row(self, step: int, row: int, context: Context) -> None:
        """Apply the functions of rows to one row of one of the job's steps, for nothing."""
        number = self.cut.bounds[step] + row
        block, index = divmod(number, self.cut.block_rows)
        rows, provenance = self._blocks[block]
        self._run.rows_into([], rows[index : index + 1], provenance[index : index + 1], context)

    def take_given(self, block: int, given: "tuple[list[Element], Provenance] | list[Element] | str") -> None:
        """Take what was given to the job in another process, of a block or of the merge.

        Raises:
            UsageError: it could not be sent.
        """
        if isinstance(given, str):
            raise UsageError(given)
        if isinstance(given, tuple):
            self._blocks = [([], given[1][:0])] * self.blocks
            self._blocks[block] = given
        else:
            self._given = given

    def run_merge(self, context: Context, come_to: ComeTo | None = None) -> None:
        """Make the batches; where functions of rows have failed, those before."""
        self._results = []
        for step, content in enumerate(self._contents()):
            if come_to is not None:
                come_to(step, None)
            self._results.append(self._run.merged(content, self.cut.firsts[step : step + 1], context))

    def _contents(self) -> list[Element]:
        """Return the rows of each batch, and release them."""
        if not self.has_rows:
            given, self._given = self._given, []
            return given
        rows: list[Element] = []
        for block, made in enumerate(self._rows):
            rows += made
            start, stop = self._bounds_of(block)
            if len(made) < stop - start:
                break
        self._rows, self._blocks = [], []
        whole = self.cut.bounds[: self._step_of(len(rows)) + 1]
        contents = [rows[start:stop] for start, stop in itertools.pairwise(whole)]
        if self.cut.ends_in_rest and len(contents) == self.steps:
            contents[-1] = Rest(contents[-1])
        return contents

    def elements(self, block: int) -> list[Element]:
        """Return the results of a block's rows, and release them."""
        rows, self._rows[block], self._blocks = self._rows[block], [], []
        return rows

    def take_elements(self, block: int, elements: list[Element], /) -> None:
        """Take what another process made of a block's rows."""
        self._rows[block] = elements

    def merged(self) -> list[Element]:
        """Return the batches."""
        return self._results

    def take_merged(self, merged: list[Element]) -> None:
        """Take the batches that another process made."""
        self._results = merged

    def batches(self) -> list[Element]:
        """Return the batches, of which some may be DROPPED, and release them; where one failed, those before it."""
        results, self._results = self._results, []
        return results

    def task(self) -> CollateTask:
        """Return the job as a value."""
        return CollateTask(self.cut)


def collate_run(plan: Plan) -> CollateRun:
    """Return the steps above the folds of a plan that has some, as its rank computes them."""
    collate = plan.program.collate
    if collate is None:
        raise InternalError("there are steps above the folds")
    return CollateRun(collate, plan.batch_size // plan.shard.count, plan.streaming.input_refs)
