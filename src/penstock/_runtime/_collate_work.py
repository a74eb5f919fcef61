"""The work of collating: batches whose rows a fold has made, and the steps above the folds.

The blocks apply the functions of rows, if there are any, and the merge does the rest. A block is given its rows and
their provenance; without functions of rows the merge is given the content of each batch. For processes the given
content is in the spill memory of the job: one pickle for each block, or one for the merge.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from penstock._caught import CaughtFailure
from penstock._graph import Context, Element
from penstock._plan import Plan
from penstock._runtime._jobs import Job, Shape, Work, batch_index
from penstock._runtime._policy import READ_BYTES
from penstock._streaming import CollateRun, Provenance, Rest
from penstock._tracebacks import raise_caught
from penstock.batching import array_bytes
from penstock.errors import InternalError

if TYPE_CHECKING:
    from penstock._runtime._fold_thread import Made


class CollateTask(NamedTuple):
    """The batches and blocks of a job, by which a process makes its work.

    Attributes:
        firsts: the provenance of the first row of each batch.
        bounds: the first row of each batch, and the end of the last batch; all 0 where blocks compute nothing.
        block_rows: the number of rows of a block.
        ends_in_rest: whether the rows of the last batch are a rest, which makes no batch.
        makes_whole: whether one worker makes a batch on its own: the merge applies the functions of rows, too.
    """

    firsts: Provenance
    bounds: tuple[int, ...]
    block_rows: int
    ends_in_rest: bool
    makes_whole: bool

    def work(self, plan: Plan) -> "CollateWork":
        """Return the work."""
        return CollateWork(collate_run(plan), self)


class CollateWork(Work):
    """Consecutive batches, whose rows or content a fold has made.

    Args:
        run: the steps above the folds.
        task: the batches and blocks.
        given: the rows of each block with their provenance; or for the merge the content of each batch, the provenance
            of all, and its end for each batch.
        memory_bytes: the memory for the merged batches in processes; 0 in threads.

    Attributes:
        made: in the consumer, the batches as the fold made them; their rows too, if these are kept.
        is_remade: whether a batch at which processes fail is read from the dataset again, since its rows aren't kept.
    """

    def __init__(
        self, run: CollateRun, task: CollateTask, given: dict[int, Any] | None = None, memory_bytes: int = 0
    ) -> None:
        shape = Shape(
            task.bounds,
            [*range(0, task.bounds[-1], task.block_rows), task.bounds[-1]],
            has_merge=True,
            sends_results=True,
            needs_room=True,
            ends_at_crash=task.makes_whole,
            memory_bytes=memory_bytes,
            memory_units=len(task.firsts),  # memory is planned for whole batches
        )
        super().__init__(shape, given)
        self.made: Sequence[Made] = ()
        self.is_remade = True
        self._run = run
        self._task = task

    def task(self) -> CollateTask:
        return self._task

    def compute(self, results: list[Any], start: int, stop: int, context: Context) -> None:
        """Apply the functions of rows to rows of a block, which is given them and their provenance."""
        block, first = divmod(start, self._task.block_rows)
        rows, provenance = self.given[block]
        part = slice(first, first + stop - start)
        self._run.rows_into(results, rows[part], provenance[part], context)

    def merge(self, parts: Sequence[list[Any]], context: Context) -> Iterator[Element]:
        """Make the batches; where a function of a row has failed, only those before that row."""
        if not self._task.bounds[-1]:
            contents, provenance, ends = self.given.pop(len(parts))
            if self._run.takes_blocks and not self.has_crashed:
                yield from self._results(contents, provenance, context)
                return
            for content, (first, end) in zip(contents, itertools.pairwise((0, *ends)), strict=True):
                yield self._run.result(content, provenance[first:end], context)
            return
        self.given.clear()
        for index, content in enumerate(self._contents(parts)):
            yield self._run.merged(content, self._task.firsts[index : index + 1], context)

    def _results(self, contents: list[Element], provenance: Provenance, context: Context) -> Iterator[Element]:
        """Make the batches of some contents, as many at once as are in the processor's caches."""
        count = max(READ_BYTES // max(array_bytes(contents[:1]), 1), 1)
        for first in range(0, len(contents), count):
            made: list[Element] = []
            with CaughtFailure() as caught:
                part = slice(first, first + count)
                self._run.batches_into(made, contents[part], provenance[part], context)
            yield from made
            if caught.error is not None:
                raise_caught(caught.taken())

    def _contents(self, parts: Sequence[list[Any]]) -> list[Element]:
        """Return the rows of each batch before a row that has failed."""
        bounds, block_rows = self._task.bounds, self._task.block_rows
        rows: list[Element] = []
        for block, made in enumerate(parts):
            rows += made
            if len(made) < min(block_rows, bounds[-1] - block * block_rows):
                break
        whole = bounds[: batch_index(bounds, len(rows)) + 1]
        contents: list[Element] = [rows[start:stop] for start, stop in itertools.pairwise(whole)]
        if self._task.ends_in_rest and len(whole) == len(bounds):
            contents[-1] = Rest(contents[-1])
        return contents


CollateJob: TypeAlias = Job[CollateWork]


def collate_run(plan: Plan) -> CollateRun:
    """Return the steps above the folds of a plan, as this rank computes them."""
    collate = plan.program.collate
    if collate is None:
        raise InternalError("this plan has no steps above the folds")
    return CollateRun(collate, plan.batch_size // plan.shard.count, plan.streaming.input_refs)
