"""A loader's progress in a dataset that is read in order: the tokens at which the last steps began."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock._graph import Context
from penstock._loader._progress import Point, check_position
from penstock._plan._plan import Plan
from penstock._runtime._batches import StepRange, Unit, Where
from penstock._state import LoaderState, Segment, Token
from penstock._streaming import (
    Opening,
    RankSegment,
    Stage,
    dealt_rank_segments,
    first_rank_segment,
    open_stages,
    positions_of,
    rank_segments_from_json,
    rank_segments_to_json,
    read_inline,
    token_at,
)
from penstock.errors import InternalError, StateError

_REMEMBERED: Final = 256  # steps whose tokens are kept, for `state_dict(step=…)` and `seek`


class _Known(NamedTuple):
    """The token at which a step began."""

    step: int
    epoch: int
    where: Where
    run: int
    """The number of epochs that had been left early before it."""


class StreamingProgress:
    """The progress in a dataset that is read in order."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._batch = plan.batch_size
        self._node = plan.streaming.node
        self._own_rank_segments = (first_rank_segment(plan.node, plan.shard.rank, plan.shard.count),)
        self.at: tuple[_Known | None, _Known] = None, _Known(0, 0, self._beginning(), 0)  # the last one, and the next
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._remember(self._next)

    @property
    def _last(self) -> _Known | None:
        return self.at[0]

    @property
    def _next(self) -> _Known:
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

    def current(self) -> Unit:
        return self._unit(self._next if self._last is None else self._last)

    def _unit(self, known: _Known) -> Unit:
        stage = self._stage(known.where.rank_segments, known.epoch)
        read = sum(point.taken for point in stage.points(known.where.token) if point.taken < 1 << 61)
        return Unit(known.step, known.epoch, read, self._batch)

    def begin(self) -> list[StepRange]:
        if self._last is not None and self._next.where != self._beginning():  # left early, or not seen to end
            self.at = self._last, self._next._replace(run=self._next.run + 1)
            self._next_epoch()
        self.at = None, self._next
        return self.rest()

    def rest(self) -> list[StepRange]:
        # The number of steps is known only at the epoch's end.
        return [StepRange(self._unit(self._next), 1 << 62, 0, self._next.where)]

    def has_rest(self) -> bool:
        return False

    def delivered(self, token: Token) -> None:
        if token is None:
            raise InternalError("a batch of a dataset that is read in order must have a token")
        last = self._next
        following = _Known(last.step + 1, last.epoch, last.where._replace(token=token), last.run)
        self._remember(following)
        # One store, and the last action: an interrupt comes before the batch is counted, or after its delivery.
        self.at = last, following

    def ended(self) -> None:
        self._next_epoch()

    def _next_epoch(self) -> None:
        following = _Known(self._next.step, self._next.epoch + 1, self._beginning(), self._next.run)
        self._remember(following)
        self.at = self._last, following

    def _remember(self, known: _Known) -> None:
        self._known[known.step] = known
        self._known.move_to_end(known.step)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def jump(self, step: int) -> None:
        self.at = None, self._lookup(step)
        self._pass_end()
        for later in [other for other, known in self._known.items() if known.run > self._next.run]:
            del self._known[later]  # the epoch that was left early may now be read to its end, which renumbers steps

    def jump_to_position(self, epoch: int, position: int) -> None:
        if position:
            check_position(position, positions_of(self._node))
        token = token_at(self._stage(self._own_rank_segments, epoch), position)
        step = self._next.step
        for replaced in [other for other in self._known if other >= step]:
            del self._known[replaced]
        # It counts as another run: a jump to an earlier step makes the steps from here on others again.
        self.at = None, _Known(step, epoch, Where(self._own_rank_segments, token), self._next.run + 1)
        self._remember(self._next)
        self._pass_end()

    def _pass_end(self) -> None:
        """Move from an epoch's end to the next epoch's start."""
        if self._is_epoch_end(self._next.where, self._next.epoch):
            self._next_epoch()

    def _is_epoch_end(self, where: Where, epoch: int) -> bool:
        return where != self._beginning() and self._stage(where.rank_segments, epoch).is_exhausted(where.token)

    def _lookup(self, step: int) -> _Known:
        known = self._known.get(step)
        if known is None:
            first, last = min(self._known), max(self._known)
            raise StateError(
                "this dataset can only be read in order, so only the last delivered steps are known: "
                f"{first} to {last}; got step={step}"
            )
        return known

    def step_range(self, step: int) -> StepRange:
        known = self._lookup(step)
        return StepRange(self._unit(known), 1, 0, known.where)

    def point(self, step: int) -> Point:
        known = self._lookup(step)
        position = self._unit(known).position
        segments = (Segment(step, known.epoch, position, self._batch),)
        rank_segments = (
            None
            if known.where.rank_segments == self._own_rank_segments
            else rank_segments_to_json(known.where.rank_segments)
        )
        return Point(step, known.epoch, position, segments, known.where.token, rank_segments)

    def restore(self, states: Sequence[LoaderState]) -> None:
        if any(state.cursor is None for state in states):
            raise StateError("this state was saved by an indexable dataset, or one with other steps")
        known = self._restored(states)
        begins_next = self._is_epoch_end(known.where, known.epoch)  # before any change: it may raise
        self.at = None, known
        self._known.clear()
        self._remember(self._next)
        if begins_next:
            self._next_epoch()

    def _restored(self, states: Sequence[LoaderState]) -> _Known:
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
            return _Known(own.step, own.epoch, where, 0)
        _need_all_ranks(states)
        for state in states:
            self._check(Where(self._rank_segments_of(state), state.cursor), state.epoch)
        epoch, rank_segments, token = dealt_rank_segments(
            self._node,
            [
                (state.epoch, self._rank_segments_of(state), state.cursor)
                for state in sorted(states, key=lambda s: s.rank)
            ],
            rank,
            count,
        )
        return _Known(max(state.step for state in states), epoch, Where(rank_segments, token), 0)

    def _rank_segments_of(self, state: LoaderState) -> tuple[RankSegment, ...]:
        if state.rank_segments is not None:
            return rank_segments_from_json(state.rank_segments, self._node)
        return (first_rank_segment(self._node, state.rank, state.shape.ranks),)

    def _check(self, where: Where, epoch: int) -> None:
        stage = self._stage(where.rank_segments, epoch)
        stage.check(where.token)


def _need_all_ranks(states: Sequence[LoaderState]) -> None:
    ranks = states[0].shape.ranks
    if any(state.shape.ranks != ranks for state in states):
        raise StateError(f"states of one run are needed; these are of {sorted({s.shape.ranks for s in states})} ranks")
    given = {state.rank for state in states}
    missing = [rank for rank in range(min(ranks, len(states) + 8)) if rank not in given]
    if missing or len(states) != ranks:
        raise StateError(
            f"a dataset that is read in order resumes on another number of ranks from the states of all {ranks} old "
            f"ranks; missing: rank {missing}. Give load_state_dict the list of all of them."
        )
