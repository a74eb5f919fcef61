"""The batches of a loader that processes of a Ray cluster compute, in spans of steps.

The problem: batches must be the same, in the same order, whichever processes compute them, and also if hosts are lost.

The solution: the batch of a step is a pure function of the plan, so any process computes any steps. The trainer cuts
the remaining steps into spans, gives each process two of them, and delivers their batches in order. A span whose
process was lost is given to another one. Ray starts the processes, moves the batches and notices lost hosts; there is
no connection, scheduler or heartbeat here.

Of a dataset that is read in order, the processes compute the inputs (`_inputs`), in spans of positions.

A process has one processor and computes inline. Rejected: a process for each host, with workers of its own. Its workers
would wait for each other at the end of each span, and Ray places single processors better than whole hosts. Rejected as
well: Ray Data, whose driver takes several times the processor time for a batch.

A row that crashes processes, or hangs in them, must end in an error that names the row, or be replaced by a step with
`on_error=`. A process that is lost shows neither a row nor a step, since it had two spans. So the steps of a lost span
are given out one by one. A step with which two processes in a row were lost is computed by the next one with care: in a
worker process of its own, whose death costs little, so that the rules of worker processes find the row. A process that
takes care outlives the crash of a row. If it is lost as well, then hardly by the row's fault, so others take care of
the step after it. The loss of a whole host is no reason for care, and its spans are given out as they are. Where hosts
go all the time, no step is blamed for that.

Guarantees:
  - Batches come in order, or as spans become ready, each exactly once. The state is that of any other loader.
  - Processes with another version of Penstock, or another dataset, are an error before their first batch.
  - A lost process is replaced, and its spans are computed again. A row that crashes its worker process even then is a
    WorkerError that names it, or is left to `on_error=`. A step at which eight processes in a row were lost is a
    WorkerError that names the step. The next call tries again.
  - A process that is at one batch for longer than `Limits.timeout` ends itself, and counts as lost.
  - A span that is late where the trainer waits for it is given to another process too, on another host if there is one,
    with all others that are late; the first result counts.
  - If no process is ready for ten seconds, the trainer computes batches itself until one is, and logs warnings.
  - Where programs share the processes by a name, a span that several of them request is computed once, as long as its
    process keeps the result, and the programs cut and give spans alike. Each gets the bytes that it would get alone.
  - A span has at most about 8 MB, and at most `memory=` waits, 256 MB by default. A process has two spans at most, and
    one more of a process that is late.
"""

import logging
import sys
import threading
from typing import TYPE_CHECKING, Final, cast

from penstock._graph import Element
from penstock._os import Bell, Closer
from penstock._pickles import load_parts
from penstock._plan import Plan
from penstock._processes import unpack_raised
from penstock._runtime import EndOfEpoch, Runtime, StepRange, Stream, describe_step, is_logged
from penstock._runtime._fold_thread import FoldSupplier
from penstock._runtime._isolated import Received, ReceivedSupplier
from penstock._runtime._isolated_helper import NO_REPORT, BatchReport, RunSteps, described_rows, note_rows
from penstock._runtime._streams import JobStream
from penstock.errors import ClosedError, InternalError
from penstock.ray._dealer import PATIENCE_SECONDS, Dealer, Learned, Span
from penstock.ray._inputs import PoolReader
from penstock.ray._sent import Failed, Sent, send
from penstock.ray._team import Member, Team

if TYPE_CHECKING:
    from concurrent.futures import Future

    from penstock._readings import Added
    from penstock.ray._worker import Computed

_logger = logging.getLogger("penstock")
_MOST_BATCHES: Final = 64  # of a span: a bound for batches that take no time
_BYTES_AHEAD: Final = 256_000_000  # of batches that wait: below the third of a host's memory that Ray's store has


class PoolRuntime(Runtime):
    """A runtime whose batches the processes of a pool compute; single steps, requested by number, it computes itself.

    Args:
        plan: the plan of the loader.
        team: the processes.
        closer: closes them; held as long as this runtime uses them.
        is_owner: whether they end with this runtime.
    """

    def __init__(self, plan: Plan, team: Team, closer: Closer, *, is_owner: bool = False) -> None:
        super().__init__(plan)
        self.team = team
        self.bytes_ahead = _BYTES_AHEAD if plan.memory is None else plan.memory
        self.learned: dict[int | None, Learned] = {}  # of batches, or, by its number, of an input of folds
        self._sent: tuple[Sent, object] | None = None  # with the first stream
        self._reader: PoolReader | None = None
        self._supplier: PoolSupplier | None = None
        self._closer = closer
        self._is_owner = is_owner
        self._prepared = threading.local()  # `is_done` in threads that called `worker_init`

    def close(self) -> None:
        super().close()
        if self._is_owner:
            self._closer()

    def prepare(self) -> None:
        if self._plan.limits.worker_init is not None and not getattr(self._prepared, "is_done", False):
            self._plan.limits.worker_init(self._plan.num_workers)
            self._prepared.is_done = True

    def bytes_in_flight(self) -> int:
        dealing = self._supplier or self._reader
        return 0 if dealing is None else dealing.waiting_bytes

    @property
    def is_closed(self) -> bool:
        """Whether the runtime or the pool was closed."""
        return self._is_closed or self.team.is_closed

    def check(self) -> None:
        """Raise if one of them was."""
        if self._is_closed:
            raise ClosedError("the loader was closed")
        if self.team.is_closed:
            raise ClosedError("the pool was closed; make a new one")

    def open_stream(self, step_ranges: list[StepRange], *, ahead: int = 0) -> Stream:
        del ahead
        self.recorder.start_epoch()
        self.check()
        self.readings.waits.begin("helper")
        if self._plan.is_indexed:
            self._supplier = PoolSupplier(self, self._plan, step_ranges)
            stream: Stream = JobStream(self._supplier)
        else:
            stream = JobStream(FoldSupplier(self, self._client, self._open_reader, step_ranges[0]))
        stream.waits = self.readings.waits
        return stream

    def _open_reader(self) -> PoolReader:
        self._reader = PoolReader(self, self._client)
        return self._reader

    @property
    def timeout(self) -> None:
        """None: each process looks after its own work."""

    def sent(self) -> tuple[Sent, object]:
        """Return the arguments by which a process gets the plan."""
        if self._sent is None:
            kept_bytes = self.bytes_ahead // self.team.count if self.team.is_shared else 0
            self._sent = send(self._plan, self._plan.node, asked="workers=pool", kept_bytes=kept_bytes)
        return self._sent


class _Batches:
    """Ranges of steps, as the work of spans."""

    def __init__(self, runtime: PoolRuntime, plan: Plan) -> None:
        self._runtime = runtime
        self._plan = plan

    def call(self, member: Member, work: StepRange, /, *, with_care: bool) -> "Future[Computed | Failed]":
        known = described_rows(self._runtime.crashing_rows)
        steps = RunSteps([work], int(with_care), self._runtime.recorder.remembered(), known)
        result: Future[Computed | Failed] = member.actor.compute.remote(*self._runtime.sent(), steps).future()
        return result

    def describe(self, work: StepRange, /) -> str:
        return f"the batch of step {work.first.step}: {describe_step(self._plan, work.first)}"

    def name(self, work: StepRange, /) -> str:
        return f"steps {work.start} to {work.start + work.steps - 1}"

    def step(self, work: StepRange, /) -> int:
        return work.first.step


class PoolSupplier(ReceivedSupplier):
    """The batches of spans. It opens itself.

    Args:
        runtime: the owner.
        plan: the plan of the loader.
        step_ranges: the steps.
    """

    def __init__(self, runtime: PoolRuntime, plan: Plan, step_ranges: list[StepRange]) -> None:
        super().__init__(runtime, runtime.recorder, plan, step_ranges)
        self._runtime = runtime
        self._plan = plan
        self._learned = runtime.learned.setdefault(None, Learned(_MOST_BATCHES, is_shared=runtime.team.is_shared))
        self._computed_here = 0  # batches
        self._bell = Bell()
        self._dealer = self._dealt()

    def _dealt(self) -> Dealer[StepRange]:
        kind = _Batches(self._runtime, self._plan)
        works = self._remaining.step_ranges()
        ordered = self._plan.ordered
        return Dealer(self._runtime, kind, works, learned=self._learned, bell=self._bell, ordered=ordered)

    @property
    def waiting_bytes(self) -> int:
        """The bytes of batches that have arrived."""
        return self._dealer.waiting_bytes

    def open(self) -> "PoolSupplier":
        """Begin at the first step that was not delivered."""
        self._dealer.close()
        self._dealer = self._dealt()
        return self

    def next_job(self) -> Received | None:
        """Wait for the next span, and return its batches; None once closed."""
        return self._received(waits=True)

    def next_job_nowait(self) -> Received | None:
        """Return the batches of the next span, if they have arrived."""
        return self._received(waits=False)

    def is_ready(self) -> bool:
        """Return whether the next span has arrived, or none will."""
        return self._dealer.is_ready()

    def close(self) -> None:
        """Take no more spans. Any thread may call this."""
        self._dealer.close()

    def fileno(self) -> int:
        self._dealer.ring_when_late()
        return self._bell.fileno()

    def _count(self, report: BatchReport) -> None:
        super()._count(report)
        note_rows(self._runtime.crashing_rows, report.crashing_rows)

    def _received(self, *, waits: bool) -> Received | None:
        dealer = self._dealer
        span = dealer.next(waits=waits)
        if span is None:
            return Received([], [], EndOfEpoch()) if dealer.is_over else None
        if span.is_done:
            return self._unpacked(span)
        rest = span.work.part(1, span.work.steps)
        if rest.steps:
            dealer.put_back(rest)
        return self._made_here(span.work)

    def _made_here(self, work: StepRange) -> Received:
        """Compute a batch in this process, since there is no other one."""
        self._computed_here += 1
        if is_logged(self._computed_here):
            _logger.warning(
                "no process of the pool has been ready for %.0f seconds, so this one computes; %d batches so far. Ray "
                "starts the processes when the cluster has room for them",
                PATIENCE_SECONDS,
                self._computed_here,
            )
        return self._to_deliver(work, [self._runtime.batch_at(work)], [NO_REPORT], None)

    def _unpacked(self, span: Span[StepRange]) -> Received:
        """Return the batches of a span, and the error after them, if there is one."""
        computed = span.computed
        if computed is None:
            error = span.error or span.crash or InternalError("a span that is done has neither batches nor an error")
            return self._to_deliver(span.work, [], [NO_REPORT], error)
        unpacked = load_parts(computed.parts, copied_bytes=sys.maxsize)  # so that arrays may be written to
        batches, reports, times = cast("tuple[list[Element], list[BatchReport], Added]", unpacked)
        self._runtime.readings.include(times, "the pool")
        packed = reports[-1].error if reports else None
        failure = None if packed is None else unpack_raised(packed, place=f"On host {computed.host!r}, in")
        return self._to_deliver(span.work, batches, reports, failure)

    def _to_deliver(
        self, work: StepRange, batches: list[Element], reports: list[BatchReport], error: BaseException | None
    ) -> Received:
        """Return batches to deliver; each report has the step of its batch, unless batches are delivered in order."""
        if not self._plan.ordered:
            first = work.first.step
            reports = [report._replace(token=first + index) for index, report in enumerate(reports)]
        return Received(batches, reports, error)
