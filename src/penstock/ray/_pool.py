"""`Pool`: processes of a Ray cluster that compute the batches of loaders.

The problem: the host of a trainer often has too few processors to feed its accelerators, and the cluster has others.
But the batches must be the same, in the same order, whichever processes compute them, and also if hosts are lost.

The solution: the batch of a step is a pure function of the plan, so any process computes any steps. The trainer cuts
the remaining steps into spans, gives each process two of them, and delivers their batches in order. A span whose
process was lost is given to another one. Ray starts the processes, moves the batches and notices lost hosts; there is
no connection, scheduler or heartbeat here.

A process has one processor and computes inline. Rejected: a process for each host, with workers of its own. Its workers
would wait for each other at the end of each span, and Ray places single processors better than whole hosts. Rejected as
well: Ray Data, whose driver takes several times the processor time for a batch.

Guarantees:
  - Batches come in order, each exactly once. The state is that of any other loader.
  - Processes with another version of Penstock, or another dataset, are an error before their first batch.
  - A lost process is replaced, and its spans are computed again. A step at which three processes in a row were lost is
    a WorkerError that names it; the next call tries once more.
  - A span that is late where the trainer waits for it is given to another process too; the first result counts.
  - If no process is ready for ten seconds, the trainer computes the next batch itself, and logs a warning.
  - A span has at most about 8 MB, and at most `memory=` waits, 256 MB by default. A process has two spans at most.
"""

import importlib
import itertools
import logging
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, cast

from penstock._decisions import SPAN_BATCHES
from penstock._graph import Element, need_count
from penstock._os import Bell, Closer
from penstock._pickles import load
from penstock._plan import Plan
from penstock._processes import unpack_error
from penstock._runtime import EndOfEpoch, Runtime, StepRange, Stream, is_logged, units_per_job
from penstock._runtime._isolated import Received, ReceivedSupplier
from penstock._runtime._isolated_helper import NO_REPORT, BatchReport
from penstock._runtime._pool import RemoteWorkers
from penstock._runtime._streams import JobStream
from penstock.errors import ClosedError, InternalError, WorkerError
from penstock.events import WorkerDied
from penstock.ray._sent import Failed, Sent, checked_options, send
from penstock.ray._team import Member, Team
from penstock.ray._worker import Computed

if TYPE_CHECKING:
    from concurrent.futures import Future

ray: Any = importlib.import_module("ray")  # by name: type checkers may not find it installed

_logger = logging.getLogger("penstock")
_OPTIONS: Final = {"num_cpus": 1, "scheduling_strategy": "SPREAD"}
_SPAN_BYTES: Final = 8_000_000  # of a span: Ray takes a millisecond for each, and larger ones only wait longer
_SPAN_SECONDS: Final = 0.1  # of work of a span: a lost process loses little
_MOST_BATCHES: Final = 64  # of a span: a bound for batches that take no time
_BYTES_AHEAD: Final = 256_000_000  # of batches that wait: below the third of a host's memory that Ray's store has
_AHEAD: Final = 3  # spans for each process: two that it has, and one that waits for its turn
_DEATHS: Final = 3  # of processes with the same step, in a row
_PATIENCE_SECONDS: Final = 10.0  # without any process, or for a first span: starting takes seconds
_LATE_SECONDS: Final = 0.3  # for the next span, at least; then it is computed twice, if another process is idle
_LATE_TIMES: Final = 4.0  # the time that a span usually takes: a process may have another one before it


class Pool:
    """Processes of a Ray cluster that compute the batches of loaders: `penstock.Loader(dataset, workers=pool)`.

    Batches and states are those of any other loader. The dataset must have positions; of one that is read in order, the
    trainer would compute most itself. Several loaders may share a pool. All hosts need Penstock in the same version,
    the modules of the dataset, and its files.

    It uses the cluster that `ray.init` has connected to. Without that, Ray looks for one by its own rules, and
    otherwise starts one on this host. The processes start in the background, wherever Ray has free processors. If hosts
    are lost, their processes start elsewhere, as soon as there is room. Leaving the `with` block, `close()` and garbage
    collection end them.

    Args:
        num_workers: the number of processes, at least 1. Each takes one processor.
        options: options of the processes, as `ray.remote` takes them for actors, such as
            `{"resources": {"decoders": 1}}` to choose hosts. Default: one processor, spread over the hosts.

    Raises:
        UsageError: for a wrong argument.

    Example:
        >>> import penstock as ps
        >>> import penstock.ray
        >>> dataset = ps.range(8, seed=7).shuffle().batch(4)
        >>> with penstock.ray.Pool(1) as pool, ps.Loader(dataset, workers=pool) as loader:
        ...     batches = [batch.tolist() for batch in loader]
        >>> batches == [batch.tolist() for batch in dataset]
        True
    """

    def __init__(self, num_workers: int, *, options: Mapping[str, Any] | None = None) -> None:
        count = need_count("num_workers", num_workers, 1)
        self._team = Team(count, {**_OPTIONS, **checked_options(options)})
        self._closer = Closer(self._team.close)

    def __penstock_workers__(self) -> RemoteWorkers:
        """Return the processes; a loader calls this.

        Raises:
            ClosedError: the pool was closed.
        """
        if self._team.is_closed:
            raise ClosedError("the pool was closed; make a new one")
        return RemoteWorkers(self._team.text, partial(PoolRuntime, team=self._team, closer=self._closer))

    def close(self) -> None:
        """End the processes. Loaders that use them raise a ClosedError when they are asked for another batch."""
        self._closer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Pool({self._team.text}, {self._team.ready} ready)"


class PoolRuntime(Runtime):
    """A runtime whose batches the processes of a pool compute; single steps, requested by number, it computes itself.

    Args:
        plan: the plan of the loader.
        team: the processes.
        closer: closes them; held as long as this runtime uses them.
    """

    def __init__(self, plan: Plan, team: Team, closer: Closer) -> None:
        super().__init__(plan)
        self.team = team
        self.sent: tuple[Sent, object] | None = None  # with the first stream
        self.waiting_bytes = 0  # of batches that have arrived
        self._closer = closer

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


class _Try(NamedTuple):
    """A process that has a span, and what Ray will return."""

    member: Member
    result: "Future[Computed | Failed]"


class _Span:
    """Some steps, and where they are computed.

    Attributes:
        step_range: the steps.
        deaths: the number of processes in a row that were lost with it.
        tries: the processes that have it; a second one if the first is late.
        since: when the last of them got it, by the monotonic clock.
        computed: the batches; None until then.
        error: the reason why there are none, raised when the batches before were delivered; None for none.
    """

    def __init__(self, step_range: StepRange, deaths: int = 0) -> None:
        self.step_range = step_range
        self.deaths = deaths
        self.tries: list[_Try] = []
        self.since = 0.0
        self.computed: Computed | None = None
        self.error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """Whether no process has to compute it."""
        return self.computed is not None or self.error is not None


class PoolSupplier(ReceivedSupplier):
    """The batches of spans, in order. It opens itself.

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
        self._team = runtime.team
        self._sent = sent
        self._bytes_ahead = _BYTES_AHEAD if plan.memory is None else plan.memory
        self._spans: deque[_Span] = deque()  # in order; the first one is delivered next
        self._uncut: deque[StepRange] = deque()  # the steps after those of all spans
        self._size = 1  # batches of the next span
        self._batch_bytes = 0
        self._batch_seconds: float | None = None
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
        return self._receive(None)

    def next_job_nowait(self) -> Received | None:
        """Return the batches of the next span, if they have arrived."""
        return self._receive(0.0)

    def is_ready(self) -> bool:
        """Return whether the next span has arrived, or none will."""
        self._bell.clear()
        self._move()
        spans = self._spans
        return self._closed or not spans or spans[0].is_done

    def close(self) -> None:
        """Take no more spans; those that processes have are computed in vain. Any thread may call this."""
        self._closed = True
        self._team.unlisten(self._bell)
        self._spans = deque()  # another thread may use the other one
        self._bell.ring()

    def fileno(self) -> int:
        return self._bell.fileno()

    def _receive(self, timeout_seconds: float | None) -> Received | None:
        alone_since: float | None = None  # since when no process is ready
        while not self._closed:
            self._bell.clear()
            self._runtime.check()
            self._move()
            spans = self._spans
            if not spans:  # also where another thread has closed this meanwhile
                return Received([], [], EndOfEpoch())
            if spans[0].is_done:
                received = _unpacked(spans[0])
                spans.popleft()
                return received
            if timeout_seconds is not None:
                break
            if self._team.ready:
                self._await(spans[0])
                continue
            now = time.monotonic()
            alone_since = now if alone_since is None else alone_since
            if not self._bell.wait(max(_PATIENCE_SECONDS - (now - alone_since), 0.0)):
                return self._made_here(spans)
        return None

    def _await(self, span: _Span) -> None:
        """Wait for the next span, or for another change; if the span is late, give it to another process too.

        A host that is silent, but not lost, would otherwise stop the training until Ray gives it up.
        """
        if len(span.tries) != 1:
            self._bell.wait()
            return
        expected = _LATE_TIMES * (self._batch_seconds or 0.0) * span.step_range.steps
        patience = _PATIENCE_SECONDS if self._batch_seconds is None else max(expected, _LATE_SECONDS)
        if self._bell.wait(max(span.since + patience - time.monotonic(), 0.0)):
            return
        member = self._team.take(besides=span.tries[0].member)
        if member is None:
            span.since = time.monotonic()
        else:
            self._give(span, member)

    def _move(self) -> None:
        """Take what was computed, and give spans to processes."""
        for span in list(self._spans):
            for each in [each for each in span.tries if each.result.done()]:
                span.tries.remove(each)
                self._take(span, each)
        self._runtime.waiting_bytes = sum(span.computed.block.nbytes for span in self._spans if span.computed)
        self._team.repair()
        for span in self._due():
            member = self._team.take()
            if member is None:
                return
            self._give(span, member)

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
        result: Future[Computed | Failed] = member.actor.compute.remote(
            *self._sent, span.step_range, self._recorder.remembered()
        ).future()
        span.tries.append(_Try(member, result))
        span.since = time.monotonic()
        result.add_done_callback(partial(_ended, self._team, member, self._bell))

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
        else:
            span.computed = computed
            self._learn(computed)

    def _learn(self, computed: Computed) -> None:
        """Choose how many batches the next spans have."""
        steps = max(computed.steps, 1)
        self._batch_bytes = computed.block.nbytes // steps
        self._batch_seconds = computed.seconds / steps
        by_time = _SPAN_SECONDS / max(self._batch_seconds, 1e-9)
        most = min(_SPAN_BYTES / max(self._batch_bytes, 1), _MOST_BATCHES)
        self._size = units_per_job(SPAN_BATCHES, by_time, most)

    def _lose(self, span: _Span, member: Member, error: BaseException) -> None:
        """Note that a process was lost with a span; unless another one has it, its steps are given out one by one."""
        step, reason = span.step_range.first.step, str(error).strip()
        if isinstance(error, ray.exceptions.RayActorError) and self._team.lose(member):
            self._recorder.observe(WorkerDied(member.number, member.pid, None, reason, step, None))
            _logger.warning("process %d of the pool, on host %s, was lost: %s", member.number, member.host, reason)
        if span.tries:
            return
        deaths = span.deaths + 1
        if deaths >= _DEATHS:  # the next call tries once more
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
        return Received([batch], [NO_REPORT], None)


def _ended(team: Team, member: Member, bell: Bell, result: object) -> None:
    """Note, in a thread of Ray, that a process has ended a span."""
    del result
    team.give_back(member)
    bell.ring()


def _unpacked(span: _Span) -> Received:
    """Return the batches of a span, or raise its error; the span is then given to a process again."""
    error, span.error = span.error, None
    try:
        if error is not None or span.computed is None:
            raise error or InternalError("a span that is done has neither batches nor an error")
    finally:
        del error  # otherwise its traceback would keep it and the stream
    unpacked = load(span.computed.block.data, copied_bytes=sys.maxsize)  # so that arrays may be written to
    batches, reports = cast("tuple[list[Element], list[BatchReport]]", unpacked)
    packed = reports[-1].error if reports else None
    host = span.computed.host
    return Received(batches, reports, None if packed is None else unpack_error(packed, place=f"On host {host!r}, in"))
