"""What runs behind a pipeline: the background loop, which stays, and the run on it, of which there is one at a time."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from fractions import Fraction
from functools import partial
from typing import Final, Literal, TypeAlias

from penstock._caught import Caught
from penstock._os import HeldInterrupts
from penstock._processes._seeding import draw_seeds
from penstock.errors import PipelineFailure, UsageError
from penstock.pipeline._channels._outlet import Outlet
from penstock.pipeline._config import Merge, PipelineConfig, has_processes
from penstock.pipeline._engine._background import Background
from penstock.pipeline._engine._open import Node, Opening
from penstock.pipeline._engine._probes import Probes
from penstock.pipeline._engine._run import run
from penstock.pipeline._failures import Dropped
from penstock.pipeline._items import DroppedItem

State: TypeAlias = Literal["new", "running", "done", "stopped"]
"""What a pipeline does: it never ran; a run makes items; the run has ended; it was stopped since."""

STOPPED: Final = (
    "the pipeline was stopped, and what was left of the pass is discarded. Begin another pass with `for`, or start()"
)
REPLACED: Final = (
    "this pass has ended for this reader: another one began to read, and a pipeline has one reader at a time. Read an "
    "iterator to its end before you make the next one"
)
_DROPPED: Final = "the pipeline was stopped: nothing refers to it any more, or the program ends"
_INTERRUPTED: Final = "the start of this pass was interrupted. Begin another one"


class Engine:
    """Owns the background of one pipeline and the run on it. It knows nothing of the facade, which may be collected.

    Attributes:
        config: the pipeline's description.
        num_threads: how many threads its functions share.
        names: of its stages.
        probes: what watches them.
        dropped: items that stages failed on.
        outlet: what is read; None if nothing ever began.
        is_stopped: whether it was stopped, and not started since.
        goes_on: whether a pass that is left early goes on with the next reader: its source is continuous, or an
            iterator, which doesn't begin again.
    """

    def __init__(self, config: PipelineConfig, num_threads: int, max_failures: int | Fraction, probes: Probes) -> None:
        self.config = config
        self.num_threads = num_threads
        self.names: tuple[str, ...] = config.names()
        self.probes = probes
        self.dropped: Dropped = Dropped()
        self.outlet: Outlet | None = None
        self.is_stopped: bool = False
        self.goes_on: bool = config.continuous or one_shot(config) is not None
        self._max_failures = max_failures
        self._background: Background | None = None
        self._ending: Background | None = None  # one that was stopped, and may not have ended yet
        self._running: Future[None] | None = None
        self._process = os.getpid()
        self._has_run = False

    @property
    def is_here(self) -> bool:
        """Whether this is the pipeline's process, not a fork of it."""
        return os.getpid() == self._process

    @property
    def state(self) -> State:
        """What it does."""
        if self.is_stopped or not self.is_here:
            return "stopped"
        if self._running is None:
            return "new"
        return "done" if self._running.done() else "running"

    def check_process(self) -> None:
        """Check that this is the pipeline's process.

        Raises:
            UsageError: it was forked from that one.
        """
        if not self.is_here:
            raise UsageError(
                f"a pipeline stays in the process that made it; got one of process {self._process} in its fork "
                f"{os.getpid()}, where its threads don't exist. Build the pipeline in the process that reads it"
            )

    def begin(self, timeout: float | None) -> Outlet:
        """Return the outlet of a run that begins now: the first, or one that takes the place of the last.

        Raises:
            UsageError: the source is an iterator that an earlier run has used.
            PipelineFailure: the event loop can't be started.
            TimeoutError: it didn't start in time, or what was stopped has not ended.
        """
        if self._has_run:
            _need_iterable_again(self.config)
        self.join(timeout)
        background = self._opened(timeout)
        sink = self.config.sink
        outlet = Outlet(sink.buffer_size, sink.max_bytes, self.probes.probe("sink", "sink", 1), background.loop)
        running: Future[None] = Future()
        running.add_done_callback(lambda _: outlet.close_unended(STOPPED))  # a run that never began
        if self.outlet is not None:
            self.outlet.close(REPLACED)
        try:
            self._has_run = True
            self.outlet, self._running, self.is_stopped = outlet, running, False
            background.begin(self._run(outlet, background), running)
        except BaseException:
            outlet.close(_INTERRUPTED)
            self._running = _done()
            raise
        return outlet

    def _opened(self, timeout: float | None) -> Background:
        if self._background is None or self._background.has_ended:
            with HeldInterrupts():  # else nobody knows of its thread, and nobody ends it
                # Drawn here, in the caller's thread: the loop's would race with what the program draws meanwhile.
                seeds = draw_seeds() if has_processes(self.config) else None
                background = Background(self.num_threads, seeds)
                background.start(timeout)
                self._background = background
        return self._background

    async def _run(self, outlet: Outlet, background: Background) -> None:
        nodes: list[Node] = []
        self.probes.begin()
        # No method: the outlet keeps it, so that the engine, its outlet and the closed loop would be a reference cycle.
        drop = partial(_drop, self.probes, self.dropped)
        with Caught() as opening:  # without an await, so that a CancelledError is a function's
            opened = Opening(background.resources, self.probes, self._max_failures, drop, outlet)
            nodes = opened.whole(self.config)
        failure = None if opening.error is None else _not_opened(opening.taken())
        with Caught() as running:
            await run(nodes)
        if isinstance(running.error, asyncio.CancelledError):
            outlet.close(STOPPED)
        elif running.error is not None:
            failure = _not_opened(running.taken())
        outlet.end(failure)
        self.probes.end(failure or outlet.unread_failure, self.names)
        if running.error is not None:
            raise running.taken()

    def halt(self) -> None:
        """Have everything end, and readers learn of it; returns at once, and may be repeated."""
        self.is_stopped = True
        if self.outlet is not None:
            self.outlet.close(STOPPED)
        background = self._background
        if background is not None:
            self._ending, self._background = background, None  # first, so that an interrupted call has done it
            background.abandon()

    def check_waiting(self) -> None:
        """Check that this thread may wait for the end.

        Raises:
            UsageError: it is one of the pipeline's own, which would wait for itself.
        """
        for background in (self._background, self._ending):
            if background is not None:
                background.check_waiting()

    def join(self, timeout: float | None) -> None:
        """Wait until what was halted has ended.

        Raises:
            TimeoutError: it has not after so many seconds.
        """
        ending = self._ending
        if ending is not None:
            ending.close(timeout)
            self._ending = None if self._ending is ending else self._ending

    def stop(self, timeout: float | None) -> None:
        """End everything, and wait for it."""
        self.halt()
        self.join(timeout)

    def abandon(self) -> None:
        """Ask for the end of everything: nobody will read it, but for a thread that the program's end finds reading."""
        if self._background is not None and self.is_here:
            self._background.abandon(None if self.outlet is None else partial(self.outlet.close, _DROPPED))


def _drop(probes: Probes, dropped: Dropped, item: DroppedItem) -> None:
    probes.drop(item)  # an observer sees the traceback
    dropped.add(item)


def _done() -> "Future[None]":
    done: Future[None] = Future()
    done.set_result(None)
    return done


def _not_opened(error: BaseException) -> PipelineFailure:
    """Return the failure of a run that can't be opened."""
    if isinstance(error, PipelineFailure):
        return error
    failure = PipelineFailure(f"the pipeline can't be opened: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def one_shot(config: PipelineConfig) -> object | None:
    """Return a source that can be gone through once; None if there is none."""
    if isinstance(config.source, Merge):
        found = (one_shot(merged) for merged in config.source.pipelines)
        return next((each for each in found if each is not None), None)
    source: object = config.source.source
    return source if isinstance(source, Iterator | AsyncIterator) else None


def _need_iterable_again(config: PipelineConfig) -> None:
    source = one_shot(config)
    if source is not None:
        raise UsageError(
            f"an iterator can be gone through once; got a second pass over {source!r:.200}. Give what makes a new "
            f"iterator each time, such as a list, a dataset, or an object with __iter__"
        )
