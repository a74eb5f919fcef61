"""Events of a running pipeline: frozen values, sent at the edges of stages, never from inside a function.

An observer is any callable that takes an event. It is called on the event loop's thread, between two chunks of items,
and, with the `ItemsDone` of the sink, on the thread that reads. So it must be quick; longer work belongs on a thread of
its own, fed through a queue. An observer that raises is removed, and the pipeline continues; an exception that is no
Exception, such as SystemExit, ends the pass.
"""

import logging
from collections.abc import Callable
from typing import TypeAlias

from penstock._caught import Caught
from penstock._frozen import frozen

_LOGGER = logging.getLogger("penstock")


@frozen
class StageStarted:
    """A stage started a pass: it takes items from now on.

    Attributes:
        stage: the stage's name, unique in its pipeline.
        kind: the kind of stage, as in `StageReport.kind`: "source", "sync", "async", "aggregate", ..., "sink".
        concurrency: how many calls it may run at once.

    Example:
        >>> from penstock.pipeline import StageStarted
        >>> StageStarted("decode", "sync", concurrency=4)
        StageStarted(stage='decode', kind='sync', concurrency=4)
    """

    stage: str
    kind: str
    concurrency: int


@frozen
class ItemsDone:
    """A call of a stage's function ended, for a chunk of items.

    Attributes:
        stage: the stage's name.
        items: how many items came out.
        failures: how many items it failed on.
        seconds: how long the call took.

    Example:
        Monotonic counters, as Prometheus expects them (`prometheus_client.Counter` has `labels(...).inc(...)`):

        >>> from collections import Counter
        >>> from penstock.pipeline import ItemsDone
        >>> items, busy_seconds = Counter(), Counter()
        >>> def count(event):
        ...     if isinstance(event, ItemsDone):
        ...         items[event.stage] += event.items
        ...         busy_seconds[event.stage] += event.seconds
        >>> for event in [ItemsDone("decode", 8, 0, 0.25), ItemsDone("decode", 4, 1, 0.5)]:
        ...     count(event)
        >>> items["decode"], busy_seconds["decode"]
        (12, 0.75)
    """

    stage: str
    items: int
    failures: int
    seconds: float


@frozen(eq=False)
class ItemDropped:
    """A stage failed on an item, and the pipeline dropped it because `max_failures` allows it.

    Attributes:
        stage: the stage's name.
        item: the stage's input, as a shortened `repr`.
        error: the exception that the stage raised. Its traceback may be released once the observer has returned, so
            format it before.

    Example:
        >>> from penstock.pipeline import ItemDropped
        >>> event = ItemDropped("decode", "'a.jpg'", ValueError("truncated"))
        >>> f"{event.stage} dropped {event.item}: {event.error}"
        "decode dropped 'a.jpg': truncated"
    """

    stage: str
    item: str
    error: Exception


@frozen(eq=False)
class StageEnded:
    r"""A stage ended a pass: it puts out no further items.

    Attributes:
        stage: the stage's name.
        failure: the failure of the pass, of this stage or another; None if the items ran out or the consumer stopped.
            Default None.

    Example:
        A progress line:

        >>> from penstock.pipeline import ItemsDone, StageEnded
        >>> def show(event, counted=[0]):
        ...     match event:
        ...         case ItemsDone(stage="sink"):
        ...             counted[0] += event.items
        ...             print(f"{counted[0]} items", end="\r")
        ...         case StageEnded(stage="sink", failure=failure):
        ...             print("done" if failure is None else f"failed: {failure}")
        >>> for event in [ItemsDone("sink", 1, 0, 0.0), StageEnded("sink")]:
        ...     show(event)
        1 items...done
    """

    stage: str
    failure: BaseException | None = None


StageEvent: TypeAlias = StageStarted | ItemsDone | ItemDropped | StageEnded
"""The argument of an observer."""

Observer: TypeAlias = Callable[[StageEvent], None]
"""A function that is called with each event."""


def guarded(observer: Observer) -> Observer:
    """Return an observer that calls the given one and can't break the pipeline.

    If the given observer raises an Exception, it is logged once, with its traceback, to the logger "penstock", and the
    observer is not called again. KeyboardInterrupt, other BaseExceptions and those of signals' handlers pass through.

    Example:
        >>> seen = []
        >>> observe = guarded(seen.append)
        >>> observe(ItemsDone("decode", 8, 0, 0.25))
        >>> seen
        [ItemsDone(stage='decode', items=8, failures=0, seconds=0.25)]
    """
    active: list[Observer] = [observer]  # empty once it has raised

    def observe(event: StageEvent) -> None:
        for each in active:
            with Caught(Exception) as caught:
                each(event)
            if caught.error is not None:
                active.clear()
                text = "the observer %r raised at %r and is not called again"
                _LOGGER.error(text, each, event, exc_info=caught.taken())

    return observe
