"""A thread that takes turns with a loader's consumer: in its turn it alone has what both use.

Guarantees:
  - The consumer gives a turn, and has it back when that is over. Until the thread begins, it may be taken back.
  - So nobody waits for a thread that has not begun, that has ended, or that isn't there.
  - It begins a moment after it was given the turn, so that the consumer gets the interpreter's lock for what it does
    first, such as to begin a step; one that is back by then takes the turn back.
  - A turn that was dropped is not begun, and a thread that waits for one keeps nothing alive.
  - `TurnThread.close` returns when the turn that runs is over, or after `_PATIENCE_SECONDS`: so no thread is inside a
    framework when the program ends.

A turn's methods belong to the consumer's thread. `close` and `Turn.abandon` may be called wherever the garbage
collector runs.
"""

import os
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias

from penstock._os import Bell, Closer, DaemonThread, HeldInterrupts
from penstock.errors import ClosedError

_BEGIN: Final = "begin"
_END: Final = "end"
_HEAD_START_SECONDS: Final = 0.0003  # dropping a batch and dispatching a step takes about as long
_PATIENCE_SECONDS: Final = 2.0


class Turn:
    """What the thread does each time that it is given the turn; made by `TurnThread.turn`.

    Args:
        thread: whose turn.
        work: what it does; it raises nothing.
        abandoned: what it does at last, if the turn is abandoned meanwhile.
    """

    def __init__(self, thread: "_Serving", work: Callable[[], None], abandoned: Callable[[], None]) -> None:
        self._work = work
        self._abandoned = abandoned
        self._thread = thread
        self._itself = weakref.ref(self)
        # Who removes the first, which is atomic, has the turn; who removes the other isn't the one to call `abandoned`.
        self._left: list[str] = []
        self.is_over = True
        """Whether the consumer has the turn."""

    def give(self) -> None:
        """Have the thread begin, which has to be over."""
        self.is_over = False
        self._left.extend((_BEGIN, _END))
        self._thread.turns.put(self._itself)

    def settle(self) -> None:
        """Take the turn back, or wait until it is over; Ctrl-C ends the wait, and changes nothing.

        Raises:
            ClosedError: the thread is in a turn that was given before a fork.
        """
        if self.is_over:
            return
        with HeldInterrupts():
            if self._removes(_BEGIN):
                self._left.clear()
                self.is_over = True
        thread = self._thread
        if not self.is_over and os.getpid() != thread.process:  # it was forked while the thread was at it
            raise ClosedError("this loader was started before a fork and can't be used in the child; make a new one")
        while not self.is_over:
            thread.bell.clear()
            if not self.is_over:
                thread.bell.wait()

    def abandon(self) -> bool:
        """Give no more turns, and want none that was given; called once, with interrupts held.

        Returns:
            Whether the thread is at it: then it calls `abandoned` at its end. Else it never begins.
        """
        if not self._removes(_BEGIN) and self._removes(_END):
            return True
        self._left.clear()
        self.is_over = True
        self._work = self._abandoned = _nothing  # what is to be done leads back here
        return False

    def run(self) -> None:
        """Do the work, in the thread, unless the turn was taken back."""
        if self._removes(_BEGIN):
            self._work()
            if not self._removes(_END):
                self._abandoned()
                self._work = self._abandoned = _nothing
            self.is_over = True
            self._thread.bell.ring()

    def _removes(self, one: str) -> bool:
        try:
            self._left.remove(one)
        except ValueError:
            return False
        return True


class TurnThread:
    """Owns the thread, which is started with its first turn, and ends when this is closed or dropped."""

    def __init__(self, name: str) -> None:
        self._serving = _Serving(name)
        self._closer = Closer(self._serving.close)

    def turn(self, work: Callable[[], None], abandoned: Callable[[], None]) -> Turn:
        """Return a turn of this thread's, of which there is one at a time.

        Args:
            work: what the thread is to do in it; it raises nothing.
            abandoned: called after it, if the turn was abandoned meanwhile.
        """
        return self._serving.turn(work, abandoned)

    def settle(self) -> None:
        """Wait until the thread is in no turn, not even in one that was abandoned; Ctrl-C ends the wait."""
        self._serving.settle()

    def close(self) -> None:
        """End the thread."""
        self._closer()


class _Serving:
    """The thread; it outlives its owner until it is closed."""

    def __init__(self, name: str) -> None:
        self.turns: SimpleQueue[_Given | None] = SimpleQueue()
        self.bell = Bell()  # rung when a turn is over
        self.process = os.getpid()
        self._name = name
        self._thread: DaemonThread | None = None
        self._last: _Given = _no_turn

    def turn(self, work: Callable[[], None], abandoned: Callable[[], None]) -> Turn:
        if self._thread is None:
            turns = self.turns
            with HeldInterrupts():  # else nobody knows of the thread, and nobody ends it
                self._thread = DaemonThread(lambda: _serve(turns), self._name)
        turn = Turn(self, work, abandoned)
        self._last = weakref.ref(turn)
        return turn

    def settle(self) -> None:
        turn = self._last()
        if turn is not None:
            turn.settle()

    def close(self) -> None:
        thread = self._thread
        if thread is None or os.getpid() != self.process:  # in a fork there is none
            return
        self.turns.put(None)
        if not thread.is_current:
            thread.wait(_PATIENCE_SECONDS)


_Given: TypeAlias = Callable[[], Turn | None]  # weakly


def _no_turn() -> Turn | None:
    return None


def _nothing() -> None:
    """Do nothing."""


def _serve(turns: "SimpleQueue[_Given | None]") -> None:
    given = turns.get()
    while given is not None:
        try:
            newer = turns.get(timeout=_HEAD_START_SECONDS)  # the same one, taken back and given again; or the end
        except Empty:
            turn = given()
            if turn is not None:
                turn.run()
            del turn  # holds nothing while waiting
            newer = turns.get()
        given = newer
