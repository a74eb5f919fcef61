"""The placing of batches, for example on a device, before the consumer requests them.

`PlacedStream` takes batches from the stream that computes them, and places some ahead. A loader's iterator reads from
it as from any other stream, so the loader counts a batch when it is delivered, not when it is placed. Without a thread,
the consumer places the next batches in each call of `next`. It only starts their transfers, which then run by
themselves.

Guarantees:
  - Batches keep their tokens and their order. At most `ahead` are placed and not delivered.
  - `next` waits for the stream below only if no batch is placed. A batch that isn't ready is placed by a later call.
  - An error of the stream below is raised after the batches before it. If a batch's placement or delivery fails, the
    next call tries it again.
  - Closing drops the placed batches. Where another thread closes the stream while the consumer is inside `next`, the
    consumer drops them, at the end of that call.

A `PlacementThread` places batches if starting a transfer takes long. The problem: JAX's arrays are made on the host, so
a consumer that makes them loses that time in every step. A thread can make them, but the stream below must not be used
by two threads at once. With a lock around the stream, the thread would hold the lock while it waits for a batch, and
the consumer would wait for the lock.

The solution is a turn. After the consumer received a batch, it gives the thread a turn. In its turn the thread alone
uses the stream and the placed batches: it takes batches that are ready and places them, up to `ahead`. When the
consumer needs the stream, it takes the turn back if the thread hasn't begun it, and otherwise waits for its end. Two
markers in a list represent the turn, and `list.remove` is atomic, so giving and taking back need no lock: the side that
removes `_BEGIN` has the turn, and a thread that finds `_END` removed at the end of its turn closes the stream.

Rejected: a thread that waits for batches and passes them on through a queue. The consumer would depend on a thread that
may not have been scheduled, errors would be raised in a thread where no code catches them, and closing would have to
interrupt a wait.

Guarantees if a thread places:
  - The stream below has one user at a time: the thread during its turn, otherwise the consumer. If the thread is in its
    turn when the consumer closes the stream, the thread closes it at the turn's end.
  - The thread waits for no batch and computes none. It leaves a batch that isn't ready, that failed, or that can't be
    placed to the consumer. So every error is raised in the consumer's thread, after the batches before it.
  - The consumer never waits for a thread that hasn't begun its turn, has ended, or doesn't exist.
  - The thread begins a turn `HEAD_START_SECONDS` after it was given. Until then the consumer doesn't share the
    interpreter's lock with it, for example to dispatch a step, and may take the turn back.
  - The thread doesn't begin the turn of a stream that was dropped, and keeps no stream alive while it waits.
  - `PlacementThread.close` returns when the current turn is over, or after `FUNCTION_SECONDS`. So no thread is inside
    a framework when the program ends, unless a placement takes longer.

Only the placement thread calls `Turn.run`. Only the consumer's thread calls the other methods of a turn, except
`abandon`, which the garbage collector may call in any thread, as it may call `close`.
"""

import os
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, Final, TypeAlias

from penstock._caught import Caught, CaughtFailure
from penstock._decisions import PLACED_AHEAD, decide
from penstock._graph import Element
from penstock._loader._loader import Loader
from penstock._loader._policy import HEAD_START_SECONDS, MAX_PAUSE_BATCHES
from penstock._os import Bell, Closer, DaemonThread, uninterrupted
from penstock._processes import FUNCTION_SECONDS, without_frames
from penstock._runtime import EndOfEpoch, StepRange, Stream, Unit
from penstock._state import Token
from penstock._tracebacks import raise_caught
from penstock.errors import ClosedError

_BEGIN: Final = "begin"
_END: Final = "end"
Place: TypeAlias = Callable[[Element], Callable[[], Element]]
"""Starts to place a batch, and returns the function that delivers it, which may be called again if it raises."""


class Turn:
    """The thread's right to use one stream, which the consumer gives repeatedly; made by `PlacementThread.turn`.

    Args:
        thread: the thread that takes the turn.
        work: the function that the thread calls in each turn; it must not raise.
        on_abandoned: the function that the thread calls after `work` if the turn was abandoned meanwhile.
    """

    def __init__(self, thread: "_ThreadState", work: Callable[[], None], on_abandoned: Callable[[], None]) -> None:
        self._work = work
        self._on_abandoned = on_abandoned
        self._thread = thread
        self._itself = weakref.ref(self)
        # Removing a marker is atomic. The side that removes `_BEGIN` has the turn. If the consumer removed `_END`, the
        # thread calls `on_abandoned` at the end of the turn.
        self._markers: list[str] = []
        self.is_over = True
        """Whether the consumer may use the stream."""

    def give(self) -> None:
        """Give the turn to the thread; the previous one must be over."""
        self.is_over = False
        self._markers.extend((_BEGIN, _END))
        self._thread.turns.put(self._itself)

    def take_back(self) -> None:
        """Take the turn back, or wait until it is over. Ctrl-C ends the wait; the turn then continues.

        Raises:
            ClosedError: the thread was in a turn when this process was forked.
        """
        if self.is_over or self._takes_back_unbegun():
            return
        thread = self._thread
        if os.getpid() != thread.process:  # this forked process has no thread that could end the turn
            raise ClosedError("this loader was started before a fork and can't be used in the child; make a new one")
        while not self.is_over:
            thread.bell.clear()
            if not self.is_over:
                thread.bell.wait()

    @uninterrupted
    def _takes_back_unbegun(self) -> bool:
        if not self._removes(_BEGIN):
            return False
        self._markers.clear()
        self.is_over = True
        return True

    def abandon(self) -> bool:
        """End all turns, the given one included. Called once, with interrupts held.

        Returns:
            True if the thread is in its turn; it then calls `on_abandoned` at the end. Otherwise False: the thread
            doesn't begin another turn.
        """
        if not self._removes(_BEGIN) and self._removes(_END):
            return True
        self._markers.clear()
        self.is_over = True
        self._work = self._on_abandoned = _nothing  # both refer back to the stream, which refers to this turn
        return False

    def run(self) -> None:
        """Do the work, in the thread, unless the turn was taken back."""
        if self._removes(_BEGIN):
            self._work()
            if not self._removes(_END):
                self._on_abandoned()
                self._work = self._on_abandoned = _nothing
            self.is_over = True
            self._thread.bell.ring()

    def _removes(self, marker: str) -> bool:
        try:
            self._markers.remove(marker)
        except ValueError:
            return False
        return True


class PlacementThread:
    """Owns the thread, which starts when the first turn is made, and ends when this object is closed or dropped."""

    def __init__(self, name: str) -> None:
        self._state = _ThreadState(name)
        self._closer = Closer(self._state.close)

    def turn(self, work: Callable[[], None], on_abandoned: Callable[[], None]) -> Turn:
        """Return a turn of this thread. A caller makes another turn only after `take_back`.

        Args:
            work: as in `Turn`.
            on_abandoned: as in `Turn`.
        """
        return self._state.turn(work, on_abandoned)

    def take_back(self) -> None:
        """Wait until the thread is in no turn, not even an abandoned one. Ctrl-C ends the wait."""
        self._state.take_back()

    def close(self) -> None:
        """End the thread."""
        self._closer()


class _ThreadState:
    """The state that the thread shares with its owner; it lives until the thread is closed."""

    def __init__(self, name: str) -> None:
        self.turns: SimpleQueue[_WeakTurn | None] = SimpleQueue()
        self.bell = Bell()  # rung when a turn is over
        self.process = os.getpid()
        self._name = name
        self._thread: DaemonThread | None = None
        self._last: _WeakTurn = _no_turn

    def turn(self, work: Callable[[], None], on_abandoned: Callable[[], None]) -> Turn:
        if self._thread is None:
            self._start()
        turn = Turn(self, work, on_abandoned)
        self._last = weakref.ref(turn)
        return turn

    @uninterrupted  # an interrupt before the assignment would leave a thread without an owner
    def _start(self) -> None:
        turns = self.turns
        self._thread = DaemonThread(lambda: _serve(turns), self._name)

    def take_back(self) -> None:
        turn = self._last()
        if turn is not None:
            turn.take_back()

    def close(self) -> None:
        thread = self._thread
        if thread is None or os.getpid() != self.process:  # a fork has no thread
            return
        self.turns.put(None)
        if not thread.is_current:
            thread.wait(FUNCTION_SECONDS)


_WeakTurn: TypeAlias = Callable[[], Turn | None]


def _no_turn() -> Turn | None:
    return None


def _nothing() -> None:
    """Do nothing."""


def _serve(turns: "SimpleQueue[_WeakTurn | None]") -> None:
    given = turns.get()
    while given is not None:
        try:
            newer = turns.get(timeout=HEAD_START_SECONDS)  # the same turn, taken back and given again; or the end
        except Empty:
            turn = given()
            if turn is not None:
                turn.run()
            del turn  # a waiting thread keeps nothing alive
            newer = turns.get()
        given = newer


class PlacedStream(Stream):
    """The batches of another stream, placed ahead."""

    def __init__(
        self,
        stream: Stream,
        step_range: StepRange,
        place: Place,
        ahead: int,
        thread: PlacementThread | None = None,
        place_in_thread: Place | None = None,
    ) -> None:
        """Read from another stream.

        Args:
            stream: the stream below.
            step_range: the steps of that stream.
            place: places a batch in the consumer's thread.
            ahead: the number of batches placed before the consumer requests them; with a thread at least 1.
            thread: takes turns with the consumer's thread; None if the consumer places all batches.
            place_in_thread: places a batch in that thread; None for `place`.
        """
        self._stream = stream
        self.waits = stream.waits
        self._step_range = step_range
        self._place = place
        self._place_in_thread = place_in_thread or place
        self._ahead = ahead
        self._placed: deque[tuple[Callable[[], Element], Token]] = deque()
        self._taken: tuple[Element, Token] | None = None  # received from the stream below, not placed yet
        self._error: BaseException | None = None  # raised after the placed batches were delivered
        self._turn = None if thread is None else thread.turn(self._place_in_turn, self._close_here)
        self._is_given = False
        self._last_pause = self._pause = 0  # numbers of batches: the last pause of turns, the rest of the current one
        self._is_closed = self._thread_closes = self._is_inside = False

    def next(self) -> tuple[Element, Token]:
        # The consumer sets `_is_inside` before it looks at `_is_closed`, and `close` does the opposite. So one of them
        # notices the other, and nothing is dropped that the consumer uses.
        self._is_inside = True
        try:
            if self._is_closed:
                raise EndOfEpoch
            return self._next()
        finally:
            self._is_inside = False
            if self._is_closed:
                self._drop()

    def _next(self) -> tuple[Element, Token]:
        placed, turn = self._placed, self._turn  # the thread adds to `placed`
        self.waits.placing = 0.0
        if placed:
            self._last_pause = 0
        else:
            if turn is not None:
                self._take_back(turn)
            if not placed:
                self._count_pause()
                self._place_next()
        hand_over, token = placed[0]
        batch = hand_over()
        placed.popleft()
        if turn is None:
            self._place_ahead()
        elif not self._pause and turn.is_over:
            self._is_given = True
            turn.give()
        return batch, token

    def _take_back(self, turn: Turn) -> None:
        """Take the turn back, and count the time in which the thread was in it."""
        began = perf_counter()
        turn.take_back()
        self.waits.placing += perf_counter() - began

    def _place_next(self) -> None:
        """Place the batch that the consumer requests, or raise the error that was kept for this request."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise_caught(error)
        finally:
            del error  # otherwise its traceback would keep this frame, and so the stream
        self._place_one()

    def _place_ahead(self) -> None:
        """Place the batches that are ready, in the consumer's thread, and keep an error for a later call of `next`.

        A batch that failed in a worker isn't ready, so the stream below raises its error in a later call.
        """
        if self._ahead and self._error is None:
            with CaughtFailure() as caught:
                ahead = decide(PLACED_AHEAD, self._ahead, self._ahead)
                while len(self._placed) < ahead and (self._stream.is_inline or self._take_ready() is not None):
                    self._place_one()
            if caught.error is not None:
                self._keep(caught.taken())

    def _keep(self, error: BaseException) -> None:
        """Keep the error of a batch ahead, or the end.

        The end is kept without frames, which have the stream. An error of placing loses its frames, too. They would
        keep the loader alive, whose workers would then still run after the program has dropped it. An error of
        computing, which only an inline stream raises here, keeps its frames: there are no workers.
        """
        if isinstance(error, EndOfEpoch):
            self._error = EndOfEpoch()
        elif self._taken is None:
            self._error = error
        else:
            self._error = without_frames(error, "While a batch was placed ahead, in")

    def _place_one(self) -> None:
        if self._taken is None:
            self._taken = self._stream.next()
        began = perf_counter()
        self._place_taken(self._taken, self._place)
        self.waits.placing += perf_counter() - began

    def _place_taken(self, taken: tuple[Element, Token], place: Place) -> None:
        batch, token = taken
        self._placed.append((place(batch), token))
        self._taken = None

    # -- turns of the thread

    def _count_pause(self) -> None:
        """Pause the turns, each time for longer, while they don't help.

        They don't help if the consumer returns before they begin, or if no batch is ready in them.
        """
        if self._is_given:
            self._is_given = False
            self._last_pause = self._pause = min(2 * self._last_pause + 1, MAX_PAUSE_BATCHES)
        elif self._pause:
            self._pause -= 1

    def _place_in_turn(self) -> None:
        """Place the batches that are ready; called in the thread."""
        with Caught():  # the consumer tries the same batch again and raises the error itself
            while len(self._placed) < self._ahead and (taken := self._take_ready()) is not None:
                self._place_taken(taken, self._place_in_thread)

    def _take_ready(self) -> tuple[Element, Token] | None:
        if self._taken is None:
            self._taken = self._stream.next_nowait()
        return self._taken

    # -- in the consumer

    def next_nowait(self) -> tuple[Element, Token] | None:
        return self.next() if self._placed else None

    def failing(self) -> Unit | None:
        try:
            at: tuple[object, Token] | None = self._placed[0]
        except IndexError:
            at = self._taken
        if at is None:
            return self._stream.failing()
        if at[1] is None or self._step_range.where is not None:
            return None
        return self._step_range.unit(int(at[1]) - self._step_range.first.step)

    def fileno(self) -> int | None:
        return self._stream.fileno()

    def is_ready(self) -> bool:
        if self._turn is not None and not self._placed:
            self._turn.take_back()  # this takes no longer than to place the batches here
        return bool(self._placed) or self._error is not None or self._stream.is_ready()

    def close(self) -> None:
        self._abandon_turn()
        if not self._thread_closes:
            self._close_here()

    @uninterrupted
    def _abandon_turn(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._thread_closes = self._turn is not None and self._turn.abandon()

    def _close_here(self) -> None:
        self._stream.close()
        if not self._is_inside:
            self._drop()

    def _drop(self) -> None:
        self._placed.clear()
        self._taken = self._error = None


class PlacedLoader(Loader[Any]):
    """A loader that places its batches; the loaders of frameworks derive from it, and define `_place`."""

    _ahead: int = 0
    """The number of batches placed before the consumer requests them."""

    _thread: PlacementThread | None = None
    """The thread that places batches; None if the consumer's thread does, as it must if it also computes them."""

    _keeps_memory: bool = False
    """Whether a placed batch keeps the memory that it was computed in; batches placed ahead then need more memory."""

    def batch_at(self, step: int) -> Element:
        return self._place(super().batch_at(step))()

    def close(self) -> None:
        super().close()
        if self._thread is not None:
            self._thread.close()

    def _open_stream(self, step_ranges: list[StepRange]) -> Stream:
        thread = self._thread if self._ahead else None
        if thread is not None:
            thread.take_back()  # it may still be in the turn of a closed stream
        kept = 0 if thread is None or not self._keeps_memory else self._ahead
        stream = self._runtime.open_stream(step_ranges, ahead=kept)
        if self._ahead:
            self._runtime.readings.waits.places()
        return PlacedStream(stream, step_ranges[0], self._place, self._ahead, thread, self._place_in_thread)

    def _place(self, batch: Element) -> Callable[[], Element]:
        """Start to place a batch, and return the function that delivers it."""
        raise NotImplementedError

    def _place_in_thread(self, batch: Element) -> Callable[[], Element]:
        """Return what `_place` returns. The thread calls this method, and the consumer the function that it returns."""
        return self._place(batch)
