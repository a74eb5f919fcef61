"""Iterators over one epoch of a loader, for `for` and `async for`; both only receive from a stream.

Guarantees:
  - Batches come in order, each exactly once; the loader counts a batch when it is handed out.
  - After an exception, Ctrl-C included, the same batch is tried again by the next call, or skipped by `loader.seek`.
  - When the iterator is dropped, closed or replaced by a newer one of its loader, what computes ahead for it stops.
"""

import asyncio
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol, Self

from penstock._loader._progress import Progress
from penstock._runtime._batches import Unit
from penstock._runtime._streams import Course, EndOfEpoch, Stream
from penstock._state import State
from penstock.errors import ClosedError


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
        self.batches = 0
        self.wait_seconds = 0.0
        self.first: float | None = None
        self.last = 0.0

    def count(self, asked: float, received: float) -> None:
        """Count a batch that was asked for and received at these times."""
        self.first = asked if self.first is None else self.first
        self.last = received
        self.wait_seconds += received - asked
        self.batches += 1


class LoaderIterator:
    """The batches of one epoch, or of the rest of one. Made by `iter(loader)`; `get_state` and `set_state` are its
    loader's state under the names that the JAX world uses.
    """  # noqa: D205 - one sentence, then the names

    def __init__(
        self, loader: Stateful, progress: Progress, open_stream: Callable[[Course], Stream], clock: Clock
    ) -> None:
        self._loader = loader  # kept alive: it owns the workers
        self._progress = progress
        self._open_stream = open_stream
        self._clock = clock
        self._retired = ""
        self._begin()

    def _begin(self) -> None:
        self._course = self._progress.begin()
        self._cursor = self._course.cursor
        self._ended = False
        self._open(self._course)

    def _open(self, course: Course) -> None:
        self._stream = self._open_stream(course)
        self._finalizer = weakref.finalize(self, self._stream.close)
        self._interrupted = False

    @property
    def _index(self) -> int:
        """The next batch's number in the course."""
        return self._progress.next_step - self._course.first.step

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:  # noqa: ANN401 - the user's batch
        self._check()
        try:
            return self._receive()
        except EndOfEpoch:
            self._end()
            raise StopIteration from None
        except StopIteration as error:
            raise RuntimeError("a function of the dataset raised StopIteration") from error
        except Exception as error:
            _add_note(error, self._course.unit(self._index))
            raise
        except BaseException:
            self._interrupted = True  # anywhere: the stream may have moved on without a batch handed out
            raise

    def _receive(self) -> Any:  # noqa: ANN401 - the user's batch
        asked = time.perf_counter()
        batch, cursor = self._stream.next()
        self._clock.count(asked, time.perf_counter())
        unit = self._course.unit(self._index)
        self._cursor = cursor
        self._progress.handed_out(unit, cursor)  # last, so that an interrupt comes before it or finds it done
        return batch

    def _check(self) -> None:
        if self._retired:
            raise ClosedError(self._retired)
        if self._ended:
            raise StopIteration
        if self._interrupted:
            self.close()
            first, index = self._course, self._index
            self._open(Course(first.unit(index), first.steps - index, first.stride, self._cursor))

    def _end(self) -> None:
        self._ended = True
        self._progress.ended()
        self.close()

    async def next_async(self) -> Any:  # noqa: ANN401 - the user's batch
        """Return the next batch, waiting in the running event loop.

        Raises:
            StopAsyncIteration: at the end of the epoch.
        """
        try:
            while not self._ended and not self._retired and not self._stream.is_ready():
                await _readable(self._stream.fileno())
            return next(self)
        except StopIteration:
            raise StopAsyncIteration from None

    def get_state(self) -> State:
        """Return where the loader is, as `Loader.state_dict` does."""
        return self._loader.state_dict()

    def set_state(self, state: State) -> None:
        """Go to where a state was saved; this iterator then gives the rest of that epoch."""
        self.close()
        self._loader.load_state_dict(state)
        self._retired = ""
        self._begin()

    def close(self) -> None:
        """Stop what computes ahead for this iterator; batches handed out stay valid."""
        self._finalizer()

    def retire(self, why: str) -> None:
        """Close for good: from now on `next` raises a ClosedError that says why."""
        self._retired = self._retired or why
        self.close()


class AsyncLoaderIterator:
    """The same for `async for`."""

    def __init__(self, iterator: LoaderIterator) -> None:
        self._iterator = iterator

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401 - the user's batch
        return await self._iterator.next_async()


def _add_note(error: Exception, unit: Unit) -> None:
    note = f"while making the batch of step {unit.step}: epoch {unit.epoch}, from position {unit.position} on"
    if note not in getattr(error, "__notes__", ()):  # the same object may be raised again and again
        error.add_note(note)


async def _readable(descriptor: int | None) -> None:
    """Wait until a descriptor is readable."""
    if descriptor is None:
        return
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(descriptor, _resolve, readable)
    try:
        await readable
    finally:
        loop.remove_reader(descriptor)


def _resolve(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)
