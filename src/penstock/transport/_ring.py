"""The slot ring: workers claim blocks of batches, earliest batch first, and the consumer takes batches that are ready.

A slot holds one batch at a time, cut into blocks of rows; the optional merge is one more block, after all rows.

Guarantees:
  - A block has at most one writer at a time, and is done once per arming, by a worker that finished writing it.
  - `ready` is true only when every block was written; what the workers wrote is then visible to who asked. The merge is
    claimed only when every row block is done.
  - A worker may end anywhere. After `release_worker` its blocks are claimed by others, and nobody sleeps on through a
    wake-up that ended with it. Release only a worker that is certainly gone: it must never write again.
  - After `cancel` no further block of the slot is claimed; it is `drained` when the claimed ones are finished or
    released.
  - No lock is held while user code runs; nothing polls. `stop` ends every `claim_wait`, `rest` and
    `wait_ready` at once.

A ring lies in private memory, for the threads of one process, or in shared memory, for any number of processes. All of
the above holds between processes too, where a worker is killed at any instruction. What it was writing is half written,
and is written again by who claims the block next.

Who may call: one *owner* at a time calls `arm`, `cancel`, `retire`, `wait_ready` and `wait_drained`; a worker calls
`claim`, `claim_wait` and `finish` with its own number, and may `rest` between them; `release_worker`, `stop`, `ready`
and `drained` are for any thread of any process. The bell has one waiter, the owner.

The protocol is in native/core/ring_protocol.hpp; native/tests/test_ring_model.cpp explores all its interleavings.
"""

from collections.abc import Callable
from typing import Final, Self

from penstock._native import Claim as Claim
from penstock._native import Ring as _Ring
from penstock._os import Bell
from penstock.errors import MessageError, UsageError

MAX_SLOTS: Final = 1024
MAX_BLOCKS: Final = 1 << 20


class SlotRing:
    """Batches in the making, shared by one owner and any number of workers.

    This makes a ring for the threads of one process; `SlotRing.shared` makes one for several processes.

    Args:
        max_blocks: row blocks that a slot can have, at most 1,048,576.
        capacity: slots that can ever be in use, at most 1,024; one that is never used costs neither memory nor time.
        bell: rung when a slot becomes ready or drained, and by `stop` and `release_worker`; None makes one.

    Raises:
        UsageError: a number is out of its range.

    Example:
        >>> ring = SlotRing(max_blocks=2)
        >>> ring.arm(0, number=7, blocks=2)
        >>> ring.claim(worker=1)
        Claim(slot=0, block=0, generation=1, number=7, merge=False)
        >>> ring.claim(worker=2)
        Claim(slot=0, block=1, generation=1, number=7, merge=False)
        >>> ring.finish(0, 1, worker=2), ring.ready(0)
        (False, False)
        >>> ring.finish(0, 0, worker=1), ring.ready(0)
        (True, True)
        >>> ring.retire(0)
    """

    __slots__ = ("_native", "bell", "capacity", "max_blocks")

    def __init__(self, max_blocks: int, *, capacity: int = 256, bell: Bell | None = None) -> None:
        _check_size(max_blocks, capacity)
        bell = Bell() if bell is None else bell
        self._adopt(_Ring(capacity, max_blocks, bell.native), bell)

    @classmethod
    def shared(cls, max_blocks: int, *, capacity: int = 256) -> Self:
        """Make a ring in shared memory, which other processes attach to by its descriptors. Linux only.

        The memory has no name, and is gone with the last process that has it mapped or its descriptor open. A child
        that was forked may use the ring it inherited, without attaching.

        Args:
            max_blocks: row blocks that a slot can have, at most 1,048,576.
            capacity: slots that can ever be in use, at most 1,024; one that is never used costs neither memory nor
                time.

        Returns:
            The ring. Its bell is a new one, which every process that attaches rings.

        Raises:
            UsageError: a number is out of its range.
            OSError: the system has no such memory, or no more of it or of descriptors.

        Example:
            >>> ring = SlotRing.shared(max_blocks=2)
            >>> ring.arm(0, number=7, blocks=1)
            >>> worker = SlotRing.attach(*ring.descriptors())  # in another process, as a rule
            >>> claim = worker.claim_wait(worker=1)
            >>> worker.finish(claim.slot, claim.block, worker=1)
            True
            >>> ring.wait_ready(0)
            True
        """
        _check_size(max_blocks, capacity)
        return cls._over(_Ring.create_shared(capacity, max_blocks))

    @classmethod
    def attach(cls, memory_descriptor: int, bell_descriptor: int) -> Self:
        """Use the ring of another process, with its capacity and max_blocks.

        Args:
            memory_descriptor: the first of its `descriptors()`, received over a Unix socket or inherited; it is copied,
                and can be closed.
            bell_descriptor: the second of them, the same.

        Returns:
            The same ring, for any of the roles.

        Raises:
            MessageError: the memory isn't sealed, holds no ring or one of another version of Penstock, or is too small
                for the ring it describes; or the other descriptor is no bell's.
        """
        try:
            return cls._over(_Ring.attach(memory_descriptor, bell_descriptor))
        except (ValueError, OSError) as error:
            raise MessageError(
                f"a ring must be attached to by the two open descriptors that its descriptors() gave; "
                f"got memory {memory_descriptor!r}, bell {bell_descriptor!r}: {error}"
            ) from error

    @classmethod
    def _over(cls, native: _Ring) -> Self:
        ring = cls.__new__(cls)
        cls._adopt(ring, native, Bell(native.bell()))
        return ring

    def _adopt(self, native: _Ring, bell: Bell) -> None:
        self.bell = bell
        self.capacity = native.capacity
        self.max_blocks = native.blocks
        self._native = native

    def descriptors(self) -> tuple[int, int]:
        """Return the descriptors of a shared ring's memory and of its bell, to be sent to other processes.

        They stay the ring's, and are closed with it: whoever receives them gets copies. The bell's is not to be read
        or written.

        Raises:
            UsageError: the ring lies in private memory.
        """
        if self._native.descriptor < 0:
            raise UsageError(
                "only a shared ring has descriptors; this one lies in private memory: make it with SlotRing.shared"
            )
        return self._native.descriptor, self.bell.fileno()

    def arm(self, slot: int, number: int, blocks: int, *, merge: bool = False) -> None:
        """Hand a batch to the workers. Owner only.

        Args:
            slot: an idle slot; a slot that was never used is idle.
            number: the batch's place in delivery order, not negative; workers take the lowest first.
            blocks: how many row blocks it has.
            merge: whether one more block, the merge, follows when all rows are done.

        Raises:
            UsageError: a number is out of its range.
            RuntimeError: the slot is not idle.
        """
        if not (0 <= slot < self.capacity and number >= 0 and 1 <= blocks <= self.max_blocks):
            raise UsageError(
                f"slot must be in [0, {self.capacity}), number not negative, blocks in [1, {self.max_blocks}]; "
                f"got slot={slot!r}, number={number!r}, blocks={blocks!r}"
            )
        self._native.arm(slot, number, blocks, merge)

    def claim(self, worker: int) -> Claim | None:
        """Claim a free block of the earliest batch that has one.

        Args:
            worker: who claims, in [0, 4194304); no other living worker has this number.

        Returns:
            The claim; None if no block is free, or the ring is stopped.
        """
        return self._native.claim(worker)

    def claim_wait(self, worker: int) -> Claim | None:
        """Claim as `claim` does, but sleep, without the interpreter's lock, while no block is free.

        For worker threads and processes: a signal doesn't end it, unless it ends the process. `stop` does, called in
        whatever process.

        Returns:
            The claim; None once the ring is stopped.
        """
        return self._native.claim_wait(worker)

    def rest(self, seconds: float) -> None:
        """Leave what can be claimed to other workers for a while, without the interpreter's lock.

        It takes no wake-up from who waits in `claim_wait`. `stop` ends it, called in whatever process; a signal may.

        Args:
            seconds: how long at most; at once if not positive.
        """
        self._native.rest(seconds)

    def finish(self, slot: int, block: int, worker: int) -> bool:
        """Say that a claimed block is written.

        Returns:
            Whether that was seen to complete the slot. More than one worker may be told so.

        Raises:
            RuntimeError: the worker doesn't hold the block.
        """
        return self._native.finish(slot, block, worker)

    def ready(self, slot: int) -> bool:
        """Return whether every block of the armed slot is written; False for a cancelled slot."""
        return self._native.ready(slot)

    def drained(self, slot: int) -> bool:
        """Return whether the cancelled slot has no writer left."""
        return self._native.drained(slot)

    def retire(self, slot: int) -> None:
        """Make a ready or drained slot idle. Owner only.

        Raises:
            RuntimeError: the slot is neither.
        """
        self._native.retire(slot)

    def cancel(self, slot: int) -> bool:
        """Give up an armed slot: no more of its blocks are claimed. Owner only.

        Returns:
            Whether it is drained already; else the bell is rung when it is.

        Raises:
            RuntimeError: the slot is idle.
        """
        return self._native.cancel(slot)

    def release_worker(self, worker: int) -> int:
        """Give the blocks of a worker that is certainly gone to others, and wake everyone.

        Returns:
            How many blocks it held.
        """
        return self._native.release_worker(worker)

    def stop(self) -> None:
        """End every `claim_wait`, `rest` and `wait_ready`, now and from now on.

        Claimed blocks can still be finished.
        """
        self._native.stop()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._native.stopped()

    def wait_ready(self, slot: int) -> bool:
        """Wait until the slot is ready; a signal ends it as it ends `Bell.wait`. Owner only.

        Returns:
            True when it is ready, False if the ring was stopped before.
        """
        self._wait(lambda: self.ready(slot) or self.stopped)
        return self.ready(slot)

    def wait_drained(self, slot: int) -> None:
        """Wait until the cancelled slot is drained, stopped or not. Owner only."""
        self._wait(lambda: self.drained(slot))

    def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.bell.clear()
            if condition():
                return
            self.bell.wait()


def _check_size(max_blocks: int, capacity: int) -> None:
    if not 1 <= max_blocks <= MAX_BLOCKS:
        raise UsageError(f"max_blocks must be in [1, {MAX_BLOCKS}]; got {max_blocks!r}")
    if not 1 <= capacity <= MAX_SLOTS:
        raise UsageError(f"capacity must be in [1, {MAX_SLOTS}] slots; got {capacity!r}")
