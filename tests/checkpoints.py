"""The counts of a long run, in a file: a run that was stopped or killed resumes from them.

A part of the run, such as a round of faults, either counts as a whole or is run again.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple


class Counted(NamedTuple):
    """The figures of a run so far.

    Attributes:
        parts: the number of parts that have ended.
        seconds: the time that they took.
        counts: by the names of what was counted; all names have equally many words.
    """

    parts: int
    seconds: float
    counts: Counter[tuple[str, ...]]


def load(path: Path | None) -> Counted:
    """Return the figures in a file; none where there is no file."""
    if path is None or not path.exists():
        return Counted(0, 0.0, Counter())
    figures = json.loads(path.read_text())
    counts = Counter({tuple(name): count for name, count in figures["counts"]})
    return Counted(figures["parts"], figures["seconds"], counts)


def save(path: Path | None, counted: Counted) -> None:
    """Replace the figures in a file, if there is one: a program that is killed leaves the old or the new ones."""
    if path is None:
        return
    figures = {"parts": counted.parts, "seconds": counted.seconds, "counts": [*counted.counts.items()]}
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(figures))
    os.replace(unfinished, path)
