"""A loader's state: the dataset and the progress in it; a JSON value without data, the same for any number of workers.

    {"penstock": 1,                                   the version of the format: 2 with "ahead" or "legs", else 1
     "fingerprint": {"source": …, "order": …, "functions": …,
                     "details": {"order": …}},        for some parts, a further digest
     "numpy": "2.4.6",                                random distributions depend on it
     "shape": {"batch": 256, "remainder": "keep", "ranks": 8},
     "step": 5000, "epoch": 3, "position": 290816,    the next batch: its step, epoch, and first element's position
     "segments": [[0, 0, 0, 256]],                    since step 0: at epoch 0, position 0, batches of 256
     "ahead": [[1, 3], [6, 7]], "rank": 3,            only if batches are delivered out of order: later steps that this
                                                      rank delivered, too, here step + 1, step + 2 and step + 6
     "cursor": [0, [812, 0]], "rank": 3,              only if elements are read in order: the token to resume from,
     "legs": […]}                                     and, after a change of ranks, the rank segments of this one

Two entries are called segments in the code. Those of "segments" record the elements of every earlier step, also after
the batch size has changed. Rank segments (`_streaming/_inputs.py`) are the parts of an epoch that one rank reads.
Nothing is unpickled.
"""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard

from penstock._frozen import frozen
from penstock.errors import StateError

VERSION: Final = 1
VERSION_WITH_MORE: Final = 2
"""Of states with an entry that a new loader's state doesn't have."""
MAX_EPOCHS: Final = 1 << 31
MAX_SEGMENTS: Final = 8  # older ones are dropped, so that the state of an indexable dataset stays below a kilobyte
_LARGEST: Final = 1 << 62
_MAX_RANKS: Final = 1 << 20
_DEEPEST: Final = 256  # lists within lists; each step of a dataset adds one or two

State: TypeAlias = dict[str, Any]
Token: TypeAlias = Any
"""An integer, a string, None, or a tuple of tokens."""
_NOTHING: Final[Mapping[str, Any]] = {}
_REMAINDERS: Final = {"keep", "drop", "pad"}


class Segment(NamedTuple):
    """From `step` on, batches of `batch` elements, the first starting at `position` of `epoch`."""

    step: int
    epoch: int
    position: int
    batch: int


@frozen
class Shape:
    """The cut of elements into batches, and of batches over ranks, which may change between saving and resuming."""

    batch: int
    remainder: str
    ranks: int


@frozen
class LoaderState:
    """The state as a value; `to_json` and `from_json` convert it."""

    fingerprint: Mapping[str, str]
    steps: str
    """The digests of the dataset's steps; "" in states of earlier versions."""
    details: Mapping[str, str]
    numpy: str
    shape: Shape
    step: int
    epoch: int
    position: int
    segments: tuple[Segment, ...]
    cursor: Token = None
    """The token to resume from: nested tuples of integers and strings; None for indexable datasets."""
    rank_segments: Token = None
    """The positions that the rank reads in this epoch, if they are not every `ranks`-th one."""
    rank: int = 0
    ahead: tuple[tuple[int, int], ...] | None = None
    """Spans of later steps, counted from `step`, that this rank delivered; None if all ranks have the same state."""

    @property
    def seen(self) -> int:
        """The position in the epoch behind all elements that were delivered."""
        return seen_position(self.position, self.segments[-1].batch, self.ahead)

    def to_json(self) -> State:
        """Return the state as fresh plain values."""
        has_more = self.ahead is not None or self.rank_segments is not None
        state: State = {
            "penstock": VERSION_WITH_MORE if has_more else VERSION,
            "fingerprint": {
                **self.fingerprint,
                **({"details": dict(self.details)} if self.details else {}),
                **({"steps": self.steps} if self.steps else {}),
            },
            "numpy": self.numpy,
            "shape": {"batch": self.shape.batch, "remainder": self.shape.remainder, "ranks": self.shape.ranks},
            "step": self.step,
            "epoch": self.epoch,
            "position": self.position,
            "segments": [list(segment) for segment in self.segments],
        }
        if self.cursor is not None:
            state |= {"cursor": _lists(self.cursor), "rank": self.rank}
        if self.ahead is not None:
            state |= {"ahead": _lists(self.ahead), "rank": self.rank}
        if self.rank_segments is not None:
            state["legs"] = _lists(self.rank_segments)
        return state


def seen_position(position: int, batch: int, ahead: tuple[tuple[int, int], ...] | None) -> int:
    """Return the position behind the last of the steps that were delivered ahead of the step at a position."""
    return position + batch * ahead[-1][1] if ahead else position


def own_state(states: Sequence[LoaderState], rank: int, ranks: int) -> LoaderState:
    """Return a rank's own state, of those that were saved with ordered=False; at least one inside an epoch.

    Returns:
        If no state is known to be this rank's, one that can't be resumed here.

    Raises:
        StateError: it isn't known.
    """
    begun = [state for state in states if state.ahead is None]  # these have no rank
    within = [state for state in states if state.ahead is not None]
    own = [state for state in within if (state.rank, state.shape.ranks) == (rank, ranks)]
    if own or not begun or any(state.shape.ranks != ranks for state in within):
        return (own or within)[0]
    if len({(state.step, state.epoch, state.position) for state in begun}) > 1:
        raise StateError(
            "of states that were saved with ordered=False, those at an epoch's begin have no rank, and these are of "
            f"steps {sorted({state.step for state in begun})}. Load this rank's own state alone."
        )
    return begun[0]


def from_json(state: object) -> LoaderState:
    """Return the state that `to_json` converted, or raise a StateError that names its defect."""
    if isinstance(state, str | bytes):
        try:
            state = json.loads(state)
        except (ValueError, RecursionError) as error:
            raise StateError(
                f"a state must be what state_dict() returned, or its JSON text; got {_short(state)} ({error})"
            ) from error
    fields: Mapping[str, Any] = state if _is_mapping(state) else _NOTHING
    if "penstock" not in fields:
        raise StateError(f"a state must be what state_dict() returned; got {_short(state)}")
    version = fields["penstock"]
    if type(version) is not int or version not in {VERSION, VERSION_WITH_MORE}:
        raise StateError(
            f"this version reads states of versions {VERSION} and {VERSION_WITH_MORE}; got version {_short(version)}"
        )
    if version == VERSION_WITH_MORE and fields.get("ahead") is None and fields.get("legs") is None:
        raise StateError(
            "this state was saved with the key 'ahead' or 'legs', and now has neither, so batches would repeat. "
            "torch.distributed.checkpoint reads only the keys that the state of a new loader has. Save "
            "json.dumps(loader.state_dict()), which is one value; from this checkpoint, load the lost keys, too."
        )
    try:
        return _parse(fields)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise StateError(f"this state is incomplete or damaged ({type(error).__name__}: {error})") from error


def _parse(state: Mapping[str, Any]) -> LoaderState:
    """Return a state, after checking the types, ranges and order that its parts must have for any dataset.

    Checks that need the dataset come later: of positions in `Progress.restore`, of tokens in `check` of their stages.
    """
    found = state["fingerprint"]
    fingerprint = {name: _text(found[name]) for name in ("source", "order", "functions")}
    details = {str(name): _text(digest) for name, digest in found.get("details", _NOTHING).items()}
    shape = state["shape"]
    batch, remainder, ranks = _count(shape["batch"]), _text(shape["remainder"]), _count(shape["ranks"], _MAX_RANKS)
    segments = tuple(Segment(*map(_count, segment)) for segment in state["segments"])
    step, epoch, position = _count(state["step"]), _count(state["epoch"], MAX_EPOCHS), _count(state["position"])
    rank = _count(state.get("rank", 0))
    if not segments or any(segment.batch < 1 for segment in segments) or segments[-1].step > step:
        raise ValueError("segments must cover the step, in batches of at least 1")
    if any(earlier.step >= later.step for earlier, later in itertools.pairwise(segments)):
        raise ValueError("segments must follow each other")
    # A segment may begin before the one before it: `seek(position=…)` goes back, and steps keep their numbers.
    if (segments[-1].epoch, segments[-1].position) > (epoch, position):
        raise ValueError("the last segment must not begin after the state's position")
    if not batch or rank >= ranks or remainder not in _REMAINDERS:
        raise ValueError("batches have rows, a rank is below the number of ranks, and a remainder is keep, drop or pad")
    return LoaderState(
        fingerprint,
        _text(found.get("steps", "")),
        details,
        _text(state["numpy"]),
        Shape(batch, remainder, ranks),
        step,
        epoch,
        position,
        segments,
        _tuples(state.get("cursor")),
        _tuples(state.get("legs")),
        rank,
        None if state.get("ahead") is None else _spans(state["ahead"]),
    )


def _spans(value: Iterable[tuple[object, object]]) -> tuple[tuple[int, int], ...]:
    """Return spans [start, stop) that follow each other, with a gap before each, from their JSON form."""
    spans: list[tuple[int, int]] = []
    end = 0
    for first, last in value:
        start, stop = _count(first), _count(last)
        if not end < start < stop:
            raise ValueError("the spans of ahead must follow each other, with a gap before each")
        spans.append((start, stop))
        end = stop
    return tuple(spans)


def _is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping)


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    return isinstance(value, tuple)


def _count(value: object, most: int = _LARGEST) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"expected a whole number from 0 to 2**{most.bit_length() - 1}, found {_short(value)}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, found {_short(value)}")
    return value


def _tuples(value: object, depth: int = 0) -> Token:
    """Return a token from its JSON form."""
    if value is None or isinstance(value, str):
        return value
    if depth > _DEEPEST:
        raise ValueError(f"expected lists that are at most {_DEEPEST} deep")
    return tuple(_tuples(each, depth + 1) for each in value) if _is_list(value) else _count(value)


def _lists(token: Token) -> Token:
    """Return the JSON form of a token."""
    return list(map(_lists, token)) if _is_tuple(token) else token


def _short(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer with thousands of digits, or very deep lists
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:79]}…"


class Timeline(NamedTuple):
    """The elements of each step, computed by arithmetic over segments.

    Positions count elements before batching; if batches themselves are reordered, positions count batches.
    """

    segments: tuple[Segment, ...]
    total: int
    """The number of elements in an epoch."""
    drops_remainder: bool

    def steps_from(self, position: int, batch: int) -> int:
        """Return the number of batches of an epoch from `position` on."""
        rest = max(self.total - position, 0)
        return rest // batch if self.drops_remainder else -(-rest // batch)

    def locate(self, step: int) -> tuple[int, int]:
        """Return the epoch and the position of the first element of a step's batch.

        Raises:
            StateError: the step is before the first known segment.
        """
        segment = self.segment(step)
        offset = step - segment.step
        here = self.steps_from(segment.position, segment.batch)
        if offset < here:
            return segment.epoch, segment.position + offset * segment.batch
        each = self.steps_from(0, segment.batch)
        if each == 0:
            return segment.epoch + 1, 0
        epochs, batches = divmod(offset - here, each)
        return segment.epoch + 1 + epochs, batches * segment.batch

    def segment(self, step: int) -> Segment:
        """Return the segment that a step belongs to."""
        for segment in reversed(self.segments):
            if segment.step <= step:
                return segment
        raise StateError(f"steps before {self.segments[0].step} are no longer known; got step={step}")

    def until(self, step: int) -> "Timeline":
        """Return the timeline as it was before `step`, without later cuts."""
        return self._replace(segments=tuple(segment for segment in self.segments if segment.step <= step))

    def cut(self, step: int, epoch: int, position: int, batch: int) -> "Timeline":
        """Return the timeline in which, from `step` on, batches of `batch` start at `position` of `epoch`."""
        kept: Sequence[Segment] = [segment for segment in self.segments if segment.step < step]
        return self._replace(segments=(*kept, Segment(step, epoch, position, batch))[-MAX_SEGMENTS:])
