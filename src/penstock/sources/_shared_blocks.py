"""Decoded blocks that the processes of one program or job share: the first that needs a block decodes it for all.

Problem: a shuffle by blocks takes each batch from many blocks, so each worker process needs every block, and `n`
processes decode it `n` times. Solution: one memory for each source. Processes get it in three ways:
  - The source is pickled, as it is for worker processes. A copy opens the memory by the process and the descriptor of
    the original. A copy that can't, such as one on another machine, decodes for itself alone.
  - The process forks, as torch's DataLoader does. The children have the memory from the first fork on.
  - Ranks of one job on one machine are separate programs. The first one makes the memory with its source, and the
    others find it by a name, which follows from the paths, sizes and times of the files (`_rendezvous.py`).

The memory begins with a table, which has the place, the size and the room of each block. Locks are those of Linux for
open files (`F_OFD_SETLK`), two for each block and one for the table. They wait without polling, and end with their
process, so a killed one leaves nothing locked:
  - To use a block, a process takes the second lock together with others, until the last array over it was dropped. It
    takes the lock before it looks for the block, so that nobody frees what it finds.
  - To decode a block, of which it has found none, a process takes the first lock alone. Another process that needs the
    block waits, and then finds it.
  - To free a block, a process takes the lock of the table, and both of the block alone, without waiting for these.

Two locks are needed: with one, a process that waits to decode would wait for the end of the other one's use.

The size of a block is written after its content, and is negative before and while it is freed. So a killed process
leaves a block whole, or to be decoded again.

A block that is written where another one was freed has its pages, if both have about the same size. New pages would
cost several times as much as the content that is written to them: the system clears them, and each process that reads
them finds each few by a fault.

Guarantees:
  - A block is decoded once, as long as it is kept.
  - While the blocks have more than `bound_bytes`, each one is in use. The least recently opened ones are freed first.
    A block counts up to a sixteenth more than it has, which is room for another one in its place.
    Ranks that share a memory have `bound_bytes` each in it. Each holds a lock of its own, so a rank that ends takes its
    bytes away.
  - Nothing is overwritten or freed under a living array.
  - The memory ends with the last process that has it, however these end.
  - A forked child locks for itself.
  - A process makes at most `_MAX_MEMORIES`; the blocks of further sources aren't shared.

An open file has one owner of locks. So within a process, `_uses` counts the uses of a block, and its lock ends with the
last one. Arrays are dropped at any moment, also while the lock is held: a drop only notes the block, and the next call
ends its use.
"""

import importlib
import mmap
import os
import struct
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np

from penstock._os import HeldInterrupts, Reference, renewed_after_fork
from penstock._pickles import Pickled, dump, load
from penstock.sources._rendezvous import job_of, listener_of, name_of, offered

fcntl: Any = importlib.import_module("fcntl") if sys.platform == "linux" else None

_NAME: Final = "penstock-blocks"
_TOKEN_BYTES: Final = 16
_ADDRESSES: Final = 4  # times the bound, in addresses: a hole for a block is found though others lie scattered
_MAX_MEMORIES: Final = 64  # in a process, of two or three descriptors each; further sources decode for each process
_TRIES: Final = 1000  # while another rank begins to listen, which takes it microseconds
_COPIED_BYTES: Final = 256  # an array up to this size is copied, as a view would take as much
_TABLE: Final = -1  # in place of a block's number, for the lock of the table
_DECODED, _USED = range(2)  # the locks of a block
_LOCK: Final = struct.Struct("@hhqqi0q")  # kind, origin, begin, length, process
_OFFSET, _SIZE, _ROOM, _OPENED = range(4)  # the columns of the table

_Address: TypeAlias = tuple[int, int, bytes, int]
"""A process, its descriptor of the memory, bytes that tell the memory from any other, and the number of ranks."""
T = TypeVar("T")
Opened = tuple[T, int]
"""A block, and the bytes that it takes."""


class SharedBlocks:
    """The decoded blocks of a source and its copies in other processes.

    Args:
        blocks: their number.
        bound_bytes: what they may have in all; with 0 none is shared.
        identity: a text that no source has whose blocks differ, so that ranks of a job can share them; "" if there is
            none.
    """

    def __init__(self, blocks: int, bound_bytes: int, identity: str = "") -> None:
        self._blocks = blocks
        self._bound_bytes = bound_bytes
        self._memory = _joined(blocks, bound_bytes, identity) if blocks and bound_bytes and identity else None
        _originals.add(Reference(self, _originals.discard))

    def share(self) -> None:
        """Make the memory, if there is none."""
        if self._memory is None and self._blocks and self._bound_bytes and sys.platform == "linux":
            self._memory = _created(self._blocks, self._bound_bytes)

    def __getstate__(self) -> dict[str, Any]:
        self.share()
        address = None if self._memory is None else self._memory.address
        return {"_blocks": self._blocks, "_bound_bytes": self._bound_bytes, "_memory": address}

    def __setstate__(self, state: dict[str, Any]) -> None:
        address = state["_memory"]
        memory = None if address is None else _opened(address, state["_blocks"], state["_bound_bytes"])
        self.__dict__.update(state, _memory=memory)

    def opened(
        self, block: int, decode: Callable[[int], Opened[T]], make_way: Callable[[int], object], held: HeldInterrupts
    ) -> Opened[T]:
        """Return a block, decoded here or by another process.

        Args:
            block: its number.
            decode: decodes it, into an object that can be pickled. One that takes no bytes isn't shared.
            make_way: drops other blocks, so that this process may keep one of some bytes.
            held: the scope that holds signals back, except in `decode` and where another process is waited for.

        Returns:
            The block, whose arrays nobody may write to, and its size.
        """
        memory = self._memory  # another thread may make it meanwhile
        return held.allowing(decode, block) if memory is None else memory.opened(block, decode, make_way, held)

    def is_being_decoded(self, block: int) -> bool:
        """Return whether another process decodes a block now."""
        memory = self._memory
        return memory is not None and memory.is_being_decoded(block)

    def take_excess_bytes(self) -> int:
        """Return by how much blocks that are in use exceeded the bound when this process last decoded one.

        It is returned once: the process that drops as much shall keep what it opens then.
        """
        memory = self._memory
        if memory is None:
            return 0
        excess, memory.excess_bytes = memory.excess_bytes, 0
        return excess


def _joined(blocks: int, bound_bytes: int, identity: str) -> "_Memory | None":
    """Return the memory that the ranks of this job have on this machine; the first one makes it.

    Returns:
        None if this process is no rank, or the only one here, or can't open the memory.
    """
    job = job_of(os.environ)
    if job is None:
        return None
    name = name_of(job, f"{blocks} {bound_bytes} {identity}")
    made: _Memory | None = None
    with suppress(OSError):
        for _ in range(_TRIES):
            process = listener_of(name)
            if process is not None:
                found = _found(process, name, blocks, bound_bytes, job.local_ranks)
                return None if found is None else found.joined_by(job.local_rank)
            made = made or _created(blocks, bound_bytes, name, job.local_ranks)
            if made is None or made.offer(name):
                return None if made is None else made.joined_by(job.local_rank)
            os.sched_yield()
    return None


def _found(process: int, name: str, blocks: int, bound_bytes: int, ranks: int) -> "_Memory | None":
    """Return the memory that another rank offers by a name.

    Raises:
        OSError: it can't be opened.
    """
    link = f"/memfd:{_NAME}-{name}"
    for listed in os.listdir(f"/proc/{process}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(f"/proc/{process}/fd/{listed}").startswith(link):
                opened = _open_again(int(listed), process)
                try:
                    if os.readlink(f"/proc/self/fd/{opened}").startswith(link):
                        return _Memory(opened, blocks, bound_bytes, ranks)
                except OSError:  # too many open files
                    os.close(opened)
                    raise
                os.close(opened)
    return None


def _created(blocks: int, bound_bytes: int, name: str = "", ranks: int = 1) -> "_Memory | None":
    if len(_memories) >= _MAX_MEMORIES:
        return None
    try:
        descriptor = os.memfd_create(f"{_NAME}-{name}", os.MFD_CLOEXEC)
    except OSError:  # too many open files
        return None
    try:
        os.ftruncate(descriptor, _table_bytes(blocks) + _whole_pages(_ADDRESSES * ranks * bound_bytes))
        os.pwrite(descriptor, os.urandom(_TOKEN_BYTES), 0)
        memory = _Memory(descriptor, blocks, bound_bytes, ranks)
    except OSError:  # the limit of files' sizes, or no /proc
        os.close(descriptor)
        return None
    return memory if memory.works() else None


def _opened(address: _Address, blocks: int, bound_bytes: int) -> "_Memory | None":
    process, descriptor, token, ranks = address
    try:
        if not os.readlink(f"/proc/{process}/fd/{descriptor}").startswith(f"/memfd:{_NAME}"):
            return None  # of another process with that number, such as one on another machine
        opened = _open_again(descriptor, process)
    except OSError:
        return None
    try:
        if os.pread(opened, _TOKEN_BYTES, 0) == token:
            return _Memory(opened, blocks, bound_bytes, ranks)
    except OSError:  # too many open files
        pass
    os.close(opened)
    return None


class _Memory:
    """The memory as one process has it open."""

    def __init__(self, descriptor: int, blocks: int, bound_bytes: int, ranks: int) -> None:
        self._bound_bytes = bound_bytes  # for each rank
        self._blocks = blocks
        self._ranks = ranks
        self._rank: int | None = None
        mapped = _open_again(descriptor)  # the map keeps a copy of it, which a forked child would keep locked
        try:
            self._map = mmap.mmap(mapped, os.fstat(mapped).st_size)
        finally:
            os.close(mapped)
        self._token = self._map[:_TOKEN_BYTES]
        self._table = np.frombuffer(self._map, np.int64, 4 * blocks, _TOKEN_BYTES).reshape(blocks, 4)
        self._begin_bytes = _table_bytes(blocks)
        self.excess_bytes = 0
        self._ending_offer: Callable[[], object] | None = None
        self._begin(descriptor)
        _memories.add(self)
        renewed_after_fork(self)

    def _begin(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._closing = weakref.finalize(self, os.close, descriptor)
        self._lock = threading.Lock()  # guards all below, and the table among the threads of this process
        self._uses: Counter[int] = Counter()
        self._contents: dict[Reference[np.ndarray[Any, Any]], int] = {}  # the block of each
        self._dropped: deque[Reference[np.ndarray[Any, Any]]] = deque()

    def renew_after_fork(self) -> None:
        """Open the memory again, since the parent's open file has the parent's locks."""
        opened = _open_again(self._descriptor)
        self._closing()
        self._begin(opened)
        if self._ending_offer is not None:  # the child may outlive the parent, whose descriptors the name stands for
            self._ending_offer()

    def joined_by(self, rank: int) -> "_Memory":
        """Add the bytes of a rank, until its process ends or drops this object.

        Args:
            rank: this process's, from 0 below the number of ranks.

        Returns:
            This object.
        """
        self._rank = rank
        self._set_lock(rank, self._blocks, fcntl.F_RDLCK, wait=False)
        return self

    def _joined_ranks(self) -> int:
        return max(1, sum(rank == self._rank or self._is_locked(rank, self._blocks) for rank in range(self._ranks)))

    def offer(self, name: str) -> bool:
        """Offer the memory to the other ranks, until this object or the process ends.

        Returns:
            Whether it is offered; it isn't if another one is about to be.
        """
        descriptor = offered(name)
        if descriptor is None:
            return False
        self._ending_offer = weakref.finalize(self, os.close, descriptor)
        return True

    def works(self) -> bool:
        """Return whether the system has what this needs; a sandbox that stands in for Linux may lack it."""
        try:
            self._set_lock(_DECODED, _TABLE, fcntl.F_WRLCK)
            self._set_lock(_DECODED, _TABLE, fcntl.F_UNLCK)
            self._map.madvise(mmap.MADV_REMOVE, self._begin_bytes, mmap.PAGESIZE)
        except OSError:
            return False
        return True

    @property
    def address(self) -> _Address:
        """The address by which other processes open the memory."""
        return os.getpid(), self._descriptor, self._token, self._ranks

    def opened(
        self, block: int, decode: Callable[[int], Opened[T]], make_way: Callable[[int], object], held: HeldInterrupts
    ) -> Opened[T]:
        """Return a block that is kept, or decode it."""
        with self._lock:
            self._end_dropped()
            self._uses[block] += 1
        decoded: Opened[T] | None = None
        is_kept = is_awaited = False
        try:
            # With this lock nobody frees the block, so that one that is whole stays so.
            is_kept = self._set_lock(_USED, block, fcntl.F_RDLCK, wait=False) and self._is_whole(block)
            if not is_kept:
                is_awaited = True
                self._wait_for(block, held)
                decoded = self._decoded(block, decode, make_way, held)
                is_kept = self._is_whole(block)
                if is_kept:
                    self._set_lock(_USED, block, fcntl.F_RDLCK)
        finally:
            if is_awaited or not is_kept:
                with self._lock:
                    self._set_lock(_DECODED, block, fcntl.F_UNLCK)
                    if not is_kept:
                        self._end_use(block)
        return decoded if decoded is not None and not is_kept else self._loaded(block)

    def _decoded(
        self, block: int, decode: Callable[[int], Opened[T]], make_way: Callable[[int], object], held: HeldInterrupts
    ) -> Opened[T] | None:
        """Decode and write a block that this process has locked.

        Returns:
            The block; None if another process has written it meanwhile.
        """
        if self._is_whole(block):
            return None
        decoded = held.allowing(decode, block)
        if decoded[1]:
            content = dump(decoded[0])
            make_way(_room(content.nbytes))
            self._write(block, content, held)
        return decoded

    def _is_whole(self, block: int) -> bool:
        return self._table.item(block, _SIZE) > 0

    def is_being_decoded(self, block: int) -> bool:
        """Return whether another process decodes a block, which isn't there yet."""
        return not self._is_whole(block) and self._is_locked(_DECODED, block)

    def _loaded(self, block: int) -> Opened[Any]:
        self._table[block, _OPENED] = time.monotonic_ns()
        size, offset = self._table.item(block, _SIZE), self._table.item(block, _OFFSET)
        content = np.frombuffer(self._map, np.uint8, size, offset)
        content.flags.writeable = False
        self._contents[Reference(content, self._dropped.append)] = block
        return load(content.data, copied_bytes=_COPIED_BYTES), _room(size)

    def _end_dropped(self) -> None:
        while self._dropped:
            self._end_use(self._contents.pop(self._dropped.popleft()))

    def _end_use(self, block: int) -> None:
        self._uses[block] -= 1
        if not self._uses[block]:
            del self._uses[block]
            self._set_lock(_USED, block, fcntl.F_UNLCK)

    def _write(self, block: int, content: Pickled, held: HeldInterrupts) -> None:
        """Write a block that this process has locked, if there is room."""
        size = content.nbytes
        with self._lock, self._table_locked(held):
            self._end_dropped()
            if self._table[block, _SIZE]:  # its process was killed
                self._free(block)
            if not self._make_room(block, size):
                offset = self._hole(_room(size))
                if offset is None:
                    return
                self._begin_at(block, offset, size)
            offset = self._table.item(block, _OFFSET)
        try:  # not through the map, where each page that this process hasn't written yet costs it a fault
            for begin, piece in content.pieces:
                rest, place = memoryview(piece).cast("B"), offset + begin
                while rest:
                    written = os.pwrite(self._descriptor, rest, place)
                    rest, place = rest[written:], place + written
        except OSError:
            with self._lock, self._table_locked(held):
                self._free(block)
            return
        self._table[block, _SIZE] = size

    def _make_room(self, block: int, size: int) -> bool:
        """Free blocks that no process uses, until `block`, which will have `size` bytes, is within the bound.

        Returns:
            Whether the block has the place of one of them.
        """
        room, rooms = _room(size), np.where(self._table[:, _SIZE], self._table[:, _ROOM], 0)
        excess = int(rooms.sum()) + room - self._bound_bytes * self._joined_ranks()
        kept = np.flatnonzero(rooms) if excess > 0 else np.empty(0, np.int64)
        has_place = False
        for other in kept[np.argsort(self._table[kept, _OPENED])].tolist():
            if excess <= 0:
                break
            if other in self._uses or self._is_locked(_USED, other):
                continue
            with self._unused(other) as is_unused:
                if not is_unused:
                    continue
                excess -= rooms.item(other)
                # Where the process of a block was killed, another one may have the same place.
                if not has_place and rooms.item(other) == room and self._table[other, _SIZE] > 0:
                    self._replace(other, block, size)
                    has_place = True
                else:
                    self._free(other)
        self.excess_bytes = max(0, excess)
        return has_place

    def _replace(self, other: int, block: int, size: int) -> None:
        """Give a block the place of another one, whose pages it keeps.

        If the process is killed here, both may have the place. Then both are to be decoded, and no third one gets it
        before it is free.
        """
        self._table[other, _SIZE] *= -1
        self._begin_at(block, self._table.item(other, _OFFSET), size)
        self._table[other, _SIZE] = 0

    def _begin_at(self, block: int, offset: int, size: int) -> None:
        """Give a block a place, which its content will be written to."""
        self._table[block, _OPENED] = time.monotonic_ns()
        self._table[block, _OFFSET] = offset
        self._table[block, _ROOM] = _room(size)
        self._table[block, _SIZE] = -size  # the last one: a killed process leaves no size with another's offset

    @contextmanager
    def _unused(self, block: int) -> Generator[bool]:
        """Lock a block, unless another process decodes or uses it.

        Yields:
            Whether it is locked.
        """
        if not self._set_lock(_DECODED, block, fcntl.F_WRLCK, wait=False):
            yield False
            return
        is_unused = False
        try:
            is_unused = self._set_lock(_USED, block, fcntl.F_WRLCK, wait=False)
            yield is_unused
        finally:
            if is_unused:
                self._set_lock(_USED, block, fcntl.F_UNLCK)
            self._set_lock(_DECODED, block, fcntl.F_UNLCK)

    def _hole(self, size: int) -> int | None:
        """Return the offset of the first hole of `size` bytes."""
        kept = np.flatnonzero(self._table[:, _SIZE])
        begins = self._table[kept, _OFFSET]
        starts = np.sort(np.append(begins + self._table[kept, _ROOM], self._begin_bytes))
        holes = np.flatnonzero(np.sort(np.append(begins, len(self._map))) - starts >= size)
        return starts.item(holes[0]) if len(holes) else None

    def _free(self, block: int) -> None:
        self._table[block, _SIZE] = -abs(self._table.item(block, _SIZE))
        self._map.madvise(mmap.MADV_REMOVE, self._table.item(block, _OFFSET), self._table.item(block, _ROOM))
        self._table[block, _SIZE] = 0

    @contextmanager
    def _table_locked(self, held: HeldInterrupts) -> Generator[None]:
        try:
            self._wait_for(_TABLE, held)
            yield
        finally:
            self._set_lock(_DECODED, _TABLE, fcntl.F_UNLCK)

    def _wait_for(self, block: int, held: HeldInterrupts) -> None:
        """Take the first lock of a block alone; it may be taken, too, where a handler's exception ends the wait."""
        held.allowing(self._set_lock, _DECODED, block, fcntl.F_WRLCK)

    def _set_lock(self, which: int, block: int, kind: int, *, wait: bool = True) -> bool:
        """Set or end one of the two locks of a block. The locks of ranks follow those of the last block.

        Returns:
            Whether it is set; it isn't if it would have to wait, and may not.
        """
        try:
            fcntl.fcntl(
                self._descriptor, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, _lock_of(which, block, kind)
            )
        except BlockingIOError:
            return False
        return True

    def _is_locked(self, which: int, block: int) -> bool:
        """Return whether another open file has a lock."""
        found = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, _lock_of(which, block, fcntl.F_WRLCK))
        return bool(_LOCK.unpack(found)[0] != fcntl.F_UNLCK)


def _lock_of(which: int, block: int, kind: int) -> bytes:
    return _LOCK.pack(kind, os.SEEK_SET, 2 * (block + 1) + which, 1, 0)


def _open_again(descriptor: int, process: int | str = "self") -> int:
    """Return a descriptor of another open file with the same memory."""
    return os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)


_memories: Final[weakref.WeakSet[_Memory]] = weakref.WeakSet()
"""The memories of this process."""
_originals: Final[set[Reference[SharedBlocks]]] = set()
"""The blocks of sources that this process has made, not those of copies."""


def _share_all() -> None:
    for reference in list(_originals):  # one call of C code: another thread may make a source meanwhile
        blocks = reference()
        if blocks is not None:
            blocks.share()


if sys.platform == "linux":
    os.register_at_fork(before=_share_all)


def _table_bytes(blocks: int) -> int:
    return _whole_pages(_TOKEN_BYTES + 4 * 8 * blocks)


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _room(size: int) -> int:
    """Return the bytes that a block of some size gets: up to a sixteenth more, so that one fits in another's place."""
    step = max(mmap.PAGESIZE, 1 << max(size.bit_length() - 5, 0))
    return -(-size // step) * step
