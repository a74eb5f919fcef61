"""The runtime of a loader: it opens the streams that the loader reads, and owns the workers behind them."""

from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np

from penstock._caught import Caught
from penstock._graph import (
    Context,
    Element,
    GlobalDraws,
    Location,
    Node,
    Origin,
    Read,
    RowStages,
    evaluate_block,
    indices,
    origin_in,
    stages_of,
    walk,
    with_substitutes,
)
from penstock._memory import Region, keep_memory_of_blocks
from penstock._os import uninterrupted
from penstock._plan import Plan
from penstock._runtime._batches import InlineBatches, StepRange, coordinates_of, row_coordinates, row_origins, rows_of
from penstock._runtime._collate_supplier import CollateSupplier
from penstock._runtime._fold_thread import FoldSupplier
from penstock._runtime._inline import inline_stream
from penstock._runtime._recorder import Recorder
from penstock._runtime._scheduler import Client, MemoryProvider, Scheduler
from penstock._runtime._streaming import StageRun, ThreadReader, rows_of_element
from penstock._runtime._streams import BatchSupplier, InlineStream, JobStream, Stream
from penstock._streaming import BlockInput, InputRange, StreamedLocations, is_block_input, read_inline
from penstock.errors import ClosedError, StateError, UsageError
from penstock.events import Event, Observer, Substituted
from penstock.sources import AwaitedSource


class Runtime:
    """Owns everything that computes for a loader. Closing it stops all of that; delivered batches stay valid.

    Args:
        plan: the work, and the workers for it.
        recorder: records events; None makes one.
        owner: another runtime, whose workers compute for this one; it is closed after this one. None for own workers.
        memory_provider: provides the memory in which the workers compute; None for their own.
        crashing_rows: rows that are known to crash workers, as in `Context`; None for none yet.
        times_memory: memory of another process, which reads in it the times of steps (`Readings.use_shared`); None for
            memory of this one.
    """

    def __init__(
        self,
        plan: Plan,
        recorder: Recorder | None = None,
        *,
        owner: "Runtime | None" = None,
        memory_provider: MemoryProvider | None = None,
        crashing_rows: dict[tuple[int, ...], Exception] | None = None,
        times_memory: Region | None = None,
    ) -> None:
        keep_memory_of_blocks()
        self.recorder = Recorder() if recorder is None else recorder
        self._plan = plan
        self._client = Client(plan, self.recorder, memory_provider)
        self.readings = self._client.readings
        if times_memory is not None:
            self._client.times_memory = times_memory
            self.readings.use_shared(cast("memoryview", times_memory), plan.num_workers)
        self.crashing_rows = self._client.crashing_rows = {} if crashing_rows is None else crashing_rows
        self._collate_client: Client | None = None  # None before it joins the scheduler
        self._owner = owner
        self._scheduler: Scheduler | None = None  # started or joined when the first stream is opened
        self._is_closed = False
        self._draws = GlobalDraws()
        sources = [node.source for node in walk(plan.node) if isinstance(node, Read)]
        self._sources = [source for source in sources if isinstance(source, AwaitedSource)]
        for source in self._sources:
            source.begin_reading()

    def open_stream(self, step_ranges: list[StepRange], *, ahead: int = 0) -> Stream:
        """Return the batches of some ranges of steps.

        Args:
            step_ranges: the steps, in order; more than one range only where batches are delivered as they become ready.
            ahead: how many batches the caller takes before it delivers them; there is memory for that many more.
        """
        plan = self._plan
        self._client.ahead = ahead
        self.recorder.start_epoch()
        if plan.place == "inline" or not plan.program.uses_workers:
            self.readings.waits.begin("inline")
            stream: Stream = self._inline(step_ranges[0])
        else:
            self.readings.waits.begin("delivery")
            scheduler = self.started() if self._owner is None else self._joined(self._owner)
            stream = self._opened(scheduler, step_ranges, ahead=ahead, on_request=False)
        stream.waits = self.readings.waits
        return stream

    def _opened(self, scheduler: Scheduler, step_ranges: list[StepRange], *, ahead: int, on_request: bool) -> Stream:
        """Return the batches of some ranges, partly computed by workers; on request, single steps in this thread."""
        plan, client, step_range = self._plan, self._client, step_ranges[0]
        scheduler.check()
        scheduler.give_up(client)
        if plan.is_indexed:
            return JobStream(BatchSupplier(scheduler, client, step_ranges))
        if plan.program.collate is not None:
            above = self._collating_client(scheduler, ahead)
            return JobStream(CollateSupplier(scheduler, client, above, step_range, on_request=on_request))
        if not on_request:
            open_reader = partial(ThreadReader, scheduler, client, may_compute=True)
            return JobStream(FoldSupplier(scheduler, client, open_reader, step_range))
        run = StageRun(plan, step_range, client.consumer_context(), ThreadReader(scheduler, client), singly=True)
        return InlineStream(step_range, run.more, close=run.close)

    def _collating_client(self, scheduler: Scheduler, ahead: int) -> Client:
        """Return the client for the steps above the folds."""
        client = self._collate_client
        if client is None:
            client = self._join_to_collate(scheduler)
            self._check_open()
        client.ahead = ahead
        scheduler.give_up(client)
        return client

    def started(self) -> Scheduler:
        """Return the scheduler, which computes as long as this runtime is open."""
        if self._is_closed:
            raise ClosedError("the loader that owns the workers was closed")
        scheduler = self._scheduler
        if scheduler is None:
            scheduler = self._start()
            self._check_open()
        return scheduler

    @uninterrupted  # workers that no attribute refers to would never end
    def _start(self) -> Scheduler:
        is_process = self._plan.place == "processes"
        scheduler = self._scheduler = process_scheduler(self._client) if is_process else Scheduler(self._client)
        return scheduler

    @uninterrupted
    def _join(self, scheduler: Scheduler) -> None:
        scheduler.join(self._client)
        self._scheduler = scheduler

    @uninterrupted
    def _join_to_collate(self, scheduler: Scheduler) -> Client:
        client = Client(self._plan, self.recorder)
        client.readings, client.times_memory = self.readings, self._client.times_memory
        client.has_warned_of_kept = self._client.has_warned_of_kept
        scheduler.join(client)
        self._collate_client = client
        return client

    def _check_open(self) -> None:
        """Raise if another thread has closed this runtime meanwhile, and close what was started here."""
        if self._is_closed:
            self.close()
            raise ClosedError("the loader was closed")

    def _joined(self, owner: "Runtime") -> Scheduler:
        """Join the owner's scheduler, and return it."""
        scheduler = owner.started()
        if self._scheduler is None:
            self._join(scheduler)
            self._check_open()
        return scheduler

    def open_on_request(self, step_range: StepRange) -> Stream:
        """Return the batches of a range of steps; this process computes nothing of other batches."""
        scheduler = self.started()
        if not (self._plan.is_indexed or self._plan.program.uses_workers):
            return self._inline(step_range)
        return self._opened(scheduler, [step_range], ahead=0, on_request=True)

    def looked_at(self, step_range: StepRange, row: int | None) -> tuple[Element, tuple[Origin, ...], RowStages | None]:
        """Return the batch of a range's first step and the origins of its rows; or a row, its origin and its stages.

        A row that was replaced is computed again, so that its origin's record names the element in its place.
        """
        events: list[Event] = []
        if row is None:
            batch, origins, stages = self.batch_at(step_range, events.append), self.origins(step_range), None
        else:
            stages = self.stages_at(step_range, row, events.append)
            batch, origins = stages.stages[-1][1], (self.origin(step_range, row),)
        if any(isinstance(event, Substituted) for event in events):
            coordinates = self._row_coordinates(step_range)
            coordinates = coordinates if row is None else coordinates[row : row + 1]
            origins = tuple(
                with_substitutes(origin, self._events_at(*at)) for origin, at in zip(origins, coordinates, strict=True)
            )
        return batch, origins, stages

    def _row_coordinates(self, step_range: StepRange) -> list[tuple[Node, int, int]]:
        """Return the node, the epoch and the position of each row of the batch of a range's first step."""
        plan = self._plan
        if plan.is_indexed:
            rows = rows_of(plan.batches, plan.shard, step_range.first)
            epochs, positions = row_coordinates([(rows, 0, rows.data)])
            coordinates = zip(epochs.tolist(), positions.tolist(), strict=True)
            return [(plan.batches.rows, epoch, position) for epoch, position in coordinates]
        _, locations = self._first_in_order(step_range)
        return [(location.node or plan.node, location.epoch, location.position) for location in locations]

    def _events_at(self, node: Node, epoch: int, position: int) -> list[Event]:
        """Return the events of the computation of one row."""
        events: list[Event] = []
        if is_block_input(node):  # a stream's element is never replaced
            with Caught(Exception):  # it was computed before, so a function isn't pure
                coordinates = np.array([epoch], np.int64), np.array([position], np.int64)
                evaluate_block(node, *coordinates, replace(self._client.context(), observe=events.append))
        return events

    def _context(self, observe: Observer | None) -> Context:
        """Return a context for this thread, which also sends events to `observe`."""
        context = self._client.context()
        if observe is None:
            return context

        def send(event: Event) -> None:
            context.observe(event)
            observe(event)

        return replace(context, observe=send)

    def batch_at(self, step_range: StepRange, observe: Observer | None = None) -> Element:
        """Return the batch of a range's first step, computed in this thread; `observe` gets the events."""
        plan = self._plan
        if plan.is_indexed:
            if not rows_of(plan.batches, plan.shard, step_range.first).total:
                raise StateError(
                    f"step {step_range.first.step} was cut for fewer ranks: rank {plan.shard.rank} of "
                    f"{plan.shard.count} has none of its rows. Ask another rank, or a loader without shard=."
                )
            self.prepare()
            return InlineBatches(plan.batches, plan.shard, self._context(observe)).batch(step_range.first)
        return self._first_in_order(step_range, observe)[0]

    def origin(self, step_range: StepRange, row: int) -> Origin:
        """Return the origin of one row of the batch of a range's first step."""
        plan = self._plan
        if not plan.is_indexed:
            found = self.origins(step_range)
            _check_row(row, len(found))
            return found[row]
        rows = rows_of(plan.batches, plan.shard, step_range.first)
        _check_row(row, rows.data)
        return row_origins(plan.batches, rows, row, row + 1)[0]

    def origins(self, step_range: StepRange) -> tuple[Origin, ...]:
        """Return the origins of all rows of data of the batch of a range's first step."""
        plan = self._plan
        if plan.is_indexed:
            rows = rows_of(plan.batches, plan.shard, step_range.first)
            return row_origins(plan.batches, rows, 0, rows.data)
        _, locations = self._first_in_order(step_range)
        return tuple(_origin_at(location, plan.node) for location in locations)

    def stages_at(self, step_range: StepRange, row: int, observe: Observer | None = None) -> RowStages:
        """Return one row of the batch of a range's first step, after each step of the dataset that makes it.

        `observe` gets the events.

        Raises:
            UsageError: the dataset is read in order.
            IndexError: the batch has no such row.
        """
        plan = self._plan
        if not plan.is_indexed:
            raise UsageError(
                "row= shows a row after each step of the dataset, which needs positions, and this dataset is read in "
                "order. Look at the dataset below the first step that is read in order"
            )
        _check_row(row, rows_of(plan.batches, plan.shard, step_range.first).data)
        self.prepare()
        coordinates = coordinates_of(plan.batches, plan.shard, step_range.first, row)
        return RowStages(row, stages_of(plan.batches.rows, *coordinates, self._context(observe)))

    def prepare(self) -> None:
        """Call `worker_init` in the calling thread, once, before it computes the workers' work."""
        if self._owner is None:
            self._client.prepare()
        else:
            self._owner.prepare()

    def _first_in_order(self, step_range: StepRange, observe: Observer | None = None) -> tuple[Element, list[Location]]:
        self.prepare()
        with closing(StageRun(self._plan, step_range, self._context(observe))) as run:
            chunk = run.next_chunk()
        if chunk is None:
            step, epoch = step_range.first.step, step_range.first.epoch
            raise StateError(f"epoch {epoch} has ended before step {step}; ask again after it was delivered")
        rows = rows_of_element(chunk, 0)
        locations = StreamedLocations(self._plan.streaming.input_refs, rows)
        return chunk.elements[0], [locations.at(row) for row in range(len(rows))]

    def block_input(self, number: int, epoch: int, input_range: InputRange) -> BlockInput:
        """Return an input of a dataset that is read in order, to be evaluated in the calling thread."""
        node = self._plan.streaming.inputs[number]
        return BlockInput(number, node, epoch, input_range, read_inline, self._client.context())

    def arm_more(self) -> None:
        """Arm the jobs for which returned memory has room; any thread may call this."""
        if self._scheduler is not None:
            self._scheduler.arm_more(self._client)

    def lacks_memory(self) -> bool:
        """Return whether a job waits for memory, and no worker has another one to compute."""
        return any(client.lacks_memory() for client in self._clients)

    def bytes_in_flight(self) -> int:
        """Return the bytes of batches that are being computed, ready, or held by the consumer."""
        scheduler = self._scheduler
        return 0 if scheduler is None else sum(map(scheduler.count_bytes, self._clients))

    @property
    def _clients(self) -> list[Client]:
        return [self._client] if self._collate_client is None else [self._client, self._collate_client]

    def close(self) -> None:
        """Stop the workers, or leave the scheduler of the owner."""
        self._is_closed = True
        if self._scheduler is not None and self._owner is None:
            self._scheduler.close()
        elif self._scheduler is not None:
            for client in self._clients:
                self._scheduler.leave(client)
        while self._sources:
            self._sources.pop().end_reading()

    def _inline(self, step_range: StepRange) -> InlineStream:
        plan, client = self._plan, self._client
        if plan.is_indexed:
            context = replace(client.context(), draws=self._draws)
            return inline_stream(plan, step_range, client.learned, context)
        run = StageRun(plan, step_range, replace(client.consumer_context(), draws=self._draws))
        return InlineStream(step_range, run.more, close=run.close)


def process_scheduler(owner: Client) -> Scheduler:
    """Return a scheduler of processes."""
    from penstock._runtime._process_scheduler import ProcessScheduler  # noqa: PLC0415 - multiprocessing is slow to import

    return ProcessScheduler(owner)


def _origin_at(location: Location, outermost: Node) -> Origin:
    """Return the origin of a row that was read in order."""
    node, (epoch, position, ordinal) = location.node or outermost, location.seed
    (index,) = indices(node, [epoch], [position])
    found = Origin(epoch, position, location.key, ordinal=ordinal, component=location.path, index=index)
    return origin_in(node, location.part, found)


def _check_row(row: int, count: int) -> None:
    if row >= count:
        raise IndexError(f"row must be in [0, {count}), the rows of data in this rank's part of the batch; got {row}")
