"""The surroundings of one scenario: a folder, a scope that closes opened objects, and its rivals."""

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
        scope: closes everything that contestants open.
        smoke: whether work is tiny, to try the code without measuring.
        rivals: returns the rivals' contestants for a scenario's name and its work.
    """

    directory: Path
    scope: ExitStack
    smoke: bool
    rivals: Callable[[str, object], tuple[Contestant, ...]]
