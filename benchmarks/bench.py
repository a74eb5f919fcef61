"""What a scenario stands on while it is measured: a folder, a scope that closes what it opens, and its rivals."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.scenario import Contestant


@dataclass(frozen=True, slots=True)
class Bench:
    """The surroundings of one scenario.

    Attributes:
        directory: an empty folder that is removed afterwards.
        scope: what contestants open is closed with it.
        smoke: whether work is to be tiny, since only the code is tried.
        rivals: gives the rivals' contestants for a scenario's name and its work.
    """

    directory: Path
    scope: ExitStack
    smoke: bool
    rivals: Callable[[str, object], tuple[Contestant, ...]]
