"""What can be observed: frozen events, sent at the edges of steps and workers, never from inside a transform.

An observer is any callable that takes an event. It is called where the event happens, on whatever thread that is, and
must be quick and not raise.
"""

from collections.abc import Callable
from typing import TypeAlias

from penstock._frozen import frozen


@frozen
class Substituted:
    """A step's function failed on an element, and another position's element took its place.

    Attributes:
        step: the step's name.
        epoch: which pass over the data.
        position: the element's place in the pass.
        key: the record's address in the source.
        error: the exception, as `Type: text`.
        taken_from: the position whose element was taken.

    Example:
        >>> import penstock as ps
        >>> def decode(number):
        ...     if number == 3:
        ...         raise ValueError("corrupt")
        ...     return number
        >>> loader = ps.Loader(ps.range(8).map(decode, on_error=ps.Substitute()))
        >>> numbers = list(loader)
        >>> [(event.position, event.error) for event in loader.replaced()]
        [(3, 'ValueError: corrupt')]
    """

    step: str
    epoch: int
    position: int
    key: int
    error: str
    taken_from: int


@frozen
class Skipped:
    """A step's function failed on an element, which was left out.

    Attributes:
        step: the step's name.
        epoch: which pass over the data.
        position: the element's place in the pass.
        key: the record's address in the source.
        error: the exception, as `Type: text`.

    Example:
        >>> import penstock as ps
        >>> loader = ps.Loader(ps.range(3).map(lambda number: 1 // number, name="divide", on_error="skip"))
        >>> list(loader), [event.step for event in loader.replaced()]
        ([1, 0], ['divide'])
    """

    step: str
    epoch: int
    position: int
    key: int
    error: str


Event: TypeAlias = Substituted | Skipped
Observer: TypeAlias = Callable[[Event], None]
