"""What can be observed: frozen events, sent at the edges of steps and workers, never from inside a transform.

An observer is any callable that takes an event. It is called where the event happens, on whatever thread that is, and
must be quick and not raise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Substituted:
    """A step's function failed on an element, and another position's element took its place.

    Attributes:
        step: the step's name.
        epoch: which pass over the data.
        position: the element's place in the pass.
        key: the record's address in the source.
        error: the exception, as `Type: text`.
        taken_from: the position whose element was taken.
    """

    step: str
    epoch: int
    position: int
    key: int
    error: str
    taken_from: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """A step's function failed on an element, which was left out. The attributes are those of `Substituted`."""

    step: str
    epoch: int
    position: int
    key: int
    error: str


Event: TypeAlias = Substituted | Skipped
Observer: TypeAlias = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Observe nothing."""
    del event
