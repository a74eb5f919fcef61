"""The slot ring: workers claim blocks of jobs, earliest job first; the consumer waits for jobs that are complete.

A slot holds one job at a time, which is divided into blocks of rows. The optional merge is one more block, after all
rows. The ring knows the number of a job and of its blocks, and not what they are.

Guarantees:
  - A block has at most one writer at a time. It is done once per arming, by a worker that finished writing it.
  - `ready` is true only when every block was written; its caller then sees all that the workers wrote. The merge is
    claimed only when every row block is done.
  - A worker may end at any instruction. After `release_worker` other workers claim its blocks, and no wake-up is lost
    that the dead worker had received. Release only a worker that has certainly ended: it must never write again.
  - After `cancel` no further block of the slot is claimed. The slot is `drained` when the claimed blocks are finished
    or released.
  - The ring holds no lock while user code runs, and polls nothing. `stop` ends every `claim_wait`, `rest` and
    `wait_ready` at once.

A ring is in private memory, for the threads of one process, or in shared memory, for any number of processes. All
guarantees hold between processes, too, if a worker is killed at any instruction. A block that it had half written is
written again by the next worker that claims it.

Callers: one *owner* at a time, which is the thread that owns the scheduler, calls `arm`, `cancel`, `retire` and
`wait_ready`. A worker calls `claim`, `claim_wait` and `finish` with its own number, and may `rest` between them. Any
thread of any process may call `release_worker`, `stop`, `ready` and `drained`. The bell has one waiter, the owner.

`native/core/ring_protocol.hpp` holds the protocol, with the reasons; `native/tests/test_ring_model.cpp` explores all
its interleavings.
"""

from typing import Final, Self

from penstock._native import Claim as Claim
from penstock._native import Ring as _Ring
from penstock._os import Bell
from penstock.errors import MessageError, UsageError

MAX_SLOTS: Final = 1024
MAX_BLOCKS: Final = 1 << 20


class SlotRing:
    """Jobs that are being computed, shared by one owner and any number of workers.

    The constructor makes a ring for the threads of one process; `SlotRing.shared` makes one for several processes.

    Args:
        max_blocks: the largest number of row blocks of a slot, at most 1,048,576.
        capacity: the number of slots, at most 1,024; a slot that is never used costs neither memory nor time.
        bell: rung when a slot becomes ready or drained, and by `stop` and `release_worker`; None makes one.

    Raises:
        UsageError: a number is outside its range.

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
        """Make a ring in shared memory; other processes attach to it by its descriptors. Linux only.

        The memory has no name. It is freed with the last process that maps it or has its descriptor open. A forked
        child may use the ring that it inherited, without attaching.

        Args:
            max_blocks: the largest number of row blocks of a slot, at most 1,048,576.
            capacity: the number of slots, at most 1,024; a slot that is never used costs neither memory nor time.

        Returns:
            The ring. Its bell is new; every attached process rings it.

        Raises:
            UsageError: a number is outside its range.
            OSError: the system has no such memory, or no memory or descriptor is left.

        Example:
            >>> ring = SlotRing.shared(max_blocks=2)
            >>> ring.arm(0, number=7, blocks=1)
            >>> worker = SlotRing.attach(*ring.descriptors())  # usually in another process
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
            memory_descriptor: the first of its `descriptors()`, inherited or received over a Unix socket; it is copied,
                so the caller may close it.
            bell_descriptor: the second of its `descriptors()`; it is copied, too.

        Returns:
            The same ring, for each of the roles.

        Raises:
            MessageError: the memory isn't sealed, holds no ring or one of another version of Penstock, or is too small
                for the ring that it describes; or the second descriptor belongs to no bell.
        """
        try:
            return cls._over(_Ring.attach(memory_descriptor, bell_descriptor))
        except (ValueError, OSError) as error:
            raise MessageError(
                f"attach needs the two open descriptors that the ring's descriptors() returned; "
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
        """Return the descriptors of a shared ring's memory and of its bell, for other processes.

        The ring owns and closes them; a process that receives them has copies. Do not read from the bell's descriptor
        or write to it.

        Raises:
            UsageError: the ring is in private memory.
        """
        if self._native.descriptor < 0:
            raise UsageError(
                "only a shared ring has descriptors; this one is in private memory: make it with SlotRing.shared"
            )
        return self._native.descriptor, self.bell.fileno()

    def arm(self, slot: int, number: int, blocks: int, *, merge: bool = False) -> None:
        """Offer a job to the workers. Owner only.

        Args:
            slot: an idle slot; a slot that was never used is idle.
            number: the job's number, not negative; workers claim blocks of the lowest first.
            blocks: the number of its row blocks; 0 if the merge does all the work.
            merge: whether one more block, the merge, follows when all rows are done.

        Raises:
            UsageError: a number is outside its range.
            RuntimeError: the slot is not idle.
        """
        least = 0 if merge else 1
        if not (0 <= slot < self.capacity and number >= 0 and least <= blocks <= self.max_blocks):
            raise UsageError(
                f"slot must be in [0, {self.capacity}), number not negative, blocks in [{least}, {self.max_blocks}]; "
                f"got slot={slot!r}, number={number!r}, blocks={blocks!r}"
            )
        self._native.arm(slot, number, blocks, merge)

    def claim(self, worker: int) -> Claim | None:
        """Claim a free block of the earliest job that has one.

        Args:
            worker: the worker's number, in [0, 4194304); no other living worker has it.

        Returns:
            The claim; None if no block is free, or the ring is stopped.
        """
        return self._native.claim(worker)

    def claim_wait(self, worker: int) -> Claim | None:
        """Claim as `claim` does, but sleep, without the GIL, while no block is free.

        It is for worker threads and processes: a signal ends it only if it ends the process. `stop` ends it, called in
        any process.

        Returns:
            The claim; None once the ring is stopped.
        """
        return self._native.claim_wait(worker)

    def rest(self, seconds: float) -> None:
        """Sleep for a while, without the GIL, and leave the free blocks to other workers.

        A resting worker takes no wake-up from a worker in `claim_wait`. `stop` ends the rest, called in any process; a
        signal may.

        Args:
            seconds: the longest rest; it returns at once if that is not positive.
        """
        self._native.rest(seconds)

    def finish(self, slot: int, block: int, worker: int) -> bool:
        """Mark a claimed block as written.

        Returns:
            Whether this worker saw the slot complete; more than one worker may.

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
        """Cancel an armed slot: no more of its blocks are claimed. Owner only.

        Returns:
            Whether it is drained already; if not, the bell rings when it is.

        Raises:
            RuntimeError: the slot is idle.
        """
        return self._native.cancel(slot)

    def release_worker(self, worker: int) -> int:
        """Free the blocks of a worker that has certainly ended, and wake all sleeping workers.

        Returns:
            The number of blocks that it had claimed.
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

        The scheduler waits in another way: one owner waits there for several slots of several clients.

        Returns:
            True if it is ready, False if the ring was stopped first.
        """
        while not (self.ready(slot) or self.stopped):
            self.bell.clear()
            if self.ready(slot) or self.stopped:
                break
            self.bell.wait()
        return self.ready(slot)


def _check_size(max_blocks: int, capacity: int) -> None:
    if not 1 <= max_blocks <= MAX_BLOCKS:
        raise UsageError(f"max_blocks must be in [1, {MAX_BLOCKS}]; got {max_blocks!r}")
    if not 1 <= capacity <= MAX_SLOTS:
        raise UsageError(f"capacity must be in [1, {MAX_SLOTS}] slots; got {capacity!r}")
