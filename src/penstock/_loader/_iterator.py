"""The iterator over one epoch of a loader; it only receives from a stream.

Guarantees:
  - Batches come each exactly once, in order or as they become ready; the loader counts a batch when it is handed out.
  - After an exception, Ctrl-C included, the same batch is tried again by the next call, or skipped by `loader.seek`.
  - When the iterator is dropped, closed or replaced by a newer one of its loader, what computes ahead for it stops.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Generic, Protocol, Self

from penstock._dataset._verbs import T_co
from penstock._loader._progress import Progress
from penstock._runtime._batches import Course, Unit
from penstock._runtime._streams import EndOfEpoch, Stream
from penstock._state import State
from penstock.errors import ClosedError
from penstock.transport._closer import Closer


class Stateful(Protocol):
    """The loader, as far as its iterators know it."""

    def state_dict(self) -> State:
        """Return where the loader is."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Go to where a state was saved."""
        ...


class Clock:
    """How long the consumer waited, of how long it has been at it."""

    def __init__(self) -> None:
        self.batches: int = 0
        self.wait_seconds: float = 0.0
        self.first: float | None = None
        self.last: float = 0.0

    def count(self, asked: float, received: float) -> None:
        """Count a batch that was asked for and received at these times."""
        self.first = asked if self.first is None else self.first
        self.last = received
        self.wait_seconds += received - asked
        self.batches += 1


class LoaderIterator(Generic[T_co]):
    """The batches of one epoch, or of the rest of one; made by `iter(loader)`.

    `get_state` and `set_state` are the loader's state under the names that the JAX world uses.

    Example:
        >>> import penstock as ps
        >>> batches = iter(ps.Loader(ps.range(6).batch(2)))
        >>> first, state = next(batches), batches.get_state()
        >>> second = next(batches)
        >>> batches.set_state(state)
        >>> next(batches).tolist() == second.tolist()
        True
    """

    def __init__(
        self, loader: Stateful, progress: Progress, open_stream: Callable[[list[Course]], Stream], clock: Clock
    ) -> None:
        self._loader = loader  # kept alive: it owns the workers
        self._progress = progress
        self._open_stream = open_stream
        self._clock = clock
        self._retired = ""
        self._ended = False
        self._open(self._progress.begin())

    def _open(self, courses: list[Course]) -> None:
        self._stream = self._open_stream(courses)
        self._next = self._stream.next
        self._interrupted = False
        self._closer = Closer(self._stream.close)
        if self._retired:  # by another thread, which has not seen this one
            self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T_co:
        batch: T_co
        asked = perf_counter()
        if self._ended or self._retired or self._interrupted:
            self._refuse_or_reopen()
        try:
            batch, token = self._next()
            self._clock.count(asked, perf_counter())
            self._progress.handed_out(token)  # last: an interrupt comes before it, or finds it done
        except EndOfEpoch:
            self._refuse_retired()  # by another thread, meanwhile: then it isn't the epoch that has ended
            self._ended = not self._progress.has_rest()
        except StopIteration as error:
            raise RuntimeError("a function of the dataset raised StopIteration") from error
        except Exception as error:
            self._explain(error)
            raise
        except BaseException:
            self._interrupted = True  # anywhere: the stream may have moved on without a batch handed out
            raise
        else:
            return batch
        if not self._ended:  # what follows was handed out before: on to what comes after that
            self.close()
            self._open(self._progress.rest())
            return next(self)
        self._end()
        raise StopIteration

    def _refuse_retired(self) -> None:
        if self._retired:
            raise ClosedError(self._retired) from None

    def _explain(self, error: Exception) -> None:
        if isinstance(error, ClosedError):
            self._refuse_retired()
        _add_note(error, self._stream.failing() or self._progress.rest()[0].first)

    def _refuse_or_reopen(self) -> None:
        self._refuse_retired()
        if self._ended:
            raise StopIteration
        self.close()
        self._open(self._progress.rest())

    def _end(self) -> None:
        self._progress.ended()
        self.close()

    @property
    def may_wait(self) -> int | None:
        """A descriptor to wait for, readable when `next` may return without waiting; None where it would at once."""
        idle = self._ended or self._interrupted or self._retired or self._stream.is_ready()
        return None if idle else self._stream.fileno()

    def get_state(self) -> State:
        """Return where the loader is, as `Loader.state_dict` does."""
        return self._loader.state_dict()

    def set_state(self, state: State) -> None:
        """Go to where a state was saved; this iterator then gives the rest of that epoch."""
        self.close()
        self._loader.load_state_dict(state)
        self._retired = ""
        self._ended = False
        self._open(self._progress.begin())

    def close(self) -> None:
        """Stop what computes ahead for this iterator; batches handed out stay valid."""
        self._closer()

    def retire(self, why: str) -> None:
        """Close for good: from now on `next` raises a ClosedError that says why."""
        self._retired = self._retired or why
        self.close()


def _add_note(error: Exception, unit: Unit) -> None:
    note = f"while making the batch of step {unit.step}: epoch {unit.epoch}, from position {unit.position} on"
    if note not in getattr(error, "__notes__", ()):  # the same object may be raised again and again
        error.add_note(note)
