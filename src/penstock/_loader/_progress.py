"""A loader's progress: the batch delivered last and the next one, counted on delivery to the consumer.

`IndexedProgress` computes everything from the number of the next step; where batches are delivered out of order,
`Reached` is the set of delivered steps. `StreamingProgress`, for a dataset that is read in order, holds the tokens at
which the last steps began.

One thread may be inside `next` of an iterator while another one makes a newer iterator, seeks, or loads a state. What
the first one counts must not change where the second one went. So each of these actions begins a pass: it replaces
`current_pass` before it changes the progress, and `delivered` and `ended` count nothing for an earlier pass. They make
the new value first; then they compare the pass and store the value, and call nothing between the two, so that Python
doesn't switch threads there. Two threads don't begin passes at once: the loader has a lock for that.

Any thread may also ask where the loader is, at any moment and without a lock, which a function of the dataset could
wait for. So all that answers depend on is one value, `at`, which they read once.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from penstock._graph import Context, is_endless, need_reach
from penstock._loader._policy import REMEMBERED_STEPS
from penstock._plan import Plan
from penstock._runtime import StepRange, Unit, Where
from penstock._state import MAX_EPOCHS, LoaderState, Segment, Timeline, Token, own_state, seen_position
from penstock._streaming import (
    LARGEST,
    Opening,
    RankSegment,
    Stage,
    check_whole,
    dealt_rank_segments,
    first_rank_segment,
    made_token,
    open_stages,
    positions_of,
    rank_segments_from_json,
    rank_segments_to_json,
    read_inline,
    token_at,
)
from penstock.errors import ClosedError, InternalError, StateError, UsageError

MOVED = "the loader moved to another step after this iterator was made; make a new one"


class Reached(NamedTuple):
    """All steps before `step` were delivered, and those in the spans [start, stop) of `ahead`, which follow it."""

    step: int
    ahead: tuple[tuple[int, int], ...] = ()

    @property
    def total(self) -> int:
        """The number of delivered steps."""
        return self.step + sum(stop - start for start, stop in self.ahead)

    @property
    def end(self) -> int:
        """The step after the last delivered one."""
        return self.ahead[-1][1] if self.ahead else self.step

    def gaps(self, end: int) -> list[tuple[int, int]]:
        """Return the spans of steps before `end` that were not delivered; at least one, which may be empty."""
        starts = (self.step, *(stop for _, stop in self.ahead))
        stops = (*(start for start, _ in self.ahead), end)
        gaps = list(zip(starts, stops, strict=True))
        return gaps if gaps[-1][0] < end else gaps[:-1] or gaps

    def after(self, step: int) -> "Reached":
        """Return the set with one more delivered step."""
        return (
            Reached(step + 1)
            if step == self.step and not self.ahead
            else _joined(self.step, (step, step + 1), *self.ahead)
        )

    def without(self, steps: Collection[int]) -> "Reached":
        """Return the set as it was before some steps were delivered."""
        first = min((self.step, *steps))
        spans: list[tuple[int, int]] = []
        for low, stop in ((first, self.step), *self.ahead):
            start = low
            for step in sorted(step for step in steps if low <= step < stop):
                spans.append((start, step))
                start = step + 1
            spans.append((start, stop))
        return _joined(first, *spans)


def _joined(step: int, *spans: tuple[int, int]) -> Reached:
    ahead: list[tuple[int, int]] = []
    for start, stop in sorted(span for span in spans if span[0] < span[1]):
        if start <= step:
            step = stop
        elif ahead and ahead[-1][1] == start:
            ahead[-1] = (ahead[-1][0], stop)
        else:
            ahead.append((start, stop))
    return Reached(step, tuple(ahead))


class _Course(NamedTuple):
    """The part of the progress in an indexable dataset that is the same for a whole pass."""

    timeline: Timeline
    step_range: StepRange | None
    """The steps of the pass; None before it begins."""
    differs: bool
    """Whether this rank's state may differ from those of other ranks, within this epoch."""
    known_from: int
    """From this number of delivered batches on, the delivered steps are known."""


_At: TypeAlias = tuple[int, tuple[tuple[int, int], ...], int | None, tuple[int, ...], _Course]
"""The progress in an indexable dataset, replaced as a whole: the two fields of `Reached`; the step of the current range
that was delivered last, or None; the last steps in the order of their delivery, where they came out of order; and the
course of the pass. A plain tuple, since one is made for every batch."""


class ResumePoint(NamedTuple):
    """The next batch, and the values from which a state resumes there; they are fields of `LoaderState`."""

    step: int
    epoch: int
    position: int
    segments: tuple[Segment, ...]
    cursor: Token = None
    rank_segments: Token = None
    ahead: tuple[tuple[int, int], ...] | None = None
    """Spans of later steps that were delivered too, counted from `step`; None where all ranks have the same state."""

    @property
    def seen(self) -> int:
        """The position in the epoch behind all elements that were delivered."""
        return seen_position(self.position, self.segments[-1].batch, self.ahead)


class Progress(Protocol):
    """The progress of a loader.

    Attributes:
        at: the value that `delivered` replaces. Restoring the previous value undoes the delivery of that batch.
        current_pass: identifies the pass over the data; another object after each call of `begin`, `jump`,
            `jump_to_position` and `restore` that succeeds.
    """

    at: Any
    current_pass: object

    @property
    def next_step(self) -> int:
        """The number of the next batch; out of order, the number that it would have in order."""
        ...

    def current(self) -> Unit:
        """Return the unit of the batch delivered last, or of the next one if none was delivered yet."""
        ...

    def in_epoch(self) -> tuple[int, int, int | None]:
        """Return the epoch, the number of steps done in it, and of all of its steps; None if that isn't known.

        This takes microseconds, unlike `current`. It is for a progress that has begun.
        """
        ...

    def begin(self) -> list[StepRange]:
        """Return the step ranges of the next epoch, or, right after a restore or a seek, of the rest of this one."""
        ...

    def is_whole(self) -> bool:
        """Return whether the pass that `begin` began is a whole epoch, and not the rest of one."""
        ...

    def rest(self) -> list[StepRange]:
        """Return the ranges of undelivered steps of the current range; only the first, where batches come in order."""
        ...

    def has_rest(self) -> bool:
        """Return whether `rest` has undelivered steps after those that it returned last."""
        ...

    def delivered(self, token: Token, of_pass: object, /) -> None:
        """Count one more batch of the current step range.

        Args:
            token: the batch's token. For an indexable dataset this is its step, or None for the next in order.
            of_pass: the value that `current_pass` had when the batch's pass began.

        Raises:
            ClosedError: another pass has begun.
        """
        ...

    def ended(self, of_pass: object, /) -> None:
        """Note that the epoch has no more batches, if its pass is the current one."""
        ...

    def check_end(self) -> None:
        """Raise a GraphError at the end of an epoch that should have none."""
        ...

    def jump(self, step: int) -> None:
        """Go to a step."""
        ...

    def jump_to_position(self, epoch: int, position: int) -> None:
        """Begin the next step's batch at a position of an epoch, and cut the following batches from there.

        Raises:
            UsageError: the epoch has no such position, or it can be found only by reading.
        """
        ...

    def step_range(self, step: int) -> StepRange:
        """Return the range of one step."""
        ...

    def resume_point(self, step: int | None) -> ResumePoint:
        """Return the point from which a state resumes at `step`; for None, at the next step."""
        ...

    def restore(self, states: Sequence[LoaderState]) -> None:
        """Resume from a state, or from the states of all ranks."""
        ...


class IndexedProgress:
    """The progress in an indexable dataset: everything follows from the number of the next step."""

    def __init__(self, plan: Plan) -> None:
        program = plan.batches
        self._batch = plan.batch_size
        # Where a node above the batch reorders batches, positions count batches.
        self._recuts = program.can_recut
        self._stride = self._batch if self._recuts else 1
        total = program.total if self._recuts else plan.length
        drops = self._recuts and program.batch is not None and program.batch.value.remainder == "drop"
        keeps_short = self._recuts and program.batch is not None and program.batch.value.remainder == "keep"
        self._node = plan.node
        self._is_endless = is_endless(plan.node)
        self._least_rows = plan.shard.count if keeps_short and not self._is_endless else 0
        self._part_end = 0  # the step after the part of the step range that is being read
        self._shard = plan.shard
        self._may_differ = not plan.ordered and (plan.place != "inline" or bool(plan.remote))
        timeline = Timeline((Segment(0, 0, 0, self._stride),), total, drops)
        self.at: _At = (0, (), None, (), _Course(timeline, None, self._may_differ, 0))
        self.current_pass = object()

    @property
    def next_step(self) -> int:
        """The number of delivered batches; in order, this is the number of the next one."""
        return self._reached.total

    @property
    def _reached(self) -> Reached:
        return Reached(*self.at[:2])

    @property
    def _timeline(self) -> Timeline:
        return self.at[4].timeline

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches of a whole epoch."""
        return self._timeline.steps_from(0, self._stride)

    def current(self) -> Unit:
        step, _, last, _, (timeline, step_range, *_) = self.at
        if last is None or step_range is None:
            return self._unit(timeline, step)
        return step_range.unit(last - step_range.first.step)

    def in_epoch(self) -> tuple[int, int, int | None]:
        reached, ahead, *_, course = self.at
        if (step_range := course.step_range) is None:
            return 0, 0, None
        first, next_step = step_range.first, Reached(reached, ahead).total
        if self._is_endless:
            return first.epoch, next_step - first.step, None
        of = self.steps_per_epoch
        return first.epoch, max(of - (first.step + step_range.steps - next_step), 0), of

    def _unit(self, timeline: Timeline, step: int) -> Unit:
        """Return the unit of any step."""
        epoch, position = timeline.locate(step)
        return Unit(step, epoch, position, timeline.segment(step).batch if self._recuts else self._batch)

    def begin(self) -> list[StepRange]:
        self.current_pass = object()
        step, ahead, last, recent, (timeline, _, differs, known_from) = self.at
        reached = Reached(step, ahead)
        epoch, position = timeline.locate(step)
        if last is not None and (position or reached.ahead):  # the epoch was left early
            step, epoch, position = reached.end, epoch + 1, 0
            reached = Reached(step)
            timeline = timeline.cut(step, epoch, position, self._stride)
        if recent:
            known_from = step  # the order in which earlier batches were delivered is dropped
        first = Unit(step, epoch, position, self._batch)
        step_range = StepRange(first, timeline.steps_from(position, self._stride), self._stride)
        differs = self._may_differ or (differs and (position > 0 or bool(reached.ahead)))
        self.at = (reached.step, reached.ahead, None, (), _Course(timeline, step_range, differs, known_from))
        return self.rest()

    def is_whole(self) -> bool:
        step_range = self.at[4].step_range
        return step_range is not None and step_range.first.position == 0

    def rest(self) -> list[StepRange]:
        at = self.at
        step_range, reached = at[4].step_range, Reached(*at[:2])
        if step_range is None:
            raise InternalError("no step range was begun")
        first = step_range.first.step
        gaps = reached.gaps(first + step_range.steps)
        if not self._may_differ:
            gaps = gaps[:1]
        self._part_end = gaps[-1][1]
        return [StepRange(step_range.unit(start - first), stop - start, step_range.stride) for start, stop in gaps]

    def has_rest(self) -> bool:
        step, *_, course = self.at
        step_range = course.step_range
        return step_range is not None and self._part_end <= step < step_range.first.step + step_range.steps

    def delivered(self, token: Token, of_pass: object, /) -> None:
        at = self.at
        first, ahead, _, recent, course = at
        if token is None and not ahead and not recent:  # all in order, as nearly always
            at = (first + 1, (), first, (), course)
        else:
            step = first if token is None else int(token)
            after = Reached(first, ahead).after(step)
            at = (after.step, after.ahead, step, (*recent[-REMEMBERED_STEPS + 1 :], step), course)
        # One store, and the last action: an interrupt comes before the batch is counted, or after its delivery.
        if self.current_pass is not of_pass:
            raise ClosedError(MOVED)
        self.at = at

    def ended(self, of_pass: object, /) -> None:
        pass

    def check_end(self) -> None:
        need_reach(self._node, "a request for the batch after them", self.steps_per_epoch + 1)

    def jump(self, step: int) -> None:
        timeline = self._timeline
        epoch, position = timeline.locate(step)
        _check_epoch(epoch, f"step={step}, of epoch {epoch}")
        self._resume_at(timeline.until(step), Reached(step), epoch, position)

    def jump_to_position(self, epoch: int, position: int) -> None:
        check_position(position, self._timeline.total)
        _check_epoch(epoch, f"epoch={epoch}")
        step = self.next_step
        self._resume_at(self._timeline.until(step), Reached(step), epoch, position)

    def _resume_at(
        self, timeline: Timeline, reached: Reached, epoch: int, position: int, *, differs: bool | None = None
    ) -> None:
        """Make the step of `reached` the next one, at `position` of `epoch`; recut from there if the timeline differs.

        Args:
            timeline: that of the steps before.
            reached: the steps that were delivered.
            epoch: of the next step.
            position: of the next step.
            differs: that of the course; None leaves it as it is.
        """
        self._check_last_batch(epoch, position)
        self.current_pass = object()
        step = reached.step
        if timeline.segments[-1].batch != self._stride or timeline.locate(step) != (epoch, position):
            timeline = timeline.cut(step, epoch, position, self._stride)
        self.at = (
            reached.step,
            reached.ahead,
            None,
            (),
            _Course(timeline, None, self.at[4].differs if differs is None else differs, 0),
        )

    def _check_last_batch(self, epoch: int, position: int) -> None:
        rows = (self._timeline.total - position) % self._stride
        if 0 < rows < self._least_rows:
            raise StateError(
                f"cut into batches of {self._stride} from position {position} on, epoch {epoch} ends with one of "
                f"{rows} rows for {self._least_rows} ranks, so some would end a step early. Resume with another batch "
                'size or number of ranks, or use remainder="drop" or remainder="pad".'
            )

    def step_range(self, step: int) -> StepRange:
        if self.steps_per_epoch == 0:
            raise StateError(f"this dataset has no batches; got step={step}")
        return StepRange(self._unit(self._timeline, step), 1, self._stride)

    def resume_point(self, step: int | None) -> ResumePoint:
        at = self.at
        reached = Reached(*at[:2]) if step is None else _reached_by(at, step)
        timeline, _, differs, _ = at[4]
        first = reached.step
        epoch, position = timeline.locate(first)
        ahead: tuple[tuple[int, int], ...] | None = tuple((low - first, high - first) for low, high in reached.ahead)
        if not ahead and not (differs and position and self._shard.count > 1):
            ahead = None
        return ResumePoint(first, epoch, position, timeline.until(first).segments, ahead=ahead)

    def restore(self, states: Sequence[LoaderState]) -> None:
        state = self._one_of(states)
        if state.cursor is not None:
            raise StateError("this state was saved while reading in order; this dataset is indexable")
        if not self._recuts and (state.segments[-1].batch != 1 or state.shape.batch != self._batch):
            raise StateError(
                f"a step above batch({self._batch}) of this dataset reorders batches, so they can't be recut; the "
                f"state counts batches of {state.shape.batch}. Load it into the dataset it was saved from."
            )
        if state.position > self._timeline.total:
            raise StateError(f"the state's position {state.position} is past the dataset's {self._timeline.total}")
        ahead = self._ahead_of(state)
        segments = state.segments
        if self._recuts and (state.shape.remainder == "drop") != self._timeline.drops_remainder:
            # Epochs had another number of steps, so the elements of earlier steps are no longer known.
            segments = (Segment(state.step, state.epoch, state.position, self._stride),)
        if any(segment.position > self._timeline.total for segment in segments):  # of a source that was longer
            segments = (Segment(state.step, state.epoch, state.position, self._stride),)
        timeline, differs = self._timeline._replace(segments=segments), self._may_differ or state.ahead is not None
        self._resume_at(timeline, Reached(state.step, ahead), state.epoch, state.position, differs=differs)

    def _one_of(self, states: Sequence[LoaderState]) -> LoaderState:
        """Return the state to resume from: this rank's own, where states differ by design, else any of them.

        Raises:
            StateError: the states should be equal and aren't.
        """
        if any(state.ahead is not None for state in states):
            return own_state(states, self._shard.rank, self._shard.count)
        state = states[0]
        if any(
            (other.step, other.epoch, other.position) != (state.step, state.epoch, state.position) for other in states
        ):
            raise StateError(
                f"all ranks' states of an indexable dataset are equal; these are of steps "
                f"{sorted({other.step for other in states})}. Load one of them alone."
            )
        return state

    def _ahead_of(self, state: LoaderState) -> tuple[tuple[int, int], ...]:
        """Return the spans of steps after a state's step that were delivered.

        Raises:
            StateError: they would be other batches here.
        """
        if state.ahead is None:
            return ()
        rank, count = self._shard.rank, self._shard.count
        if (state.rank, state.shape.ranks, state.shape.batch) != (rank, count, self._batch):
            raise StateError(
                "this state was saved with ordered=False inside an epoch, after some later batches were delivered; "
                f"so it resumes only with the same batches, of {state.shape.batch} rows, on rank {state.rank} of "
                f"{state.shape.ranks}; got batches of {self._batch} on rank {rank} of {count}. Load each rank's own "
                "state there, or one that was saved at an epoch's end."
            )
        drops = self._recuts and state.shape.remainder == "drop"
        steps = self._timeline._replace(drops_remainder=drops).steps_from(state.position, self._stride)
        if drops != self._timeline.drops_remainder or (state.ahead and state.ahead[-1][1] > steps):
            raise StateError(
                f"this state has delivered {state.ahead[-1][1] if state.ahead else 0} steps of an epoch that has "
                f"{steps} left here, with remainder={state.shape.remainder!r}. Load it into the dataset it was saved "
                "from."
            )
        return tuple((state.step + start, state.step + stop) for start, stop in state.ahead)


def _reached_by(at: _At, count: int) -> Reached:
    """Return the steps that had been delivered when `count` batches had been.

    Raises:
        StateError: the order of delivery is no longer known.
    """
    step, ahead, _, recent, course = at
    reached = Reached(step, ahead)
    back = reached.total - count
    if back == 0:
        return reached
    in_order = not ahead and not recent
    if in_order and count >= course.known_from:
        return Reached(count)
    if in_order or not 0 < back <= len(recent):
        least = course.known_from if in_order else reached.total - len(recent)
        raise StateError(
            "batches are delivered out of order, so only the states after the last ones are known: "
            f"{least} to {reached.total}; got step={count}"
        )
    return reached.without(recent[-back:])


def check_position(position: int, count: int) -> None:
    """Check that an epoch has a position, or ends there.

    Raises:
        UsageError: the epoch is shorter.
    """
    if position > count:
        raise UsageError(f"position must be at most {count:,}, the positions of an epoch; got position={position}")


def _check_epoch(epoch: int, given: str) -> None:
    """Check that states can hold the number of an epoch, and of the one after it.

    Raises:
        UsageError: they can't; `given` is what the caller asked for.
    """
    if epoch >= MAX_EPOCHS:
        raise UsageError(f"an epoch must be below 2**31, since no state holds later ones; got {given}")


class _StepStart(NamedTuple):
    """The beginning of a step: its epoch, and its token there."""

    step: int
    epoch: int
    late: Where
    """The value of `where`, perhaps with a token that is made on request."""
    breaks: int
    """The number of times, before this step, that the consumer left an epoch early or jumped to a position."""

    @property
    def where(self) -> Where:
        """The position at which the step begins, with its token."""
        return self.late._replace(token=made_token(self.late.token))

    @property
    def has_ended(self) -> bool:
        """Whether this rank's part of the epoch has ended, while other ranks are still in that epoch."""
        return not self.late.rank_segments


class StreamingProgress:
    """The progress in a dataset that is read in order."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._batch = plan.batch_size
        self._node = plan.streaming.node
        self._own_rank_segments = (first_rank_segment(plan.node, plan.shard.rank, plan.shard.count),)
        # The starts of the step delivered last, if there is one, and of the next one.
        self.at: tuple[_StepStart | None, _StepStart] = None, _StepStart(0, 0, self._beginning(), 0)
        self.current_pass = object()
        self._starts: OrderedDict[int, _StepStart] = OrderedDict()  # replaced where starts are forgotten
        self._began_at = 0  # the step at which the current iterator began
        _remember(self._starts, self._next)

    @property
    def _next(self) -> _StepStart:
        return self.at[1]

    @property
    def next_step(self) -> int:
        """The number of the next batch."""
        return self._next.step

    def _beginning(self) -> Where:
        return Where(self._own_rank_segments, self._stage(self._own_rank_segments, 0).start())

    def _stage(self, rank_segments: tuple[RankSegment, ...], epoch: int) -> Stage:
        opening = Opening(epoch, self._plan.shard.count, read_inline, Context(), self._plan.must_fill)
        return open_stages(self._node, rank_segments, opening)

    def in_epoch(self) -> tuple[int, int, int | None]:
        start = self._next
        return start.epoch, start.step - self._began_at, None

    def current(self) -> Unit:
        last, start = self.at
        return self._unit(start if last is None else last)

    def _unit(self, start: _StepStart) -> Unit:
        stage = self._stage(start.where.rank_segments, start.epoch)
        # `LARGEST` stands for an input that was read to its end.
        read = sum(each.taken for each in stage.progress(start.where.token) if each.taken < LARGEST)
        return Unit(start.step, start.epoch, read, self._batch)

    def begin(self) -> list[StepRange]:
        self.current_pass = object()
        last, start = self.at
        if last is not None and start.where != self._beginning():  # left early, or not seen to end
            self.at = last, start._replace(breaks=start.breaks + 1)
            self._keep_starts(lambda each: each.step <= start.step)  # others are of a pass that didn't leave it here
            self._next_epoch(self.current_pass)
        self.at = None, self._next
        self._began_at = self._next.step
        return self.rest()

    def is_whole(self) -> bool:
        return self._next.where == self._beginning()

    def rest(self) -> list[StepRange]:
        # The number of steps is known only at the epoch's end.
        start = self._next
        return [StepRange(self._unit(start), LARGEST, 0, start.where)]

    def has_rest(self) -> bool:
        return False

    def delivered(self, token: Token, of_pass: object, /) -> None:
        if token is None:
            raise InternalError("a batch of a dataset that is read in order must have a token")
        last = self.at[1]
        following = _StepStart(last.step + 1, last.epoch, last.late._replace(token=token), last.breaks)
        self._go_on(last, following, of_pass)
        if self.current_pass is not of_pass:
            raise ClosedError(MOVED)

    def ended(self, of_pass: object, /) -> None:
        self._next_epoch(of_pass)

    def check_end(self) -> None:
        pass  # only reading shows where a stream ends

    def _next_epoch(self, of_pass: object) -> None:
        last, start = self.at
        self._go_on(last, self._epoch_after(start), of_pass)

    def _epoch_after(self, start: _StepStart) -> _StepStart:
        """Return the same step as the first one of the next epoch."""
        return _StepStart(start.step, start.epoch + 1, self._beginning(), start.breaks)

    def _go_on(self, last: _StepStart | None, following: _StepStart, of_pass: object) -> None:
        """Make `following` the start of the next step, if the pass is the current one."""
        starts, at = self._starts, (last, following)
        if self.current_pass is of_pass:
            _remember(starts, following)
        # One store, and the last action: an interrupt comes before the batch is counted, or after its delivery.
        if self.current_pass is of_pass:
            self.at = at

    def _keep_starts(self, is_kept: Callable[[_StepStart], bool], *more: _StepStart) -> None:
        starts = self._starts.copy()  # at once, while another thread may add one of an earlier pass
        kept = OrderedDict((step, start) for step, start in starts.items() if is_kept(start))
        for start in more:
            _remember(kept, start)
        self._starts = kept  # one store, so that another thread finds either the former starts or these

    def jump(self, step: int) -> None:
        start = self._lookup(step)
        self.current_pass = object()
        self.at = None, start
        breaks = start.breaks
        # An epoch that was left early may now be read to its end, which renumbers the later steps.
        self._keep_starts(lambda start: start.breaks <= breaks)

    def jump_to_position(self, epoch: int, position: int) -> None:
        _check_epoch(epoch, f"epoch={epoch}")
        if position:
            count = positions_of(self._node)
            check_position(position, count)
            if position == count:  # also on a rank whose own part ends before
                epoch, position = epoch + 1, 0
        token = token_at(self._stage(self._own_rank_segments, epoch), position)
        self.current_pass = object()
        step, breaks = self._next.step, self._next.breaks
        # One more break, since the steps from here on have other elements than before. A jump to an earlier step undoes
        # that, so it forgets the starts of these steps.
        start = _StepStart(step, epoch, Where(self._own_rank_segments, token), breaks + 1)
        self._keep_starts(lambda each: each.step < step, start)
        self.at = None, start

    def _lookup(self, step: int) -> _StepStart:
        start = self._starts.get(step)
        if start is None:
            first, last = min(self._starts), max(self._starts)
            raise StateError(
                "this dataset can only be read in order, so only the last delivered steps are known: "
                f"{first} to {last}; got step={step}"
            )
        return start

    def step_range(self, step: int) -> StepRange:
        start = self._lookup(step)
        return StepRange(self._unit(start), 1, 0, start.where)

    def resume_point(self, step: int | None) -> ResumePoint:
        start = self._next if step is None else self._lookup(step)
        start = self._epoch_after(start) if start.has_ended else start  # the state that it had at its end
        step = start.step
        position = self._unit(start).position
        segments = (Segment(step, start.epoch, position, self._batch),)
        rank_segments = (
            None
            if start.where.rank_segments == self._own_rank_segments
            else rank_segments_to_json(start.where.rank_segments)
        )
        return ResumePoint(step, start.epoch, position, segments, start.where.token, rank_segments)

    def restore(self, states: Sequence[LoaderState]) -> None:
        if any(state.cursor is None for state in states):
            raise StateError("this state was saved by an indexable dataset, or one with other steps")
        start = self._restored(states)
        following = self._epoch_after(start) if start.has_ended else start
        # If nothing is left of the epoch, the next pass is empty, so that all ranks begin the epoch after it together.
        self.current_pass = object()
        self.at = None, start
        self._starts = OrderedDict({start.step: following})

    def _restored(self, states: Sequence[LoaderState]) -> _StepStart:
        """Return the beginning of the next step.

        A state of this rank, among as many ranks as there are now, has all that is needed. Otherwise the states of all
        old ranks are dealt to the new ones.
        """
        rank, count = self._plan.shard.rank, self._plan.shard.count
        own = next((state for state in states if (state.rank, state.shape.ranks) == (rank, count)), None)
        if own is not None:
            rank_segments = (
                self._own_rank_segments
                if own.rank_segments is None
                else rank_segments_from_json(own.rank_segments, self._node)
            )
            where = Where(rank_segments, own.cursor)
            self._check(where, own.epoch)
            self._check_batches(where, own)
            if where == self._beginning() and own.epoch - 1 in {state.epoch for state in states}:
                return _StepStart(own.step, own.epoch - 1, Where((), 0), 0)  # others are still in that epoch
            return _StepStart(own.step, own.epoch, where, 0)
        states = _one_of_each_rank(states)
        for state in states:
            self._check(Where(self._rank_segments_of(state), state.cursor), state.epoch)
        epoch, rank_segments, token = dealt_rank_segments(
            self._node,
            [(state.epoch, self._rank_segments_of(state), state.cursor) for state in states],
            rank,
            count,
        )
        return _StepStart(max(state.step for state in states), epoch, Where(rank_segments, token), 0)

    def _rank_segments_of(self, state: LoaderState) -> tuple[RankSegment, ...]:
        if state.rank_segments is not None:
            return rank_segments_from_json(state.rank_segments, self._node)
        return (first_rank_segment(self._node, state.rank, state.shape.ranks),)

    def _check_batches(self, where: Where, state: LoaderState) -> None:
        """Check that batches that were held open at a state are cut as they are here.

        Raises:
            StateError: they had another size, or the last one of an epoch has.
        """
        old, here = (state.shape.batch, state.shape.remainder), (self._batch, self._plan.remainder)
        if old != here:
            saved, cut = (f"batch({size}, remainder={remainder!r})" for size, remainder in (old, here))
            stage = self._stage(where.rank_segments, state.epoch)
            check_whole(stage, where.token, f"of {saved}, which {cut} doesn't make. Resume with {saved}")

    def _check(self, where: Where, epoch: int) -> None:
        stage = self._stage(where.rank_segments, epoch)
        stage.check(where.token)


def _remember(starts: OrderedDict[int, _StepStart], start: _StepStart) -> None:
    starts[start.step] = start  # never without it: another thread may look it up
    starts.move_to_end(start.step)
    if len(starts) > REMEMBERED_STEPS:
        starts.popitem(last=False)


def _one_of_each_rank(states: Sequence[LoaderState]) -> list[LoaderState]:
    """Return the states in the order of their ranks; of equal ones, which several processes may have saved, one.

    Raises:
        StateError: they aren't the states of all ranks of one run.
    """
    ranks = states[0].shape.ranks
    if any(state.shape.ranks != ranks for state in states):
        raise StateError(f"states of one run are needed; these are of {sorted({s.shape.ranks for s in states})} ranks")
    given: dict[int, LoaderState] = {}
    for state in states:
        if given.setdefault(state.rank, state) != state:
            raise StateError(
                f"the list has two states of rank {state.rank} that differ, so elements would be repeated or lost. "
                "Give load_state_dict the last state of each old rank."
            )
    missing = [rank for rank in range(min(ranks, len(given) + 8)) if rank not in given]
    if missing:
        raise StateError(
            "each rank of a dataset that is read in order has a state of its own. Another rank, or another number of "
            f"ranks, resumes from the states of all {ranks} old ranks; missing: rank {missing}. Save the state of each "
            "rank, and give load_state_dict the list of all of them."
        )
    return [given[rank] for rank in range(ranks)]
