"""Where a loader is: which batch was handed out last, and which comes next. Counted at the consumer's side."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock._graph._length import is_endless
from penstock._plan._plan import Batches, Plan
from penstock._runtime._batches import Course, Unit
from penstock._state import LoaderState, Segment, Timeline, Token
from penstock.errors import InternalError, StateError


class Point(NamedTuple):
    """The next batch, and all that is needed to come back to it."""

    step: int
    epoch: int
    position: int
    segments: tuple[Segment, ...]
    cursor: Token = None
    legs: Token = None


class Progress(Protocol):
    """The place in a dataset. Used by the consumer's thread alone."""

    @property
    def next_step(self) -> int:
        """The number of the next batch."""
        ...

    def current(self) -> Unit:
        """Return the batch last handed out, or, before there is one, the next."""
        ...

    def begin(self) -> Course:
        """Return the course of the next epoch, or, right after a restore or a seek, of the rest of this one."""
        ...

    def rest(self) -> Course:
        """Return what is left of the course that was begun last."""
        ...

    def handed_out(self, token: Token) -> None:
        """Count one more batch of the course that was begun last."""
        ...

    def ended(self) -> None:
        """Note that the epoch has no more batches."""
        ...

    def jump(self, step: int) -> None:
        """Go to a step."""
        ...

    def course(self, step: int) -> Course:
        """Return the course of one step alone."""
        ...

    def point(self, step: int) -> Point:
        """Return what to save so that `step` comes next."""
        ...

    def restore(self, states: Sequence[LoaderState]) -> None:
        """Go to where a state was saved, or the states of all ranks."""
        ...


class IndexedProgress:
    """The place in an indexable dataset: everything follows from the number of the next step."""

    def __init__(self, plan: Plan) -> None:
        program = plan.program
        if not isinstance(program, Batches):
            raise InternalError("an ordered dataset has no timeline")
        self._batch = plan.batch_size
        # Where a step above the batch reorders batches, it is batches that are counted.
        self._recuts = program.can_recut
        self._stride = self._batch if self._recuts else 1
        total = program.total if self._recuts else plan.length
        drops = self._recuts and program.batch is not None and program.batch.remainder == "drop"
        self._timeline = Timeline((Segment(0, 0, 0, self._stride),), total, drops)
        keeps_short = self._recuts and program.batch is not None and program.batch.remainder == "keep"
        self._least_rows = plan.shard.count if keeps_short and not is_endless(plan.node) else 0
        self.next_step = 0
        self._course: Course | None = None

    @property
    def steps_per_epoch(self) -> int:
        """How many batches a whole epoch has."""
        return self._timeline.steps_from(0, self._stride)

    def current(self) -> Unit:
        course = self._course
        if course is None or self.next_step == course.first.step:
            return self.unit(self.next_step)
        return course.unit(self.next_step - 1 - course.first.step)

    def unit(self, step: int) -> Unit:
        """Return the place of any step."""
        epoch, position = self._timeline.locate(step)
        return Unit(step, epoch, position, self._timeline.segment(step).batch if self._recuts else self._batch)

    def begin(self) -> Course:
        epoch, position = self._timeline.locate(self.next_step)
        course = self._course
        if position and course is not None and self.next_step > course.first.step:  # the epoch was left early
            epoch, position = epoch + 1, 0
            self._timeline = self._timeline.cut(self.next_step, epoch, position, self._stride)
        first = Unit(self.next_step, epoch, position, self._batch)
        self._course = Course(first, self._timeline.steps_from(position, self._stride), self._stride)
        return self._course

    def rest(self) -> Course:
        course = self._course
        if course is None:
            raise InternalError("no course was begun")
        index = self.next_step - course.first.step
        return Course(course.unit(index), course.steps - index, course.stride, None)

    def handed_out(self, token: Token) -> None:
        del token
        self.next_step += 1

    def ended(self) -> None:
        pass

    def jump(self, step: int) -> None:
        self._go_on(self._timeline.until(step), step, *self._timeline.locate(step))

    def _go_on(self, timeline: Timeline, step: int, epoch: int, position: int) -> None:
        """Make `step` the next one, at `position` of `epoch`; if need be, cut batches anew from there."""
        self._check_last_batch(epoch, position)
        if timeline.segments[-1].batch != self._stride or timeline.locate(step) != (epoch, position):
            timeline = timeline.cut(step, epoch, position, self._stride)
        self._timeline = timeline
        self.next_step = step
        self._course = None

    def _check_last_batch(self, epoch: int, position: int) -> None:
        rows = (self._timeline.total - position) % self._stride
        if 0 < rows < self._least_rows:
            raise StateError(
                f"cut into batches of {self._stride} from position {position} on, epoch {epoch} ends with one of "
                f"{rows} rows for {self._least_rows} ranks, so some would end a step early. Go on with another batch "
                'size or number of ranks, or use remainder="drop" or remainder="pad".'
            )

    def course(self, step: int) -> Course:
        if self.steps_per_epoch == 0:
            raise StateError(f"this dataset has no batches; got step={step}")
        return Course(self.unit(step), 1, self._stride)

    def point(self, step: int) -> Point:
        return Point(step, *self._timeline.locate(step), self._timeline.until(step).segments)

    def restore(self, states: Sequence[LoaderState]) -> None:
        state = states[0]
        if any(
            (other.step, other.epoch, other.position) != (state.step, state.epoch, state.position) for other in states
        ):
            raise StateError(
                f"all ranks' states of an indexable dataset are equal; these are of steps "
                f"{sorted({other.step for other in states})}. Load one of them alone."
            )
        if state.cursor is not None:
            raise StateError("this state was saved while reading in order; this dataset is indexable")
        if not self._recuts and (state.segments[-1].batch != 1 or state.shape.batch != self._batch):
            raise StateError(
                f"a step above batch({self._batch}) of this dataset reorders batches, so they can't be cut anew; the "
                f"state counts batches of {state.shape.batch}. Load it into the dataset it was saved from."
            )
        if state.position > self._timeline.total:
            raise StateError(f"the state's position {state.position} is past the dataset's {self._timeline.total}")
        segments = state.segments
        if self._recuts and (state.shape.remainder == "drop") != self._timeline.drops_remainder:
            # Epochs had another number of steps, so which elements the earlier steps had can't be told any more.
            segments = (Segment(state.step, state.epoch, state.position, self._stride),)
        self._go_on(self._timeline._replace(segments=segments), state.step, state.epoch, state.position)
