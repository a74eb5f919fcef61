"""Ordered folds ahead of the consumer: what takes elements in order runs in a background thread, on the engine.

Batches come in chunks, each with the token after it and with what filters left out before it, so that whatever is
counted at the consumer's side is exactly what was handed out. A chunk is as many batches as take a millisecond or two,
at least one, and of a stream one; `prefetch` chunks wait at most.

Guarantees:
  - Batches before a failing one come first. Its error is raised once, in the consumer's thread; the next call makes the
    batch again.
  - `close` may be called anywhere and again; when it returns, the fold's thread has ended, unless a function of the
    user's takes longer than a moment.
"""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from penstock._caught import Caught
from penstock._decisions import FOLD_BATCHES, SEEN_NOW, decide
from penstock._graph._nodes import Element, Node
from penstock._graph._streaming._build import reads_streams
from penstock._graph._streaming._chunk import Provenance, Token, no_provenance
from penstock._graph._streaming._collate import Collate
from penstock._os import Bell, HeldInterrupts
from penstock._runtime._batches import StepRange, Unit
from penstock._runtime._client import Client
from penstock._runtime._scheduler import Scheduler
from penstock._runtime._stalls import Patience, Stall
from penstock._runtime._streams import EndOfEpoch
from penstock._runtime._threads import ThreadStreamingBatches
from penstock.errors import InternalError, UsageError
from penstock.pipeline._channels._outlet import Mark, Outlet
from penstock.pipeline._config import PipelineConfig, Source
from penstock.pipeline._engine._engine import Engine
from penstock.pipeline._engine._probes import Probes
from penstock.pipeline._stages import Sink

_CHUNK_SECONDS: Final = 0.002
_ENDLESS: Final = 1 << 62
_PATIENCE_SECONDS: Final = 2.0


class Made(NamedTuple):
    """A batch, or what was raised instead."""

    batch: Element
    token: Token
    filtered: tuple[tuple[Node, int, int], ...]
    provenance: Provenance
    """As `TailRun.result` takes them."""
    error: BaseException | None = None


class Fold:
    """The source of the pipeline: chunks of batches, up to the end or the first error."""

    def __init__(self, scheduler: Scheduler, client: Client, step_range: StepRange, collate: Collate | None) -> None:
        self.thread: int | None = None  # that makes the batches
        self._filtered: list[tuple[Node, int, int]] = []
        # A stream may pause before the next batch.
        self._chunk_seconds = 0.0 if reads_streams(client.plan.node) else _CHUNK_SECONDS
        self.inner = ThreadStreamingBatches(
            scheduler, client, step_range, replace(client.context(), filtered=self._count), collate
        )

    def __iter__(self) -> Generator[list[Made]]:
        self.thread = threading.get_ident()
        made: list[Made] = []
        most, began = decide(FOLD_BATCHES, _ENDLESS), time.perf_counter()
        try:
            while True:
                with Caught() as caught:
                    made.append(Made(*self.inner.next(), self._counted(), self.inner.provenance))
                if caught.error is not None:  # raised by the consumer
                    made.append(Made(None, None, self._counted(), no_provenance(), caught.taken()))
                    break
                if len(made) >= most or time.perf_counter() - began >= self._chunk_seconds:
                    yield made
                    made = []
                    most, began = decide(FOLD_BATCHES, _ENDLESS), time.perf_counter()
            yield made
        finally:
            del made  # the traceback of an error that it may have holds this frame
            self.inner.close()

    def _count(self, node: Node, kept: int, dropped: int) -> None:
        self._filtered.append((node, kept, dropped))

    def _counted(self) -> tuple[tuple[Node, int, int], ...]:
        counted = tuple(self._filtered)
        self._filtered.clear()
        return counted


class Folding(Protocol):
    """What batches are made of, in order."""

    def take(self) -> Made:
        """Return the next; raise as a stream's `next` does."""
        ...

    def take_nowait(self, wake: Callable[[], None] | None = None, /) -> Made | None:
        """Return the next, if it is there; if not, and reading has begun, `wake` is called as by `comes`."""
        ...

    def comes(self, wake: Callable[[], None], /) -> bool:
        """Return whether the next is here; if not, `wake` is called when it may be, or there will be none."""
        ...

    @property
    def has_more(self) -> bool:
        """Whether `take` would not wait."""
        ...

    def stall(self) -> Stall | None:
        """Return the work that the next one waits for; None where that isn't known."""
        ...

    def count(self, made: Made, /) -> None:
        """Count what filters left out on the way to a batch that is handed out."""
        ...

    def close(self) -> None:
        """Give up what is made ahead."""
        ...


class FoldedAlone:
    """A `Folding` that makes nothing ahead, in the thread that takes it."""

    has_more = True

    def __init__(self, scheduler: Scheduler, client: Client, step_range: StepRange, collate: Collate | None) -> None:
        context = client.consumer_context()
        self._inner = ThreadStreamingBatches(scheduler, client, step_range, context, collate, singly=True)

    def take(self) -> Made:
        return Made(*self._inner.next(), (), self._inner.provenance)

    def take_nowait(self, wake: Callable[[], None] | None = None, /) -> Made | None:
        del wake
        return None

    def comes(self, wake: Callable[[], None]) -> bool:
        del wake
        return False

    def stall(self) -> Stall | None:
        return None

    def count(self, made: Made) -> None:
        """Do nothing: it was counted as it was read."""

    def close(self) -> None:
        self._inner.close()


class FoldedStream:
    """Elements of an ordered dataset, folded ahead; without the steps of a tail, if given."""

    def __init__(
        self, scheduler: Scheduler, client: Client, step_range: StepRange, collate: Collate | None = None
    ) -> None:
        scheduler.check()
        client.is_folded_ahead = True
        self._scheduler = scheduler
        self._client = client
        self._step_range = step_range
        self._collate = collate
        self._bell = Bell()
        self._made: list[Made | None] = []
        self._index = 0
        self._engine: Engine | None = None
        self._outlet: Outlet | None = None
        self._fold: Fold | None = None
        self._ended = False
        self._closed = False

    def next(self) -> tuple[Element, Token]:
        made = self.take()
        self.count(made)
        return made.batch, made.token

    def take(self) -> Made:
        """Return the next batch as it was made; raise as `next` does."""
        if self._closed:
            raise EndOfEpoch
        self._scheduler.check()
        while self._index == len(self._made) and not self._ended:
            self._receive(self._awaited())
        if self._index == len(self._made):
            failure = None if self._outlet is None else self._outlet.take_failure()
            if failure is not None:  # of the fold itself: an end that is none
                self._end_fold()
                raise failure
            self.close()
            raise EndOfEpoch
        return self._taken(self._made[self._index])

    def _awaited(self) -> object:
        """Wait for the next chunk, or the end."""
        outlet = self._begun()
        found = outlet.take_now()
        if found is not Mark.NOTHING:
            return found
        patience = Patience(self.stall, self._scheduler.timeout)
        while True:
            with Caught(TimeoutError):  # of the outlet: what a signal's handler raises passes
                return outlet.take(patience.seconds_left())
            patience.look()

    def stall(self) -> Stall | None:
        """Return the work of the fold's thread, or of the workers that it waits for."""
        stall, thread = self._client.stall, None if self._fold is None else self._fold.thread
        if stall is not None:
            return stall()
        if thread is None:
            return None
        what = "what is read in order, on the way to one batch"
        return Stall("the thread that reads in order", self._client.waited_until, lambda: what, thread)

    def next_nowait(self) -> tuple[Element, Token] | None:
        made = self.take_nowait()
        if made is None:
            return None
        self.count(made)
        return made.batch, made.token

    def take_nowait(self, wake: Callable[[], None] | None = None, /) -> Made | None:
        """Return the next batch as it was made, if it is there; if not, and the fold has begun, `wake` is called."""
        outlet = self._outlet
        if self._closed or outlet is None or not decide(SEEN_NOW, 1):
            return None
        self._scheduler.check()
        if not self.has_more:
            if wake is not None:
                outlet.forget(wake)
            self._receive(outlet.take_now() if wake is None else outlet.take_or_wake(wake))
        return self._taken(self._made[self._index]) if self._has_batch() else None

    def count(self, made: Made) -> None:
        """Count what filters left out on the way to a batch that is handed out."""
        for counts in made.filtered:
            self._client.recorder.count_filtered(*counts)

    def _taken(self, made: Made | None) -> Made:
        if made is None or self._step_range.where is None:
            raise InternalError("a batch of an ordered dataset is handed out once, with its token")
        if made.error is not None:
            self.count(made)
            self._closed = isinstance(made.error, EndOfEpoch)
            self._end_fold()
            try:
                raise made.error
            finally:
                del made  # the error's traceback holds this frame
        self._made[self._index] = None  # so that the chunk doesn't keep it
        self._index += 1
        self._step_range = self._step_range._replace(where=self._step_range.where._replace(token=made.token))
        return made

    def _receive(self, found: object) -> None:
        if isinstance(found, list):
            self._made, self._index = found, 0
        else:
            self._ended = found is not Mark.NOTHING

    def _begun(self) -> Outlet:
        if self._outlet is None:
            with HeldInterrupts():  # else nobody knows of the threads, and nobody ends them
                self._fold = Fold(self._scheduler, self._client, self._step_range, self._collate)
                chunks = (
                    self._client.plan.prefetch if self._collate is None else 1
                )  # what was taken waits for a tail, too
                config = PipelineConfig(Source(self._fold), (), Sink(chunks))
                self._engine = Engine(config, 1, 0, Probes(statistics=False, observer=None))
                self._outlet = self._engine.begin(None)
        return self._outlet

    def failing(self) -> Unit | None:
        return None

    def fileno(self) -> int | None:
        return self._bell.fileno()

    def is_ready(self) -> bool:
        if self._closed or self.has_more:
            return True
        self._bell.clear()
        self._await(self._bell.ring)
        return self.has_more

    def comes(self, wake: Callable[[], None]) -> bool:
        """Return whether the next batch is here; if not, `wake` is called when it may be, or there will be none."""
        if self._closed:
            return False
        if not self.has_more:
            self._await(wake)
        return self._has_batch()

    def _await(self, wake: Callable[[], None]) -> None:
        outlet = self._begun()
        outlet.forget(wake)
        self._receive(outlet.take_or_wake(wake))

    def _has_batch(self) -> bool:
        made = self._made[self._index] if self._index < len(self._made) else None
        return made is not None and made.error is None

    @property
    def has_more(self) -> bool:
        """Return whether the next batch, or the end, is here."""
        return self._ended or self._index < len(self._made)

    def _end_fold(self) -> None:
        # Held: an interrupted `Thread.join` takes the thread for ended, and when a loop of `asyncio` is dropped, Python
        # code runs: a Ctrl-C there is forgotten. A UsageError says that the collector runs in that very thread.
        with HeldInterrupts():
            if self._fold is not None:
                self._fold.inner.give_up()
            if self._engine is not None:
                with suppress(TimeoutError, UsageError):
                    self._engine.stop(_PATIENCE_SECONDS)
            self._made, self._index, self._ended = [], 0, False
            self._fold = self._engine = self._outlet = None

    def close(self) -> None:
        self._closed = True
        self._end_fold()
