"""Spans of work, dealt to the processes of a pool in order, and taken back in order.

A span is given to a process that has room. If the process is lost, the parts of the span are given out one by one; if
it is late, another process gets the span too. `_spans` has the reasons; the work of a span is a range of steps there,
and a range of positions in `_inputs`.
"""

import importlib
import itertools
import logging
import statistics
import time
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar
from weakref import WeakKeyDictionary

from penstock._decisions import SPAN_BATCHES
from penstock._os import Bell, DaemonThread, uninterrupted
from penstock._readings import Answer, Readings
from penstock._runtime import Recorder, job_size
from penstock._runtime._failing_work import Patience, Stall
from penstock.errors import WorkerError
from penstock.events import WorkerDied
from penstock.ray._sent import Failed
from penstock.ray._team import Member, Team
from penstock.ray._worker import ENDED_ITSELF, HOST_ENDED, Computed

if TYPE_CHECKING:
    from concurrent.futures import Future

ray: Any = importlib.import_module("ray")  # by name: type checkers may not find it installed

_logger = logging.getLogger("penstock")
_SPAN_BYTES: Final = 8_000_000  # of a span: Ray takes a millisecond for each, and larger ones only wait longer
_SPAN_SECONDS: Final = 0.1  # of work of a span, at most: a lost process loses little
_LEAST_SPAN_SECONDS: Final = 0.05  # of a small pool: what is computed again is waited for
_SPANS_A_SECOND: Final = 200  # of all processes, above that least: they take a fifth of a thread of the trainer
_AHEAD: Final = 3  # spans for each process: two that it has, and one that waits for its turn
_DEATHS_BEFORE_CARE: Final = 2  # of processes with the same part of a span, in a row; from then on, care is taken
_DEATHS: Final = 8  # in a row: a process that takes care outlives a crash, so most such losses have other reasons
PATIENCE_SECONDS: Final = 10.0
"""Without any process, or for a first span: starting takes seconds."""
_LATE_SECONDS: Final = 0.15  # at a span, at least; then another process gets it too
_CAREFUL_SECONDS: Final = 3.0  # with care, which starts a process
_LATE_TIMES: Final = 2.5  # what most spans have taken
_TRIES: Final = 3  # of a span at once
_KNOWN_ANSWERS: Final = 50  # of processes: the latest ones say what a span takes
_FEW_ANSWERS: Final = 8  # from then on, their median says it about as well


class Parted(Protocol):
    """Work that can be parted."""

    @property
    def start(self) -> int:
        """The number of the first of its least parts."""
        ...

    @property
    def steps(self) -> int:
        """The number of them."""
        ...

    def part(self, start: int, steps: int, /) -> Self:
        """Return `steps` of them, from `start` on."""
        ...


WorkT = TypeVar("WorkT", bound=Parted)
WorkT_contra = TypeVar("WorkT_contra", bound=Parted, contravariant=True)


class Kind(Protocol[WorkT_contra]):
    """A kind of work: the functions that send and describe it."""

    def call(self, member: Member, work: WorkT_contra, /, *, with_care: bool) -> "Future[Computed | Failed]":
        """Send work to a process."""
        ...

    def describe(self, work: WorkT_contra, /) -> str:
        """Return a description for logs and errors."""
        ...

    def name(self, work: WorkT_contra, /) -> str:
        """Return a short name, for a trace."""
        ...

    def step(self, work: WorkT_contra, /) -> int | None:
        """Return the step that the work begins with; None if that isn't known."""
        ...


class _Try:
    """A process that has a span.

    Attributes:
        member: the process.
        given: when it got the span, by the monotonic clock.
        result: what Ray will return; set at once.
        began: when the process may have begun, by the monotonic clock: when it got the span, or gave its last answer.
        ended: when its answer was here, by the clock of readings; 0 until then.
        seconds: from then to its answer; None until Ray has called back, or if it was the first of the process, which
            takes longer.
    """

    def __init__(self, member: Member) -> None:
        self.member = member
        self.result: Future[Computed | Failed]
        self.given = time.monotonic()
        self.ended = 0.0
        self.seconds: float | None = None

    @property
    def began(self) -> float:
        return max(self.given, self.member.answered)

    def end(self, team: Team, bell: Bell, result: object) -> None:
        """Note, in a thread of Ray, that the process has answered."""
        del result
        self.ended = time.perf_counter()
        if self.member.answered:
            self.seconds = time.monotonic() - self.began
        team.give_back(self.member)
        bell.ring()


class Learned:
    """The size of the next span, from the sizes and times of earlier ones.

    Args:
        most: the maximum of `size`.
        is_shared: whether other programs use the processes, which can have the same result only if they cut alike.

    Attributes:
        size: the number of parts of the next span.
        bytes: of a part.
    """

    def __init__(self, most: int, *, is_shared: bool) -> None:
        self.size = 1
        self.bytes = 0
        self._most = most
        self._is_shared = is_shared
        self._works: deque[float] = deque(maxlen=_KNOWN_ANSWERS)  # seconds for a part, by the processes' own clocks
        self._delays: deque[float] = deque(maxlen=_KNOWN_ANSWERS)  # seconds besides, for a whole span

    def note(self, computed: Computed, seconds: float | None, processes: int) -> None:
        """Note a result, how long its process took to answer, if that is usual, and the number of processes."""
        steps = max(computed.steps, 1)
        self.bytes = computed.nbytes // steps
        wanted = min(max(processes / _SPANS_A_SECOND, _LEAST_SPAN_SECONDS), _SPAN_SECONDS)
        own = computed.seconds / steps
        if seconds is not None:
            self._works.append(own)
            self._delays.append(max(seconds - computed.seconds, 0.0))
        if self._is_shared and self._works:
            own = statistics.median(self._works)
        most = min(_SPAN_BYTES / max(self.bytes, 1), self._most)
        to_end = self._alike if self._is_shared else None
        self.size = job_size(SPAN_BATCHES, wanted / max(own, 1e-9), most, to_end=to_end)

    def _alike(self, size: int, most: int) -> int:
        """Return the power of 2 below a size; after some answers the last one, as long as it is about right.

        Programs measure slightly different times, and would otherwise often cut differently.
        """
        is_right = 0.75 * self.size <= size < 2.5 * self.size and self.size <= most
        return self.size if is_right and len(self._works) >= _FEW_ANSWERS else 1 << (size.bit_length() - 1)

    def part_of(self, work: WorkT) -> WorkT:
        """Return the beginning of some work, as a span."""
        return work.part(0, self.size - work.start % self.size if self._is_shared else self.size)

    def late_seconds(self, steps: int) -> float:
        """Return how long a process may take for some parts until they are late.

        Most parts count, since some take longer than others. Of the delays the middle one counts, since a loss makes
        several of them longer.
        """
        if not self._delays:
            return PATIENCE_SECONDS
        usual = sorted(self._works)[len(self._works) * 3 // 4] * steps + statistics.median(self._delays)
        return max(_LATE_TIMES * usual, _LATE_SECONDS)


class Span(Generic[WorkT]):
    """Some work, and where it is computed.

    Attributes:
        work: the work.
        deaths: the number of processes in a row that were lost with it.
        crashes: the number of those whose host was not lost, too.
        tries: the processes that have it; more than one if the others are late.
        computed: the result; None until then.
        error: the reason why there is no result, from a process; None for none.
        crash: the reason, if processes were lost with it, one after the other; None for none.
    """

    def __init__(self, work: WorkT, deaths: int = 0, crashes: int = 0) -> None:
        self.work = work
        self.deaths = deaths
        self.crashes = crashes
        self.tries: list[_Try] = []
        self.computed: Computed | None = None
        self.error: BaseException | None = None
        self.crash: WorkerError | None = None

    @property
    def is_done(self) -> bool:
        """Whether no process has to compute it."""
        return self.computed is not None or self.error is not None or self.crash is not None

    @property
    def needs_care(self) -> bool:
        """Whether a process computes it in a worker process of its own."""
        return self.crashes >= _DEATHS_BEFORE_CARE


def _no_stall() -> None:
    """Return that nothing is known of a wait."""


class Owner(Protocol):
    """The runtime that work is dealt for."""

    @property
    def team(self) -> Team:
        """The processes."""
        ...

    @property
    def recorder(self) -> Recorder:
        """Records lost processes."""
        ...

    @property
    def readings(self) -> Readings:
        """The readings of the loader."""
        ...

    @property
    def bytes_ahead(self) -> int:
        """The maximum of results that wait."""
        ...

    def check(self) -> None:
        """Raise if the runtime or its processes were closed."""
        ...


class _Alarm:
    """Rings a bell once, from a thread of its own.

    Args:
        bell: the bell.
        at: when it rings, by the monotonic clock.

    Attributes:
        at: likewise; minus infinity once it has rung.
    """

    def __init__(self, bell: Bell, at: float) -> None:
        self.at = at
        self._bell = bell
        self._stopped = Bell()
        DaemonThread(self._run, "penstock-late")

    def _run(self) -> None:
        if not self._stopped.wait(max(self.at - time.monotonic(), 0.0)):
            self.at = -inf  # first: the one that the bell wakes may need another alarm
            self._bell.ring()

    def stop(self) -> None:
        """Ring no more."""
        self._stopped.ring()


class Dealer(Generic[WorkT]):
    """Deals work to processes, and returns the spans in order, or as they become ready.

    Args:
        owner: the runtime.
        kind: of the work.
        works: the work, in order.
        learned: what earlier spans have shown; this adds to it.
        bell: rung when there may be a span.
        ordered: whether spans come in order.

    Attributes:
        is_over: whether there is no span any more.
        waiting_bytes: of results that have arrived.
    """

    def __init__(
        self,
        owner: Owner,
        kind: Kind[WorkT],
        works: Iterable[WorkT],
        *,
        learned: Learned,
        bell: Bell,
        ordered: bool = True,
    ) -> None:
        self._owner = owner
        self._team = owner.team
        self._kind = kind
        self._uncut = deque(works)  # what is in no span yet
        self._learned = learned
        self._bell = bell
        self._ordered = ordered
        self._spans: deque[Span[WorkT]] = deque()  # in order; the first one is delivered next
        self._closed = False
        self._alone_since: float | None = None  # by the monotonic clock: since when no process is ready
        self._alarm: _Alarm | None = None  # for an event loop, whose waits have no end of their own
        self._last_tries: WeakKeyDictionary[Member, _Try] = WeakKeyDictionary()  # of lost processes, what they were at
        self.is_over = False
        self.waiting_bytes = 0
        self._team.listen(bell)

    def next(self, *, waits: bool = True, logs: bool = True) -> Span[WorkT] | None:
        """Return the next span; None if there is none, or, without a wait, none yet. If it `logs`, then long waits.

        The span has a result, or an error; or neither, if no process has been ready for long, so that the caller has to
        compute it, and those that follow as long as none is.
        """
        patience = Patience(self.stall if logs else _no_stall, None)
        while not self._closed:
            self._bell.clear()
            self._owner.check()
            self._move()
            done = self._done_of(self._spans)
            if done is not None or not self._spans:  # also where another thread has closed this meanwhile
                self.is_over = done is None
                if done is not None:
                    self._spans.remove(done)
                return done
            if not waits:
                break
            if self._alone_since is None:
                self._await(patience)
            elif not self._bell.wait(max(self._alone_since + PATIENCE_SECONDS - time.monotonic(), 0.0)):
                return self._spans.popleft()
        return None

    def is_ready(self) -> bool:
        """Return whether `next` would not wait."""
        self._bell.clear()
        self._move()
        is_here = self._alone_since is not None and time.monotonic() >= self._alone_since + PATIENCE_SECONDS
        return self._closed or not self._spans or is_here or self._done_of(self._spans) is not None

    @uninterrupted
    def ring_when_late(self) -> None:
        """Ring the bell when a span is late, or no process has been ready for long: an event loop is about to wait."""
        now = time.monotonic()
        due = self._next_late_at(now) if self._alone_since is None else self._alone_since + PATIENCE_SECONDS
        alarm = self._alarm
        if due == inf or (alarm is not None and -inf < alarm.at <= due):  # it may ring early; the event loop asks again
            return
        self._stop_alarm()
        self._alarm = _Alarm(self._bell, due)

    def _stop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.stop()

    def put_back(self, work: WorkT) -> None:
        """Add work before all other."""
        self._spans.appendleft(Span(work))

    def close(self) -> None:
        """Take no more spans; those that processes have are computed in vain. Any thread may call this."""
        self._closed = True
        self._stop_alarm()
        self._team.unlisten(self._bell)
        self._spans = deque()  # another thread may use the other one
        self.waiting_bytes = 0
        self._bell.ring()

    def _done_of(self, spans: deque[Span[WorkT]]) -> Span[WorkT] | None:
        if self._ordered:
            return spans[0] if spans and spans[0].is_done else None
        return next((span for span in spans if span.is_done), None)

    def _await(self, patience: Patience) -> None:
        """Wait for a change; at most until a span is late that may not be, or the wait has to be logged."""
        now = time.monotonic()
        late = self._next_late_at(now) - now
        seconds = patience.seconds_left()
        if 0 < late < (inf if seconds is None else seconds):
            self._bell.wait(late)
        elif not self._bell.wait(seconds):
            patience.look()

    def _next_late_at(self, now: float) -> float:
        """Return when the next span is late that isn't yet, by the monotonic clock; infinity for never."""
        return min((at for at in map(self._late_at, self._awaited()) if at > now), default=inf)

    def stall(self) -> Stall | None:
        """Return the work that the trainer waits for; any thread may call this."""
        try:
            span = self._spans[0]
            tried = span.tries[0]
        except IndexError:
            return None
        worker = f"process {tried.member.number} of the pool, on host {tried.member.host!r},"
        return Stall(worker, tried.began, partial(self._kind.describe, span.work))

    def _move(self) -> None:
        """Take what was computed, and give spans to processes."""
        for span in list(self._spans):
            for each in [each for each in span.tries if each.result.done()]:
                if not span.is_done:  # several processes may have ended it since the last look
                    span.tries.remove(each)
                    self._take(span, each)
        self.waiting_bytes = sum(span.computed.nbytes for span in self._spans if span.computed)
        self._team.repair()
        self._note_alone()
        self._hedge()
        if self._team.is_shared:
            self._give_alike()
        for span in self._due():
            member = self._team.take(is_idle=self._team.is_shared)
            if member is None:
                return
            self._give(span, member)

    def _note_alone(self) -> None:
        if self._team.ready:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = time.monotonic()

    def _give_alike(self) -> None:
        """Give spans to processes that are chosen by their steps, since these may have the results for other programs.

        No span waits while a process is idle. The next span to deliver may have it first. A process that has one span
        already takes none of another one: that would be computed again there for the other programs.
        """
        for span in list(self._due()):
            member = self._team.take(span.work.start // max(span.work.steps, 1) % self._team.count)
            if member is None and span is self._spans[0]:
                member = self._team.take(is_idle=True)
            if member is not None:
                self._give(span, member)

    def _hedge(self) -> None:
        """If the next span is late, give it to another process too, and all others that are late.

        A host that is silent, but not lost, would otherwise stop the training until Ray gives it up. Where batches come
        as they become ready, the training waits for a late one only at the end.
        """
        if not self._ordered and any(work.steps for work in self._uncut):
            return
        now = time.monotonic()
        spans = [span for span in self._awaited() if now >= self._late_at(span)]
        late = [each.member for span in spans for each in span.tries]
        for span in spans:
            member = self._team.take(besides=[each.member for each in span.tries], late=late)
            if member is None:
                return
            self._give(span, member)

    def _awaited(self) -> Iterable[Span[WorkT]]:
        """Return the spans that may not be late: the next one, or all, where the next one has been late."""
        first = next(iter(self._spans), None)
        if first is None:
            return ()
        is_late = len(first.tries) > 1 or time.monotonic() >= self._late_at(first)
        return list(self._spans) if is_late else (first,)

    def _late_at(self, span: Span[WorkT]) -> float:
        """Return when a span is late, by the monotonic clock; never if no process has it, or enough of them have."""
        if not 0 < len(span.tries) < _TRIES or span.is_done:
            return inf
        seconds = _CAREFUL_SECONDS if span.needs_care else self._learned.late_seconds(span.work.steps)
        return span.tries[-1].began + seconds

    def _due(self) -> Iterator[Span[WorkT]]:
        """Yield the spans to give, as long as there are some and memory for them; at least the next one to deliver."""
        yield from [span for span in self._spans if not span.tries and not span.is_done]
        while len(self._spans) < self._most_spans():
            while self._uncut and not self._uncut[0].steps:
                self._uncut.popleft()
            if not self._uncut:
                return
            first = self._uncut.popleft()
            span = Span(self._learned.part_of(first))
            self._uncut.appendleft(first.part(span.work.steps, first.steps))
            self._spans.append(span)
            yield span

    def _most_spans(self) -> int:
        by_bytes = self._owner.bytes_ahead // max(self._learned.bytes * self._learned.size, 1)
        return max(min(_AHEAD * self._team.ready, by_bytes), 1)

    def _give(self, span: Span[WorkT], member: Member) -> None:
        tried = _Try(member)
        try:
            tried.result = self._kind.call(member, span.work, with_care=span.needs_care)
        except BaseException:  # such as a function that can't be pickled; the next call tries again
            self._team.give_back(member, has_answered=False)
            raise
        span.tries.append(tried)
        tried.result.add_done_callback(partial(tried.end, self._team, self._bell))

    def _take(self, span: Span[WorkT], ended: _Try) -> None:
        """Take the result of a span: its batches, the error of a process that can't compute it, or a loss."""
        error = ended.result.exception()
        if error is not None:
            if isinstance(error, ray.exceptions.RayTaskError) or not isinstance(error, ray.exceptions.RayError):
                span.error = error
            else:
                self._lose(span, ended, error)
            return
        computed = ended.result.result()
        span.tries.clear()
        if isinstance(computed, Failed):
            span.error = computed.unpacked()
            return
        span.computed = computed
        answer = Answer(ended.ended or time.perf_counter(), computed.seconds, self._kind.name(span.work))
        self._owner.readings.note_answer(f"host {ended.member.host}, process {ended.member.number}", answer)
        if not span.needs_care:
            self._learned.note(computed, ended.seconds, self._team.ready)

    def _lose(self, span: Span[WorkT], ended: _Try, error: BaseException) -> None:
        """Note that a process was lost with a span.

        Unless another process has the span, it is given out again: one by one if the process was at it, else as it is.
        The first loss of a host is no fault of the work, so it is given out as it is, too.
        """
        member = ended.member
        step, reason = self._kind.step(span.work), str(error).strip()
        has_ended = ENDED_ITSELF in reason
        if isinstance(error, ray.exceptions.RayActorError) and self._team.lose(member) and not has_ended:
            self._owner.recorder.observe(WorkerDied(member.number, member.pid, None, reason, step, None))
            _logger.warning("process %d of the pool, on host %s, was lost: %s", member.number, member.host, reason)
        is_suspect = self._was_at(ended) and not has_ended
        if span.tries or not is_suspect:
            return
        deaths, crashes = span.deaths + 1, span.crashes + (HOST_ENDED not in reason)
        if deaths >= _DEATHS:
            what = self._kind.describe(span.work)
            span.crash = WorkerError(f"processes of the pool are lost while they compute {what}; the last: {reason}")
            return
        size = 1 if crashes or deaths > 1 else span.work.steps
        starts = range(0, span.work.steps, size)
        parts = [Span(span.work.part(start, size), deaths, crashes) for start in starts]
        spans = [parts if each is span else [each] for each in self._spans]
        self._spans = deque(itertools.chain(*spans))

    def _was_at(self, ended: _Try) -> bool:
        """Return whether a lost process was at this span, the first of those that it had; others only waited there."""
        if ended.member not in self._last_tries:
            others = [each for span in self._spans for each in span.tries if each.member is ended.member]
            self._last_tries[ended.member] = min([ended, *others], key=lambda each: each.given)
        return self._last_tries[ended.member] is ended
