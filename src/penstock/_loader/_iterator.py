"""Iterators over one epoch of a loader, for `for` and `async for`; both only receive from a stream.

Guarantees:
  - Batches come in order, each exactly once; the loader counts a batch when it is handed out.
  - After an exception the same batch is tried again by the next call, or skipped by `loader.seek`.
  - When the iterator is dropped, closed or replaced by a newer one of its loader, what computes ahead for it stops.
"""

import asyncio
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol, Self

from penstock._loader._progress import Progress
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
        self._open()

    def _open(self) -> None:
        self._course = self._progress.begin()
        self._stream = self._open_stream(self._course)
        self._index = 0
        self._ended = False
        self._finalizer = weakref.finalize(self, self._stream.close)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:  # noqa: ANN401 - the user's batch
        asked = time.perf_counter()
        self._check()
        try:
            batch, cursor = self._stream.next()
        except EndOfEpoch:
            self._end()
            raise StopIteration from None
        except StopIteration as error:
            raise RuntimeError("a function of the dataset raised StopIteration") from error
        self._progress.handed_out(self._course.unit(self._index), cursor)
        self._index += 1
        self._clock.count(asked, time.perf_counter())
        return batch

    def _check(self) -> None:
        if self._retired:
            raise ClosedError(self._retired)
        if self._ended:
            raise StopIteration

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
        self._open()

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
