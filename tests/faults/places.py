"""Where a dataset is read: by whom, how many of them, and in which order."""

from dataclasses import dataclass
from typing import Any, Final, Literal

import penstock as ps
from tests.faults.chance import Chance
from tests.faults.datasets import TRAPS_ANYWHERE, TRAPS_OF_PROCESSES

RESTART: Final = "restart"
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
    *TRAPS_ANYWHERE,
    *TRAPS_OF_PROCESSES,
    KILL_PROGRAM,
)


@dataclass(frozen=True)
class Place:
    """How a loader runs.

    Attributes:
        name: in the summary.
        workers: threads or processes; none where `num_workers` is 0.
    """

    name: str
    workers: Literal["threads", "processes"] = "threads"
    num_workers: int = 0
    isolated: bool = False
    ordered: bool = True

    @property
    def has_worker_processes(self) -> bool:
        """Whether its workers are processes."""
        return self.workers == "processes" and self.num_workers > 0

    @property
    def has_processes(self) -> bool:
        """Whether functions of the dataset run in other processes."""
        return self.isolated or self.has_worker_processes

    def faults(self) -> tuple[str, ...]:
        """Return what can go wrong here, other than the end of the program."""
        found: tuple[str, ...] = (RESTART, *TRAPS_ANYWHERE)
        if self.has_processes:
            found += (*TRAPS_OF_PROCESSES, KILL_SERVER, STOP, STOP_AND_KILL)
        if self.has_worker_processes:
            found += (KILL,)
        if self.isolated:
            found += (KILL_HELPER,)
        return found

    def open(self, dataset: ps.Dataset[Any], prefetch: int) -> ps.Loader[Any]:
        """Return a loader."""
        return ps.Loader(
            dataset,
            num_workers=self.num_workers,
            workers=self.workers,
            isolated=self.isolated,
            ordered=self.ordered,
            prefetch=prefetch,
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
