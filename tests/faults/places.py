"""The places where faults are injected: the arguments of loaders, and the faults of each."""

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import penstock as ps
from tests.faults.chance import Chance
from tests.faults.datasets import TRAPS_ANYWHERE, TRAPS_OF_PROCESSES

RESTART: Final = "restart"
ABANDON: Final = "abandon"
KILL: Final = "kill"
STOP: Final = "stop"
STOP_AND_KILL: Final = "stop, kill"
KILL_HELPER: Final = "helper"
KILL_SERVER: Final = "server"
KILL_PROGRAM: Final = "program"
FAULTS: Final = (
    KILL,
    KILL_HELPER,
    KILL_SERVER,
    STOP,
    STOP_AND_KILL,
    RESTART,
    ABANDON,
    *TRAPS_ANYWHERE,
    *TRAPS_OF_PROCESSES,
    KILL_PROGRAM,
)
WHOLE: Final = (0, 1)  # one rank, which has all rows
_MIN_MEMORY: Final = 32 << 20


@dataclass(frozen=True)
class Place:
    """A place: the arguments of a loader, and its name in the table."""

    name: str
    workers: Literal["threads", "processes"] = "threads"
    num_workers: int = 0
    isolated: bool = False
    ordered: bool = True
    prefetch: int = 2
    memory: int | None = None
    copy: bool = False
    num_batch_workers: int | None = None
    read_ahead: int = 64
    shard: tuple[int, int] = WHOLE

    @property
    def has_worker_processes(self) -> bool:
        """Whether its workers are processes."""
        return self.workers == "processes" and self.num_workers > 0

    @property
    def has_processes(self) -> bool:
        """Whether functions of the dataset run in other processes."""
        return self.isolated or self.has_worker_processes

    def faults(self) -> tuple[str, ...]:
        """Return the faults that can be injected here, other than the end of the program."""
        found: tuple[str, ...] = (RESTART, ABANDON, *TRAPS_ANYWHERE)
        if self.has_processes:
            found += (*TRAPS_OF_PROCESSES, KILL_SERVER, STOP, STOP_AND_KILL)
        if self.has_worker_processes:
            found += (KILL,)
        if self.isolated:
            found += (KILL_HELPER,)
        return found

    def open(self, dataset: ps.Dataset[Any]) -> ps.Loader[Any]:
        """Return a loader."""
        return ps.Loader(
            dataset,
            num_workers=self.num_workers,
            workers=self.workers,
            isolated=self.isolated,
            ordered=self.ordered,
            shard=ps.Shard(*self.shard),
            prefetch=self.prefetch,
            memory=self.memory,
            copy=self.copy,
            limits=ps.Limits(num_batch_workers=self.num_batch_workers, read_ahead=self.read_ahead),
        )

    def varied(self, chance: Chance, largest_batch: int) -> "Place":
        """Return the place with other bounds than the usual ones; of memory only where the largest batch is known."""
        prefetch, batch_workers = chance.between(1, 5), chance.one_of([None, 1, 2, 3])
        together = prefetch + 2 + max(self.num_workers, batch_workers or prefetch)
        memory = chance.one_of([None, None, _MIN_MEMORY + 2 * together * largest_batch])
        return replace(
            self,
            prefetch=prefetch,
            memory=memory if largest_batch else None,
            copy=chance.is_one_in(6),
            num_batch_workers=batch_workers,
            read_ahead=chance.one_of([1, 2, 7, 64]),
        )


def place_for(fault: str, chance: Chance) -> Place:
    """Return a random place where a fault can happen."""
    while True:
        count = chance.between(1, 4)
        place = chance.one_of(
            [
                Place("inline"),
                Place("threads", num_workers=count),
                Place("threads, any order", num_workers=count, ordered=False),
                Place("processes", "processes", count),
                Place("processes", "processes", count),
                Place("processes, any order", "processes", count, ordered=False),
                Place("isolated", isolated=True),
                Place("isolated threads", num_workers=count, isolated=True),
                Place("isolated processes", "processes", min(count, 2), isolated=True),
                Place("isolated, any order", num_workers=count, isolated=True, ordered=False),
            ]
        )
        if fault in place.faults() or (fault == KILL_PROGRAM and place.has_processes):
            return place
