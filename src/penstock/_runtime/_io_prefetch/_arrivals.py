"""Records that were read ahead, until the workers that need them come for them.

Guarantees:
  - At most `limit` records are on their way or wait for a worker. Those of a block that a worker has come for, and of
    all blocks before it, no longer count once they have arrived: so whichever block a worker waits for, there will be
    room for its records.
  - A record is handed out once. What was not read ahead, or could not be, is read when it is asked for.
  - After `close` nobody waits here any more.
"""

import asyncio
import threading
from collections import deque
from contextlib import suppress
from dataclasses import replace

import numpy as np

from penstock._graph._apply import Context
from penstock.errors import ClosedError
from penstock.sources._awaited._source import AwaitedSource
from penstock.sources._reading import read_records
from penstock.sources._source import Keys, Record, Source


class BlockRecords:
    """The records of one block of a job.

    Attributes:
        number: the block's, over all jobs.
        requests: how many are on their way.
        is_requested: whether all have been sent on their way.
        arrived: how many records have arrived that count as waiting.
        is_taken: whether a worker came for them, or for those of a later block.
    """

    __slots__ = ("_arrivals", "_records", "arrived", "is_requested", "is_taken", "number", "requests")

    def __init__(self, number: int, arrivals: "Arrivals") -> None:
        self.number = number
        self.requests = 0
        self.is_requested = False
        self.arrived = 0
        self.is_taken = False
        self._arrivals = arrivals
        self._records: dict[tuple[int, int], list[Record]] = {}  # by the identity of a source, and the key

    def informed(self, context: Context) -> Context:
        """Return a worker's context that reads from here, once the records are here.

        Raises:
            ClosedError: they won't come any more.
        """
        self._arrivals.wait_for(self)
        return replace(context, read=self._read)

    def put(self, source: AwaitedSource, keys: Keys, records: list[Record]) -> None:
        """Keep records for the worker."""
        for key, record in zip(keys.tolist(), records, strict=True):
            self._records.setdefault((id(source), key), []).append(record)

    def _read(self, source: Source, keys: Keys) -> list[Record]:
        # Each is handed out once: a function may write to its record, so one that is asked for again is read again.
        # Where a key comes several times, fewer records than that may be here, since some requests failed.
        records: list[Record] = []
        absent: list[int] = []
        for index, key in enumerate(keys.tolist()):
            kept = self._records.get((id(source), key))
            if not kept:
                absent.append(index)
            records.append(kept.pop() if kept else None)
        return records if not absent else _filled(records, absent, source, keys)


def _filled(records: list[Record], absent: list[int], source: Source, keys: Keys) -> list[Record]:
    for index, record in zip(absent, read_records(source, keys[absent]), strict=True):
        records[index] = record
    return records


class Arrivals:
    """Counts the records that are on their way or wait, and tells workers when theirs are there."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._changed = threading.Condition()  # over all below, and the blocks' numbers; reentered by the collector
        self._room = limit
        self._waiting: deque[BlockRecords] = deque()  # blocks that no worker came for, in order
        self._taken = -1  # the last block that a worker came for
        self._ended = False
        self._closed = False
        self._wanting: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = (
            None  # the loop, while it waits for room
        )

    # -- the loop's side

    async def make_room(self, count: int) -> None:
        """Count so many more records as being on their way, once there is room for them."""
        while True:
            woken = asyncio.Event()
            with self._changed:
                if self._room >= count:
                    self._room -= count
                    return
                self._wanting = asyncio.get_running_loop(), woken
            await woken.wait()

    def begin(self, block: BlockRecords) -> None:
        """Expect records of a block; blocks come in order."""
        with self._changed:
            block.is_taken = block.number <= self._taken
            if not block.is_taken:
                self._waiting.append(block)

    def request(self, block: BlockRecords) -> None:
        """Expect one more answer for a block."""
        with self._changed:
            block.requests += 1

    def finish(self, block: BlockRecords) -> None:
        """Expect no more than was requested for a block."""
        with self._changed:
            block.is_requested = True
            self._tell(block)

    def answer(self, block: BlockRecords, source: AwaitedSource, keys: Keys, records: list[Record] | None) -> None:
        """Take the answer to a request: records, or None where the worker has to read them itself."""
        with self._changed:
            if records is not None:
                block.put(source, keys, records)
            if block.is_taken:
                self._free(len(keys))
            else:
                block.arrived += len(keys)
            block.requests -= 1
            self._tell(block)

    def end(self) -> None:
        """Say that no more blocks will be requested."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    # -- the workers' side

    def wait_for(self, block: BlockRecords) -> None:
        """Wait until a block's records are here, or it is certain that it has none.

        Raises:
            ClosedError: they won't come any more.
        """
        with self._changed:
            self._take(block.number)
            while not (block.is_requested and block.requests == 0):
                if self._closed:
                    raise ClosedError("nothing is read ahead any more: the iterator was closed")
                if self._ended and not block.is_requested:
                    return
                self._changed.wait()

    def close(self) -> None:
        """Let nobody wait any more; from any thread, also by the collector."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # -- with the condition held

    def _take(self, number: int) -> None:
        self._taken = max(self._taken, number)
        freed = 0
        while self._waiting and self._waiting[0].number <= number:
            block = self._waiting.popleft()
            block.is_taken = True
            freed += block.arrived
        if freed:
            self._free(freed)

    def _free(self, count: int) -> None:
        self._room += count
        wanting, self._wanting = self._wanting, None
        if wanting is not None:
            loop, woken = wanting
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(woken.set)

    def _tell(self, block: BlockRecords) -> None:
        if block.is_requested and block.requests == 0:
            self._changed.notify_all()


def parts_of(keys: Keys, size: int) -> list[Keys]:
    """Return keys cut into runs of `size`, the last of which may be shorter."""
    return np.split(keys, range(size, len(keys), size))
