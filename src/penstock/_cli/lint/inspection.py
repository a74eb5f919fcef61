"""The inspection of a dataset: every element is computed once, by workers, and summarized.

An inspection of a dataset with positions is a dataset of its own, as it is for `write`: its element at position p is
the summary of part p, some elements. So a loader's workers compute it, and it begins at any part. Where an element
fails, those around it are computed again one by one.

A dataset that is read in order has no parts. Its loader leaves out the elements whose functions fail, and lists them.

`on_error` and caches are left out meanwhile: a failure that they hide from the training is one to be found. So is a
SystemExit, which would end the training.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

import numpy as np

import penstock
from penstock._caught import Caught, CaughtFailure
from penstock._frozen import frozen
from penstock._graph import (
    Cache,
    Combine,
    Element,
    Filter,
    Fold,
    Map,
    Node,
    Reindex,
    Stream,
    is_batch,
    is_endless,
    length,
    origins,
    parents_of,
    refuse,
    with_parents,
)
from penstock._os import memory_limit
from penstock._plan import Batches, Plan, Shard, Streaming
from penstock._plan._lower import check_ranks, program_of
from penstock._printable import printable
from penstock._progress import Progress, counted
from penstock.batching import Pad, Stack
from penstock.errors import GraphError, UsageError, WorkerError
from penstock.events import Skipped
from penstock.observe._lint import Failure, Finding, Merging, Summary, findings
from penstock.observe._live import bytes_text
from penstock.observe._records import Compared, Records, records_of
from penstock.sampling import Repeat

Kind: TypeAlias = Literal["processes", "threads"]
"""The kind of workers."""

_MOST_ROWS: Final = 256  # of a part
_PARTS: Final = 64  # of a dataset, for each worker, at least: the progress is that of parts
_BLOCK: Final = 16  # elements that are computed together: if one fails, they are computed again
_CHARACTERS: Final = 200  # of an error
_MEMORY_SHARE: Final = 0.5  # of the limit, that batches may take: the training needs the rest


class Part:
    """The inspection of some elements; no dataclass, so that a loader delivers it as it is.

    Attributes:
        summary: of the elements.
        records: those of the elements, if they are compared with those of another dataset.
    """

    def __init__(self, summary: Summary, records: Records | None = None) -> None:
        self.summary: Summary = summary
        self.records: list[Records] = [] if records is None else [records]

    def merge(self, later: "Part") -> None:
        """Add the elements after these."""
        self.summary.merge(later.summary)
        self.records += later.records


@frozen
class Inspection:
    """The parts of a dataset; a call inspects one.

    Attributes:
        rows: the elements, without batches.
        start: the position of the first one.
        size: the elements of a part.
        total: of the dataset.
        compares: whether the records are compared with those of another dataset.
    """

    rows: Node
    start: int
    size: int
    total: int
    compares: bool

    @property
    def count(self) -> int:
        """The number of parts."""
        return -(-(self.total - self.start) // self.size)

    def positions_of(self, part: int) -> range:
        """Return the positions of the elements of a part."""
        first = self.start + part * self.size
        return range(first, min(first + self.size, self.total))

    def __call__(self, part: int) -> Part:
        """Return the inspection of a part."""
        positions = self.positions_of(part)
        summary = Summary()
        for position, element, error in self._elements(positions):
            if not error:
                with CaughtFailure() as caught:  # of an object's own code
                    summary.add(position, element)
                error = "" if caught.error is None else error_text(caught.taken())
            if error:
                summary.fail(Failure(position, error))
        records = records_of(self.rows, np.array(positions, np.int64)) if self.compares else None
        return Part(summary, records)

    def _elements(self, positions: range) -> Iterator[tuple[int, Element, str]]:
        """Yield the positions of elements, and the elements, or the texts of their errors."""
        dataset: penstock.Dataset[Any] = penstock.Dataset(self.rows).epoch(0)
        blocks = dataset[positions.start : positions.stop].batch(_BLOCK, merge=list)
        with penstock.Loader(blocks) as loader:
            loader.seek(position=0, epoch=1)  # equal to epoch 0, where another loader would be taken for a mistake
            batches = iter(loader)
            for number, first in enumerate(range(positions.start, positions.stop, _BLOCK)):
                block = range(first, min(first + _BLOCK, positions.stop))
                found: list[Element] | None = None
                with CaughtFailure():
                    found = next(batches)
                if found is not None:
                    yield from ((position, element, "") for position, element in zip(block, found, strict=True))
                    continue
                yield from (_alone(dataset, position) for position in block)
                loader.seek(number + 1)
                batches = iter(loader)


def _alone(dataset: "penstock.Dataset[Any]", position: int) -> tuple[int, Element, str]:
    with CaughtFailure() as caught:
        return position, dataset[position], ""
    return position, None, error_text(caught.taken())


def error_text(error: BaseException) -> str:
    """Return an exception as one line, with the step that raised it."""
    message = printable(str(error).partition("\n")[0])[:_CHARACTERS]
    steps = (note.partition(" at epoch ")[0] for note in getattr(error, "__notes__", ()) if note.startswith("in step "))
    step = next(steps, "")
    return f"{type(error).__name__}: {message}" + (f" ({step})" if step else "")


class Loading(NamedTuple):
    """The ranks and the memory with which a loader will read the dataset."""

    ranks: int = 1
    prefetch: int = 2
    memory: int | None = None
    """The bound for the batches that its workers make, in bytes; None for none."""


def loading_of(found: "penstock.Dataset[Any] | penstock.Loader[Any]") -> tuple[Node, Loading]:
    """Return the dataset that a command line names, or that of a loader, and what the loader will do with it."""
    if isinstance(found, penstock.Dataset):
        return found.node, Loading()
    plan: Plan = vars(found)["_plan"]
    memory = None if plan.memory is None or plan.place == "inline" else plan.memory // (1 + plan.isolated)
    return plan.node, Loading(plan.shard.count, plan.prefetch, memory)


class Lint:
    """The inspection of one dataset.

    Args:
        name: the text that named it.
        node: the dataset.
        loading: what a loader will do with it.
        compares: whether its records are compared with those of another one.

    Attributes:
        name: as above.
        inspected: the elements so far.
        steps: the number of steps so far, from step 0 on; None if the dataset is read in order.
        is_complete: whether all elements are inspected.
        notes: lines about the dataset that are no findings.
    """

    def __init__(self, name: str, node: Node, loading: Loading, *, compares: bool) -> None:
        self.name = name
        self._loading = loading
        self.inspected: Part = Part(Summary())
        self.steps: int | None = None
        self.is_complete: bool = False
        self.notes: list[str] = []
        self._node = node
        self._compares = compares
        self._program: Batches | Streaming = program_of(node)
        bare = _bare(node, "raise")
        self._rows = _one_pass(_rows_of(program_of(bare), bare))

    @property
    def summary(self) -> Summary:
        """The summary of the elements so far."""
        return self.inspected.summary

    @property
    def _has_positions(self) -> bool:
        return length(self._rows) is not None

    @property
    def _batch(self) -> int:
        """The number of rows of a batch; 0 without one."""
        batch = self._program.batch
        return 0 if batch is None else max(batch.value.rows)

    # ------------------------------------------------------------------ inspection

    def inspect(self, start: int, count: int, workers: Kind) -> None:
        """Compute the elements, from a step on, with a number of workers."""
        if self._has_positions:
            self._inspect_parts(start, count, workers)
        elif start:
            raise UsageError(f"--from needs positions, and {self.name} can only be read in order. Leave it out")
        else:
            self._inspect_in_order(count, workers)

    def _inspect_parts(self, start: int, count: int, workers: Kind) -> None:
        total, batch = length(self._rows) or 0, max(self._batch, 1)
        if start and start * batch >= total:
            raise UsageError(f"--from must be below {-(-total // batch):,}, the steps of {self.name}; got {start:,}")
        self.steps, first = start, start * batch
        size = min(max((total - first) // (_PARTS * max(count, 1)), 1), _MOST_ROWS)
        inspection = Inspection(self._rows, first, size, total, self._compares)
        with Progress(f"linting {self.name}", total - first, amount=counted) as progress:
            for number, part in enumerate(_inspected(inspection, count, workers)):
                self.inspected.merge(part)
                self.steps = inspection.positions_of(number).stop // batch
                progress.advance(len(inspection.positions_of(number)))
        if self._program.batch is not None and self._program.batch.value.remainder != "drop":
            self.steps = -(-total // batch)  # a last batch that isn't full is a step, too
        self.is_complete = True

    def _inspect_in_order(self, count: int, workers: Kind) -> None:
        rows = _bare(self._rows, "skip")
        self.notes.append("it is read in order: a record that can't be read would end the inspection")
        if self._compares:
            self.notes.append("it is read in order: its records are not compared with those of another dataset")
        with (
            penstock.Loader(penstock.Dataset(rows), num_workers=count, workers=workers) as loader,
            Progress(f"linting {self.name}", None, amount=counted) as progress,
        ):
            elements = iter(loader)  # raises an error of the call, as for a function that can't be sent
            with CaughtFailure() as caught:
                for number, element in enumerate(elements):
                    self.summary.add(number, element)
                    progress.advance(1)
            self._note_skipped(loader)
        is_empty = isinstance(caught.error, GraphError) and self.summary.rows == self.summary.failed
        if caught.error is not None and not is_empty:
            self.summary.fail(Failure(self.summary.rows, error_text(caught.taken())))
        else:
            self.is_complete = True

    def _note_skipped(self, loader: "penstock.Loader[Any]") -> None:
        skipped = [event for event in loader.replaced() if isinstance(event, Skipped)]
        more = int(loader.stats()["skipped"]) - len(skipped)
        for number, event in enumerate(skipped):
            text = f"{event.error} (in step {event.step!r})"
            of_part = f" of {event.component!r}" if event.component else ""
            failure = Failure(event.position, text, f"key {event.key}{of_part}")
            self.summary.fail(failure, rows=1 if number else 1 + more)

    # ------------------------------------------------------------------ findings

    def findings(self, ranks: int | None = None) -> Iterator[Finding]:
        """Yield what is wrong, so far, with a number of ranks; None for those of the loader."""
        ranks = self._loading.ranks if ranks is None else ranks
        found = list(findings(self.summary, self._merging, self._name_of))
        yield from found
        if self.is_complete and (why := self._why_empty()):
            yield Finding("empty", f"{why}, so a training gets no batch of it")
        elif self.is_complete and not any(each.check in {"failed", "structure", "ragged", "dtype"} for each in found):
            yield from self._of_batches()
        yield from self._of_ranks(ranks)
        yield from self._of_memory(max(ranks, 1))

    def _why_empty(self) -> str:
        """Return why the dataset has no batch; empty if it has one."""
        rows = self.summary.rows
        if not rows:
            return "it has no elements"
        return f"its number of elements, {rows:,}, is below that of a batch" if length(self._node) == 0 else ""

    @property
    def _merging(self) -> Merging:
        batch = self._program.batch
        merge = batch.value.merge if batch is not None and is_batch(batch) else None
        if isinstance(merge, Pad) or isinstance(batch, Fold):
            return "pad"
        return "stack" if batch is None or isinstance(merge, Stack) else "own"

    def _name_of(self, position: int) -> str:
        if not self._has_positions:
            return f"element {position:,}"
        zero = np.zeros(1, np.int64)
        (origin,) = origins(self._rows, zero, zero + position)
        return origin.record + (f" of {origin.component!r}" if origin.component else "")

    def _of_batches(self) -> Iterator[Finding]:
        """Compute the first and the last batch, if it takes functions of the user's to make one."""
        program = self._program
        if not isinstance(program, Batches) or not program.merges or is_endless(self._node):
            return
        for step in sorted({0, (length(self._node) or 1) - 1}):
            with CaughtFailure() as caught:
                penstock.Dataset(self._node)[step]
            if caught.error is not None:
                yield Finding("batch", f"batch {step:,} can't be made: {error_text(caught.taken())}")

    def _of_ranks(self, ranks: int) -> Iterator[Finding]:
        if ranks < 2:
            return
        with Caught(UsageError) as caught:
            check_ranks(self._node, self._program, Shard(0, ranks))
        if caught.error is not None:
            yield Finding("ranks", f"{ranks:,} ranks can't share it: {caught.taken()}")
            return
        batch, rest = self._program.batch, self._program.rest or 0
        if batch is not None and batch.value.remainder == "keep" and rest % ranks and not is_endless(batch):
            yield Finding(
                "ranks",
                f"the last batch has {rest:,} rows, and {ranks:,} ranks get {rest // ranks:,} or {rest // ranks + 1:,} "
                'of them. To change: remainder="drop" or "pad"',
            )

    def _of_memory(self, ranks: int) -> Iterator[Finding]:
        batch, rows = self._program.batch, max(self._batch, 1)
        if batch is not None and batch.value.remainder != "pad":
            rows = min(rows, max(self.summary.rows, 1))
        _, prefetch, bound = self._loading
        size, limit = self.summary.row_bytes * -(-rows // ranks), memory_limit()
        taken = size * (prefetch + 1)
        text = f"a batch takes {bytes_text(int(size))}, and {prefetch + 1} in flight {bytes_text(int(taken))}"
        if bound is not None and taken > bound:
            taken = bound
            text += f"; the loader's memory= has room for {int(bound // size)} of them"
            if 2 * size > bound:
                why = "which is too small for the batch of the training and the next one"
                yield Finding("memory", f"{text}, {why}. To change: raise memory=, or smaller batches")
        if limit is not None:
            text += f", of {bytes_text(limit)} here"
        if limit is not None and taken > _MEMORY_SHARE * limit:
            yield Finding("memory", f"{text}. To change: smaller batches, or prefetch=1")
        elif size:
            self.notes.append(text)

    @property
    def compared(self) -> Compared:
        """The records so far; none if the dataset is read in order."""
        return Compared(self.name, self._rows, Records.joined(self.inspected.records))


def _inspected(inspection: Inspection, count: int, workers: Kind) -> Iterator[Part]:
    """Yield all parts. Where one crashes worker processes, its elements are inspected one by one."""
    number = 0
    parts = penstock.range(inspection.count).map(inspection)
    with penstock.Loader(parts, num_workers=count, workers=workers) as loader:
        while number < inspection.count:
            with Caught(WorkerError) as caught:
                for part in loader:
                    yield part
                    number += 1
            if caught.error is not None:
                yield _crashed(inspection, inspection.positions_of(number), cast("WorkerError", caught.taken()))
                number += 1
                loader.seek(number)


def _crashed(inspection: Inspection, positions: range, error: WorkerError) -> Part:
    """Return a part at which worker processes crashed.

    Raises:
        WorkerError: they could not start.
    """
    if error.exit_code is None or not error.has_started:
        raise error
    if len(positions) > 1:
        alone = replace(inspection, start=positions.start, size=1, total=positions.stop)
        first, *others = _inspected(alone, 1, "processes")
        for other in others:
            first.merge(other)
        return first
    summary = Summary()
    text = f"it ends the process that computes it, with exit code {error.exit_code}"
    summary.fail(Failure(positions.start, f"{type(error).__name__}: {text}"))
    return Part(summary)


def _rows_of(program: Batches | Streaming, node: Node) -> Node:
    """Return the node below the batch."""
    if isinstance(program, Batches):
        return program.rows
    return program.batch.parent if program.batch is not None and is_batch(program.batch) else node


def _bare(node: Node, on_error: Literal["raise", "skip"]) -> Node:
    """Return a dataset without caches, and with another rule for errors."""
    if isinstance(node, Cache):
        return _bare(node.parent, on_error)
    changed = with_parents(node, tuple(_bare(parent, on_error) for parent in parents_of(node)))
    return replace(changed, on_error=on_error) if isinstance(changed, Map) else changed


def _one_pass(node: Node) -> Node:
    """Return one pass over a dataset that repeats without end.

    Raises:
        GraphError: it is endless in another way.
    """
    found = _without_repeat(node) if is_endless(node) else node
    if is_endless(found):
        refuse(node, "lint needs a dataset with an end. Lint its parts, or use take(n)")
    return found


def _without_repeat(node: Node) -> Node:
    match node:
        case Reindex(parent=parent, sampler=Repeat(times=None)):
            return parent
        case Stream(times=None):
            return replace(node, times=1)
        case Map() | Filter() | Fold():
            return with_parents(node, tuple(map(_without_repeat, parents_of(node))))
        case Combine() if length(node) is None:  # one with positions counts those of its parts
            return with_parents(node, tuple(map(_without_repeat, parents_of(node))))
        case _:
            return node
