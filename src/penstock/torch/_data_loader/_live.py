"""The live page of a `DataLoader` with workers, by which `penstock watch` shows it."""

import os
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from penstock._loader._publisher import PagePublisher
from penstock._os import renewed_after_fork
from penstock._readings import Waits
from penstock._runtime import usable_processors
from penstock.events import WorkerDied
from penstock.observe._sums import Losses, Position, Sums

_LONG = 200  # characters of a text


class Described(NamedTuple):
    """A `DataLoader`, as its page shows it."""

    dataset: str
    workers: int
    rows: int
    """The number of rows of a batch."""


class LivePages(PagePublisher):
    """Writes the live page of a `DataLoader`. It has no times of steps: the dataset is one function to the loader.

    Args:
        waits: those of its consumer.
        described: the loader.
        deaths: those of its workers; grows meanwhile.
    """

    def __init__(self, waits: Waits, described: Described, deaths: Sequence[WorkerDied]) -> None:
        super().__init__(waits)
        self._described = described
        self._deaths = deaths
        self._epoch = -1
        self._before = 0  # batches delivered before the epoch
        self._of: int | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_page": None}  # memory, which is of this process

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        renewed_after_fork(self)

    def begin_epoch(self, batches: int, reached: int, of: int | None) -> None:
        """Note that an iterator was made.

        Args:
            batches: the number of batches delivered so far.
            reached: how many batches of the epoch a loaded state counts.
            of: the number of batches of the epoch; None if it isn't known.
        """
        self._epoch += 1
        self._before, self._of = batches - reached, of
        self._waits.begin("workers")
        self.begin()

    def _starts_slowly(self) -> bool:
        return True

    @cached_property
    def _processors(self) -> int:
        return usable_processors()

    def _position(self, batches: int, ahead: int) -> Position:
        del ahead  # `batches` counts them
        return Position(self._epoch, batches, batches - self._before, self._of)

    def _sums(self, now: float, batches: int, wait_seconds: float, ahead: int) -> Sums:
        dataset, workers, rows = self._described
        deaths = self._deaths
        return Sums(
            pid=os.getpid(),
            at=now,
            since=self._started,
            dataset=dataset,
            workers=0,  # how busy they are isn't known
            workers_text=f"{workers} process{'' if workers == 1 else 'es'}",
            processors=self._processors,
            rank=0,
            ranks=1,
            rows=rows,
            position=self._position(batches, ahead),
            batches=batches,
            wait_seconds=wait_seconds,
            waits=self._waits.seconds.copy(),
            made=float(batches),
            busy_seconds=0.0,
            steps=(),
            batch_bytes=0,
            losses=Losses(len(deaths), deaths[-1].reason[:_LONG] if deaths else ""),
        )
