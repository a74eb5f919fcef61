"""What a pipeline's process and its parent say to each other.

Items and what ends them come through the tensor pipe, each as `(run, word, content)`: so that what was on its way when
a new run began is known to be of the old one. Everything else goes over a pipe of small pickled messages; an empty one
from the parent means the end.
"""

from enum import IntEnum
from fractions import Fraction
from typing import NamedTuple

from penstock._frozen import frozen
from penstock._processes._exceptions import PackedError
from penstock.pipeline._config import PipelineConfig
from penstock.pipeline._statistics._report import PipelineReport


class Word(IntEnum):
    """What a message of the tensor pipe is."""

    ITEM = 0
    END_OF_PASS = 1  # of a continuous source: the next pass follows
    END = 2
    FAILED = 3  # the content is a pickled PackedError


class Setup(NamedTuple):
    """What the process runs, and how.

    Attributes:
        config: the pipeline.
        num_threads: as in `build_pipeline`.
        max_failures: as in `build_pipeline`.
        statistics: as in `build_pipeline`.
        address: of the parent's end of the tensor pipe.
        capacity: how many items may be on their way.
    """

    config: PipelineConfig
    num_threads: int
    max_failures: int | Fraction
    statistics: bool
    address: str
    capacity: int


class Begin(NamedTuple):
    """Begin a run; the one before is over.

    Attributes:
        run: its number.
    """

    run: int


class Read(NamedTuple):
    """A pass of a run is being read.

    Attributes:
        run: the run's number.
        passes: how many of its passes the reader has begun to read.
    """

    run: int
    passes: int


class Look(NamedTuple):
    """Tell what was seen so far.

    Attributes:
        number: of the question.
    """

    number: int


@frozen
class Seen:
    """The answer to `Look`, and the last word of a process that was told to end.

    Attributes:
        number: of the question; -1 for the last word.
        dropped: stage, item and error of each item that was dropped and is kept.
        report: None without statistics.
        failure: what ended the last run, if its message may not have been read.
        failed_run: which run that was.
    """

    number: int
    dropped: tuple[tuple[str, str, PackedError], ...]
    report: PipelineReport | None
    failure: PackedError | None = None
    failed_run: int = 0
