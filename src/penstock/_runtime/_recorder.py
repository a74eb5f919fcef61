"""What a loader remembers of its events: counts for ever, the events themselves up to a bound."""

import threading
from collections import OrderedDict

from penstock.events import Event, Skipped, Substituted

_MOST_EVENTS = 1000


class Recorder:
    """Counts events and keeps the latest; may be told from any thread. An event told twice counts once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects all below
        self._events: OrderedDict[tuple[str, int, int], Event] = OrderedDict()
        self._counts: dict[tuple[type[Event], str], int] = {}

    def observe(self, event: Event) -> None:
        """Remember an event."""
        # A block that is computed again, after an error elsewhere in it, tells its events again.
        identity = (event.step, event.epoch, event.position)
        with self._lock:
            if identity in self._events:
                return
            self._events[identity] = event
            if len(self._events) > _MOST_EVENTS:
                self._events.popitem(last=False)
            kind = (type(event), event.step)
            self._counts[kind] = self._counts.get(kind, 0) + 1

    def substituted(self, step: str, epoch: int, position: int) -> int:
        """Return how many elements a step has replaced, besides the one at `position` of `epoch`."""
        with self._lock:
            own = isinstance(self._events.get((step, epoch, position)), Substituted)
            return self._counts.get((Substituted, step), 0) - own

    def total(self, kind: type[Substituted] | type[Skipped]) -> int:
        """Return how many events of a kind there were."""
        with self._lock:
            return sum(count for (each, _), count in self._counts.items() if each is kind)

    def events(self) -> tuple[Event, ...]:
        """Return the latest events, oldest first."""
        with self._lock:
            return tuple(self._events.values())
