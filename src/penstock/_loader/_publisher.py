"""The writer of a loader's live page: what the loader does, for `penstock watch` and `Loader.watch`.

The consumer's own thread writes, after a noticeable wait, so that batches of microseconds pay nothing. A write takes
about two hundred microseconds, and the next one waits for at least a tenth of a second and a thousand times as long as
the last one computed. So watched or not, a loader spends a thousandth of its time on it; more only if a write takes
milliseconds, since the page is written once in 1.5 seconds at least. The end of an epoch, after which no batch may be
requested for minutes, adds only the position to a page that is newer.

A loader without workers has no page in its first tenth of a second: most of those that end so soon are made by the
thousand. With threads the page is made by the first wait of that length. With processes there is a page from the first
iterator on, since their start may take long.
"""

import json
import logging
import os
import time
import weakref
from abc import ABC, abstractmethod
from functools import cached_property
from math import inf
from typing import Final

from penstock._caught import Caught
from penstock._live_page import LivePage, Seen
from penstock._loader._hints import processors_of
from penstock._loader._progress import Progress
from penstock._os import renewed_after_fork
from penstock._plan import Plan
from penstock._readings import Waits, unseen_word
from penstock._runtime import Runtime
from penstock.events import Skipped, Substituted, WorkerDied
from penstock.observe._measured import batches_made
from penstock.observe._sums import Losses, Position, StepTexts, Sums, dataset_text, step_sums

_EACH_SECONDS: Final = 0.1
_MOST_SECONDS: Final = 1.5  # less than the age of a page in which readers take the training for idle
_TIMES: Final = 1000
_LONG: Final = 200  # characters of a text
_logger = logging.getLogger("penstock")


class PagePublisher(ABC):
    """Writes the live page of one loader.

    Args:
        waits: those of the loader's consumer.

    Attributes:
        due: the moment from which on the page is to be written again, by the monotonic clock.
    """

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._page: LivePage | None = None
        self._is_closed = False
        self._started = 0.0  # the moment of the first iterator
        self.due: float = inf
        renewed_after_fork(self)

    def begin(self) -> None:
        """Note that an iterator was made."""
        now = time.perf_counter()
        is_first = not self._started
        if is_first:
            self._started = now
        if self._page is None and self._starts_slowly():
            self.publish(now, 0, 0.0, 0)
        if is_first and not self._is_closed:
            self.due = now + _EACH_SECONDS  # a first write takes longer than those after it

    @abstractmethod
    def _starts_slowly(self) -> bool:
        """Return whether there is a page from the first iterator on, and not only after a while."""

    def end(self, batches: int, wait_seconds: float) -> None:
        """Write the position at the end of an epoch, since the page isn't written again until the next one.

        The whole page only if that is due: an epoch may take a millisecond.
        """
        page, now = self._page, time.perf_counter()
        if page is None or self._is_closed:
            return
        if now >= self.due:
            self.publish(now, batches, wait_seconds, 0)
            return
        with Caught(Exception) as caught:
            epoch, step, done, _ = self._position(batches, 0)
            page.end_epoch(epoch, step, done, batches)
        if caught.error is not None:
            self._fail(caught.taken())

    def publish(self, now: float, batches: int, wait_seconds: float, ahead: int = 1) -> None:
        """Write the page.

        Args:
            now: the moment, by the monotonic clock.
            batches: the number of delivered batches.
            wait_seconds: the time that the consumer has waited for them.
            ahead: how many of them the progress doesn't count yet.
        """
        if self._is_closed:
            return
        with Caught(Exception) as caught:  # the batch was taken from the stream: an error would lose it
            page = self._opened()
            began = time.thread_time()
            page.write(_packed(self._sums(now, batches, wait_seconds, ahead)))
            self.due = now + min(max(_EACH_SECONDS, _TIMES * (time.thread_time() - began)), _MOST_SECONDS)
        if caught.error is not None:
            self._fail(caught.taken())

    def _fail(self, error: BaseException) -> None:
        self.due = inf
        _logger.warning("penstock watch can't show this loader: %s", repr(error))

    def _opened(self) -> LivePage:
        page = self._page
        if page is None:
            page = self._page = LivePage()
            page.waiting[0] = self._waits.waiting[0]
            self._waits.waiting, self._waits.long = page.waiting, None
        return page

    @abstractmethod
    def _position(self, batches: int, ahead: int) -> Position:
        """Return the position after so many delivered batches, of which the progress doesn't count `ahead` yet."""

    @abstractmethod
    def _sums(self, now: float, batches: int, wait_seconds: float, ahead: int) -> Sums:
        """Return the content of the page, of the arguments of `publish`."""

    def seen(self) -> Seen | None:
        """Return what the page holds; None if there is none. Any thread may call this."""
        page = self._page
        return None if page is None else page.read()

    def close(self) -> None:
        """Free the page, as soon as no thread writes it any more."""
        self._is_closed = True
        self._forget()

    def renew_after_fork(self) -> None:
        """Leave the page to the parent."""
        self._forget()

    def _forget(self) -> None:
        self._page = None
        self._waits.waiting = unseen_word()


class Publisher(PagePublisher):
    """Writes the live page of a `Loader`.

    It doesn't keep the runtime, which refers to the clock of this publisher by its recorder: a dropped loader must be
    freed without the garbage collector.

    Args:
        plan: of the loader.
        runtime: of the loader.
        progress: of the loader.
    """

    def __init__(self, plan: Plan, runtime: Runtime, progress: Progress) -> None:
        super().__init__(runtime.readings.waits)
        self._plan = plan
        self._readings = runtime.readings
        self._runtime = weakref.ref(runtime)
        self._progress = progress
        self._texts = StepTexts()

    @cached_property
    def _processors(self) -> int:
        return processors_of(self._plan)

    @cached_property
    def _dataset(self) -> str:
        return dataset_text(self._plan)

    def _starts_slowly(self) -> bool:
        plan = self._plan
        if plan.isolated or plan.remote:
            return True
        return plan.place != "inline" and not plan.is_indexed  # else the first wait of 0.1 s makes the page

    def _position(self, batches: int, ahead: int) -> Position:
        del batches
        epoch, done, of = self._progress.in_epoch()
        return Position(epoch, self._progress.next_step + ahead, done + ahead, of)

    def _sums(self, now: float, batches: int, wait_seconds: float, ahead: int) -> Sums:
        plan, readings, runtime = self._plan, self._readings, self._runtime()
        return Sums(
            pid=os.getpid(),
            at=now,
            since=self._started,
            dataset=self._dataset,
            workers=plan.worker_count,
            workers_text=plan.workers_text,
            processors=self._processors,
            rank=plan.shard.rank,
            ranks=plan.shard.count,
            rows=max(plan.batch_size // plan.shard.count, 1),
            position=self._position(batches, ahead),
            batches=batches,
            wait_seconds=wait_seconds,
            waits=readings.waits.seconds.copy(),
            made=batches_made(plan, readings, batches),
            busy_seconds=readings.busy_seconds,
            steps=step_sums(plan, readings, batches, self._texts),
            lock_wait_seconds=readings.lock_wait_seconds if plan.place == "threads" else 0.0,
            batch_bytes=0 if runtime is None else runtime.bytes_in_flight(),
            losses=Losses() if runtime is None else _losses(runtime),
        )


def _losses(runtime: Runtime) -> Losses:
    recorder = runtime.recorder
    deaths = recorder.total(WorkerDied)
    reason = recorder.deaths()[-1].reason[:_LONG] if deaths else ""
    return Losses(deaths, reason, recorder.total(Substituted), recorder.total(Skipped))


def _packed(sums: Sums) -> bytes:
    values = sums._asdict()
    del values["written"], values["waits_since"]
    return json.dumps(values, ensure_ascii=False).encode("utf-8", "replace")
