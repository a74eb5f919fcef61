"""The batches of a loader that processes of a Ray cluster compute, in spans of steps.

The problem: batches must be the same, in the same order, whichever processes compute them, and also if hosts are lost.

The solution: the batch of a step is a pure function of the plan, so any process computes any steps. The trainer cuts
the remaining steps into spans, gives each process two of them, and delivers their batches in order. A span whose
process was lost is given to another one. Ray starts the processes, moves the batches and notices lost hosts; there is
no connection, scheduler or heartbeat here.

A process has one processor and computes inline. Rejected: a process for each host, with workers of its own. Its workers
would wait for each other at the end of each span, and Ray places single processors better than whole hosts. Rejected as
well: Ray Data, whose driver takes several times the processor time for a batch.

A row that crashes processes, or hangs in them, must end in an error that names the row, or be replaced by a step with
`on_error=`. A process that is lost shows neither a row nor a step, since it had two spans. So the steps of a lost span
are given out one by one. A step with which two processes in a row were lost is computed by a third one with care: in a
worker process of its own, whose death costs little, so that the rules of worker processes find the row.

Guarantees:
  - Batches come in order, or as spans become ready, each exactly once. The state is that of any other loader.
  - Processes with another version of Penstock, or another dataset, are an error before their first batch.
  - A lost process is replaced, and its spans are computed again. A row that crashes its worker process even then is a
    WorkerError that names it, or is left to `on_error=`. A step at which three processes in a row were lost is a
    WorkerError that names the step. The next call tries again.
  - A process that is at one batch for longer than `Limits.timeout` ends itself, and counts as lost.
  - A span that is late where the trainer waits for it is given to another process too, with all others of the late
    process; the first result counts.
  - If no process is ready for ten seconds, the trainer computes the next batch itself, and logs a warning.
  - A span has at most about 8 MB, and at most `memory=` waits, 256 MB by default. A process has two spans at most, and
    one more of a process that is late.
"""

import importlib
import itertools
import logging
import sys
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, cast

from penstock._decisions import SPAN_BATCHES
from penstock._graph import Element
from penstock._os import Bell, Closer
from penstock._pickles import load
from penstock._plan import Plan
from penstock._processes import unpack_error
from penstock._runtime import EndOfEpoch, Runtime, StepRange, Stream, describe_step, is_logged, units_per_job
from penstock._runtime._failing_work import Patience, Stall
from penstock._runtime._isolated import Received, ReceivedSupplier
from penstock._runtime._isolated_helper import NO_REPORT, BatchReport, RunSteps, described_rows, note_rows
from penstock._runtime._streams import JobStream
from penstock.errors import ClosedError, InternalError, WorkerError
from penstock.events import WorkerDied
from penstock.ray._sent import Failed, Sent, send
from penstock.ray._team import Member, Team
from penstock.ray._worker import ENDED_ITSELF, Computed

if TYPE_CHECKING:
    from concurrent.futures import Future

    from penstock._readings import Added

ray: Any = importlib.import_module("ray")  # by name: type checkers may not find it installed

_logger = logging.getLogger("penstock")
_SPAN_BYTES: Final = 8_000_000  # of a span: Ray takes a millisecond for each, and larger ones only wait longer
_SPAN_SECONDS: Final = 0.1  # of work of a span: a lost process loses little
_MOST_BATCHES: Final = 64  # of a span: a bound for batches that take no time
_BYTES_AHEAD: Final = 256_000_000  # of batches that wait: below the third of a host's memory that Ray's store has
_AHEAD: Final = 3  # spans for each process: two that it has, and one that waits for its turn
_DEATHS: Final = 3  # of processes with the same step, in a row; the last one computes with care
_PATIENCE_SECONDS: Final = 10.0  # without any process, or for a first span: starting takes seconds
_LATE_SECONDS: Final = 0.15  # at a span, at least; then another process gets it too
_LATE_TIMES: Final = 2.5  # what nearly all spans have taken
_KNOWN_ANSWERS: Final = 50  # of processes: the latest ones say what a span takes


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
        self.sent: tuple[Sent, object] | None = None  # with the first stream
        self.waiting_bytes = 0  # of batches that have arrived
        self._closer = closer
        self._is_owner = is_owner
        self._is_prepared = False

    def close(self) -> None:
        super().close()
        if self._is_owner:
            self._closer()

    def prepare(self) -> None:
        if not self._is_prepared and self._plan.limits.worker_init is not None:
            self._plan.limits.worker_init(self._plan.num_workers)
        self._is_prepared = True

    def bytes_in_flight(self) -> int:
        return self.waiting_bytes

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
        if self.sent is None:
            self.sent = send(self._plan, self._plan.node, asked="workers=pool")
        self.readings.waits.begin("helper")
        stream = JobStream(PoolSupplier(self, self._plan, self.sent, step_ranges))
        stream.waits = self.readings.waits
        return stream


class _Try:
    """A process that has a span.

    Attributes:
        member: the process.
        result: what Ray will return; set at once.
        began: when the process may have begun, by the monotonic clock: when it got the span, or gave its last answer.
        seconds: from then to its answer; None until Ray has called back.
    """

    def __init__(self, member: Member) -> None:
        self.member = member
        self.result: Future[Computed | Failed]
        self._given = time.monotonic()
        self.seconds: float | None = None

    @property
    def began(self) -> float:
        return max(self._given, self.member.answered)

    def end(self, team: Team, bell: Bell, result: object) -> None:
        """Note, in a thread of Ray, that the process has answered."""
        del result
        self.seconds = time.monotonic() - self.began
        team.give_back(self.member)
        bell.ring()


class _Span:
    """Some steps, and where they are computed.

    Attributes:
        step_range: the steps.
        deaths: the number of processes in a row that were lost with it.
        tries: the processes that have it; a second one if the first is late.
        computed: the batches; None until then.
        error: the reason why there are none, raised when the batches before were delivered; None for none.
    """

    def __init__(self, step_range: StepRange, deaths: int = 0) -> None:
        self.step_range = step_range
        self.deaths = deaths
        self.tries: list[_Try] = []
        self.computed: Computed | None = None
        self.error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """Whether no process has to compute it."""
        return self.computed is not None or self.error is not None

    @property
    def needs_care(self) -> bool:
        """Whether a process computes it in a worker process of its own."""
        return self.deaths == _DEATHS - 1


class PoolSupplier(ReceivedSupplier):
    """The batches of spans. It opens itself.

    Args:
        runtime: the owner.
        plan: the plan of the loader.
        sent: what processes need for a span.
        step_ranges: the steps.
    """

    def __init__(
        self, runtime: PoolRuntime, plan: Plan, sent: tuple[Sent, object], step_ranges: list[StepRange]
    ) -> None:
        super().__init__(runtime, runtime.recorder, plan, step_ranges)
        self._runtime = runtime
        self._plan = plan
        self._team = runtime.team
        self._sent = sent
        self._bytes_ahead = _BYTES_AHEAD if plan.memory is None else plan.memory
        self._spans: deque[_Span] = deque()  # in order; the first one is delivered next
        self._uncut: deque[StepRange] = deque()  # the steps after those of all spans
        self._size = 1  # batches of the next span
        self._batch_bytes = 0
        self._answers: deque[float] = deque(maxlen=_KNOWN_ANSWERS)  # seconds for a batch
        self._computed_here = 0  # batches
        self._closed = False
        self._bell = Bell()

    def open(self) -> "PoolSupplier":
        """Begin at the first step that was not delivered."""
        self._closed = False
        self._team.listen(self._bell)
        self._spans = deque()
        self._uncut = deque(self._remaining.step_ranges())
        return self

    def next_job(self) -> Received | None:
        """Wait for the next span, and return its batches; None once closed."""
        return self._receive(waits=True)

    def next_job_nowait(self) -> Received | None:
        """Return the batches of the next span, if they have arrived."""
        return self._receive(waits=False)

    def is_ready(self) -> bool:
        """Return whether the next span has arrived, or none will."""
        self._bell.clear()
        self._move()
        spans = self._spans
        return self._closed or not spans or self._done_of(spans) is not None

    def close(self) -> None:
        """Take no more spans; those that processes have are computed in vain. Any thread may call this."""
        self._closed = True
        self._team.unlisten(self._bell)
        self._spans = deque()  # another thread may use the other one
        self._bell.ring()

    def fileno(self) -> int:
        return self._bell.fileno()

    def _count(self, report: BatchReport) -> None:
        super()._count(report)
        note_rows(self._runtime.crashing_rows, report.crashing_rows)

    def _receive(self, *, waits: bool) -> Received | None:
        alone_since: float | None = None  # since when no process is ready
        patience = Patience(self._stall, None)
        while not self._closed:
            self._bell.clear()
            self._runtime.check()
            self._move()
            spans = self._spans
            if not spans:  # also where another thread has closed this meanwhile
                return Received([], [], EndOfEpoch())
            done = self._done_of(spans)
            if done is not None:
                spans.remove(done)
                return self._unpacked(done)
            if not waits:
                break
            if self._team.ready:
                self._await(spans[0], patience)
                continue
            now = time.monotonic()
            alone_since = now if alone_since is None else alone_since
            if not self._bell.wait(max(_PATIENCE_SECONDS - (now - alone_since), 0.0)):
                return self._made_here(spans)
        return None

    def _done_of(self, spans: deque[_Span]) -> _Span | None:
        """Return the span to deliver next, if it is there."""
        if self._plan.ordered:
            return spans[0] if spans[0].is_done else None
        return next((span for span in spans if span.is_done), None)

    def _await(self, span: _Span, patience: Patience) -> None:
        """Wait for a change; at most until the next span is late, or the wait has to be logged."""
        late = self._late_at(span) - time.monotonic()
        seconds = patience.seconds_left()
        if 0 < late < (inf if seconds is None else seconds):
            self._bell.wait(late)
        elif not self._bell.wait(seconds):
            patience.look()

    def _stall(self) -> Stall | None:
        """Return the work that the trainer waits for."""
        span = next(iter(self._spans), None)
        if span is None or not span.tries:
            return None
        tried, unit = span.tries[0], span.step_range.first
        worker = f"process {tried.member.number} of the pool, on host {tried.member.host!r},"
        return Stall(worker, tried.began, lambda: f"step {unit.step}, {describe_step(self._plan, unit)}")

    def _move(self) -> None:
        """Take what was computed, and give spans to processes."""
        for span in list(self._spans):
            for each in [each for each in span.tries if each.result.done()]:
                span.tries.remove(each)
                self._take(span, each)
        self._runtime.waiting_bytes = sum(span.computed.block.nbytes for span in self._spans if span.computed)
        self._team.repair()
        self._hedge()
        for span in self._due():
            member = self._team.take()
            if member is None:
                return
            self._give(span, member)

    def _hedge(self) -> None:
        """If the next span is late, give it to another process too, and the others of its process after it.

        A host that is silent, but not lost, would otherwise stop the training until Ray gives it up. Where batches come
        as they become ready, the training waits for a late one only at the end.
        """
        first = next(iter(self._spans), None)
        if first is None or time.monotonic() < self._late_at(first):
            return
        if not self._plan.ordered and any(step_range.steps for step_range in self._uncut):
            return
        (late,) = first.tries
        for span in list(self._spans):
            if [each.member for each in span.tries] == [late.member]:
                member = self._team.take(besides=late.member)
                if member is None:
                    return
                self._give(span, member)

    def _late_at(self, span: _Span) -> float:
        """Return when a span is late, by the monotonic clock; never if it isn't at one process alone."""
        if len(span.tries) != 1:
            return inf
        seconds = _PATIENCE_SECONDS
        if self._answers and not span.needs_care:
            usual = sorted(self._answers)[len(self._answers) * 9 // 10]
            seconds = max(_LATE_TIMES * usual * span.step_range.steps, _LATE_SECONDS)
        return span.tries[0].began + seconds

    def _due(self) -> Iterator[_Span]:
        """Yield the spans to give, as long as there are some and memory for them; at least the next one to deliver."""
        yield from [span for span in self._spans if not span.tries and not span.is_done]
        while len(self._spans) < self._most_spans():
            while self._uncut and not self._uncut[0].steps:
                self._uncut.popleft()
            if not self._uncut:
                return
            first = self._uncut.popleft()
            size = min(self._size, first.steps)
            self._uncut.appendleft(first.part(size, first.steps))
            span = _Span(first.part(0, size))
            self._spans.append(span)
            yield span

    def _most_spans(self) -> int:
        by_bytes = self._bytes_ahead // max(self._batch_bytes * self._size, 1)
        return max(min(_AHEAD * self._team.ready, by_bytes), 1)

    def _give(self, span: _Span, member: Member) -> None:
        tried = _Try(member)
        known = described_rows(self._runtime.crashing_rows)
        work = RunSteps([span.step_range], int(span.needs_care), self._recorder.remembered(), known)
        tried.result = member.actor.compute.remote(*self._sent, work).future()
        span.tries.append(tried)
        tried.result.add_done_callback(partial(tried.end, self._team, self._bell))

    def _take(self, span: _Span, ended: _Try) -> None:
        """Take the result of a span: its batches, the error of a process that can't compute it, or a loss."""
        error = ended.result.exception()
        if error is not None:
            if isinstance(error, ray.exceptions.RayTaskError) or not isinstance(error, ray.exceptions.RayError):
                span.error = error
            else:
                self._lose(span, ended.member, error)
            return
        computed = ended.result.result()
        span.tries.clear()
        if isinstance(computed, Failed):
            span.error = computed.unpacked()
            return
        span.computed = computed
        if not span.needs_care:
            self._learn(computed, ended.seconds)

    def _learn(self, computed: Computed, seconds: float | None) -> None:
        """Choose how many batches the next spans have, and note how long the process took to answer."""
        steps = max(computed.steps, 1)
        self._batch_bytes = computed.block.nbytes // steps
        by_time = _SPAN_SECONDS / max(computed.seconds / steps, 1e-9)
        most = min(_SPAN_BYTES / max(self._batch_bytes, 1), _MOST_BATCHES)
        self._size = units_per_job(SPAN_BATCHES, by_time, most)
        if seconds is not None:
            self._answers.append(seconds / steps)

    def _lose(self, span: _Span, member: Member, error: BaseException) -> None:
        """Note that a process was lost with a span; unless another one has it, its steps are given out one by one."""
        step, reason = span.step_range.first.step, str(error).strip()
        has_ended = ENDED_ITSELF in reason
        if isinstance(error, ray.exceptions.RayActorError) and self._team.lose(member) and not has_ended:
            self._recorder.observe(WorkerDied(member.number, member.pid, None, reason, step, None))
            _logger.warning("process %d of the pool, on host %s, was lost: %s", member.number, member.host, reason)
        if span.tries:
            return
        deaths = span.deaths + (not has_ended)
        if deaths >= _DEATHS:
            span.error = WorkerError(
                f"processes of the pool are lost while they make the batch of step {step}; the last: {reason}"
            )
            return
        singles = [_Span(span.step_range.part(index, 1), deaths) for index in range(span.step_range.steps)]
        spans = [singles if each is span else [each] for each in self._spans]
        self._spans = deque(itertools.chain(*spans))

    def _made_here(self, spans: deque[_Span]) -> Received:
        """Compute the next batch in this process, since there is no other one."""
        span = spans[0]
        self._computed_here += 1
        if is_logged(self._computed_here):
            _logger.warning(
                "no process of the pool has been ready for %.0f seconds, so this one computes; %d batches so far. Ray "
                "starts the processes when the cluster has room for them",
                _PATIENCE_SECONDS,
                self._computed_here,
            )
        batch = self._runtime.batch_at(span.step_range)
        rest = span.step_range.part(1, span.step_range.steps)
        spans.popleft()
        if rest.steps:
            spans.appendleft(_Span(rest))
        return self._received(span, [batch], [NO_REPORT], None)

    def _unpacked(self, span: _Span) -> Received:
        """Return the batches of a span, and the error after them, if there is one."""
        computed = span.computed
        if computed is None:
            error = span.error or InternalError("a span that is done has neither batches nor an error")
            return self._received(span, [], [NO_REPORT], error)
        unpacked = load(computed.block.data, copied_bytes=sys.maxsize)  # so that arrays may be written to
        batches, reports, times = cast("tuple[list[Element], list[BatchReport], Added]", unpacked)
        self._runtime.readings.include(times, "the pool")
        packed = reports[-1].error if reports else None
        failure = None if packed is None else unpack_error(packed, place=f"On host {computed.host!r}, in")
        return self._received(span, batches, reports, failure)

    def _received(
        self, span: _Span, batches: list[Element], reports: list[BatchReport], error: BaseException | None
    ) -> Received:
        """Return batches to deliver; each says its step, unless batches come in order."""
        if not self._plan.ordered:
            first = span.step_range.first.step
            reports = [report._replace(token=first + index) for index, report in enumerate(reports)]
        return Received(batches, reports, error)
