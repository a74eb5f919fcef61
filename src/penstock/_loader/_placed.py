"""A stream that places batches, on a device for example, before the consumer requests them.

`PlacedStream` reads from the stream that computes, and a loader's iterator reads from it as from any other stream. So a
loader still counts delivered batches, however many were placed.

Guarantees:
  - Batches keep their tokens and their order. At most `ahead` are placed and not delivered.
  - `next` waits for the stream below only if no batch is placed; a batch that isn't ready is placed by a later call.
  - An error of the stream below is raised after the batches before it. A batch whose placement or delivery failed is
    tried again by the next call.
  - Closing drops the placed batches.

One thread uses it, as any stream, and needs no help: a transfer runs by itself once it was started. Where starting it
takes long, `_placement_thread` does it in a thread.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from penstock._caught import Caught
from penstock._decisions import PLACED_AHEAD, decide
from penstock._graph import Element
from penstock._loader._loader import Loader
from penstock._runtime._batches import StepRange, Unit
from penstock._runtime._streams import Stream
from penstock._state import Token

Place: TypeAlias = Callable[[Element], Callable[[], Element]]
"""Starts placing a batch, and returns a function that delivers it; that may be called again if it raises."""


class PlacedStream:
    """The batches of another stream, placed ahead."""

    def __init__(self, stream: Stream, step_range: StepRange, place: Place, ahead: int) -> None:
        self._stream = stream
        self._step_range = step_range
        self._place = place
        self._ahead = ahead
        self._placed: deque[tuple[Callable[[], Element], Token]] = deque()
        self._taken: tuple[Element, Token] | None = None  # received from the stream below, not placed yet
        self._failed = Caught(Exception)  # raised after the placed batches were delivered

    def next(self) -> tuple[Element, Token]:
        if not self._placed:
            self._place_next()
        hand_over, token = self._placed[0]
        batch = hand_over()
        self._placed.popleft()
        if self._ahead:
            self._place_ahead()
        return batch, token

    def _place_ahead(self) -> None:
        if self._failed.error is None:
            with self._failed:
                ahead = decide(PLACED_AHEAD, self._ahead, self._ahead)
                while len(self._placed) < ahead and self._stream.is_ready():
                    self._place_one()

    def _place_next(self) -> None:
        """Place the batch that the consumer requests, or raise the error that came in its place."""
        if self._failed.error is not None:
            raise self._failed.taken()
        self._place_one()

    def _place_one(self) -> None:
        if self._taken is None:
            self._taken = self._stream.next()
        self._place_taken(self._taken, self._place)

    def _place_taken(self, taken: tuple[Element, Token], place: Place) -> None:
        batch, token = taken
        self._placed.append((place(batch), token))
        self._taken = None

    def failing(self) -> Unit | None:
        at = self._placed[0] if self._placed else self._taken
        if at is None:
            return self._stream.failing()
        if at[1] is None or self._step_range.where is not None:
            return None
        return self._step_range.unit(int(at[1]) - self._step_range.first.step)

    def fileno(self) -> int | None:
        return self._stream.fileno()

    def is_ready(self) -> bool:
        return bool(self._placed) or self._failed.error is not None or self._stream.is_ready()

    def next_nowait(self) -> tuple[Element, Token] | None:
        return self.next() if self._placed else None

    def close(self) -> None:
        self._stream.close()
        self._placed.clear()
        self._taken = self._failed.error = None


class PlacedLoader(Loader[Any]):
    """A loader whose batches are placed; the loaders for frameworks derive from it and define `_place`."""

    _ahead: int = 0
    """The number of batches placed before the consumer requests them."""

    def batch_at(self, step: int) -> Element:
        return self._place(super().batch_at(step))()

    def _open_stream(self, step_ranges: list[StepRange]) -> Stream:
        return PlacedStream(super()._open_stream(step_ranges), step_ranges[0], self._place, self._ahead)

    def _place(self, batch: Element) -> Callable[[], Element]:
        """Start placing a batch, and return a function that delivers it."""
        raise NotImplementedError
