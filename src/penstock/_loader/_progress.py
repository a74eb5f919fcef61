"""Where a loader is: which batch was handed out last, and which comes next. Counted at the consumer's side."""

from collections import OrderedDict
from typing import Final, NamedTuple, Protocol

from penstock._graph._folds import Cursor, start_cursor
from penstock._graph._length import is_endless
from penstock._plan._plan import Batches, Folded, Plan
from penstock._runtime._batches import Course, Unit
from penstock._runtime._ordered import positions_of
from penstock._state import LoaderState, Segment, Timeline
from penstock.errors import InternalError, StateError

_REMEMBERED: Final = 256  # steps of an ordered dataset whose cursors are kept, for `state_dict(step=…)` and `seek`


class Point(NamedTuple):
    """The next batch, and all that is needed to come back to it."""

    step: int
    epoch: int
    position: int
    segments: tuple[Segment, ...]
    cursor: Cursor | None


class Progress(Protocol):
    """The place in a dataset. Used by the consumer's thread alone."""

    next_step: int

    def current(self) -> Unit:
        """Return the batch last handed out, or, before there is one, the next."""
        ...

    def begin(self) -> Course:
        """Return the course of the next epoch, or, right after a restore or a seek, of the rest of this one."""
        ...

    def rest(self) -> Course:
        """Return what is left of the course that was begun last."""
        ...

    def handed_out(self, cursor: Cursor | None) -> None:
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

    def restore(self, state: LoaderState) -> None:
        """Go to where a state was saved."""
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
        self._course = Course(first, self._timeline.steps_from(position, self._stride), self._stride, None)
        return self._course

    def rest(self) -> Course:
        course = self._course
        if course is None:
            raise InternalError("no course was begun")
        index = self.next_step - course.first.step
        return Course(course.unit(index), course.steps - index, course.stride, None)

    def handed_out(self, cursor: Cursor | None) -> None:
        del cursor
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
        return Course(self.unit(step), 1, self._stride, None)

    def point(self, step: int) -> Point:
        return Point(step, *self._timeline.locate(step), self._timeline.until(step).segments, None)

    def restore(self, state: LoaderState) -> None:
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


class _Known(NamedTuple):
    """Where an ordered dataset's step began."""

    epoch: int
    cursor: Cursor
    run: int
    """How many epochs had been left early before it."""


class OrderedProgress:
    """The place in an ordered dataset: a cursor, remembered for the last steps handed out."""

    def __init__(self, plan: Plan) -> None:
        program = plan.program
        if not isinstance(program, Folded):
            raise InternalError("an indexable dataset has no cursor")
        self._batch = plan.batch_size
        self._start = start_cursor(program.folds)
        self._end = positions_of(program, plan.shard)
        self.next_step = 0
        self._epoch = 0
        self._cursor = self._start
        self._last: Unit | None = None
        self._run = 0
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._remember()

    def current(self) -> Unit:
        return self._next() if self._last is None else self._last

    def _next(self) -> Unit:
        return Unit(self.next_step, self._epoch, self._cursor.position, self._batch)

    def begin(self) -> Course:
        if self._last is not None and self._cursor != self._start:  # the epoch was left early, or not seen to end
            self._run += 1
            self._next_epoch()
        self._last = None
        return self.rest()

    def rest(self) -> Course:
        # How many steps there will be is known when they are done.
        return Course(self._next(), 1 << 62, 0, self._cursor)

    def handed_out(self, cursor: Cursor | None) -> None:
        if cursor is None:
            raise InternalError("an ordered dataset's batch comes with a cursor")
        last = self._next()
        self._known[last.step + 1] = _Known(self._epoch, cursor, self._run)
        # An interrupt finds all of these done, or none.
        self._last, self._cursor, self.next_step = last, cursor, last.step + 1
        self._forget()

    def ended(self) -> None:
        self._next_epoch()

    def _next_epoch(self) -> None:
        self._epoch += 1
        self._cursor = self._start
        self._remember()

    def _remember(self) -> None:
        self._known[self.next_step] = _Known(self._epoch, self._cursor, self._run)
        self._forget()

    def _forget(self) -> None:
        self._known.move_to_end(self.next_step)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def jump(self, step: int) -> None:
        self._epoch, self._cursor, self._run = self._lookup(step)
        self.next_step = step
        self._last = None
        self._pass_end()
        for later in [other for other, known in self._known.items() if known.run > self._run]:
            del self._known[later]  # the epoch that was left early after this step may now be read to its end

    def _pass_end(self) -> None:
        """Stand at the next epoch's start rather than at an epoch's end."""
        if self._cursor.position >= self._end > 0:
            self._next_epoch()

    def _lookup(self, step: int) -> _Known:
        known = self._known.get(step)
        if known is None:
            first, last = min(self._known), max(self._known)
            raise StateError(
                "this dataset can only be read in order, so only the last steps handed out are known: "
                f"{first} to {last}; got step={step}"
            )
        return known

    def course(self, step: int) -> Course:
        epoch, cursor, _ = self._lookup(step)
        return Course(Unit(step, epoch, cursor.position, self._batch), 1, 0, cursor)

    def point(self, step: int) -> Point:
        epoch, cursor, _ = self._lookup(step)
        return Point(step, epoch, cursor.position, (Segment(step, epoch, cursor.position, self._batch),), cursor)

    def restore(self, state: LoaderState) -> None:
        if state.cursor is None or len(state.cursor) != 1 + len(self._start.skips):
            raise StateError("this state was saved by an indexable dataset, or one with other steps")
        self.next_step, self._epoch = state.step, state.epoch
        self._cursor = Cursor(state.cursor[0], state.cursor[1:])
        self._last = None
        self._known.clear()
        self._remember()
        self._pass_end()
