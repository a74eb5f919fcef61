"""Batches that a thread takes and places ahead, in turns with the one that asks for them.

Where placing takes the host's time, as making JAX's arrays does, the training thread would spend that in every step.
Here a thread takes the batches that are there from the stream below, and places them, while the training thread
computes.

Guarantees, besides those of `PlacedStream`:
  - The stream below has one user at a time: the thread in its turn, which lasts as long as placing `ahead` batches,
    else the consumer. Even closing it is left to the thread, if that is in its turn.
  - The thread waits for no batch, and computes none: what is not there, or has failed, is the consumer's to take, and
    what can't be placed is the consumer's to place. So whatever is raised is raised there, after the batches before it.
"""

from collections.abc import Callable
from typing import Final

from penstock._caught import Caught
from penstock._graph._nodes import Element
from penstock._loader._placed import Place, PlacedLoader, PlacedStream
from penstock._loader._turns import TurnThread
from penstock._os import HeldInterrupts
from penstock._runtime._batches import StepRange
from penstock._runtime._streams import Stream
from penstock._state import Token

_MAX_PAUSE: Final = 15  # batches: waking a thread costs a tenth of placing one


class PlacedInTurns(PlacedStream):
    """The batches of another stream, placed ahead by a thread."""

    def __init__(
        self,
        stream: Stream,
        step_range: StepRange,
        place: Place,
        ahead: int,
        *,
        thread: TurnThread,
        place_elsewhere: Place,
    ) -> None:
        """Stand above another stream.

        Args:
            stream: whose batches are placed.
            step_range: of that stream.
            place: places a batch in the consumer's thread.
            ahead: how many are placed before they are asked for, at least 1.
            thread: takes turns with the consumer's.
            place_elsewhere: places a batch in that thread.
        """
        super().__init__(stream, step_range, place, ahead)
        self._place_elsewhere = place_elsewhere
        self._turn = thread.turn(self._take_turn, self._close_here)
        self._is_given = False
        self._in_vain = self._pause = 0  # batches that get no turn: since the last one that helped, and from now on
        self._is_closed = self._is_left = False  # the latter: to the thread, which closes the stream

    def next(self) -> tuple[Element, Token]:
        placed, turn = self._placed, self._turn  # the thread adds to what is placed
        if placed:
            self._in_vain = 0
        else:
            turn.settle()
            if not placed:
                self._count_pause()
                self._place_next()
        hand_over, token = placed[0]
        batch = hand_over()
        placed.popleft()
        if not self._pause and turn.is_over:
            self._is_given = True
            turn.give()
        return batch, token

    def _count_pause(self) -> None:
        """Give fewer turns where they don't help: the consumer is back before they begin, or finds nothing ready."""
        if self._is_given:
            self._is_given = False
            self._in_vain = self._pause = min(2 * self._in_vain + 1, _MAX_PAUSE)
        elif self._pause:
            self._pause -= 1

    def _take_turn(self) -> None:
        """Place what is there; in the thread."""
        with Caught():  # the consumer meets it, too
            while len(self._placed) < self._ahead and (taken := self._take()) is not None:
                self._place_taken(taken, self._place_elsewhere)

    def _take(self) -> tuple[Element, Token] | None:
        if self._taken is None:
            self._taken = self._stream.next_nowait()
        return self._taken

    def is_ready(self) -> bool:
        if not self._placed:
            self._turn.settle()  # which takes no longer than placing them here
        return super().is_ready()

    def close(self) -> None:
        with HeldInterrupts():
            if not self._is_closed:
                self._is_closed = True
                self._is_left = self._turn.abandon()
        if not self._is_left:
            self._close_here()

    def _close_here(self) -> None:
        super().close()


class LoaderInTurns(PlacedLoader):
    """A loader whose batches a thread of its own places, where the caller's thread computes none."""

    _thread: TurnThread | None = None
    """The thread, if there is to be one."""

    _keeps_memory: bool = False
    """Whether a placed batch keeps the memory that it was computed in, as one that was handed out does."""

    def close(self) -> None:
        super().close()
        if self._thread is not None:
            self._thread.close()

    def _open_stream(self, step_ranges: list[StepRange]) -> Stream:
        thread = self._thread
        if thread is None or not self._ahead:
            return super()._open_stream(step_ranges)
        thread.settle()  # it may still be at what was left to it
        stream = self._runtime.open_stream(step_ranges, ahead=self._ahead if self._keeps_memory else 0)
        return PlacedInTurns(
            stream, step_ranges[0], self._place, self._ahead, thread=thread, place_elsewhere=self._place_elsewhere
        )

    def _place_elsewhere(self, batch: Element) -> Callable[[], Element]:
        """Return what `_place` does; called in the thread, and what it returns in the consumer's."""
        return self._place(batch)
