"""Batches of a dataset that is read in order, folded ahead of the consumer by a thread.

The steps that are read in order (`filter`, `pack`, `window_shuffle`, streams) must run one element after the other. So
they run in one thread, which puts its batches into a bounded queue while the consumer trains. Workers compute the
blocks below the fold, and, in `_collate_supplier`, the steps above it. Where these take little time, the thread of the
fold computes them (`_fold_choice`).

Each batch comes with the token after it and with the counts of the elements that filters left out before it. The
consumer applies both when it takes the batch. So the state and the statistics cover the delivered batches, and none
that still wait in the queue.

Batches pass through the queue in chunks. One crossing between threads costs tens of microseconds, more than many folds
take, so a chunk holds as many batches as are made within 2 ms, at least one, and no more than fit into the processor's
cache, unless workers collate them. No chunk holds a complete batch back while the next one is awaited: before the
thread waits for workers, or computes elements itself, it passes on what it has made; and a chunk of a stream, which may
pause before its next element, holds one batch. To pass on often costs little, since a consumer that has just begun to
wait isn't woken: it looks itself after a millisecond. At most `prefetch` chunks wait; where workers collate, only one,
since batches that were taken wait for the workers, too.

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
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias

from penstock._caught import Caught, CaughtFailure, waited
from penstock._decisions import FOLD_BATCHES, SEEN_NOW, decide
from penstock._graph import Element, Node
from penstock._memory import RECYCLED_BYTES, allow_recycled, recycle_arrays
from penstock._os import Bell, DaemonThread, uninterrupted, weakly
from penstock._processes import FUNCTION_SECONDS
from penstock._runtime._batches import Remaining, StepRange
from penstock._runtime._failing_work import Patience, Stall
from penstock._runtime._fold_choice import AboveChoice
from penstock._runtime._policy import FOLD_BYTES, FOLD_SECONDS, UNANNOUNCED_SECONDS
from penstock._runtime._recorder import Recorder
from penstock._runtime._scheduler import Client
from penstock._runtime._streaming import ClosingReader, StageRun, rows_of_element
from penstock._runtime._streams import EndOfEpoch, Owner, Supplier
from penstock._streaming import Chunk, CollateRun, Provenance, Token, late_token, no_provenance
from penstock._tracebacks import raise_caught
from penstock.batching import array_bytes

_ENDLESS: Final = 1 << 62


FilterCounts: TypeAlias = tuple[tuple[Node, int, int], ...]
"""Filters, each with the numbers of elements that it kept and left out before a batch."""


class Above(NamedTuple):
    """The steps above a fold, which the fold leaves to workers, or applies where that is faster.

    Attributes:
        run: the steps.
        choice: whether the fold applies them; None where it never does.
        left: how many of the first batches are left to workers, since one of them has failed.
    """

    run: CollateRun
    choice: AboveChoice | None = None
    left: int = 0


class FoldOwner(Owner, Protocol):
    """The owner of the threads or processes that compute block inputs."""

    @property
    def timeout(self) -> float | None:
        """The seconds that a consumer waits for the same work; None where something else looks after that."""
        ...


OpenReader: TypeAlias = Callable[[], ClosingReader]
"""Returns what reads the block inputs of a fold."""


class Made(NamedTuple):
    """A batch of the fold, or the error that was raised instead."""

    batch: Element
    token: Token
    filtered: FilterCounts
    provenance: Provenance
    """The provenance of the batch, as `CollateRun.result` takes it."""
    error: BaseException | None = None
    is_finished: bool = False
    """Whether the steps above the fold were applied, so that no worker has to."""


class MadeChunk:
    """Batches that the fold has made, in order; the last one may be an error.

    Attributes:
        steps: the number of batches, the error included.
        delivered: for each batch that was taken out, its token, and the counts of filters before it.
        error: the error that was taken out; None for none.
    """

    def __init__(self, made: list[Made]) -> None:
        self.steps = len(made)
        self.delivered: list[tuple[Token, FilterCounts]] = []
        self.error: BaseException | None = None
        self._made = made

    def taken(self) -> list[Made]:
        """Return the batches, and keep none: the fold refers to the list until it makes the next chunk."""
        made = self._made.copy()
        self._made.clear()
        return made


class FoldRun:
    """Runs the steps that are read in order, and makes chunks of their batches.

    It ends with the epoch, or at the first error, which is the last `Made`.

    Args:
        client: the client that the block inputs belong to.
        open_reader: returns what reads them.
        step_range: the batches.
        above: steps that workers apply, or this thread; None for none.
        on_request: whether each batch is made when it is requested, and nothing of other batches, in the consumer's
            thread.
    """

    def __init__(
        self,
        client: Client,
        open_reader: OpenReader,
        step_range: StepRange,
        above: Above | None,
        *,
        on_request: bool,
    ) -> None:
        self._filtered: list[tuple[Node, int, int]] = []
        self._above = above
        self._collate = collate = None if above is None else above.run.collate
        self._made: list[Made] = []  # for the next chunk
        self._began = 0.0  # when that was begun
        self._chunk_seconds = 0.0 if on_request or client.plan.program.reads_streams else FOLD_SECONDS
        context = client.context("consumer" if on_request else "fold")
        self._context = context = replace(context, filtered=_counter(self._filtered))
        self.stages = StageRun(client.plan, step_range, context, open_reader(), collate, singly=on_request)

    def __iter__(self) -> Generator[MadeChunk]:
        batches = self._batches()
        most, self._began = decide(FOLD_BATCHES, _ENDLESS), time.perf_counter()
        try:
            while True:
                with Caught() as caught:
                    batch = next(batches)  # meanwhile `take` may replace the list
                    self._made.append(batch)
                    del batch
                if caught.error is not None:  # the consumer raises it
                    self._made.append(_failed(caught.taken(), self._counted()))
                    break
                is_whole = self._collate is None or self._made[-1].is_finished
                if len(self._made) == 1 and is_whole:  # workers read a batch later, with others
                    most = min(most, self._most_by_bytes())
                if len(self._made) >= most or time.perf_counter() - self._began >= self._chunk_seconds:
                    yield MadeChunk(self.take())
                    most, self._began = decide(FOLD_BATCHES, _ENDLESS), time.perf_counter()
            yield MadeChunk(self.take())
        finally:
            self._made = []  # the traceback of an error in it would refer to this
            self.stages.close()

    def _most_by_bytes(self) -> int:
        """Return how many batches as large as the first one of a chunk it may have."""
        return max(int(FOLD_BYTES / max(array_bytes([self._made[0].batch]), 1)), 1)

    def take(self) -> list[Made]:
        """Return the batches that are in no chunk yet, for one; a next one begins."""
        made, self._made = self._made, []
        self._began = time.perf_counter()
        return made

    def _batches(self) -> Generator[Made]:
        collate, number = self._collate, 0
        while (chunk := self.stages.next_chunk()) is not None:
            above = self._applied_from(number)
            number += len(chunk.elements)
            if above is not None and above.takes_blocks:
                yield from self._block(chunk, above)
                continue
            for index, element in enumerate(chunk.elements):
                provenance = chunk.provenance[index : index + 1]
                if collate is not None:
                    rows = rows_of_element(chunk, index)
                    collate.check(element, rows)
                    provenance = rows if collate.rows else provenance
                made = element if above is None else above.result(element, provenance, self._context)
                after = late_token(chunk.afters, index)
                yield Made(made, after, self._counted(), provenance, is_finished=above is not None)
                del made, element  # so that their memory can become the next one's
        raise EndOfEpoch

    def _applied_from(self, number: int) -> CollateRun | None:
        """Return the steps above if this thread applies them to the next batches, from a number on; else None."""
        above = self._above
        choice = None if above is None else above.choice
        if above is None or choice is None:
            return None
        if number <= above.left:
            choice.begin(number)
        if number < above.left:
            return None
        choice.changes(number)
        return above.run if choice.by_fold else None

    def _block(self, chunk: Chunk, above: CollateRun) -> Generator[Made]:
        """Apply the steps above to all batches of a chunk."""
        results: list[Element] = []
        with CaughtFailure() as caught:
            above.batches_into(results, [*chunk.elements], chunk.provenance, self._context)
        for index, batch in enumerate(results):
            after, provenance = late_token(chunk.afters, index), chunk.provenance[index : index + 1]
            yield Made(batch, after, self._counted(), provenance, is_finished=True)
        if caught.error is not None:
            raise_caught(caught.taken())

    def _counted(self) -> FilterCounts:
        counted = tuple(self._filtered)
        self._filtered.clear()
        return counted


def _counter(filtered: list[tuple[Node, int, int]]) -> Callable[[Node, int, int], None]:
    """Return a function that adds counts to a list. It keeps no fold, since the fold keeps it."""
    return lambda node, kept, dropped: filtered.append((node, kept, dropped))


def _failed(error: BaseException, filtered: FilterCounts = ()) -> Made:
    return Made(None, None, filtered, no_provenance(), error)


class FoldOnRequest:
    """Chunks of a fold that are made when they are requested, in the thread that takes them; as `FoldThread`."""

    def __init__(self, client: Client, open_reader: OpenReader, step_range: StepRange, above: Above) -> None:
        self._fold = FoldRun(client, open_reader, step_range, above, on_request=True)
        self._chunks = iter(self._fold)

    def next_job(self) -> MadeChunk | None:
        """Make the next chunk, and return it; None after the last one."""
        return next(self._chunks, None)

    def next_job_nowait(self, wake: Callable[[], None], /) -> None:
        """Return None, since no chunk is made before it is requested."""

    def has_chunk(self, wake: Callable[[], None], /) -> bool:
        """Return False, since no other thread makes chunks."""
        del wake
        return False

    def stall(self) -> None:
        """Return None, since the consumer waits for no chunk."""

    def close(self) -> None:
        """End reading."""
        self._fold.stages.close()


class FoldThread:
    """Runs a fold in a thread, which begins with the first request, with a queue of chunks for the consumer.

    The thread and the consumer share no lock. Each announces its change first, and looks after that: the thread appends
    a chunk before it rings and calls `wake`; the consumer sets `wake`, or clears the bell, before it looks for a chunk.

    Args:
        client: the client that the block inputs belong to.
        open_reader: returns what reads them; called in the consumer's thread.
        step_range: the batches.
        above: steps that workers apply, or the thread; None for none.
        owner: of what computes the block inputs.
        bell: rung after each chunk; None for a new one.
    """

    def __init__(
        self,
        client: Client,
        open_reader: OpenReader,
        step_range: StepRange,
        above: Above | None = None,
        *,
        owner: FoldOwner,
        bell: Bell | None = None,
    ) -> None:
        owner.check()
        client.is_folded_ahead = True
        self._owner = owner
        self._client = client
        self._make_fold = partial(FoldRun, client, open_reader, step_range, above, on_request=False)
        self._max_chunks = client.plan.prefetch if above is None else 1  # those that wait, and the one being made
        self._bell = Bell() if bell is None else bell
        self._chunks: deque[MadeChunk] = deque()
        self._room = Bell()
        self._wake: Callable[[], None] | None = None  # called once, in the thread, after the next chunk has come
        self._looks = False  # whether the consumer looks for a chunk after a while, if the bell doesn't ring
        self._stopped = False
        self._process = os.getpid()
        self._fold: FoldRun | None = None
        self._thread: DaemonThread | None = None
        self._identifier: int | None = None  # of the thread, once it runs
        self._recycled_bytes = 0

    def next_job(self) -> MadeChunk | None:
        """Wait for the next chunk, and return it; None once closed. There is none after an error."""
        self._owner.check()
        self._begin()
        if not self._chunks:
            self._wait()
        return self._taken()

    def next_job_nowait(self, wake: Callable[[], None] | None = None, /) -> MadeChunk | None:
        """Return the next chunk, if it has come; if not, and the thread has begun, `wake` is called when it has."""
        if self._thread is None or not decide(SEEN_NOW, 1):
            return None
        self._owner.check()
        if wake is not None and not self._chunks:
            self._wake = wake
        return self._taken()

    def has_chunk(self, wake: Callable[[], None], /) -> bool:
        """Return whether the next chunk has come; if not, `wake` is called when it has."""
        if not self._chunks:
            self._begin()
            self._wake = wake
        return bool(self._chunks)

    def is_ready(self) -> bool:
        """Return whether `next_job` would not wait; if not, the bell rings when it may."""
        self._begin()
        self._bell.clear()
        return bool(self._chunks) or self._stopped

    def _taken(self) -> MadeChunk | None:
        try:
            chunk = self._chunks.popleft()
        except IndexError:  # none has come; or one had, and another thread closed this
            return None
        self._room.ring()
        return chunk

    def _wait(self) -> None:
        """Wait until there is a chunk, or the thread is stopped."""
        patience = Patience(self.stall, self._owner.timeout)
        self._client.readings.waits.cause = "fold" if self._client.stall is None else "workers"
        self._looks = True
        while True:
            self._bell.clear()
            if self._stopped or self._chunks:
                break
            if self._looks:
                self._looks = waited(self._bell.wait, UNANNOUNCED_SECONDS)
            elif not waited(self._bell.wait, patience.seconds_left()):
                patience.look()
        self._looks = False

    def stall(self) -> Stall | None:
        """Return the work of the fold's thread, or of the workers that it waits for."""
        stall, thread = self._client.stall, self._identifier
        if stall is not None:
            return stall()
        if thread is None:
            return None
        what = "the steps that are read in order, for one batch"
        return Stall("the thread that reads in order", self._client.waited_until, lambda: what, thread)

    def _begin(self) -> None:
        if self._thread is None and not self._stopped:
            self._start()

    @uninterrupted  # a thread that no attribute refers to would never end
    def _start(self) -> None:
        fold = self._fold = self._make_fold()
        allow_recycled(RECYCLED_BYTES)
        self._recycled_bytes = RECYCLED_BYTES
        self._client.waited_until = time.monotonic()
        self._thread = DaemonThread(partial(self._run, fold), "penstock-fold")
        if self._stopped:  # another thread stopped it, and may not have seen the thread
            self.close()

    @uninterrupted  # Ctrl-C finds the thread ended, or still running
    def close(self) -> None:
        """End the thread and wait for its end. Never waits in the thread itself, nor in a fork, which lacks it."""
        if os.getpid() != self._process:
            return
        self._stopped = True
        self._bell.ring()
        self._room.ring()
        if self._fold is not None:
            self._fold.stages.give_up()  # so that the thread doesn't wait for workers
        if self._thread is not None and not self._thread.is_current:
            self._thread.wait(FUNCTION_SECONDS)
        self._wake = None
        self._chunks.clear()
        recycled_bytes, self._recycled_bytes = self._recycled_bytes, 0  # another thread may close this, too
        allow_recycled(-recycled_bytes)

    # -- in the thread

    def _run(self, fold: FoldRun) -> None:
        recycle_arrays()  # those of batches, which another thread drops
        self._identifier = threading.get_ident()
        self._client.before_wait = weakly(self._pass_on)  # which the client doesn't keep
        with Caught() as caught, closing(iter(fold)) as chunks:
            while self._waits_for_room():
                chunk = next(chunks, None)
                if chunk is None:
                    break
                self._put(chunk)
                del chunk  # so that its batches are freed when the consumer drops them
        if caught.error is not None:
            self._put(MadeChunk([_failed(caught.taken())]))

    def _waits_for_room(self) -> bool:
        """Wait for room for another chunk; return False if the thread should end instead."""
        while not self._stopped:
            self._room.clear()
            if len(self._chunks) < self._max_chunks:
                return not self._stopped
            if not self._stopped:
                self._announce()
                began = time.perf_counter()
                self._room.wait()
                self._client.choices.read.waited_seconds += time.perf_counter() - began
        return False

    def _pass_on(self) -> None:
        """Pass on the batches that the fold has made, since the next one may take long.

        The consumer isn't woken if it will look for a chunk itself: where the next one is soon made, it gets both.
        """
        fold = self._fold
        if fold is None or threading.get_ident() != self._identifier:  # an earlier thread, which hasn't ended yet
            return
        made = fold.take()
        if made:
            self._chunks.append(MadeChunk(made))
            if not self._looks:
                self._announce()
            self._waits_for_room()  # for the chunk that is begun

    def _put(self, chunk: MadeChunk) -> None:
        self._chunks.append(chunk)
        self._announce()

    def _announce(self) -> None:
        """Wake a consumer that waits for a chunk."""
        self._bell.ring()
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()


class FoldSupplier(Supplier[MadeChunk]):
    """Chunks of batches of a dataset that is read in order, folded ahead by a thread."""

    def __init__(self, owner: FoldOwner, client: Client, open_reader: OpenReader, step_range: StepRange) -> None:
        super().__init__(owner)
        self._client = client
        self._open_fold = partial(FoldThread, client, open_reader, owner=owner)
        self._remaining = Remaining([step_range])
        self._bell = Bell()

    def open(self) -> FoldThread:
        return self._open_fold(self._remaining.step_ranges()[0], bell=self._bell)

    def results(self, job: MadeChunk) -> list[Element]:
        made = job.taken()
        job.delivered = [(each.token, each.filtered) for each in made]
        job.error = made[-1].error
        return [each.batch for each in (made if job.error is None else made[:-1])]

    def delivered(self, job: MadeChunk, index: int, batch: Element) -> Token:
        del batch
        token, filtered = job.delivered[index]
        count_filtered(self._client.recorder, filtered)
        self._remaining.remove_delivered(token)
        return token

    def error(self, job: MadeChunk) -> BaseException | None:
        error, job.error = job.error, None
        count_filtered(self._client.recorder, job.delivered[-1][1])
        return error

    def fileno(self) -> int:
        return self._bell.fileno()


def count_filtered(recorder: Recorder, filtered: FilterCounts) -> None:
    """Count the elements that filters left out before a batch, when it is delivered."""
    for counts in filtered:
        recorder.count_filtered(*counts)
