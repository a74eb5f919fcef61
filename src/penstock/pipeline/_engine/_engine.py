"""What runs behind a pipeline: the background loop, which stays, and the run on it, of which there is one at a time."""

import os
from collections.abc import AsyncIterator, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from penstock.concurrency._children._seeding import draw_seeds
from penstock.errors import PipelineFailure, UsageError
from penstock.pipeline._channels._outlet import Outlet
from penstock.pipeline._config import Merge, PipelineConfig, has_processes
from penstock.pipeline._engine._background import Background
from penstock.pipeline._engine._open import Opening
from penstock.pipeline._engine._probes import Probes
from penstock.pipeline._engine._run import run
from penstock.pipeline._failures import Dropped
from penstock.pipeline._items import DroppedItem
from penstock.transport._interrupts import HeldInterrupts

if TYPE_CHECKING:
    from concurrent.futures import Future


class Engine:
    """Owns the background of one pipeline and the run on it. It knows nothing of the facade, which may be collected."""

    def __init__(self, config: PipelineConfig, num_threads: int, max_failures: int | Fraction, probes: Probes) -> None:
        self.config = config
        self.num_threads = num_threads
        self.names: tuple[str, ...] = config.names()
        self.probes = probes
        self.dropped: Dropped = Dropped()
        self.outlet: Outlet | None = None
        self._max_failures = max_failures
        self._background: Background | None = None
        self._running: Future[None] | None = None
        self._process = os.getpid()
        self._has_run = False

    @property
    def is_here(self) -> bool:
        """Whether this is the pipeline's process, not a fork of it."""
        return os.getpid() == self._process

    @property
    def is_started(self) -> bool:
        """Whether its loop runs."""
        return self._background is not None

    @property
    def is_running(self) -> bool:
        """Whether items are being made."""
        return self._running is not None and not self._running.done()

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
        """Return the outlet of a run that begins now: the first, or one that takes the place of the last."""
        if self._has_run:
            _need_iterable_again(self.config)
        if self._background is None:
            with HeldInterrupts():  # else nobody knows of its thread, and nobody ends it
                # Drawn here, in the caller's thread: the loop's would race with what the program draws meanwhile.
                seeds = draw_seeds() if has_processes(self.config) else None
                background = Background(self.num_threads, seeds)
                background.start(timeout)
                self._background = background
        if self.is_running:
            self._background.cancel()
        sink = self.config.sink
        probe = self.probes.probe("sink", "sink", 1)
        outlet = Outlet(sink.buffer_size, sink.max_bytes, probe, self._background.loop)
        self._has_run = True
        self.outlet = outlet
        self._running = self._background.begin(self._run(outlet, self._background))
        return outlet

    async def _run(self, outlet: Outlet, background: Background) -> None:
        failure: PipelineFailure | None = None
        self.probes.begin()
        try:
            opening = Opening(background.resources, self.probes, self._max_failures, self._drop)
            await run(opening.whole(self.config, outlet))
            failure = outlet.failure
        finally:
            outlet.end(None)
            self.probes.end(failure, self.names)

    def stop(self, timeout: float | None) -> None:
        """End everything, and wait for it."""
        if self._background is not None:
            self._background.close(timeout)
            self._background = None
            self._running = None
        if self.outlet is not None:
            self.outlet.end(None)  # wakes whoever waits for an item

    def abandon(self) -> None:
        """Ask for the end of everything: nobody will read it."""
        if self._background is not None and self.is_here:
            self._background.abandon()

    def _drop(self, dropped: DroppedItem) -> None:
        self.probes.drop(dropped)  # an observer sees the traceback
        self.dropped.add(dropped)


def _need_iterable_again(config: PipelineConfig) -> None:
    if isinstance(config.source, Merge):
        for merged in config.source.pipelines:
            _need_iterable_again(merged)
        return
    source = config.source.source
    if isinstance(source, Iterator | AsyncIterator):
        raise UsageError(
            f"an iterator can be gone through once; got a second pass over {source!r:.200}. Give what makes a new "
            f"iterator each time, such as a list, a dataset, or an object with __iter__"
        )
