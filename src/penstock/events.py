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


@frozen
class WorkerDied:
    """A worker process died; another one took its place, and its work. What the loader yields is the same.

    Attributes:
        worker: the worker's number; None for the helper process of `isolated=True`.
        pid: the process's.
        exit_code: negative for a signal; None if somebody else has waited for it.
        reason: how it died, in words.
        step: the number of the batch that it was at, the first if of several; None if it was at none.
        rows: the first and the last row that it was at, counted from that batch's first; None if it was at none.

    Example:
        >>> import penstock as ps
        >>> loader = ps.Loader(ps.range(8).batch(4))
        >>> [event.reason for event in loader.deaths()]
        []
    """

    worker: int | None
    pid: int
    exit_code: int | None
    reason: str
    step: int | None
    rows: tuple[int, int] | None


Replaced: TypeAlias = Substituted | Skipped
Event: TypeAlias = Replaced | WorkerDied
Observer: TypeAlias = Callable[[Event], None]
