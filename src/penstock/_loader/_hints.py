"""Hints: warnings in the log where a run loses time or data without an error, given by the consumer's own thread.

A hint needs no clock of its own. It looks at times that the loader's `Clock` has taken, and only after a noticeable
wait. Whether the training mostly waits is decided by the loader's report, which takes milliseconds; so the report is
made when the waits add up to `LOOKED_AT_SECONDS`, and then each time that their sum has doubled. Whether threads slow
the training by the interpreter's lock is decided so as well, by the time of the training.

Other modules log what only they see: the record that a worker is stuck at (`_runtime/_failing_work.py`), replaced and
skipped elements (`_runtime/_recorder.py`), a loader that is made again for each epoch (`_loader/_beginnings.py`). All
write to the logger "penstock", whose level silences them.
"""

import logging
from abc import ABC, abstractmethod
from math import inf
from typing import Protocol

from penstock._caught import Caught
from penstock._graph import length
from penstock._loader._policy import LOOKED_AT_SECONDS, MOSTLY_SHARE, SLOW_SECONDS
from penstock._loader._progress import Progress
from penstock._plan import Plan
from penstock._readings import Readings
from penstock._runtime import Recorder, describe_step, is_logged, usable_processors
from penstock.observe import Report
from penstock.observe._measured import LEAST_BATCHES, Measured, measured

_logger = logging.getLogger("penstock")


class Counted(Protocol):
    """The counts of a loader's clock."""

    batches: int
    wait_seconds: float

    @property
    def elapsed_seconds(self) -> float:
        """The time from the first request to the last delivery."""
        ...


def report_of(plan: Plan, readings: Readings, clock: Counted) -> Report:
    """Return the report of a loader."""
    figures = Measured(clock.batches, clock.elapsed_seconds, clock.wait_seconds)
    return measured(plan, readings, figures, processors_of(plan))


def processors_of(plan: Plan) -> int:
    """Return the number of processors for a loader: this program's, or one for each process of its pool."""
    return plan.num_workers if plan.remote else usable_processors()


class WaitHints(ABC):
    """The hints about waiting of a loader of any kind, where the training's own thread computes the batches.

    Args:
        is_inline: whether it does; otherwise there are none of these hints.
        helps: whether workers would help.
    """

    def __init__(self, *, is_inline: bool, helps: bool) -> None:
        self._is_inline = is_inline
        self._helps = helps
        self._look_at = LOOKED_AT_SECONDS if is_inline and helps else inf
        self._slow = 0

    def waited(self, clock: Counted, seconds: float) -> float:
        """Look at a noticeable wait for the next batch, before it is counted.

        Returns:
            The seconds after the last delivery before which no other wait is worth a look: sums grow with the time.
        """
        self._look(clock, seconds)
        return min(SLOW_SECONDS if self._is_inline else inf, self._look_at - clock.wait_seconds)

    def _look(self, clock: Counted, seconds: float) -> None:
        is_slow = self._is_inline and seconds >= SLOW_SECONDS
        if not is_slow and clock.wait_seconds < self._look_at:
            return
        with Caught(Exception):  # the batch was taken from the stream: an error, as of a log's filter, would lose it
            if is_slow:
                self._name_slow(clock, seconds)
            if clock.wait_seconds >= self._look_at:
                self._look_at = 2 * clock.wait_seconds
                if self._looked(clock):
                    self._look_at = inf

    def _name_slow(self, clock: Counted, seconds: float) -> None:
        self._slow += 1
        if not is_logged(self._slow):
            return
        step, content = self._computed(clock)
        _logger.warning(
            "the batch of step %d took %.0f s in the training's own thread: %s%s%s",
            step,
            seconds,
            content,
            "" if self._slow == 1 else f"; it is the {self._slow}th of such batches",
            ". With num_workers, workers compute batches ahead" if self._helps else "",
        )

    @abstractmethod
    def _computed(self, clock: Counted) -> tuple[int, str]:
        """Return the step whose batch was just computed, and a text of what is in the batch."""

    @abstractmethod
    def _looked(self, clock: Counted) -> bool:
        """Log if the training mostly waits, and return whether it does."""


class Hints(WaitHints):
    """The hints of one loader.

    Args:
        plan: of the loader.
        readings: of the loader.
        progress: of the loader.
    """

    def __init__(self, plan: Plan, readings: Readings, progress: Progress) -> None:
        super().__init__(is_inline=plan.is_computed_here, helps=plan.program.uses_workers)
        self._plan = plan
        self._readings = readings
        self._progress = progress
        self._has_named_empty = False
        self._lock_look_at = LOOKED_AT_SECONDS if plan.place == "threads" and not plan.isolated else inf

    def waited(self, clock: Counted, seconds: float) -> float:
        until = super().waited(clock, seconds)
        if self._lock_look_at < inf and clock.elapsed_seconds >= self._lock_look_at:
            with Caught(Exception):
                self._look_for_lock(clock)
        return min(until, self._lock_look_at - clock.elapsed_seconds)

    def _look_for_lock(self, clock: Counted) -> None:
        self._lock_look_at = 2 * clock.elapsed_seconds
        report = report_of(self._plan, self._readings, clock)
        if report.batches < LEAST_BATCHES or not report.slowed_by_threads:
            return
        self._lock_look_at = inf
        _logger.warning(
            "the loader's threads slow the training, which waits for the interpreter's lock (GIL): its own work for a "
            "batch takes %.1f ms, and about %.1f ms where no thread holds the lock. To change: %s. loader.report() "
            "shows all steps",
            1e3 * report.consumer_seconds,
            1e3 * report.consumer_own_seconds,
            report.advice,
        )

    def _computed(self, clock: Counted) -> tuple[int, str]:
        del clock  # it counts the batches of this process
        unit = self._progress.step_range(self._progress.next_step).first
        return unit.step, describe_step(self._plan, unit)

    def _looked(self, clock: Counted) -> bool:
        report = report_of(self._plan, self._readings, clock)
        if report.batches < LEAST_BATCHES or report.wait_share < MOSTLY_SHARE or report.bottleneck is None:
            return False
        _logger.warning(
            "the training has waited for %.0f of %.0f s: it computes its batches in its own thread, without workers, "
            "and %r takes most of the time. To change: %s. loader.report() shows all steps",
            report.wait_seconds,
            report.elapsed_seconds,
            report.bottleneck,
            report.advice,
        )
        return True

    def name_empty(self, epoch: int, recorder: Recorder) -> None:
        """Log, once, that a whole epoch gave no batch.

        Raises:
            GraphError: steps left elements out because their functions failed.
        """
        recorder.check_empty_epoch(epoch)
        if self._has_named_empty:
            return
        self._has_named_empty = True
        shard = self._plan.shard
        _logger.warning(
            "a whole epoch gave no batch%s: %s",
            "" if shard.count == 1 else f" on rank {shard.rank} of {shard.count}",
            _why_empty(self._plan, recorder.filtered_in_epoch()),
        )


def _why_empty(plan: Plan, filtered: int) -> str:
    """Return why an epoch gave no batch, as far as it is known without reading."""
    if filtered:
        plural = "" if filtered == 1 else "s"
        return f"its filters left out {filtered:,} element{plural}, and too few are left for a batch"
    batch = plan.batches.batch if plan.is_indexed else None
    rows = length(plan.node if batch is None else batch.parent)
    if batch is not None and rows:
        count = "its only element is" if rows == 1 else f"its {rows:,} elements are"
        size, rule = batch.value.size, batch.value.remainder
        return f'{count} fewer than a batch of {size:,}, and remainder="{rule}" leaves such a rest out'
    if rows == 0:
        return "the dataset has no elements"
    return 'the dataset gave no elements, or, with remainder="drop", fewer than a batch has'
