"""Observable events: frozen values, sent at the edges of steps and workers, never from inside a transform.

An observer is any callable that takes an event. It is called in the thread in which the event happens. It must be fast
and must not raise.
"""

from collections.abc import Callable
from typing import TypeAlias

from penstock._frozen import frozen


@frozen
class Substituted:
    """A step's function failed on an element, and another position's element took its place.

    Attributes:
        step: the step's name.
        epoch: the number of the pass over the data.
        position: the element's position in the pass.
        key: the record's key in the source.
        error: the exception, as `Type: text`.
        taken_from: the position of the substitute.
        taken_key: the key of the substitute's record.
        component: the names of the parts of mixtures and zips that the element comes from, joined as in "web/en"; empty
            without any.
        ordinal: the number of the element among those that `flat_map` or `unbatch` made of one, as `Origin.ordinal`.

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
    taken_key: int
    component: str = ""
    ordinal: int = 0


@frozen
class Skipped:
    """A step's function failed on an element, which was left out.

    Attributes:
        step: the step's name.
        epoch: the number of the pass over the data.
        position: the element's position in the pass.
        key: the record's key in the source.
        error: the exception, as `Type: text`.
        component: as in `Substituted`.
        ordinal: as in `Substituted`.

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
    component: str = ""
    ordinal: int = 0


@frozen
class WorkerDied:
    """A worker process died, and another one replaced it and took over its work. The loader's batches are the same.

    Attributes:
        worker: the worker's number; None for the helper process of `isolated=True`.
        pid: the process's ID.
        exit_code: the exit code, negative for a signal; None if other code waited for the process.
        reason: the cause of the death, as text.
        step: the number of the batch that it was computing, the first one of several; None if it computed none.
        rows: the first and last row that it was computing, counted from that batch's first row; None if it computed
            none.

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


@frozen
class DrewGlobally:
    """The function of a `map`, or a source, drew from a global generator of `random`, NumPy or torch.

    So its results may not repeat.

    Attributes:
        step: the step's name, or the text of a source, as in "read(…)".

    Example:
        >>> import random
        >>> import penstock as ps
        >>> loader = ps.Loader(ps.range(8).map(lambda number: number + random.random(), name="jitter").batch(4))
        >>> for batch in loader:  # logs a warning that names the step
        ...     pass
    """

    step: str


Replaced: TypeAlias = Substituted | Skipped
Event: TypeAlias = Replaced | WorkerDied | DrewGlobally
Observer: TypeAlias = Callable[[Event], None]
