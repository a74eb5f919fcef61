"""The progress in the streams of an iterable dataset, from which another loader can resume.

A state holds the dataset's own state in each worker, after the worker's last delivered batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self, cast

from penstock.errors import StateError
from penstock.torch._data_loader._epoch import State, check_origin, damaged, empty_state, whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_BATCHES: Final = 1 << 62
_PARTS: Final = 3  # the length of a stream's entry in a state


@dataclass
class Place:
    """The progress in one stream.

    Attributes:
        number: the number of its next batch.
        state: the dataset's state after the batch delivered last; None before the first one, or if it has no state.
        is_over: whether the stream has ended.
    """

    number: int = 0
    state: object = None
    is_over: bool = False


@dataclass
class Places:
    """The progress in all streams of an epoch.

    Attributes:
        streams: the progress of each worker's stream.
        turn: the worker whose batch comes next, if its stream has not ended.
    """

    streams: list[Place]
    turn: int

    def copy(self) -> "Places":
        """Return a copy."""
        return Places([replace(place) for place in self.streams], self.turn)

    def go_to(self, other: "Places") -> None:
        """Set the progress to another one, of as many streams."""
        self.turn = other.turn
        for place, wanted in zip(self.streams, other.streams, strict=True):
            place.number, place.state, place.is_over = wanted.number, wanted.state, wanted.is_over

    def state(self) -> State:
        """Return the state: a JSON value if the dataset's own states are JSON values."""
        if all(place.is_over for place in self.streams):
            return empty_state()
        streams = [[place.number, place.state, place.is_over] for place in self.streams]
        return {**empty_state(), "streams": streams, "turn": self.turn}


class Pass:
    """One pass over an iterable dataset in the consumer's thread.

    It records whether the dataset's own state belongs to this pass yet.

    Args:
        saved: the dataset's state from which the pass resumes; None for its beginning.

    Attributes:
        saved: the same.
        has_begun: whether an element was read.
        has_ended: whether all elements were read.
    """

    def __init__(self, saved: object) -> None:
        self.saved = saved
        self.has_begun = False
        self.has_ended = False
        self._elements: Iterator[object] = iter(())

    def over(self, elements: Iterator[object]) -> "Pass":
        """Take the dataset's iterator, and return this."""
        self._elements = elements
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> object:
        try:
            element = next(self._elements)
        except StopIteration:
            self.has_ended = True
            raise
        self.has_begun = True
        return element


def saved_places(state: object, num_workers: int) -> Places | None:
    """Return the progress that was saved; None for the state of an epoch's start.

    Raises:
        StateError: it is not a state, or belongs to another number of workers.
    """
    given: Mapping[str, Any] = check_origin(state)
    streams: object = given.get("streams")
    if streams is None and not {"dataset", "reached"} & given.keys():
        return None
    found = cast("list[object]", streams) if isinstance(streams, list) else None
    if found is None or len(found) != num_workers:
        saved = "not of worker streams" if found is None else f"of {len(found)} streams, one for each worker"
        raise StateError(
            f"a state inside an epoch of an iterable dataset resumes only with as many workers; this one is {saved}, "
            f"and num_workers is {num_workers}. Use as many, or a state that was saved at an epoch's end"
        )
    return Places([_place(each) for each in found], whole_number(given, "turn", 0, num_workers))


def _place(value: object) -> Place:
    parts = cast("list[object]", value) if isinstance(value, list) else []
    number, state, is_over = parts if len(parts) == _PARTS else (None, None, None)
    if type(number) is not int or not 0 <= number <= _MAX_BATCHES or not isinstance(is_over, bool):
        raise damaged("the entry of a stream must be the number of its next batch, a state, and whether it has ended")
    return Place(number, state, is_over)
