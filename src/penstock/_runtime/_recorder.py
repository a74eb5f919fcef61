"""The record of a loader's events: counts without bound, the events themselves up to a bound."""

import logging
import threading
import warnings
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, assert_never

from penstock._caught import Caught
from penstock._graph import Filter, Map, Node, is_indexable, walk
from penstock._printable import printable
from penstock._runtime._policy import MAX_EVENTS, WASTED_ELEMENTS, WASTED_SHARE
from penstock.errors import GraphError
from penstock.events import DrewGlobally, Event, Replaced, Skipped, Substituted, WorkerDied

if TYPE_CHECKING:
    from collections.abc import Callable

_logger = logging.getLogger("penstock")
_warned_of: Final[set[str]] = set()  # steps whose functions draw globally: one warning in a program for each name
_warning: Final = threading.Lock()


class Remembered(NamedTuple):
    """The events of elements so far, from which a recorder in another process continues."""

    events: tuple[Replaced, ...]
    counts: tuple[tuple[tuple[type[Replaced], str], int], ...]


_Identity: TypeAlias = tuple[str, str, int, int, int]


def _identity(event: Replaced) -> _Identity:
    """Return what no other event has: each part of a mixture has positions of its own, and a position many pieces."""
    return event.step, event.component, event.epoch, event.position, event.ordinal


def is_logged(count: int) -> bool:
    """Return whether the event of this number is logged, of those that repeat: the 1st, 10th, 100th and so on."""
    return str(count).rstrip("0") == "1"


class Recorder:
    """Counts events and keeps the latest; may be called from any thread. An event that is recorded twice counts once.

    The 1st, 10th, 100th and so on of the elements that a step replaced or left out is logged as a warning.

    Attributes:
        delivered: returns how many elements the loader has delivered.
    """

    def __init__(self) -> None:
        self.delivered: Callable[[], int] = int
        self._lock = threading.Lock()  # protects all below
        self._events: OrderedDict[_Identity, Replaced] = OrderedDict()
        self._counts: dict[tuple[type[Replaced], str], int] = {}
        self._deaths: deque[WorkerDied] = deque(maxlen=MAX_EVENTS)
        self._death_count = 0
        self._is_silent = False
        # Only the consumer's thread uses the attributes below.
        self.filtered: int = 0
        self._skipped_before = 0  # before this epoch
        self._since_start: dict[int, tuple[int, int]] = {}  # kept and dropped, by the identity of a node of the plan
        self._has_warned = False

    def silence(self) -> None:
        """Log no elements from now on, since the loader delivers to no training."""
        self._is_silent = self._has_warned = True

    def observe(self, event: Event) -> None:
        """Record an event."""
        match event:
            case WorkerDied():
                with self._lock:
                    self._deaths.append(event)
                    self._death_count += 1
            case Substituted() | Skipped():
                self._observe_replaced(event)
            case DrewGlobally():
                self._warn_of_draws(event.step)
            case _:
                assert_never(event)

    def _observe_replaced(self, event: Replaced) -> None:
        # A block that is computed again, after an error elsewhere in it, reports its events again.
        identity = _identity(event)
        with self._lock:
            if identity in self._events:
                return
            self._events[identity] = event
            if len(self._events) > MAX_EVENTS:
                self._events.popitem(last=False)
            kind = (type(event), event.step)
            count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if is_logged(count) and not self._is_silent:
            with Caught(Exception):  # of a log's handler: the batch was taken, and an error would lose it
                self._log(event, count)

    def _warn_of_draws(self, step: str) -> None:
        with _warning:
            if step in _warned_of:
                return
            _warned_of.add(step)
        with Caught(Exception):
            _logger.warning(
                "step %r draws from a global generator of random, NumPy or torch: its elements depend on the worker "
                "and the run, and a resumed run differs. Draw in random_map(f, globals=True), or in random_map(f) from "
                "the generator that f gets. A source that draws is indexed there: ps.range(len(source))"
                ".random_map(source.__getitem__, globals=True)",
                step,
            )

    def _log(self, event: Replaced, count: int) -> None:
        done = "replaced" if isinstance(event, Substituted) else "left out"
        _logger.warning(
            "step %r has %s %s element%s, while %s were delivered; the last, at epoch %d, position %d, key %d%s: %s",
            event.step,
            done,
            f"{count:,}",
            "" if count == 1 else "s",
            f"{self.delivered():,}",
            event.epoch,
            event.position,
            event.key,
            printable(f" of {event.component!r}") if event.component else "",
            printable(event.error),
        )

    def check_empty_epoch(self, epoch: int) -> None:
        """Check an epoch without a batch.

        Raises:
            GraphError: steps left elements out because their functions failed.
        """
        skipped = self.total(Skipped) - self._skipped_before
        if not skipped:
            return
        with self._lock:
            last = next(event for event in reversed(self._events.values()) if isinstance(event, Skipped))
        raise GraphError(
            f"epoch {epoch} gave no batch: on_error='skip' left out {skipped:,} elements; the last, in step "
            f"{last.step!r} at position {last.position}, key {last.key}, for {last.error}. Correct what fails; "
            "loader.replaced() lists the latest elements that were left out"
        )

    def substituted(self, event: Replaced) -> int:
        """Return how many elements the step of an event has replaced, besides the one of the event."""
        with self._lock:
            own = isinstance(self._events.get(_identity(event)), Substituted)
            return self._counts.get((Substituted, event.step), 0) - own

    def start_epoch(self) -> None:
        """Start to count the elements that filters leave out in an epoch."""
        self._since_start = {}
        self._skipped_before = self.total(Skipped)

    def count_filtered(self, node: Node, kept: int, dropped: int) -> None:
        """Count elements that filters kept and left out; warn once if they leave out almost all elements."""
        self.filtered += dropped
        before = self._since_start.get(id(node), (0, 0))
        kept, dropped = before[0] + kept, before[1] + dropped
        self._since_start[id(node)] = kept, dropped
        if dropped >= WASTED_ELEMENTS and dropped > WASTED_SHARE * (kept + dropped) and not self._has_warned:
            self._has_warned = True
            warnings.warn(_wasteful_text(node, kept, dropped), stacklevel=2)

    def filtered_in_epoch(self) -> int:
        """Return the number of elements that filters have left out in this epoch."""
        return sum(dropped for _, dropped in self._since_start.values())

    def remembered(self) -> Remembered:
        """Return the events of elements so far."""
        with self._lock:
            return Remembered(tuple(self._events.values()), tuple(self._counts.items()))

    def recall(self, remembered: Remembered) -> None:
        """Replace the events of elements by those of another recorder."""
        with self._lock:
            self._events = OrderedDict((_identity(each), each) for each in remembered.events)
            self._counts = dict(remembered.counts)

    def total(self, kind: type[Event]) -> int:
        """Return the number of events of a kind."""
        with self._lock:
            if kind is WorkerDied:
                return self._death_count
            return sum(count for (each, _), count in self._counts.items() if each is kind)

    def replaced(self) -> tuple[Replaced, ...]:
        """Return the latest elements that were replaced or left out, oldest first."""
        with self._lock:
            return tuple(self._events.values())

    def deaths(self) -> tuple[WorkerDied, ...]:
        """Return the latest deaths of workers, oldest first."""
        with self._lock:
            return tuple(self._deaths)


def _wasteful_text(node: Node, kept: int, dropped: int) -> str:
    names: list[str] = []
    below = node
    while isinstance(below, Map | Filter) and not is_indexable(below):
        if isinstance(below, Filter):
            names.append(repr(below.name))
        below = below.parent
    steps = f"step {names[0]}" if len(names) == 1 else f"steps {' and '.join(reversed(names))}"
    remedy = "Use filter(…, index=path) there"
    if not is_indexable(below):
        remedy = "Filter below the steps that can only be read in order, with filter(…, index=path)"
    return (
        f"{steps} left out {dropped:,} of {kept + dropped:,} elements so far in this epoch: nearly all that is read is "
        f"thrown away. {remedy}: the predicate is then called once for each element, and what it leaves out is not "
        "read again."
    )


class HelperRecorder(Recorder):
    """A recorder that keeps its events for another process, which logs them."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self._numbers: dict[int, int] = {}
        self.know(node)
        self._new: deque[Event] = deque()  # any thread appends
        self._filtered: list[tuple[int, int, int]] = []

    def know(self, node: Node) -> None:
        """Number the steps of a dataset, which is a copy of the loader's, so that counts name steps by number."""
        self._numbers |= {id(step): number for number, step in enumerate(walk(node))}

    def observe(self, event: Event) -> None:
        super().observe(event)
        self._new.append(event)

    def _warn_of_draws(self, step: str) -> None:
        del step

    def _log(self, event: Replaced, count: int) -> None:
        del event, count

    def count_filtered(self, node: Node, kept: int, dropped: int) -> None:
        self._filtered.append((self._numbers[id(node)], kept, dropped))

    def taken(self) -> tuple[tuple[Event, ...], tuple[tuple[int, int, int], ...]]:
        """Return the events since the last call."""
        events = tuple(self._new.popleft() for _ in range(len(self._new)))
        filtered, self._filtered = tuple(self._filtered), []
        return events, filtered
