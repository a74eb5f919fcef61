"""Memory that large batches are computed in and sent from: who receives one reads it where it was computed.

Guarantees:
  - What was sent lies untouched for as long as the receiver refers to it: until then the batch is kept here, and with
    it the memory that its job was lent.
  - What comes back is noticed at once, whatever the other threads of this process wait for.
  - More is lent only when the receiver waits for the next batch, and has said so. Before that it may still give back
    what it holds: a loop drops a batch a moment after it was given the next.

Several small batches of a job are sent as one. What is small all the same is copied when it is sent.
"""

import select
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final

from penstock._graph._nodes import Element
from penstock._memory import Lease, Region
from penstock._os import Bell, DaemonThread
from penstock._runtime._streams import EndOfEpoch
from penstock.errors import ClosedError
from penstock.transport._pipe._sender import Sender

MIN_BYTES: Final = 1_000_000
"""Of an array that is sent where it lies: copying it takes longer than to notice its return."""


class SharedOutput:
    """Owns the leases of the arena that jobs are computed in, and keeps the batches that the receiver refers to.

    Args:
        sender: sends the batches; the memory is of its arena.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._leases: dict[int, Lease] = {}  # by the identity of a region, which the arena keeps
        self._changed = threading.Condition()  # protects what follows
        self._kept: dict[int, Collection[Element]] = {}  # by slot
        self._starved_at = -1
        self._has_returned = self._has_begun = False
        self._watch: DaemonThread | None = None  # there since the first batch was kept
        self._bell = Bell()
        self._closed = False
        self.returned: Callable[[], None] = lambda: None
        """Called, by any thread, when memory has come back."""
        self.is_over: Callable[[], bool] = lambda: False
        """Whether nobody wants what is computed; `wake` when that changes."""

    def allocate(self, size_bytes: int) -> Region | None:
        """Return memory for a job, or None for a small one."""
        if size_bytes < MIN_BYTES:
            return None
        region, self._leases[id(region)] = self._sender.arena.lease_region(size_bytes)
        return region

    def discard(self, region: Region) -> None:
        """Give back memory that nobody refers to, if it is of this; the system has it before more is allocated."""
        self._leases.pop(id(region), None)

    def keep(self, slots: Collection[int], batches: Collection[Element]) -> None:
        """Keep batches that were sent as long as the receiver holds the slots that they lie in.

        Of several in one slot the last is enough: they are a job's, and each keeps what the job was lent.
        """
        if not slots:
            return
        with self._changed:
            self._kept.update(dict.fromkeys(slots, batches))
            if self._watch is None:
                self._watch = DaemonThread(self._notice_returns, "penstock-returns")
        self._let_go()  # of what came back before it was kept

    def await_return(self) -> bool:
        """Wait until memory may have come back; False if it won't: the receiver keeps what it has and waits for more.

        Raises:
            EndOfEpoch: nobody wants more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._has_returned or self._is_starved() or self.is_over())
            if self.is_over():
                raise EndOfEpoch
            has_returned, self._has_returned = self._has_returned, False
            return has_returned

    def _is_starved(self) -> bool:
        return not self._kept or self._starved_at == self._sender.counters.messages

    def starve(self, messages: int) -> None:
        """Be told that the receiver waits for more than so many messages, and keeps memory of some of them."""
        self._let_go()  # of what came back before it said so, which may not have been noticed
        with self._changed:
            self._starved_at = messages
            self._changed.notify_all()

    def wake(self) -> None:
        """Have who waits for memory look whether that is over."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Notice no more returns."""
        self._closed = True
        self._bell.ring()

    def _notice_returns(self) -> None:
        arena = self._sender.arena
        arena.listen(self._bell)
        with suppress(ClosedError), select.epoll() as either:
            either.register(arena.fileno(), select.EPOLLIN)
            either.register(self._bell.fileno(), select.EPOLLIN)
            while not self._closed:
                self._bell.clear()
                arena.clear_bell(self._bell)
                self._let_go()
                either.poll()

    def _let_go(self) -> None:
        with self._changed:
            over = [self._kept.pop(slot) for slot in list(self._kept) if not self._sender.holds(slot)]
            if not over:
                return
            over.clear()
            self._has_returned = True
            self._changed.notify_all()
            begins, self._has_begun = not self._has_begun, True
        self.returned()
        if begins:
            self._sender.arena.discard_idle()  # of the first batches, which were copied since their size wasn't known
