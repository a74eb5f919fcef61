"""Memory that an isolated loader's large batches are computed in and sent from, without a copy.

The helper process computes a batch in a region of the pipe's arena, and sends the region's place; the trainer reads the
batch there. Both processes then refer to the region, so the helper must not reuse it while the trainer has a view. The
arena counts holds, and a thread waits for returned ones. The harder part is to know when *no* return will come: a
trainer that keeps every batch would wait for a batch while the helper waits for memory. So the trainer says when it
waits for the next batch while it still holds memory; until it says so, it may yet give memory back, as a loop drops a
batch a moment after it was given the next. Only then is more memory allocated.

Several small batches of a job are sent as one. A batch that is smaller than a megabyte even so is copied into the
message: that takes less time than to notice the return of its memory.

Guarantees:
  - A sent batch stays untouched for as long as the trainer refers to it: until then the helper keeps the batch, and
    with it the lease of its job.
  - A return is noticed at once, whatever the other threads of this process wait for.
  - More memory is leased only when the trainer waits for the next batch, and has said so.
"""

import select
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final

from penstock._graph import Element
from penstock._memory import Lease, Region
from penstock._os import Bell, DaemonThread
from penstock._runtime._streams import EndOfEpoch
from penstock.errors import ClosedError
from penstock.transport import Sender

MIN_BYTES: Final = 1_000_000
"""Least size of an array that is sent without a copy."""


class SharedOutput:
    """Owns the leases of the arena that jobs are computed in, and keeps the batches that the trainer refers to.

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
        """Called, in any thread, when memory was returned."""
        self.is_over: Callable[[], bool] = lambda: False
        """Whether the run was given up; `wake` is called when that changes."""

    def allocate(self, size_bytes: int) -> Region | None:
        """Return memory for a job, or None for a small one."""
        if size_bytes < MIN_BYTES:
            return None
        region, self._leases[id(region)] = self._sender.arena.lease_region(size_bytes)
        return region

    def discard(self, region: Region) -> None:
        """Return unreferenced memory, if it is of the arena; the system has it before more is allocated."""
        self._leases.pop(id(region), None)

    def keep(self, slots: Collection[int], batches: Collection[Element]) -> None:
        """Keep batches that were sent as long as the trainer holds the slots that they are in.

        Of several in one slot the last is enough: they are of one job, and each keeps the job's lease.
        """
        if not slots:
            return
        with self._changed:
            self._kept.update(dict.fromkeys(slots, batches))
            if self._watch is None:
                self._watch = DaemonThread(self._notice_returns, "penstock-returns")
        self._release_returned()  # memory that was returned before its batch was kept

    def await_return(self) -> bool:
        """Wait for returned memory; return False if the trainer holds all, and waits for more.

        Raises:
            EndOfEpoch: the run was given up.
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
        """Note that the trainer waits for more than so many messages, and keeps memory of some of them."""
        self._release_returned()  # memory that was returned before the trainer said so, perhaps unnoticed
        with self._changed:
            self._starved_at = messages
            self._changed.notify_all()

    def wake(self) -> None:
        """Make a thread that waits for memory check whether the run was given up."""
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
                self._release_returned()
                either.poll()

    def _release_returned(self) -> None:
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
