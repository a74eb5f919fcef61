"""Where the streams of an iterable dataset are, so that another loader can go on in them.

A state holds the dataset's own state in each worker, after the worker's last batch that was handed out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self, cast

from penstock.errors import StateError
from penstock.torch._data_loader._epoch import State, check_origin, damaged, empty_state, whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_BATCHES: Final = 1 << 62
_PARTS: Final = 3  # of a place


@dataclass
class Place:
    """Where one stream is.

    Attributes:
        number: of its next batch.
        state: of the dataset, after the batch that was handed out last; None before there is one, or if it has none.
        is_over: whether there is no more of it.
    """

    number: int = 0
    state: object = None
    is_over: bool = False


@dataclass
class Places:
    """Where all streams of an epoch are.

    Attributes:
        streams: each worker's.
        turn: the worker whose batch comes next, if its stream is not over.
    """

    streams: list[Place]
    turn: int

    def copy(self) -> "Places":
        """Return them as they are now."""
        return Places([replace(place) for place in self.streams], self.turn)

    def go_to(self, other: "Places") -> None:
        """Take over others of as many streams."""
        self.turn = other.turn
        for place, wanted in zip(self.streams, other.streams, strict=True):
            place.number, place.state, place.is_over = wanted.number, wanted.state, wanted.is_over

    def state(self) -> State:
        """Return them as a JSON value, as far as the dataset's states are."""
        if all(place.is_over for place in self.streams):
            return empty_state()
        streams = [[place.number, place.state, place.is_over] for place in self.streams]
        return {**empty_state(), "streams": streams, "turn": self.turn}


class Pass:
    """One pass over an iterable dataset in the consumer's thread: whether its own state is that of this pass yet.

    Args:
        saved: the dataset's state that the pass begins at; None for its beginning.

    Attributes:
        saved: the same.
        has_begun: whether an element was read.
        has_ended: whether all were.
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
    """Return the places that were saved; None where an epoch's start was.

    Raises:
        StateError: it is no state, or of another number of workers.
    """
    given: Mapping[str, Any] = check_origin(state)
    streams: object = given.get("streams")
    if streams is None and not {"dataset", "reached"} & given.keys():
        return None
    found = cast("list[object]", streams) if isinstance(streams, list) else None
    if found is None or len(found) != num_workers:
        whose = "other than of streams" if found is None else f"of {len(found)} streams, one for each worker"
        raise StateError(
            f"a state inside an epoch of an iterable dataset goes on with as many workers; this one is {whose}, and "
            f"num_workers is {num_workers}. Use as many, or a state that was saved at an epoch's end"
        )
    return Places([_place(each) for each in found], whole_number(given, "turn", 0, num_workers))


def _place(value: object) -> Place:
    parts = cast("list[object]", value) if isinstance(value, list) else []
    number, state, is_over = parts if len(parts) == _PARTS else (None, None, None)
    if type(number) is not int or not 0 <= number <= _MAX_BATCHES or not isinstance(is_over, bool):
        raise damaged("each stream has the number of its next batch, its dataset's state, and whether it is over")
    return Place(number, state, is_over)
