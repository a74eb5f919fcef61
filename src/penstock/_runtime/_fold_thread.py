"""Batches of a dataset that is read in order, folded ahead of the consumer by a thread.

The steps that are read in order (`filter`, `pack`, `window_shuffle`, streams) must run one element after the other. So
they run in one thread, which puts its batches into a bounded queue while the consumer trains. Workers compute the
blocks below the fold, and, in `_collate_stream`, the steps above it.

Each batch comes with the token after it and with the counts of the elements that filters left out before it. The
consumer applies both when it takes the batch. So the state and the statistics cover the delivered batches, and none
that still wait in the queue.

Batches pass through the queue in chunks. One crossing between threads costs tens of microseconds, more than many folds
take, so a chunk holds as many batches as are made within 2 ms, and at least one. A chunk of a stream holds one batch: a
stream may pause before its next element, and must not hold back a complete batch. At most `prefetch` chunks wait; where
workers collate, only one, since batches that were taken wait for the workers, too.

The thread is no pipeline of `penstock.pipeline`: a queue with one writer and one reader needs no event loop, which
costs milliseconds to start.

Guarantees:
  - Batches come in the order of the fold, each once. Batches before a failing one come first. Its error is raised once,
    in the consumer's thread; the next call makes the batch again.
  - An error that ends the fold's thread itself is raised like an error of a batch; it is never taken for an end.
  - One thread at a time takes batches. `close` may be called in any thread, by the garbage collector, and again; it
    wakes a consumer that waits. When it returns, the fold's thread has ended, unless a user function runs for longer
    than two seconds: then the thread ends after that function.
  - Ctrl-C ends a consumer's wait at once, and takes nothing.
"""

import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

from penstock._caught import Caught
from penstock._decisions import FOLD_BATCHES, SEEN_NOW, decide
from penstock._graph import Element, Node
from penstock._os import Bell, DaemonThread, uninterrupted
from penstock._runtime._batches import StepRange
from penstock._runtime._chunk_sizes import FOLD_SECONDS
from penstock._runtime._failing_work import Patience, Stall
from penstock._runtime._recorder import Recorder
from penstock._runtime._scheduler import Client, Scheduler
from penstock._runtime._streaming import StageRun, ThreadReader, rows_of_element
from penstock._runtime._streams import EndOfEpoch, Stream
from penstock._streaming import Chunk as StageChunk
from penstock._streaming import Collate, Provenance, Token, no_provenance
from penstock.errors import InternalError

_ENDLESS: Final = 1 << 62
_EXIT_SECONDS: Final = 2.0  # how long `close` waits for a user function


class Made(NamedTuple):
    """A batch of the fold, or the error that was raised instead."""

    batch: Element
    token: Token
    filtered: tuple[tuple[Node, int, int], ...]
    provenance: Provenance
    """The provenance of the batch, as `CollateRun.result` takes it."""
    error: BaseException | None = None

    def count_filtered(self, recorder: Recorder) -> None:
        """Count the elements that filters left out before this batch, when it is delivered."""
        for counts in self.filtered:
            recorder.count_filtered(*counts)


Chunk: TypeAlias = list[Made | None]
"""Batches in order; the consumer replaces each batch that it takes by None, so that the chunk doesn't keep it."""


class Fold:
    """Makes the chunks of batches, up to the end of the epoch or the first error, which is the last `Made`.

    Attributes:
        thread: the identifier of the thread that makes the batches; None before it has begun.
    """

    def __init__(self, scheduler: Scheduler, client: Client, step_range: StepRange, collate: Collate | None) -> None:
        self.thread: int | None = None
        self._filtered: list[tuple[Node, int, int]] = []
        self._collate = collate
        self._chunk_seconds = 0.0 if client.plan.program.reads_streams else FOLD_SECONDS
        context, reader = replace(client.context("fold"), filtered=self._count), ThreadReader(scheduler, client)
        self.inner = StageRun(client.plan, step_range, context, reader, collate)

    def __iter__(self) -> Generator[Chunk]:
        self.thread = threading.get_ident()
        made: Chunk = []
        batches = self._batches()
        most, began = decide(FOLD_BATCHES, _ENDLESS), time.perf_counter()
        try:
            while True:
                with Caught() as caught:
                    made.append(next(batches))
                if caught.error is not None:  # the consumer raises it
                    made.append(_failed(caught.taken(), self._counted()))
                    break
                if len(made) >= most or time.perf_counter() - began >= self._chunk_seconds:
                    yield made
                    made = []
                    most, began = decide(FOLD_BATCHES, _ENDLESS), time.perf_counter()
            yield made
        finally:
            del made  # the traceback of an error in it would refer to this frame
            self.inner.close()

    def _batches(self) -> Generator[Made]:
        while (chunk := self.inner.next_chunk()) is not None:
            for index in range(len(chunk.elements)):
                yield made_of(chunk, index, self._collate, self._counted())
        raise EndOfEpoch

    def _count(self, node: Node, kept: int, dropped: int) -> None:
        self._filtered.append((node, kept, dropped))

    def _counted(self) -> tuple[tuple[Node, int, int], ...]:
        counted = tuple(self._filtered)
        self._filtered.clear()
        return counted


def made_of(
    chunk: StageChunk, index: int, collate: Collate | None, filtered: tuple[tuple[Node, int, int], ...] = ()
) -> Made:
    """Return a batch of a chunk of the stages."""
    element, rows = chunk.elements[index], rows_of_element(chunk, index)
    if collate is not None:
        collate.check(element, rows)
    provenance = rows if collate is not None and collate.rows else chunk.provenance[index : index + 1]
    return Made(element, chunk.afters[index], filtered, provenance)


def _failed(error: BaseException, filtered: tuple[tuple[Node, int, int], ...] = ()) -> Made:
    return Made(None, None, filtered, no_provenance(), error)


class FoldThread:
    """Runs a fold in a thread, with a queue of chunks for one consumer.

    The thread and the consumer share no lock. Each announces its change first, and looks after that: the thread appends
    a chunk before it rings and calls `wake`; the consumer sets `wake`, or clears the bell, before it looks for a chunk.

    Attributes:
        fold: makes the chunks.
        wake: called once, in the thread, after the next chunk has come; None for nothing.
    """

    def __init__(self, fold: Fold, max_chunks: int, bell: Bell) -> None:
        """Start the thread.

        Args:
            fold: makes the chunks.
            max_chunks: the largest number of chunks that wait, at least 1; the one being computed counts.
            bell: rung after each chunk.
        """
        self.fold = fold
        self.wake: Callable[[], None] | None = None
        self._max_chunks = max_chunks
        self._bell = bell
        self._chunks: deque[Chunk] = deque()
        self._room = Bell()
        self._stopped = False
        self._process = os.getpid()
        self._thread = DaemonThread(self._run, "penstock-fold")

    @property
    def has_chunk(self) -> bool:
        """Whether `take` would return a chunk."""
        return bool(self._chunks)

    def take(self) -> Chunk | None:
        """Return the next chunk, if there is one, and make room for another."""
        if not self._chunks:
            return None
        chunk = self._chunks.popleft()
        self._room.ring()
        return chunk

    def stop(self, timeout_seconds: float) -> None:
        """End the thread and wait for its end. Never waits in the thread itself, nor in a fork, which lacks it."""
        if os.getpid() != self._process:
            return
        self._stopped = True
        self._room.ring()
        self.fold.inner.give_up()  # so that the thread doesn't wait for workers
        if not self._thread.is_current:
            self._thread.wait(timeout_seconds)
        self.wake = None
        self._chunks.clear()

    # -- in the thread

    def _run(self) -> None:
        with Caught() as caught, closing(iter(self.fold)) as chunks:
            while self._waits_for_room():
                chunk = next(chunks, None)
                if chunk is None:
                    break
                self._put(chunk)
                del chunk  # so that its batches are freed when the consumer drops them
        if caught.error is not None:
            self._put([_failed(caught.taken())])

    def _waits_for_room(self) -> bool:
        """Wait for room for another chunk; return False if the thread should end instead."""
        while not self._stopped:
            self._room.clear()
            if len(self._chunks) < self._max_chunks:
                return not self._stopped
            if not self._stopped:
                self._room.wait()
        return False

    def _put(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self._bell.ring()
        wake, self.wake = self.wake, None
        if wake is not None:
            wake()


class Folding(ABC):
    """A source of the rows of batches, in order.

    One that makes batches ahead defines all methods. What they return here is true of one that makes each batch when it
    is taken.
    """

    @abstractmethod
    def take(self) -> Made:
        """Return the next batch; raise as `next` of a stream does."""

    def take_nowait(self, wake: Callable[[], None] | None = None, /) -> Made | None:
        """Return the next batch, if it has come; if not, and reading has begun, `wake` is called as for `comes`."""
        del wake
        return None

    def comes(self, wake: Callable[[], None], /) -> bool:
        """Return whether the next batch has come; if not, `wake` is called when it may have, or when there is none."""
        del wake
        return False

    @property
    def has_more(self) -> bool:
        """Whether `take` would not wait."""
        return True

    def stall(self) -> Stall | None:
        """Return the work that the next batch waits for; None if that isn't known."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Drop the batches made ahead."""


class FoldedAlone(Folding):
    """Batches that are made when they are taken, in the thread that takes them."""

    def __init__(self, scheduler: Scheduler, client: Client, step_range: StepRange, collate: Collate | None) -> None:
        self._collate = collate
        self._inner = run_alone(scheduler, client, step_range, collate)
        self._made: deque[Made] = deque()

    def take(self) -> Made:
        if not self._made:
            chunk = self._inner.next_chunk()
            if chunk is None:
                raise EndOfEpoch
            self._made.extend(made_of(chunk, index, self._collate) for index in range(len(chunk.elements)))
        return self._made.popleft()

    def close(self) -> None:
        self._inner.close()


def run_alone(scheduler: Scheduler, client: Client, step_range: StepRange, collate: Collate | None = None) -> StageRun:
    """Return a run of the stages in the calling thread, which computes nothing of other batches."""
    reader = ThreadReader(scheduler, client)
    return StageRun(client.plan, step_range, client.consumer_context(), reader, collate, singly=True)


class FoldedStream(Stream, Folding):
    """Elements of a dataset that is read in order, folded ahead; the steps of `collate` are left out."""

    def __init__(
        self, scheduler: Scheduler, client: Client, step_range: StepRange, collate: Collate | None = None
    ) -> None:
        scheduler.check()
        client.is_folded_ahead = True
        self._scheduler = scheduler
        self._client = client
        self._step_range = step_range
        self._token = None if step_range.where is None else step_range.where.token  # after the last batch taken
        self._collate = collate
        self._bell = Bell()
        self._made: Chunk = []
        self._index = 0
        self._thread: FoldThread | None = None
        self._closed = False

    def next(self) -> tuple[Element, Token]:
        made = self.take()
        made.count_filtered(self._client.recorder)
        return made.batch, made.token

    def take(self) -> Made:
        """Return the next batch as the fold made it; raise as `next` does."""
        if self._closed:
            raise EndOfEpoch
        self._scheduler.check()
        while not self._receive():
            self._wait()
            if self._closed:  # another thread closed it
                raise EndOfEpoch
        return self._taken()

    def _wait(self) -> None:
        """Wait until there is a chunk, or the stream is closed."""
        thread = self._begun()
        patience = Patience(self.stall, self._scheduler.timeout)
        self._client.readings.waits.cause = "fold" if self._client.stall is None else "workers"
        while True:
            self._bell.clear()
            if self._closed or thread.has_chunk:
                return
            if not self._bell.wait(patience.seconds_left()):
                patience.look()

    def stall(self) -> Stall | None:
        """Return the work of the fold's thread, or of the workers that it waits for."""
        stall, thread = self._client.stall, None if self._thread is None else self._thread.fold.thread
        if stall is not None:
            return stall()
        if thread is None:
            return None
        what = "the steps that are read in order, for one batch"
        return Stall("the thread that reads in order", self._client.waited_until, lambda: what, thread)

    def next_nowait(self) -> tuple[Element, Token] | None:
        made = self.take_nowait()
        if made is None:
            return None
        made.count_filtered(self._client.recorder)
        return made.batch, made.token

    def take_nowait(self, wake: Callable[[], None] | None = None, /) -> Made | None:
        """Return the next batch as the fold made it, if it has come; if not, a fold that has begun will call `wake`."""
        thread = self._thread
        if self._closed or thread is None or not decide(SEEN_NOW, 1):
            return None
        self._scheduler.check()
        if wake is not None and not self.has_more:
            thread.wake = wake
        self._receive()
        return self._taken() if self._has_batch() else None

    def _taken(self) -> Made:
        chunk, index = self._made, self._index
        made = chunk[index] if index < len(chunk) else _failed(EndOfEpoch())  # another thread closed it meanwhile
        if made is None:
            raise InternalError("a batch of a dataset that is read in order is delivered once")
        if made.error is not None:
            made.count_filtered(self._client.recorder)
            self._closed = self._closed or isinstance(made.error, EndOfEpoch)
            self._end_fold()
            del chunk
            try:
                raise made.error
            finally:
                del made  # the traceback of the error refers to this frame
        chunk[index] = None  # so that the chunk doesn't keep the batch
        self._index += 1
        self._token = made.token
        return made

    def _receive(self) -> bool:
        """Return whether the next batch, or an error, has come; take the next chunk if it is needed."""
        if self._index < len(self._made):
            return True
        chunk = None if self._thread is None else self._thread.take()
        if chunk is None:
            return False
        self._made, self._index = chunk, 0
        return True

    def _begun(self) -> FoldThread:
        return self._thread or self._begin()

    @uninterrupted  # a thread that no attribute refers to would never end
    def _begin(self) -> FoldThread:
        chunks = self._client.plan.prefetch if self._collate is None else 1
        step_range = self._step_range.after(0, self._token)
        fold = Fold(self._scheduler, self._client, step_range, self._collate)
        thread = self._thread = FoldThread(fold, chunks, self._bell)
        if self._closed:  # another thread closed the stream, and may not have seen the thread
            self._end_fold()
        return thread

    def fileno(self) -> int | None:
        return self._bell.fileno()

    def is_ready(self) -> bool:
        if self._closed or self.has_more:
            return True
        self._begun()
        self._bell.clear()
        return self.has_more

    def comes(self, wake: Callable[[], None]) -> bool:
        """Return whether the next batch has come; if not, `wake` is called when it may have, or when it has failed."""
        if self._closed:
            return False
        if not self.has_more:
            self._begun().wake = wake
        self._receive()
        return self._has_batch()

    def _has_batch(self) -> bool:
        chunk, index = self._made, self._index
        made = chunk[index] if index < len(chunk) else None
        return made is not None and made.error is None

    @property
    def has_more(self) -> bool:
        """Whether the next batch, or an error, has come."""
        return self._index < len(self._made) or (self._thread is not None and self._thread.has_chunk)

    @uninterrupted  # Ctrl-C finds the thread ended, or still running
    def _end_fold(self) -> None:
        thread = self._thread
        if thread is not None:
            thread.stop(_EXIT_SECONDS)
        self._made, self._index, self._thread = [], 0, None

    def close(self) -> None:
        self._closed = True
        self._bell.ring()
        self._end_fold()
