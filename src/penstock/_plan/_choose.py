"""The choice of workers where the caller leaves it open: a function of the cost of elements and of the machine.

Threads serve functions that wait or release the GIL. Processes serve functions that hold it, where these cost enough to
be worth starting a process. Elements that cost less than handing their batches over are computed inline.
"""

import math
from typing import Final, Literal, NamedTuple, TypeAlias

from penstock._frozen import frozen
from penstock._plan._plan import Place

Workers: TypeAlias = Literal["auto", "processes", "threads"]

_NOTHING_SECONDS: Final = 0.001  # a batch that takes less is made sooner than handed over
_WORTH_SECONDS: Final = 2.0  # of an epoch's work, below which processes would be started for nothing
_WAITING: Final = 2.0  # times the processor's time
_SPEEDUP: Final = 1.6  # of two threads: 1 where functions hold the GIL, 2 where they release it
_MAX_WAITING: Final = 32
_UNKNOWN: Final = "nothing could be measured"


@frozen
class Cost:
    """The cost of a dataset's rows, measured on a few of them.

    Attributes:
        row_seconds: from a row's start to its end, its share of merging included.
        row_cpu_seconds: the processor's part of that.
        speedup: how many times as many rows two threads compute as one; None where that was not tried.
    """

    row_seconds: float
    row_cpu_seconds: float
    speedup: float | None = None

    @property
    def waits(self) -> bool:
        """Whether rows wait, as for storage, more than they compute."""
        return self.row_seconds > _WAITING * self.row_cpu_seconds


@frozen
class Room:
    """The work of a step, and the processors for it.

    Attributes:
        step_rows: rows of a step, of this rank.
        epoch_rows: rows of an epoch, of this rank.
        processors: how many may be used.
        obstacle: why there can't be processes; empty if there can.
    """

    step_rows: int
    epoch_rows: int
    processors: int
    obstacle: str = ""


class Choice(NamedTuple):
    """The chosen workers, and the reason in a few words."""

    place: Place
    num_workers: int
    why: str


def choose_kind(num_workers: int, cost: Cost | None, room: Room) -> Choice:
    """Return whether a given number of workers are threads or processes.

    Args:
        num_workers: at least 1.
        cost: of the rows; None if they could not be measured.
        room: the work, and the machine.
    """
    why_threads = room.obstacle or _why_threads(cost, room)
    if why_threads:
        return Choice("threads", num_workers, why_threads)
    return Choice("processes", num_workers, _holding(cost))


def choose_number(workers: Workers, cost: Cost | None, room: Room) -> Choice:
    """Return how many workers there are, and which, if the caller hasn't said.

    Args:
        workers: what they may be.
        cost: of the rows; None if they could not be measured.
        room: the work, and the machine.
    """
    most = max(min(room.processors, room.epoch_rows), 1)
    trainer_left = max(most - 1, 1) if most == room.processors else most
    if cost is None:
        if workers == "processes":
            return Choice("processes", trainer_left, _UNKNOWN)
        return Choice("threads", most, room.obstacle or _UNKNOWN)
    if cost.row_seconds < worth_workers(room):
        return Choice("inline", 0, f"a batch takes {_short(cost.row_seconds * room.step_rows)}")
    if workers == "processes":
        return Choice("processes", trainer_left, f"of {room.processors} processors")
    if cost.waits:
        share = cost.row_seconds / max(cost.row_cpu_seconds, 1e-9)
        many = math.ceil(min(room.processors * share, max(_MAX_WAITING, room.processors)))
        return Choice("threads", max(min(many, room.epoch_rows), 1), _waiting(cost))
    releases = cost.speedup is not None and cost.speedup >= _SPEEDUP
    if releases or room.processors == 1:
        return Choice("threads", most, _why_threads(cost, room))
    why_threads = 'workers="threads"' if workers == "threads" else room.obstacle or _why_threads(cost, room)
    if why_threads:
        holding = "" if cost.speedup is None else f"{_holding(cost)}, and "
        return Choice("threads", 1, f"{holding}{why_threads}")
    return Choice("processes", trainer_left, _holding(cost))


def worth_workers(room: Room) -> float:
    """Return how many seconds a row must take for any worker to be worth something."""
    return _NOTHING_SECONDS / max(room.step_rows, 1)


def worth_processes(room: Room) -> float:
    """Return how many seconds a row must take for processes to be worth their start."""
    return max(_WORTH_SECONDS / max(room.epoch_rows, 1), worth_workers(room))


def _why_threads(cost: Cost | None, room: Room) -> str:
    """Return why threads are the better kind; empty if processes are."""
    if cost is None:
        return _UNKNOWN
    if room.processors == 1:
        return "there is one processor"
    if cost.row_seconds < worth_processes(room):
        return f"a batch takes {_short(cost.row_seconds * room.step_rows)}, too little for processes to pay"
    if cost.waits:
        return _waiting(cost)
    if cost.speedup is None:
        return ""
    return f"{_times(cost.speedup)}: the functions release the GIL" if cost.speedup >= _SPEEDUP else ""


def _waiting(cost: Cost) -> str:
    return f"an element takes {_short(cost.row_seconds)} and computes for {_short(cost.row_cpu_seconds)} of it"


def _holding(cost: Cost | None) -> str:
    speedup = None if cost is None else cost.speedup
    return "elements take long" if speedup is None else f"{_times(speedup)}: the functions hold the GIL"


def _times(speedup: float) -> str:
    return f"two threads compute {speedup:.1f} times as much as one"


def _short(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
